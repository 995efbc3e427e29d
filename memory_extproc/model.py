"""The words of the product as frozen values. No I/O, no clock, no library types but numpy's."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

# Both are float32, every row of unit Euclidean length.
Vector = npt.NDArray[np.float32]  # shape (dimension,)
Matrix = npt.NDArray[np.float32]  # shape (n, dimension)


class Outcome(StrEnum):
    """How a request left us. Also the metric label and the header, so a value is never renamed."""

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
    """On which side of a comparison an exchange stands, whatever became of it. Also the metric label and what Envoy
    is told, so a value is never renamed."""

    MEMORY = "memory"
    CONTROL = "control"  # of the group that mode: gradual leaves without
    SHADOW = "shadow"  # everything runs, nothing is injected
    NONE = "none"  # nobody's: no caller, or no chat


class Consent(StrEnum):
    """What a person allows. Also what is stored, so a value is never renamed."""

    OFF = "off"  # nothing is recalled and nothing kept
    RECALL_ONLY = "recall_only"  # what is there is recalled, nothing is added
    ON = "on"


class MemoryType(StrEnum):
    SEMANTIC = "semantic"
    PROCEDURAL = "procedural"
    EPISODIC = "episodic"
    REFLECTIVE = "reflective"


class Role(StrEnum):
    """Who said it. NONE is for memories that nobody said in these words, such as extracted facts."""

    USER = "user"
    ASSISTANT = "assistant"
    NONE = "none"


class MemoryState(StrEnum):
    ACTIVE = "active"
    SUPERSEDED = "superseded"
    QUARANTINED = "quarantined"
    DELETED = "deleted"


class Source(StrEnum):
    """How a memory came to be."""

    VERBATIM = "verbatim"  # a message as it was said
    QUESTION = "question"  # a message that only asks: context of its answer, never recalled itself
    RULES = "rules"  # extracted by the rules
    LLM = "llm"  # extracted by a model
    API = "api"  # told to us over the memory API
    SUMMARY = "summary"  # of a topic or a session; what it was made of stands in metadata.sources


class OwnerKind(StrEnum):
    """Whose an owner's memories are. Also the word in `explain` and in the metric label."""

    OWN = "own"  # one person's
    PROJECT = "project"  # shared by the members of a project
    GLOBAL = "global"  # an operator's, for every caller of a tenant, or of all tenants
    CANARY = "canary"  # nobody's: what is asked for to see whether recall works


# Begins the user of every owner that is no person. No door takes a control character in a name, so nobody can be
# called so; the kind and the name behind it are part of the partition key, of every id and of every cache key.
SHARED = "\x1f"
_PROJECT, _GLOBAL, _CANARY = f"{SHARED}project{SHARED}", f"{SHARED}global", f"{SHARED}canary"


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose memory it is: a person's, a project's or an operator's. A missing tenant is a tenant of its own, never
    a wider view."""

    tenant: str
    user: str = field(repr=False)

    @classmethod
    def of_project(cls, tenant: str, project: str) -> Owner:
        """The owner of what the members of *project* share. ValueError without a name."""
        if not project:
            raise ValueError("a project without a name shares nothing")
        return cls(tenant, _PROJECT + project)

    @classmethod
    def of_everyone(cls, tenant: str | None = None) -> Owner:
        """The owner of an operator's memories for every caller of *tenant*; None: of all tenants."""
        return cls(SHARED if tenant is None else tenant, _GLOBAL)

    @classmethod
    def of_canary(cls) -> Owner:
        """The owner of what is known to be remembered, for trying whether it is found."""
        return cls(SHARED, _CANARY)

    @property
    def kind(self) -> OwnerKind:
        if not self.user.startswith(SHARED):
            return OwnerKind.OWN
        if self.user == _CANARY:
            return OwnerKind.CANARY
        return OwnerKind.PROJECT if self.user.startswith(_PROJECT) else OwnerKind.GLOBAL

    @property
    def project(self) -> str:
        """The name of the project whose memories these are; empty for every other kind of owner."""
        return self.user.removeprefix(_PROJECT) if self.kind is OwnerKind.PROJECT else ""

    @property
    def key(self) -> str:
        """64 hex digits, one per owner; lengths are part of the hash so that no two owners share one."""
        return digest("owner", self.tenant, self.user)


