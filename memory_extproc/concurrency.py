"""Background tasks with an owner and a bound, work off the event loop, the circuit breaker, and clocks."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Iterator
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from multiprocessing import get_context, parent_process
from typing import Any, ParamSpec, Self, TypeVar

from cachetools import LRUCache

from memory_extproc.errors import TransientError
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics

log = logger(__name__)
Clock = Callable[[], float]  # seconds that never go back
# Monotonic, with the time of suspension where the platform counts it.
_MONOTONIC = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def utc_now() -> datetime:
    return datetime.now(UTC)


def steady_seconds() -> float:
    """Seconds since an arbitrary time before the process began; they never go back."""
    return time.clock_gettime(_MONOTONIC)


def steady_now() -> datetime:
    """Monotonic time as a datetime, comparable only within this process."""
    return datetime.fromtimestamp(steady_seconds(), UTC)


class Background:
    """Owns the tasks of ending exchanges.

    A finished exchange's handler is often cancelled, so final work must not run in it."""

    def __init__(self, metrics: Metrics, *, grace: timedelta, most: int = 10_000) -> None:
        """*grace*: how long leaving waits for running tasks.

        *most*: concurrent tasks; further tasks are rejected."""
        self._metrics, self._grace, self._most = metrics, grace, most
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=self._grace.total_seconds())
        if late:
            log.warning("background.cut_off", tasks=len(late))
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
        """Run *work* to its end, independent of the caller's cancellation; None if there are too many tasks."""
        if len(self._tasks) >= self._most:
            work.close()
            self._metrics.stream_faults.labels("background_full").inc()
            return None
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._end_task)
        return task

    async def see_to_its_end(self, work: Coroutine[Any, Any, None], patience: timedelta) -> None:
        """Wait for *work*, at most *patience*; it continues after a timeout or our cancellation."""
        task = self.start(work)
        if task is not None:
            await asyncio.wait({task}, timeout=patience.total_seconds())

    def _end_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._metrics.stream_faults.labels("bug").inc()
            log.error("background.failed", kind=type(error).__name__, at=locate_error(error))


def locate_error(error: BaseException) -> str:
    """The innermost frames of *error* as file:line, without its text, which may quote user text."""
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(f"{trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}")
        trace = trace.tb_next
    return " ".join(frames[-4:])


async def contain_faults(step: Callable[[], Awaitable[object]]) -> None:
    """Run one step of an endless loop; a fault that it did not foresee ends the step and not the loop."""
    try:
        await step()
    except Exception as error:  # noqa: BLE001 - a loop that ends would leave us without what it looks after
        log.error("background.failed", kind=type(error).__name__, at=locate_error(error))  # noqa: TRY400


# Work proportional to a body: inline for small bodies, in a thread for large ones.


