"""What was said, on its way to being remembered."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from memory_extproc.model.memory import Role
from memory_extproc.model.owner import Caller, Owner, digest

_MESSAGE = "memory"  # first part of every message's id, so that a fact's id is never a message's
_MOST_PIECES = 64  # of a message that any version of ours may have left behind
_LEAST_PIECE = 16  # characters; the pieces of a message have more on an average


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation as text; its text is a person's words and never printed."""

    role: Role
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a turn came from; each may be empty."""

    dialect: str = ""
    model: str = ""
    route: str = ""
    app: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """A completed exchange as the wire saw it: what the client sent (never our block) and the answer."""

    caller: Caller
    history: tuple[Message, ...]  # user and assistant messages before *asked*, oldest first
    asked: str = field(repr=False)  # the caller's last words
    answered: str = field(repr=False)  # the assistant's text; empty when it only called tools
    at: datetime
    injected: tuple[str, ...] = field(default=(), repr=False)  # contents of the memories in our block
    origin: Origin = Origin()
    previous_response_id: str = ""
    response_id: str = ""
    conversation: str = ""  # name of the one that the provider keeps; it is the same for each of its turns
    ends_session: bool = False
    tools: bool = False  # the answer stands on results of tools
    request_id: str = ""  # by which its receipt is found; empty: none is kept

    @property
    def continues(self) -> str:
        """What the provider goes on from: a response, or a conversation; "" for neither."""
        return self.previous_response_id or self.conversation


@dataclass(frozen=True, slots=True)
class Screened:
    """An exchange that may be kept. *whole* has no secrets left and is for knowing the conversation again, by
    hashes alone; *kept* is what may be written: less, where a policy says so."""

    whole: Exchanged
    kept: Exchanged


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What was asked and answered, with its place: the journal's entry. *id* is the same for a retry."""

    id: str  # 64 hex digits of owner, session and the conversation up to and with *asked*
    owner: Owner
    project: str
    session: str
    seq: int  # of the asked message within its session, from 0; the answer is seq + 1
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
    """The id of the memory of a turn's first (0, the caller's) or second message (1, the answer), or of one of its
    pieces."""
    place = str(ordinal) if number == 0 else f"{ordinal}.{number}"
    return digest(_MESSAGE, owner.key, turn_id, place)


def message_ids(turn: Turn, *, any_answer: bool = True) -> list[str]:
    """Every id that the memories of *turn*'s messages may have. *any_answer*: whatever it was asked and answered
    before; else only of the words that it has."""
    pieces = [_MOST_PIECES if any_answer else _most_pieces(text) for text in (turn.asked, turn.answered)]
    return [
        message_id_of(turn.owner, turn.id, ordinal, number)
        for ordinal in (0, 1)
        for number in range(pieces[ordinal])
    ]


def _most_pieces(text: str) -> int:
    return min(_MOST_PIECES, 1 + len(text) // _LEAST_PIECE)


class JournalState(StrEnum):
    """How far a turn has come in the journal."""

    WAITING = "waiting"  # accepted, nothing of it done
    STORED = "stored"  # its messages are in the store, facts are still to be extracted
    LEARNED = "learned"  # nothing left to do; kept for a while, so that a retry is known
    DEAD = "dead"  # given up on, kept for review


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A turn that was given up on, without anybody's words."""

    turn_id: str
    place: str  # as JournalEntry.place
    owner: str  # Owner.key
    reason: str  # the kind of error, or "unreadable"
    attempts: int
    asked_at: datetime
    failed_at: datetime


class TurnOutcome(StrEnum):
    """What became of a completed exchange: the label of turns_total."""

    JOURNALLED = "journalled"
    JOURNAL_LATE = "journal_late"  # in the intake log; the journal has it later, counted again if that fails
    UNDECIDED = "undecided"  # in the intake log until consent and incognito are known; then counted again
    DUPLICATE = "duplicate"  # a turn we already have: a retry
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
    OVER_QUOTA = "over_quota"  # more than one caller may have learned in that time
    CAPTURE_LIMIT = "capture_limit"
    PROCESS_LIMIT = "process_limit"
