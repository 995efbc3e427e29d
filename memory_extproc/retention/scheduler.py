"""Schedules retention passes: periodically for all owners, soon for an owner after a correction, or by command.

A lease ensures one runner per owner. Owners done within the current round are skipped, so an interrupted round
resumes where it stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Self

from memory_extproc.errors import MemoryExtprocError, PermanentError
from memory_extproc.model import Owner
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Chance, Coordination, Now, OwnerLister
from memory_extproc.retention.passes import PassReport, RetentionPass

log = logger(__name__)
RECORD = "retention"  # kind of the record that an owner was seen to
_SEEN = "seen"
_MOST_SOON = 10_000
_TRIES = 6


class Work(Enum):
    """The work done for an owner."""

    KEEP = "keep"
    MEND = "mend"  # repair of memories derived from something forgotten or corrected
    REFLECT = "reflect"


@dataclass(slots=True)
class Round:
    """A round's report: counts alone."""

    owners: int = 0
    passed_over: int = 0  # seen to within this round already, or by another runner now
    failed: int = 0
    kept: PassReport = field(default_factory=PassReport)


class RetentionJob:
    """Runs while entered; leaving cancels the current work."""

    FIRST = timedelta(minutes=10)  # from a start to the first round, or a round's interval if that is less
    LEASE = timedelta(minutes=5)  # renewed while it runs
    PAUSE = timedelta(milliseconds=200)  # between owners: requests come first
    SETTLE = timedelta(milliseconds=500)  # from a correction to the repair of derived memories
    AGAIN = timedelta(minutes=1)  # after a round whose owners could not all be listed

    def __init__(
        self,
        lists: OwnerLister,
        keeper: RetentionPass,
        coordination: Coordination,
        every: Callable[[], timedelta | None],
        metrics: Metrics,
        *,
        holder: str,
        now: Now,
        rng: Chance,
        clocks: Clocks | None = None,
    ) -> None:
        """*every*: the interval of rounds; None: only by command. *holder* names this process among the replicas;
        rounds pause while *clocks* distrusts *now*."""
        self._clocks = clocks
        self._lists = lists
        self._keeper = keeper
        self._coordination = coordination
        self._every = every
        self._metrics = metrics
        self._holder = holder
        self._now = now
        self._rng = rng
        self._soon: dict[Owner, None] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def reschedule(self) -> None:
        """Read the interval again; a changed one restarts the wait for the next round."""
        self._wake.set()

    async def __aenter__(self) -> Self:
        self._metrics.retention_last.set(self._now().timestamp())
        self._task = asyncio.create_task(self._run(), name="retention")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def request_pass(self, owner: Owner) -> None:
        """Request a repair for *owner* after a forget or a correction, regardless of the schedule.

        Requests lost in a crash are covered by the next round."""
        if len(self._soon) < _MOST_SOON:
            self._soon[owner] = None
            self._wake.set()

    async def round(self, work: Work = Work.KEEP, *, dry_run: bool = False, anew: bool = False) -> Round:
        """Process every owner once. *anew*: include owners done recently.

        A failure for one owner does not affect the others. Raises only if the owners cannot be listed completely,
        after processing those listed."""
        report = Round()
        async for owner in self._owners():
            await self._see_to(owner, report, work, dry_run=dry_run, anew=anew)
            await asyncio.sleep(self.PAUSE.total_seconds())
            await self._see_to_soon()  # a round over many takes hours
        return report

    async def one(self, owner: Owner, work: Work = Work.KEEP, *, dry_run: bool = False) -> Round:
        """Process *owner* alone, whether or not they were done recently."""
        report = Round()
        await self._see_to(owner, report, work, dry_run=dry_run)
        return report

    async def _owners(self) -> AsyncIterator[Owner]:
        # List first: a round takes long, and a listing that stays open would be unbounded.
        listed: list[Owner] = []
        cut_short: MemoryExtprocError | None = None
        try:
            async for page in self._lists.owners():
                listed += page
        except MemoryExtprocError as error:
            cut_short = error
        # A large store needs many pages, and any page may fail: process the owners found so far.
        for owner in listed:
            yield owner
        if cut_short is not None:
            raise cut_short

    async def _see_to(
        self, owner: Owner, report: Round, work: Work, *, dry_run: bool = False, anew: bool = True
    ) -> bool:
        try:
            kept = await self._keep_owner(owner, work, dry_run=dry_run, anew=anew)
        except MemoryExtprocError as error:
            report.failed += 1
            self._metrics.retention_owners.labels("failed").inc()
            log.warning("retention.failed", error=type(error).__name__)
            return False
        if kept is None:
            report.passed_over += 1
            return False
        report.owners += 1
        report.kept += kept
        if not dry_run:
            self._count(kept)
            if work is Work.KEEP:
                self._metrics.retention_owners.labels("kept").inc()
        return True

    async def _keep_owner(self, owner: Owner, work: Work, *, dry_run: bool, anew: bool) -> PassReport | None:
        """Run a pass under the owner's lease. None: done already, or another runner holds the lease."""
        coordination, every = self._coordination, self._every()
        if dry_run:
            return await self._seeing(owner, work, dry_run=True)
        if not anew and await coordination.get_record(RECORD, owner, _SEEN) is not None:
            return None
        lease = f"retention:{owner.key}"
        if not await coordination.acquire(lease, self._holder, self.LEASE):
            return None
        try:
            kept = await self._holding(self._seeing(owner, work), lease)
            if kept is not None and every is not None and work is Work.KEEP:
                # Slightly shorter than a round, so that the record has expired by the next round.
                await coordination.put_record(RECORD, owner, _SEEN, b"1", every * 0.9)
        finally:
            with suppress(MemoryExtprocError):  # it ends by itself
                await coordination.release(lease, self._holder)
        return kept

    async def _seeing(self, owner: Owner, work: Work, *, dry_run: bool = False) -> PassReport:
        match work:
            case Work.KEEP:
                return await self._keeper.keep(owner, dry_run=dry_run)
            case Work.MEND:
                return await self._keeper.mend(owner)
            case Work.REFLECT:
                return await self._keeper.reflect(owner, dry_run=dry_run)

    async def _holding(self, seeing: Coroutine[None, None, PassReport], lease: str) -> PassReport | None:
        """Run the pass and cancel it when the lease is lost: another runner may have it."""
        keeping = asyncio.create_task(seeing, name="retention of one")
        third = self.LEASE.total_seconds() / 3
        try:
            while True:
                done, _ = await asyncio.wait([keeping], timeout=third)
                if done:
                    return _came_to(keeping)
                if not await self._coordination.acquire(lease, self._holder, self.LEASE):
                    return None
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    def _count(self, kept: PassReport) -> None:
        metrics = self._metrics
        for reason, count in kept.retired.items():
            metrics.retired.labels(reason.value).inc(count)
        counts = {
            "merged": kept.merged,
            "derived": kept.derived,
            "revived": kept.revived,
            "rebuilt": kept.rebuilt,
            "erased": kept.erased,
        }
        for what, count in counts.items():
            if count:
                metrics.retired.labels(what).inc(count)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        every = self._every()
        due = self._first_due(every)
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._wake.wait()
            self._wake.clear()
            await self._see_to_soon()
            if (wanted := self._every()) != every:
                every, due = wanted, self._first_due(wanted)
            if every is None or due is None or loop.time() < due:
                continue
            due = loop.time() + (await self._whole_round(every)).total_seconds()

    def _first_due(self, every: timedelta | None) -> float | None:
        """When the first round starts, by the loop's clock; None if rounds run only by command."""
        if every is None:
            return None
        wait = min(self.FIRST, every).total_seconds() * (0.5 + self._rng())
        return asyncio.get_running_loop().time() + wait

    async def _see_to_soon(self) -> None:
        if not self._soon:
            return
        # A sentence may correct several rows: wait for all of them and repair them together.
        await asyncio.sleep(self.SETTLE.total_seconds())
        while self._soon:
            owner = next(iter(self._soon))
            del self._soon[owner]
            report = Round()
            # Retry while a forget or another runner is active; the next round covers the owner in any case.
            for attempt in range(_TRIES):
                if await self._see_to(owner, report, Work.MEND):
                    break
                await asyncio.sleep(self.PAUSE.total_seconds() * 2**attempt)

    async def _whole_round(self, every: timedelta) -> timedelta:
        """Run a round and return the time until the next."""
        ahead = self._clocks.ahead() if self._clocks is not None else None
        if ahead is not None:
            log.error("retention.clock_ahead", by_s=round(ahead.total_seconds()))
            return min(every, self.AGAIN * 10)
        began = self._now()
        try:
            report = await self.round()
        except MemoryExtprocError as error:
            log.warning("retention.not_begun", error=type(error).__name__)
            return self.AGAIN
        self._metrics.retention_rounds.inc()
        self._metrics.retention_last.set(self._now().timestamp())
        kept = report.kept
        log.info(
            "retention.round",
            owners=report.owners,
            passed_over=report.passed_over,
            failed=report.failed,
            memories=kept.memories,
            retired=kept.retired.total(),
            merged=kept.merged,
            derived=kept.derived,
            rebuilt=kept.rebuilt,
            erased=kept.erased,
            took_s=round((self._now() - began).total_seconds(), 1),
        )
        return every if not report.failed else min(every, self.AGAIN * 10)


