"""Shared memories over the memory API are kept by admins of the tenant, and nobody by a header alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from memory_extproc.api.gen import memory_pb2 as pb
from memory_extproc.model import Owner
from tests.support.builders import ANN, OTHER_ANN
from tests.support.memory_api import ApiStand, violations_of

Code = grpc.StatusCode
RULE = "Releases go out on Tuesdays"
OPERATOR = Owner("", "root")


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[ApiStand]:
    async with ApiStand(tmp_path) as made:
        yield made


def store() -> pb.StoreMemoryRequest:
    return pb.StoreMemoryRequest(content=RULE)


async def call(
    stand: ApiStand, method: str, request: Any, shared: str, *, as_: Owner = ANN, roles: str = "admin"
) -> Any:
    return await stand.call(method, request, as_=as_, roles=roles, metadata=[("x-memory-shared", shared)])


async def listed(stand: ApiStand, shared: str, *, as_: Owner = ANN, roles: str = "admin") -> list[str]:
    answer = await call(stand, "ListMemories", pb.ListMemoriesRequest(limit=100), shared, as_=as_, roles=roles)
    assert all(one.user_id == "" for one in answer.memories)
    return [one.content for one in answer.memories]


@pytest.mark.parametrize(
    ("shared", "as_", "owner"),
    [
        ("project:atlas", ANN, Owner.of_project("acme", "atlas")),
        ("project:%C5%BElu%C5%A5", ANN, Owner.of_project("acme", "žluť")),
        ("tenant", ANN, Owner.of_everyone("acme")),
        ("all", OPERATOR, Owner.of_everyone()),
    ],
)
async def test_an_admin_keeps_what_callers_share(stand: ApiStand, shared: str, as_: Owner, owner: Owner) -> None:
    memory = (await call(stand, "StoreMemory", store(), shared, as_=as_)).memory
    assert [found.id for found in await stand.store.get(owner, [memory.id])] == [memory.id]
    assert await listed(stand, shared, as_=as_) == [RULE]
    assert await listed(stand, shared, as_=as_, roles="auditor") == [RULE]
    own = await stand.call("ListMemories", pb.ListMemoriesRequest(limit=100), as_=as_)
    assert not own.memories
    if shared != "all":
        assert await listed(stand, shared, as_=OTHER_ANN) == []


@pytest.mark.parametrize(
    ("shared", "as_", "roles"),
    [
        ("project:atlas", ANN, "user"),
        ("tenant", ANN, "user"),
        ("tenant", ANN, "auditor"),
        ("all", ANN, "admin"),
        ("all", OPERATOR, "user"),
    ],
)
async def test_nobody_else_changes_it(stand: ApiStand, shared: str, as_: Owner, roles: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call(stand, "StoreMemory", store(), shared, as_=as_, roles=roles)
    assert refused.value.code() is Code.PERMISSION_DENIED


@pytest.mark.parametrize(
    "shared", ["project:", "project:a%1Fb", "everyone", "global", "project:atlas,project:b" * 20]
)
async def test_what_names_no_shared_memories_is_said_to(stand: ApiStand, shared: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call(stand, "StoreMemory", store(), shared)
    assert refused.value.code() is Code.INVALID_ARGUMENT


async def test_a_user_and_shared_memories_are_not_named_together(stand: ApiStand) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call(stand, "ListMemories", pb.ListMemoriesRequest(user_id="bob"), "tenant")
    assert refused.value.code() is Code.INVALID_ARGUMENT
    assert violations_of(refused.value) == ["user_id"]


async def test_no_user_id_reaches_what_is_shared(stand: ApiStand) -> None:
    for user in ("\x1fproject\x1fatlas", "\x1fglobal"):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stand.call("ListMemories", pb.ListMemoriesRequest(user_id=user), as_=ANN, roles="admin")
        assert refused.value.code() is Code.INVALID_ARGUMENT
