"""What a forget takes away, one step at a time: each ends with the ledger saying so, and can be taken again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import ParamSpec, Protocol, TypeVar

import msgspec

from memory_extproc.erasure.closure import Closure, closure
from memory_extproc.erasure.forgotten import Forgotten
from memory_extproc.erasure.job import Job
from memory_extproc.erasure.marks import Kind, items_of_turn
from memory_extproc.errors import GiveUpError
from memory_extproc.model import ForgetScope, ForgetState, Memory, Owner
from memory_extproc.observe.log import logger
from memory_extproc.ports import Coordination, Journal, Keys, Ledger, MemoryStore, Now, Purges, Replicas

log = logger(__name__)
P = ParamSpec("P")
R = TypeVar("R")
_PAGE = 500
_MANY = 500  # memories that are worked on beside the event loop: of fewer, that takes some milliseconds
_NOT_PURGED = "the server purges deleted rows by compaction, garbage collection and the retention of its log"


class Alone(Protocol):
    """An owner's partition with nobody else writing."""

    @property
    def unstored(self) -> Callable[[], Sequence[Memory]]: ...
    @property
    def delete(self) -> Callable[[Sequence[str]], Awaitable[None]]: ...
    @property
    def delete_all(self) -> Callable[[], Awaitable[None]]: ...


class HoldsMemories(Protocol):
    """What a forget asks of the partitions."""

    def alone(self, owner: Owner) -> AbstractAsyncContextManager[Alone]: ...
    def drop(self, owner: Owner) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasable:
    """Everything that holds something of people."""

    store: MemoryStore  # the store itself, not what hides
    partitions: HoldsMemories
    journal: Journal
    coordination: Coordination
    purges: Purges
    caches: Sequence[Callable[[Owner], None]] = ()  # of this process, each drops what it has of an owner
    keys: Keys | None = None


