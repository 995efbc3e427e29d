"""Ports for shared state of replicas, the journal, consent and keys."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol

from memory_extproc.model import (
    Caller,
    Consent,
    ConsentChange,
    DataKey,
    DeadLetter,
    JournalState,
    Message,
    Owner,
    Turn,
    TurnOutcome,
)


@dataclass(frozen=True, slots=True)
class Changes:
    """The ids of all rows that were written or deleted after a version and up to *version*."""

    version: int
    ids: frozenset[str]


class Coordination(Protocol):
    """State shared by replicas: SQLite for a single replica, Redis for several."""

    async def version(self, owner: Owner) -> int:
        """The number of writes for *owner* by all replicas; 0 at first. Cheap: on the read path."""

    async def bump(self, owner: Owner, changed: Sequence[str] | None = None) -> int:
        """Count a write and return the new version. *changed*: ids of the rows written or deleted; None: any."""

    async def changes(self, owner: Owner, since: int) -> Changes | None:
        """The writes after version *since*; None if they are unknown or no longer kept."""

    async def epoch(self, owner: Owner) -> int:
        """The number of forgets of *owner*; a write that began in an older epoch is discarded."""

    async def advance_epoch(self, owner: Owner) -> int: ...

    async def get_record(self, kind: str, owner: Owner, key: str) -> bytes | None:
        """A small record (session heads, response ids, injected blocks) if it exists and has not expired."""

    async def find_records(self, kind: str, owner: Owner, keys: Sequence[str]) -> Mapping[str, bytes]:
        """As get_record, those that exist of *keys*, by key."""

    async def put_record(self, kind: str, owner: Owner, key: str, value: bytes, ttl: timedelta) -> None: ...

    async def replace_record(
        self, kind: str, owner: Owner, key: str, old: bytes | None, new: bytes, ttl: timedelta
    ) -> bool:
        """Compare and swap: put *new* only if the record equals *old* (None: absent); returns whether it did."""

    async def delete_records(self, owner: Owner, kinds: Sequence[str] | None = None) -> None:
        """Delete all records of *owner*, or those of *kinds*; no trace stays in our files."""

    async def acquire(self, name: str, holder: str, ttl: timedelta) -> bool:
        """Take or renew the lease *name* for *holder*; False while another holds it."""

    async def release(self, name: str, holder: str) -> None: ...


@dataclass(frozen=True, slots=True)
class OwnerEntry:
    """An owner by counts. *memories* in any state; *updated_at* with whole seconds."""

    owner: Owner
    memories: int
    updated_at: datetime
    quarantined: int = 0  # of the memories


class OwnerTotals(NamedTuple):
    """The number of owners, of their memories, and of those in quarantine."""

    owners: int
    memories: int
    quarantined: int


class OwnerRegistry(Protocol):
    """Owners with the number of their memories, for operators. Lags seconds behind the store."""

    async def put(self, entry: OwnerEntry) -> None:
        """In place of the owner's entry. Without memories the entry, and any trace of the name, goes."""

    async def page(
        self, after: Owner | None, limit: int, *, tenant: str = "", quarantined: bool = False
    ) -> Sequence[OwnerEntry]:
        """Return at most *limit* entries behind *after* in the order of tenant and user, of *tenant* alone if it is
        named. *quarantined*: only owners with memories in quarantine. The cost depends on the page, not on the
        number of owners."""

    async def totals(self) -> OwnerTotals: ...


class ConsentRecords(Protocol):
    """Storage of users' consent, separate from their memories: a forget must not delete an `off`."""

    async def add(self, owner: Owner, change: ConsentChange, *, after: ConsentChange | None) -> bool:
        """Add *change* if *after* is still the latest; returns whether it was. Durable, and the latest for every
        replica, when it returns.

        A write that its sender gave up on may still arrive, minutes later: it must not override a later choice."""

    async def latest(self, owner: Owner) -> ConsentChange | None:
        """The latest change; None for an owner without a choice. Cheap: on the read path."""

    async def history(self, owner: Owner) -> Sequence[ConsentChange]:
        """All changes of *owner*, oldest first."""

    async def counts(self) -> Mapping[Consent, int]:
        """The number of owners by their latest choice. Reads every owner's, so it is for operators."""


class ConsentRegistry(Protocol):
    """The effective consent of callers, with tenant defaults applied."""

    async def read_consent(self, owner: Owner) -> Consent | None:
        """The consent of *owner* now; None: unknown, which allows nothing.

        Never raises, and answers within its own timeout. While the records are unreachable it may be outdated."""

    def refuses(self, owner: Owner) -> bool:
        """Whether it is known, by no outdated answer, that nothing of *owner* may be stored."""

    async def get(self, owner: Owner) -> Consent:
        """As `read_consent`, bypassing caches; raises if the consent is unknown."""

    async def set(self, owner: Owner, consent: Consent, *, by: str) -> ConsentChange:
        """Set the consent; effective in this process on return, in others after the cache's time to live."""

    async def history(self, owner: Owner) -> Sequence[ConsentChange]:
        """The changes of *owner*, oldest first; empty: the tenant's default applies."""

    async def counts(self) -> Mapping[Consent, int]:
        """The number of owners by their latest choice; owners without one are not counted."""


