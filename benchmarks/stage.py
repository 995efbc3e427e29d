"""Part (i): what the recall stage costs in process, as a multiple of embedding the query.

One caller's memories, in sessions of 20 messages, are held in process; no Envoy and no Milvus. Each question is put
once to the read path and once, in other words, to the embedding model alone, in turns and in one run, so that the
machine slows both alike. Each round is a process of its own: `python -m benchmarks.stage 10000` is one.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from prometheus_client import CollectorRegistry

from benchmarks import words
from benchmarks.figures import MS, Stage, median
from benchmarks.lines import ChildFailedError
from memory_extproc import __version__
from memory_extproc.app import make_recaller, open_embedder
from memory_extproc.app.context import make_context
from memory_extproc.model import Caller, Embedded, Memory, MemoryType, Owner, RecallRequest, Role, Source
from memory_extproc.observe import log
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import EmbeddingModel
from memory_extproc.settings import load
from memory_extproc.store.loader import PartitionLimits
from memory_extproc.store.partition import Partitions
from memory_extproc.testing.adapters import InMemoryCoordination, InMemoryStore

SIZES = {1_000: 3.0, 10_000: 5.0}  # memories → the most that recall may cost, in embeddings of the query
SESSION = 20  # messages
ANN = Owner("bench", "ann")
NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)


def make_memories(count: int) -> Iterator[Memory]:
    for at, text in enumerate(words.said(count)):
        when = NOW - timedelta(minutes=count - at)
        yield Memory(
            id=f"m{at}", owner=ANN, type=MemoryType.EPISODIC, content=text, source=Source.VERBATIM, created_at=when,
            updated_at=when, valid_from=when, session=f"s{at // SESSION}", seq=at % SESSION,
            role=(Role.USER, Role.ASSISTANT)[at % 2],
        )  # fmt: skip


async def measure(count: int, questions: int) -> Stage:
    settings = load(None, {"MEMORY_EXTPROC__RECALL__DEADLINE": "5s"})
    metrics = Metrics(CollectorRegistry(), __version__)
    async with AsyncExitStack() as stack:
        context = make_context(settings, stack, metrics, now=lambda: NOW)
        embedder = await open_embedder(context)
        store = InMemoryStore(embedder.dimension, now=lambda: NOW)
        coordination = InMemoryCoordination(lambda: NOW)
        limits = PartitionLimits(bytes=settings.recall.partition_bytes)
        partitions = await stack.enter_async_context(
            Partitions(store, coordination, limits, metrics, now=lambda: NOW)
        )
        await _remember(partitions, embedder, count)
        recaller = make_recaller(context, partitions, embedder)
        alone, whole = [], []
        for number in range(questions + WARM_UP):
            asked = RecallRequest(caller=Caller(ANN), asked=words.question(2 * number), limit=5, threshold=0.6)
            began = time.perf_counter()
            await recaller.recall(asked)
            between = time.perf_counter()
            await embedder.embed_query(words.question(2 * number + 1))
            if number >= WARM_UP:
                whole.append(between - began)
                alone.append(time.perf_counter() - between)
        read = metrics.registry.get_sample_value("memory_extproc_close_readings_total", {"outcome": "read"}) or 0.0
    embedding, recall = MS * median(alone), MS * median(whole)
    return Stage(
        memories=count,
        embedding=embedding,
        recall=recall,
        multiple=recall / embedding,
        read_closely=read / (questions + WARM_UP),
        resident=_resident(),
        most=SIZES.get(count, math.inf),
    )


async def stages(*, quick: bool) -> list[Stage]:
    """The round with the median multiple, for each size."""
    rounds, questions = (1, 50) if quick else (3, 200)
    found = []
    for count in SIZES:
        made = [await _round(count, questions) for _ in range(rounds)]
        found.append(sorted(made, key=lambda one: one.multiple)[rounds // 2])
    return found


async def _round(count: int, questions: int) -> Stage:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.stage", str(count), "--questions", str(questions), stdout=PIPE,
        # As the sidecar's own start has it: a second thread of numpy's would wait in a busy loop.
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    written, _ = await child.communicate()
    if child.returncode:
        raise ChildFailedError(f"benchmarks.stage {count} ended with {child.returncode}")
    return msgspec.json.decode(written, type=Stage)


def _resident() -> float:
    """MiB of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def _remember(partitions: Partitions, embedder: EmbeddingModel, count: int) -> None:
    memories = list(make_memories(count))
    for at in range(0, count, 500):
        some = memories[at : at + 500]
        vectors = await embedder.embed([memory.content for memory in some])
        rows = [
            Embedded(replace(memory, embed_model=embedder.fingerprint), vector)
            for memory, vector in zip(some, vectors, strict=True)
        ]
        await partitions.put(ANN, rows)


WARM_UP = 10  # questions: what is not held yet is read meanwhile


def main(count: int, questions: Annotated[int, typer.Option(min=1)] = 200) -> None:
    """One round with *count* memories, as JSON."""
    log.configure("error", "console")
    sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(measure(count, questions))))


if __name__ == "__main__":
    typer.run(main)
