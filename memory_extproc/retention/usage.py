"""Counts memory accesses in process and writes them in batches."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol, Self

from memory_extproc.concurrency import contain_faults
from memory_extproc.errors import MemoryExtprocError
from memory_extproc.model import (
    Conditions,
    Embedded,
    Memory,
    MemoryHeads,
    MemoryState,
    Outcome,
    Owner,
    OwnerKind,
    RecallRequest,
    RecallResult,
)
from memory_extproc.observe.log import logger
from memory_extproc.ports import (
    Chance,
    Change,
    ConditionalWriter,
    MemoryLister,
    MemoryRecaller,
    MemoryWriter,
    Now,
    OwnerEntry,
    OwnerLister,
    OwnerRegistry,
)

log = logger(__name__)
_AT_ONCE = 100  # rows per write


@dataclass(slots=True)
class _Access:
    count: int
    at: datetime


class Accesses:
    """Counts in process, and writes periodically while entered. Leaving writes the rest within *grace*."""

    def __init__(
        self,
        rows: ConditionalWriter,
        interval: Callable[[], timedelta],
        *,
        now: Now,
        rng: Chance,
        grace: timedelta = timedelta(seconds=2),
        most: int = 20_000,
    ) -> None:
        """*interval*: between writes; a crash loses at most that. *most*: memories counted per interval."""
        self._rows = rows
        self._interval, self._most = interval, most
        self._now = now
        self._rng = rng
        self._grace = grace
        self._counted: defaultdict[Owner, dict[str, _Access]] = defaultdict(dict)
        self._size = 0
        self._writing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._writing = asyncio.create_task(self._keep_writing(), name="access counts")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)
        try:
            async with asyncio.timeout(self._grace.total_seconds()):
                await self.write()
        except TimeoutError:
            log.warning("accesses.lost", memories=self._size)

    def note(self, memories: Sequence[Memory]) -> None:
        """Count *memories* as injected now."""
        now = self._now()
        for memory in memories:
            counted = self._counted.get(memory.owner, {}).get(memory.id)
            if counted is not None:
                counted.count, counted.at = counted.count + 1, now
            elif self._size < self._most:
                self._counted[memory.owner][memory.id] = _Access(1, now)
                self._size += 1

    async def write(self) -> int:
        """Add the counts to the rows as they are now and return the number of rows written.

        Forgotten or changed memories stay as they are. Counts that cannot be written are discarded."""
        counted, self._counted, self._size = self._counted, defaultdict(dict), 0
        outcomes: Counter[str] = Counter()
        for owner, accesses in counted.items():
            ids = list(accesses)
            for start in range(0, len(ids), _AT_ONCE):
                some = ids[start : start + _AT_ONCE]
                try:
                    outcomes["written"] += await self._rows.change_all(owner, some, _adding(accesses))
                except MemoryExtprocError:
                    outcomes["lost"] += len(some)
        if outcomes["lost"]:
            log.warning("accesses.lost", memories=outcomes["lost"])
        return outcomes["written"]

    async def _keep_writing(self) -> None:
        while True:
            # Jitter: replicas that started together must not write together.
            await asyncio.sleep(self._interval().total_seconds() * (0.75 + self._rng() / 2))
            await contain_faults(self.write)


def _adding(accesses: dict[str, _Access]) -> Callable[[Embedded], Sequence[Embedded]]:
    def add_access(row: Embedded) -> Sequence[Embedded]:
        memory, access = row.memory, accesses[row.memory.id]
        if memory.state is not MemoryState.ACTIVE:
            return ()
        at = max(int(access.at.timestamp()), int(memory.provenance.accessed or 0))
        counted = replace(
            memory,
            access_count=memory.access_count + access.count,
            provenance=memory.provenance.replace(accessed=at),
        )
        return [Embedded(counted, row.vector)]

    return add_access


class CountedRecalls:
    """Implements MemoryRecaller around another and counts the memories that it returns for injection."""

    def __init__(self, recalls: MemoryRecaller, accesses: Accesses) -> None:
        self._recalls = recalls
        self._accesses = accesses

    async def recall(self, request: RecallRequest) -> RecallResult:
        recalled = await self._recalls.recall(request)
        if recalled.outcome is Outcome.USED:
            self._accesses.note([ranked.memory for ranked in recalled.memories])
        return recalled


# The registry of owners, kept up as memories are written.


_QUARANTINED = Conditions(states=frozenset({MemoryState.QUARANTINED}))


class HeldCounter(Protocol):
    def count_held(self, owner: Owner) -> tuple[int, int] | None:
        """How many memories *owner* has, and how many in quarantine; None where it is not known in process."""


class StoredCounter(OwnerLister, Protocol):
    async def count(self, owner: Owner) -> int: ...

    async def heads(self, owner: Owner, chosen: Conditions) -> MemoryHeads: ...


_COUNTED_EVERY = 5.0  # seconds


class OwnerCounter:
    """Updates the registry after writes, once for many writes: every five seconds while entered. An empty registry
    is filled from the store first, as after an upgrade."""

    def __init__(
        self,
        registry: OwnerRegistry,
        stored: StoredCounter,
        *,
        now: Now,
        most: int = 50,
    ) -> None:
        """*most*: owners whose memories the store is asked to count at a time; the others follow."""
        self._registry, self._stored, self._now = registry, stored, now
        self._most = most
        self.held: HeldCounter | None = None
        self._changed: dict[Owner, None] = {}
        self._counting: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._counting = asyncio.create_task(self._keep_counting(), name="owners")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._counting is not None:
            self._counting.cancel()
            await asyncio.gather(self._counting, return_exceptions=True)

    def note(self, owner: Owner) -> None:
        """Something of *owner*'s was written or went."""
        if owner.kind is not OwnerKind.CANARY:
            self._changed[owner] = None

    async def fill(self) -> None:
        if (await self._registry.totals()).owners == 0:
            async for owners in self._stored.owners():
                for owner in owners:
                    self.note(owner)

    async def count(self) -> None:
        """Update the registry for owners that were noted, at most *most* of them by a count in the store."""
        asked = 0
        for owner in list(self._changed):
            counted = None if self.held is None else self.held.count_held(owner)
            if counted is None and asked == self._most:
                continue
            del self._changed[owner]
            try:
                if counted is None:
                    asked += 1
                    counted = await self._count_stored(owner)
                memories, quarantined = counted
                at = self._now().replace(microsecond=0)
                await self._registry.put(OwnerEntry(owner, memories, at, quarantined))
            except MemoryExtprocError as error:
                self._changed[owner] = None
                log.info("owners.not_counted", kind=type(error).__name__)
                return

    async def _count_stored(self, owner: Owner) -> tuple[int, int]:
        memories = await self._stored.count(owner)
        return memories, len(await self._stored.heads(owner, _QUARANTINED)) if memories else 0

    async def _keep_counting(self) -> None:
        filled = False
        while True:
            await asyncio.sleep(_COUNTED_EVERY)
            try:
                if not filled:
                    await self.fill()
                filled = True
            except MemoryExtprocError as error:
                log.info("owners.not_counted", kind=type(error).__name__)
            await contain_faults(self.count)


