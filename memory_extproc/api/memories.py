"""Storing, reading, listing, correcting and counting memories over the API."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Protocol

import grpc
from google.protobuf.struct_pb2 import Struct

from memory_extproc.api.call import (
    Call,
    ErrorReason,
    Fields,
    Noted,
    Operation,
    RefusedError,
    Repeats,
    is_id,
    message_of,
    no_such_memory,
    scope_of,
    whole_id,
)
from memory_extproc.api.gen import memory_pb2 as pb
from memory_extproc.curation.editor import (
    Correction,
    Cursor,
    DuplicateError,
    Filter,
    MemoryCatalog,
    MemoryEditor,
    NewMemory,
    NotActiveError,
    OnDuplicate,
    Order,
    StaleError,
    TextReader,
    place_of,
)
from memory_extproc.model import (
    Caller,
    Consent,
    Considered,
    Explanation,
    Memory,
    MemoryState,
    MemoryType,
    Outcome,
    Rating,
    RecallRequest,
    Scope,
    Source,
    Verdict,
    digest,
)
from memory_extproc.ports import ConsentRegistry, Now, TurnLearner
from memory_extproc.safety.policy import MASK_SECRETS, StorageRules
from memory_extproc.settings import Settings
from memory_extproc.text.words import fold

PAGE_DEFAULT = 20
_SETTLE = timedelta(seconds=1)  # least to wait for the user's turn of a moment ago to be findable
_TEXT_BYTES = 256
LONGEST_READ = 4000  # characters of a text that facts are learned from; longer texts were pasted
_FILTERS = ("project_id", "type", "session_id", "source", "state", "created_after", "created_before", "text")
_CORRECTABLE = ("content", "type", "project_id", "importance", "expires_at", "metadata")


class MemoryCalls:
    def __init__(
        self,
        catalogue: MemoryCatalog,
        curator: MemoryEditor,
        repeats: Repeats,
        pages: PageTokens,
        *,
        content_bytes: int,
        reads: TextReader,
        consent: ConsentRegistry | None,
        now: Now,
        rules: Callable[[], StorageRules] = lambda: MASK_SECRETS,
    ) -> None:
        """*rules*: storage rules, as for chats. *content_bytes*: the longest memory."""
        self._rules = rules
        self._catalogue, self._curator = catalogue, curator
        self._repeats, self._pages, self._content_bytes = repeats, pages, content_bytes
        self._reads, self._consent, self._now = reads, consent, now

    @property
    def operations(self) -> Mapping[str, Operation]:
        return {
            "StoreMemory": self.store,
            "GetMemory": self.get,
            "ListMemories": self.list,
            "UpdateMemory": self.update,
            "RestoreMemory": self.restore,
            "RateMemory": self.rate,
            "GetStats": self.stats,
        }

    async def store(self, call: Call, request: pb.StoreMemoryRequest) -> pb.StoreMemoryResponse:
        told = self._read_new_memory(request)
        call.request_id = request.request_id
        await self._check_consent(call)

        async def work() -> Noted:
            key = digest("request", request.request_id) if request.request_id else uuid.uuid4().hex
            memory, decision = await self._curator.store(call.owner, told, key)
            learned = await self._reads.learn(memory) if request.extract else ()
            return {"id": memory.id, "decision": decision.value, "extracted": " ".join(learned)}

        try:
            noted = await self._repeats.once(call, request, work)
        except DuplicateError as error:
            raise RefusedError(
                grpc.StatusCode.ALREADY_EXISTS, ErrorReason.DUPLICATE, str(error), metadata={"id": error.memory_id}
            ) from error
        found = [await self._catalogue.get(call.owner, one) for one in noted.get("extracted", "").split()]
        extracted = [one for one in found if one is not None]  # on a repeated call some may be forgotten
        call.count = 1 + len(extracted)
        return pb.StoreMemoryResponse(
            memory=message_of(await self._require_memory(call, noted["id"])),
            decision=noted["decision"],
            extracted=map(message_of, extracted),
        )

    async def get(self, call: Call, request: pb.GetMemoryRequest) -> pb.Memory:
        memory = await self._require_memory(call, await whole_id(self._catalogue, call, request.id))
        call.count = 1
        history = await self._catalogue.history(call.owner, memory) if request.history else ()
        answer = message_of(memory)
        answer.history.extend(map(message_of, history))
        return answer

    async def list(self, call: Call, request: pb.ListMemoriesRequest) -> pb.ListMemoriesResponse:
        fields = Fields()
        chosen = _filter(fields, request)
        if call.member and chosen.states != {MemoryState.ACTIVE}:
            fields.fault("state", "active: members of a project see the memories that recall gives them")
        limit = fields.limit("limit", request.limit, PAGE_DEFAULT)
        order = fields.word("order", request.order, Order, Order.NEWEST)
        fields.check()
        call.scope = scope_of(request, *_FILTERS)
        bound = _page_token_scope(call, request)
        after = self._pages.read(request.page_token, bound) if request.page_token else None
        page = await self._catalogue.page(call.owner, chosen, limit, after, order)
        call.count = len(page.memories)
        return pb.ListMemoriesResponse(
            memories=map(_shared_message if call.member else message_of, page.memories),
            total=page.total,
            limit=limit,
            next_page_token=self._pages.write(place_of(page.memories[-1], order), bound) if page.more else "",
        )

    async def update(self, call: Call, request: pb.UpdateMemoryRequest) -> pb.Memory:
        correction = self._correction(request)
        call.request_id = request.request_id
        call.scope = "+".join(sorted(correction.values))
        if not is_id(request.id):
            raise no_such_memory()
        await self._check_consent(call)
        memory_id = await whole_id(self._catalogue, call, request.id)

        async def work() -> Noted:
            corrected = await self._curator.correct(call.owner, memory_id, correction)
            if corrected is None:
                raise no_such_memory()
            return {"id": corrected.id}

        try:
            noted = await self._repeats.once(call, request, work)
        except NotActiveError as error:
            raise RefusedError(grpc.StatusCode.FAILED_PRECONDITION, ErrorReason.NOT_ACTIVE, str(error)) from error
        except StaleError as error:
            raise RefusedError(
                grpc.StatusCode.FAILED_PRECONDITION,
                ErrorReason.STALE,
                "the memory was changed since it was read",
                attached=(message_of(error.current), message_of(error.proposed)),
            ) from error
        call.count = 1
        return message_of(await self._require_memory(call, noted["id"]))

    async def rate(self, call: Call, request: pb.RateMemoryRequest) -> pb.Memory:
        fields = Fields()
        fields.request_id(request.request_id)
        if not request.rating:
            fields.fault("rating", f"one of {', '.join(Rating)}")
        rating = fields.word("rating", request.rating, Rating, Rating.NONE)
        fields.check()
        call.request_id, call.scope = request.request_id, rating.value
        if not is_id(request.id):
            raise no_such_memory()
        await self._check_consent(call)
        memory_id = await whole_id(self._catalogue, call, request.id)
        try:
            rated = await self._curator.rate(call.owner, memory_id, rating)
        except NotActiveError as error:
            raise RefusedError(grpc.StatusCode.FAILED_PRECONDITION, ErrorReason.NOT_ACTIVE, str(error)) from error
        if rated is None:
            raise no_such_memory()
        call.count = 1
        return message_of(rated)

    async def restore(self, call: Call, request: pb.RestoreMemoryRequest) -> pb.Memory:
        fields = Fields()
        fields.request_id(request.request_id)
        fields.check()
        call.request_id = request.request_id
        if not is_id(request.id):
            raise no_such_memory()
        await self._check_consent(call)
        memory_id = await whole_id(self._catalogue, call, request.id)

        async def work() -> Noted:
            restored = await self._curator.restore(call.owner, memory_id)
            if restored is None:
                raise no_such_memory()
            return {"id": restored.id}

        noted = await self._repeats.once(call, request, work)
        call.count = 1
        return message_of(await self._require_memory(call, noted["id"]))

    async def stats(self, call: Call, _: pb.GetStatsRequest) -> pb.GetStatsResponse:
        stats = await self._catalogue.stats(call.owner)
        call.count = stats.total
        return pb.GetStatsResponse(
            total=stats.total,
            recallable=stats.recallable,
            by_type=stats.by_type,
            by_state=stats.by_state,
            by_source=stats.by_source,
            by_age=stats.by_age,
            bytes=stats.bytes,
            backlog=stats.backlog,
            dead_letters=stats.dead_letters,
            oldest_at=stats.oldest,
            newest_at=stats.newest,
        )

    async def _require_memory(self, call: Call, memory_id: str) -> Memory:
        memory = await self._catalogue.get(call.owner, memory_id) if is_id(memory_id) else None
        if memory is None:
            raise no_such_memory()
        return memory

    async def _check_consent(self, call: Call) -> None:
        if self._consent is not None and await self._consent.get(call.owner) is not Consent.ON:
            raise RefusedError(
                grpc.StatusCode.FAILED_PRECONDITION, ErrorReason.NO_CONSENT, "the user allows nothing to be kept"
            )

    def _read_new_memory(self, request: pb.StoreMemoryRequest) -> NewMemory:
        fields = Fields()
        if request.extract and len(request.content) > LONGEST_READ:
            sent = len(request.content)
            fields.fault("content", f"at most {LONGEST_READ} characters with extract; {sent} were sent")
        told = NewMemory(
            content=self._text(fields, "content", request.content),
            type=fields.word("type", request.type, MemoryType, MemoryType.SEMANTIC),
            project=fields.name("project_id", request.project_id),
            session=fields.name("session_id", request.session_id),
            importance=fields.share("importance", request.importance) if request.HasField("importance") else None,
            expires_at=self._expiry(fields, "expires_at", request) if request.HasField("expires_at") else None,
            metadata=self._metadata(fields, "metadata", request.metadata) if request.HasField("metadata") else {},
            on_duplicate=fields.word("on_duplicate", request.on_duplicate, OnDuplicate, OnDuplicate.UPDATE),
        )
        fields.request_id(request.request_id)
        fields.check()
        return told

    def _correction(self, request: pb.UpdateMemoryRequest) -> Correction:
        fields, memory = Fields(), request.memory
        given = {descriptor.name for descriptor, _ in memory.ListFields()}
        named = list(request.update_mask.paths) or [name for name in _CORRECTABLE if name in given]
        unknown = sorted(set(named) - set(_CORRECTABLE))
        if unknown or not named:
            fields.fault("update_mask", f"some of {', '.join(_CORRECTABLE)}")
        values = {}
        for name in _CORRECTABLE:
            if name in named:
                key, value = self._new_value(fields, name, memory)
                values[key] = value
        fields.request_id(request.request_id)
        fields.check()
        return Correction(values=values, etag=memory.etag)

    def _new_value(self, fields: Fields, name: str, memory: pb.Memory) -> tuple[str, Any]:
        """A field of a memory and its new value; an absent value is cleared."""
        path = f"memory.{name}"
        match name:
            case "content":
                return name, self._text(fields, path, memory.content)
            case "type":
                return name, fields.word(path, memory.type, MemoryType, MemoryType.SEMANTIC)
            case "project_id":
                return "project", fields.name(path, memory.project_id)
            case "importance":
                return name, fields.share(path, memory.importance) if memory.HasField(name) else 0.5
            case "expires_at":
                return name, self._expiry(fields, path, memory) if memory.HasField(name) else None
            case _:
                return name, self._metadata(fields, path, memory.metadata)

    def _text(self, fields: Fields, field: str, given: str) -> str:
        rules = self._rules()
        text = rules.apply(fields.text(field, given, self._content_bytes))
        if given.strip() and (why := rules.refusal(text)):
            fields.fault(field, f"a text that may be stored: {why}")
        return text

    def _metadata(self, fields: Fields, field: str, given: Struct) -> Mapping[str, Any]:
        found: Mapping[str, Any] = _each_text(fields.metadata(field, given), self._rules().apply)
        return found

    def _expiry(self, fields: Fields, field: str, message: pb.StoreMemoryRequest | pb.Memory) -> datetime | None:
        found = fields.time(field, message.expires_at)
        if found is not None and found <= self._now():
            fields.fault(field, "a time in the future")
        return found


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _each_text(one, change) for key, one in value.items()}
    return [_each_text(one, change) for one in value] if isinstance(value, list) else value


def _filter(fields: Fields, request: pb.ListMemoriesRequest) -> Filter:
    states = [word for word in request.state if word]
    words = request.text.split()
    if len(request.text.encode("utf-8", "surrogatepass")) > _TEXT_BYTES:
        fields.fault("text", f"at most {_TEXT_BYTES} bytes")
        words = []
    if states == ["any"]:
        chosen = frozenset(MemoryState)
    elif states:
        chosen = fields.words("state", states, MemoryState)
    else:
        chosen = frozenset({MemoryState.ACTIVE})
    return Filter(
        project=fields.name("project_id", request.project_id),
        session=fields.name("session_id", request.session_id),
        types=fields.words("type", request.type, MemoryType),
        sources=fields.words("source", request.source, Source),
        states=chosen,
        after=fields.time("created_after", request.created_after) if request.HasField("created_after") else None,
        before=fields.time("created_before", request.created_before)
        if request.HasField("created_before")
        else None,
        words=tuple(fold(word) for word in words),
    )


def _shared_message(memory: Memory) -> pb.Memory:
    """Encode a project's memory for its members, without the session and the speaker."""
    return pb.Memory(
        id=memory.id,
        tenant_id=memory.owner.tenant,
        project_id=memory.owner.project,
        type=memory.type.value,
        content=memory.content,
        source=memory.source.value,
        created_at=memory.created_at,
        updated_at=memory.updated_at,
        state=memory.state.value,
    )


