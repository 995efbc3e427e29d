"""A call sent again with the same request_id changes nothing and gets the first one's answer."""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import timedelta

import grpc
from google.protobuf.message import Message

from memory_extproc.api.call import Call
from memory_extproc.api.refusal import Reason, RefusedError
from memory_extproc.errors import MemoryExtprocError
from memory_extproc.model import digest
from memory_extproc.ports import Coordination

KIND = "api"
LIFE = timedelta(days=1)
UNDER_WAY = timedelta(minutes=1)  # after which a call that never came to its end may be made again
Noted = Mapping[str, str]  # ids and words of ours: what the answer is made of again, never anybody's text


class Repeats:
    def __init__(self, coordination: Coordination, key: bytes) -> None:
        self._coordination = coordination
        self._key = key

    async def once(self, call: Call, request: Message, work: Callable[[], Awaitable[Noted]]) -> Noted:
        """What *work* notes, or what it noted for the same request before. RefusedError where the id was used for
        another request, or where that one is still under way. Without a request_id *work* is simply done."""
        if not call.request_id:
            return await work()
        print_ = hmac.digest(self._key, request.SerializeToString(deterministic=True), "sha256").hex()
        name = digest(call.method, call.request_id)
        begun = _record(print_, "begun", {})
        there = await self._coordination.get_record(KIND, call.owner, name)
        if there is not None:
            known, state, noted = _read(there)
            if known != print_:
                raise RefusedError(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    Reason.REQUEST_ID_REUSED,
                    "this request_id was used for another request",
                    violations=[("request_id", "an id of its own for each request")],
                )
            if state == "done":
                return noted
            if state == "begun":
                raise _under_way()
        if not await self._coordination.replace_record(KIND, call.owner, name, there, begun, UNDER_WAY):
            raise _under_way()
        try:
            noted = await work()
        except BaseException:
            # Cancelled, too. It may be tried again at once; where that cannot be noted, once UNDER_WAY is over.
            with suppress(MemoryExtprocError):
                await self._coordination.put_record(
                    KIND, call.owner, name, _record(print_, "failed", {}), UNDER_WAY
                )
            raise
        await self._coordination.put_record(KIND, call.owner, name, _record(print_, "done", noted), LIFE)
        return noted


def _record(print_: str, state: str, noted: Noted) -> bytes:
    return json.dumps([print_, state, dict(noted)]).encode()


def _read(record: bytes) -> tuple[str, str, Noted]:
    print_, state, noted = json.loads(record)
    return print_, state, noted


def _under_way() -> RefusedError:
    return RefusedError(
        grpc.StatusCode.ABORTED,
        Reason.REQUEST_UNDER_WAY,
        "a call with this request_id is under way",
        retry_after=timedelta(seconds=1),
    )
