"""Deleted rows leave Milvus Lite's files, whatever happens on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from memory_extproc.model import Embedded, Memory, Owner
from memory_extproc.observe.metrics import Metrics
from memory_extproc.settings.memory import Milvus
from memory_extproc.store.milvus.lite_compaction import LiteCompaction, twin
from memory_extproc.store.milvus.options import MilvusOptions
from memory_extproc.store.milvus.store import MilvusStore
from memory_extproc.testing.models import CannedEmbedder
from tests.support.builders import ANN, BOB, MONDAY, a_memory

CANARY = "the heron nests at Quillfeather Lagoon"
EMBEDDER = CannedEmbedder(8)


def options(path: Path) -> MilvusOptions:
    # One shard, so that everybody's rows are in the one that is rewritten.
    return MilvusOptions(
        section=Milvus(collection="memories", dimension=8, shards=1), fingerprint="canned", path=path / "milvus.db"
    )


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[MilvusStore]:
    store = MilvusStore(options(path), Metrics(CollectorRegistry(), "test"), now=lambda: MONDAY)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def put(store: MilvusStore, memories: Sequence[Memory]) -> None:
    vectors = await EMBEDDER.embed([memory.content for memory in memories])
    for memory, vector in zip(memories, vectors, strict=True):
        await store.put(memory.owner, [Embedded(memory, vector)])


def holding(path: Path, text: str = CANARY) -> list[str]:
    """Names of the files with *text* in them."""
    files = [one for one in path.rglob("*") if one.is_file()]
    return [str(one) for one in files if text.encode() in one.read_bytes()]


async def known(store: MilvusStore, owner: Owner) -> set[str]:
    return {row.memory.content async for page in store.pages(owner, 50, fresh=True) for row in page}


async def test_deleted_words_leave_the_files_and_all_others_stay(tmp_path: Path) -> None:
    others = [a_memory(f"Bob said {n}", BOB) for n in range(250)]
    async with opened(tmp_path) as store:
        await put(store, [a_memory(CANARY), a_memory("likes tea"), *others])
    async with opened(tmp_path) as store:
        await store.delete(ANN, [a_memory(CANARY).id])
        assert holding(tmp_path), "Lite purges by itself: rewriting is not needed any more"
        assert await store.purge(ANN)
        assert holding(tmp_path) == []
        assert await known(store, ANN) == {"likes tea"}
        assert len(await known(store, BOB)) == 250
        await put(store, [a_memory("likes rum")])
        assert await store.purge(ANN)
    assert holding(tmp_path) == []
    async with opened(tmp_path) as store:
        assert await known(store, ANN) == {"likes tea", "likes rum"}
        assert len(await known(store, BOB)) == 250


async def test_what_is_written_while_the_files_are_rewritten_is_kept(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await put(store, [a_memory(f"Ann said {n}") for n in range(150)])
        late = [a_memory(f"Bob said {n}", BOB) for n in range(20)]
        _, _ = await asyncio.gather(store.purge(ANN), put(store, late))
        assert len(await known(store, BOB)) == 20
        assert len(await known(store, ANN)) == 150


@pytest.mark.parametrize("swapped", [False, True])
async def test_a_rewrite_that_a_crash_cut_short_leaves_nothing_behind(tmp_path: Path, *, swapped: bool) -> None:
    async with opened(tmp_path) as store:
        await put(store, [a_memory(CANARY), a_memory("likes tea")])
        await store.delete(ANN, [a_memory(CANARY).id])
        ready = store._ready()
        alias, old = ready.placement.collections()[0]
        # As far as a rewrite comes: the twin made, and the alias moved or not; the other one still there.
        described = await ready.client.describe_collection(alias)
        rewriting = LiteCompaction(ready.client, store._options, store._calls)
        await rewriting._make_like(described, twin(old))
        await rewriting._copy_rows(old, twin(old))
        if swapped:
            await ready.client.alter_alias(twin(old), alias)
    async with opened(tmp_path) as store:
        assert await known(store, ANN) == {"likes tea"}
        assert await store._ready().client.list_collections() in ([twin(old)] if swapped else [old], [alias])
        if swapped:
            assert holding(tmp_path) == []
        await store.purge(ANN)
        assert holding(tmp_path) == []
        assert await known(store, ANN) == {"likes tea"}