def _page_token_scope(call: Call, request: pb.ListMemoriesRequest) -> bytes:
    """The scope of a page token: this user, this filter, any page size."""
    plain = pb.ListMemoriesRequest()
    plain.CopyFrom(request)
    for name in ("user_id", "page_token", "limit"):
        plain.ClearField(name)
    return f"{call.owner.key}\n".encode() + plain.SerializeToString(deterministic=True)


# Searching as recall does, and saying why.

MOST_EARLIER = 32
_SHOWN = 200  # candidates in an explanation
# Relevant memories, also if the block had no room for them.
_CHOSEN = frozenset({Verdict.INJECTED, Verdict.NO_ROOM})


class RecallExplainer(Protocol):
    """The read path, laid open."""

    async def explain(self, wish: RecallRequest) -> Explanation: ...


class SearchCalls:
    def __init__(
        self,
        explains: RecallExplainer,
        learns: TurnLearner,
        settings: Callable[[], Settings],
        *,
        consent: ConsentRegistry | None,
        now: Now,
    ) -> None:
        self._explains, self._learns, self._settings = explains, learns, settings
        self._consent, self._now = consent, now

    @property
    def operations(self) -> Mapping[str, Operation]:
        return {"SearchMemories": self.search, "ExplainRecall": self.explain}

    async def search(self, call: Call, request: pb.SearchMemoriesRequest) -> pb.SearchMemoriesResponse:
        fields = Fields()
        text = fields.text("query", request.query)
        wish = self._recall_request(call, fields, request, text, force=True)
        fields.check()
        call.scope = scope_of(request, "query", "project_id", "type")
        explanation = await self._explain(call, wish)
        chosen = [one for one in explanation.considered if one.verdict in _CHOSEN]
        call.count = len(chosen)
        results = [pb.FoundMemory(memory=message_of(one.memory), relevance=one.relevance) for one in chosen]
        return pb.SearchMemoriesResponse(results=results, total=len(results), limit=wish.limit)

    async def explain(self, call: Call, request: pb.ExplainRecallRequest) -> pb.ExplainRecallResponse:
        fields = Fields()
        text = fields.text("text", request.text)
        if len(request.earlier) > MOST_EARLIER:
            fields.fault("earlier", f"at most {MOST_EARLIER} messages")
        earlier = tuple(fields.text(f"earlier[{at}]", one) for at, one in enumerate(request.earlier[:MOST_EARLIER]))
        wish = self._recall_request(call, fields, request, text, earlier=earlier, force=request.force)
        fields.check()
        call.scope = scope_of(request, "text", "earlier", "project_id", "type")
        explanation = await self._explain(call, wish)
        call.count = len(explanation.considered)
        return pb.ExplainRecallResponse(
            outcome=explanation.outcome.value,
            gate=explanation.gate.value if explanation.gate else "",
            query=explanation.query,
            path=explanation.path,
            total=explanation.total,
            worth=explanation.worth,
            considered=map(_encode_considered, explanation.considered[:_SHOWN]),
            block=explanation.block,
            kind=explanation.kind,
            notes=explanation.notes,
        )

    def _recall_request(
        self,
        call: Call,
        fields: Fields,
        request: pb.SearchMemoriesRequest | pb.ExplainRecallRequest,
        text: str,
        *,
        earlier: Sequence[str] = (),
        force: bool,
    ) -> RecallRequest:
        project = fields.name("project_id", request.project_id)
        given = request.HasField("threshold")
        return RecallRequest(
            caller=Caller(call.owner, project=project),
            asked=text,
            earlier=tuple(earlier),
            force=force,
            limit=fields.limit("limit", request.limit, self._settings().memory.default_retrieval_limit),
            limited=request.limit > 0,
            threshold=fields.share("threshold", request.threshold)
            if given
            else self._settings().memory.default_similarity_threshold,
            scope=Scope(project=project, types=fields.words("type", request.type, MemoryType)),
            as_of=self._as_of(fields, request) if request.HasField("as_of") else "",
        )

    def _as_of(self, fields: Fields, request: pb.SearchMemoriesRequest | pb.ExplainRecallRequest) -> str:
        then = fields.time("as_of", request.as_of)
        if then is not None and then > self._now():
            fields.fault("as_of", "a time that is over")
        return then.isoformat() if then else ""

    async def _explain(self, call: Call, wish: RecallRequest) -> Explanation:
        if self._consent is not None and await self._consent.get(call.owner) is Consent.OFF:
            return Explanation(outcome=Outcome.NO_CONSENT)
        with suppress(TimeoutError):
            async with asyncio.timeout(max(self._settings().recall.settle, _SETTLE).total_seconds()):
                await self._learns.wait_visible(wish.caller)
        return await self._explains.explain(wish)


