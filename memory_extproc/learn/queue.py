"""Background work in order for each owner, for several owners at once."""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Generic, TypeVar

from memory_extproc.concurrency import Backoff, Pace, contain_faults, run_until, wait_for_event
from memory_extproc.errors import MemoryExtprocError, TransientError, UnknownFaultError
from memory_extproc.model import Owner
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Journal, JournalEntry, Now
from memory_extproc.settings import CurrentSettings

log = logger(__name__)
Job = TypeVar("Job")


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """How work is bounded, gathered and retried, and gives way to requests: all that no reload changes."""

    backoff: Backoff = field(default_factory=Backoff)
    # Turns that the partitions show while the store is down; later turns are not shown.
    in_vain: int = 10_000
    pace: Pace = field(default_factory=Pace)  # by default work never gives way
    accepting: int = 1_000  # exchanges on their way into the journal: further ones wait in the intake log
    # For so long all that is asked must have answered before exchanges that were undecided are decided: the other
    # replicas then had several looks (Incognito.RETRY) at whether they can share their incognito marks.
    settle: timedelta = timedelta()
    batches: bool = True  # extract facts from several turns of a session together
    gather: timedelta = timedelta()  # between two writes of an owner's messages, which are visible before
    gathered: int = 256  # turns that wait for such a write
    remembering: int = 8  # owners whose messages are stored at a time
    together: int = 32  # turns of one owner stored together
    look: timedelta = timedelta(seconds=1)  # interval of the poll for entries of other processes
    sweep: timedelta = timedelta(seconds=5)  # between two looks at the journal's depth


@dataclass(slots=True)
class _OwnerQueue(Generic[Job]):
    jobs: list[Job] = field(default_factory=list)
    tried: int = 0  # of the first of them: tried in vain, waiting to be tried again
    news: asyncio.Event = field(default_factory=asyncio.Event)
    urgent: asyncio.Event = field(default_factory=asyncio.Event)  # the next call of these begins at once


