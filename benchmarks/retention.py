"""`python -m benchmarks.retention`: how long one caller's memories take to be seen to.

Clusters are found among vectors of 384 dimensions, a tenth of them near another; then a whole pass over the same
memories in a shard of Milvus Lite: read, scored, the surplus deleted softly, the same made one.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
import tracemalloc
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import numpy as np
from prometheus_client import CollectorRegistry

from memory_extproc.concurrency import utc_now
from memory_extproc.coordination.sqlite import SqliteCoordination
from memory_extproc.learn.wording import about, agree, saying
from memory_extproc.model import Embedded, Matrix, Memory, MemoryType, Owner, Source, digest
from memory_extproc.observe import log
from memory_extproc.observe.metrics import Metrics
from memory_extproc.retention.passes import PassReport, RetentionPass, Wording
from memory_extproc.retention.rules import OwnerRows, components, leaving
from memory_extproc.settings.memory import Milvus, Retention
from memory_extproc.store.loader import PartitionLimits
from memory_extproc.store.milvus.options import MilvusOptions
from memory_extproc.store.milvus.store import MilvusStore
from memory_extproc.store.partition import Partitions
from memory_extproc.testing.models import CannedEmbedder

DIMENSION, DISTANCE = 384, 0.08
ANN = Owner("acme", "ann")


def vectors(count: int) -> Matrix:
    dice = np.random.default_rng(count)
    made = dice.normal(size=(count, DIMENSION))
    again = dice.integers(0, count, count // 10)
    made[: len(again)] = made[again] + dice.normal(scale=0.1, size=(len(again), DIMENSION))
    unit: Matrix = (made / np.linalg.norm(made, axis=1, keepdims=True)).astype(np.float32)
    return unit


def rows(count: int) -> list[Embedded]:
    dice = np.random.default_rng(count)
    old = utc_now().replace(microsecond=0) - timedelta(days=200)
    made = []
    for n, vector in enumerate(vectors(count)):
        at = old + timedelta(hours=int(dice.integers(0, 4000)))
        memory = Memory(
            id=digest("bench", str(n)),
            owner=ANN,
            type=MemoryType.SEMANTIC,
            content=f"The user remembers thing number {n // 2}.",
            source=Source.RULES,
            created_at=at,
            updated_at=at,
            importance=float(dice.random()),
        )
        made.append(Embedded(memory, vector))
    return made


async def a_pass(count: int) -> tuple[float, PassReport]:
    metrics = Metrics(CollectorRegistry(), "benchmark")
    async with AsyncExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="retention-")))
        section = Milvus(collection="bench", dimension=DIMENSION, shards=1, timeout=timedelta(seconds=30))
        options = MilvusOptions(section=section, fingerprint="bench", path=scratch / "milvus.db")
        store = MilvusStore(options, metrics, now=utc_now)
        stack.push_async_callback(store.close)
        await store.open()
        coordination = await stack.enter_async_context(SqliteCoordination(scratch / "c.db", now=utc_now))
        limits = PartitionLimits(bytes=1 << 20, patience=timedelta())
        partitions = await stack.enter_async_context(Partitions(store, coordination, limits, metrics, now=utc_now))
        await store.put(ANN, rows(count))
        rules = Retention(max_memories=count - count // 20)
        wording = Wording(says=saying, about=about, agree=agree)
        keeper = RetentionPass(OwnerRows(store, partitions), CannedEmbedder(), lambda: rules, wording, now=utc_now)
        began = time.perf_counter()
        kept = await keeper.keep(ANN)
        return time.perf_counter() - began, kept


def main() -> None:
    log.configure("error", "console")
    print("| memories | clusters | at most held for it | scores and plan | a whole pass | deleted softly |")
    print("|---:|---:|---:|---:|---:|---:|")
    for count in (1_000, 10_000):
        made = vectors(count)
        began = time.perf_counter()
        components(made, DISTANCE)
        clusters = time.perf_counter() - began
        tracemalloc.start()
        components(made, DISTANCE)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        memories = [row.memory for row in rows(count)]
        began = time.perf_counter()
        leaving(memories, Retention(max_memories=count // 2), utc_now())
        plan = time.perf_counter() - began
        took, kept = asyncio.run(a_pass(count))
        print(
            f"| {count:,} | {clusters * 1000:.0f} ms | {peak / 1e6:.0f} MB | {plan * 1000:.0f} ms | {took:.1f} s "
            f"| {kept.retired.total()} |"
        )


if __name__ == "__main__":
    main()
