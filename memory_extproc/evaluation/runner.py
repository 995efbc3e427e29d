"""Run a data set through a system: learn every conversation, ask every question."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import groupby
from typing import Protocol

import numpy as np

from memory_extproc.errors import PermanentError, TransientError
from memory_extproc.evaluation.datasets import (
    Dataset,
    EvaluationCase,
    Names,
    NotedMemory,
    Question,
    SaidMessage,
    foreign,
    reword,
)
from memory_extproc.index.features import CLOSELY
from memory_extproc.index.owner_index import OwnerIndex
from memory_extproc.learn.extract.extractor import FactExtractor, FactFinder
from memory_extproc.learn.ingest import Intake
from memory_extproc.learn.learner import ForgetGuard, Learner, LearnStages
from memory_extproc.learn.messages import JudgedMessage, MessagePreparer
from memory_extproc.learn.queue import QueuePolicy
from memory_extproc.learn.reconcile import Reconciler
from memory_extproc.learn.sessions import Sessions
from memory_extproc.model import (
    Caller,
    Considered,
    Embedded,
    Exchanged,
    Explanation,
    Matrix,
    Memory,
    MemoryType,
    Message,
    Outcome,
    Owner,
    RecallRequest,
    Role,
    Scope,
    Source,
    Turn,
    TurnOutcome,
    Vector,
    Verdict,
    digest,
)
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Coordination, EmbeddingModel, MemoryWriter, Now
from memory_extproc.recall.fusion import Weights
from memory_extproc.recall.recaller import Recaller
from memory_extproc.settings import CurrentSettings, Settings
from memory_extproc.settings.paths import JournalSection, Learn
from memory_extproc.settings.traffic import EnvoySection, Shutdown
from memory_extproc.store.loader import PartitionLimits
from memory_extproc.store.partition import Partitions
from memory_extproc.testing.adapters import InMemoryCoordination, InMemoryJournal, InMemoryStore
from memory_extproc.text.words import sentences
from memory_extproc.topics.tracker import TopicTracker


class MakesRecaller(Protocol):
    def __call__(
        self, finds: Partitions, embedder: EmbeddingModel, now: Now, *, weights: Weights | None = None
    ) -> Recaller:
        """*weights*: instead of the configured ones."""
        ...


Says = Callable[[str, int, int], None]  # step, done, of how many
FOREIGN_NAMES = (Names.FIRST_PERSON, Names.NEUTRAL, Names.SWAPPED)
NOT_HELD = PartitionLimits(bytes=1)  # every owner is too large for it


@dataclass(frozen=True, slots=True)
class EvaluatedQuestion:
    """A question to the memories of *played*. *names*: treatment of the names in a foreign question; None for a
    question to its own memories."""

    question: Question
    played: Played
    answer: EvaluatedAnswer
    names: Names | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """All answers of a system, and its limits."""

    dataset: str
    system: System
    bounds: Bounds
    embed_model: str
    asked: tuple[EvaluatedQuestion, ...]
    played: tuple[Played, ...]


@dataclass(frozen=True, slots=True)
class Bench:
    """The parts that a run needs, made from the settings by the tools' composition. *deadline*: the
    time a question has, as a request does; None: unlimited."""

    embedder: EmbeddingModel
    extractor: FactExtractor | None
    judged: Judges
    metrics: Metrics
    recaller: MakesRecaller
    partition: PartitionLimits
    topics: MakesTopics | None = None  # None: sessions are not summed up
    deadline: timedelta | None = None

    def play(
        self, conversation: EvaluationCase, partition: PartitionLimits, topics: MakesTopics | None = None
    ) -> AbstractAsyncContextManager[Played]:
        """As the function `played`, with this bench's learner."""
        return play(
            conversation, self.embedder, self.metrics,
            extractor=self.extractor, judged=self.judged, partition=partition, topics=topics,
        )  # fmt: skip


