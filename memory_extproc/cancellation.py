"""A task that was told to end ends, though a client library forgot to tell it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager


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
