"""Lets a reranker have a word in the order of the best candidates, as long as there is time for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from memory_extproc.errors import MemoryExtprocError
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Reranks
from memory_extproc.recall.cost import ExpectedCost

log = logger(__name__)

Clock = Callable[[], float]  # seconds, monotonic
FEWEST = 2  # texts that have an order


class RerankOutcome(StrEnum):
    """How a reranking ended. Also the metric label, so a value is never renamed."""

    USED = "used"
    TOO_FEW = "too_few"  # nothing to bring into an order
    NO_TIME = "no_time"  # not tried: it would probably not have been ready
    LATE = "late"  # tried, and not ready in time
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RerankLimits:
    first: int = 20  # candidates that are reranked; those behind them keep their places
    weight: float = 0.6  # in [0, 1], of the reranker's opinion beside the fused score
    reserve: timedelta = timedelta(milliseconds=5)  # of the time left: for the threshold and the block


class Reranker:
    """Reorders the best of a fused ranking by a blend with a reranker's opinion. Never raises for a fault of
    it: then the fused order stands."""

    def __init__(
        self, reranks: Reranks, limits: RerankLimits, *, metrics: Metrics, clock: Clock = time.perf_counter
    ) -> None:
        self._reranks, self._limits, self._clock, self._metrics = reranks, limits, clock, metrics
        self._cost = ExpectedCost()
        self._seconds = metrics.recall_seconds.labels("rerank")

    async def order(
        self, query: str, texts: Sequence[str], scores: Sequence[float], left: timedelta
    ) -> tuple[int, ...] | None:
        """The places of *texts* in their new order; None when the given one stands.

        *texts* come best first with their fused *scores*. Takes at most *left* less the reserve: it is not
        tried where it would probably be late, judged by what it took before.
        """
        found, outcome = await self._opinion(query, texts[: self._limits.first], left)
        self._metrics.reranks.labels(outcome.value).inc()
        if outcome is not RerankOutcome.USED:
            return None
        return reordered(scores, found, self._limits.weight)

    async def _opinion(
        self, query: str, texts: Sequence[str], left: timedelta
    ) -> tuple[Sequence[float], RerankOutcome]:
        if len(texts) < FEWEST:
            return (), RerankOutcome.TOO_FEW
        within = (left - self._limits.reserve).total_seconds()
        if within <= self._cost.seconds:
            self._cost.kept_away()
            return (), RerankOutcome.NO_TIME
        found: Sequence[float]
        started = self._clock()
        try:
            async with asyncio.timeout(within):
                found = await self._reranks.rerank(query, texts)
        except TimeoutError:
            log.info("rerank.late", within_ms=round(within * 1000))
            found, outcome = (), RerankOutcome.LATE
        except MemoryExtprocError as error:  # how soon it failed says nothing of how long it takes
            log.warning("rerank.failed", kind=type(error).__name__, detail=str(error))
            return (), RerankOutcome.FAILED
        else:
            outcome = RerankOutcome.USED
        took = self._clock() - started
        self._cost.took(took)
        self._seconds.observe(took)
        return found, outcome


def reordered(scores: Sequence[float], found: Sequence[float], weight: float) -> tuple[int, ...]:
    """All places of *scores* (best first); the first ``len(found)`` of them by the blend
    ``weight * found + (1 - weight) * score``, the scores among them stretched to [0, 1], as *found* is, because
    numbers of two kinds can only be added on one scale. Equal blends keep their order."""
    first = scores[: len(found)]
    least, most = min(first, default=0.0), max(first, default=0.0)
    width = (most - least) or 1.0
    blend = [
        weight * own + (1.0 - weight) * (score - least) / width for own, score in zip(found, first, strict=True)
    ]
    best = sorted(range(len(found)), key=lambda at: -blend[at])
    return (*best, *range(len(found), len(scores)))


def dealt_anew(relevances: Sequence[float]) -> tuple[float, ...]:
    """Calibrated *relevances* in a new order of their memories: the same numbers, the highest first.

    A reranker's scores are not calibrated, and its order says nothing of how many memories help. So how many
    stand above a threshold stays what the calibration says, and which ones they are is the reranker's word.
    """
    return tuple(sorted(relevances, reverse=True))
