"""What the journal holds for us beyond our own appends, taken up as it comes; its depth, and its sweep."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from memory_extproc.errors import MemoryExtprocError
from memory_extproc.learn.lanes import Backoff
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Chance, Journal, JournalEntry, Now

log = logger(__name__)
_PAGE = 500  # entries taken up at once


@dataclass(frozen=True, slots=True)
class TakeUpLimits:
    look: timedelta = timedelta(seconds=1)  # between two looks for what came by other ways than our own append
    sweep: timedelta = timedelta(seconds=5)  # between two looks at the journal's depth
    retention: timedelta = timedelta(minutes=10)  # of learned turns in the journal
    backoff: Backoff = field(default_factory=Backoff)


class TakeUp:
    """Gives what arrives to *taken*, a page at a time. Both loops end with *closing*, and what had arrived by then
    is given first."""

    def __init__(
        self,
        journal: Journal,
        taken: Callable[[Sequence[JournalEntry]], Awaitable[None]],
        limits: TakeUpLimits,
        metrics: Metrics,
        *,
        revive: Callable[[], Awaitable[None]],
        now: Now,
        chance: Chance,
    ) -> None:
        """*revive* has dead letters of an outage tried again once it is over; asked with each sweep."""
        self._journal, self._taken, self._limits, self._metrics = journal, taken, limits, metrics
        self._revive = revive
        self._now, self._chance = now, chance

    def use(self, limits: TakeUpLimits) -> None:
        self._limits = limits

    async def arrivals(self, closing: asyncio.Event) -> None:
        failures = 0
        page: Sequence[JournalEntry] = ()
        ended = False
        while not ended:
            try:
                # A page whose taking failed is taken again: the journal gives it once.
                page = page or await self._journal.arrivals(_PAGE)
                await self._taken(page)
            except MemoryExtprocError as error:
                failures += 1
                log.warning("journal.unreadable", error=type(error).__name__, failures=failures)
                ended = await _within(closing, self._limits.backoff.seconds(failures, self._chance()))
                continue
            failures = 0
            if not page:
                ended = await _within(closing, self._limits.look.total_seconds())
            page = ()

    async def look_after(self, closing: asyncio.Event) -> None:
        while True:
            await self.measure()
            if await _within(closing, self._limits.sweep.total_seconds()):
                return

    async def measure(self) -> None:
        """Sweeps what was learned long enough ago, and says how much there is to do."""
        now = self._now()
        try:
            await self._revive()
            await self._journal.erase_learned(now - self._limits.retention)
            depth = await self._journal.depth()
        except MemoryExtprocError as error:
            log.warning("journal.not_swept", error=type(error).__name__)
            return
        age = (now - depth.oldest).total_seconds() if depth.oldest else 0.0
        self._metrics.journal_depth.set(depth.turns)
        self._metrics.journal_dead.set(depth.dead)
        self._metrics.journal_oldest_seconds.set(max(0.0, age))


async def _within(closing: asyncio.Event, seconds: float) -> bool:
    """Waits for *seconds* at most; says whether it is time to close."""
    try:
        async with asyncio.timeout(seconds):
            await closing.wait()
    except TimeoutError:
        return False
    return True
