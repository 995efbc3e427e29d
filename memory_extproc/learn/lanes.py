"""Background work in order for each owner, for several owners at once."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Generic, TypeVar

from memory_extproc.errors import TryLaterError, UnknownFaultError
from memory_extproc.learn.fair import FairSlots
from memory_extproc.model import Owner
from memory_extproc.observe.log import logger
from memory_extproc.ports import Chance

log = logger(__name__)
Job = TypeVar("Job")


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that double from *first* to *most*, each cut by up to a half so that lanes do not retry in step."""

    first: timedelta = timedelta(milliseconds=500)
    most: timedelta = timedelta(seconds=15)  # after an outage nobody waits longer

    def seconds(self, failures: int, chance: float) -> float:
        """How long to wait after the *failures*-th failure in a row; *chance* in [0, 1)."""
        longest: timedelta = min(self.first * float(2 ** min(failures - 1, 20)), self.most)
        return longest.total_seconds() * (1 - chance / 2)


@dataclass(slots=True)
class _Lane(Generic[Job]):
    jobs: list[Job] = field(default_factory=list)
    tried: int = 0  # of the first of them: tried in vain, waiting to be tried again
    news: asyncio.Event = field(default_factory=asyncio.Event)


class Lanes(Generic[Job]):
    """One lane for each owner with work: its jobs run in order, up to *together* in one call, and at most
    *at_once* calls run at a time, those of different tenants in turn. A call that raises TryLaterError is
    made again after a pause, while other lanes go on; jobs that come in the meantime get their first try at
    once, as long as no more than *in_vain* jobs of all lanes wait for their next. Whatever else a call
    raises, UnknownFaultError included, is tried job by job and then given to *failed*, which says whether the job
    is done with; if it is not, it is tried again after a pause and behind the others that wait.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[Owner, Sequence[Job]], Awaitable[None]],
        failed: Callable[[Owner, Job, Exception], Awaitable[bool]],
        *,
        at_once: int,
        together: int,
        in_vain: int,
        backoff: Backoff,
        chance: Chance,
    ) -> None:
        self._name = name
        self._work = work
        self._failed = failed
        self._together = together
        self._in_vain = in_vain
        self._backoff = backoff
        self._chance = chance
        self._slots = FairSlots(at_once)
        self._lanes: dict[Owner, _Lane[Job]] = {}
        self._tasks: dict[Owner, asyncio.Task[None]] = {}
        self._waiting = 0  # sum of tried over all lanes
        self._finishing = False

    def use(self, *, at_once: int) -> None:
        """Calls that run beyond a lower *at_once* end as they began."""
        self._slots.use(at_once)

    def add(self, owner: Owner, job: Job) -> bool:
        """Queues *job* behind the owner's others; says whether it is tried as soon as its turn comes."""
        lane = self._lanes.get(owner)
        if lane is None:
            lane = self._lanes[owner] = _Lane()
            self._tasks[owner] = asyncio.create_task(self._run(owner, lane), name=f"{self._name} lane")
        lane.jobs.append(job)
        lane.news.set()
        return not lane.tried or self._waiting < self._in_vain

    async def finish(self) -> None:
        """Returns when nothing is left but what has to wait for better times; that is tried once more."""
        self._finishing = True
        for lane in self._lanes.values():
            lane.news.set()
        while self._tasks:
            await asyncio.wait(self._tasks.values())

    async def stop(self) -> None:
        """Ends all work where it stands."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, owner: Owner, lane: _Lane[Job]) -> None:
        try:
            await self._work_off(owner, lane)
        finally:
            # In the same step as the last look at the jobs, so that none is added to a lane that has ended.
            del self._lanes[owner], self._tasks[owner]
            self._waiting -= lane.tried

    async def _work_off(self, owner: Owner, lane: _Lane[Job]) -> None:
        clock = asyncio.get_running_loop().time
        failures = singly = 0
        again = 0.0  # when what was tried in vain is tried again
        last_try = False
        while lane.jobs:
            lane.news.clear()
            waits = clock() < again
            start = lane.tried if waits else 0
            batch = lane.jobs[start : start + (1 if singly else self._together)]
            if not batch or (waits and self._waiting >= self._in_vain):
                if self._finishing and last_try:
                    return
                if self._finishing:
                    last_try, again = True, 0.0
                else:
                    await _either(lane.news, again - clock())
                continue
            error = await self._attempt(owner, batch)
            if error is None:
                del lane.jobs[start : start + len(batch)]
                singly = max(0, singly - 1)
                failures, again = 0, 0.0
                self._count_tried(lane, 0)
            elif len(batch) > 1 and not _passes(error):
                singly = len(batch)  # one of them is at fault: the others must not suffer for it
            else:
                self._count_tried(lane, max(lane.tried, start + len(batch)))
                if not _passes(error):
                    singly = max(0, singly - 1)
                    lane.jobs.insert(lane.tried - 1, lane.jobs.pop(start))
                if not waits:
                    failures += 1
                    again = clock() + self._backoff.seconds(failures, self._chance())
                    log.warning("learn.waits", work=self._name, error=type(error).__name__, failures=failures)

    def _count_tried(self, lane: _Lane[Job], tried: int) -> None:
        self._waiting += tried - lane.tried
        lane.tried = tried

    async def _attempt(self, owner: Owner, batch: Sequence[Job]) -> Exception | None:
        """None when the batch is done with; else what it failed of."""
        async with self._slots.taken(owner.tenant):
            try:
                await self._work(owner, batch)
            # The learner's one catch-all: a turn that meets a bug of ours, or bad data, must not stop the
            # turns behind it. It is counted, tried again and in the end a dead letter.
            except Exception as error:  # noqa: BLE001
                if len(batch) > 1 or _passes(error):
                    return error
                return await self._judged(owner, batch[0], error)
        return None

    async def _judged(self, owner: Owner, job: Job, error: Exception) -> Exception | None:
        if not isinstance(error, UnknownFaultError):
            # An exception's own text may hold a person's words; where it arose does not.
            where = traceback.extract_tb(error.__traceback__)[-1]
            line = f"{where.name}:{where.lineno}"
            log.error("learn.failed", work=self._name, error=type(error).__name__, line=line)
        try:
            return None if await self._failed(owner, job, error) else error
        except TryLaterError as unreachable:
            return unreachable


def _passes(error: Exception) -> bool:
    """Whether *error* is known to say nothing of the job that met it."""
    return isinstance(error, TryLaterError) and not isinstance(error, UnknownFaultError)


async def _either(news: asyncio.Event, seconds: float) -> None:
    """Waits for *news*, for *seconds* at most."""
    try:
        async with asyncio.timeout(seconds):
            await news.wait()
    except TimeoutError:
        return