class OwnerQueues(Generic[Job]):
    """One queue per owner. Jobs of an owner run in order, up to *together* in one call; at most *at_once* calls run
    at a time, and tenants take turns. A call that raises TransientError is repeated after a pause while other
    queues go on. New jobs get their first try at once while at most `in_vain` jobs of all queues wait for a retry.
    After any other error, UnknownFaultError included, the jobs are tried separately and a failing job is passed to
    *failed*, which returns whether the job is finished; otherwise it is retried after a pause, behind the other
    waiting jobs."""

    def __init__(
        self,
        name: str,
        work: Callable[[Owner, Sequence[Job]], Awaitable[None]],
        failed: Callable[[Owner, Job, Exception], Awaitable[bool]],
        policy: QueuePolicy,
        *,
        at_once: Callable[[], int],
        together: int,
    ) -> None:
        self._name = name
        self._work = work
        self._failed = failed
        self._policy = policy
        self._together = together
        self._slots = FairSemaphore(at_once)
        self._lanes: dict[Owner, _OwnerQueue[Job]] = {}
        self._tasks: dict[Owner, asyncio.Task[None]] = {}
        self._waiting = 0  # sum of tried over all lanes
        self._finishing = False

    def add(self, owner: Owner, job: Job) -> bool:
        """Queues *job* behind the owner's others; says whether it is tried as soon as its turn comes."""
        lane = self._lanes.get(owner)
        if lane is None:
            lane = self._lanes[owner] = _OwnerQueue()
            self._tasks[owner] = asyncio.create_task(self._run(owner, lane), name=f"{self._name} lane")
        lane.jobs.append(job)
        lane.news.set()
        return not lane.tried or self._waiting < self._policy.in_vain

    def hurry(self, owner: Owner) -> bool:
        """Let the next call for *owner* overtake those of others while work is put off. Returns whether *owner* has
        jobs."""
        lane = self._lanes.get(owner)
        if lane is not None:
            lane.urgent.set()
        return lane is not None

    @property
    def has_room(self) -> bool:
        """Whether new jobs are tried while failed jobs wait."""
        return self._waiting < self._policy.in_vain

    async def finish(self) -> None:
        """Return when only jobs that need a retry are left; each gets one last try."""
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

    async def _run(self, owner: Owner, lane: _OwnerQueue[Job]) -> None:
        try:
            await self._work_off(owner, lane)
        finally:
            # In the same step as the last look at the jobs, so that none is added to a lane that has ended.
            del self._lanes[owner], self._tasks[owner]
            self._waiting -= lane.tried

    async def _work_off(self, owner: Owner, lane: _OwnerQueue[Job]) -> None:
        clock = asyncio.get_running_loop().time
        failures = singly = 0
        again = 0.0  # time of the next retry
        last_try = False
        while lane.jobs:
            lane.news.clear()
            waits = clock() < again
            start = lane.tried if waits else 0
            batch = lane.jobs[start : start + (1 if singly else self._together)]
            if not batch or (waits and self._waiting >= self._policy.in_vain):
                if self._finishing and last_try:
                    return
                if self._finishing:
                    last_try, again = True, 0.0
                else:
                    await wait_for_event(lane.news, again - clock())
                continue
            error = await self._attempt(owner, lane, batch)
            if error is None:
                del lane.jobs[start : start + len(batch)]
                singly = max(0, singly - 1)
                failures, again = 0, 0.0
                self._count_tried(lane, 0)
            elif len(batch) > 1 and not _passes(error):
                singly = len(batch)  # one job is at fault: try each alone
            else:
                self._count_tried(lane, max(lane.tried, start + len(batch)))
                if not _passes(error):
                    singly = max(0, singly - 1)
                    lane.jobs.insert(lane.tried - 1, lane.jobs.pop(start))
                if not waits:
                    failures += 1
                    again = clock() + self._policy.backoff.seconds(failures)
                    log.warning("learn.waits", work=self._name, error=type(error).__name__, failures=failures)

    def _count_tried(self, lane: _OwnerQueue[Job], tried: int) -> None:
        self._waiting += tried - lane.tried
        lane.tried = tried

    @asynccontextmanager
    async def _turn(self, owner: Owner, lane: _OwnerQueue[Job]) -> AsyncIterator[None]:
        pace = self._policy.pace
        async with AsyncExitStack() as stack:

            async def wait() -> None:
                await stack.enter_async_context(self._slots.acquire(owner.tenant))
                await stack.enter_async_context(pace.turn())

            if not pace.is_busy():
                await wait()
            elif not await run_until(lane.urgent, wait()):
                await stack.enter_async_context(pace.turn(urgent=True))
            lane.urgent.clear()
            yield

    async def _attempt(self, owner: Owner, lane: _OwnerQueue[Job], batch: Sequence[Job]) -> Exception | None:
        """None if the batch is done, else its error."""
        async with self._turn(owner, lane):
            try:
                await self._work(owner, batch)
            # The learner's only catch-all: a turn that meets a bug or bad data must not stop the turns behind it.
            # It is counted, retried and in the end a dead letter.
            except Exception as error:  # noqa: BLE001
                if len(batch) > 1 or _passes(error):
                    return error
                return await self._judge_error(owner, batch[0], error)
        return None

    async def _judge_error(self, owner: Owner, job: Job, error: Exception) -> Exception | None:
        if not isinstance(error, UnknownFaultError):
            # An exception's own text may hold a person's words; where it arose does not.
            where = traceback.extract_tb(error.__traceback__)[-1]
            line = f"{where.name}:{where.lineno}"
            log.error("learn.failed", work=self._name, error=type(error).__name__, line=line)
        try:
            return None if await self._failed(owner, job, error) else error
        except TransientError as unreachable:
            return unreachable


def _passes(error: Exception) -> bool:
    """Whether *error* is known to say nothing of the job that met it."""
    return isinstance(error, TransientError) and not isinstance(error, UnknownFaultError)


# Places for so many at once, given to waiting tenants in turn.


class FairSemaphore:
    """A semaphore that gives a free slot to the tenant whose last turn is longest ago: a tenant with a thousand
    waiting callers delays another tenant by one slot, not by a thousand."""

    def __init__(self, count: Callable[[], int]) -> None:
        """*count*: slots, above 0; read whenever a caller comes or leaves. Holders keep theirs when it falls."""
        self._count = count
        self._taken = 0
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # next in turn first

    @asynccontextmanager
    async def acquire(self, tenant: str) -> AsyncIterator[None]:
        await self._take(tenant)
        try:
            yield
        finally:
            self._give()

    async def _take(self, tenant: str) -> None:
        if self._taken < self._count() and not self._waiting:
            self._taken += 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(place)
        self._hand_out()
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._give()  # it was ours already
            raise

    def _give(self) -> None:
        self._taken -= 1
        self._hand_out()

    def _hand_out(self) -> None:
        while self._waiting and self._taken < self._count():
            tenant, places = self._waiting.popitem(last=False)
            place = places.popleft()
            if places:
                self._waiting[tenant] = places  # behind the others
            if not place.done():
                place.set_result(None)
                self._taken += 1


# Turns of a session gathered until facts are extracted from them together.


class Trigger(StrEnum):
    """Why a session's turns are due: the label of extraction_triggers_total, so never renamed."""

    BATCH = "batch"  # enough of them have come together
    IDLE = "idle"  # the session fell silent
    ENDED = "ended"  # the client ended it
    TOPIC = "topic"  # the topic tracker reports a change of topic
    COMMAND = "command"  # it may tell us to keep or to forget something, and a model is to say
    DRAIN = "drain"  # we leave


