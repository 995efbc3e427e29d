"""Messages, exchanges and turns on the write path."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from memory_extproc.model.memory import Role
from memory_extproc.model.owner import Caller, Owner, digest

_MESSAGE = "memory"  # first part of every message's id, so that a fact's id is never a message's
_MOST_PIECES = 64  # of a message that any version of ours may have left behind
_ORIGIN_BYTES = 512  # of UTF-8; the field of every store holds as many
_LEAST_PIECE = 16  # characters; the pieces of a message have more on an average


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a conversation; its text is private and never printed."""

    role: Role
    text: str = field(repr=False)

    def __reduce__(self) -> tuple[type[Message], tuple[Role, str]]:
        """Pickled as a call, in a third of the usual time: a conversation can have 20,000."""
        return Message, (self.role, self.text)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a turn came from; each may be empty."""

    dialect: str = ""
    model: str = ""
    route: str = ""
    app: str = ""


def cut(text: str, most_bytes: int) -> str:
    """The beginning of *text* that fits into *most_bytes* of UTF-8, never half a character. Lone
    surrogates, which no store takes, become question marks."""
    encoded = text[:most_bytes].encode("utf-8", "replace")
    return encoded[:most_bytes].decode("utf-8", "ignore")


def format_origin(origin: Origin) -> str:
    """*origin* as a line for the store's field, without empty parts: "app=chat model=qwen3". White space in
    client-supplied names cannot add parts, and the line is always valid in the store."""
    named = (("app", origin.app), ("dialect", origin.dialect), ("model", origin.model), ("route", origin.route))
    whole = _line(named, _ORIGIN_BYTES)
    if len(whole.encode()) <= _ORIGIN_BYTES:
        return whole
    return _line(named, _ORIGIN_BYTES // len(named) - len("dialect= "))


def _line(named: Iterable[tuple[str, str]], most_bytes: int) -> str:
    """Each value cut to *most_bytes* of UTF-8."""
    written = ((name, "_".join(value.replace("\0", " ").split())) for name, value in named)
    return " ".join(f"{name}={cut(value, most_bytes)}" for name, value in written if value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """A completed exchange: the client's messages, without our block, and the response."""

    caller: Caller
    history: tuple[Message, ...]  # user and assistant messages before *asked*, oldest first
    asked: str = field(repr=False)  # the last user message
    answered: str = field(repr=False)  # the assistant's text; empty for tool calls only
    at: datetime
    injected: tuple[str, ...] = field(default=(), repr=False)  # contents of the memories in our block
    origin: Origin = Origin()
    previous_response_id: str = ""
    response_id: str = ""
    conversation: str = ""  # the provider's conversation id, common to all its turns
    ends_session: bool = False
    tools: bool = False  # the answer stands on results of tools
    request_id: str = ""  # by which its receipt is found; empty: none is kept

    @property
    def characters(self) -> int:
        """The length of all its messages."""
        return sum(len(message.text) for message in self.history) + len(self.asked) + len(self.answered)

    @property
    def text_bytes(self) -> int:
        """Memory that its messages take."""
        texts = (*(message.text for message in self.history), self.asked, self.answered)
        return sum(map(sys.getsizeof, texts))

    @property
    def continues(self) -> str:
        """The response or conversation that the request continues at the provider; "" for neither."""
        return self.previous_response_id or self.conversation


@dataclass(frozen=True, slots=True)
class Screened:
    """An exchange that may be stored. *whole* is free of secrets and used only for hashes of the conversation.

    *kept* is the storable part: less, if a policy says so."""

    whole: Exchanged
    kept: Exchanged


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A question and response with its position: the journal's entry. Retries have the same *id*."""

    id: str  # 64 hex digits of owner, session and the conversation including *asked*
    owner: Owner
    project: str
    session: str
    seq: int  # index of the user message in its session, from 0; the response has seq + 1
    asked: str = field(repr=False)
    answered: str = field(repr=False)
    at: datetime
    injected: tuple[str, ...] = field(default=(), repr=False)
    origin: Origin = Origin()
    last: bool = False  # its session ends with it
    heard: str = (
        ""  # hash of the conversation up to and with *asked*: wherever it is placed, sent again it is the same
    )
    resumes: bool = False  # something was said before *asked*, so *heard* is no other conversation's
    speaker: str = ""  # which of several, where *owner* is a project (Caller.speaker)
    tools: bool = False  # the answer stands on results of tools


def message_id_of(owner: Owner, turn_id: str, ordinal: int, number: int = 0) -> str:
    """The memory id of a turn's user message (ordinal 0) or response (1), or of a piece (*number*)."""
    place = str(ordinal) if number == 0 else f"{ordinal}.{number}"
    return digest(_MESSAGE, owner.key, turn_id, place)


def message_ids(turn: Turn, *, any_answer: bool = True) -> list[str]:
    """All possible memory ids of *turn*'s messages. *any_answer*: for any text; else for its current text."""
    pieces = [_MOST_PIECES if any_answer else _most_pieces(text) for text in (turn.asked, turn.answered)]
    return [
        message_id_of(turn.owner, turn.id, ordinal, number)
        for ordinal in (0, 1)
        for number in range(pieces[ordinal])
    ]


def _most_pieces(text: str) -> int:
    return min(_MOST_PIECES, 1 + len(text) // _LEAST_PIECE)


class JournalState(StrEnum):
    """The state of a turn in the journal."""

    WAITING = "waiting"  # accepted, nothing of it done
    STORED = "stored"  # its messages are in the store, facts are still to be extracted
    LEARNED = "learned"  # nothing left to do; kept for a while, so that a retry is known
    DEAD = "dead"  # given up on, kept for review


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A turn that failed permanently, without its text."""

    turn_id: str
    place: str  # as JournalEntry.place
    owner: str  # Owner.key
    reason: str  # the kind of error, or "unreadable"
    attempts: int
    asked_at: datetime
    failed_at: datetime


class TurnOutcome(StrEnum):
    """The result for a completed exchange: the label of turns_total."""

    JOURNALLED = "journalled"
    JOURNAL_LATE = "journal_late"  # in the intake log; journalled later, and counted again if that fails
    UNDECIDED = "undecided"  # in the intake log until consent and incognito are known; then counted again
    DUPLICATE = "duplicate"  # a known turn: a retry
    JOURNAL_FULL = "journal_full"
    JOURNAL_FAILED = "journal_failed"
    NOT_ASKED = "not_asked"  # storing was switched off for it
    ROUTER_REFUSED = "router_refused"  # the router in front says that no model answered
    NOT_OK = "not_ok"  # status other than 200, or an error body
    CUT_OFF = "cut_off"  # the answer did not come to its end
    UNREADABLE = "unreadable"
    NO_CONSENT = "no_consent"  # the caller allows no learning
    INCOGNITO = "incognito"  # its session was begun or continued incognito
    FORGOTTEN = "forgotten"  # asked before its owner had it forgotten, or sent again since
    OVER_QUOTA = "over_quota"  # the caller exceeded the learning quota
    CAPTURE_LIMIT = "capture_limit"
    PROCESS_LIMIT = "process_limit"
