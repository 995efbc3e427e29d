"""Ports for the memory store and the partition in front of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from memory_extproc.model import (
    Candidates,
    Conditions,
    Embedded,
    Memory,
    MemoryHeads,
    Owner,
    Scope,
    SearchQuery,
    SearchResult,
    Selected,
    Selection,
    Vector,
)

ComingVector = Callable[[], Awaitable[Vector | None]]  # waits for it; may be waited for more than once


class MemoryStore(Protocol):
    """The memory store (Milvus). Every call is bounded by the adapter's own timeout."""

    @property
    def lags(self) -> bool:
        """Whether non-fresh reads may miss acknowledged writes for some seconds. Known once open."""

    @property
    def finds_words(self) -> bool:
        """Whether `search_text` works: the server has a full-text index. Known once open."""

    async def open(self) -> None:
        """Create or check the collection; retryable. PermanentError names both sides of a mismatch."""

    async def close(self) -> None: ...

    async def put(self, owner: Owner, rows: Sequence[Embedded]) -> None:
        """Upsert *owner*'s rows by id. Durable on return, in the store's own sense."""

    async def get(self, owner: Owner, ids: Sequence[str]) -> Sequence[Memory]:
        """The existing memories of *owner* among *ids*, in any state and order."""

    async def fetch(self, owner: Owner, ids: Sequence[str]) -> Sequence[Embedded]:
        """As get, with their vectors."""

    async def nearest(self, owner: Owner, to: Vector, limit: int, scope: Scope) -> SearchResult:
        """At most *limit* recallable memories of *owner* within *scope*, best first. May lag behind `put`."""

    async def search_text(self, owner: Owner, text: str, limit: int, scope: Scope) -> Sequence[Embedded]:
        """At most *limit* recallable memories of *owner* within *scope* that share words with *text*, best first.

        Empty without a full-text index. May lag behind `put`."""

    def pages(self, owner: Owner, size: int, *, fresh: bool) -> AsyncIterator[Sequence[Embedded]]:
        """All rows of *owner* in any state, each once, in pages of about *size*.

        *fresh*: with all writes of all replicas so far (more expensive); else it may lag by some seconds."""

    async def heads(self, owner: Owner, chosen: Conditions) -> MemoryHeads:
        """The rows of *owner* within *chosen*, in no order, with all writes of all replicas so far.

        Much cheaper than `pages`, which reads texts and vectors. It may name rows that `get` hides.
        """

    async def delete(self, owner: Owner, ids: Sequence[str]) -> None:
        """Delete rows from search; missing ids and other owners' ids are ignored."""

    async def delete_owner(self, owner: Owner) -> None: ...

    async def count(self, owner: Owner) -> int:
        """The number of *owner*'s rows in any state, with all acknowledged writes."""


class MemorySearcher(Protocol):
    """Search in the owner's partition, for the read path."""

    async def candidates(
        self, owner: Owner, sought: SearchQuery, limit: int, scope: Scope, vector: ComingVector | None = None
    ) -> Candidates:
        """About *limit* recallable memories with the strongest evidence, including all of our own writes.

        Never another owner's memories, nor superseded, deleted, quarantined or expired memories. Without a vector
        only words decide; TransientError if words alone cannot find anything. *vector* awaits a vector still being
        computed; work that does not need it is done in the meantime."""


class MemorySelector(Protocol):
    """Selection by conditions instead of similarity, for recall."""

    async def select(self, owner: Owner, wanted: Selection, scope: Scope) -> Sequence[Selected]:
        """The recallable memories within *scope* that are *wanted*, newest first, with all of our own writes.

        With `scope.as_of`, superseded memories valid in that period are included as if valid, and later memories
        are not."""


class OwnerLister(Protocol):
    """Lists all owners, for background work."""

    def owners(self) -> AsyncIterator[Sequence[Owner]]:
        """All owners with rows at the start, each once; owners added later may be missing."""


class MemoryReader(Protocol):
    """Fetches memories by id."""

    async def get(self, owner: Owner, ids: Sequence[str]) -> Sequence[Memory]:
        """The existing memories of *owner* among *ids*, in any state and order."""


class VectorReader(Protocol):
    def vectors(self, owner: Owner, ids: Sequence[str]) -> Mapping[str, Vector]:
        """The vectors of the memories of *owner* among *ids* that are held in process, by id."""


Change = Callable[[Embedded], Sequence[Embedded]]  # maps a row to the rows to write; empty: no change


class MemoryLister(Protocol):
    """Listing and editing an owner's memories, for the memory API."""

    def rows(self, owner: Owner) -> AsyncIterator[Sequence[Memory]]:
        """All rows of *owner* in any state, each once, in no order.

        Includes all of our own writes, and other replicas' writes as far as their versions tell."""

    async def change(self, owner: Owner, id: str, change: Change) -> bool:  # noqa: A002
        """Read the row, apply *change* and write the result, without interleaved writes of ours.

        False: no such row. If *change* raises, nothing is written."""


class HeadLister(MemoryLister, Protocol):
    """Listing an owner's memories without reading all of them."""

    async def heads(self, owner: Owner, chosen: Conditions) -> MemoryHeads | None:
        """As MemoryStore.heads, with all of our own writes; None where `rows` is as quick, or has to be asked."""


class ConditionalWriter(Protocol):
    """Conditional bulk writes to an owner's partition, for retention."""

    async def change_all(self, owner: Owner, ids: Sequence[str], change: Change) -> int:
        """As MemoryLister.change for all existing *ids*, in a single write; returns the number of rows written.

        *change* returns no rows to leave a row unchanged."""

    async def delete_where(self, owner: Owner, ids: Sequence[str], still: Callable[[Memory], bool]) -> int:
        """Delete the *ids* for which *still* holds, without interleaved writes of ours; returns their number."""


class MemoryWriter(Protocol):
    """Writes to an owner's partition, for the write path."""

    async def put(
        self, owner: Owner, rows: Sequence[Embedded], *, shown: Callable[[], None] = lambda: None
    ) -> None:
        """Write rows. They are visible to the next search at once, when *shown* is called; returns when they are
        stored.

        On TransientError the rows stay visible in this process and the caller retries."""

    async def show(self, owner: Owner, rows: Sequence[Embedded]) -> None:
        """Make *rows* visible in this process alone, until `store_shown` or `put`."""

    async def store_shown(self, owner: Owner, ids: Sequence[str]) -> bool:
        """Store rows that were shown, with later changes. Raises like `put`.

        False if a row is gone: the caller then puts all of them again."""

    async def nearest(self, owner: Owner, to: Vector, limit: int, scope: Scope) -> SearchResult:
        """At most *limit* recallable memories, best first by cosine, with all of our own writes.

        Never another owner's memories, nor superseded, deleted, quarantined or expired memories."""

    async def get(self, owner: Owner, ids: Sequence[str]) -> Sequence[Memory]: ...

    async def supersede(self, owner: Owner, old: str, by: str, at: datetime) -> None:
        """Mark *old* superseded by *by* with valid_to *at*; both rows are kept, *old* is not recalled."""

    async def confirm(
        self,
        owner: Owner,
        id: str,  # noqa: A002
        at: datetime,
        *,
        turn: str = "",
        beside: Sequence[str] = (),
        trusted: bool = False,
    ) -> None:
        """The same was said again: refreshes updated_at and counts the confirmation in metadata. *turn* said it,
        together with the facts *beside*: noted in metadata, of the last turns, so that their messages are known.
        *trusted*: by the caller, which confirms the words of others."""

    async def delete(self, owner: Owner, ids: Sequence[str]) -> None: ...
