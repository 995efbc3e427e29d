"""What replicas must agree on, the journal, consent and keys."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

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


class Coordination(Protocol):
    """What several replicas must agree on: SQLite for one, Redis for more."""

    async def version(self, owner: Owner) -> int:
        """How often any replica has written for *owner*; 0 at first. Cheap: the read path asks it."""

    async def bump(self, owner: Owner) -> int:
        """Counts a write; returns the new version."""

    async def epoch(self, owner: Owner) -> int:
        """How often *owner* was forgotten; a write that began in an older epoch is dropped."""

    async def advance_epoch(self, owner: Owner) -> int: ...

    async def get_record(self, kind: str, owner: Owner, key: str) -> bytes | None:
        """A small record (session heads, response ids, blocks given) if it is there and has not expired."""

    async def put_record(self, kind: str, owner: Owner, key: str, value: bytes, ttl: timedelta) -> None: ...

    async def replace_record(
        self, kind: str, owner: Owner, key: str, old: bytes | None, new: bytes, ttl: timedelta
    ) -> bool:
        """Compare and swap: puts *new* only if the record is *old* (None: not there); says whether it did."""

    async def delete_records(self, owner: Owner, kinds: Sequence[str] | None = None) -> None:
        """All of *owner*'s, or those of *kinds*; no trace of them is left in files of ours."""

    async def acquire(self, name: str, holder: str, ttl: timedelta) -> bool:
        """Takes or renews the lease *name* for *holder*; False while another holds it."""

    async def release(self, name: str, holder: str) -> None: ...


@dataclass(frozen=True, slots=True)
class OwnerEntry:
    """An owner by counts. *memories* in any state; *updated_at* with whole seconds."""

    owner: Owner
    memories: int
    updated_at: datetime


class OwnerRegistry(Protocol):
    """Owners with the number of their memories, for operators. Lags seconds behind the store."""

    async def put(self, entry: OwnerEntry) -> None:
        """In place of the owner's entry. Without memories the entry, and any trace of the name, goes."""

    async def page(self, after: Owner | None, limit: int, *, tenant: str = "") -> Sequence[OwnerEntry]:
        """Return at most *limit* entries behind *after* in the order of tenant and user, of *tenant* alone if it is
        named. The cost depends on the page, not on the number of owners."""

    async def totals(self) -> tuple[int, int]:
        """How many owners, and memories of all of them."""


class ConsentRecords(Protocol):
    """Where people's choices rest, beside everything else of theirs: forgetting an owner leaves them, or an `off`
    would not outlive it."""

    async def add(self, owner: Owner, change: ConsentChange) -> None:
        """Durable, and the latest for every replica, when it returns."""

    async def latest(self, owner: Owner) -> ConsentChange | None:
        """None for an owner who never chose. Cheap: the read path asks it."""

    async def history(self, owner: Owner) -> Sequence[ConsentChange]:
        """Every choice of *owner*, oldest first."""


class ConsentRegistry(Protocol):
    """What each caller allows, tenant defaults counted in."""

    async def allowed(self, owner: Owner) -> Consent | None:
        """What holds for *owner* now; None: it cannot be found out, which allows nothing. Never raises, and
        answers within its own bound of time."""

    async def get(self, owner: Owner) -> Consent:
        """As allowed, past any cache; raises where it cannot be found out."""

    async def set(self, owner: Owner, consent: Consent, *, by: str) -> ConsentChange:
        """Holds in this process when it returns, in others shortly after (the cache's time to live)."""

    async def history(self, owner: Owner) -> Sequence[ConsentChange]:
        """What *owner* chose and when, oldest first; empty: the tenant's default holds."""


class IncognitoMarker(Protocol):
    """Remembers which conversations nothing is to be kept of."""

    async def mark(self, caller: Caller, history: Sequence[Message], asked: str, continues: str) -> None:
        """This turn and what follows in its conversation. *continues*: the response id that the request goes on
        from, empty without one. Never raises; waits shortly at most."""

    async def mark_response(self, owner: Owner, response_id: str) -> None:
        """What continues from that response. Never raises; waits shortly at most."""


