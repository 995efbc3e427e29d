"""Work that outlives the message it began with: owned here, bounded, and waited for at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from datetime import timedelta
from functools import partial
from typing import Any, ParamSpec, Self, TypeVar

from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics

log = logger(__name__)


class Background:
    """Holds the tasks of exchanges that are ending. A finished exchange often ends with its handler
    cancelled, so nothing that must come to its end runs in the handler itself."""

    def __init__(self, metrics: Metrics, *, grace: timedelta, most: int = 10_000) -> None:
        """*grace*: how long leaving waits for what still runs. *most*: tasks at once; more are refused."""
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
        """Runs *work* to its end, whoever is cancelled meanwhile; None when there is no place for it."""
        if len(self._tasks) >= self._most:
            work.close()
            self._metrics.stream_faults.labels("background_full").inc()
            return None
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def see_to_its_end(self, work: Coroutine[Any, Any, None], patience: timedelta) -> None:
        """Waits for *work*, at most *patience*; it goes on alone when that is over or we are cancelled."""
        task = self.start(work)
        if task is not None:
            await asyncio.wait({task}, timeout=patience.total_seconds())

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._metrics.stream_faults.labels("bug").inc()
            log.error("background.failed", kind=type(error).__name__, at=whereabouts(error))


def whereabouts(error: BaseException) -> str:
    """The innermost frames of *error* as file:line, without its text, which may quote a person's words."""
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(f"{trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}")
        trace = trace.tb_next
    return " ".join(frames[-4:])


# --- large -------------------------------------------------------------------------------------------
# Work that grows with a body: of a small one done at once, of a large one beside the event loop.

P = ParamSpec("P")
R = TypeVar("R")

# Characters or bytes. Up to here the dearest of it, finding the messages behind ten thousand tools, takes less than
# ten milliseconds; from here on the hundred microseconds that a thread costs do not show.
LARGE = 64 * 1024
# Requests have threads of their own: learning uses the threads of asyncio, and a request never queues behind it.
_REQUESTS = ThreadPoolExecutor(max_workers=4, thread_name_prefix="request")


async def off_loop(size: int, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """What *work* returns or raises; *size* is that of what it reads. Other streams go on meanwhile, so *work*
    must not touch what they may change. When the caller is cancelled a thread's work ends by itself."""
    if size < LARGE:
        return work(*args, **kwargs)
    context = copy_context()
    return await asyncio.get_running_loop().run_in_executor(_REQUESTS, partial(context.run, work, *args, **kwargs))


# --- cancellation ------------------------------------------------------------------------------------
# A task that was told to end ends, though a client library forgot to tell it.


@contextmanager
def cancellation_kept() -> Iterator[Callable[[], bool]]:
    """Raises CancelledError at its end if the task was cancelled inside. Gives a question: whether it was, by now.

    Client libraries, Milvus' and Redis' among them, wait with asyncio.wait_for, which until Python 3.12 forgets a
    cancellation that comes together with the answer (python/cpython#86296). A task of ours that was told to end
    would then go on, and whoever waits for its end would wait for ever.
    """
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()

    def cancelled() -> bool:
        return task is not None and task.cancelling() > before

    try:
        yield cancelled
    finally:
        if cancelled():
            raise asyncio.CancelledError
