"""A conversation played in through the write path that production uses, over a store in memory.

Each message of the caller and the answer behind it become an exchange, handed to the learner with its session and
time, as Envoy's stream would. What the write path keeps, cuts, leaves out or extracts is its own decision.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import groupby

from memory_extproc.coordination.transient import TransientCoordination
from memory_extproc.errors import GiveUpError
from memory_extproc.evaluation.cases import Conversation, Noted, Said
from memory_extproc.language.sentences import sentences
from memory_extproc.learn.extract import Extracts
from memory_extproc.learn.journal_transient import TransientJournal
from memory_extproc.learn.learner import Learner
from memory_extproc.learn.limits import LearnLimits
from memory_extproc.learn.reconcile import Reconciler
from memory_extproc.learn.remember import Judged
from memory_extproc.learn.sessions import SessionLimits, Sessions
from memory_extproc.model import (
    Caller,
    Embedded,
    Exchanged,
    Memory,
    MemoryType,
    Message,
    Owner,
    Role,
    Source,
    Stored,
    Turn,
    digest,
)
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Coordination, Embeds, KeepsMemories, Now
from memory_extproc.store.partition import PartitionLimits, Partitions
from memory_extproc.store.transient import TransientStore
from memory_extproc.topics.follower import Topics

TENANT = "evaluation"
MakesTopics = Callable[[KeepsMemories, Coordination, Now], Topics]
Judges = Callable[[Turn, datetime], Sequence[Judged]]  # what of a turn becomes memories
ASKED_AFTER = timedelta(days=1)  # the questions come a day after the last word
_PATIENT = LearnLimits(
    journal_wait=timedelta(seconds=60), idle=timedelta(days=1), attempts=1, grace=timedelta(minutes=30)
)


@dataclass(slots=True)
class Clock:
    """The time as the played conversation has it."""

    now: datetime

    def __call__(self) -> datetime:
        return self.now


@dataclass(frozen=True, slots=True)
class Played:
    """A conversation's memories, and what of the data set each of them stands for."""

    conversation: Conversation
    owner: Owner
    partitions: Partitions
    memories: tuple[Memory, ...]
    clock: Clock
    _messages: dict[tuple[str, int], tuple[str, ...]]
    _notes: dict[str, str]

    def covers(self, memory: Memory) -> tuple[str, ...]:
        """Ids of what *memory* stands for, in order: a message its own, a fact those it was taken from, a summary
        those of which it has a sentence."""
        if memory.id in self._notes:
            return (self._notes[memory.id],)
        if "span" in memory.metadata:
            return tuple(id_ for said in self._quoted(memory) for id_ in self.covers(said))
        return self._messages.get((memory.session, memory.seq), ())

    def _quoted(self, summary: Memory) -> list[Memory]:
        first, end = summary.metadata["span"]
        return [
            memory
            for memory in self.memories
            if memory.source is Source.VERBATIM
            and memory.session == summary.session
            and first <= memory.seq < end
            and any(sentence in summary.content for sentence in sentences(memory.content))
        ]

    def covered(self) -> frozenset[str]:
        """All ids that any memory that may be recalled stands for; the rest can never be found."""
        now = self.clock()
        return frozenset(id_ for one in self.memories if one.recallable(now) for id_ in self.covers(one))


@asynccontextmanager
async def played(
    conversation: Conversation,
    embedder: Embeds,
    metrics: Metrics,
    *,
    extractor: Extracts | None,
    judged: Judges,
    partition: PartitionLimits,
    topics: MakesTopics | None = None,
) -> AsyncIterator[Played]:
    """*conversation* learned by an owner of its own; held while entered. GiveUpError when a turn could not be
    learned: figures of half a conversation would be worth nothing."""
    owner = Owner(TENANT, conversation.name)
    clock = Clock(conversation.ends)
    coordination = TransientCoordination(clock)
    store = TransientStore(embedder.dimension, now=clock)
    journal = TransientJournal(now=clock, max_turns=10 * len(conversation.said) + 10)
    sessions = Sessions(coordination, SessionLimits(), new_session=lambda: uuid.uuid4().hex)
    async with AsyncExitStack() as stack:
        partitions = Partitions(store, coordination, partition, metrics, now=clock)
        await stack.enter_async_context(partitions)
        follows = topics(partitions, coordination, clock) if topics else None
        if follows is not None:
            await stack.enter_async_context(follows)
        learner = Learner(
            journal, sessions, partitions, embedder, coordination, _PATIENT, metrics,
            extractor=extractor,
            reconciler=Reconciler(partitions, embedder, metrics),
            now=clock,
            chance=lambda: 0.0,
            judged=judged,
            topics=follows,
        )  # fmt: skip
        async with learner:
            messages = await _told(learner, conversation, owner, clock)
        if follows is not None:
            await follows.end(owner, "")
            await follows.quiet()
        clock.now = conversation.ends + ASKED_AFTER
        depth = await journal.depth()
        if depth.dead or depth.turns:
            raise GiveUpError(f"{conversation.name}: {depth.dead + depth.turns} turns could not be learned")
        notes = await _noted(conversation.noted, owner, partitions, embedder)
        memories = [row.memory async for page in store.pages(owner, 500, fresh=True) for row in page]
        yield Played(conversation, owner, partitions, tuple(memories), clock, messages, notes)


@dataclass(frozen=True, slots=True)
class Exchange:
    """What the wire would hand over, and where its messages will stand: (session, seq) → ids."""

    exchanged: Exchanged
    places: dict[tuple[str, int], tuple[str, ...]]


def exchanges(conversation: Conversation, owner: Owner) -> Iterator[Exchange]:
    """The messages two by two: the caller's and the answer behind it. Where one spoke twice in a row, or the
    assistant spoke first, the other's side stays empty."""
    for session, messages in _by_session(conversation.said):
        history: list[Message] = []
        for at, (asked, answered) in enumerate(_pairs(messages)):
            first = asked or answered
            if first is None:
                continue
            yield Exchange(
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


def _by_session(said: Sequence[Said]) -> Iterator[tuple[str, list[Said]]]:
    """In the order in which the sessions began, also where two of them overlap."""
    order = {session: at for at, session in reversed(list(enumerate(one.session for one in said)))}
    for session, messages in groupby(sorted(said, key=lambda one: order[one.session]), key=lambda one: one.session):
        yield session, list(messages)


def _pairs(messages: Sequence[Said]) -> Iterator[tuple[Said | None, Said | None]]:
    asked: Said | None = None
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


async def _told(
    learner: Learner, conversation: Conversation, owner: Owner, clock: Clock
) -> dict[tuple[str, int], tuple[str, ...]]:
    """Hands every exchange over at its time; (session, seq) → ids in the data set."""
    messages: dict[tuple[str, int], tuple[str, ...]] = {}
    for exchange in exchanges(conversation, owner):
        clock.now = exchange.exchanged.at
        await _accept(learner, exchange.exchanged)
        messages |= exchange.places
    await learner.settled(Caller(owner))
    return messages


async def _accept(learner: Learner, exchanged: Exchanged) -> None:
    stored = await learner.accept(exchanged)
    if stored is not Stored.JOURNALLED:
        raise GiveUpError(f"a turn of session {exchanged.caller.session} was not taken in: {stored}")


async def _noted(notes: Sequence[Noted], owner: Owner, partitions: Partitions, embedder: Embeds) -> dict[str, str]:
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


def _memory(note: Noted, owner: Owner, memory_id: str) -> Memory:
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