async def wait_for_event(event: asyncio.Event, seconds: float) -> bool:
    """Wait until *event* is set, for *seconds* at most. Returns whether it was set in time."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


async def run_until(event: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Run *work* to its end, or cancel it once *event* is set. Returns whether it came to its end."""
    tasks = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    return not tasks[0].cancelled() and tasks[0].result() is None


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that double from *first* to *longest*, each cut by up to a half so that retries spread out."""

    first: timedelta = timedelta(milliseconds=500)
    longest: timedelta = timedelta(seconds=15)  # recovery after an outage takes as long at most
    rng: Callable[[], float] = random.random  # uniform in [0, 1)

    def seconds(self, failures: int) -> float:
        """How long to wait after the *failures*-th failure in a row."""
        longest: timedelta = min(self.first * float(2 ** min(failures - 1, 20)), self.longest)
        return longest.total_seconds() * (1 - self.rng() / 2)


class Pace:
    """Gives background work a fifth of the time while requests need it.

    A piece of work then begins after a pause of four times what the one before it took, at most `LONGEST`."""

    LONGEST = (
        0.25  # seconds; work that waits for others, as for a language model, takes none of the processor's time
    )
    _LOOK = 0.02

    def __init__(self, is_busy: Callable[[], bool] = lambda: False, clock: Clock = time.monotonic) -> None:
        self.is_busy, self._clock = is_busy, clock
        self._next = 0.0
        self._beginning = asyncio.Lock()

    @asynccontextmanager
    async def turn(self, *, urgent: bool = False) -> AsyncIterator[None]:
        """Wait for the pause to end unless *urgent*, and note what the work inside takes."""
        if self.is_busy() and not urgent:
            async with self._beginning:
                while self.is_busy() and self._clock() < self._next:  # noqa: ASYNC110 - a load has no event
                    await asyncio.sleep(self._LOOK)
                self._next = self._clock() + self.LONGEST  # until it has ended
        began = self._clock()
        try:
            yield
        finally:
            ended = self._clock()
            self._next = min(ended + 4 * (ended - began), began + self.LONGEST)


P = ParamSpec("P")
R = TypeVar("R")

# Characters or bytes. Below it the most expensive work, finding the messages behind ten thousand tools, takes less
# than ten milliseconds; above it the hundred microseconds of a thread do not matter.
LARGE = 64 * 1024
# Where set, a list that gets the seconds of CPU of each work in a thread.
THREAD_SECONDS: ContextVar[list[float] | None] = ContextVar("thread_seconds", default=None)
# Requests have a thread pool of their own, so that they never queue behind learning, which uses asyncio's.
_REQUESTS = ThreadPoolExecutor(max_workers=4, thread_name_prefix="request")


async def off_loop(size: int, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run *work* on input of *size*, in a thread if it is large.

    Other streams run meanwhile, so *work* must not touch shared state. If the caller is cancelled, the thread
    completes by itself."""
    if size < LARGE:
        return work(*args, **kwargs)
    call = partial(copy_context().run, _note_seconds, partial(work, *args, **kwargs))
    return await asyncio.get_running_loop().run_in_executor(_REQUESTS, call)


def _note_seconds(work: Callable[[], R]) -> R:
    began = time.thread_time()
    try:
        return work()
    finally:
        if (seconds := THREAD_SECONDS.get()) is not None:
            seconds.append(time.thread_time() - began)


# Characters. So much text takes 50 milliseconds and more, in which a thread would let the event loop run for a
# fraction of the time: a search of a regular expression keeps the interpreter's lock until it ends.
LONG = 16_000