def _came_to(keeping: asyncio.Task[PassReport]) -> PassReport:
    """Return the pass's result; report an unexpected exception as an error of this owner only."""
    error = keeping.exception()
    if error is not None and not isinstance(error, MemoryExtprocError):
        log.error("retention.broken", kind=type(error).__name__)
        raise PermanentError("a bug, brought out by what one owner has") from error
    return keeping.result()


# Detects wall-clock jumps: expiry relies on the clock, and a jump ahead makes every memory look old.

Steady = Callable[[], float]  # monotonic seconds, suspension included, independent of the wall clock


class Clocks:
    """Compares the wall clock with a monotonic clock. A gain up to TOLERATED since the process began is trusted; a
    clock that stays ahead for BELIEVED is taken as corrected."""

    TOLERATED, BELIEVED = 3_600.0, 24 * 3_600.0  # seconds

    def __init__(self, now: Now, monotonic_now: Steady) -> None:
        self._now, self._monotonic_now = now, monotonic_now
        self._apart = self._difference()
        self._ahead_since: float | None = None

    def ahead(self) -> timedelta | None:
        """The jump of the wall clock ahead; None while it is trusted. A clock set back only delays expiry."""
        gained = self._difference() - self._apart
        if gained <= self.TOLERATED:
            self._ahead_since = None
            return None
        if self._ahead_since is None:
            self._ahead_since = self._monotonic_now()
        if self._monotonic_now() - self._ahead_since < self.BELIEVED:
            return timedelta(seconds=gained)
        self._apart, self._ahead_since = self._difference(), None
        return None

    def _difference(self) -> float:
        return self._now().timestamp() - self._monotonic_now()
