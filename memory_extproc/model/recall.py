"""Recall requests and results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

import msgspec

from memory_extproc.model.memory import Memory, Scope
from memory_extproc.model.owner import Caller, Owner


class Outcome(StrEnum):
    """The outcome of a request. Also metric label and header value, so values are never renamed."""

    USED = "used"
    NOTHING_RELEVANT = "nothing_relevant"
    EMPTY = "empty"  # the caller has no memories
    SKIPPED_FACT = "skipped_fact"
    SKIPPED_TOOL = "skipped_tool"
    SKIPPED_GREETING = "skipped_greeting"
    OPTED_OUT = "opted_out"  # x-disable-router-memory, x-memory-retrieve: skip, memory_config.enabled
    DISABLED = "disabled"  # the operator said no: configuration or a rule
    NO_CALLER = "no_caller"  # no identity from a trusted source
    NOT_CHAT = "not_chat"
    BAD_BODY = "bad_body"
    TOO_LARGE = "too_large"
    OUT_OF_TIME = "out_of_time"
    OVERLOADED = "overloaded"
    UNAVAILABLE = "unavailable"
    NO_CONSENT = "no_consent"
    NO_ROOM = "no_room"  # the block would not fit the model's window
    SHADOWED = "shadowed"  # mode: shadow; everything ran, nothing was injected
    CONTROL = "control"  # the control group of mode: gradual
    ABANDONED = "abandoned"  # the client left, or Envoy answered itself, before the request's body was whole


class Arm(StrEnum):
    """The arm of an exchange in a comparison, regardless of its outcome.

    Also metric label and sent to Envoy, so values are never renamed."""

    MEMORY = "memory"
    CONTROL = "control"  # the control group of mode: gradual
    SHADOW = "shadow"  # everything runs, nothing is injected
    NONE = "none"  # no caller, or no chat request


class Switch(StrEnum):
    """A setting of a client or rule for recall or storage in a request."""

    DEFAULT = "default"
    SKIP = "skip"
    FORCE = "force"


@dataclass(frozen=True, slots=True)
class Signals:
    """Signals of an upstream router; None if absent."""

    fact: bool | None = None
    tool: bool | None = None
    greeting: bool | None = None


READ_EACH_END = 16_000  # characters, white space included, of a message that may have a million


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallRequest:
    """The input of recall: a request's text, signals and limits, already verified and narrowed."""

    caller: Caller
    asked: str = field(repr=False)
    earlier: tuple[str, ...] = field(default=(), repr=False)  # the user's earlier messages, oldest first
    signals: Signals = Signals()
    force: bool = False  # overrides the gate
    limit: int = 5
    limited: bool = False  # the request or a rule names the limit, which then holds for lists and overviews, too
    threshold: float = 0.6  # on relevance, 0 to 1
    scope: Scope = field(default_factory=Scope)
    budget: int | None = None  # tokens of the block that a rule allows; None: as configured
    room: int | None = None  # tokens the block may have at most; None: the configured budget alone
    in_view: frozenset[str] = field(default=frozenset(), repr=False)  # texts in view of the model: messages
    # of the conversation, and memories injected earlier
    behind: str = ""  # the session whose messages the provider keeps for the model; empty: none that we know of
    continues: bool = False  # the model sees a block of ours in the conversation already
    spent: timedelta = timedelta()  # of the deadline, before recall was asked
    shared: tuple[Owner, ...] = ()  # whose memories are recalled beside the caller's own
    as_of: str = ""  # RFC 3339: as memory stood then; empty: now. As the client sent it, and perhaps no time at all
    learned_as: Caller | None = None  # whose this turn's words become, where they are not the caller's own

    @property
    def question(self) -> str:
        """*asked*, or the beginning and end of a long text: users put their question around a pasted text."""
        if len(self.asked) <= 2 * READ_EACH_END:
            return self.asked
        return f"{self.asked[:READ_EACH_END]}\n{self.asked[-READ_EACH_END:]}"


class Candidate(msgspec.Struct, frozen=True):  # no dataclass: of these there are a hundred for each question
    """A memory found by a search. *score* orders the candidates of a question and has no meaning beyond it;
    *relevance* in [0, 1] is calibrated; *features* by name are the inputs of both."""

    memory: Memory
    score: float
    relevance: float
    features: Mapping[str, float] = msgspec.field(default_factory=dict)

    def standing(self, *, on_cosine: bool) -> float:
        """The value for thresholds: the relevance, or with *on_cosine* the raw cosine. A search by words alone has
        no cosine, and NaN would pass every threshold, so the relevance stands in."""
        if not on_cosine:
            return self.relevance
        cosine = self.features.get("dense", math.nan)
        return self.relevance if math.isnan(cosine) else cosine


