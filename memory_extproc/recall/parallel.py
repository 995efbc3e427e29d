"""Searches that run beside one another: for shared memories, for the vectors of a question, for several queries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from typing import Any, Self, TypeVar

from memory_extproc.errors import MemoryExtprocError
from memory_extproc.model import Owner, Vector
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.recall.candidate import Candidate

log = logger(__name__)

T = TypeVar("T")
Vectors = Sequence[Vector | None]


async def search_shared(
    own: Coroutine[Any, Any, T],
    shared: Mapping[Owner, Coroutine[Any, Any, T]],
    patience: Callable[[], timedelta],
    metrics: Metrics,
) -> tuple[T, list[T]]:
    """Run the caller's search and the searches of shared owners at the same time.

    Returns the result of *own* and, in order, the results of *shared* that arrived within *patience* after it. Late
    and failed shared searches are left out and counted; an error of *own* is raised.
    """
    tasks = {owner: asyncio.create_task(search, name="shared search") for owner, search in shared.items()}
    try:
        mine = await own
        if tasks:
            await asyncio.wait(tasks.values(), timeout=max(0.0, patience().total_seconds()))
        return mine, [task.result() for owner, task in tasks.items() if _has_result(owner, task, metrics)]
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)


def _has_result(owner: Owner, task: asyncio.Task[T], metrics: Metrics) -> bool:
    """Whether *task* may be read. An error that is not ours is a bug, and surfaces when the result is read."""
    error = task.exception() if task.done() else None
    outcome = "searched" if task.done() else "late"
    if isinstance(error, MemoryExtprocError):
        outcome = "unavailable"
        log.warning("recall.shared_unavailable", scope=owner.kind.value, kind=type(error).__name__)
    metrics.shared_searches.labels(owner.kind.value, outcome).inc()
    return outcome == "searched"


class PendingEmbeddings:
    """The vectors of a question's texts while they are computed.

    Entering the context starts the computation, leaving it cancels an unfinished run. A text that could not be
    embedded has None in place of its vector.
    """

    def __init__(self, embedding: Coroutine[Any, Any, Vectors], clock: Callable[[], float]) -> None:
        self._embedding, self._clock = embedding, clock
        self._task: asyncio.Task[Vectors]
        self.there = 0.0  # when it was done, by *clock*

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._embed(), name="embedding")
        # A task begins at the next turn of the loop: let it start before the work that runs meanwhile.
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})

    async def at(self, place: int) -> Vector | None:
        """The vector of the text at *place*. A cancelled waiter does not cancel the run for the others."""
        vectors = self._task.result() if self._task.done() else await asyncio.shield(self._task)
        return vectors[place]

    async def _embed(self) -> Vectors:
        try:
            return await self._embedding
        finally:
            self.there = self._clock()


def merge_rankings(rankings: Sequence[Sequence[Candidate]]) -> list[Candidate]:
    """Merge the rankings of several queries, best first; each memory counts as in the query that it fits best.

    Relevance decides, because it is calibrated and means the same for each query. The score, which does not, breaks
    ties.
    """
    best: dict[str, Candidate] = {}
    for one in (one for ranking in rankings for one in ranking):
        known = best.get(one.memory.id)
        if known is None or (one.relevance, one.score) > (known.relevance, known.score):
            best[one.memory.id] = one
    return sorted(best.values(), key=lambda one: (-one.relevance, -one.score, one.memory.id))
