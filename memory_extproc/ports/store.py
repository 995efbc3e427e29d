"""What is asked of the store and of the partition before it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime
from typing import Protocol

from memory_extproc.model import (
    Candidates,
    Embedded,
    Memory,
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
    """Where memories rest (Milvus). Every call is bounded by the adapter's own timeout."""

    @property
    def lags(self) -> bool:
        """Whether a read that is not fresh may miss, for some seconds, what was acknowledged. Known once open."""

    @property
    def finds_words(self) -> bool:
        """Whether *worded* finds anything: the other side has an index of words. Known once open."""

    async def open(self) -> None:
        """Creates or checks the collection. PermanentError names both sides of a mismatch; may be retried."""

    async def close(self) -> None: ...

    async def put(self, owner: Owner, rows: Sequence[Embedded]) -> None:
        """Upserts by id, all of them *owner*'s. Returned means durable in the store's own sense."""

    async def get(self, owner: Owner, ids: Sequence[str]) -> Sequence[Memory]:
        """Those of *ids* that exist and are *owner*'s, in any state, in no particular order."""

    async def fetch(self, owner: Owner, ids: Sequence[str]) -> Sequence[Embedded]:
        """As get, with their vectors."""

    async def nearest(self, owner: Owner, to: Vector, limit: int, scope: Scope) -> SearchResult:
        """At most *limit* recallable memories of *owner* within *scope*, best first. May lag behind put."""

    async def search_text(self, owner: Owner, text: str, limit: int, scope: Scope) -> Sequence[Embedded]:
        """At most *limit* recallable memories of *owner* within *scope* that share words with *text*, best first.
        None of them where nothing is known of words. May lag behind put."""

    def pages(self, owner: Owner, size: int, *, fresh: bool) -> AsyncIterator[Sequence[Embedded]]:
        """Every row of *owner* in any state, in pages of about *size*, each row once. *fresh*: with all
        that any replica has written so far (dearer); else it may lag by some seconds."""

    async def delete(self, owner: Owner, ids: Sequence[str]) -> None:
        """Makes them unfindable; ids that do not exist or are another's are left alone."""

    async def delete_owner(self, owner: Owner) -> None: ...

    async def count(self, owner: Owner) -> int:
        """How many rows *owner* has, in any state, with all that was acknowledged before."""


class MemorySearcher(Protocol):
    """What the read path asks of the owner's partition."""

    async def candidates(
        self,
        owner: Owner,
        sought: SearchQuery,
        limit: int,
        scope: Scope,
        vector: ComingVector | None = None,
    ) -> Candidates:
        """About *limit* recallable memories, those that most speaks for, with all of our own writes seen.
        Never another owner's, never a superseded, deleted, quarantined or expired one. Without a vector only
        words decide; TransientError where nothing can be found by words alone. *vector* waits for that of *sought*,
        where it is still being made; what can be done without it is done meanwhile."""


class MemorySelector(Protocol):
    """The owner's partition for recall where likeness does not decide."""

    async def select(self, owner: Owner, wanted: Selection, scope: Scope) -> Sequence[Selected]:
        """The recallable memories within *scope* that are *wanted*, the newest first, with all of our own writes
        seen. With `scope.as_of` superseded memories that held in that period are included, as if they held, and
        memories that came to hold later are not."""


class OwnerLister(Protocol):
    """What works through everybody's memories asks of a store."""

    def owners(self) -> AsyncIterator[Sequence[Owner]]:
        """Everybody of whom there is a row when it begins, each once; of who comes meanwhile it says nothing."""


class MemoryReader(Protocol):
    """What fetches memories by name."""

    async def get(self, owner: Owner, ids: Sequence[str]) -> Sequence[Memory]:
        """Those of *ids* that exist and are *owner*'s, in any state, in no particular order."""


Change = Callable[[Embedded], Sequence[Embedded]]  # a row as it is, to the rows to write; none: nothing


class MemoryLister(Protocol):
    """What the memory API asks of the owner's partition beside finding and keeping."""

    def rows(self, owner: Owner) -> AsyncIterator[Sequence[Memory]]:
        """Every row of *owner* in any state, each once, in no particular order, with all of our own writes seen
        and with what other replicas wrote, as far as their versions tell."""

    async def change(self, owner: Owner, id: str, change: Change) -> bool:  # noqa: A002
        """Reads the row, has it changed and writes what comes of it, no other write of ours in between. False:
        there is no such row. *change* may raise, and nothing is written then."""


class ConditionalWriter(Protocol):
    """What retention asks of the owner's partition: many rows at a time, each as it is by then."""

    async def change_all(self, owner: Owner, ids: Sequence[str], change: Change) -> int:
        """As MemoryLister.change for all of *ids* that are there, in one write; says how many rows it wrote.
        *change* gives none for a row that is to stay as it is."""

    async def delete_where(self, owner: Owner, ids: Sequence[str], still: Callable[[Memory], bool]) -> int:
        """Deletes those of *ids* of which *still* holds, no other write of ours in between; says how many."""


class MemoryWriter(Protocol):
    """What the write path asks of the owner's partition."""

    async def put(
        self, owner: Owner, rows: Sequence[Embedded], *, shown: Callable[[], None] = lambda: None
    ) -> None:
        """Visible to the very next nearest, at once, and *shown* is called then; returns when the store has
        it. On TransientError the rows stay visible in this process and the caller tries again."""

    async def show(self, owner: Owner, rows: Sequence[Embedded]) -> None:
        """Make *rows* visible in this process alone, until `store_shown` or `put`."""

    async def store_shown(self, owner: Owner, ids: Sequence[str]) -> bool:
        """Store rows that were shown, with the changes made since. False if a row is gone: the caller then puts all
        of them again. Raises as `put` does."""

    async def nearest(self, owner: Owner, to: Vector, limit: int, scope: Scope) -> SearchResult:
        """At most *limit* recallable memories, best first by cosine, with all of our own writes seen. Never
        another owner's, never a superseded, deleted, quarantined or expired one."""

    async def get(self, owner: Owner, ids: Sequence[str]) -> Sequence[Memory]: ...

    async def supersede(self, owner: Owner, old: str, by: str, at: datetime) -> None:
        """Marks *old* superseded by *by* with valid_to *at*; both rows are kept, *old* is not recalled."""

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