async def run(
    dataset: Dataset,
    system: System,
    bench: Bench,
    bounds: Bounds,
    *,
    limit_questions: int | None = None,
    says: Says = lambda _step, _done, _whole: None,
) -> Run:
    """*limit_questions*: at most this number, spread evenly over the data set; then as many foreign questions."""
    if not 0.0 <= bounds.threshold <= 1.0:
        raise PermanentError(f"the threshold must be within 0 and 1, not {bounds.threshold}")
    async with AsyncExitStack() as stack:
        partition = NOT_HELD if system is System.STORE else bench.partition
        stage: dict[str, tuple[Played, MemorySystem]] = {}
        for at, conversation in enumerate(dataset.conversations):
            says("learning", at, len(dataset.conversations))
            one = await stack.enter_async_context(bench.play(conversation, partition, bench.topics))
            await wait_filled(one, bench.embedder)
            stage[conversation.name] = (one, make_system(system, bench, one, bounds))
        asked = await ask_everything(dataset.conversations, stage, limit_questions, FOREIGN_NAMES, says)
        return Run(
            dataset.name,
            system,
            bounds,
            bench.embedder.fingerprint,
            tuple(asked),
            tuple(one for one, _ in stage.values()),
        )


async def ask_everything(
    conversations: Sequence[EvaluationCase],
    stage: Mapping[str, tuple[Played, MemorySystem]],
    limit_questions: int | None,
    foreign_names: Sequence[Names],
    says: Says = lambda _step, _done, _whole: None,
) -> list[EvaluatedQuestion]:
    """Each question put to its own memories, then to another person's with the names treated in each way."""
    asked = await _ask_all(_home(conversations), stage, limit_questions, "asking", says)
    for names in foreign_names:
        step = f"asking others ({names})"
        asked += await _ask_all(_foreign(conversations, names), stage, limit_questions, step, says)
    return asked


@dataclass(frozen=True, slots=True)
class _ToAsk:
    question: Question
    of: str  # the conversation whose memories are asked
    names: Names | None


def _home(conversations: Sequence[EvaluationCase]) -> list[_ToAsk]:
    return [_ToAsk(question, one.name, None) for one in conversations for question in one.questions]


def _foreign(conversations: Sequence[EvaluationCase], names: Names) -> list[_ToAsk]:
    found = []
    for home, away, question in foreign(conversations):
        text = reword(question.text, home.speakers, names, away.speakers)
        found.append(_ToAsk(replace(question, text=text, relevant=frozenset()), away.name, names))
    return found