@dataclass(slots=True)
class _SessionBatch:
    turn_ids: dict[str, None] = field(default_factory=dict)  # in order, each once
    timer: asyncio.TimerHandle | None = None


class SessionBatcher:
    """Passes the turn ids of a session to *due* when a batch of them is waiting, when the session was idle for
    `learn.session_idle`, or on `flush`."""

    def __init__(
        self,
        due: Callable[[Owner, tuple[str, ...]], object],
        metrics: Metrics,
        current: CurrentSettings,
        *,
        batches: bool,  # False: each turn is due by itself
    ) -> None:
        self._due, self._metrics, self._current, self._batches = due, metrics, current, batches
        self._open: dict[Owner, dict[str, _SessionBatch]] = {}

    def add(self, owner: Owner, session: str, turn_id: str, *, last: bool = False) -> None:
        """*last*: the session ends with this turn."""
        gathering = self._open.setdefault(owner, {}).setdefault(session, _SessionBatch())
        gathering.turn_ids[turn_id] = None
        settings = self._current.settings
        if last or not self._batches or len(gathering.turn_ids) >= settings.memory.extraction_batch_size:
            self.flush(owner, session, Trigger.ENDED if last else Trigger.BATCH)
            return
        if gathering.timer is not None:
            gathering.timer.cancel()
        gathering.timer = asyncio.get_running_loop().call_later(
            settings.learn.session_idle.total_seconds(), self.flush, owner, session, Trigger.IDLE
        )

    def sessions(self, owner: Owner) -> list[str]:
        """Sessions with waiting turns."""
        return list(self._open.get(owner, ()))

    def flush(self, owner: Owner, session: str, trigger: Trigger = Trigger.ENDED) -> None:
        """Pass the waiting turns of *session* to `due` now."""
        sessions = self._open.get(owner, {})
        gathering = sessions.pop(session, None)
        if not sessions:
            self._open.pop(owner, None)
        if gathering is None:
            return
        if gathering.timer is not None:
            gathering.timer.cancel()
        self._metrics.extraction_triggers.labels(trigger.value).inc()
        self._due(owner, tuple(gathering.turn_ids))

    def flush_all(self) -> None:
        for owner in list(self._open):
            for session in self.sessions(owner):
                self.flush(owner, session, Trigger.DRAIN)

    def close(self) -> None:
        """Stop all timers. Waiting turns are dropped here and stay in the journal."""
        for sessions in self._open.values():
            for gathering in sessions.values():
                if gathering.timer is not None:
                    gathering.timer.cancel()
        self._open.clear()


# Turns whose messages are visible already wait here for a moment, so that the store gets fewer writes.