class Journal(Protocol):
    """Where accepted turns wait until they are learned. Durable when append returns."""

    async def append(self, turn: Turn) -> TurnOutcome:
        """JOURNALLED, DUPLICATE (same id and same answer, nothing changed) or JOURNAL_FULL. The same id
        with another answer replaces the entry and is to be learned again."""

    async def pending(self, limit: int, *, after: str = "") -> Sequence[JournalEntry]:
        """Entries not learned yet, oldest first; with *after*, the place of an entry, those behind it."""

    async def get(self, ids: Sequence[str]) -> Sequence[JournalEntry]:
        """Those of these turns that are there and not learned yet, oldest first, each as it is now."""

    async def mark_stored(self, entries: Sequence[JournalEntry]) -> None:
        """Their messages are in the store; extraction is still to come. An entry that was replaced since it
        was read is left as it is, here and below."""

    async def mark_learned(self, entries: Sequence[JournalEntry]) -> None:
        """Nothing is left to do; erased after the journal's retention."""

    async def mark_failed(self, entry: JournalEntry, reason: str, *, dead: bool) -> None:
        """Counts an attempt; *dead* moves it to the dead letters. *reason* holds no person's words."""

    async def erase_learned(self, before: datetime) -> int:
        """Erases what was learned before then; says how many."""

    async def erase_owner(self, owner: Owner) -> int: ...

    async def depth(self) -> JournalDepth: ...

    def of_owner(self, owner: Owner) -> AsyncIterator[JournalEntry]:
        """Everything of *owner* in any state, dead letters and what is learned but not erased yet too, oldest
        first. What is appended meanwhile comes as well; what cannot be read does not: erase_owner takes it."""

    async def erase(self, owner: Owner, turn_ids: Sequence[str]) -> int:
        """Erases those of these turns that are *owner*'s, in any state; says how many."""

    async def dead(self, limit: int, *, after: str = "") -> Sequence[DeadLetter]:
        """Dead letters, by place; with *after*, those behind it."""

    async def retry(self, turn_ids: Sequence[str]) -> int:
        """Dead letters among these turns wait again, at a new place at the end, with no attempts counted, even
        in a full journal; says how many."""

    async def arrivals(self, limit: int) -> Sequence[JournalEntry]:
        """Entries not learned yet that are for this process to see to and did not come by its own append: what
        an earlier process left, what another's end left to us, what was retried. Oldest first, each once for as
        long as the process holds its owner; none: that is all for now. Where several share a journal, asking
        also keeps up what this process holds, so it is asked every few seconds."""

    def holds(self, owner: Owner) -> bool:
        """Whether extracting from *owner*'s turns is up to this process; with one replica it always is. Who
        does not hold them may remember messages and mark them stored; its other marks change nothing."""

    async def end(self, owner: Owner, session: str) -> None:
        """What is not learned yet of this session, or of all of *owner*'s when it is empty, is `last`."""


class JournalEntry(Protocol):
    @property
    def turn(self) -> Turn: ...
    @property
    def place(self) -> str:
        """Where it stands in the journal; a turn that is replaced gets a new place at the end."""

    @property
    def state(self) -> JournalState: ...
    @property
    def stored(self) -> bool:
        """The messages are already in the store; only extraction is left."""

    @property
    def replaced(self) -> bool:
        """An earlier answer of this turn may have been stored: what it said and this one does not must go."""

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
    """A master key: in a file, or with a key management service that never lets it out."""

    @property
    def name(self) -> str:
        """Which master key it is; kept beside what it wrapped, never secret."""

    async def wrap(self, key: bytes, context: bytes) -> bytes:
        """*key* sealed under the master key and bound to *context*."""

    async def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        """What `wrap` was given. TransientError where it was a master key that is not at hand, PermanentError for
        another context."""


class KeyStore(Protocol):
    """The data keys of owners, one each, kept only as the master key wrapped them."""

    async def of(self, owner: Owner) -> DataKey:
        """The owner's key, made and durable if there was none."""

    async def find(self, owner: Owner) -> DataKey | None:
        """The owner's key; None if there is none, or none any more."""

    async def destroy(self, owner: Owner) -> bool:
        """Destroys the owner's key: whatever it sealed, in backups too, can never be read again. Durable, and
        forgotten in this process, when it returns; a later write makes another key. False if there was none."""


class Mirror(Protocol):
    """A second place for what the coordination store must not lose: records by id, of which each is whole."""

    async def put(self, records: Mapping[str, bytes]) -> None:
        """Each in place of the one with its id; durable when it returns."""

    def all(self) -> AsyncIterator[Mapping[str, bytes]]:
        """Everything that was put before, in pages."""
