"""A call that is sent again, where the record of the first cannot be written."""

from __future__ import annotations

from datetime import timedelta

import grpc
import pytest

from memory_extproc.api.call import Call, ErrorReason, Noted, RefusedError, Repeats
from memory_extproc.api.gen import memory_pb2 as pb
from memory_extproc.api.principal import Means, Principal
from memory_extproc.errors import TransientError
from memory_extproc.model import Owner
from memory_extproc.settings.api import PrincipalRole
from memory_extproc.testing.adapters import InMemoryCoordination
from tests.support.builders import ANN, MONDAY

REQUEST = pb.StoreMemoryRequest(content="I like tea.", request_id="r-1")


class Unwritten(InMemoryCoordination):
    """Takes note that a call has begun, and of nothing after it."""

    async def put_record(self, kind: str, owner: Owner, name: str, value: bytes, ttl: timedelta) -> None:
        raise TransientError("nothing can be written")


async def test_a_call_that_is_refused_says_why_though_its_failing_cannot_be_noted() -> None:
    ann = Principal(ANN.tenant, ANN.user, frozenset({PrincipalRole.USER}), Means.NONE, "ann")
    call = Call("StoreMemory", ann, ANN, own=True)
    call.request_id = REQUEST.request_id

    async def refuses() -> Noted:
        raise RefusedError(grpc.StatusCode.NOT_FOUND, ErrorReason.NO_SUCH_MEMORY, "there is none")

    with pytest.raises(RefusedError) as refused:
        await Repeats(Unwritten(lambda: MONDAY), b"key").once(call, REQUEST, refuses)
    assert refused.value.reason is ErrorReason.NO_SUCH_MEMORY
