"""Forget scopes, receipts and progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType

from memory_extproc.model.memory import Memory, MemoryType


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetScope:
    """The memories of an owner to forget. All given conditions must match; without any, everything is forgotten."""

    ids: tuple[str, ...] = ()
    project: str = ""
    types: frozenset[MemoryType] = frozenset()
    session: str = field(default="", repr=False)
    before: datetime | None = None
    query: str = field(default="", repr=False)  # search words; the search results are forgotten
    listed: tuple[str, ...] = ()  # ids that a dry run listed beside *ids*: they go too, and take nothing else along

    @property
    def everything(self) -> bool:
        return self == ForgetScope()

    @property
    def by_id_alone(self) -> bool:
        """Whether ids are the only condition."""
        return self == ForgetScope(ids=self.ids, listed=self.listed) and bool(self.ids)

    @property
    def name(self) -> str:
        """The given conditions, joined into a word for labels and receipts."""
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
    """The progress of a forget. Stored, so values are never renamed."""

    ACCEPTED = "accepted"  # recorded: it will be completed, and recall is blocked
    CLEAN = "clean"  # recall can no longer find it
    COMPLETE = "complete"  # no store contains it any more


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased:
    """The data removed from a store by a forget."""

    store: str  # memories, journal, records, files, waiting_turns
    done: bool = False
    removed: int = 0
    done_at: datetime | None = None
    pending_until: datetime | None = None  # the latest time of completion, if known
    note: str = ""  # pending work, for operators


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetReceipt:
    """The progress of a forget. Contains no user text and no name."""

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
    """A preview of a forget: the newest 1,000 memories of *total*. *token* confirms exactly the listed memories."""

    memories: tuple[Memory, ...]
    total: int
    token: str = field(repr=False)
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class LedgerJob:
    """A forget as stored in the ledger. *subject*: a keyed hash of the owner."""

    id: str
    subject: str
    body: bytes = field(repr=False)
    shut: bool  # the owner's memories are closed until all that can be reached is erased
    open: bool  # something is left to be done


@dataclass(frozen=True, slots=True)
class WaitingPlace:
    """A data directory with accepted turns that are not in the shared journal yet."""

    name: str  # for operators; contains no user text or name
    since: datetime | None  # when the oldest of them was asked; None: unknown, because the replica ended unheard
    live: bool  # a replica runs on it


@dataclass(frozen=True, slots=True)
class LedgerMarks:
    """The ledger's tombstones of a subject. *items*: hash to time of the forget (seconds since 1970)."""

    cuts: tuple[bytes, ...] = ()
    items: Mapping[bytes, float] = field(default_factory=lambda: MappingProxyType({}))
    shut: bool = False


# The kinds of Coordination records, in a single place: a forget erases by this list.


@dataclass(frozen=True, slots=True)
class RecordKind:
    """A kind of record. *name* is stored, so it is never changed."""

    name: str
    holds_text: bool  # people's words or memories: erased by every forget; others go with a forget of everything
    # A crash may lose the latest: a conversation is then continued as a new session, or without an earlier block.
    deferred: bool = False


_KINDS = (
    # learn/sessions.py, these six: hashes and places of conversations
    RecordKind("head", holds_text=False, deferred=True),
    RecordKind("slot", holds_text=False),
    RecordKind("opening", holds_text=False, deferred=True),
    RecordKind("tail", holds_text=False),
    RecordKind("turn", holds_text=False, deferred=True),
    RecordKind("response", holds_text=True, deferred=True),  # and the user's last texts
    RecordKind("incognito", holds_text=False),  # learn/screening.py
    RecordKind("given", holds_text=True, deferred=True),  # request/replay.py: blocks of memories
    RecordKind("given_response", holds_text=True, deferred=True),
    RecordKind("compressed", holds_text=True, deferred=True),  # request/compression.py: a conversation, condensed
    RecordKind("topics", holds_text=False),  # topics/state.py: ids and places of turns
    RecordKind("retention", holds_text=False),  # retention: that an owner was seen to, ids of facts
    RecordKind("forget_plan", holds_text=False),  # erasure/forgetter.py: ids
    RecordKind("console_link", holds_text=False),  # console/server.py: that a link was followed
    RecordKind("decision", holds_text=True, deferred=True),  # request/decisions.py: ids of memories
    RecordKind("turn_of", holds_text=False, deferred=True),  # request/decisions.py: outcome of a request's turn
    RecordKind("api", holds_text=False),  # api/call.py: a hash of the call, ids and words of ours
)
RECORD_KINDS: Mapping[str, RecordKind] = {kind.name: kind for kind in _KINDS}
TEXT_KINDS = tuple(kind.name for kind in _KINDS if kind.holds_text)