class Eraser:
    """TryLaterError and GiveUpError from any step: it is to be taken again, from its beginning."""

    def __init__(
        self,
        ledger: Ledger,
        forgotten: Forgotten,
        replicas: Replicas,
        holders: Erasable,
        *,
        worded: Sequence[str],
        server_purge: timedelta,
        now: Now,
    ) -> None:
        """*worded*: kinds of records that hold words or memories. *server_purge*: what a server may take until
        deleted rows are gone from its files."""
        self._ledger, self._forgotten, self._replicas, self._holders = ledger, forgotten, replicas, holders
        self._worded, self._server_purge, self._now = worded, server_purge, now

    async def rows(self, owner: Owner) -> AsyncIterator[Memory]:
        async for page in self._holders.store.pages(owner, _PAGE, fresh=True):
            for row in page:
                yield row.memory

    async def cleaned(self, job: Job) -> Job:
        """Steps 2 and 3 of a forget (forgetter.py): recall cannot find it from here on."""
        owner, holders = _owner(job), self._holders
        self._forgotten.renew(job.subject)
        self._drop(owner)
        await holders.coordination.advance_epoch(owner)
        await self._replicas.tell(job.subject)
        async with holders.partitions.alone(owner) as alone:
            rows = {memory.id: memory async for memory in self.rows(owner)}
            rows |= {memory.id: memory for memory in alone.unstored()}
            taken = await worked_out(rows.values(), _scope(job), job.until, self._now().timestamp())
            job = await self._erased(job, rows, taken, alone)
        job = msgspec.structs.replace(await self._records_gone(job), state=ForgetState.CLEAN, clean_at=self._now())
        await self._ledger.write(job.kept())
        self._drop(owner)
        self._forgotten.renew(job.subject)
        log.info("forget.clean", scope=job.name, memories=job.steps["memories"].removed)
        return job

    async def _erased(self, job: Job, rows: Mapping[str, Memory], taken: Closure, alone: Alone) -> Job:
        """Hashes first: what is erased after them stays erased whatever happens in between."""
        owner, journal = _owner(job), self._holders.journal
        blind = await self._forgotten.blind()
        await self._noted(job, await _beside(len(taken.memories), taken.items, blind))
        if taken.misdated:
            named = {blind.item(Kind.MEMORY, owner, one) for one in taken.misdated}
            await self._noted(job, named, max(taken.misdated.values()))
        marks = await self._forgotten.of(owner)
        turns = [
            entry.turn
            async for entry in journal.of_owner(owner)
            if entry.turn.id in taken.turns | taken.quoted
            or marks.covers_turn(entry.turn)
            or (_scope(job).everything and entry.turn.at > self._now())  # a clock was set back
        ]
        await self._noted(job, set().union(*(items_of_turn(blind, turn) for turn in turns)))
        if turns:
            job = job.removed("journal", await journal.erase(owner, [turn.id for turn in turns]))
        # After a crash in here a part of it is gone, and with it what led to the rest: the marks know that.
        ids = taken.memories.keys() | {one for one, memory in rows.items() if marks.covers(memory)}
        # What cannot be read is in no listing, and goes with all the rest, also where there is no rest.
        unread = not rows and _scope(job).everything and await self._holders.store.count(owner) > 0
        if unread or (ids and len(ids) == len(rows)):
            await alone.delete_all()
        elif ids:
            await alone.delete(sorted(ids))
        if _scope(job).everything and self._holders.keys is not None:
            await self._holders.keys.destroy(owner)
        job = job.removed("memories", len(ids)).done("journal", self._now())
        return job.pends("files", "deleted rows are being purged from the store's files")

    async def _noted(self, job: Job, items: set[bytes], at: float | None = None) -> None:
        await self._ledger.write(job.kept(), items=sorted(items), at=job.until if at is None else at)
        self._forgotten.renew(job.subject)

    async def _records_gone(self, job: Job) -> Job:
        """What conversations were given, and words kept with response ids. Where a conversation stands is kept by
        hashes, and goes only with everything."""
        kinds = None if _scope(job).everything else self._worded
        await self._holders.coordination.delete_records(_owner(job), kinds)
        return job.done("records", self._now())

    async def looked_again(self, job: Job) -> Job:
        late, turns = await self.erased_again(_owner(job))
        # A turn that was on its way into the journal may have noted its words after we had looked.
        await self._holders.coordination.delete_records(_owner(job), self._worded)
        job = job.removed("memories", late).removed("journal", turns).done("memories", self._now())
        await self._ledger.write(job.kept())
        return job

    async def erased_again(self, owner: Owner) -> tuple[int, int]:
        """What arrived after all goes too: from another replica's write that was under way, or a restored file.
        How many memories and turns that were."""
        holders = self._holders
        marks = await self._forgotten.of(owner)
        async with holders.partitions.alone(owner) as alone:
            late = [memory.id async for memory in self.rows(owner) if marks.covers(memory)]
            if late:
                await alone.delete(late)
            turns = [
                entry.turn.id async for entry in holders.journal.of_owner(owner) if marks.covers_turn(entry.turn)
            ]
            if turns:
                await holders.journal.erase(owner, turns)
        return len(late), len(turns)

    async def purged(self, job: Job) -> Job:
        if await self._holders.purges.purge(_owner(job)):
            return job.done("files", self._now())
        if job.steps["files"].pending_until is None:
            job = job.pends("files", _NOT_PURGED, self._now() + self._server_purge)
            await self._ledger.write(job.kept())
        return job

    async def completed(self, job: Job) -> Job:
        now = self._now()
        job = msgspec.structs.replace(job.done("files", now), state=ForgetState.COMPLETE, completed_at=now)
        await self._ledger.write(job.kept())
        log.info("forget.complete", scope=job.name)
        return job

    def _drop(self, owner: Owner) -> None:
        self._holders.partitions.drop(owner)
        for drop in self._holders.caches:
            drop(owner)


async def worked_out(rows: Collection[Memory], scope: ForgetScope, at: float, now: float) -> Closure:
    """As `closure`, with others' requests in between."""
    return await _beside(len(rows), closure, rows, scope, at, now)


async def _beside(count: int, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """What *work* on *count* memories returns; on many, which takes seconds, off the event loop."""
    if count < _MANY:
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)


def _owner(job: Job) -> Owner:
    if job.owner is None:
        raise GiveUpError("a forget that does not say whose")
    return job.owner


def _scope(job: Job) -> ForgetScope:
    if job.scope is None:
        raise GiveUpError("a forget that does not say what")
    return job.scope
