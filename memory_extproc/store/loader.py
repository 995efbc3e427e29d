"""Reading all of an owner's rows from the store, in the background."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from memory_extproc.errors import MemoryExtprocError, TransientError
from memory_extproc.index.entries import entry_of
from memory_extproc.model import Embedded, Hit, Memory, Owner, Scope, SearchQuery, SearchResult, Vector
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Coordination, MemoryStore, Now, Steady
from memory_extproc.store.overlay import OwnerOverlay, PartitionCache
from memory_extproc.store.resident import ResidentRows

log = logger(__name__)
_WAITING = 16  # times as many as run
_FRESH = 4  # times as many read what is newest from a server, which are waits for its clock: 0.2 s a query


@dataclass(frozen=True, slots=True)
class PartitionLimits:
    bytes: int = 256 * 1024 * 1024  # of all partitions together; unstored rows may exceed it
    page: int = 500  # rows asked of the store at once
    fills: int = 4  # running at the same time; up to 16 times as many wait
    patience: timedelta = timedelta(milliseconds=40)  # a cold owner's request waits this long for its fill
    settle: timedelta = timedelta(seconds=10)  # then a store's read shows all writes acknowledged before
    retry: timedelta = timedelta(seconds=1)  # after a failed fill


@dataclass(frozen=True, slots=True, eq=False)
class Fill:
    task: asyncio.Task[None]
    published: asyncio.Event  # something can be served, or nothing will come of it


class PartitionLoader:
    """Runs at most one fill per owner at a time. Call `end` at shutdown."""

    def __init__(
        self,
        store: MemoryStore,
        coordination: Coordination,
        roster: PartitionCache,
        limits: Callable[[], PartitionLimits],
        metrics: Metrics,
        *,
        monotonic_now: Steady,
    ) -> None:
        self._store, self._coordination, self._roster = store, coordination, roster
        self._limits, self._metrics, self._monotonic_now = limits, metrics, monotonic_now
        self._fills: dict[Owner, Fill] = {}
        self._slots = asyncio.Semaphore(limits().fills)
        self._fresh_slots = asyncio.Semaphore(limits().fills * _FRESH)

    async def end(self) -> None:
        tasks = [fill.task for fill in self._fills.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def under_way(self) -> int:
        """The number of fills that run or wait."""
        return len(self._fills)

    def start(self, owner: Owner, owned: OwnerOverlay) -> Fill | None:
        """Start a fill, or return the running one; None while a fill may not start."""
        running = self._fills.get(owner)
        if running is not None:
            return running
        waits = owned.not_before is not None and self._monotonic_now() < owned.not_before
        if owned.too_large or waits or len(self._fills) >= self._limits().fills * _WAITING:
            return None
        published = asyncio.Event()
        task = asyncio.create_task(self._fill(owner, published), name="partition fill")
        fill = self._fills[owner] = Fill(task, published)
        task.add_done_callback(lambda _: self._end_fill(owner, owned, fill))
        return fill

    async def _fill(self, owner: Owner, published: asyncio.Event) -> None:
        with self._roster.using(owner) as owned:
            lags = self._store.lags
            cold = owned.held is None
            if lags and cold:
                # A cold owner is served from a lagging read at once, like from the store's own search; a
                # fresh read follows and replaces it.
                async with self._slots:
                    await self._read_all(owner, owned, fresh=False)
                published.set()
            async with self._fresh_slots if lags else self._slots:
                if cold or not await self._refresh(owner, owned):
                    await self._read_all(owner, owned, fresh=lags)

    async def _refresh(self, owner: Owner, owned: OwnerOverlay) -> bool:
        """Read the rows written by other replicas since; return False if all rows must be read."""
        held = owned.held
        changes = None if held is None else await self._coordination.changes(owner, owned.seen)
        if changes is None:
            return False
        attempt = owned.begin_fill(changes.version)
        try:
            rows = await self._store.fetch(owner, sorted(changes.ids))
            await read_ahead([row.memory for row in rows])
        except BaseException:
            owned.abandon_fill()
            raise
        owned.end_refresh(attempt, changes.ids, rows)
        self._roster.account(owned)
        return owned.held is not None and owned.held is held

    async def _read_all(self, owner: Owner, owned: OwnerOverlay, *, fresh: bool) -> None:
        if owned.too_large:
            return
        attempt = owned.begin_fill(await self._coordination.version(owner))
        now, pauses = asyncio.get_running_loop().time, False
        try:
            async for page in self._store.pages(owner, self._limits().page, fresh=fresh):
                for few in few_at_a_time(page):
                    began = now()
                    attempt.take(few)
                    # Others' requests run in between; from the second page on they have half of the time.
                    await asyncio.sleep(now() - began if pauses else 0)
                pauses = True
                if attempt.held.size > self._limits().bytes:
                    owned.too_large = True
                    break
        except BaseException:  # cancelled, too: half of an owner's memories would be taken for all of them
            owned.abandon_fill()
            raise
        if owned.too_large:
            owned.abandon_fill()
            owned.drop_held()
        else:
            owned.end_fill(attempt, complete=fresh or not self._store.lags)
        self._roster.account(owned)

    def _end_fill(self, owner: Owner, owned: OwnerOverlay, fill: Fill) -> None:
        """Record the outcome of a fill."""
        del self._fills[owner]
        fill.published.set()
        error = None if fill.task.cancelled() else fill.task.exception()
        outcome = "filled"
        if fill.task.cancelled():
            outcome = "cancelled"
        elif error is not None:
            outcome = "failed"
            owned.not_before = self._monotonic_now() + self._limits().retry
            log.warning("partition.fill_failed", error=type(error).__name__)
        elif owned.too_large:
            outcome = "too_large"
        self._metrics.partition_fills.labels(outcome).inc()


# Read many memories without blocking the event loop for long.

# Characters read at a time: about 5 ms, for which other streams wait.
_READ_AT_A_TIME = 10_000
_LEAST_READ = 500  # fixed cost of reading a memory, in characters
_SHOWN_AT_A_TIME = 500  # memories taken from the partition per step


def few_at_a_time(rows: Sequence[Embedded]) -> Iterator[Sequence[Embedded]]:
    """*rows* in slices that take about equally long to read."""
    start, cost = 0, 0
    for end, row in enumerate(rows, 1):
        cost += len(row.memory.content) + _LEAST_READ
        if cost >= _READ_AT_A_TIME or end == len(rows):
            yield rows[start:end]
            start, cost = end, 0


async def read_ahead(memories: Sequence[Memory]) -> None:
    """Reads the words of *memories* with others' requests in between, so that adding them then costs little."""
    cost = 0
    for memory in memories:
        entry_of(memory)
        cost += len(memory.content) + _LEAST_READ
        if cost >= _READ_AT_A_TIME:
            cost = 0
            await asyncio.sleep(0)


