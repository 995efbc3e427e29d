"""Forgetting over the API: asking what would go, having it gone, and the receipt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Protocol

import grpc
from google.protobuf.json_format import ParseDict

from memory_extproc.api.call import (
    Call,
    ErrorReason,
    Fields,
    Noted,
    Operation,
    RefusedError,
    Repeats,
    bad_request,
    is_id,
    message_of,
    no_such_memory,
    scope_of,
    whole_id,
)
from memory_extproc.api.gen import memory_pb2 as pb
from memory_extproc.curation.editor import MemoryCatalog
from memory_extproc.erasure.receipts import SignatureState, Verification
from memory_extproc.erasure.tombstones import WAITING_TURNS
from memory_extproc.errors import NotConfirmedError, PermanentError
from memory_extproc.model import (
    Consent,
    ConsentChange,
    ForgetReceipt,
    ForgetScope,
    ForgetState,
    MemoryType,
    Owner,
)
from memory_extproc.ports import ConsentRegistry, MemoryForgetter

MOST_IDS = 1000
_FILTERS = ("project_id", "type", "session_id", "before", "memory_ids", "query", "dry_run")


class VerifyingForgetter(MemoryForgetter, Protocol):
    async def verify(self, owner: Owner, signed: bytes, signature: bytes) -> Verification:
        """Check a receipt, and search the stores. PermanentError for bytes that are no receipt."""


class ForgetCalls:
    def __init__(self, forgets: VerifyingForgetter, catalogue: MemoryCatalog, repeats: Repeats) -> None:
        self._forgets, self._catalogue, self._repeats = forgets, catalogue, repeats

    @property
    def operations(self) -> Mapping[str, Operation]:
        return {
            "ForgetMemory": self.forget_one,
            "ForgetMemories": self.forget,
            "GetForgetReceipt": self.receipt,
            "VerifyReceipt": self.verify,
        }

    async def forget_one(self, call: Call, request: pb.ForgetMemoryRequest) -> pb.ForgetMemoryResponse:
        fields = Fields()
        call.request_id = fields.request_id(request.request_id)
        fields.check()
        if not is_id(request.id):
            raise no_such_memory()

        async def work() -> Noted:
            memory_id = await whole_id(self._catalogue, call, request.id)
            if await self._catalogue.get(call.owner, memory_id) is None:
                raise no_such_memory()
            return {"receipt": (await self._forgets.forget(call.owner, ForgetScope(ids=(memory_id,)))).id}

        noted = await self._repeats.once(call, request, work)
        receipt = await self._receipt(call, noted["receipt"])
        return pb.ForgetMemoryResponse(
            success=True, message=_describe_receipt(receipt), receipt=receipt_of(receipt)
        )

    async def forget(self, call: Call, request: pb.ForgetMemoriesRequest) -> pb.ForgetMemoriesResponse:
        scope = await self._with_whole_ids(call, _scope(request))
        call.request_id, call.scope = request.request_id, scope_of(request, *_FILTERS)
        if request.dry_run:
            return await self._plan(call, scope)
        if scope.query and not (request.confirmation_token or scope.ids):
            raise _not_confirmed("a query's forget needs its dry run's confirmation_token, or memory_ids")

        async def work() -> Noted:
            try:
                receipt = await self._forgets.forget(call.owner, scope, token=request.confirmation_token)
            except NotConfirmedError as error:
                raise _not_confirmed("this token is of another scope, or too old") from error
            return {"receipt": receipt.id}

        noted = await self._repeats.once(call, request, work)
        receipt = await self._receipt(call, noted["receipt"])
        return pb.ForgetMemoriesResponse(
            success=True, message=_describe_receipt(receipt), receipt=receipt_of(receipt)
        )

    async def _with_whole_ids(self, call: Call, scope: ForgetScope) -> ForgetScope:
        return replace(scope, ids=tuple([await whole_id(self._catalogue, call, one) for one in scope.ids]))

    async def receipt(self, call: Call, request: pb.GetForgetReceiptRequest) -> pb.ForgetReceipt:
        return receipt_of(await self._receipt(call, request.receipt_id))

    async def verify(self, call: Call, request: pb.VerifyReceiptRequest) -> pb.VerifyReceiptResponse:
        given = request.receipt
        try:
            found = await self._forgets.verify(call.owner, given.signed, given.signature)
        except PermanentError as error:
            raise bad_request(("receipt", "the receipt of a forget as it was given, with `signed`")) from error
        altered = found.signature is SignatureState.VALID and not _agrees(given, found.body)
        return pb.VerifyReceiptResponse(
            signature=SignatureState.ALTERED if altered else found.signature,
            subject_matches=found.looks is not None,
            stores=[
                pb.StoreLook(store=look.store, verdict=look.verdict, found=look.found, why=look.why)
                for look in found.looks or ()
            ],
        )

    async def _plan(self, call: Call, scope: ForgetScope) -> pb.ForgetMemoriesResponse:
        plan = await self._forgets.plan(call.owner, scope)
        call.count = plan.total
        return pb.ForgetMemoriesResponse(
            message=f"{_format_count(plan.total)} would be forgotten",
            would_forget=map(message_of, plan.memories),
            total=plan.total,
            confirmation_token=plan.token,
            confirmation_expires_at=plan.expires_at,
        )

    async def _receipt(self, call: Call, receipt_id: str) -> ForgetReceipt:
        found = await self._forgets.receipt(call.owner, receipt_id) if is_id(receipt_id) else None
        if found is None:
            raise RefusedError(grpc.StatusCode.NOT_FOUND, ErrorReason.NO_SUCH_RECEIPT, "no such receipt")
        call.count = found.memories
        return found


def receipt_of(receipt: ForgetReceipt) -> pb.ForgetReceipt:
    return pb.ForgetReceipt(
        id=receipt.id,
        state=receipt.state.value,
        scope=receipt.scope,
        subject=receipt.subject,
        accepted_at=receipt.accepted_at,
        clean_at=receipt.clean_at,
        completed_at=receipt.completed_at,
        memories=receipt.memories,
        stores=[
            pb.StoreErasure(
                store=erased.store,
                state="done" if erased.done else "pending",
                removed=erased.removed,
                done_at=erased.done_at,
                pending_until=erased.pending_until,
                note=erased.note,
            )
            for erased in receipt.stores
        ],
        signed=receipt.signed,
        signature=receipt.signature,
        key_id=receipt.key_id,
    )


def _agrees(given: pb.ForgetReceipt, body: Mapping[str, Any]) -> bool:
    """Whether the readable fields of a receipt, where it has any, say the same as the signed bytes."""
    if not given.id:
        return True
    readable = pb.ForgetReceipt()
    readable.CopyFrom(given)
    for name in ("signed", "signature", "key_id"):
        readable.ClearField(name)
    expected = ParseDict(dict(body), pb.ForgetReceipt(), ignore_unknown_fields=True)
    return bool(readable == expected)


def _scope(request: pb.ForgetMemoriesRequest) -> ForgetScope:
    fields = Fields()
    ids = tuple(request.memory_ids)
    if len(ids) > MOST_IDS or not all(map(is_id, ids)):
        fields.fault("memory_ids", f"at most {MOST_IDS} ids of memories")
    types = fields.words("type", request.type, MemoryType) if request.type else frozenset[MemoryType]()
    if request.type and not any(word.strip(" ,") for word in request.type):
        # An empty filter would be no filter, and forget everything.
        fields.fault("type", f"one of {', '.join(MemoryType)}, or not at all")
    before: datetime | None = fields.time("before", request.before) if request.HasField("before") else None
    scope = ForgetScope(
        ids=ids,
        project=fields.name("project_id", request.project_id),
        types=types,
        session=fields.name("session_id", request.session_id),
        before=before,
        query=fields.text("query", request.query) if request.query else "",
    )
    fields.request_id(request.request_id)
    fields.check()
    return scope


def _describe_receipt(receipt: ForgetReceipt) -> str:
    if any(one.store == WAITING_TURNS and not one.done for one in receipt.stores):
        return f"it cannot be recalled, but turns of before wait to be learned; receipt {receipt.id} says where"
    if receipt.state is ForgetState.ACCEPTED:
        return f"it will be done; nothing is recalled until then; receipt {receipt.id} says how far it has come"
    if not receipt.memories and any(one.store == "journal" and one.removed for one in receipt.stores):
        return f"what waited to be learned of it never will be; receipt {receipt.id} says what was looked through"
    if not receipt.memories:
        return f"nothing of it was remembered; receipt {receipt.id} says what was looked through"
    return (
        f"{_format_count(receipt.memories)} cannot be recalled any more; "
        f"receipt {receipt.id} says when no store holds anything of it"
    )


def _format_count(count: int) -> str:
    return "1 memory" if count == 1 else f"{count} memories"


def _not_confirmed(message: str) -> RefusedError:
    return RefusedError(
        grpc.StatusCode.FAILED_PRECONDITION,
        ErrorReason.NOT_CONFIRMED,
        message,
        violations=[("confirmation_token", "from a dry run with the same scope, within its time")],
    )


# --- consent -----------------------------------------------------------------------------------------


class ConsentMethods:
    def __init__(
        self, consent: ConsentRegistry, forget: Callable[[Call, Any], Awaitable[Any]] | None = None
    ) -> None:
        """*forget* carries out ForgetMemories; without it consent cannot be withdrawn together with a forget."""
        self._consent, self._forget = consent, forget

    @property
    def operations(self) -> Mapping[str, Operation]:
        return {"GetConsent": self.get, "SetConsent": self.set}

    async def get(self, call: Call, _: pb.GetConsentRequest) -> pb.GetConsentResponse:
        history = await self._consent.history(call.owner)
        state = await self._consent.get(call.owner)
        return pb.GetConsentResponse(state=state.value, by_default=not history, history=map(change_of, history))

    async def set(self, call: Call, request: pb.SetConsentRequest) -> pb.SetConsentResponse:
        fields = Fields()
        if not request.state:
            fields.fault("state", f"one of {', '.join(Consent)}")
        consent = fields.word("state", request.state, Consent, Consent.OFF)
        if request.forget and consent is not Consent.OFF:
            fields.fault("forget", "only with state off")
        fields.check()
        if request.forget and self._forget is None:
            raise RefusedError(
                grpc.StatusCode.UNIMPLEMENTED, ErrorReason.NOT_OFFERED, "this server does not offer ForgetMemories"
            )
        call.scope = "state+forget" if request.forget else "state"
        await self._consent.set(call.owner, consent, by="user" if call.own else "admin")
        answer = pb.SetConsentResponse(state=consent.value)
        if request.forget and self._forget is not None:
            # After the choice: later messages are not stored, so nothing arrives after the forget.
            forgotten = await self._forget(call, pb.ForgetMemoriesRequest())
            answer.receipt.CopyFrom(forgotten.receipt)
        return answer


def change_of(change: ConsentChange) -> pb.ConsentChange:
    return pb.ConsentChange(at=change.at, state=change.consent.value, by=change.by)
