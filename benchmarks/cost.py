"""Part (j): processor time of an exchange by stage, as a multiple of embedding its query.

The whole sidecar counts, threads of libraries too. It stands behind Envoy as in `exchanges`, under `sampler`;
one embedding (`benchmarks.embedding`) is measured in this process between the rounds, so that other work on the
machine slows both alike.
Time of the processor and not of the clock: what others do beside us moves it far less.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks import words
from benchmarks.embedding import open_unit_model
from benchmarks.exchanges import ASKED_BEFORE, LEARN, RECALL, Listening
from benchmarks.figures import MS, Cost, median
from benchmarks.gateway import gateway
from benchmarks.lines import Child, child
from benchmarks.load import Round, Sent
from benchmarks.sampler import OUTSIDE, Counted
from benchmarks.sidecar import MODELS, Place, Running, prepare, serving
from memory_extproc.inference.batching import BatchingEmbedder
from memory_extproc.ports import EmbeddingModel
from memory_extproc.settings.memory import Embedding

STREAMED = "streamed"
WARM_UP = 150  # requests
BARELY = 0.9
IDLE = 5.0  # seconds
WRITTEN_WITHIN = 10.0  # seconds
ROUND_WITHIN = 300.0
_EMBEDDED = 40  # queries between two rounds


@dataclass(slots=True)
class Bench:
    running: Running
    record: Path
    client: Child
    port: int
    embedder: EmbeddingModel
    idle: float = 0.0  # seconds of CPU in a second without requests
    asked: int = ASKED_BEFORE

    async def read_counts(self) -> Counted:
        self.record.unlink(missing_ok=True)
        os.kill(self.running.pid, signal.SIGUSR1)
        async with asyncio.timeout(WRITTEN_WITHIN):
            while not self.record.exists():  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.01)
        return msgspec.json.decode(self.record.read_bytes(), type=Counted)

    async def round(self, way: str, caller: str, requests: int) -> Counted:
        """CPU of one of *requests* exchanges, until all of it is learned."""
        plan = Round(
            port=self.port, callers=[caller], first=self.asked, requests=requests, warmup=0,
            learn=way != RECALL, stream=way == STREAMED,
        )  # fmt: skip
        before, began = await self.read_counts(), time.monotonic()
        sent = await self.client.ask(plan, Sent, within=ROUND_WITHIN)
        if way != RECALL:
            await self.running.quiet()
        after, rested = await self.read_counts(), self.idle * (time.monotonic() - began)
        self.asked = sent.next
        return Counted(
            (after.process - before.process - rested) / requests,
            _difference(after.functions, before.functions, requests),
            _difference(after.threads, before.threads, requests),
        )

    async def warm_up(self, caller: str) -> None:
        """Until a recall costs no less than before: what is read of a memory once and kept costs no recall."""
        before, spent = math.inf, sys.float_info.max
        while spent < BARELY * before:
            before, spent = spent, (await self.round(RECALL, caller, WARM_UP)).process

    async def embedding(self) -> float:
        """CPU of one query, in this process."""
        began = time.process_time()
        for number in range(_EMBEDDED):
            await self.embedder.embed_query(words.question(self.asked + number))
        self.asked += _EMBEDDED
        return (time.process_time() - began) / _EMBEDDED


def _difference(after: Mapping[str, float], before: Mapping[str, float], share: int) -> dict[str, float]:
    return {name: (spent - before.get(name, 0.0)) / share for name, spent in after.items()}


async def costs(scratch: Path, *, quick: bool) -> list[Cost]:
    """CPU for callers with 1,000 and 10,000 memories, in rounds that take turns."""
    sizes = (1_000,) if quick else (1_000, 10_000)
    rounds, requests = (2, 60) if quick else (5, 120)
    ways = {RECALL: requests, LEARN: requests // 2, STREAMED: 2 if quick else 4}
    place = Place.make(scratch, "cost")
    for size in sizes:
        await prepare(place, [f"caller-of-{size}"], size)
    async with AsyncExitStack() as stack:
        bench = await _bench(stack, place, scratch)
        for size in sizes:
            await bench.warm_up(f"caller-of-{size}")
            for way in (LEARN, STREAMED):
                await bench.round(way, f"caller-of-{size}", 1)
        await bench.embedding()
        before = bench.running.cpu_seconds()
        await asyncio.sleep(IDLE)
        bench.idle = (bench.running.cpu_seconds() - before) / IDLE
        seen: dict[tuple[str, int], list[Counted]] = {(way, size): [] for size in sizes for way in ways}
        embedded = []
        for _ in range(rounds):
            for (way, size), found in seen.items():
                embedded.append(await bench.embedding())
                found.append(await bench.round(way, f"caller-of-{size}", ways[way]))
    return [_cost(way, size, found, median(embedded)) for (way, size), found in seen.items()]


async def _bench(stack: AsyncExitStack, place: Place, scratch: Path) -> Bench:
    record = scratch / "sampled.json"
    unit = await asyncio.to_thread(open_unit_model, MODELS, scratch)
    embedder = BatchingEmbedder(unit, Embedding(), None)
    stack.push_async_callback(embedder.close)
    upstream = (
        await (await stack.enter_async_context(child("upstream", scratch=scratch))).hear(Listening, within=20)
    ).port
    running = await stack.enter_async_context(serving(place, record))
    client = await stack.enter_async_context(child("load", scratch=scratch))
    ports = await stack.enter_async_context(gateway(upstream, {RECALL: place.ext_proc}, scratch))
    return Bench(running, record, client, ports[RECALL], embedder)


def _cost(way: str, size: int, found: Sequence[Counted], embedding: float) -> Cost:
    stages = defaultdict[str, float](float)
    functions = defaultdict[str, float](float)
    for one in found:
        for name, spent in one.functions.items():
            stages[name if name == OUTSIDE else name.partition(" ")[0].partition("/")[0]] += MS * spent / len(found)
            functions[name] += MS * spent / len(found)
        for name, spent in one.threads.items():
            stages[f"thread: {name}"] += MS * spent / len(found)
    whole = median([one.process for one in found])
    return Cost(
        way=way,
        memories=size,
        embedding=MS * embedding,
        whole=MS * whole,
        multiple=whole / embedding,
        stages=dict(_most_first(stages)),
        functions=dict(_most_first(functions)[:_FUNCTIONS]),
    )


def _most_first(spent: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(spent.items(), key=lambda one: -one[1])


_FUNCTIONS = 60