class HelperThread:
    """Analyses texts in a thread."""

    async def run(self, size: int, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:  # noqa: ARG002
        """Run *work* on text of *size* characters."""
        return await asyncio.to_thread(work, *args, **kwargs)


HELPER_THREAD = HelperThread()


class HelperProcess(HelperThread):
    """Analyses long texts in a process of its own and of low priority, so that requests do not wait for them.

    It is started when it is first needed, and ends with this process or at `close`. If it is killed or cannot be
    started, the work is done in a thread, and the next work starts another. Texts that wait for it are bounded by
    those who wait: `Intake` accepts a part of `limits.process_bytes`, and the turns that are learned at a time."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    async def run(self, size: int, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run *work* on text of *size* characters: in a thread up to LONG. *work* and its arguments are pickled."""
        if size > LONG:
            pool = self._pool
            try:
                if pool is None:
                    # Not forked: a copy of a process with threads may wait for ever.
                    pool = self._pool = ProcessPoolExecutor(1, get_context("spawn"), _begin_to_help)
                call = partial(work, *args, **kwargs)
                return await asyncio.get_running_loop().run_in_executor(pool, call)
            except (BrokenExecutor, OSError) as error:
                log.warning("background.helper_lost", error=type(error).__name__)
                if self._pool is pool:
                    self._pool = None
        return await super().run(size, work, *args, **kwargs)

    def close(self) -> None:
        """End the process without waiting for its work, which at exit concurrent.futures would do. The turns of
        that work are in the intake log or the journal."""
        pool, self._pool = self._pool, None
        if pool is not None:
            # Python 3.14 has kill_workers() for it.
            processes = list((pool._processes or {}).values())  # noqa: SLF001
            pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.kill()


_LESS_URGENT = 10  # by so much, in the unit of nice(2)


def _begin_to_help() -> None:
    os.nice(_LESS_URGENT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the sidecar decides when to end
    parent = parent_process()

    def end_with_parent() -> None:
        if parent is not None:
            parent.join()
        os._exit(0)

    threading.Thread(target=end_with_parent, daemon=True).start()


# Cancellation that survives client libraries which swallow it.


@contextmanager
def cancellation_kept() -> Iterator[Callable[[], bool]]:
    """Raise CancelledError at the end if the task was cancelled inside. Yields a predicate for it.

    Client libraries, among them Milvus' and Redis', use asyncio.wait_for, which before Python 3.12 swallows a
    cancellation that coincides with the result (python/cpython#86296). The task would continue, and its owner would
    wait forever."""
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()

    def is_cancelled() -> bool:
        return task is not None and task.cancelling() > before

    try:
        yield is_cancelled
    finally:
        if is_cancelled():
            raise asyncio.CancelledError


@dataclass(frozen=True, slots=True)
class RateLimits:
    per_second: float = 50.0  # tokens, on average
    burst: float = 200  # tokens at once


class TokenBuckets:
    """A token bucket for each key, full at first; not for several threads."""

    def __init__(self, limits: Callable[[], RateLimits], clock: Clock, most: int = 10_000) -> None:
        """*limits* are read at each use; tokens stay, up to the burst. *most*: buckets; the least recently used is
        dropped first."""
        self._limits, self._clock = limits, clock
        self._levels: LRUCache[Hashable, tuple[float, float]] = LRUCache(most)  # tokens, and the time

    def level(self, key: Hashable) -> float:
        """Tokens; negative after a charge of more than there were."""
        now, limits = self._clock(), self._limits()
        tokens, at = self._levels.get(key, (limits.burst, now))
        return min(limits.burst, tokens + max(0.0, now - at) * limits.per_second)

    def charge(self, key: Hashable, tokens: float) -> None:
        self._levels[key] = self.level(key) - tokens, self._clock()

    def take(self, key: Hashable) -> timedelta | None:
        """Take a token; without one return the wait for the next."""
        if (level := self.level(key)) < 1:
            return timedelta(seconds=(1 - level) / self._limits().per_second)
        self.charge(key, 1)
        return None


@dataclass(frozen=True, slots=True)
class BreakerLimits:
    failures: int = 5  # in a row, before calls are rejected
    pause: timedelta = timedelta(seconds=30)  # then a probe is let through


class Breaker:
    """A circuit breaker; not for several threads.

    Closed: calls pass. Open after *failures* in a row: calls are rejected at once. Half-open after *pause*: a
    single call passes as a probe, and its result decides."""

    def __init__(self, limits: BreakerLimits, clock: Clock, why: str = "it did not answer a moment ago") -> None:
        """*why*: the message of the error while it is open."""
        self._limits, self._clock, self._why = limits, clock, why
        self._failed = 0
        self._opened_at: float | None = None
        self._probing = False

    @property
    def is_closed(self) -> bool:
        return self._opened_at is None

    def admit(self) -> None:
        """TransientError while open. An admitted caller then reports success, failure or neither."""
        if self._opened_at is None:
            return
        if self._probing or self._clock() - self._opened_at < self._limits.pause.total_seconds():
            raise TransientError(self._why)
        self._probing = True

    def count_success(self) -> None:
        self._failed = 0
        self._opened_at = None
        self._probing = False

    def count_failure(self) -> None:
        self._failed += 1
        self._probing = False
        if self._failed >= self._limits.failures:
            self._opened_at = self._clock()

    def count_undecided(self) -> None:
        """The call was cancelled: it says nothing about the other side."""
        self._probing = False
