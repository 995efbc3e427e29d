"""The canary tells whether recall finds what is there."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import pytest
from prometheus_client import CollectorRegistry

from memory_extproc.errors import TransientError
from memory_extproc.model import Memory, Outcome, Owner, OwnerKind, Ranked, RecallRequest, RecallResult
from memory_extproc.model.owner import accept_name
from memory_extproc.observe.metrics import Metrics
from memory_extproc.recall.canary import KNOWN, OWNER, STALE, Canary
from memory_extproc.settings.memory import Memory as MemorySection
from memory_extproc.store.loader import PartitionLimits
from memory_extproc.store.partition import Partitions
from memory_extproc.testing.adapters import InMemoryCoordination, InMemoryStore
from memory_extproc.testing.models import CannedEmbedder
from tests.support.sidecar import NOON
from tests.support.waiting import until

ANSWERS = {asked: said for said, asked in KNOWN}


async def stored(store: InMemoryStore) -> list[Memory]:
    return [row.memory async for page in store.pages(OWNER, 100, fresh=True) for row in page]


@dataclass
class Finds:
    """Recall that finds what the question is for, out of what is in the store; but for what a test takes away."""

    store: InMemoryStore
    lost: set[str] = field(default_factory=set)
    broken: bool = False
    wishes: list[RecallRequest] = field(default_factory=list)

    async def recall(self, wish: RecallRequest) -> RecallResult:
        self.wishes.append(wish)
        if self.broken:
            raise RuntimeError("a bug")
        there = await stored(self.store)
        found = [each for each in there if each.content == ANSWERS[wish.asked] and each.content not in self.lost]
        return RecallResult(
            outcome=Outcome.USED if found else Outcome.NOTHING_RELEVANT,
            memories=tuple(Ranked(each, 1.0) for each in found),
        )


class Away(InMemoryStore):
    """A store that can be away."""

    away = False

    async def get(self, owner: Owner, ids: Sequence[str]) -> Sequence[Memory]:
        if self.away:
            raise TransientError("store unreachable")
        return await super().get(owner, ids)


@dataclass
class Bench:
    canary: Canary
    finds: Finds
    store: Away
    metrics: Metrics
    now: list[datetime]

    @property
    def shown(self) -> float | None:
        return self.metrics.registry.get_sample_value("memory_extproc_canary_recall")


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    metrics = Metrics(CollectorRegistry(), "test")
    clock = [NOON]
    embedder = CannedEmbedder()
    store = Away(embedder.dimension, now=lambda: clock[0])
    coordination = InMemoryCoordination(lambda: clock[0])
    async with Partitions(store, coordination, PartitionLimits(), metrics, now=lambda: clock[0]) as partitions:
        finds = Finds(store)
        section = MemorySection(default_retrieval_limit=3, default_similarity_threshold=0.7)
        every = timedelta(milliseconds=1)
        canary = Canary(
            finds, partitions, store, embedder, lambda: section, metrics, every=every, now=lambda: clock[0]
        )
        yield Bench(canary, finds, store, metrics, clock)


async def test_all_that_is_known_is_found_with_the_limits_that_callers_have(bench: Bench) -> None:
    assert bench.shown is not None
    assert math.isnan(bench.shown)
    assert await bench.canary.probe() == 1.0
    assert bench.shown == 1.0
    assert {(wish.limit, wish.threshold, wish.force) for wish in bench.finds.wishes} == {(3, 0.7, False)}


async def test_what_is_not_found_lowers_the_share(bench: Bench) -> None:
    bench.finds.lost = {KNOWN[0][0], KNOWN[1][0]}
    assert await bench.canary.probe() == 1 - 2 / len(KNOWN)
    assert bench.shown == 1 - 2 / len(KNOWN)


async def test_while_the_store_is_away_nothing_counts_as_found_and_it_comes_back_by_itself(bench: Bench) -> None:
    await bench.canary.probe()
    bench.store.away = True
    assert await bench.canary.probe() == 0.0
    assert bench.shown == 0.0
    bench.store.away = False
    assert await bench.canary.probe() == 1.0


async def test_its_memories_are_written_once_and_anew_before_their_age_counts(bench: Bench) -> None:
    await bench.canary.probe()
    await bench.canary.probe()
    written = await stored(bench.store)
    assert len(written) == len(KNOWN)
    assert {each.created_at for each in written} == {NOON}
    bench.now[0] = NOON + STALE
    await bench.canary.probe()
    written = await stored(bench.store)
    assert len(written) == len(KNOWN)
    assert {each.created_at for each in written} == {NOON + STALE}


async def test_what_somebody_deleted_of_it_is_back_at_the_next_probe(bench: Bench) -> None:
    await bench.canary.probe()
    await bench.store.delete_owner(OWNER)
    assert await bench.canary.probe() == 1.0


async def test_it_probes_by_itself_until_it_is_left(bench: Bench) -> None:
    async with bench.canary:
        await until(lambda: len(bench.finds.wishes) >= 2 * len(KNOWN), "probed twice")
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "canary"]


async def test_a_fault_of_ours_shows_as_nothing_found(bench: Bench) -> None:
    bench.finds.broken = True
    async with bench.canary:
        await until(lambda: bench.shown == 0.0, "shown")


def test_nobody_can_be_called_as_it_is() -> None:
    assert accept_name(OWNER.user) == ""
    assert OWNER.kind is OwnerKind.CANARY
    others = {Owner.of_project(OWNER.tenant, "canary"), Owner.of_everyone(), Owner.of_everyone("canary")}
    assert OWNER not in others
    assert OWNER.key not in {each.key for each in others}
    assert replace(OWNER, tenant="").kind is OwnerKind.CANARY