def digest(*parts: str) -> str:
    """SHA-256 over *parts*, length-prefixed so that ("ab", "c") and ("a", "bc") differ; 64 hex digits."""
    hashed = hashlib.sha256()
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        hashed.update(len(encoded).to_bytes(8, "big"))
        hashed.update(encoded)
    return hashed.hexdigest()


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: the owner of the memories, the project that narrows them, the session if it was named."""

    owner: Owner
    project: str = ""
    session: str = ""  # as the client named it; empty: found from the conversation
    projects: tuple[str, ...] = ()  # whose member the caller verifiably is, by a claim or Envoy's metadata
    speaker: str = ""  # which of several, where *owner* is a project that its members' words become part of


@dataclass(frozen=True, slots=True)
class ConsentChange:
    """One entry of a caller's history of consent: what they chose, when, and who wrote it down."""

    consent: Consent
    at: datetime
    by: str = field(default="", repr=False)  # the principal that set it; may name a person


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
    ends_session: bool = False


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


@dataclass(frozen=True, slots=True)
class Period:
    """A time in the past, from *first* up to *until*."""

    first: datetime
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """One remembered fact or message. Times are UTC with whole seconds; *content* is private."""

    id: str  # 64 hex digits of owner, turn and ordinal; never moves between owners
    owner: Owner
    type: MemoryType
    content: str = field(repr=False)
    source: Source
    created_at: datetime
    updated_at: datetime
    project: str = ""
    session: str = ""
    seq: int = 0
    role: Role = Role.NONE
    origin: str = ""
    state: MemoryState = MemoryState.ACTIVE
    importance: float = 0.5  # 0 to 1
    access_count: int = 0
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    expires_at: datetime | None = None
    superseded_by: str = ""
    embed_model: str = ""  # fingerprint of the model that made the vector
    metadata: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}), repr=False)

    def recallable(self, now: datetime) -> bool:
        """Whether recall may ever return it at *now*: active, not expired, and not a bare question."""
        return (
            self.state is MemoryState.ACTIVE
            and self.source is not Source.QUESTION
            and (self.expires_at is None or now < self.expires_at)
        )

    def held_in(self, period: Period, now: datetime) -> bool:
        """Whether it held at some time of *period* and was replaced since."""
        began = self.valid_from or self.created_at
        return (
            self.state is MemoryState.SUPERSEDED
            and self.source is not Source.QUESTION
            and self.valid_to is not None
            and began < period.until
            and period.first < self.valid_to
            and (self.expires_at is None or now < self.expires_at)
        )


@dataclass(frozen=True, slots=True)
class DataKey:
    """The key that seals one owner's texts. *id* is random and stands in all that it sealed, so that what was
    sealed with a key that is gone is told from what is damaged."""

    id: bytes  # 8 bytes
    secret: bytes = field(repr=False)  # 32 bytes


@dataclass(frozen=True, slots=True)
class Embedded:
    """A memory with the vector of its content."""

    memory: Memory
    vector: Vector = field(repr=False)


@dataclass(frozen=True, slots=True)
class Found:
    """A memory a search came upon; *cosine* in [-1, 1] to what was searched for."""

    memory: Memory
    cosine: float


@dataclass(frozen=True, slots=True)
class Scope:
    """What narrows a search within one owner's memories. The empty project means all of them, and no *origins*
    mean any. With *as_of* it is widened: what held then and was replaced since is searched too."""

    project: str = ""
    types: frozenset[MemoryType] = frozenset(MemoryType)
    origins: tuple[str, ...] = ()  # globs over parts of Memory.origin, such as "route=support-*"
    sources: frozenset[Source] = frozenset(Source)
    as_of: Period | None = None

    def holds(self, memory: Memory) -> bool:
        narrow_enough = memory.type in self.types and (not self.project or memory.project == self.project)
        return narrow_enough and memory.source in self.sources and self.comes_from(memory.origin)

    def comes_from(self, origin: str) -> bool:
        """Whether a memory of *origin* is among those that *origins* let in."""
        if not self.origins:
            return True
        return any(fnmatchcase(part, wanted) for part in origin.split() for wanted in self.origins)