class WriteBehind:
    """Hands on turn ids every *period*, and at once when *most* are waiting: an owner's messages of a period become
    a single write. The turns wait in the journal until they are stored."""

    def __init__(self, hand_on: Callable[[Owner, str], object], *, period: timedelta, most: int) -> None:
        self._hand_on = hand_on
        self._period, self._most = period.total_seconds(), most
        self._held: dict[Owner, list[str]] = {}
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, owner: Owner, turn_ids: Sequence[str], *, at_once: bool) -> None:
        """*at_once*: hand these on now, behind the turns of *owner* that wait."""
        self._held.setdefault(owner, []).extend(turn_ids)
        self._count += len(turn_ids)
        if at_once:
            self._flush_owner(owner)
        elif self._count >= self._most:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._period, self.flush)

    def flush(self) -> None:
        self.close()
        for owner in list(self._held):
            self._flush_owner(owner)

    def close(self) -> None:
        """Stop the timer; waiting ids are dropped."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _flush_owner(self, owner: Owner) -> None:
        turn_ids = self._held.pop(owner)
        self._count -= len(turn_ids)
        for turn_id in turn_ids:
            self._hand_on(owner, turn_id)


# Polls the journal for entries that this process did not append, measures its depth and sweeps it.

_PAGE = 500  # entries taken up at once


class JournalPoller:
    """Reads new entries a page at a time. Has the dead letters of an outage tried again with each sweep. Both loops
    end with *closing*, after a last poll."""

    def __init__(
        self,
        journal: Journal,
        failures: Failures,
        policy: QueuePolicy,
        current: CurrentSettings,
        metrics: Metrics,
        now: Now,
    ) -> None:
        self._journal, self._failures, self._policy = journal, failures, policy
        self._current, self._metrics, self._now = current, metrics, now

    async def arrivals(
        self, take: Callable[[Sequence[JournalEntry]], Awaitable[None]], closing: asyncio.Event
    ) -> None:
        failures = 0
        page: Sequence[JournalEntry] = ()
        ended = False
        while not ended:
            try:
                # A page whose taking failed is taken again: the journal gives it once.
                page = page or await self._journal.arrivals(_PAGE)
                await take(page)
            except Exception as error:  # noqa: BLE001 - were this loop to end, nothing more would be learned
                failures += 1
                log.warning("journal.unreadable", error=type(error).__name__, failures=failures)
                pause = self._policy.backoff.seconds(failures)
                ended = await wait_for_event(closing, pause)
                continue
            failures = 0
            if not page:
                ended = await wait_for_event(closing, self._policy.look.total_seconds())
            page = ()

    async def look_after(self, closing: asyncio.Event) -> None:
        while True:
            await contain_faults(self.measure)
            if await wait_for_event(closing, self._policy.sweep.total_seconds()):
                return

    async def measure(self) -> None:
        """Sweep learned entries past their retention, and measure the backlog."""
        now = self._now()
        try:
            await self._failures.revive()
            await self._journal.erase_learned(now - self._current.settings.learn.journal.retention)
            depth = await self._journal.depth()
        except MemoryExtprocError as error:
            log.warning("journal.not_swept", error=type(error).__name__)
            return
        age = (now - depth.oldest).total_seconds() if depth.oldest else 0.0
        self._metrics.journal_depth.set(depth.turns)
        self._metrics.journal_dead.set(depth.dead)
        self._metrics.journal_oldest_seconds.set(max(0.0, age))


# Whether a turn that fails is at fault itself, or meets an outage; and dead letters that an outage left.

_REVIVALS = 3  # per dead letter and process
# Reasons of dead letters with which a store may have failed. The last two are how 0.1.0 wrote the first two.
_REASONS = frozenset(
    {"PermanentError", "TransientError", "UnknownFaultError", "NotReadyError", "GiveUpError", "TryLaterError"}
)


class Evidence:
    """Tracks which turns fail at one step of learning while other turns succeed."""

    def __init__(self, store_works: Callable[[], bool]) -> None:
        self._store_works = store_works
        self._successes = 0
        self._failing: dict[str, int] = {}  # turn id → successes at its last failure
        self._doubted = False  # a failure was not the turn's own, and nothing has succeeded since
        self.recovered = False  # a later success; the reader resets it

    def succeed(self, turn_ids: Sequence[str], *, proves: bool) -> None:
        """These fail no longer, or are gone. *proves*: the step was really taken for them."""
        for turn_id in turn_ids:
            self._failing.pop(turn_id, None)
        if proves:
            self._successes += 1
            self.recovered = self.recovered or self._doubted
            self._doubted = False

    def fail(self, turn_id: str, error: Exception) -> bool:
        """Whether this failure counts against the turn: other turns have succeeded since its last failure, or, for
        a permanent error, no other turn fails and the store works."""
        before = self._failing.get(turn_id)
        self._failing[turn_id] = self._successes
        if before is not None and self._successes > before:
            return True
        alone = len(self._failing) == 1 and self._store_works()
        if alone and not isinstance(error, TransientError):
            return True
        self._doubted = True
        return False


class Failures:
    """Counts failures against turns, up to a dead letter. Has dead letters tried again when the process has begun
    with a store that works, and after each outage."""

    def __init__(self, journal: Journal, current: CurrentSettings, store_works: Callable[[], bool]) -> None:
        self.storing, self.extracting = Evidence(store_works), Evidence(store_works)
        self._journal, self._current, self._store_works = journal, current, store_works
        self._due = True
        self._revived: Counter[str] = Counter()

    async def count(self, owner: Owner, evidence: Evidence, turn_ids: Sequence[str], error: Exception) -> bool:
        """Whether all of them are done with: dead letters, or no longer in the journal."""
        entries = await self._journal.get(owner, turn_ids)
        waiting = 0
        for entry in entries:
            accused = evidence.fail(entry.turn.id, error)
            dead = accused and entry.attempts + 1 >= self._current.settings.learn.max_attempts
            if accused:
                await self._journal.mark_failed(entry, type(error).__name__, dead=dead)
            waiting += not dead
        if not waiting:
            evidence.succeed(turn_ids, proves=False)
        return not waiting

    async def revive(self) -> None:
        for one in (self.storing, self.extracting):
            self._due = self._due or one.recovered
            one.recovered = False
        if not self._due or not self._store_works():
            return
        after, count = "", 0
        while letters := await self._journal.dead(_PAGE, after=after):
            ids = [one.turn_id for one in letters if one.reason in _REASONS]
            ids = [turn_id for turn_id in ids if self._revived[turn_id] < _REVIVALS]
            count += await self._journal.retry(ids)
            self._revived.update(ids)
            after = letters[-1].place
        self._due = False
        if count:
            log.info("learn.retried", turns=count)
