"""The memories of recently active owners in process: exact search, and our own writes seen at once.

For each owner there is an overlay (writes and deletions of ours that the store may not show yet) and, once it
was filled from the store, every row in a `Held`. A filled partition answers by itself as long as the owner's
version counts no write of another replica; until then, and for owners too large to hold, the store's own
search answers with the overlay laid over it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Self

from memory_extproc.concurrency import wait_for_event
from memory_extproc.errors import PermanentError, TransientError
from memory_extproc.model import (
    Candidates,
    Conditions,
    Embedded,
    Hit,
    Memory,
    MemoryHeads,
    MemoryState,
    Owner,
    Scope,
    SearchQuery,
    SearchResult,
    Selected,
    Selection,
    Trust,
    Vector,
    trust_of,
)
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Change, ComingVector, Coordination, MemoryStore, Now, Steady, TombstoneReader
from memory_extproc.store.loader import (
    PartitionLimits,
    PartitionLoader,
    WordSearch,
    held_rows,
    read_ahead,
    stored_rows,
)
from memory_extproc.store.overlay import OwnerOverlay, PartitionCache
from memory_extproc.store.resident import (
    LexicalScan,
    ResidentRows,
    candidates_among,
    nearest_of,
    newest,
    order,
    select_stored,
)

# Extra rows requested from the store, since the overlay may hide some of its hits.
_MOST_COVERED = 200
_MOST_READ_ANEW = 100  # candidates of the store's own search; about 0.1 ms each
_LISTS_WAIT = 250  # times as long as recall for a fill: a second read of the store beside it slows both


class Partitions:
    """MemorySearcher and MemoryWriter over a MemoryStore. Enter it before use; leaving it ends the fills."""

    def __init__(
        self,
        store: MemoryStore,
        coordination: Coordination,
        limits: PartitionLimits,
        metrics: Metrics,
        *,
        now: Now,
        monotonic_now: Steady | None = None,
        forgotten: TombstoneReader | None = None,
        written: Callable[[Owner], None] = lambda _: None,
    ) -> None:
        """*monotonic_now* measures intervals, by default with *now*. Rows covered by *forgotten* are not taken,
        and reads of an owner fail while it requires waiting. *written* is called with the owner after each write
        to the store."""
        self._store = store
        self._coordination = coordination
        self._limits = limits
        self._now = now
        self._monotonic_now = monotonic_now or now
        self._forgotten, self._written = forgotten, written
        self._large = asyncio.Lock()  # held by a read of all rows of an owner too large to be resident
        self._large_again = self._monotonic_now()  # not before
        self._roster = PartitionCache(
            lambda: self._limits.bytes, lambda: self._settle, metrics, monotonic_now=self._monotonic_now
        )
        self._fills = PartitionLoader(
            store, coordination, self._roster, lambda: self._limits, metrics, monotonic_now=self._monotonic_now
        )

    def reconfigure(self, limits: PartitionLimits) -> None:
        """Apply new limits. A lower bound takes effect when a partition is next used, and `fills` stays."""
        self._limits = limits

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._fills.end()

    @property
    def size(self) -> int:
        """Bytes of all that is held."""
        return self._roster.size

    @property
    def filling(self) -> int:
        """Fills that run or wait."""
        return self._fills.under_way

    async def nearest(self, owner: Owner, to: Vector, limit: int, scope: Scope) -> SearchResult:
        await self._check(owner)
        with self._roster.using(owner) as owned:
            version = await self._version(owner, owned)
            held = await self._load_resident(owner, owned, version)
            if held is None:
                stored = await self._through_store(owner, owned, to, limit, scope)
                if len(stored.found) >= limit:
                    return stored
                held = await self._load_resident(owner, owned, version)  # see `candidates`
                if held is None:
                    return stored
            found = held.nearest(to, limit, scope, self._now())
            return SearchResult(found=tuple(found), total=len(held), path="hybrid")

    async def candidates(
        self, owner: Owner, sought: SearchQuery, limit: int, scope: Scope, vector: ComingVector | None = None
    ) -> Candidates:
        with self._roster.using(owner) as owned:
            glance: LexicalScan | None = None
            if vector is not None:
                # Only numbers, and of use only while nothing changes: whether it may be used is asked below.
                if owned.held is not None:
                    glance = owned.held.glance(sought.text, scope, self._now())
                else:
                    await self._check(owner)
                    self._fills.start(owner, owned)  # the store is read while the vector is made
                sought = replace(sought, vector=await vector())
            await self._check(owner)
            version = await self._version(owner, owned)
            held = await self._load_resident(owner, owned, version)
            if held is None:
                # Each is read anew, which costs more than finding it did.
                most = min(limit, _MOST_READ_ANEW)
                words = WordSearch(self._store, owner, owned, scope, self._now, self._monotonic_now, self._settle)
                found = await words.search(sought, lambda to: self._through_store(owner, owned, to, most, scope))
                if len(found) < most:
                    # The owner has no more, and is read soon; or the store's index is not complete: of rows
                    # that it has not indexed yet, Milvus shows a search with a filter one in eight.
                    held = await self._load_resident(owner, owned, version)
                if held is None:
                    await read_ahead([one.memory for one in found])
                    return candidates_among(found, sought, len(found), self._now())
            return held.candidates(sought, limit, scope, self._now(), glance)

    async def get(self, owner: Owner, ids: Sequence[str]) -> Sequence[Memory]:
        await self._check(owner)
        with self._roster.using(owner) as owned:
            return [row.memory for row in await self._fetch(owner, owned, ids)]

    def vectors(self, owner: Owner, ids: Sequence[str]) -> Mapping[str, Vector]:
        with self._roster.using(owner) as owned:
            return {row.memory.id: row.vector for row in owned.look_up(ids, whole=True)[0]}

    async def select(self, owner: Owner, wanted: Selection, scope: Scope) -> Sequence[Selected]:
        await self._check(owner)
        with self._roster.using(owner) as owned:
            held = await self._load_resident(owner, owned, await self._version(owner, owned))
            if held is not None:
                return held.select(wanted, scope, self._now())
            found: list[Selected] = []
            async for page in stored_rows(
                self._store, owner, owned, self._limits.page, self._monotonic_now(), self._settle
            ):
                found += select_stored(page, wanted, scope, self._now())
            return newest(found, wanted.most)

    async def rows(self, owner: Owner) -> AsyncIterator[Sequence[Memory]]:
        await self._check(owner)
        with self._roster.using(owner) as owned:
            held = await self._load_resident(owner, owned, await self._version(owner, owned), _LISTS_WAIT)
            if held is not None:
                pages = held_rows(owned, held)
            else:
                pages = stored_rows(
                    self._store, owner, owned, self._limits.page, self._monotonic_now(), self._settle
                )
            async for page in pages:
                yield page

    async def heads(self, owner: Owner, chosen: Conditions) -> MemoryHeads | None:
        """Implements ports.HeadLister: the store's heads with our own writes laid over them."""
        await self._check(owner)
        with self._roster.using(owner) as owned:
            hidden = owned.hides_store(self._monotonic_now(), self._settle)
            if hidden or owned.answers_at(await self._version(owner, owned)):
                return None
            generation = owned.generation
            laid = {row.memory.id: row.memory for row in owned.live_writes()}
            stored = await self._read_heads(owner, owned, chosen)
            if owned.generation != generation:
                return None
            self._fills.start(owner, owned)  # for the requests that follow
            laid.update((row.memory.id, row.memory) for row in owned.live_writes())
            ours = (one for one in laid.values() if chosen.holds(one) and not owned.is_deleted(one.id))
            shown = stored.without(laid.keys() | owned.overlay.keys())
            return shown.concatenate(MemoryHeads.of(one.head for one in ours))

    async def _read_heads(self, owner: Owner, owned: OwnerOverlay, chosen: Conditions) -> MemoryHeads:
        if not owned.too_large or self._store.lags:
            return await self._store.heads(owner, chosen)
        # A Lite file is read by this process: one large owner at a time, and half of the time is others'.
        async with self._large:
            await asyncio.sleep((self._large_again - self._monotonic_now()).total_seconds())
            began = self._monotonic_now()
            try:
                return await self._store.heads(owner, chosen)
            finally:
                ended = self._monotonic_now()
                self._large_again = ended + (ended - began)

    async def _check(self, owner: Owner) -> None:
        if self._forgotten is not None:
            await self._forgotten.check(owner)

    async def _version(self, owner: Owner, owned: OwnerOverlay) -> int:
        try:
            return await self._coordination.version(owner)
        except TransientError:
            # Without an answer of the other replicas, recall uses the rows at hand rather than fail. Writes also
            # request the version, and raise.
            return owned.seen

    async def _load_resident(
        self, owner: Owner, owned: OwnerOverlay, version: int, times: int = 1
    ) -> ResidentRows | None:
        """The owner's rows as of *version*. If they are not in process, starts a fill and waits for it where it is
        likely to be done in time; None if it is not."""
        if not owned.answers_at(version):
            outdated = owned.held is not None
            fill = self._fills.start(owner, owned)
            # A fresh read of a lagging store takes a tick of its clock, which is longer than we would wait.
            if fill is not None and not (outdated and self._store.lags):
                await wait_for_event(fill.published, times * self._limits.patience.total_seconds())
        return owned.held if owned.answers_at(version) else None

    async def _through_store(
        self, owner: Owner, owned: OwnerOverlay, to: Vector, limit: int, scope: Scope
    ) -> SearchResult:
        more = min(len(owned.overlay), _MOST_COVERED)
        found: tuple[Hit, ...] = ()
        if not owned.hides_store(self._monotonic_now(), self._settle):
            try:
                found = (await self._store.nearest(owner, to, limit + more, scope)).found
            except TransientError:
                if not owned.live_writes():
                    raise
        # No await from here on: writes and deletions during the store's search count too.
        now = self._now()
        if owned.hides_store(self._monotonic_now(), self._settle):
            found = ()
        kept = [
            one
            for one in found
            if one.memory.id not in owned.overlay and scope.holds(one.memory) and one.memory.recallable(now)
        ]
        ours = nearest_of(owned.live_writes(), to, limit, scope, now)
        return SearchResult(found=tuple(order([*kept, *ours])[:limit]), total=None, path="store")

    async def _fetch(self, owner: Owner, owned: OwnerOverlay, ids: Sequence[str]) -> list[Embedded]:
        version = await self._version(owner, owned)
        known, unknown = owned.look_up(ids, whole=owned.answers_at(version))
        if unknown:
            known.extend(await self._store.fetch(owner, unknown))
        return known

    async def put(
        self, owner: Owner, rows: Sequence[Embedded], *, shown: Callable[[], None] = lambda: None
    ) -> None:
        if any(row.memory.owner != owner for row in rows):
            raise PermanentError("a memory of another owner")
        await read_ahead([row.memory for row in rows])
        with self._roster.using(owner) as owned:
            async with owned.writes:
                await self._write(owner, owned, rows, shown)

    async def show(self, owner: Owner, rows: Sequence[Embedded]) -> None:
        await read_ahead([row.memory for row in rows])
        with self._roster.using(owner) as owned:
            async with owned.writes:
                await self._lay(owner, owned, rows)

    async def store_shown(self, owner: Owner, ids: Sequence[str]) -> bool:
        return await self.change_all(owner, ids, lambda row: [row]) == len(ids)

    async def supersede(self, owner: Owner, old: str, by: str, at: datetime) -> None:
        await self._change(owner, old, partial(supersede_memory, by=by, at=at))

    async def confirm(
        self,
        owner: Owner,
        id: str,  # noqa: A002 - the word of the port
        at: datetime,
        *,
        turn: str = "",
        beside: Sequence[str] = (),
        trusted: bool = False,
    ) -> None:
        await self._change(owner, id, partial(confirm_memory, at=at, turn=turn, beside=beside, trusted=trusted))

    async def delete(self, owner: Owner, ids: Sequence[str]) -> None:
        with self._roster.using(owner) as owned:
            async with owned.writes:
                await self._delete(owner, owned, ids)

    async def delete_owner(self, owner: Owner) -> None:
        """Everything *owner* has: at once in this process, and in the store when it returns."""
        with self._roster.using(owner) as owned:
            async with owned.writes:
                await self._delete_all(owner, owned)

    @asynccontextmanager
    async def alone(self, owner: Owner) -> AsyncIterator[ExclusiveAccess]:
        """Exclude other writes of *owner* in this process; earlier writes have ended."""
        with self._roster.using(owner) as owned:
            async with owned.writes:
                yield ExclusiveAccess(
                    lambda: [row.memory for row in owned.live_writes()],
                    partial(self._withdraw, owned),
                    partial(self._delete, owner, owned),
                    partial(self._delete_all, owner, owned),
                )

    def list_unstored(self, owner: Owner) -> Sequence[Memory]:
        """Our own writes that may not be in the store yet."""
        owned = self._roster.of(owner)
        return [] if owned is None else [row.memory for row in owned.live_writes()]

    def drop(self, owner: Owner) -> None:
        """Discard the resident rows of *owner* and the result of a running fill. Our own writes stay until
        the store has them."""
        owned = self._roster.of(owner)
        if owned is not None:
            owned.outdate()
            self._roster.account(owned)
            self._roster.release(owner, owned)

    def count_held(self, owner: Owner) -> tuple[int, int] | None:
        """Return how many memories *owner* has, and how many in quarantine; None unless all are in process."""
        owned = self._roster.of(owner)
        return None if owned is None or owned.held is None else (len(owned.held), owned.held.quarantined)

    def owners(self) -> list[Owner]:
        """Owners with state in this process."""
        return self._roster.owners()

    def _withdraw(self, owned: OwnerOverlay, ids: Sequence[str]) -> None:
        """Under `owned.writes`, here and below."""
        owned.withdraw(ids)
        self._roster.account(owned)

    async def _delete(self, owner: Owner, owned: OwnerOverlay, ids: Sequence[str]) -> None:
        mark = owned.delete(ids)
        self._roster.account(owned)
        with owned.writing():
            await self._store.delete(owner, ids)
            owned.acknowledge(mark, self._monotonic_now())
            await self._announce(owner, owned, ids)

    async def _delete_all(self, owner: Owner, owned: OwnerOverlay) -> None:
        owned.forget(await self._version(owner, owned))
        self._roster.account(owned)
        with owned.writing():
            await self._store.delete_owner(owner)
            owned.forgotten(self._monotonic_now())
            await self._announce(owner, owned, None)

    async def _announce(self, owner: Owner, owned: OwnerOverlay, ids: Sequence[str] | None) -> None:
        """Tell the other replicas which rows were written; all rows after a failure to tell."""
        unsaid, owned.unsaid = owned.unsaid, True
        owned.count_own(await self._coordination.bump(owner, None if unsaid else ids))
        owned.unsaid = False
        self._written(owner)

    async def change(self, owner: Owner, id: str, change: Change) -> bool:  # noqa: A002 - the word of the port
        with self._roster.using(owner) as owned:
            async with owned.writes:
                rows = await self._fetch(owner, owned, [id])
                changed = change(rows[0]) if rows else ()
                if changed:
                    await self._write(owner, owned, changed)
                return bool(rows)

    async def change_all(self, owner: Owner, ids: Sequence[str], change: Change) -> int:
        with self._roster.using(owner) as owned:
            async with owned.writes:
                changed = [new for row in await self._fetch(owner, owned, ids) for new in change(row)]
                if changed:
                    await self._write(owner, owned, changed)
                return len(changed)

    async def delete_where(self, owner: Owner, ids: Sequence[str], still: Callable[[Memory], bool]) -> int:
        with self._roster.using(owner) as owned:
            async with owned.writes:
                rows = await self._fetch(owner, owned, ids)
                chosen = [row.memory.id for row in rows if still(row.memory)]
                if chosen:
                    await self._delete(owner, owned, chosen)
                return len(chosen)

    async def _change(self, owner: Owner, id: str, change: Callable[[Memory], Memory]) -> None:  # noqa: A002
        await self.change(owner, id, lambda row: [Embedded(change(row.memory), row.vector)])

    async def _write(
        self, owner: Owner, owned: OwnerOverlay, rows: Sequence[Embedded], shown: Callable[[], None] = lambda: None
    ) -> None:
        """Under `owned.writes`. Visible here, and *shown*, before the store is asked."""
        mark, rows = await self._lay(owner, owned, rows)
        shown()
        with owned.writing():
            try:
                await self._store.put(owner, rows)
            except PermanentError:
                owned.take_back(mark)
                raise
            owned.acknowledge(mark, self._monotonic_now())
            # After the rows: a replica that sees the new version finds them in the store.
            await self._announce(owner, owned, [row.memory.id for row in rows])

    async def _lay(
        self, owner: Owner, owned: OwnerOverlay, rows: Sequence[Embedded]
    ) -> tuple[int, Sequence[Embedded]]:
        """Under `owned.writes`. The mark of the write, and the rows that may be kept."""
        if self._forgotten is not None:
            # A forget reads the rows under the same lock, so it finds every row that passes here.
            rows = await self._forgotten.filter_rows(owner, rows)
        mark = owned.put(rows)
        self._roster.account(owned)
        return mark, rows

    @property
    def _settle(self) -> timedelta:
        return self._limits.settle if self._store.lags else timedelta(0)


