"""Reading all of an owner's rows from the store, in the background."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta

from memory_extproc.model import Owner
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Coordination, MemoryStore, Steady
from memory_extproc.store.owned import Owned
from memory_extproc.store.reading import few_at_a_time
from memory_extproc.store.roster import Roster

log = logger(__name__)
_WAITING = 16  # times as many as run


@dataclass(frozen=True, slots=True)
class FillLimits:
    bytes: int  # of one owner's rows; who has more is not held
    page: int  # rows asked of the store at once
    at_once: int  # running at the same time; up to 16 times as many wait
    retry: timedelta  # after a failed fill


@dataclass(frozen=True, slots=True, eq=False)
class Fill:
    task: asyncio.Task[None]
    published: asyncio.Event  # something can be served, or nothing will come of it


class Fills:
    """At most one of each owner at a time. To be ended."""

    def __init__(
        self,
        store: MemoryStore,
        coordination: Coordination,
        roster: Roster,
        limits: FillLimits,
        metrics: Metrics,
        *,
        steady: Steady,
    ) -> None:
        self._store, self._coordination, self._roster = store, coordination, roster
        self._limits, self._metrics, self._steady = limits, metrics, steady
        self._fills: dict[Owner, Fill] = {}
        self._slots = asyncio.Semaphore(limits.at_once)

    def use(self, limits: FillLimits) -> None:
        """How many run at the same time stays."""
        self._limits = limits

    async def end(self) -> None:
        tasks = [fill.task for fill in self._fills.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def under_way(self) -> int:
        """Those that run or wait."""
        return len(self._fills)

    def start(self, owner: Owner, owned: Owned) -> Fill | None:
        """The one that runs, if one does; None where it is not the time for one."""
        running = self._fills.get(owner)
        if running is not None:
            return running
        waits = owned.not_before is not None and self._steady() < owned.not_before
        if owned.too_large or waits or len(self._fills) >= self._limits.at_once * _WAITING:
            return None
        published = asyncio.Event()
        task = asyncio.create_task(self._fill(owner, published), name="partition fill")
        fill = self._fills[owner] = Fill(task, published)
        task.add_done_callback(lambda _: self._filled(owner, owned, fill))
        return fill

    async def _fill(self, owner: Owner, published: asyncio.Event) -> None:
        with self._roster.using(owner) as owned:
            async with self._slots:
                # A cold owner gets what a lagging read shows at once, as the store's own search would
                # give; a fresh read follows and takes its place.
                if self._store.lags and owned.held is None:
                    await self._read_all(owner, owned, fresh=False)
                    published.set()
                await self._read_all(owner, owned, fresh=self._store.lags)

    async def _read_all(self, owner: Owner, owned: Owned, *, fresh: bool) -> None:
        if owned.too_large:
            return
        attempt = owned.begin_fill(await self._coordination.version(owner))
        try:
            async for page in self._store.pages(owner, self._limits.page, fresh=fresh):
                for few in few_at_a_time(page):
                    attempt.take(few)
                    await asyncio.sleep(0)  # others' requests run in between
                if attempt.held.size > self._limits.bytes:
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

    def _filled(self, owner: Owner, owned: Owned, fill: Fill) -> None:
        """The end of a fill's task, however it came."""
        del self._fills[owner]
        fill.published.set()
        error = None if fill.task.cancelled() else fill.task.exception()
        outcome = "filled"
        if fill.task.cancelled():
            outcome = "cancelled"
        elif error is not None:
            outcome = "failed"
            owned.not_before = self._steady() + self._limits.retry
            log.warning("partition.fill_failed", error=type(error).__name__)
        elif owned.too_large:
            outcome = "too_large"
        self._metrics.partition_fills.labels(outcome).inc()