# Hearing of memories that no longer say what they said, wherever that is decided.


class Partition(MemoryWriter, MemoryLister, Protocol):
    """Read and write access to an owner's memories."""


class ChangeNotifier:
    """MemoryWriter and MemoryLister that call *tell* with the owner when an existing memory changes.

    A replacement, deletion or new wording can invalidate memories derived from it."""

    def __init__(self, within: Partition, tell: Callable[[Owner], None]) -> None:
        self._within, self._tell = within, tell
        # Unchanged:
        self.put, self.show, self.store_shown, self.confirm = (
            within.put,
            within.show,
            within.store_shown,
            within.confirm,
        )
        self.nearest, self.get, self.rows = within.nearest, within.get, within.rows

    async def supersede(self, owner: Owner, old: str, by: str, at: datetime) -> None:
        await self._within.supersede(owner, old, by, at)
        self._tell(owner)

    async def delete(self, owner: Owner, ids: Sequence[str]) -> None:
        await self._within.delete(owner, ids)
        if ids:
            self._tell(owner)

    async def change(self, owner: Owner, id: str, change: Change) -> bool:  # noqa: A002 - the word of the port
        noticed = False

        def notice_change(row: Embedded) -> Sequence[Embedded]:
            nonlocal noticed
            rows = change(row)
            noticed = any(_says_otherwise(row.memory, new.memory) for new in rows)
            return rows

        there = await self._within.change(owner, id, notice_change)
        if noticed:
            self._tell(owner)
        return there


def _says_otherwise(before: Memory, after: Memory) -> bool:
    same = after.id == before.id and before.state is MemoryState.ACTIVE
    return same and (after.state is not MemoryState.ACTIVE or after.content != before.content)
