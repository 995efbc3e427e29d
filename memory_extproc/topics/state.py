"""The state of an owner's open sessions: their topics, and the topics that need a summary. Pure.

A record holds ids, places and times, never words. The words are read from the store when needed, so forgotten or
quarantined messages reach no summary."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from memory_extproc.model import Memory, MemoryState, Owner, Role
from memory_extproc.ports import MemoryWriter

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

# (owner, turn id, 0 for the caller's message or 1 for the answer, piece) to the id of its memory
NamesMessages = Callable[[Owner, str, int, int], str]
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

    def __init__(self, keeps: MemoryWriter, names: NamesMessages) -> None:
        self._keeps, self._names = keeps, names

    async def of(self, owner: Owner, turns: Sequence[SaidTurn]) -> list[TurnWords]:
        """The stored messages of each of *turns*, in order."""
        ids = {turn.id: [self._names(owner, turn.id.hex(), side, 0) for side in (0, 1)] for turn in turns}
        rows = await self._rows(owner, [one for pair in ids.values() for one in pair])
        # The first piece of a message tells that there are more.
        long = [
            self._names(owner, turn.hex(), side, piece)
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
