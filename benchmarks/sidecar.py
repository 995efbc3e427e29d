"""The sidecar as an operator starts it, and a store prepared for it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from prometheus_client import CollectorRegistry

from benchmarks import words
from benchmarks.gateway import answering, free_ports
from benchmarks.lines import ChildFailedError, end
from benchmarks.rows import a_memory
from memory_extproc.app import milvus_options
from memory_extproc.inference.onnx import open_onnx_embedder
from memory_extproc.model import Embedded, Owner
from memory_extproc.observe.metrics import Metrics
from memory_extproc.settings import load
from memory_extproc.settings.memory import Embedding
from memory_extproc.store.milvus.store import MilvusStore

MODELS = Path(os.environ.get("MEMORY_EXTPROC_TEST_MODELS", ".cache/models"))
QUIET_WITHIN = 60.0  # seconds
SESSION_IDLE = 1  # second, not a minute: facts are extracted before the next round begins
WATCHED = 1.5  # seconds, more than SESSION_IDLE
RESTS = 0.03  # of a core: less is housekeeping
_BATCH = 100
_DISTINCT = 5_000  # vectors
_TO_FILL = timedelta(seconds=60)  # of a call, while a store is prepared


@dataclass(frozen=True, slots=True)
class Place:
    """Where a sidecar keeps its things, and where it listens: the same at every start."""

    config: Path
    ext_proc: int
    http: int

    @classmethod
    def make(cls, scratch: Path, name: str, milvus: str = "", **sections: Any) -> Place:
        """*milvus*: address of a server; without one, Milvus Lite in the sidecar's process. *sections* of the
        configuration are added."""
        ext_proc, api, http = free_ports(3)
        config = scratch / f"{name}.yaml"
        data = scratch / name
        data.mkdir(mode=0o700)
        written = {
            "listen": {
                "ext_proc": f"127.0.0.1:{ext_proc}",
                "api": f"127.0.0.1:{api}",
                "console": "127.0.0.1:0",
                "http": f"127.0.0.1:{http}",
            },
            "memory": {"embedding": {"models_dir": str(MODELS.absolute())}, "milvus": {"address": milvus}},
            "learn": {"session_idle": f"{SESSION_IDLE}s"},
            "data_dir": str(data),
            "telemetry": {"log_level": "warning"},
            "envoy": {"two_filters": True},  # which changes nothing for one filter
            **sections,
        }
        config.write_text(yaml.safe_dump(written))
        return cls(config, ext_proc, http)


def cpu_seconds(pid: int) -> float:
    """Seconds of a core that the process has used so far."""
    # proc(5): utime and stime are the 14th and 15th; the name before them may hold spaces, not this bracket.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def family(pid: int) -> list[int]:
    """The process and those that it has started, with theirs."""
    started = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(one for child in started for one in family(int(child)))]


def resident(pid: int, field: str = "VmRSS") -> float:
    """MiB that the process has in memory now (VmRSS) or had at most so far (VmHWM)."""
    return int(Path(f"/proc/{pid}/status").read_text().partition(f"{field}:")[2].split()[0]) / 1024


class Running:
    """A sidecar that is ready."""

    def __init__(self, place: Place, process: asyncio.subprocess.Process, took: float) -> None:
        self.place, self._process = place, process
        self.pid = process.pid
        self.took = took  # seconds from start to ready

    def resident(self, field: str = "VmRSS") -> float:
        return resident(self.pid, field)

    def cpu_seconds(self) -> float:
        """Seconds of a core used so far, by the process that analyses long texts too."""
        return sum(map(cpu_seconds, family(self.pid)))

    async def quiet(self) -> None:
        """Waits until the sidecar rests for longer than a session takes to be silent, so that what it learns of
        one round does not fall into the next."""
        try:
            async with asyncio.timeout(QUIET_WITHIN):
                before, worked = self.cpu_seconds(), WATCHED
                while worked >= RESTS * WATCHED:
                    await asyncio.sleep(WATCHED)
                    now = self.cpu_seconds()
                    before, worked = now, now - before
        except TimeoutError:
            raise ChildFailedError(f"the sidecar did not rest within {QUIET_WITHIN:.0f} s") from None


@contextlib.asynccontextmanager
async def serving(place: Place, sampled: Path | None = None) -> AsyncIterator[Running]:
    """`memory-extproc serve`, from ready until it has ended; with a record of its CPU in *sampled*, if given."""
    program = ("memory_extproc",) if sampled is None else ("benchmarks.sampler", str(sampled))
    log = place.config.with_suffix(".log")
    started = time.monotonic()
    with log.open("ab") as out:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", *program, "serve", "--config", str(place.config)),
            stdout=out,
            stderr=out,
        )
    try:
        ready = await answering(f"http://127.0.0.1:{place.http}/readyz", process, log)
        yield Running(place, process, ready - started)
    finally:
        await end(process, ask=signal.SIGTERM)


async def prepare(place: Place, users: Sequence[str], count: int = words.MEMORIES) -> int:
    """Gives each of *users* the first *count* of `words.said`, with vectors of the real model, which texts beyond
    the first 5,000 share with those; how many rows that were."""
    settings = load(place.config, {})
    metrics = Metrics(CollectorRegistry(), "benchmark")
    now = datetime.now(UTC).replace(microsecond=0)
    data = Path(settings.data_dir)
    texts = words.said(count)
    rows = 0
    async with AsyncExitStack() as stack:
        model = MODELS / f"{settings.memory.embedding.model}-{settings.memory.embedding.precision}"
        embedder = await stack.enter_async_context(open_onnx_embedder(model, Embedding()))
        options = milvus_options(settings, data, embedder.fingerprint)
        options = replace(options, section=options.section.model_copy(update={"timeout": _TO_FILL}))
        store = MilvusStore(options, metrics, now=lambda: now)
        stack.push_async_callback(store.close)
        await store.open()
        vectors = await embedder.embed(texts[:_DISTINCT])
        for user in users:
            owner = Owner("", user)
            made = [
                Embedded(a_memory(owner, number, text, now, embedder.fingerprint), vectors[number % _DISTINCT])
                for number, text in enumerate(texts)
            ]
            for start in range(0, len(made), _BATCH):
                await store.put(owner, made[start : start + _BATCH])
            rows += await store.count(owner)
    return rows
