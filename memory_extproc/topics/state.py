"""The state of an owner's open sessions: their topics, the topics that need a summary, and whether a turn still
belongs to the topic that is open. Pure, but for the model that embeds.

A record holds ids, places and times, never words. The words are read from the store when needed, so forgotten or
quarantined messages reach no summary."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import msgspec
import numpy as np

from memory_extproc.model import Matrix, Memory, MemoryState, Owner, Role, Vector, message_id_of
from memory_extproc.ports import EmbeddingModel, MemoryWriter
from memory_extproc.settings.memory import Topics
from memory_extproc.text.words import content_words

KIND: Final = "topics"  # of the record, which exists once per owner
_DONE = 64  # finished sessions that are known, so that a turn that comes once more opens none of them again


class SaidTurn(msgspec.Struct, frozen=True, array_like=True):
    """A turn by its id; *at* in seconds since 1970."""

    id: bytes
    seq: int
    at: float


Group = tuple[SaidTurn, ...]


class Thread(msgspec.Struct, frozen=True, array_like=True):
    """A session. Its turns move from *fresh* (unread) to *open* (the current topic), then with the topic to
    *closing* (needs a summary) and to *closed*."""

    session: str
    project: str
    origin: str
    seen_at: float  # when we last heard of it, in seconds since 1970
    fresh: Group = ()
    open: Group = ()
    size: int = 0  # characters of *open*
    closing: tuple[Group, ...] = ()
    closed: tuple[Group, ...] = ()
    ended: bool = False

    def turns(self) -> Iterable[SaidTurn]:
        for group in (*self.closed, *self.closing, self.open, self.fresh):
            yield from group


class Finished(msgspec.Struct, frozen=True, array_like=True):
    """*summary*: id of the memory with the summary so far; empty without one."""

    session: str
    upto: int
    summary: str = ""


class OpenSessions(msgspec.Struct, frozen=True, array_like=True):
    """All sessions of an owner that are not finished, in the order in which they were begun."""

    sessions: tuple[Thread, ...] = ()
    done: tuple[Finished, ...] = ()

    def of(self, session: str) -> Thread | None:
        return next((thread for thread in self.sessions if thread.session == session), None)

    def beside(self, thread: Thread) -> OpenSessions:
        """Replace the thread of *thread*'s session."""
        known = self.of(thread.session) is not None
        if not known:
            return msgspec.structs.replace(self, sessions=(*self.sessions, thread))
        sessions = tuple(thread if one.session == thread.session else one for one in self.sessions)
        return msgspec.structs.replace(self, sessions=sessions)


class TopicTurn(msgspec.Struct, frozen=True):
    """A turn as it is handed in."""

    session: str
    project: str
    origin: str
    turn: SaidTurn
    last: bool


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(OpenSessions)


def encode_threads(threads: OpenSessions) -> bytes:
    return _ENCODER.encode(threads)


def read(raw: bytes | None) -> OpenSessions:
    """Empty if the record is missing or has another version."""
    if raw is None:
        return OpenSessions()
    try:
        return _DECODER.decode(raw)
    except msgspec.DecodeError:
        return OpenSessions()


def add_turns(threads: OpenSessions, turns: Sequence[TopicTurn], now: float, most: int) -> OpenSessions:
    """With *turns*; each counts once, however often it comes. Beyond *most* sessions the longest silent end."""
    for one in turns:
        finished = earlier(threads, one.session).upto
        thread = threads.of(one.session)
        if thread is None and one.turn.seq <= finished:
            continue
        thread = thread or Thread(one.session, one.project, one.origin, now)
        known = one.turn.seq <= finished or any(turn.id == one.turn.id for turn in thread.turns())
        fresh = thread.fresh if known else (*thread.fresh, one.turn)
        # A new turn reopens an ended session.
        ended = one.last or (thread.ended and known)
        threads = threads.beside(msgspec.structs.replace(thread, fresh=fresh, seen_at=now, ended=ended))
    surplus = sorted(threads.sessions, key=lambda thread: thread.seen_at)[: max(0, len(threads.sessions) - most)]
    for thread in surplus:
        threads = threads.beside(msgspec.structs.replace(thread, ended=True))
    return threads


