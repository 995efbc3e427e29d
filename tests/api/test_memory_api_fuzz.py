"""With any values in a request's fields, a call ends as documented and reaches nobody else's memories: over
real gRPC, and over a Milvus Lite file, whose filters are made of such words."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memory_extproc.api.gen import memory_pb2 as pb
from memory_extproc.model import Owner
from tests.support.builders import ANN, BOB, OTHER_ANN
from tests.support.memory_api import ApiStand, reason_of
from tests.support.milvus_stores import changed, opened, options

SERVICE = pb.DESCRIPTOR.services_by_name["MemoryService"]
UNARY = [method for method in SERVICE.methods if not (method.server_streaming or method.client_streaming)]
EXPECTED = {
    grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNIMPLEMENTED,
}  # fmt: skip
INJECTIONS = (
    '" or 1 == 1 or "', "' or '1'=='1", '\\" or id != \\"', "\\", '"', "%", "_", "a\\nb", 'x" and user_id == "bob',
    "'; drop collection agentic_memory; --", "{expr}", "$meta", "\u2028", "\u202e", "user_id in ['bob']", "bob\\",
    "and", "not", "\N{PILE OF POO}" * 8, "日本語", "e\u0301",
)  # fmt: skip
words = st.one_of(st.sampled_from(INJECTIONS), st.text(max_size=40))


def messages(name: str, depth: int = 0) -> st.SearchStrategy[Any]:
    """Requests with any fields, each of them anything its type can be."""
    made = getattr(pb, name)
    fields = {
        field.name: _values(field, depth)
        for field in made.DESCRIPTOR.fields
        if not (depth > 1 and field.type == FieldDescriptor.TYPE_MESSAGE)
    }
    return st.fixed_dictionaries({}, optional=fields).map(lambda given: made(**given))


def _values(field: FieldDescriptor, depth: int) -> st.SearchStrategy[Any]:
    match field.type:
        case FieldDescriptor.TYPE_STRING:
            one: st.SearchStrategy[Any] = words
        case FieldDescriptor.TYPE_BOOL:
            one = st.booleans()
        case FieldDescriptor.TYPE_DOUBLE:
            one = st.floats()
        case FieldDescriptor.TYPE_INT32:
            one = st.integers(-(2**31), 2**31 - 1)
        case FieldDescriptor.TYPE_INT64:
            one = st.integers(-(2**63), 2**63 - 1)
        case FieldDescriptor.TYPE_MESSAGE:
            one = _parts(field, depth)
        case _:
            one = st.just(b"")
    return st.lists(one, max_size=3) if field.is_repeated else one


def _parts(field: FieldDescriptor, depth: int) -> st.SearchStrategy[Any]:
    match field.message_type.full_name if field.message_type else "":
        case "google.protobuf.Timestamp":
            seconds = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**32))
            return st.fixed_dictionaries({"seconds": seconds, "nanos": st.integers(-(2**31), 2**31 - 1)})
        case "google.protobuf.FieldMask":
            return st.fixed_dictionaries({"paths": st.lists(st.one_of(words, st.just("content")), max_size=3)})
        case "google.protobuf.Struct":
            leaves = st.one_of(st.none(), st.booleans(), st.floats(), words)
            return st.dictionaries(
                words, st.recursive(leaves, lambda inner: st.lists(inner, max_size=2)), max_size=3
            )
        case name:
            return messages(name.rpartition(".")[2], depth + 1)


async def theirs(stand: ApiStand) -> list[Any]:
    """All that Bob and the namesake have."""
    request = pb.ListMemoriesRequest(limit=100, state=["any"])
    return [
        one for owner in (BOB, OTHER_ANN) for one in (await stand.call("ListMemories", request, as_=owner)).memories
    ]


async def with_secrets(stand: ApiStand) -> list[Any]:
    for owner in (BOB, OTHER_ANN):
        await stand.told(f"A secret of {owner.user} of {owner.tenant}", as_=owner)
    return await theirs(stand)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


async def tried(stand: ApiStand, method: str, request: Any, owner: Owner = ANN) -> None:
    try:
        answer = await stand.call(method, request, as_=owner)
    except grpc.aio.AioRpcError as error:
        assert error.code() in EXPECTED, (method, error)  # noqa: PT017 - what matters is which
        assert reason_of(error)  # noqa: PT017
    else:
        assert "A secret of" not in str(answer)


def test_any_request_ends_as_documented_and_reaches_nobody_elses_memories(
    runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory
) -> None:
    stand = ApiStand(tmp_path_factory.mktemp("fuzz"))
    runner.run(stand.__aenter__())

    @settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(UNARY).flatmap(
        lambda method: st.tuples(st.just(method.name), messages(method.input_type.name))
    ))  # fmt: skip
    def sent(case: tuple[str, Any]) -> None:
        runner.run(tried(stand, *case))

    try:
        before = runner.run(with_secrets(stand))
        sent()
        assert runner.run(theirs(stand)) == before
    finally:
        runner.run(stand.__aexit__())


async def test_words_that_look_like_filters_stay_words_in_milvus(tmp_path: Path) -> None:
    stand = ApiStand(tmp_path)
    async with opened(changed(options(tmp_path), dimension=stand.embedder.dimension)) as store:
        stand.reconfigure(store)
        async with stand:
            before = await with_secrets(stand)
            for hostile in INJECTIONS:
                await told_and_shown(stand, hostile)
            assert await theirs(stand) == before


async def told_and_shown(stand: ApiStand, hostile: str) -> None:
    """*hostile* as user, project, session and text at once; an admin calls, for headers hold ASCII alone."""
    name = hostile if hostile.isprintable() else ""
    owner = Owner("acme", name or "carol")
    request = pb.StoreMemoryRequest(
        user_id=owner.user,
        content=f"{hostile} likes tea",
        project_id=name,
        session_id=name,
        on_duplicate="keep_both",
    )

    async def admin(method: str, asked: Any) -> Any:
        return await stand.call(method, asked, as_=ANN, roles="admin")

    memory = (await admin("StoreMemory", request)).memory
    assert (memory.content, memory.user_id, memory.project_id) == (request.content, owner.user, name)
    stand.partitions.drop(owner)  # what follows goes through the store's own filters
    assert await admin("GetMemory", pb.GetMemoryRequest(user_id=owner.user, id=memory.id)) == memory
    stand.partitions.drop(owner)
    listed = await admin(
        "ListMemories", pb.ListMemoriesRequest(user_id=owner.user, project_id=name, session_id=name, text=hostile)
    )
    assert memory.id in [one.id for one in listed.memories]
    assert {one.user_id for one in listed.memories} == {owner.user}