@dataclass(frozen=True, slots=True)
class Searched:
    """Best first. *total*: how many memories the owner has in any state or scope; None if not known."""

    found: tuple[Found, ...]
    total: int | None
    path: str  # "hybrid" from the owner's partition in process, "store" from the store's own search


@dataclass(frozen=True, slots=True)
class Sought:
    """What is searched for: a question's words, and their vector unless none was to be had."""

    text: str = field(repr=False)
    vector: Vector | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Words:
    """The words of a text that carry meaning, in pieces, each as a vector that knows what stands around it, packed
    as `index.packing` does it. At least one piece."""

    packed: npt.NDArray[np.uint8] = field(repr=False)  # (pieces, half the dimension)
    scale: npt.NDArray[np.float32] = field(repr=False)  # (pieces,): what makes each of unit length

    @property
    def size(self) -> int:
        """Bytes."""
        return int(self.packed.nbytes + self.scale.nbytes)


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Memories that a search came upon, in no particular order, with what speaks for each of them.

    *features* has a row for each memory and a column for each of *names*; NaN: not known of this one. *centre* and
    *spread* are mean and standard deviation of the columns over all *searched* memories, of which these are the
    likeliest. *total*: how many memories the owner has in any state or scope; None if not known.
    """

    memories: tuple[Memory, ...]
    names: tuple[str, ...]
    features: npt.NDArray[np.float64]
    centre: npt.NDArray[np.float64]
    spread: npt.NDArray[np.float64]
    searched: int
    total: int | None
    path: str  # "hybrid" or "lexical" from the owner's partition in process, "store" from the store's own search


class Switch(StrEnum):
    """What a client or rule asks of one path for one request."""

    DEFAULT = "default"
    SKIP = "skip"
    FORCE = "force"


@dataclass(frozen=True, slots=True)
class Signals:
    """What the router in front found out; None where it said nothing."""

    fact: bool | None = None
    tool: bool | None = None
    greeting: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What recall is asked for: one request's words, signals and limits, already narrowed and trusted."""

    caller: Caller
    asked: str = field(repr=False)
    earlier: tuple[str, ...] = field(default=(), repr=False)  # the user's messages before, oldest first
    signals: Signals = Signals()
    force: bool = False  # overrides the gate
    limit: int = 5
    threshold: float = 0.6  # on relevance, 0 to 1
    scope: Scope = Scope()
    room: int | None = None  # tokens the block may have at most; None: the configured budget alone
    in_view: frozenset[str] = field(default=frozenset(), repr=False)  # texts the model already sees: what was said
    # in the conversation, and the memories it was given before
    continues: bool = False  # the model sees a block of ours in the conversation already
    spent: timedelta = timedelta()  # of the deadline, before recall was asked
    shared: tuple[Owner, ...] = ()  # whose memories are recalled beside the caller's own
    learned_as: Caller | None = None  # whose this turn's words become, where they are not the caller's own


@dataclass(frozen=True, slots=True)
class Ranked:
    """A memory with its calibrated relevance in [0, 1]."""

    memory: Memory
    relevance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """What recall came to. *block* is empty unless the outcome is USED."""

    outcome: Outcome
    block: str = field(default="", repr=False)
    memories: tuple[Ranked, ...] = ()
    path: str = ""  # rerank, hybrid, lexical or store; empty when nothing was searched
    tokens: int = 0
    took: timedelta = timedelta()


class Stored(StrEnum):
    """What became of a completed exchange: the label of turns_total."""

    JOURNALLED = "journalled"
    JOURNAL_LATE = "journal_late"  # not on disk within the wait; finished behind, counted again if that fails
    DUPLICATE = "duplicate"  # a turn we already have: a retry
    JOURNAL_FULL = "journal_full"
    JOURNAL_FAILED = "journal_failed"
    NOT_ASKED = "not_asked"  # storing was switched off for it
    NOT_OK = "not_ok"  # status other than 200, or an error body
    CUT_OFF = "cut_off"  # the answer did not come to its end
    UNREADABLE = "unreadable"
    NO_CONSENT = "no_consent"  # the caller allows no learning, or we cannot find out whether they do
    INCOGNITO = "incognito"  # its session was begun or continued incognito
    FORGOTTEN = "forgotten"  # asked before its owner had it forgotten, or sent again since
    OVER_QUOTA = "over_quota"  # more than one caller may have learned in that time
    CAPTURE_LIMIT = "capture_limit"
    PROCESS_LIMIT = "process_limit"