def earlier(threads: OpenSessions, session: str) -> Finished:
    """How far *session* was finished before."""
    return next((one for one in threads.done if one.session == session), Finished(session, -1))


def end_session(threads: OpenSessions, session: str, but: frozenset[str] = frozenset()) -> OpenSessions:
    """With *session* at its end; all of them where it is empty, *but* these."""
    for thread in threads.sessions:
        if session in {"", thread.session} and thread.session not in but:
            threads = threads.beside(msgspec.structs.replace(thread, ended=True))
    return threads


def gather_turn(thread: Thread, turn: SaidTurn, size: int, *, shift: bool) -> Thread:
    """Move *turn*, the first fresh turn, to the open topic, or with *shift* to a new topic."""
    fresh = tuple(one for one in thread.fresh if one.id != turn.id)
    if shift:
        thread = closed_topic(thread)
    return msgspec.structs.replace(thread, fresh=fresh, open=(*thread.open, turn), size=thread.size + size)


def closed_topic(thread: Thread) -> Thread:
    """Move the open topic, if any, to closing."""
    if not thread.open:
        return thread
    return msgspec.structs.replace(thread, open=(), size=0, closing=(*thread.closing, thread.open))


def summed_up(thread: Thread, group: Group) -> Thread:
    """*group* needs no summary any more."""
    rest = tuple(one for one in thread.closing if one != group)
    return msgspec.structs.replace(thread, closing=rest, closed=(*thread.closed, group))


def drop_summed(threads: OpenSessions, session: str, summed: int, summary: str) -> OpenSessions:
    """Remove the first *summed* closed topics of *session*, which *summary* covers (empty: keep the previous
    summary), and the session itself if nothing is left."""
    thread = threads.of(session)
    if thread is None:
        return threads
    upto = max((turn.seq for group in thread.closed[:summed] for turn in group), default=-1)
    thread = msgspec.structs.replace(thread, closed=thread.closed[summed:])
    before = earlier(threads, session)
    done = tuple(one for one in threads.done if one.session != session)
    latest = Finished(session, max(upto, before.upto), summary or before.summary)
    threads = msgspec.structs.replace(threads, done=(*done, latest)[-_DONE:])
    if any(True for _ in thread.turns()):
        return threads.beside(thread)
    return msgspec.structs.replace(
        threads, sessions=tuple(one for one in threads.sessions if one.session != session)
    )


# The stored messages of a turn, without forgotten, quarantined and replaced messages.

_PIECES = 64  # of a message


