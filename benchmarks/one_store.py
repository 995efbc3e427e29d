"""A store of a given size, in a process of its own: fills it, then answers rounds of searches with their times.

`python -m benchmarks.one_store DIRECTORY ADDRESS COLLECTION`; an empty ADDRESS is a Lite file in DIRECTORY.
Vectors are random, which for an exact or a graph index is no easier than those of a model.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import numpy as np
from prometheus_client import CollectorRegistry

from benchmarks.lines import answer_lines
from benchmarks.rows import a_memory
from memory_extproc.model import Embedded, Matrix, Owner, Scope
from memory_extproc.observe import log
from memory_extproc.observe.metrics import Metrics
from memory_extproc.settings.memory import Milvus
from memory_extproc.store.loader import PartitionLimits
from memory_extproc.store.milvus.options import MilvusOptions
from memory_extproc.store.milvus.store import MilvusStore
from memory_extproc.store.partition import Partitions
from memory_extproc.testing.adapters import InMemoryCoordination

DIMENSION = 384
OF_ONE_OWNER = 100  # rows, at every size of the store
TEXT = (
    "On that day the caller said something of about one hundred and twenty characters, as people do when they chat"
)
LIMIT = 50  # candidates, as recall asks for
CALL = timedelta(seconds=10)
SETTLES_WITHIN = 120.0  # seconds


class Asked(msgspec.Struct, frozen=True):
    fill: int = 0  # rows to write; 0: measure
    calls: int = 0  # searches of each kind
    seed: int = 0


class Told(msgspec.Struct, frozen=True):
    """Seconds."""

    took: float = 0.0
    store: list[float] = []
    cold: list[float] = []
    warm: list[float] = []


def owner_of(number: int) -> Owner:
    return Owner("", f"owner-{number}")


def unit_rows(chance: np.random.Generator, count: int) -> Matrix:
    made = chance.standard_normal((count, DIMENSION), dtype=np.float32)
    made /= np.linalg.norm(made, axis=1, keepdims=True)
    return made


class OneStore:
    def __init__(self, store: MilvusStore) -> None:
        self._store = store
        self._metrics = Metrics(CollectorRegistry(), "benchmark")
        self._owners = 0

    async def respond(self, asked: Asked) -> Told:
        return await self._fill(asked) if asked.fill else await self._measure(asked)

    async def _fill(self, asked: Asked) -> Told:
        now = datetime.now(UTC).replace(microsecond=0)
        chance = np.random.default_rng(asked.seed)
        self._owners = asked.fill // OF_ONE_OWNER
        started = time.monotonic()
        for number in range(self._owners):
            owner = owner_of(number)
            rows = [
                Embedded(a_memory(owner, seq, f"{TEXT} {number} {seq}", now, "random"), vector)
                for seq, vector in enumerate(unit_rows(chance, OF_ONE_OWNER))
            ]
            await self._store.put(owner, rows)
        took = time.monotonic() - started
        await self._wait_until_steady(chance)
        return Told(took=took)

    async def _wait_until_steady(self, chance: np.random.Generator) -> None:
        """Wait until searches are as quick as they were the round before: a server goes on building its index."""
        async with asyncio.timeout(SETTLES_WITHIN):
            last = float("inf")
            while True:
                await asyncio.sleep(2)
                times = [await self._search(number % self._owners, chance) for number in range(100)]
                now = float(np.median(times))
                if last * 0.95 <= now <= last * 1.05:
                    return
                last = now

    async def _search(self, number: int, chance: np.random.Generator) -> float:
        query = unit_rows(chance, 1)[0]
        started = time.perf_counter()
        await self._store.nearest(owner_of(number), query, LIMIT, Scope())
        return time.perf_counter() - started

    async def _measure(self, asked: Asked) -> Told:
        chance = np.random.default_rng(asked.seed)
        # The same number of owners at every size, so that caches of the machine favour none.
        owners = random.Random(asked.seed).sample(range(self._owners), min(self._owners, asked.calls, 50))
        store = [await self._search(owners[call % len(owners)], chance) for call in range(asked.calls)]
        coordination = InMemoryCoordination(now=lambda: datetime.now(UTC))
        async with Partitions(
            self._store, coordination, PartitionLimits(), self._metrics, now=lambda: datetime.now(UTC)
        ) as partitions:
            cold = [(await _through(partitions, number, chance))[0] for number in owners]
            for number in owners:
                await _wait_until_loaded(partitions, number, chance)
            again = (owners[call % len(owners)] for call in range(asked.calls))
            warm = [(await _through(partitions, number, chance))[0] for number in again]
        return Told(store=store, cold=cold, warm=warm)


async def _through(partitions: Partitions, number: int, chance: np.random.Generator) -> tuple[float, str]:
    query = unit_rows(chance, 1)[0]
    started = time.perf_counter()
    searched = await partitions.nearest(owner_of(number), query, LIMIT, Scope())
    took = time.perf_counter() - started
    if not searched.found:
        raise RuntimeError("a search found nothing")
    return took, searched.path


async def _wait_until_loaded(partitions: Partitions, number: int, chance: np.random.Generator) -> None:
    """Wait until this owner's partition answers by itself."""
    async with asyncio.timeout(SETTLES_WITHIN):
        path = ""
        while path != "hybrid":
            await asyncio.sleep(0.01)
            _, path = await _through(partitions, number, chance)


@asynccontextmanager
async def open_store(directory: Path, address: str, collection: str) -> AsyncIterator[MilvusStore]:
    options = MilvusOptions(
        section=Milvus(collection=collection, dimension=DIMENSION, address=address, shards=64, timeout=CALL),
        fingerprint="random",
        path=directory / f"{collection}.db",
    )
    store = MilvusStore(options, Metrics(CollectorRegistry(), "benchmark"), now=lambda: datetime.now(UTC))
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def main(directory: Path, address: str, collection: str) -> None:
    log.configure("warning", "json")  # to standard error: the answers have the other to themselves
    async with open_store(directory, address, collection) as store:
        await answer_lines(Asked, OneStore(store).respond)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