def reaching(ordered: Sequence[Candidate], threshold: float, *, on_cosine: bool) -> list[Candidate]:
    """The candidates of *ordered* whose standing is at least *threshold*."""
    if on_cosine:
        return [one for one in ordered if one.standing(on_cosine=True) >= threshold]
    return [one for one in ordered if one.relevance >= threshold]


class Verdict(StrEnum):
    """The outcome of a candidate."""

    INJECTED = "injected"
    NO_ROOM = "no_room"  # chosen, but the block's tokens were used up before it
    OVER_LIMIT = "over_limit"  # relevant enough, but as many as wanted were better
    BELOW_THRESHOLD = "below_threshold"
    DUPLICATE = "duplicate"  # says what a chosen memory says already
    IN_VIEW = "in_view"  # the model sees it in the conversation as it is
    THREAD = "thread"  # fetched because a summary of its topic matched well, whatever its own relevance
    BLOCKED = "blocked"  # a pattern of privacy.never_inject matches it, or it holds another request's placeholder
    UNTRUSTED = "untrusted"  # less trusted than the question requires
    NOT_RECALLABLE = "not_recallable"  # expired, replaced, forgotten, or a bare question


@dataclass(frozen=True, slots=True)
class Considered:
    """A candidate with its verdict. *score* orders the candidates of a question and has no meaning beyond it;
    *relevance* in [0, 1] is compared with the threshold; *features* by name are the inputs of both."""

    memory: Memory
    score: float
    relevance: float
    verdict: Verdict
    features: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ranked:
    """A memory with its calibrated relevance in [0, 1]. *renewed*: the time of a later statement of its owner that
    perhaps tells a newer value."""

    memory: Memory
    relevance: float
    renewed: datetime | None = None


class TracedMemory(NamedTuple):  # no dataclass: a request makes two dozen of these
    """A candidate of a recall. *verdict*: a value of Verdict."""

    memory: Memory
    score: float
    relevance: float
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallTrace:
    """How a recall came to its result. *considered*: best first, bounded. *stages*: seconds by name, filled
    until the recall ends."""

    considered: tuple[TracedMemory, ...] = ()
    kind: str = ""
    total: int | None = None
    worth: float | None = None
    threshold: float = 0.0
    stages: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallResult:
    """The result of recall. *block* is empty unless the outcome is USED."""

    outcome: Outcome
    block: str = field(default="", repr=False)
    memories: tuple[Ranked, ...] = ()
    in_view: frozenset[str] = frozenset()  # ids of relevant memories left out because they are in view
    path: str = ""  # rerank, hybrid, lexical or store; empty without a search
    tokens: int = 0
    took: timedelta = timedelta()
    trace: RecallTrace | None = None  # None: none is kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The explanation of a recall. An early stop leaves the later fields empty."""

    outcome: Outcome
    query: str = field(default="", repr=False)  # the searched text
    gate: Outcome | None = None  # the reason for no search; None: there was a search
    path: str = ""
    total: int | None = None  # memories the caller has; None where that is not known
    worth: float | None = None  # probability that anything is worth injecting, before any single memory
    considered: tuple[Considered, ...] = ()  # best first, with the rejected candidates
    block: str = field(default="", repr=False)
    kind: str = ""  # of the question, if it decided the lookup; empty: a plain search
    notes: tuple[str, ...] = ()  # parts of the request that could not be read and were ignored


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatState:
    """The condensed older part of a conversation. All of it is user text."""

    topic: str = field(default="", repr=False)
    decisions: tuple[str, ...] = field(default=(), repr=False)
    values: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # name and value
    questions: tuple[str, ...] = field(default=(), repr=False)  # still open


@dataclass(frozen=True, slots=True, kw_only=True)
class UserProfile:
    """A user profile as a block. *text* is empty if nothing is known."""

    text: str = field(default="", repr=False)
    ids: tuple[str, ...] = ()  # of the memories in it
    contents: tuple[str, ...] = field(default=(), repr=False)  # of the same memories
    eligible: frozenset[str] = frozenset()  # ids of all valid memories that qualify for it
    tokens: int = 0  # estimated
