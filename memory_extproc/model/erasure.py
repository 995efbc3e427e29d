"""What is asked to be forgotten, and how far that has come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType

from memory_extproc.model.memory import Memory, MemoryType


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetScope:
    """What of one owner's memories is forgotten: each condition that is given narrows; without any, everything."""

    ids: tuple[str, ...] = ()
    project: str = ""
    types: frozenset[MemoryType] = frozenset()
    session: str = field(default="", repr=False)
    before: datetime | None = None
    query: str = field(default="", repr=False)  # what a search for these words finds
    listed: tuple[str, ...] = ()  # ids that a dry run listed beside *ids*: they go too, and take nothing else along

    @property
    def everything(self) -> bool:
        return self == ForgetScope()

    @property
    def by_id_alone(self) -> bool:
        """Whether the ids say it all: whatever has one of them goes."""
        return self == ForgetScope(ids=self.ids, listed=self.listed) and bool(self.ids)

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

    ACCEPTED = "accepted"  # written down: it will be done whatever happens, and is not recalled
    CLEAN = "clean"  # recall cannot find it any more
    COMPLETE = "complete"  # no store holds it any more


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased:
    """What a forget removed from one store."""

    store: str  # memories, journal, records, files, waiting_turns
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


@dataclass(frozen=True, slots=True)
class LedgerJob:
    """A forget as the ledger keeps it. *subject*: a keyed hash of the owner."""

    id: str
    subject: str
    body: bytes = field(repr=False)
    shut: bool  # the owner's memories are closed until all that can be reached is erased
    open: bool  # something is left to be done


@dataclass(frozen=True, slots=True)
class WaitingPlace:
    """A data directory with accepted turns that are not in the shared journal yet."""

    name: str  # for operators; nobody's words and no user's name
    since: datetime | None  # when the oldest of them was asked; None: unknown, because the replica ended unheard
    live: bool  # a replica runs on it


@dataclass(frozen=True, slots=True)
class LedgerMarks:
    """What the ledger knows of one subject: items by hash, with when they were forgotten (seconds since 1970)."""

    cuts: tuple[bytes, ...] = ()
    items: Mapping[bytes, float] = field(default_factory=lambda: MappingProxyType({}))
    shut: bool = False


# --- records -----------------------------------------------------------------------------------------
# Kinds of records that Coordination keeps, in one place: what a forget has to erase is read from here.


@dataclass(frozen=True, slots=True)
class RecordKind:
    """*name* is stored, so it is never changed."""

    name: str
    holds_text: bool  # people's words or memories: erased by every forget; others go with a forget of everything


_KINDS = (
    RecordKind("head", holds_text=False),  # learn/sessions.py, these six: hashes and places of conversations
    RecordKind("slot", holds_text=False),
    RecordKind("opening", holds_text=False),
    RecordKind("tail", holds_text=False),
    RecordKind("turn", holds_text=False),
    RecordKind("response", holds_text=True),  # and the user's last texts
    RecordKind("incognito", holds_text=False),  # learn/incognito.py
    RecordKind("given", holds_text=True),  # wire/replays.py: blocks of memories
    RecordKind("given_response", holds_text=True),
    RecordKind("compressed", holds_text=True),  # wire/compression.py: a conversation, condensed
    RecordKind("topics", holds_text=False),  # topics/state.py: ids and places of turns
    RecordKind("retention", holds_text=False),  # retention: that an owner was seen to, ids of facts
    RecordKind("forget_plan", holds_text=False),  # erasure/plans.py: ids
    RecordKind("console_link", holds_text=False),  # console/sessions.py: that a link was followed
    RecordKind("decision", holds_text=True),  # request/decisions.py: ids of memories
    RecordKind("turn_of", holds_text=False),  # request/decisions.py: outcome of a request's turn
    RecordKind("api", holds_text=False),  # api/repeats.py: a hash of the call, ids and words of ours
)
RECORD_KINDS: Mapping[str, RecordKind] = {kind.name: kind for kind in _KINDS}
TEXT_KINDS = tuple(kind.name for kind in _KINDS if kind.holds_text)
