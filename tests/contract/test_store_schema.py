"""A collection says which version its schema has: one that cannot be used without loss is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from memory_extproc.errors import PermanentError
from memory_extproc.model import Memory, Owner
from memory_extproc.store.milvus.client import AsyncMilvusClient, connect
from memory_extproc.store.milvus.lite import EmbeddedLite
from memory_extproc.store.milvus.options import MilvusOptions
from memory_extproc.store.milvus.rows import to_memory
from memory_extproc.store.milvus.store import MilvusStore
from tests.support import older_store
from tests.support.builders import ANN, BOB
from tests.support.milvus_server import Process
from tests.support.milvus_stores import a_row, changed, metrics, milvus_lite, options

__all__ = ["milvus_lite"]


@asynccontextmanager
async def talking_to(chosen: MilvusOptions) -> AsyncIterator[AsyncMilvusClient]:
    """A client of nobody's; a Lite file is let go of at the end."""
    lite = None if chosen.uri else EmbeddedLite(chosen.path)
    client = connect(chosen, chosen.uri if lite is None else await asyncio.to_thread(lite.start))
    try:
        yield client
    finally:
        await client.close()
        if lite is not None:
            await asyncio.to_thread(lite.stop)


@asynccontextmanager
async def opened(chosen: MilvusOptions) -> AsyncIterator[MilvusStore]:
    store = MilvusStore(chosen, metrics(), now=lambda: datetime.now(UTC))
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def said(store: MilvusStore, owner: Owner) -> set[str]:
    return {row.memory.content async for page in store.pages(owner, 50, fresh=True) for row in page}


@dataclass(frozen=True, slots=True)
class Place:
    chosen: MilvusOptions

    async def stamp(self, version: int, readable_from: int) -> None:
        """Its collections, with a row of Ann's and one of Bob's, as a program of that version would have them."""
        async with opened(self.chosen) as store:
            for owner in (ANN, BOB):
                await store.put(owner, [a_row(f"{owner.user} likes tea.", owner)])
        properties = {"memory_extproc.schema": str(version), "memory_extproc.readable_from": str(readable_from)}
        async with talking_to(self.chosen) as client:
            ours = [
                one for one in await client.list_collections() if one.startswith(self.chosen.section.collection)
            ]
            assert ours
            for one in ours:
                await client.alter_collection_properties(one, properties)


@pytest.fixture(params=["file", "server"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "file":
        return Place(changed(options(tmp_path), shards=2))
    server: Process = request.getfixturevalue("milvus_lite")
    return Place(options(tmp_path, server.address))


async def test_a_new_collection_is_named_after_its_version_and_says_it(place: Place) -> None:
    async with opened(place.chosen):
        pass
    async with talking_to(place.chosen) as client:
        ours = [one for one in await client.list_collections() if one.startswith(place.chosen.section.collection)]
        assert ours
        for one in ours:
            assert one.startswith(f"{place.chosen.section.collection}_v1_{place.chosen.section.dimension}")
            stamp = (await client.describe_collection(one))["properties"]
            assert (stamp["memory_extproc.schema"], stamp["memory_extproc.readable_from"]) == ("1", "1")


async def test_a_newer_schema_that_names_a_later_reader_is_refused_with_both_numbers(place: Place) -> None:
    await place.stamp(3, 2)
    with pytest.raises(PermanentError, match=r"schema 3 of a newer memory-extproc; this one knows .* 1, and 2"):
        async with opened(place.chosen):
            pass


# The second is what builds before the first release wrote.
@pytest.mark.parametrize("version", [3, 2])
async def test_a_newer_schema_that_this_version_may_use_is_used_and_left_as_it_is(
    place: Place, version: int
) -> None:
    await place.stamp(version, 1)
    for drink in ("oolong", "sencha"):
        async with opened(place.chosen) as store:
            await store.put(ANN, [a_row(f"Ann likes {drink}.", ANN)])
    async with opened(place.chosen) as store:
        assert await said(store, ANN) == {f"{ANN.user} likes tea.", "Ann likes oolong.", "Ann likes sencha."}
        assert await said(store, BOB) == {f"{BOB.user} likes tea."}
    async with talking_to(place.chosen) as client:
        ours = [one for one in await client.list_collections() if one.startswith(place.chosen.section.collection)]
        stamps = [(await client.describe_collection(one))["properties"] for one in ours]
    assert {one["memory_extproc.schema"] for one in stamps} == {str(version)}


def test_a_row_as_the_first_version_wrote_it_is_a_memory() -> None:
    memory = to_memory(older_store.ROW)
    assert isinstance(memory, Memory)
    assert (memory.owner, memory.content, memory.expires_at) == (Owner("acme", "ann"), "Ann likes tea.", None)
    assert memory.provenance.encode() == {"said": 1767607200.25, "turn": "t1"}
