"""`python -m benchmarks.forgetting`: how long a forget takes, until recall is clean and until no file holds it.

One person has 10,000 memories of 384 dimensions in a shard of Milvus Lite, others have 2,000 in it. All of that
person is forgotten; then, in another file, one memory of as many.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
from prometheus_client import CollectorRegistry

from memory_extproc.concurrency import utc_now
from memory_extproc.coordination.sqlite import SoleReplica, SqliteCoordination, SqliteLedger
from memory_extproc.erasure.forgetter import ForgetLimits, Forgetter
from memory_extproc.erasure.steps import Erasable
from memory_extproc.erasure.tombstones import TombstoneFilteringStore, TombstoneIndex
from memory_extproc.journal.sqlite import SqliteJournal
from memory_extproc.model import (
    Embedded,
    ForgetScope,
    ForgetState,
    Memory,
    MemoryType,
    Owner,
    Provenance,
    Source,
    digest,
)
from memory_extproc.observe import log
from memory_extproc.observe.metrics import Metrics
from memory_extproc.settings.memory import Milvus
from memory_extproc.store.loader import PartitionLimits
from memory_extproc.store.milvus.options import MilvusOptions
from memory_extproc.store.milvus.store import MilvusStore
from memory_extproc.store.partition import Partitions

MEMORIES, OTHERS, DIMENSION = 10_000, 2_000, 384
ANN, BOB = Owner("acme", "ann"), Owner("acme", "bob")


@dataclass(frozen=True)
class Took:
    scope: str
    clean: float  # seconds until the call returned
    complete: float  # seconds until no file held it
    gone: int


def rows(owner: Owner, count: int) -> list[Embedded]:
    dice = np.random.default_rng(count)
    vectors = dice.normal(size=(count, DIMENSION)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    at = utc_now().replace(microsecond=0) - timedelta(days=1)
    return [
        Embedded(
            Memory(
                id=digest("bench", owner.key, str(n)),
                owner=owner,
                type=MemoryType.EPISODIC,
                content=f"Message {n} about thing {n % 97}, some hundred characters long, as messages mostly are.",
                source=Source.VERBATIM,
                created_at=at,
                updated_at=at,
                session=f"s{n // 20}",
                seq=n % 20,
                provenance=Provenance(turn=digest("turn", str(n // 2))),
            ),
            vector,
        )
        for n, vector in enumerate(vectors)
    ]


async def measure_forget(scratch: Path, scope: ForgetScope) -> Took:
    metrics = Metrics(CollectorRegistry(), "bench")
    async with AsyncExitStack() as stack:
        coordination = await stack.enter_async_context(SqliteCoordination(scratch / "c.db", now=utc_now))
        journal = await stack.enter_async_context(SqliteJournal(scratch / "j.db", now=utc_now))
        ledger = await stack.enter_async_context(SqliteLedger(scratch / "e.db"))
        section = Milvus(collection="m", dimension=DIMENSION, shards=1, timeout=timedelta(seconds=30))
        options = MilvusOptions(section=section, fingerprint="bench", path=scratch / "milvus.db")
        store = MilvusStore(options, metrics, now=utc_now)
        await store.open()
        stack.push_async_callback(store.close)
        for owner, count in ((ANN, MEMORIES), (BOB, OTHERS)):
            await store.put(owner, rows(owner, count))
        forgotten = TombstoneIndex(ledger, SoleReplica())
        partitions = await stack.enter_async_context(
            Partitions(
                TombstoneFilteringStore(store, forgotten), coordination, PartitionLimits(), metrics, now=utc_now,
                forgotten=forgotten,
            )
        )  # fmt: skip
        holders = Erasable(
            replicas=SoleReplica(),
            store=store,
            partitions=partitions,
            journal=journal,
            coordination=coordination,
            purges=store,
        )
        limits = ForgetLimits(patience=timedelta(minutes=5))
        forgetter = await stack.enter_async_context(
            Forgetter(ledger, forgotten, holders, limits, metrics, now=utc_now)
        )
        started = time.perf_counter()
        receipt = await forgetter.forget(ANN, scope)
        clean = time.perf_counter() - started
        while receipt.state is not ForgetState.COMPLETE:
            await asyncio.sleep(0.01)
            found = await forgetter.receipt(ANN, receipt.id)
            assert found is not None
            receipt = found
        return Took(scope.name, clean, time.perf_counter() - started, receipt.memories)


async def main() -> None:
    one = digest("bench", ANN.key, "42")
    print("| scope | memories that went | recall is clean after | no file holds it after |\n|---|---|---|---|")
    for scope in (ForgetScope(), ForgetScope(ids=(one,))):
        with tempfile.TemporaryDirectory(prefix="memory-bench-") as scratch:
            took = await measure_forget(Path(scratch), scope)
        print(f"| {took.scope} | {took.gone} | {took.clean:.2f} s | {took.complete:.2f} s |")


if __name__ == "__main__":
    log.configure("error", "console")
    asyncio.run(main())
