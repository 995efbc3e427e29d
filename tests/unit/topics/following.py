"""Topics with everything around them in memory, for tests."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from prometheus_client import CollectorRegistry

from memory_extproc.concurrency import Backoff
from memory_extproc.model import Embedded, Memory, Owner, Source, Turn, digest
from memory_extproc.observe.metrics import Metrics
from memory_extproc.settings import CurrentSettings, Settings
from memory_extproc.settings.memory import Topics
from memory_extproc.store.loader import PartitionLimits
from memory_extproc.store.partition import Partitions
from memory_extproc.testing.adapters import InMemoryCoordination, InMemoryStore, Weather
from memory_extproc.testing.models import CannedEmbedder
from memory_extproc.topics.state import Sayings
from memory_extproc.topics.summarizer import Prompts, Summaries
from memory_extproc.topics.tracker import TopicDecider, TopicTracker
from memory_extproc.topics.writer import Closing
from tests.support.builders import ANN, MONDAY, Clock, a_turn, memories_of

# Turns of two subjects that share no word.
FLIGHTS = (
    ("I plan a family trip to Hawaii in May.", "A family trip to Hawaii in May is lovely."),
    ("Which flights suit a family trip to Hawaii in May?", "Direct flights suit a family trip to Hawaii."),
    ("The family budget for the trip to Hawaii is $10,000.", "That suits a family trip to Hawaii in May."),
)
BREAD = (
    ("My sourdough bread dough comes out flat.", "Flat sourdough bread dough is overproofed."),
    ("The sourdough bread dough stays flat again.", "Let the sourdough bread dough rise longer."),
    ("How hot for flat sourdough bread dough?", "Bake sourdough bread dough at 230 degrees."),
)


class Surroundings:
    """Two processes that share store and coordination are two of these, the second made with *beside* the first."""

    def __init__(self, *, section: Topics | None = None, beside: Surroundings | None = None) -> None:
        self.now: datetime = MONDAY
        self.passing: Clock | None = None  # time as it passes, where the clock is set otherwise
        self.section = section or Topics(idle=timedelta(minutes=10))
        self.metrics = Metrics(CollectorRegistry(), "test")
        self.weather = Weather()
        self.coordination = InMemoryCoordination(lambda: self.now)
        self.store = InMemoryStore(64, now=lambda: self.now, weather=self.weather)
        if beside is not None:
            self.coordination, self.store = beside.coordination, beside.store
        self.embedder = CannedEmbedder(64)
        self.partitions = Partitions(
            self.store, self.coordination, PartitionLimits(), self.metrics, now=lambda: self.now
        )
        self.prompts: Prompts | None = None
        self.shifted: list[tuple[Owner, str]] = []

    def build(self, holder: str = "one") -> TopicTracker:
        summaries = Summaries(self.metrics, prompts=self.prompts, trusted=lambda text: "ignore all" not in text)
        sayings = Sayings(self.partitions)
        closing = Closing(
            self.partitions, sayings, summaries, self.embedder, now=lambda: self.now, least=3, content_bytes=8192
        )
        current = CurrentSettings(Settings(topics=self.section))
        topics = TopicTracker(
            TopicDecider(sayings, summaries, self.embedder, current, self.metrics),
            closing,
            self.coordination,
            current,
            self.metrics,
            now=lambda: self.now,
            monotonic_now=self.passing,
            holder=holder,
        )
        topics.BACKOFF, topics.LOOK = Backoff(timedelta(milliseconds=1)), timedelta(hours=1)
        topics.shifted = lambda owner, session: self.shifted.append((owner, session))
        return topics

    async def remember(self, turns: list[Turn]) -> None:
        """As the learner does before it hands turns on."""
        for turn in turns:
            memories = [replace(one, embed_model=self.embedder.fingerprint) for one in memories_of(turn, self.now)]
            vectors = await self.embedder.embed([memory.content for memory in memories])
            rows = [Embedded(*pair) for pair in zip(memories, vectors, strict=True)]
            if rows:
                await self.partitions.put(turn.owner, rows)

    async def say(self, topics: TopicTracker, turns: list[Turn], owner: Owner = ANN) -> None:
        """*turns* one after the other, and what comes of them."""
        for turn in turns:
            await self.remember([turn])
            await topics.note(owner, [turn])
            await topics.quiet()

    async def rows(self, owner: Owner = ANN) -> list[Memory]:
        """Summaries in the store, by what they are of and where they begin."""
        found = [row.memory async for page in self.store.pages(owner, 100, fresh=True) for row in page]
        summaries = [memory for memory in found if memory.source is Source.SUMMARY]
        return sorted(summaries, key=lambda memory: (str(memory.provenance.kind), memory.seq, memory.updated_at))

    async def messages(self, owner: Owner = ANN) -> list[Memory]:
        found = [row.memory async for page in self.store.pages(owner, 100, fresh=True) for row in page]
        return [memory for memory in found if memory.source is not Source.SUMMARY]

    async def topics(self, owner: Owner = ANN) -> list[Memory]:
        return [memory for memory in await self.rows(owner) if memory.provenance.kind == "topic"]

    def sample(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"memory_extproc_{name}", labels) or 0.0


def turns_of(
    *pairs: tuple[str, str], owner: Owner = ANN, session: str = "s", first: int = 0, last: bool = False
) -> list[Turn]:
    """Turns of one session, a minute apart from Monday on, from the *first*-th on."""
    made = []
    for number, (asked, answered) in enumerate(pairs, start=first):
        made.append(
            a_turn(
                asked,
                answered,
                owner,
                id=digest("turn", owner.key, session, str(number)),
                session=session,
                seq=2 * number,
                at=MONDAY + timedelta(minutes=number),
                last=last and number == first + len(pairs) - 1,
            )
        )
    return made
