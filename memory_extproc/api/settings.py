"""User choices over the API: the end of a session, and consent to memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import grpc
from google.protobuf.json_format import ParseDict

from memory_extproc.api.call import Call, ErrorReason, Fields, Operation, RefusedError
from memory_extproc.api.gen import memory_pb2 as pb
from memory_extproc.model import Caller, Consent, ConsentChange
from memory_extproc.ports import ConsentRegistry, TurnLearner

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


# The configuration of the running server, for operators.

Configured = Callable[[], tuple[Mapping[str, Any], Sequence[str]]]  # (plain values, keys that wait for a restart)


class Configuration:
    def __init__(self, configured: Configured) -> None:
        """*configured* gives no secrets."""
        self._configured = configured

    @property
    def operations(self) -> dict[str, Operation]:
        return {"GetConfiguration": self.get}

    async def get(self, _: Call, __: pb.GetConfigurationRequest) -> pb.GetConfigurationResponse:
        effective, waiting = self._configured()
        answer = pb.GetConfigurationResponse(needs_restart=waiting)
        ParseDict(dict(effective), answer.configuration)
        return answer