# --- forgetting ------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetScope:
    """What of one owner's memories is forgotten: each condition that is given narrows; without any, everything."""

    ids: tuple[str, ...] = ()
    project: str = ""
    types: frozenset[MemoryType] = frozenset()
    session: str = field(default="", repr=False)
    before: datetime | None = None
    query: str = field(default="", repr=False)  # what a search for these words finds

    @property
    def everything(self) -> bool:
        return self == ForgetScope()

    @property
    def name(self) -> str:
        """The conditions given, as a word for labels and receipts."""
        given = {
            "memory": len(self.ids) == 1,
            "memories": len(self.ids) > 1,
            "project": bool(self.project),
            "type": bool(self.types),
            "session": bool(self.session),
            "before": self.before is not None,
            "query": bool(self.query),
        }
        return "+".join(name for name, there in given.items() if there) or "user"


class ForgetState(StrEnum):
    """How far a forget has come. Also what is stored, so a value is never renamed."""

    ACCEPTED = "accepted"  # written down: it will be done whatever happens; until then nothing is recalled
    CLEAN = "clean"  # recall cannot find it any more
    COMPLETE = "complete"  # no store holds it any more


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased:
    """What a forget removed from one store."""

    store: str  # memories, journal, records, files
    done: bool = False
    removed: int = 0
    done_at: datetime | None = None
    pending_until: datetime | None = None  # by when at the latest, where that is known
    note: str = ""  # what is still to happen, for operators


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetReceipt:
    """How far a forget has come. It holds no words and no name."""

    id: str  # 32 hex digits
    state: ForgetState
    scope: str  # ForgetScope.name
    subject: str  # keyed hash of the owner, 64 hex digits
    accepted_at: datetime
    clean_at: datetime | None = None
    completed_at: datetime | None = None
    memories: int = 0
    stores: tuple[Erased, ...] = ()
    signed: bytes = field(default=b"", repr=False)  # the receipt as canonical JSON
    signature: bytes = field(default=b"", repr=False)  # Ed25519 over *signed*; empty where no key is configured
    key_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetPlan:
    """What a forget would take: *memories* are the newest 1,000 of *total*. *token* confirms exactly these."""

    memories: tuple[Memory, ...]
    total: int
    token: str = field(repr=False)
    expires_at: datetime


# --- in and out ------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class ImportProblem:
    """Why one memory was not taken in, without its words."""

    index: int  # its place in the stream, from 0
    id: str  # as it was sent
    reason: str  # a stable word: conflict, forgotten, bad_field, too_large, no_consent, deleted
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """What became of an import. *problems* are the first 1,000 of what is conflicting or refused."""

    added: int = 0
    same: int = 0
    replaced: int = 0
    conflicting: int = 0
    refused: int = 0
    problems: tuple[ImportProblem, ...] = ()


@dataclass(frozen=True, slots=True)
class LedgerJob:
    """A forget as the ledger keeps it. *subject*: a keyed hash of the owner."""

    id: str
    subject: str
    body: bytes = field(repr=False)
    shut: bool  # the owner's memories are closed until it has come further
    open: bool  # something is left to be done


@dataclass(frozen=True, slots=True)
class LedgerMarks:
    """What the ledger knows of one subject: items by hash, with when they were forgotten (seconds since 1970)."""

    cuts: tuple[bytes, ...] = ()
    items: Mapping[bytes, float] = field(default_factory=lambda: MappingProxyType({}))
    shut: bool = False


# --- long conversations ------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class ChatState:
    """What stands for the older part of a conversation. All of it is people's words."""

    topic: str = field(default="", repr=False)
    decisions: tuple[str, ...] = field(default=(), repr=False)
    values: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # name and value
    questions: tuple[str, ...] = field(default=(), repr=False)  # that are still open


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Who a caller is, as a block. *text* is empty where nothing is known."""

    text: str = field(default="", repr=False)
    ids: tuple[str, ...] = ()  # of the memories in it
    contents: tuple[str, ...] = field(default=(), repr=False)  # of the same
    eligible: frozenset[str] = frozenset()  # ids of all that hold now and might be in it
    tokens: int = 0  # estimated