async def held_rows(owned: OwnerOverlay, held: ResidentRows) -> AsyncIterator[Sequence[Memory]]:
    """Yield the resident rows as of the call, without rows deleted since."""
    memories, generation = held.memories(), owned.generation
    for start in range(0, len(memories), _SHOWN_AT_A_TIME):
        if owned.generation != generation:
            return
        yield [one for one in memories[start : start + _SHOWN_AT_A_TIME] if not owned.is_deleted(one.id)]
        await asyncio.sleep(0)


async def stored_rows(
    store: MemoryStore, owner: Owner, owned: OwnerOverlay, page: int, now: datetime, settle: timedelta
) -> AsyncIterator[Sequence[Memory]]:
    """Yield the rows of *owner* in the store, each once, overlaid by our own writes."""
    generation, given = owned.generation, set[str]()
    # Copied now: the overlay may drop rows that the store has confirmed while we read.
    laid = {row.memory.id: row.memory for row in owned.live_writes()}
    if not owned.hides_store(now, settle):
        async with aclosing(_pages(store, owner, page)) as pages:
            async for rows in pages:
                if owned.generation != generation:
                    return
                kept = [
                    row.memory for row in rows if row.memory.id not in owned.overlay and row.memory.id not in laid
                ]
                given.update(memory.id for memory in kept)
                yield kept
    if owned.generation == generation:
        laid.update((row.memory.id, row.memory) for row in owned.live_writes())
        yield [memory for id_, memory in laid.items() if id_ not in given and not owned.is_deleted(id_)]


async def _pages(store: MemoryStore, owner: Owner, size: int) -> AsyncGenerator[Sequence[Embedded]]:
    async for rows in store.pages(owner, size, fresh=True):
        yield rows


# Full-text search for owners who are not resident, where the store has a full-text index.

_MOST = 50  # candidates by words; each is read anew, which takes about 0.1 ms


@dataclass(frozen=True, slots=True)
class WordSearch:
    """Full-text search for an owner, with our own writes laid over the store's rows."""

    store: MemoryStore
    owner: Owner
    owned: OwnerOverlay
    scope: Scope
    now: Now
    monotonic_now: Steady
    settle: timedelta

    async def search(
        self, sought: SearchQuery, nearest: Callable[[Vector], Awaitable[SearchResult]]
    ) -> Sequence[Hit]:
        """Hits of *nearest* for the question's vector, and hits by words, without duplicates. Without a vector,
        hits by words alone; TransientError if the store has no full-text index. With a vector, a failed
        full-text search gives an empty list."""
        if sought.vector is None:
            if not self.store.finds_words:
                raise TransientError("without a vector only what is held in process can be searched")
            rows = self._visible(await self._search_store(sought.text), self.owned.live_writes())
            return [Hit(row.memory, 0.0) for row in rows]
        near, worded = await asyncio.gather(nearest(sought.vector), self._found_or_nothing(sought.text))
        known = {one.memory.id for one in near.found}
        # Our own writes were found by their vectors.
        more = (row for row in self._visible(worded, ()) if row.memory.id not in known)
        return [*near.found, *(Hit(row.memory, cosine(row.vector, sought.vector)) for row in more)]

    async def _search_store(self, text: str) -> Sequence[Embedded]:
        if not self.store.finds_words or self._hides_store():
            return ()
        return await self.store.search_text(self.owner, text, _MOST, self.scope)

    async def _found_or_nothing(self, text: str) -> Sequence[Embedded]:
        try:
            return await self._search_store(text)
        except MemoryExtprocError as error:
            log.warning("store.words_unsearched", kind=type(error).__name__)
            return ()

    def _visible(self, found: Sequence[Embedded], written: Sequence[Embedded]) -> list[Embedded]:
        """The current versions of *found* with *written*: writes, deletions and forgets during the store's
        search count too."""
        overlay = self.owned.overlay
        shown = [] if self._hides_store() else [row for row in found if row.memory.id not in overlay]
        now = self.now()
        return [row for row in (*shown, *written) if self.scope.holds(row.memory) and row.memory.recallable(now)]

    def _hides_store(self) -> bool:
        return self.owned.hides_store(self.monotonic_now(), self.settle)


def cosine(one: Vector, other: Vector) -> float:
    return float(np.clip(one @ other, -1.0, 1.0))
