"""The memories that others share with the caller, searched beside the caller's own and never at their cost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from datetime import timedelta
from typing import Any, TypeVar

from memory_extproc.errors import MemoryExtprocError
from memory_extproc.model import Owner
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics

log = logger(__name__)
T = TypeVar("T")


async def beside(
    own: Coroutine[Any, Any, T],
    shared: Mapping[Owner, Coroutine[Any, Any, T]],
    patience: Callable[[], timedelta],
    metrics: Metrics,
) -> tuple[T, list[T]]:
    """What *own* came to, and those of *shared* that were there within *patience* after it, in their order. All run
    at the same time. What fails of the shared ones is left out; what *own* raises is raised."""
    tasks = {owner: asyncio.create_task(search, name="shared search") for owner, search in shared.items()}
    try:
        mine = await own
        if tasks:
            await asyncio.wait(tasks.values(), timeout=max(0.0, patience().total_seconds()))
        return mine, [task.result() for owner, task in tasks.items() if _came(owner, task, metrics)]
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)


def _came(owner: Owner, task: asyncio.Task[T], metrics: Metrics) -> bool:
    """Whether there is a result. What is no error of ours is a bug, and shows when the result is asked for."""
    error = task.exception() if task.done() else None
    outcome = "searched" if task.done() else "late"
    if isinstance(error, MemoryExtprocError):
        outcome = "unavailable"
        log.warning("recall.shared_unavailable", scope=owner.kind.value, kind=type(error).__name__)
    metrics.shared_searches.labels(owner.kind.value, outcome).inc()
    return outcome == "searched"
