"""The end of a process that was told to end, though something in it does not come to its own."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from memory_extproc.observe.log import logger
from memory_extproc.settings import Settings

log = logger(__name__)

_CLOSING = timedelta(seconds=10)  # for files, connections and models to be closed
CUT_OFF = 1  # exit code


@dataclass(frozen=True, slots=True)
class EndingLimits:
    """From when the process was told to end. *usual*: by then it has ended nearly always; *longest*: an orderly end
    takes no longer."""

    usual: timedelta
    longest: timedelta


def ending_limits(settings: Settings) -> EndingLimits:
    """Two servers drain one after the other, then exchanges, topics and the learner each have their time. Hardly
    ever does each of them need all of it."""
    shutdown = settings.shutdown
    return EndingLimits(
        usual=2 * shutdown.announce + shutdown.grace + shutdown.flush + _CLOSING,
        longest=2 * (shutdown.announce + shutdown.grace) + 3 * shutdown.flush + _CLOSING,
    )


class Ending:
    """Once begun it says what is left where the end takes longer than usual, before who told us to end loses
    patience and kills. When the longest orderly end is over, that of the interpreter included, which waits for
    threads that compute or hang in a call, it ends the process, as a kill would: what was accepted is in the
    journal, and the next process takes it up."""

    def __init__(self, limits: EndingLimits, end: Callable[[int], object] = os._exit) -> None:
        self._limits = limits
        self._end = end
        self._begun = False

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._begun:
            return
        self._begun = True
        # A daemon, so that nobody waits for it in turn; a thread, because the loop may be what hangs.
        threading.Thread(target=self._watch, args=[loop], name="ending", daemon=True).start()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        time.sleep(self._limits.usual.total_seconds())
        log.warning("sidecar.slow_to_end", tasks=_tasks(loop), threads=_threads())
        time.sleep((self._limits.longest - self._limits.usual).total_seconds())
        log.error("sidecar.cut_off", tasks=_tasks(loop), threads=_threads())
        self._end(CUT_OFF)


def _tasks(loop: asyncio.AbstractEventLoop) -> Sequence[str]:
    """Those that the end waits for, by the names that we gave them, with what each began as."""
    return sorted(f"{task.get_name()}: {_begun_as(task)}" for task in asyncio.all_tasks(loop))


def _begun_as(task: asyncio.Task[object]) -> str:
    return str(getattr(task.get_coro(), "__qualname__", "?"))


def _threads() -> Sequence[str]:
    return sorted(one.name for one in threading.enumerate() if not one.daemon)
