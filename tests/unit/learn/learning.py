"""A learner with everything around it in memory, for tests."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from prometheus_client import CollectorRegistry

from memory_extproc.concurrency import Backoff, Pace
from memory_extproc.learn.extract.extractor import Fact, FactExtractor
from memory_extproc.learn.ingest import Intake
from memory_extproc.learn.intake_log import IntakeLog
from memory_extproc.learn.learner import CommandApplier, FactReconciler, TopicFollower
from memory_extproc.learn.messages import judge
from memory_extproc.learn.queue import QueuePolicy
from memory_extproc.learn.screening import Judging, TurnScreener
from memory_extproc.learn.sessions import Sessions
from memory_extproc.model import Caller, Exchanged, Memory, MemoryType, Owner, Scope, Source, Turn
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Journal, MemoryWriter, TombstoneReader
from memory_extproc.store.loader import PartitionLimits
from memory_extproc.store.partition import Partitions
from memory_extproc.testing.adapters import InMemoryCoordination, InMemoryJournal, InMemoryStore, Weather
from memory_extproc.testing.models import CannedEmbedder
from tests.support.builders import ANN, MONDAY
from tests.support.learner import LearnSettings, make_intake

QUICK = Backoff(first=timedelta(milliseconds=1), longest=timedelta(milliseconds=5))
LIMITS = LearnSettings(
    journal_wait=timedelta(seconds=30),
    settle=timedelta(milliseconds=20),
    idle=timedelta(hours=1),
    gather=timedelta(milliseconds=1),
    look=timedelta(milliseconds=5),
    sweep=timedelta(milliseconds=5),
    grace=timedelta(seconds=30),
)


class ListingExtractor:
    """One fact for each turn; *failing* is raised while set, for turns whose words contain *at* alone if given."""

    name = "listing"

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.earlier: list[list[str]] = []
        self.failing: Exception | None = None
        self.at = ""

    async def extract(self, turns: Sequence[Turn], *, earlier: Sequence[Turn] = ()) -> list[Fact]:
        if self.failing and any(self.at in turn.asked for turn in turns):
            raise self.failing
        self.batches.append([turn.asked for turn in turns])
        self.earlier.append([turn.asked for turn in earlier])
        return [a_fact(turn) for turn in turns]


def a_fact(turn: Turn) -> Fact:
    return Fact(
        content=f"User said {turn.asked}",
        type=MemoryType.SEMANTIC,
        subject="user",
        attribute="said",
        value=turn.asked,
        turn_id=turn.id,
        source=Source.RULES,
        version="1",
    )


class ListingReconciler:
    """Remembers what it was given; *failing* is raised while set."""

    def __init__(self) -> None:
        self.facts: list[tuple[Owner, str]] = []
        self.failing: Exception | None = None

    async def apply(self, owner: Owner, facts: Sequence[Fact], turns: Sequence[Turn]) -> None:
        if self.failing:
            raise self.failing
        self.facts += [(owner, fact.value) for fact in facts]


@dataclass
class Surroundings:
    now: datetime = MONDAY
    limits: LearnSettings = LIMITS
    weather: Weather = field(default_factory=Weather)
    shared_store: InMemoryStore | None = None  # of another process
    embedder: CannedEmbedder = field(default_factory=lambda: CannedEmbedder(32))
    embeds: CannedEmbedder | None = None  # what the learner embeds with, when it is not the same
    extractor: FactExtractor | None = field(default_factory=ListingExtractor)
    fallback: FactExtractor | None = None
    reconciles: FactReconciler | None = None  # instead of listing
    reconciler: ListingReconciler = field(default_factory=ListingReconciler)
    screens: TurnScreener | None = None  # keeps everything of everybody
    judged: Judging = judge
    forgotten: TombstoneReader | None = None
    commands: CommandApplier | None = None
    topics: TopicFollower | None = None
    store_works: Callable[[], bool] = lambda: True
    intake_log: IntakeLog | None = None  # entered
    pace: Pace = field(default_factory=Pace)

    def __post_init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry, "test")
        self.coordination = InMemoryCoordination(lambda: self.now)
        self.store = self.shared_store or InMemoryStore(32, now=lambda: self.now, weather=self.weather)
        self.journal: Journal = InMemoryJournal(now=lambda: self.now)
        self.partitions = Partitions(
            self.store, self.coordination, PartitionLimits(), self.metrics, now=lambda: self.now
        )
        self.keeps: MemoryWriter = self.partitions
        names = (f"s{n}" for n in itertools.count(1))
        self.sessions = Sessions(self.coordination, new_session=lambda: next(names))

    def build(self) -> Intake:
        if isinstance(self.journal, InMemoryJournal):
            self.journal.reopen()
        return make_intake(
            self.journal,
            self.sessions,
            self.keeps,
            self.embeds or self.embedder,
            self.coordination,
            self.limits,
            self.metrics,
            extractor=self.extractor,
            fallback=self.fallback,
            reconciler=self.reconciles or self.reconciler,
            now=lambda: self.now,
            policy=QueuePolicy(QUICK, pace=self.pace),
            screens=self.screens,
            judged=self.judged,
            forgotten=self.forgotten,
            commands=self.commands,
            topics=self.topics,
            store_works=self.store_works,
            intake_log=self.intake_log,
        )

    @asynccontextmanager
    async def learner(self) -> AsyncIterator[Intake]:
        async with self.partitions, self.build() as learner:
            yield learner

    def exchange(self, asked: str, answered: str = "", owner: Owner = ANN, session: str = "s") -> Exchanged:
        """In a named session, without history: every asked text is a turn of its own."""
        caller = Caller(owner, session=session)
        return Exchanged(caller=caller, history=(), asked=asked, answered=answered, at=self.now)

    async def rows(self, owner: Owner = ANN) -> list[Memory]:
        """What the store holds of *owner*, in the order it was said."""
        found = [row.memory async for page in self.store.pages(owner, 100, fresh=True) for row in page]
        return sorted(found, key=lambda memory: (memory.session, memory.seq))

    async def stored(self, owner: Owner = ANN) -> list[str]:
        return [memory.content for memory in await self.rows(owner)]

    async def findable(self, text: str, owner: Owner = ANN) -> bool:
        vector = await self.embedder.embed_query(text)
        searched = await self.partitions.nearest(owner, vector, 10, Scope())
        return any(found.memory.content == text for found in searched.found)

    def sample(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"memory_extproc_{name}", labels) or 0.0


async def until(condition: Callable[[], object], what: str, limit: float = 30.0) -> None:
    """Gives way to other tasks until *condition* holds; it may be a coroutine function. *limit*, in seconds: only
    what hangs comes to it, on a busy machine too."""
    deadline = time.monotonic() + limit
    while True:
        held = condition()
        if asyncio.iscoroutine(held):
            held = await held
        if held:
            return
        assert time.monotonic() < deadline, f"waited {limit} s in vain until {what}"
        await asyncio.sleep(0)
