"""The process is killed at every step of what becomes of memories after they were stored: topics summed up, doubles
and histories merged, a surplus let go, conclusions drawn. The next one goes on: nothing is lost or there twice."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from memory_extproc.concurrency import Backoff
from memory_extproc.coordination.sqlite import SqliteCoordination
from memory_extproc.learn.extract.llm_client import Budget
from memory_extproc.learn.extract.llm_extractor import LlmReflector
from memory_extproc.learn.messages import message_id
from memory_extproc.learn.wording import about, agree, saying
from memory_extproc.model import Caller, Embedded, Memory, MemoryState, Owner, Provenance
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Coordination
from memory_extproc.recall.prompt_block import Profiles
from memory_extproc.retention.passes import RetentionPass, Wording
from memory_extproc.retention.reflection import Reflections
from memory_extproc.retention.rules import OwnerRows
from memory_extproc.retention.scheduler import RetentionJob
from memory_extproc.settings import CurrentSettings, Settings
from memory_extproc.settings.memory import Reflect, Retention
from memory_extproc.settings.traffic import Inject
from memory_extproc.store.loader import PartitionLimits
from memory_extproc.store.partition import Partitions
from memory_extproc.testing.adapters import InMemoryCoordination, InMemoryStore
from memory_extproc.testing.models import CannedCompletions, CannedEmbedder
from memory_extproc.topics.state import Sayings
from memory_extproc.topics.summarizer import Summaries
from memory_extproc.topics.tracker import TopicDecider, TopicTracker
from memory_extproc.topics.writer import Closing, Rebuilding
from tests.support.builders import ANN, MONDAY, a_memory, memories_of, tokens
from tests.support.redis import RedisServer, redis_coordination, redis_server
from tests.support.waiting import until
from tests.unit.retention.keeping import three_budgets
from tests.unit.topics.following import FLIGHTS, turns_of

__all__ = ["redis_server"]
# Every third step and the last in a usual run, each one by `make kills`.
STRIDE = int(os.environ.get("MEMORY_EXTPROC_TEST_AGING_STRIDE", "3"))
NOTES = [
    "Deploys payment-service on Mondays",
    "Port 8080 was taken for payment-service",
    "payment-service runs in Oslo",
]
SAID = turns_of(*((asked * 4, answered * 4) for asked, answered in FLIGHTS), last=True)
INSIGHT = json.dumps({"insights": [{"says": "Often deploys payment-service.", "notes": [1, 2]}]})
CORRECTED = "The trip to Hawaii has no budget yet."


class Steps:
    """Kills this process before the *fatal*-th step."""

    def __init__(self, fatal: int) -> None:
        self.passed, self._fatal = 0, fatal

    def next(self) -> None:
        self.passed += 1
        if self.passed == self._fatal:
            os.kill(os.getpid(), signal.SIGKILL)


class FileStore(InMemoryStore):
    """Rows that outlive the process, in a SQLite file."""

    def __init__(self, path: Path, steps: Steps, now: datetime) -> None:
        super().__init__(64, now=lambda: now)
        self._steps = steps
        self._file = sqlite3.connect(path, isolation_level=None)
        self._file.execute("PRAGMA synchronous = OFF")
        self._file.execute("CREATE TABLE IF NOT EXISTS rows (id TEXT PRIMARY KEY, row BLOB)")
        for (raw,) in self._file.execute("SELECT row FROM rows"):
            fields, metadata, vector = pickle.loads(raw)  # noqa: S301 - written below
            memory = Memory(**fields, provenance=Provenance.decode(metadata))
            self._rows.setdefault(memory.owner, {})[memory.id] = Embedded(memory, vector)

    async def put(self, owner: Owner, rows: Sequence[Embedded]) -> None:
        self._steps.next()
        await super().put(owner, rows)
        for row in rows:
            fields = {
                name: getattr(row.memory, name) for name in Memory.__dataclass_fields__ if name != "provenance"
            }
            raw = pickle.dumps((fields, row.memory.provenance.encode(), row.vector))
            self._file.execute("INSERT OR REPLACE INTO rows VALUES (?, ?)", (row.memory.id, raw))
        self._steps.next()

    async def delete(self, owner: Owner, ids: Sequence[str]) -> None:
        self._steps.next()
        await super().delete(owner, ids)
        self._file.executemany("DELETE FROM rows WHERE id = ?", [(one,) for one in ids])
        self._steps.next()


class SteppedCoordination(SqliteCoordination):
    steps: Steps

    async def put_record(self, kind: str, owner: Owner, key: str, value: bytes, ttl: timedelta) -> None:
        self.steps.next()
        await super().put_record(kind, owner, key, value, ttl)

    async def replace_record(
        self, kind: str, owner: Owner, key: str, old: bytes | None, new: bytes, ttl: timedelta
    ) -> bool:
        self.steps.next()
        return await super().replace_record(kind, owner, key, old, new, ttl)


class Life:
    """One process's view of Ann's memories; *round* counts processes, each an hour after the one before."""

    def __init__(
        self, store: InMemoryStore, coordination: Coordination, now: datetime, holder: str = "one"
    ) -> None:
        self.store, self.coordination, self.now = store, coordination, now
        self.embedder, self.metrics = CannedEmbedder(64), Metrics(CollectorRegistry(), "test")
        self.partitions = Partitions(store, coordination, PartitionLimits(), self.metrics, now=self.clock)
        self.holder = holder
        self.completes = CannedCompletions(lambda *_: INSIGHT)
        self.summaries = Summaries(self.metrics, prompts=None, trusted=lambda _: True)

    def clock(self) -> datetime:
        self.now += timedelta(microseconds=10)
        return self.now

    def topics(self) -> TopicTracker:
        sayings = Sayings(self.partitions)
        closing = Closing(
            self.partitions, sayings, self.summaries, self.embedder, now=self.clock, least=3, content_bytes=8192
        )
        topics = TopicTracker(
            TopicDecider(sayings, self.summaries, self.embedder, CurrentSettings(Settings()), self.metrics),
            closing,
            self.coordination,
            CurrentSettings(Settings()),
            self.metrics,
            now=self.clock,
            holder=self.holder,
        )
        topics.BACKOFF, topics.LOOK = Backoff(timedelta(milliseconds=1)), timedelta(hours=1)
        return topics

    def keeper(self) -> RetentionPass:
        reflections = Reflections(
            LlmReflector(self.completes, Budget(tokens(), now=self.clock)),
            self.partitions,
            self.embedder,
            self.coordination,
            lambda: Reflect(above=3),
            about,
            now=self.clock,
            near=0.3,
        )
        return RetentionPass(
            OwnerRows(self.store, self.partitions),
            self.embedder,
            lambda: Retention(max_memories=14, protect=timedelta(), prune_share=0),
            Wording(says=saying, about=about, agree=agree),
            now=self.clock,
            reflections=reflections,
            rebuilds=Rebuilding(self.summaries, self.embedder, now=self.clock, least=3, content_bytes=8192),
        )

    def job(self, lease: timedelta = RetentionJob.LEASE) -> RetentionJob:
        job = RetentionJob(
            self.store,
            self.keeper(),
            self.coordination,
            lambda: timedelta(hours=24),
            self.metrics,
            holder=self.holder,
            now=self.clock,
            rng=lambda: 0.5,
        )
        job.PAUSE, job.LEASE = timedelta(), lease
        return job

    async def put(self, *memories: Memory) -> None:
        vectors = await self.embedder.embed([memory.content for memory in memories])
        await self.partitions.put(ANN, [Embedded(*pair) for pair in zip(memories, vectors, strict=True)])

    async def begin(self) -> None:
        for turn in SAID:
            await self.put(*memories_of(turn, MONDAY))
        await self.put(*three_budgets(), *map(a_memory, NOTES), a_memory("Likes tea"), a_memory("likes tea."))
        await self.put(a_memory("worth little", importance=0.0), a_memory("worth nothing", importance=0.0))

    async def live(self) -> None:
        """All of it, as a process does it that finds what another left."""
        async with self.partitions, self.topics() as topics:
            await topics.note(ANN, SAID)
            await topics.quiet()
            await self._correct()
            await self.keeper().keep(ANN)
            await self.job(lease=timedelta(minutes=5)).one(ANN)

    async def _correct(self) -> None:
        """What the caller corrected in between; their write, and whoever makes it does it again till it stands."""
        one = message_id(SAID[2], 0)
        there = next(iter(await self.partitions.get(ANN, [one])))
        if there.content != CORRECTED:
            said = there.provenance.replace(said=self.clock().timestamp())
            changed = replace(there, content=CORRECTED, provenance=said, valid_from=self.now)
            await self.partitions.change(ANN, one, lambda row: [Embedded(changed, row.vector)])

    async def found(self) -> Mapping[str, Any]:
        """Everything that is kept, but for when; and who the caller is."""
        rows = {row.memory.id: row.memory async for page in self.store.pages(ANN, 100, fresh=True) for row in page}
        active = sorted(row.content for row in rows.values() if row.state is MemoryState.ACTIVE)
        settings = Settings(inject=Inject(profile_importance=0.4))
        profile = await Profiles(self.partitions, lambda: settings, now=self.clock).profile(Caller(ANN))
        states = {one: (row.state.value, row.superseded_by) for one, row in rows.items()}
        return {"active": active, "states": states, "profile": profile.text}


async def lived(place: Path, number: int, steps: Steps) -> None:
    now = MONDAY + timedelta(days=40, hours=number)
    store = FileStore(place / "rows.sqlite", steps, now)
    async with SteppedCoordination(place / "coordination.sqlite", now=lambda: now) as coordination:
        coordination.steps = Steps(0)
        life = Life(store, coordination, now)
        if number == 0:
            fatal, store._steps = store._steps, Steps(0)
            await life.begin()
            store._steps = fatal
        coordination.steps = steps
        await life.live()
        if number:
            (place / "found").write_text(json.dumps(await life.found(), sort_keys=True))
    (place / "steps").write_text(str(steps.passed))


def in_a_process(place: Path, number: int, fatal: int) -> int:
    """How a process of its own ended; 0: as it should."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            asyncio.run(lived(place, number, Steps(fatal)))
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def lives(place: Path, fatal: int) -> Mapping[str, Any]:
    """A process that is killed before its *fatal*-th step, and one after it."""
    place.mkdir()
    ended = in_a_process(place, 0, fatal)
    assert ended == (-signal.SIGKILL if fatal else 0)
    assert in_a_process(place, 1, 0) == 0
    found: Mapping[str, Any] = json.loads((place / "found").read_text())
    return found


