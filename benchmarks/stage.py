"""`python -m benchmarks.stage`: what the recall stage costs in process, as a multiple of embedding the query.

One caller's memories, in sessions of 20 messages, are held in process; no Envoy and no Milvus. Each question is put
once to the read path and once, in other words, to the embedding model alone, in turns and in one run, so that the
machine slows both alike.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, NamedTuple

import typer
from prometheus_client import CollectorRegistry
from rich.console import Console

from benchmarks import words
from memory_extproc import __version__
from memory_extproc.app import make_recaller, open_embedder
from memory_extproc.coordination.transient import TransientCoordination
from memory_extproc.model import Caller, Embedded, Memory, MemoryType, Owner, Role, Source, Wish
from memory_extproc.observe import log
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Embeds
from memory_extproc.settings import load
from memory_extproc.store.partition import PartitionLimits, Partitions
from memory_extproc.store.transient import TransientStore

SIZES = {1_000: 3.0, 10_000: 5.0}  # memories → the most that recall may cost, in embeddings of the query
SESSION = 20  # messages
ANN = Owner("bench", "ann")
NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)


class Stage(NamedTuple):
    """Milliseconds, medians; *recall* holds the embedding of its own query."""

    memories: int
    embedding: float
    recall: float
    read_closely: float  # share of the questions

    @property
    def multiple(self) -> float:
        return self.recall / self.embedding


def said(count: int) -> Iterator[Memory]:
    texts = words.memories()
    for at in range(count):
        text = texts[at % len(texts)]
        if at >= len(texts):  # the same places and sorts of things, another year
            text = f"{text.rstrip('.')} as it was {at // len(texts)} years before."
        when = NOW - timedelta(minutes=count - at)
        yield Memory(
            id=f"m{at}", owner=ANN, type=MemoryType.EPISODIC, content=text, source=Source.VERBATIM, created_at=when,
            updated_at=when, valid_from=when, session=f"s{at // SESSION}", seq=at % SESSION,
            role=(Role.USER, Role.ASSISTANT)[at % 2],
        )  # fmt: skip


async def measured(count: int, questions: int) -> Stage:
    settings = load(None, {"MEMORY_EXTPROC__RECALL__DEADLINE": "5s"})
    metrics = Metrics(CollectorRegistry(), __version__)
    async with AsyncExitStack() as stack:
        embedder = await open_embedder(settings, metrics, stack)
        store = TransientStore(embedder.dimension, now=lambda: NOW)
        coordination = TransientCoordination(lambda: NOW)
        limits = PartitionLimits(bytes=settings.recall.partition_bytes)
        partitions = await stack.enter_async_context(
            Partitions(store, coordination, limits, metrics, now=lambda: NOW)
        )
        await _remember(partitions, embedder, count)
        recaller = make_recaller(settings, partitions, embedder, metrics, stack, now=lambda: NOW)
        alone, whole = [], []
        for number in range(questions + WARM_UP):
            asked = Wish(caller=Caller(ANN), asked=words.question(2 * number), limit=5, threshold=0.6)
            began = time.perf_counter()
            await recaller.recall(asked)
            between = time.perf_counter()
            await embedder.embed_query(words.question(2 * number + 1))
            if number >= WARM_UP:
                whole.append(between - began)
                alone.append(time.perf_counter() - between)
        read = metrics.registry.get_sample_value("memory_extproc_close_readings_total", {"outcome": "read"}) or 0.0
    return Stage(count, _median_ms(alone), _median_ms(whole), read / (questions + WARM_UP))


async def _remember(partitions: Partitions, embedder: Embeds, count: int) -> None:
    memories = list(said(count))
    for at in range(0, count, 500):
        some = memories[at : at + 500]
        vectors = await embedder.embed([memory.content for memory in some])
        rows = [
            Embedded(replace(memory, embed_model=embedder.fingerprint), vector)
            for memory, vector in zip(some, vectors, strict=True)
        ]
        await partitions.put(ANN, rows)


def _median_ms(seconds: list[float]) -> float:
    return 1000.0 * sorted(seconds)[len(seconds) // 2]


WARM_UP = 10  # questions: what is not held yet is read meanwhile


def main(questions: Annotated[int, typer.Option(min=1, help="of each size")] = 200) -> None:
    """What the recall stage costs, as a multiple of one embedding of the query."""
    log.configure("error", "console")
    console = Console(highlight=False)
    for size, most in SIZES.items():
        found = asyncio.run(measured(size, questions))
        console.print(
            f"{found.memories:6} memories: recall p50 {found.recall:.2f} ms, embedding {found.embedding:.2f} ms, "
            f"{found.multiple:.2f} times (to reach: {most:g}); read closely: {found.read_closely:.0%}"
        )


if __name__ == "__main__":
    typer.run(main)
