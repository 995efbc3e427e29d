"""What was forgotten, as keyed hashes: enough to know it again, not to say what it was. Pure.

A *cut* takes in everything of a scope that was asked up to a moment, what is still on its way included. An *item*
is one thing by name: a memory, a turn, a place in a conversation, words.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from memory_extproc.language.comparing import words_hash
from memory_extproc.model import (
    ForgetScope,
    Memory,
    MemoryType,
    Message,
    Owner,
    Role,
    Source,
    Turn,
    message_ids,
    seconds_said,
)

MOMENT = "said"  # in a memory's metadata: when it was said, in seconds since 1970; rows keep whole ones
HEARD = "heard"  # in a message's metadata: Turn.heard
DRAWN_FROM = "drawn_from"  # in the metadata of what was drawn from several turns together: their ids
SOURCES = "sources"  # in the metadata of what was made of other memories: their ids
WHOLE = "whole"  # in the metadata of a piece: hash of the message that it is a piece of
RETRIED = timedelta(minutes=2)  # an opening sent once more within it is a retry, later it is said anew
_BYTES = 16


class Kind(StrEnum):
    """What an item names."""

    MEMORY = "memory"
    TURN = "turn"  # with all that came from it
    MESSAGES = "messages"  # of a turn; facts of it that were not named stay
    HEARD = "heard"  # a place in a conversation: what the client sends again there is no news
    SAID = "said"  # the caller's words in a history


class Cut(msgspec.Struct, frozen=True, array_like=True):
    """Everything asked up to *at*, narrowed by what is not empty."""

    at: float
    project: bytes = b""
    session: bytes = b""
    types: tuple[str, ...] = ()
    before: float | None = None


@dataclass(frozen=True, slots=True)
class Blind:
    """Hashes with a key of this installation, so that a list of them tells nobody whose and what."""

    key: bytes = field(repr=False)

    def hash(self, *parts: str) -> bytes:
        hashed = hashlib.blake2b(key=self.key[:64], digest_size=_BYTES)
        for part in parts:
            encoded = part.encode("utf-8", "surrogatepass")
            hashed.update(len(encoded).to_bytes(8, "big"))
            hashed.update(encoded)
        return hashed.digest()

    def subject(self, owner: Owner) -> str:
        """Whose: 64 hex digits."""
        return hashlib.blake2b(owner.key.encode(), key=self.key[:64], digest_size=32, person=b"subject").hexdigest()

    def item(self, kind: Kind, owner: Owner, name: str) -> bytes:
        return self.hash("item", kind.value, owner.key, name)

    def cut(self, owner: Owner, scope: ForgetScope, at: datetime) -> Cut | None:
        """None for a scope of named memories: nothing that is on its way is one of them."""
        if scope.ids or scope.query:
            return None
        return Cut(
            at.timestamp(),
            self._of("project", owner, scope.project),
            self._of("session", owner, scope.session),
            tuple(sorted(kind.value for kind in scope.types)),
            None if scope.before is None else scope.before.timestamp(),
        )

    def _of(self, what: str, owner: Owner, name: str) -> bytes:
        return self.hash(what, owner.key, name) if name else b""

    def cuts_off(
        self, cut: Cut, owner: Owner, project: str, session: str, types: Sequence[MemoryType], moment: float
    ) -> bool:
        return (
            moment <= cut.at
            and (cut.before is None or moment < cut.before)
            and (not cut.project or cut.project == self._of("project", owner, project))
            and (not cut.session or cut.session == self._of("session", owner, session))
            and (not cut.types or any(kind.value in cut.types for kind in types))
        )


@dataclass(frozen=True, slots=True)
class Marks:
    """Everything that was ever forgotten of one owner. *shut*: a forget is under way, nothing is read or kept."""

    blind: Blind
    cuts: tuple[Cut, ...] = ()
    items: Mapping[bytes, float] = field(default_factory=dict)  # hash → when it was forgotten
    shut: bool = False

    def __bool__(self) -> bool:
        return bool(self.cuts or self.items)

    def covers(self, memory: Memory) -> bool:
        """Whether *memory* was forgotten, came from what was before it was, or is made of something forgotten."""
        owner, moment = memory.owner, moment_of(memory)
        if any(
            self.blind.cuts_off(cut, owner, memory.project, memory.session, (memory.type,), moment)
            for cut in self.cuts
        ):
            return True
        if not self.items:
            return False
        named = [(Kind.MEMORY, memory.id), *((Kind.MEMORY, source) for source in sources_of(memory))]
        if turn := turn_of(memory):
            named += [(kind, turn) for kind in ((Kind.TURN, Kind.MESSAGES) if is_message(memory) else (Kind.TURN,))]
        named += [(kind, turn) for turn in drawn_from(memory) for kind in (Kind.TURN, Kind.MESSAGES)]
        return any(moment <= self._when(kind, owner, name) for kind, name in named)

    def covers_turn(self, turn: Turn) -> bool:
        """Whether *turn* was forgotten before it came to be learned, or is a forgotten one sent again."""
        if self.forgotten_at(turn) != _NEVER:
            return True
        when = self._when(Kind.HEARD, turn.owner, turn.heard) if self.items and turn.heard else _NEVER
        if turn.resumes:
            return when != _NEVER
        return turn.at.timestamp() - when < RETRIED.total_seconds()

    def forgotten_at(self, turn: Turn) -> float:
        """When *turn* itself was forgotten, in seconds since 1970: within a scope, by name, or because one of the
        memories that its messages become was named. Minus infinity: it was not."""
        owner, moment = turn.owner, turn.at.timestamp()
        found = [
            cut.at
            for cut in self.cuts
            if self.blind.cuts_off(cut, owner, turn.project, turn.session, (MemoryType.EPISODIC,), moment)
        ]
        if self.items and not found:
            found = [self._when(kind, owner, turn.id) for kind in (Kind.TURN, Kind.MESSAGES)]
            found += [self._when(Kind.MEMORY, owner, one) for one in message_ids(turn, any_answer=False)]
        return max((when for when in found if moment <= when), default=_NEVER)

    def untraced_turn(self, turn: Turn) -> dict[bytes, float]:
        """Items by which *turn*, which was forgotten, is to be known when it is sent again, and which are not here
        because it was out of reach when it was forgotten. Each with its moment."""
        when = self.forgotten_at(turn)
        known = self.blind.item(Kind.HEARD, turn.owner, turn.heard) if turn.heard else None
        if when == _NEVER or known in self.items or self._when(Kind.TURN, turn.owner, turn.id) != _NEVER:
            return {}
        return dict.fromkeys(items_of_turn(self.blind, turn), when)

    def untraced(self, memory: Memory) -> dict[bytes, float]:
        """Items of the turn that *memory* came from, where *memory* was forgotten by its id and nobody knew then
        what it came from. Each with its moment."""
        owner, turn = memory.owner, turn_of(memory)
        when = self._when(Kind.MEMORY, owner, memory.id)
        if not turn or drawn_from(memory) or moment_of(memory) > when:
            return {}
        if any(self._when(kind, owner, turn) != _NEVER for kind in (Kind.TURN, Kind.MESSAGES)):
            return {}
        kind = Kind.TURN if was_message(memory) else Kind.MESSAGES
        return dict.fromkeys({self.blind.item(kind, owner, turn), *items_of_message(self.blind, memory)}, when)

    def covers_words(self, owner: Owner, message: Message) -> bool:
        """Whether *message* of a history is one of the caller's that was forgotten."""
        if not self.items or message.role is not Role.USER:
            return False
        return self.blind.item(Kind.SAID, owner, words_hash(message.text)) in self.items

    def _when(self, kind: Kind, owner: Owner, name: str) -> float:
        return self.items.get(self.blind.item(kind, owner, name), _NEVER)