def test_whenever_the_process_is_killed_the_next_one_comes_to_the_same_memories(tmp_path: Path) -> None:
    unharmed = lives(tmp_path / "unharmed", 0)
    assert "Hawaii trip budget: $12,000 (first $10,000, then $11,000)." in unharmed["active"]
    assert "Often deploys payment-service." in unharmed["active"]
    assert "worth nothing" not in unharmed["active"]
    assert any("Hawaii" in words and CORRECTED in words for words in unharmed["active"])
    (tmp_path / "counting").mkdir()
    assert in_a_process(tmp_path / "counting", 0, 0) == 0
    steps = int((tmp_path / "counting" / "steps").read_text())
    assert steps > 20
    for fatal in {*range(1, steps + 1, STRIDE), steps}:
        assert lives(tmp_path / str(fatal), fatal) == unharmed, f"killed before step {fatal} of {steps}"


@pytest.mark.redis
async def test_of_two_replicas_on_redis_one_runs_for_a_caller_and_stops_when_its_lease_is_lost(
    redis_server: RedisServer,
) -> None:
    now = MONDAY + timedelta(days=40)
    store = InMemoryStore(64, now=lambda: now)
    async with (
        redis_coordination(redis_server.url, prefix="aging") as first,
        redis_coordination(redis_server.url, prefix="aging") as second,
    ):
        one, two = Life(store, first, now, "one"), Life(store, second, now, "two")
        await one.begin()
        gate = store.weather.hold("pages")
        lease = timedelta(milliseconds=600)
        running = asyncio.create_task(one.job(lease).one(ANN))
        await until(lambda: "pages" in store.weather.calls, "the first one reads", seconds=10)
        assert (await two.job(lease).one(ANN)).passed_over == 1
        # The first one stands still for so long that its lease is over, and the other takes it.
        await first.release(f"retention:{ANN.key}", "one")
        assert await second.acquire(f"retention:{ANN.key}", "two", timedelta(seconds=30))
        report = await running
        assert (report.owners, report.passed_over) == (0, 1)
        gate.set()
        assert "put" not in store.weather.calls[store.weather.calls.index("pages") :]
        await second.release(f"retention:{ANN.key}", "two")
        assert (await two.job(lease).one(ANN)).owners == 1
        found = await two.found()
    alone = Life(InMemoryStore(64, now=lambda: now), InMemoryCoordination(lambda: now), now)
    await alone.begin()
    await alone.job().one(ANN)
    assert found == await alone.found()