def _encode_considered(one: Considered) -> pb.ConsideredMemory:
    return pb.ConsideredMemory(
        memory=message_of(one.memory),
        score=one.score,
        relevance=one.relevance,
        verdict=one.verdict.value,
        reasons=reasons(one.memory, one.features),
        features={name: value for name, value in one.features.items() if value == value},  # noqa: PLR0124 - not NaN
    )


# Page tokens: encrypted positions in a list, valid for one user and one filter.

LIFE = timedelta(hours=1)
_MAC_BYTES = 16
_LONGEST = 512  # characters


class PageTokens:
    def __init__(self, key: bytes, now: Now) -> None:
        self._key = key
        self._now = now

    def write(self, cursor: Cursor, bound_to: bytes) -> str:
        """*bound_to*: the user and the filter; the token counts for nothing else."""
        expires = int((self._now() + LIFE).timestamp())
        body = json.dumps([expires, cursor.newest_first, cursor.id, cursor.group], separators=(",", ":")).encode()
        return base64.urlsafe_b64encode(self._mac(body, bound_to) + body).decode().rstrip("=")

    def read(self, token: str, bound_to: bytes) -> Cursor:
        """RefusedError for a token that is forged, expired or of another list."""
        try:
            if len(token) > _LONGEST:
                raise _not_found_error()
            raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise _not_found_error() from None
        mac, body = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(body, bound_to)):
            raise _not_found_error()
        expires, newest_first, id_, *group = json.loads(body)  # a page of the version before has no group
        if self._now().timestamp() >= expires:
            raise _not_found_error()
        return Cursor(group[0] if group else 0, newest_first, id_)

    def _mac(self, body: bytes, bound_to: bytes) -> bytes:
        return hmac.digest(self._key, len(body).to_bytes(4, "big") + body + bound_to, "sha256")[:_MAC_BYTES]


