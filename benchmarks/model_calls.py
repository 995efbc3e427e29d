"""`python -m benchmarks.model_calls`: what each feature asks of a language model in 100 turns, in calls and tokens.

One caller talks in ten sessions of ten turns, each about two things. The model is a script that answers as it
should; tokens are estimates, each prompt's own words included.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from benchmarks.learning import ANSWERED, PLACES, SAID, Scripted, write_settings
from memory_extproc.app import open_embedder
from memory_extproc.app.context import make_context
from memory_extproc.learn.extract.llm_client import Budget, LlmPrompt, strict_schema
from memory_extproc.learn.extract.llm_extractor import LlmConsolidator, LlmExtractor, LlmReflector, Noting
from memory_extproc.learn.extract.rules import RulesExtractor
from memory_extproc.learn.messages import judge as remembered
from memory_extproc.learn.reconcile import LlmJudge, Reconciler
from memory_extproc.learn.wording import about, agree, saying
from memory_extproc.model import (
    ChatState,
    Embedded,
    Memory,
    MemoryType,
    Message,
    Owner,
    Provenance,
    Role,
    Source,
    Turn,
    digest,
)
from memory_extproc.observe.log import configure
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import EmbeddingModel
from memory_extproc.recall.query import Rewrite, Rewriter
from memory_extproc.recall.rerank import LlmReranker
from memory_extproc.request.compression import LlmCondenser, RulesCondenser
from memory_extproc.retention.passes import RetentionPass, Wording
from memory_extproc.retention.reflection import Reflections, Subjects
from memory_extproc.retention.rules import OwnerRows
from memory_extproc.settings import CurrentSettings, Settings
from memory_extproc.settings.memory import Reflect, Retention
from memory_extproc.store.loader import PartitionLimits
from memory_extproc.store.partition import Partitions
from memory_extproc.testing.adapters import InMemoryCoordination, InMemoryStore
from memory_extproc.text.words import estimate_tokens
from memory_extproc.topics.state import Sayings
from memory_extproc.topics.summarizer import (
    SESSION,
    SHIFT,
    TOPIC,
    NamedSummary,
    Prompts,
    Same,
    Summaries,
    Summed,
    prompt,
)
from memory_extproc.topics.tracker import TopicDecider, TopicTracker
from memory_extproc.topics.writer import Closing
from tests.support.builders import tokens

ANN = Owner("", "ann")
NOW = datetime(2026, 3, 2, tzinfo=UTC)
_SERVICES = ("billing", "search", "payments", "mail")
_OF_SERVICES = (
    "The {name} service listens on port {n}.",
    "The owner of the {name} service is Dana.",
    "How do I deploy the {name} service?",
    "The {name} service is written in Rust.",
    "Why did the {name} service fail yesterday?",
)


_SUMMARY = "The user planned a trip, asked about a service and was told what was known of both. "
ANSWERS = {
    name: json.dumps(answer)
    for name, answer in {
        "notes on what helps": {"notes": ["Prefers short answers with figures first."]},
        "shifts of topic, in doubt": {"same": True},
        "names and summaries of topics": {"name": "what was planned", "summary": _SUMMARY * 2},
        "summaries of sessions": {"summary": _SUMMARY * 2},
        "conclusions": {
            "insights": [{"says": "The user keeps the services running and travels a lot.", "notes": [1, 2]}]
        },
        "long chats": {"topic": "services", "decisions": ["Deploy on Monday."], "values": [], "questions": []},
        "order of what was found": {"order": list(range(1, 11))},
    }.items()
}


@dataclass
class Feature:
    calls: int = 0
    prompt: int = 0
    answer: int = 0


@dataclass
class Counted:
    """Calls of the model by feature."""

    features: defaultdict[str, Feature] = field(default_factory=lambda: defaultdict(Feature))
    script: Scripted = field(default_factory=Scripted)

    def of(self, feature: str) -> Model:
        return Model(self, feature)


@dataclass
class Model:
    """Implements ports.CompletionModel by a script."""

    counted: Counted
    feature: str

    async def complete(self, system: str, user: str, *, schema: Mapping[str, Any] | None = None) -> str:  # noqa: ARG002 - the port's word
        answer = await self._answer(user)
        feature = self.counted.features[self.feature]
        feature.calls += 1
        feature.prompt += estimate_tokens(system) + estimate_tokens(user)
        feature.answer += estimate_tokens(answer)
        return answer

    async def _answer(self, user: str) -> str:
        lines = [json.loads(line) for line in user.splitlines() if line.startswith("{")]
        if self.feature == "facts":
            return await self.counted.script.extract(lines)
        if self.feature == "facts that are near known ones":
            return self.counted.script.judge(lines)
        if self.feature == "one subject's facts together":
            return json.dumps({"says": " ".join(str(line["says"]) for line in lines)})
        return ANSWERS.get(self.feature, "the port of the billing service\nwhere the billing service listens")


def turns() -> list[Turn]:
    made: list[Turn] = []
    for session in range(10):
        for at in range(10):
            first = at < len(_OF_SERVICES)
            words = _OF_SERVICES[at] if first else SAID[at - len(_OF_SERVICES)]
            name, place = _SERVICES[session % 4], PLACES[session % len(PLACES)]
            asked = words.format(name=name, place=place, n=8000 + session, m=9000 + session)
            made.append(
                Turn(
                    id=digest("bench", str(session), str(at)),
                    owner=ANN,
                    project="",
                    session=f"session-{session}",
                    seq=2 * at,
                    asked=asked,
                    answered=ANSWERED,
                    at=NOW + timedelta(hours=session, minutes=at),
                    last=at == 9,
                )
            )
    return made


def _fact(name: str, at: int) -> Memory:
    what = ("port", "owner", "language", "region", "queue", "database", "cache", "budget", "team", "version")[at]
    return Memory(
        id=digest("bench", name, what),
        owner=ANN,
        type=MemoryType.SEMANTIC,
        content=f"The {what} of the {name} service is {what}-{at}",
        source=Source.LLM,
        created_at=NOW,
        updated_at=NOW,
        provenance=Provenance(subject=f"{name} service", attribute=what, value=f"{what}-{at}"),
    )


@dataclass
class Bench:
    counted: Counted
    embedder: EmbeddingModel
    now: datetime = NOW

    def __post_init__(self) -> None:
        self.metrics = Metrics(CollectorRegistry(), "bench")
        self.coordination = InMemoryCoordination(self.clock)
        self.store = InMemoryStore(self.embedder.dimension, now=self.clock)
        self.partitions = Partitions(self.store, self.coordination, PartitionLimits(), self.metrics, now=self.clock)
        self.budget = Budget(tokens(), now=self.clock)

    def clock(self) -> datetime:
        return self.now

    async def learn(self, said: list[Turn]) -> None:
        of = self.counted.of
        extractor = LlmExtractor(of("facts"), self.budget)
        noting = Noting(RulesExtractor(), of("notes on what helps"), self.budget)
        judge = LlmJudge(of("facts that are near known ones"), self.budget)
        reconciler = Reconciler(self.partitions, self.embedder, self.metrics, judges=judge)
        for start in range(0, len(said), 10):
            batch = said[start : start + 10]
            rows = [one.memory for turn in batch for one in remembered(turn, turn.at) if one.memory is not None]
            vectors = await self.embedder.embed([row.content for row in rows])
            await self.partitions.put(ANN, [Embedded(*pair) for pair in zip(rows, vectors, strict=True)])
            await noting.extract(batch)
            await reconciler.apply(ANN, await extractor.extract(batch), batch)

    async def follow(self, said: list[Turn]) -> None:
        asked = {
            name: LlmPrompt(self.counted.of(feature), name, strict_schema(form), self.budget, words=prompt(name))
            for name, feature, form in (
                (SHIFT, "shifts of topic, in doubt", Same),
                (TOPIC, "names and summaries of topics", NamedSummary),
                (SESSION, "summaries of sessions", Summed),
            )
        }
        prompts = Prompts(shift=asked[SHIFT], topic=asked[TOPIC], session=asked[SESSION])
        summaries = Summaries(self.metrics, prompts=prompts, trusted=lambda _: True)
        sayings = Sayings(self.partitions)
        closing = Closing(
            self.partitions, sayings, summaries, self.embedder, now=self.clock, least=3, content_bytes=8192
        )
        topics = TopicTracker(
            TopicDecider(sayings, summaries, self.embedder, CurrentSettings(Settings()), self.metrics),
            closing,
            self.coordination,
            CurrentSettings(Settings()),
            self.metrics,
            now=self.clock,
            holder="bench",
        )
        async with topics:
            for turn in said:
                self.now = turn.at
                await topics.note(ANN, [turn])
                await topics.quiet()

    async def age(self) -> None:
        """With what a model would have found of two services beside what the script did."""
        self.now += timedelta(days=2)
        for name in _SERVICES[:2]:
            facts = [_fact(name, at) for at in range(10)]
            vectors = await self.embedder.embed([fact.content for fact in facts])
            await self.partitions.put(ANN, [Embedded(*pair) for pair in zip(facts, vectors, strict=True)])
        of, partitions = self.counted.of, self.partitions
        keeper = RetentionPass(
            OwnerRows(self.store, partitions),
            self.embedder,
            Retention,
            Wording(says=saying, about=about, agree=agree),
            now=self.clock,
            subjects=Subjects(
                LlmConsolidator(of("one subject's facts together"), self.budget),
                partitions,
                self.embedder,
                lambda: 8,
                about,
                now=self.clock,
            ),
            reflections=Reflections(
                LlmReflector(of("conclusions"), self.budget),
                partitions,
                self.embedder,
                self.coordination,
                Reflect,
                about,
                now=self.clock,
            ),
        )
        await keeper.keep(ANN)

    async def ask(self, said: list[Turn]) -> None:
        of, soon = self.counted.of, timedelta(seconds=1)
        rewriter = Rewriter(of("queries in other words"), Rewrite.ALWAYS, hyde=False)
        supposes = Rewriter(of("supposed answers"), Rewrite.OFF, hyde=True)
        reranker = LlmReranker(of("order of what was found"))
        found = [turn.asked for turn in said[:20]]
        for at, turn in enumerate(said):
            earlier = [one.asked for one in said[max(0, at - 3) : at]]
            await rewriter.query(turn.asked, earlier, soon)
            await supposes.query(turn.asked, earlier, soon)
            await reranker.rerank(turn.asked, found)

    async def condense(self, said: list[Turn]) -> None:
        messages = [
            message
            for turn in said
            for message in (Message(Role.USER, turn.asked), Message(Role.ASSISTANT, turn.answered))
        ]
        rules = RulesCondenser(RulesExtractor(), now=self.clock)
        condenser = LlmCondenser(self.counted.of("long chats"), self.budget, rules)
        await condenser.condense(ANN, ChatState(), messages)


async def run() -> Counted:
    async with AsyncExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        embedder = await open_embedder(make_context(write_settings(scratch), stack))
        return await measure_calls(Bench(Counted(), embedder), turns())


async def measure_calls(bench: Bench, said: list[Turn]) -> Counted:
    await bench.learn([replace(turn, last=False) for turn in said])
    await bench.follow(said)
    await bench.age()
    await bench.ask(said)
    await bench.condense(said)
    return bench.counted


def main() -> None:
    configure("error", "console")
    counted = asyncio.run(run())
    print("| what | calls | prompt tokens | answer tokens |\n|---|---|---|---|")
    for name, one in counted.features.items():
        print(f"| {name} | {one.calls} | {one.prompt:,} | {one.answer:,} |")


if __name__ == "__main__":
    main()
