"""In the end every memory has a vector of the model in use; nothing newer is undone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from memory_extproc.model import Embedded, Matrix, Memory, Owner
from memory_extproc.observe.metrics import Metrics
from memory_extproc.retention.reembed import Pace, Reembedding
from memory_extproc.store.loader import PartitionLimits
from memory_extproc.store.partition import Partitions
from memory_extproc.testing.adapters import InMemoryCoordination, InMemoryStore
from memory_extproc.testing.models import CannedEmbedder
from tests.support.builders import ANN, BOB, MONDAY, a_memory, later

ELSEWHERE = np.eye(384, dtype=np.float32)[0]


class Watched(CannedEmbedder):
    """Something may happen while it works."""

    def __init__(self) -> None:
        super().__init__()
        self.embedded: list[str] = []
        self.happens: Callable[[], Any] | None = None

    async def embed(self, texts: Sequence[str]) -> Matrix:
        self.embedded += texts
        if self.happens is not None:
            await self.happens()
        return await super().embed(texts)


@dataclass
class Place:
    old: InMemoryStore
    store: InMemoryStore
    partitions: Partitions
    embedder: Watched

    def reembedding(self, lists: InMemoryStore | None = None) -> Reembedding:
        pace = Pace(page=2, pause=timedelta())
        partitions = self.partitions
        return Reembedding(lists or self.store, self.store, partitions, partitions, self.embedder, pace)

    async def put(self, *memories: Memory, model: str = "old") -> None:
        for memory in memories:
            await self.partitions.put(memory.owner, [Embedded(replace(memory, embed_model=model), ELSEWHERE)])

    async def row(self, memory: Memory) -> Embedded:
        return (await self.store.fetch(memory.owner, [memory.id]))[0]

    async def is_whole(self, memory: Memory, content: str) -> bool:
        """Whether it is stored with the vector of *content*, by the model in use."""
        row = await self.row(memory)
        vector = (await CannedEmbedder().embed([content]))[0]
        stored = (row.memory.content, row.memory.embed_model)
        return stored == (content, self.embedder.fingerprint) and bool(np.allclose(row.vector, vector))


def now() -> Any:
    return MONDAY


@pytest.fixture
def place() -> Place:
    store = InMemoryStore(384, now=now)
    metrics = Metrics(CollectorRegistry(), "test")
    partitions = Partitions(store, InMemoryCoordination(now), PartitionLimits(), metrics, now=now)
    return Place(InMemoryStore(384, now=now), store, partitions, Watched())


async def test_memories_of_another_model_are_counted_and_embedded_once(place: Place) -> None:
    rows = [a_memory(f"fact {number}") for number in range(5)]
    await place.put(*rows)
    await place.put(a_memory("Bob's", BOB), model=place.embedder.fingerprint)
    checked = await place.reembedding().check()
    assert (checked.owners, checked.memories, checked.models["old"], checked.broken) == (2, 6, 5, 0)
    assert place.embedder.embedded == []
    assert (await place.reembedding().backfill()).embedded == 5
    assert all([await place.is_whole(row, row.content) for row in rows])
    assert (await place.reembedding().backfill()).embedded == 0
    assert len(place.embedder.embedded) == 5


async def test_a_memory_without_a_vector_gets_one(place: Place) -> None:
    row = a_memory("fact", embed_model=place.embedder.fingerprint)
    place.store._rows[ANN] = {row.id: Embedded(row, np.zeros(384, dtype=np.float32))}
    assert (await place.reembedding().check()).broken == 1
    await place.reembedding().backfill()
    assert await place.is_whole(row, "fact")


async def test_what_is_corrected_meanwhile_keeps_the_vector_of_its_new_words(place: Place) -> None:
    row = a_memory("fact")
    await place.put(row)

    async def happens() -> None:
        place.embedder.happens = None
        vector = (await CannedEmbedder().embed(["corrected"]))[0]
        corrected = replace(row, content="corrected", embed_model=place.embedder.fingerprint)
        await place.partitions.put(ANN, [Embedded(corrected, vector)])

    place.embedder.happens = happens
    assert (await place.reembedding().backfill()).embedded == 0
    assert await place.is_whole(row, "corrected")


async def test_another_collection_is_taken_over_and_a_second_run_brings_what_came_meanwhile(place: Place) -> None:
    first, second = a_memory("first"), a_memory("second", BOB)
    await place.old.put(ANN, [Embedded(first, ELSEWHERE)])
    await place.old.put(BOB, [Embedded(second, ELSEWHERE)])
    moving = place.reembedding(place.old)
    assert (await moving.take_over(place.old)).embedded == 2
    late, changed = a_memory("late"), replace(first, importance=0.9, updated_at=later(hours=1))
    await place.old.put(ANN, [Embedded(late, ELSEWHERE), Embedded(changed, ELSEWHERE)])
    assert (await moving.take_over(place.old)).embedded == 2
    assert (await place.row(first)).memory.importance == 0.9
    for row in (first, second, late):
        assert await place.is_whole(row, row.content)
    assert (await moving.take_over(place.old)).embedded == 0


async def test_what_is_newer_here_is_not_undone_by_what_was_there(place: Place) -> None:
    there = a_memory("there", updated_at=later(hours=1))
    here = replace(there, content="here", updated_at=later(hours=2))
    await place.old.put(ANN, [Embedded(there, ELSEWHERE)])
    await place.put(here)
    assert (await place.reembedding(place.old).take_over(place.old)).embedded == 0
    assert (await place.row(there)).memory.content == "here"


async def test_one_owner_that_cannot_be_seen_to_holds_up_nobody(place: Place) -> None:
    class Lists(InMemoryStore):
        async def owners(self) -> Any:
            yield [Owner("", "\0"), ANN]

    await place.put(a_memory("fact"))
    report = await place.reembedding(Lists(384, now=now)).backfill()
    assert (report.failed, report.embedded) == (1, 1)