@dataclass(frozen=True, slots=True)
class TurnWords:
    """A turn's words; *sources* are the ids of the memories that hold them. A turn may have lost all of them."""

    turn: SaidTurn
    asked: str = field(default="", repr=False)
    answered: str = field(default="", repr=False)
    sources: tuple[str, ...] = ()
    moment: float = 0.0  # in seconds since 1970
    rows: tuple[Memory, ...] = field(default=(), repr=False)  # the same memories, in the order of its words

    def beginning(self, most: int) -> TurnWords:
        """As much of it as stands in *most* memories, two at least: of each side its first pieces."""
        if len(self.rows) <= most:
            return self
        asked = [row for row in self.rows if row.role is Role.USER]
        answered = [row for row in self.rows if row.role is not Role.USER]
        first = min(len(asked), max(most - len(answered), most // 2))
        return said_in(self.turn, [*asked[:first], *answered[: most - first]])

    @property
    def text(self) -> str:
        return "\n".join(part for part in (self.asked, self.answered) if part)

    @property
    def messages(self) -> int:
        return bool(self.asked) + bool(self.answered)

    @property
    def beginnings(self) -> list[str]:
        """The first piece of each message, as it was embedded when it was stored."""
        first = {row.role: row.content for row in reversed(self.rows)}
        return [first[role] for role in (Role.USER, Role.ASSISTANT) if role in first]


class Sayings:
    """Reads turns from the owner's memories."""

    def __init__(self, keeps: MemoryWriter) -> None:
        self._keeps = keeps

    async def of(self, owner: Owner, turns: Sequence[SaidTurn]) -> list[TurnWords]:
        """The stored messages of each of *turns*, in order."""
        ids = {turn.id: [message_id_of(owner, turn.id.hex(), side, 0) for side in (0, 1)] for turn in turns}
        rows = await self._rows(owner, [one for pair in ids.values() for one in pair])
        # The first piece of a message tells that there are more.
        long = [
            message_id_of(owner, turn.hex(), side, piece)
            for turn, pair in ids.items()
            for side, first in enumerate(pair)
            if any(row.provenance.piece is not None for row in rows if row.id == first)
            for piece in range(1, _PIECES)
        ]
        if long:
            rows += await self._rows(owner, long)
        by_turn: defaultdict[str, list[Memory]] = defaultdict(list)
        for row in rows:
            by_turn[row.provenance.turn].append(row)
        return [said_in(turn, by_turn[turn.id.hex()]) for turn in turns]

    async def _rows(self, owner: Owner, ids: Sequence[str]) -> list[Memory]:
        found = await self._keeps.get(owner, ids) if ids else ()
        return [row for row in found if row.state is MemoryState.ACTIVE]


def said_in(turn: SaidTurn, rows: Iterable[Memory]) -> TurnWords:
    """*turn* by the memories of its messages, in any order."""
    rows = sorted(rows, key=lambda row: (row.seq, _piece(row)))
    sides = {
        role: " ".join(row.content for row in rows if row.role is role) for role in (Role.USER, Role.ASSISTANT)
    }
    return TurnWords(
        turn, sides[Role.USER], sides[Role.ASSISTANT], tuple(row.id for row in rows), turn.at, tuple(rows)
    )


def _piece(row: Memory) -> int:
    return row.provenance.piece or 0


# --- boundaries --------------------------------------------------------------------------------------
# Whether a turn still belongs to the topic that is open.

_MOST_WORDS = 8  # content words of a question beyond which more say nothing more
_READ = 400  # characters of the question
# How people say that they change the subject.
_CUE = re.compile(
    r"\W*(?:(?:thanks|thank you|okay|ok|great|cool|alright|danke|gut|merci|gracias)\W+(?:you\W+)?)*"
    r"(?:by the way|btw|something else|(?:a |one )?different (?:question|topic|thing|matter)"
    r"|(?:an)?other (?:question|topic|thing|matter)"
    r"|(?:my )?next question|new (?:question|topic)|on another note|changing (?:the )?(?:subject|topic)"
    r"|(?:unrelated|off.topic)|speaking of something else|übrigens|etwas anderes|andere frage|neues thema"
    r"|au fait|autre (?:question|chose)|por cierto|otra (?:pregunta|cosa))\b",
    re.IGNORECASE,
)


def announces_other_subject(text: str) -> bool:
    """Report whether *text* begins with a change of subject, such as "Another thing"."""
    return _CUE.match(text) is not None


class DecidingMeasure(StrEnum):
    """The measure that decided: a label of topic_checks_total, so never renamed."""

    FEW = "few"  # the open topic has too few messages to be left
    NEAR = "near"  # near enough to the open topic
    MEASURE = "measure"  # the second, stricter measure
    MODEL = "model"
    FULL = "full"  # the open topic has reached its largest size


# Probabilities of the second measure, outside of which no model is asked.
_DOUBT = (0.1, 0.95)
LEAST_MESSAGES = 3  # of a topic before it can be left
MOST_TURNS = 32  # of a topic: a memory names all that it was made of, and has 8 KiB for that


@dataclass(frozen=True, slots=True)
class EmbeddedTurn:
    """A turn for this purpose: *asked_vector* is of the caller's words, *vector* the middle of question and
    answer."""

    asked: str = field(repr=False)
    asked_vector: Vector = field(repr=False)
    vector: Vector = field(repr=False)


async def embed_turns(embedder: EmbeddingModel, turns: Sequence[tuple[str, str]]) -> list[EmbeddedTurn]:
    """Embed turns, given as (question, answer), from the vectors that the messages are stored with: the embedder
    still has them, so nothing is embedded for this alone."""
    vectors = await embedder.embed([text for turn in turns for text in turn])
    return [
        EmbeddedTurn(turn[0], asked, unit(asked + answered))
        for turn, asked, answered in zip(turns, vectors[0::2], vectors[1::2], strict=True)
    ]


@dataclass(slots=True)
class OpenTopic:
    """The vectors of the turns of the topic that is open, oldest first."""

    vectors: list[Vector] = field(default_factory=list)
    messages: int = 0

    def add(self, heard: EmbeddedTurn | None, messages: int) -> None:
        """*heard* is None for a turn of which nothing is kept, such as thanks."""
        self.messages += messages
        if heard is not None:
            self.vectors.append(heard.vector)

    def centre(self) -> Vector:
        return unit(np.sum(self.vectors, axis=0))

    def nearness(self, heard: EmbeddedTurn) -> float:
        """Cosine to the middle of the topic."""
        return float(heard.vector @ self.centre())


def unit(vector: Vector | Matrix) -> Vector:
    length = float(np.linalg.norm(vector))
    return np.asarray(vector / length if length else vector, dtype=np.float32)


# Fitted for all-MiniLM-L6-v2 on the sessions fit-… of tests/quality/topics.jsonl by logistic regression, judged by
# the others: `memory-extproc eval topics` says how well (docs/memory-model.md has the figures).
_WEIGHTS = (-6.2, -4.3, -3.7, -2.8, 6.5, 3.0)
_BIAS = -0.7


def apartness(topic: OpenTopic, heard: EmbeddedTurn) -> float:
    """The probability in [0, 1] that *heard* begins another topic, from its distance to the whole topic, to the
    nearest turn and to the last turn, from its own content, and from phrases that change the subject. A short
    question depends on its context."""
    vectors = np.asarray(topic.vectors)
    asked = heard.asked[:_READ]
    features = (
        topic.nearness(heard),
        float(heard.asked_vector @ topic.centre()),
        float((vectors @ heard.vector).max()),
        float(topic.vectors[-1] @ heard.vector),
        min(len(content_words(asked)), _MOST_WORDS) / _MOST_WORDS,
        float(announces_other_subject(asked)),
    )
    odds = _BIAS + sum(weight * feature for weight, feature in zip(_WEIGHTS, features, strict=True))
    return 1.0 / (1.0 + math.exp(-odds))


@dataclass(frozen=True, slots=True)
class Decided:
    """*doubtful*: a model may know better."""

    shift: bool
    stage: DecidingMeasure
    doubtful: bool = False


def decide(topic: OpenTopic, heard: EmbeddedTurn | None, section: Topics) -> Decided:
    """Whether *heard* leaves *topic*. Never before `LEAST_MESSAGES`, nor for a turn of which nothing is kept."""
    if heard is None or topic.messages < LEAST_MESSAGES or not topic.vectors:
        return Decided(shift=False, stage=DecidingMeasure.FEW)
    if topic.nearness(heard) >= section.same:
        return Decided(shift=False, stage=DecidingMeasure.NEAR)
    apart = apartness(topic, heard)
    low, high = _DOUBT
    return Decided(shift=apart >= section.apart, stage=DecidingMeasure.MEASURE, doubtful=low <= apart <= high)


def shifts(heard: Sequence[EmbeddedTurn], section: Topics) -> list[int]:
    """Which of the turns of a session, by number, begin another topic where no model is asked."""
    found: list[int] = []
    topic = OpenTopic()
    for number, one in enumerate(heard):
        if decide(topic, one, section).shift:
            found.append(number)
            topic = OpenTopic()
        topic.add(one, 2)
    return found