# An owner's partition as the object of a single caller.


@dataclass(frozen=True, slots=True, eq=False)
class ExclusiveAccess:
    """Good as long as the owner's other writes are held off."""

    list_unstored: Callable[[], Sequence[Memory]]  # written by us, and perhaps not in the store yet
    withdraw: Callable[[Sequence[str]], None]  # of them, as if they had never been written
    delete: Callable[[Sequence[str]], Awaitable[None]]
    delete_all: Callable[[], Awaitable[None]]


# Changes of existing memories by the write path. Pure.

# That said a fact again, kept with it, each with the facts beside it; a row has its bounds.
_MOST_TURNS = 16
_MOST_BESIDE = 4


def supersede_memory(memory: Memory, *, by: str, at: datetime) -> Memory:
    """*memory* as history since *at*, when *by* took its place."""
    return replace(
        memory, state=MemoryState.SUPERSEDED, superseded_by=by, valid_to=at, updated_at=max(at, memory.updated_at)
    )


def confirm_memory(
    memory: Memory, *, at: datetime, turn: str = "", beside: Sequence[str] = (), trusted: bool = False
) -> Memory:
    """*memory*, said again at *at* by *turn* together with the facts *beside*; *trusted*: by the caller."""
    known = memory.provenance
    confirmed = known.without_doubt().replace(confirmations=known.confirmations + 1)
    if turn and len(beside) <= _MOST_BESIDE:
        also = [*known.also.items(), (turn, tuple(beside))]
        confirmed = confirmed.replace(also=dict(also[-_MOST_TURNS:]))
    if trusted and not trust_of(memory).covers(Trust.CONFIRMED):
        confirmed = confirmed.replace(trust=Trust.CONFIRMED)
    return replace(memory, updated_at=max(at, memory.updated_at), provenance=confirmed)
