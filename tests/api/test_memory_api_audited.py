"""Calls of the memory API in the audit log, and their refusal while the log cannot be written."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from memory_extproc.api.audit import CURRENT
from memory_extproc.api.gen import memory_pb2 as pb
from tests.support.builders import ANN, BOB, a_memory
from tests.support.memory_api import ApiStand, reason_of


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[ApiStand]:
    async with ApiStand(tmp_path) as made:
        yield made


def written(stand: ApiStand) -> list[tuple[str, str, str]]:
    lines = map(json.loads, (stand.audit_directory / CURRENT).read_text().splitlines())
    return [(line["method"], line["outcome"], line["reason"]) for line in lines]


async def test_a_call_is_written_down_with_how_it_ended(stand: ApiStand) -> None:
    kept = a_memory("likes tea")
    await stand.remember(kept)
    await stand.call("GetMemory", pb.GetMemoryRequest(id=kept.id), as_=ANN)
    with pytest.raises(grpc.aio.AioRpcError):
        await stand.call("GetMemory", pb.GetMemoryRequest(id=kept.id), as_=BOB)
    assert written(stand) == [("GetMemory", "OK", ""), ("GetMemory", "NOT_FOUND", "NO_SUCH_MEMORY")]


async def test_who_reaches_for_what_is_not_theirs_is_written_down(stand: ApiStand) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        await stand.call("ListMemories", pb.ListMemoriesRequest(user_id="bob"), as_=ANN)
    assert written(stand) == [("ListMemories", "PERMISSION_DENIED", "NOT_ALLOWED")]
    assert stand.sample("api_denied_total", reason="NOT_ALLOWED") == 1


async def test_who_is_nobody_or_asks_for_nothing_that_makes_sense_fills_no_log(stand: ApiStand) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        await stand.stub.ListMemories(pb.ListMemoriesRequest(), timeout=10)
    with pytest.raises(grpc.aio.AioRpcError):
        await stand.call("ListMemories", pb.ListMemoriesRequest(user_id="a\nb"), as_=ANN)
    assert written(stand) == []


async def test_what_cannot_be_written_down_does_not_happen(tmp_path: Path) -> None:
    stand = ApiStand(tmp_path)
    stand.audit_directory.mkdir()
    (stand.audit_directory / CURRENT).symlink_to("/dev/full")
    async with stand:
        await stand.told("I like tea.", as_=ANN)  # that its line does not fit shows when it has been done
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stand.told("I like cake.", as_=ANN)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert reason_of(refused.value) == "AUDIT_UNAVAILABLE"
        assert [row.memory.content async for page in stand.store.pages(ANN, 9, fresh=True) for row in page] == [
            "I like tea."
        ]