_NEVER = float("-inf")


def moment_of(memory: Memory) -> float:
    """When it was said, in seconds since 1970."""
    said = seconds_said(memory.metadata.get(MOMENT))
    return memory.created_at.timestamp() if said is None else said


def turn_of(memory: Memory) -> str:
    """The id of the turn it came from; empty where it came from none."""
    turn = memory.metadata.get("turn", "")
    return turn if isinstance(turn, str) else ""


def sources_of(memory: Memory) -> Sequence[str]:
    """Ids of the memories that *memory* was made of."""
    return _ids(memory, SOURCES)


def drawn_from(memory: Memory) -> Sequence[str]:
    """Ids of the turns that *memory* was drawn from together; empty where it came from one."""
    return _ids(memory, DRAWN_FROM)


def _ids(memory: Memory, name: str) -> Sequence[str]:
    found = memory.metadata.get(name, ())
    return [one for one in found if isinstance(one, str)] if isinstance(found, list | tuple) else []


def is_message(memory: Memory) -> bool:
    """Whether it is a message as it was said, or a piece of one."""
    return memory.source in {Source.VERBATIM, Source.QUESTION}


def was_message(memory: Memory) -> bool:
    """Whether it is one, or was before its words were corrected: then it is what its owner wrote, and still says
    in whose place it stands."""
    return is_message(memory) or (memory.source is Source.API and memory.role is not Role.NONE)


def items_of_message(blind: Blind, memory: Memory) -> set[bytes]:
    """By what the caller's message is known when the client sends it again."""
    if not was_message(memory) or memory.role is not Role.USER:
        return set()
    whole = memory.metadata.get(WHOLE)
    words = whole if isinstance(whole, str) else words_hash(memory.content)
    found = {blind.item(Kind.SAID, memory.owner, words)}
    heard = memory.metadata.get(HEARD)
    if isinstance(heard, str):
        found.add(blind.item(Kind.HEARD, memory.owner, heard))
    return found


def items_of_turn(blind: Blind, turn: Turn) -> set[bytes]:
    """By what a turn of the journal is known when it comes again."""
    found = {blind.item(Kind.TURN, turn.owner, turn.id), blind.item(Kind.SAID, turn.owner, words_hash(turn.asked))}
    if turn.heard:
        found.add(blind.item(Kind.HEARD, turn.owner, turn.heard))
    return found