class IncognitoMarker(Protocol):
    """Records which conversations are incognito."""

    async def mark(self, caller: Caller, history: Sequence[Message], asked: str, continues: str) -> None:
        """Mark this turn and its continuations. Never raises; waits briefly at most.

        *continues*: the response id that the request continues from, empty without one."""

    async def mark_response(self, owner: Owner, response_id: str) -> None:
        """Mark continuations of that response. Never raises; waits briefly at most."""


class Journal(Protocol):
    """Queue of accepted turns until they are learned. Durable when `append` returns."""

    async def append(self, turn: Turn) -> TurnOutcome:
        """Append *turn*: JOURNALLED, DUPLICATE (same id and response, unchanged) or JOURNAL_FULL.

        The same id with another response replaces the entry, which is then learned again."""

    async def pending(self, limit: int, *, after: str = "") -> Sequence[JournalEntry]:
        """Entries not learned yet, oldest first; *after*: start behind this place."""

    async def get(self, owner: Owner, ids: Sequence[str]) -> Sequence[JournalEntry]:
        """The current entries of these turns of *owner* that are not learned yet, oldest first."""

    async def mark_stored(self, entries: Sequence[JournalEntry]) -> None:
        """Mark the messages as stored; extraction is still due.

        Entries replaced since they were read stay unchanged, here and below."""

    async def mark_learned(self, entries: Sequence[JournalEntry]) -> None:
        """Mark as learned; erased after the journal's retention."""

    async def mark_failed(self, entry: JournalEntry, reason: str, *, dead: bool) -> None:
        """Count a failed attempt; *dead* moves the entry to the dead letters. *reason* contains no user text."""

    async def erase_learned(self, before: datetime) -> int:
        """Erase entries learned before *before*; returns their number."""

    async def erase_owner(self, owner: Owner) -> int: ...

    async def depth(self) -> JournalDepth: ...

    def of_owner(self, owner: Owner) -> AsyncIterator[JournalEntry]:
        """All entries of *owner* in any state, oldest first, including dead letters and learned entries.

        Includes entries appended in the meantime. Unreadable entries are skipped; erase_owner erases them."""

    async def erase(self, owner: Owner, turn_ids: Sequence[str]) -> int:
        """Erase *owner*'s entries among these turns, in any state; returns their number."""

    async def dead(self, limit: int, *, after: str = "") -> Sequence[DeadLetter]:
        """Dead letters, by place; *after*: start behind this place."""

    async def retry(self, turn_ids: Sequence[str]) -> int:
        """Requeue dead letters at the end with no attempts counted, even in a full journal; returns the count."""

    async def arrivals(self, limit: int) -> Sequence[JournalEntry]:
        """Entries assigned to this process other than by its own append, oldest first; empty: none for now.

        Left by an earlier process, handed over by another replica, or retried. Each is returned once while the
        process holds its owner. With a shared journal the call also renews these claims, so it must be repeated
        every few seconds."""

    def holds(self, owner: Owner) -> bool:
        """Whether this process extracts from *owner*'s turns; always with a single replica.

        A process that does not hold the owner may store messages and mark them stored; its other marks have no
        effect."""

    async def end(self, owner: Owner, session: str) -> None:
        """Mark unlearned turns of this session as `last`; an empty *session* means all of *owner*'s."""


class JournalEntry(Protocol):
    @property
    def turn(self) -> Turn: ...
    @property
    def place(self) -> str:
        """The position in the journal; a replaced turn gets a new place at the end."""

    @property
    def state(self) -> JournalState: ...
    @property
    def stored(self) -> bool:
        """Whether the messages are stored, so that only extraction is left."""

    @property
    def replaced(self) -> bool:
        """Whether an earlier response of this turn may be stored, whose messages must then be removed."""

    @property
    def attempts(self) -> int: ...


class JournalDepth(Protocol):
    @property
    def turns(self) -> int: ...
    @property
    def dead(self) -> int: ...
    @property
    def oldest(self) -> datetime | None: ...


class KeyWrapper(Protocol):
    """A master key, in a file or in a key management service that never reveals it."""

    @property
    def name(self) -> str:
        """The identity of the master key; stored with wrapped keys, not secret."""

    async def wrap(self, key: bytes, context: bytes) -> bytes:
        """Wrap *key* with the master key, bound to *context*."""

    async def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        """Unwrap a key. TransientError if its master key is unavailable, PermanentError for another context."""


class KeyStore(Protocol):
    """Data keys, one per owner, stored only in wrapped form."""

    async def of(self, owner: Owner) -> DataKey:
        """The owner's key; created durably if there was none."""

    async def find(self, owner: Owner) -> DataKey | None:
        """The owner's key; None if there is none or it was destroyed."""

    async def destroy(self, owner: Owner) -> bool:
        """Destroy the owner's key, which makes all data sealed with it, backups included, unreadable forever.

        Durable, and removed from this process's cache, on return; a later write creates another key. False if there
        was none."""


class Mirror(Protocol):
    """A copy of the coordination data that must survive its loss: records by id, each complete."""

    async def put(self, records: Mapping[str, bytes]) -> None:
        """Store records, replacing equal ids; durable on return."""

    def all(self) -> AsyncIterator[Mapping[str, bytes]]:
        """All stored records, in pages."""