async def _ask_all(
    wanted: list[_ToAsk], stage: Mapping[str, tuple[Played, MemorySystem]], most: int | None, step: str, says: Says
) -> list[EvaluatedQuestion]:
    if most is not None and most < len(wanted):
        wanted = [wanted[at * len(wanted) // most] for at in range(most)]
    asked, seen = [], set[str]()
    for done, one in enumerate(wanted):
        says(step, done, len(wanted))
        there, asks = stage[one.of]
        # Words asked before have their vector in the cache: their time would say nothing.
        answer = await asks.ask(one.question, timed=one.names is None and one.question.text not in seen)
        seen.add(one.question.text)
        asked.append(EvaluatedQuestion(one.question, there, answer, one.names))
    says(step, len(wanted), len(wanted))
    return asked


def make_system(system: System, bench: Bench, there: Played, bounds: Bounds) -> MemorySystem:
    if system is System.DENSE:
        return DenseSystem(there.partitions, bench.embedder, there.owner, bounds)
    if system is System.BM25:
        return Bm25System(there, bounds)
    embedder: EmbeddingModel = Unreachable(bench.embedder) if system is System.LEXICAL else bench.embedder
    recaller = bench.recaller(there.partitions, embedder, there.clock)
    return RecallSystem(recaller, there.owner, bounds, bench.metrics, bench.deadline)


async def wait_filled(there: Played, embedder: EmbeddingModel) -> None:
    """Wait until the partition is filled, as for an owner with recent traffic."""
    request = RecallRequest(caller=Caller(there.owner), asked="")
    vector = await embedder.embed_query("what is known")
    await there.partitions.nearest(there.owner, vector, 1, request.scope)
    while there.partitions.filling:  # noqa: ASYNC110 - a fill notifies only callers that ask for its owner
        await asyncio.sleep(0)


# Ask a question of a compared system, and record its answer.

DEEPEST = 20  # the largest k that is measured


class System(StrEnum):
    """The systems that are measured."""

    HYBRID = "hybrid"  # recall as configured
    DENSE = "dense"  # the plain way: the cosine of the embedding, the threshold held against it
    LEXICAL = "lexical"  # recall as configured while the embedding model is down
    BM25 = "bm25"  # the plain way by words: messages by BM25 over their stems, nothing else
    STORE = "store"  # recall as configured for an owner too large to be held in process


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much would be injected: *limit* memories of at least *threshold* relevance, 0 to 1."""

    threshold: float = 0.6
    limit: int = 5


@dataclass(frozen=True, slots=True)
class EvaluatedAnswer:
    """*ranked*: all candidates, best first, without duplicates; *injected*: the candidates within the bounds, as
    the block would hold them; *seconds* by stage, where measured."""

    ranked: tuple[Considered, ...]
    injected: tuple[Memory, ...]
    outcome: Outcome
    path: str
    worth: float | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)


class MemorySystem(Protocol):
    async def ask(self, question: Question, *, timed: bool) -> EvaluatedAnswer:
        """*timed*: with the time of each stage."""


class RecallSystem:
    """The recaller, asked without a threshold for the order, and with the threshold for the block. An
    answer later than *deadline* is lost, as in a request."""

    def __init__(
        self, recaller: Recaller, owner: Owner, bounds: Bounds, metrics: Metrics, deadline: timedelta | None
    ) -> None:
        self._recaller, self._owner, self._bounds, self._metrics = recaller, owner, bounds, metrics
        self._deadline = deadline

    async def ask(self, question: Question, *, timed: bool) -> EvaluatedAnswer:
        request = RecallRequest(
            caller=Caller(self._owner),
            asked=question.text,
            earlier=question.earlier,
            limit=self._bounds.limit,
            threshold=self._bounds.threshold,
        )
        # First, while the query's vector is not cached.
        before, started = _sums(self._metrics), time.perf_counter()
        try:
            async with asyncio.timeout(None if self._deadline is None else self._deadline.total_seconds()):
                bounded = await self._recaller.explain(request)
        except TimeoutError:
            return EvaluatedAnswer(ranked=(), injected=(), outcome=Outcome.OUT_OF_TIME, path="")
        took = time.perf_counter() - started
        after = _sums(self._metrics)
        free = bounded
        if bounded.gate is None:
            free = await self._recaller.explain(replace(request, limit=DEEPEST, threshold=0.0))
        seconds = {stage: value - before.get(stage, 0.0) for stage, value in after.items()}
        return EvaluatedAnswer(
            ranked=_ranked_only(free.considered),
            injected=_injected_memories(bounded),
            outcome=bounded.outcome,
            path=_path(bounded),
            worth=bounded.worth,
            seconds={**{stage: spent for stage, spent in seconds.items() if spent}, "total": took} if timed else {},
        )


def _path(explained: Explanation) -> str:
    """How it was answered, and whether the candidates were read word by word."""
    closely = any(CLOSELY in one.features for one in explained.considered)
    return f"{explained.path}, word by word" if closely else explained.path


class DenseSystem:
    """The nearest by cosine, injected from *bounds* on: how most memory layers recall, and our yardstick."""

    def __init__(self, keeps: MemoryWriter, embedder: EmbeddingModel, owner: Owner, bounds: Bounds) -> None:
        self._keeps, self._embedder, self._owner, self._bounds = keeps, embedder, owner, bounds

    async def ask(self, question: Question, *, timed: bool) -> EvaluatedAnswer:
        started = time.perf_counter()
        vector = await self._embedder.embed_query(question.text)
        embedded = time.perf_counter()
        searched = await self._keeps.nearest(self._owner, vector, DEEPEST, Scope())
        found = time.perf_counter()
        seconds = {"embed": embedded - started, "search": found - embedded, "total": found - started}
        ranked = tuple(
            Considered(one.memory, one.cosine, max(0.0, one.cosine), Verdict.INJECTED, {"dense": one.cosine})
            for one in searched.found
        )
        injected = tuple(
            one.memory for one in ranked[: self._bounds.limit] if one.relevance >= self._bounds.threshold
        )
        outcome = Outcome.USED if injected else Outcome.NOTHING_RELEVANT
        return EvaluatedAnswer(ranked, injected, outcome, searched.path, seconds=seconds if timed else {})


class Bm25System:
    """Messages by BM25 over their stems, the first of them injected: the plainest way by words."""

    def __init__(self, there: Played, bounds: Bounds) -> None:
        self._bounds, self._clock, self._index = bounds, there.clock, OwnerIndex()
        self._memories = [one for one in there.memories if one.recallable(there.clock())]
        for one in self._memories:
            self._index.add(one)

    async def ask(self, question: Question, *, timed: bool) -> EvaluatedAnswer:  # noqa: ARG002 - as the protocol has it
        seen = self._index.rate(question.text, None, self._clock().date())
        scores = seen.by_name["bm25"]
        best = np.argsort(-scores, kind="stable")[:DEEPEST]
        ranked = tuple(
            Considered(self._memories[at], score, float(score > 0), Verdict.INJECTED)
            for at, score in zip(seen.places[best].tolist(), scores[best].tolist(), strict=True)
        )
        injected = tuple(one.memory for one in ranked[: self._bounds.limit] if one.relevance)
        return EvaluatedAnswer(ranked, injected, Outcome.USED if injected else Outcome.NOTHING_RELEVANT, "bm25")


class Unreachable:
    """An embedder that is down for queries; stored vectors stay."""

    def __init__(self, embedder: EmbeddingModel) -> None:
        self._embedder = embedder

    @property
    def fingerprint(self) -> str:
        return self._embedder.fingerprint

    @property
    def dimension(self) -> int:
        return self._embedder.dimension

    @property
    def max_tokens(self) -> int:
        return self._embedder.max_tokens

    async def embed(self, texts: Sequence[str]) -> Matrix:
        return await self._embedder.embed(texts)

    async def embed_query(self, text: str) -> Vector:  # noqa: ARG002 - as the port has it
        raise TransientError("the embedding model is down, for the measurement")


_IN = {Verdict.INJECTED, Verdict.THREAD}
_OUT = {Verdict.DUPLICATE, Verdict.IN_VIEW, Verdict.NOT_RECALLABLE}


def _ranked_only(considered: Sequence[Considered]) -> tuple[Considered, ...]:
    return tuple(one for one in considered if one.verdict not in _OUT)


def _injected_memories(explanation: Explanation) -> tuple[Memory, ...]:
    return tuple(one.memory for one in explanation.considered if one.verdict in _IN)


def _sums(metrics: Metrics) -> dict[str, float]:
    """Seconds so far by stage. Questions run one at a time, so a difference belongs to a single question."""
    return {
        sample.labels["stage"]: sample.value
        for family in metrics.recall_seconds.collect()
        for sample in family.samples
        if sample.name.endswith("_sum")
    }


# Play a conversation through the production write path, over a store in memory. Each message of the caller and its
# answer become an exchange, handed to the learner with its session and time, as Envoy's stream would. The write
# path decides on storing, splitting and extraction.

TENANT = "evaluation"
MakesTopics = Callable[[MemoryWriter, Coordination, Now], TopicTracker]
Judges = Callable[[Turn, datetime], Sequence[JudgedMessage]]  # turns a message into memories
ASKED_AFTER = timedelta(days=1)  # the questions come a day after the last word
_PATIENT = Settings(
    learn=Learn(journal=JournalSection(wait=timedelta(minutes=1)), session_idle=timedelta(days=1), max_attempts=1),
    shutdown=Shutdown(flush=timedelta(minutes=30)),
    envoy=EnvoySection(message_timeout=timedelta(hours=1)),
)


@dataclass(slots=True)
class Clock:
    """The time as the played conversation has it."""

    now: datetime

    def __call__(self) -> datetime:
        return self.now


@dataclass(frozen=True, slots=True)
class Played:
    """A conversation's memories, with the ids of the data set that each covers."""

    conversation: EvaluationCase
    owner: Owner
    partitions: Partitions
    memories: tuple[Memory, ...]
    clock: Clock
    _messages: dict[tuple[str, int], tuple[str, ...]]
    _notes: dict[str, str]

    def covers(self, memory: Memory) -> tuple[str, ...]:
        """Ids that *memory* covers, in order: of a message its own, of a fact its sources', of a summary the ids
        of its sentences."""
        if memory.id in self._notes:
            return (self._notes[memory.id],)
        if memory.provenance.span is not None:
            return tuple(id_ for said in self._find_quoted(memory) for id_ in self.covers(said))
        return self._messages.get((memory.session, memory.seq), ())

    def _find_quoted(self, summary: Memory) -> list[Memory]:
        first, end = summary.provenance.span or (0, 0)
        return [
            memory
            for memory in self.memories
            if memory.source is Source.VERBATIM
            and memory.session == summary.session
            and first <= memory.seq < end
            and any(sentence in summary.content for sentence in sentences(memory.content))
        ]

    def list_covered(self) -> frozenset[str]:
        """All ids that any memory that may be recalled stands for; the rest can never be found."""
        now = self.clock()
        return frozenset(id_ for one in self.memories if one.recallable(now) for id_ in self.covers(one))


@asynccontextmanager
async def play(
    conversation: EvaluationCase,
    embedder: EmbeddingModel,
    metrics: Metrics,
    *,
    extractor: FactExtractor | None,
    judged: Judges,
    partition: PartitionLimits,
    topics: MakesTopics | None = None,
) -> AsyncIterator[Played]:
    """*conversation* learned by an owner of its own; held while entered. PermanentError when a turn could not be
    learned: figures of half a conversation would be worth nothing."""
    owner = Owner(TENANT, conversation.name)
    clock = Clock(conversation.ends)
    coordination = InMemoryCoordination(clock)
    store = InMemoryStore(embedder.dimension, now=clock)
    journal = InMemoryJournal(now=clock, max_turns=10 * len(conversation.said) + 10)
    sessions = Sessions(coordination, new_session=lambda: uuid.uuid4().hex)
    async with AsyncExitStack() as stack:
        partitions = Partitions(store, coordination, partition, metrics, now=clock)
        await stack.enter_async_context(partitions)
        follows = topics(partitions, coordination, clock) if topics else None
        if follows is not None:
            await stack.enter_async_context(follows)
        guard, patient = ForgetGuard(journal, coordination), CurrentSettings(_PATIENT)
        stages = LearnStages(
            journal, partitions, guard, MessagePreparer(embedder, judged, now=clock),
            FactFinder(extractor, None, patient, now=clock) if extractor else None,
            Reconciler(partitions, embedder, metrics),
        )  # fmt: skip
        learner = Learner(stages, journal, QueuePolicy(), patient, metrics, now=clock, topics=follows)
        async with Intake(learner, journal, sessions, guard, patient, metrics) as intake:
            messages = await _tell_learner(intake, conversation, owner, clock)
        if follows is not None:
            await follows.end(owner, "")
            await follows.quiet()
        clock.now = conversation.asked_at or conversation.ends + ASKED_AFTER
        depth = await journal.depth()
        if depth.dead or depth.turns:
            raise PermanentError(f"{conversation.name}: {depth.dead + depth.turns} turns could not be learned")
        notes = await _put_notes(conversation.noted, owner, partitions, embedder)
        memories = [row.memory async for page in store.pages(owner, 500, fresh=True) for row in page]
        yield Played(conversation, owner, partitions, tuple(memories), clock, messages, notes)


@dataclass(frozen=True, slots=True)
class PlayedExchange:
    """The exchange that the wire would hand over, with the places of its messages: (session, seq) → ids."""

    exchanged: Exchanged
    places: dict[tuple[str, int], tuple[str, ...]]


def exchanges(conversation: EvaluationCase, owner: Owner) -> Iterator[PlayedExchange]:
    """Pair each message of the caller with the answer behind it. If a speaker has two messages in a row, or the
    assistant speaks first, the other side stays empty."""
    for session, messages in _by_session(conversation.said):
        history: list[Message] = []
        for at, (asked, answered) in enumerate(_pairs(messages)):
            first = asked or answered
            if first is None:
                continue
            yield PlayedExchange(
                Exchanged(
                    caller=Caller(owner, session=session),
                    history=tuple(history),
                    asked=asked.text if asked else "",
                    answered=answered.text if answered else "",
                    at=first.at,
                ),
                {(session, 2 * at + side): (one.id,) for side, one in enumerate((asked, answered)) if one},
            )
            history += [Message(one.role, one.text) for one in (asked, answered) if one]


def _by_session(said: Sequence[SaidMessage]) -> Iterator[tuple[str, list[SaidMessage]]]:
    """In the order in which the sessions began, also where two of them overlap."""
    order = {session: at for at, session in reversed(list(enumerate(one.session for one in said)))}
    for session, messages in groupby(sorted(said, key=lambda one: order[one.session]), key=lambda one: one.session):
        yield session, list(messages)


def _pairs(messages: Sequence[SaidMessage]) -> Iterator[tuple[SaidMessage | None, SaidMessage | None]]:
    asked: SaidMessage | None = None
    for one in messages:
        if one.role is Role.USER:
            if asked:
                yield asked, None
            asked = one
        else:
            yield asked, one
            asked = None
    if asked:
        yield asked, None


async def _tell_learner(
    intake: Intake, conversation: EvaluationCase, owner: Owner, clock: Clock
) -> dict[tuple[str, int], tuple[str, ...]]:
    """Hands every exchange over at its time; (session, seq) → ids in the data set."""
    messages: dict[tuple[str, int], tuple[str, ...]] = {}
    for exchange in exchanges(conversation, owner):
        clock.now = exchange.exchanged.at
        await _accept(intake, exchange.exchanged)
        messages |= exchange.places
    await intake.wait_visible(Caller(owner))
    return messages


async def _accept(intake: Intake, exchanged: Exchanged) -> None:
    stored = await intake.accept(exchanged)
    if stored is not TurnOutcome.JOURNALLED:
        raise PermanentError(f"a turn of session {exchanged.caller.session} was not taken in: {stored}")


async def _put_notes(
    notes: Sequence[NotedMemory], owner: Owner, partitions: Partitions, embedder: EmbeddingModel
) -> dict[str, str]:
    """Puts *notes* in; memory id → id in the data set."""
    ids = {note.id: digest("note", owner.key, note.id) for note in notes}
    if notes:
        vectors = await embedder.embed([note.text for note in notes])
        rows = [
            Embedded(replace(_memory(note, owner, ids[note.id]), embed_model=embedder.fingerprint), vector)
            for note, vector in zip(notes, vectors, strict=True)
        ]
        await partitions.put(owner, rows)
    for note in notes:
        if note.replaces:
            await partitions.supersede(owner, ids[note.replaces], ids[note.id], note.at.replace(microsecond=0))
    return {memory_id: note_id for note_id, memory_id in ids.items()}


def _memory(note: NotedMemory, owner: Owner, memory_id: str) -> Memory:
    at = note.at.replace(microsecond=0)
    return Memory(
        id=memory_id,
        owner=owner,
        type=MemoryType.SEMANTIC,
        content=note.text,
        source=Source.API,
        created_at=at,
        updated_at=at,
        valid_from=at,
    )