def _not_found_error() -> RefusedError:
    return RefusedError(
        grpc.StatusCode.INVALID_ARGUMENT,
        ErrorReason.BAD_PAGE_TOKEN,
        "begin again from the first page",
        violations=[("page_token", "next_page_token of the page before, within an hour and with the same filters")],
    )


# --- reasons -----------------------------------------------------------------------------------------

# Feature, least value, meaning in words; of each feature the first entry that holds. Strong evidence comes first.
_REASONS: Sequence[tuple[str, float, str]] = (
    ("dense", 0.6, "means much the same as the question"),
    ("dense", 0.4, "is about something similar"),
    ("covered", 0.75, "has nearly all words of the question that matter"),
    ("covered", 0.25, "has some words of the question that matter"),
    ("days_agree", 0.5, "is of the time that the question names"),
    ("covered_around", 0.5, "stands beside messages with words of the question"),
    ("another", 0.5, "is about somebody whom the question does not mention"),
)


def reasons(memory: Memory, features: Mapping[str, float]) -> list[str]:
    """*features* for people."""
    found: dict[str, str] = {}
    for name, least, words in _REASONS:
        if name not in found and features.get(name, 0.0) >= least:
            found[name] = words
    if memory.provenance.rating is Rating.HELPFUL:
        found["rating"] = "was called helpful"
    return list(found.values())


# --- sessions ----------------------------------------------------------------------------------------

_SETTLES = 2.0  # seconds at most: a previous message may still be on its way to the disk


class SessionMethods:
    def __init__(self, learns: TurnLearner) -> None:
        self._learns = learns

    @property
    def operations(self) -> Mapping[str, Operation]:
        return {"EndSession": self.end}

    async def end(self, call: Call, request: pb.EndSessionRequest) -> pb.EndSessionResponse:
        fields = Fields()
        session = fields.name("session_id", request.session_id, needed=True)
        fields.check()
        call.scope = "session_id"
        caller = Caller(call.owner, session=session)
        with suppress(TimeoutError):
            async with asyncio.timeout(_SETTLES):
                await self._learns.wait_visible(caller)
        await self._learns.end_session(caller)
        return pb.EndSessionResponse()
