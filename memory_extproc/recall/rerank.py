"""Lets a reranker have a word in the order of the best candidates, as long as there is time for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

import msgspec

from memory_extproc.errors import MemoryExtprocError
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Reranks
from memory_extproc.recall.cost import ExpectedCost
from memory_extproc.recall.rank import Candidate

log = logger(__name__)

Clock = Callable[[], float]  # seconds, monotonic
FEWEST = 2  # texts that have an order


class RerankOutcome(StrEnum):
    """How a reranking ended. Also the metric label, so a value is never renamed."""

    USED = "used"
    FEWER = "fewer"  # used, on as many of them as there was time for
    TOO_FEW = "too_few"  # nothing to bring into an order
    NO_TIME = "no_time"  # not tried: it would probably not have been ready
    LATE = "late"  # tried, and not ready in time
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RerankLimits:
    first: int = 20  # candidates that are reranked; those behind them keep their places
    # Whether what it takes grows with the texts: then fewer of them, down to *least*, are better than none where
    # the time is short.
    by_text: bool = False
    least: int = 5
    weight: float = 0.6  # in [0, 1], of the reranker's opinion beside the fused score
    # Of the time left it may take a share less the reserve: the threshold and the block come after it, and a
    # timer on a busy event loop rings late. Without them a late reranker would cost the whole recall.
    share: float = 0.9
    reserve: timedelta = timedelta(milliseconds=5)


class Reranker:
    """Reorders the best of a fused ranking by a blend with a reranker's opinion. Never raises for a fault of
    it: then the fused order stands."""

    def __init__(
        self, reranks: Reranks, limits: RerankLimits, *, metrics: Metrics, clock: Clock = time.perf_counter
    ) -> None:
        self._reranks, self._limits, self._clock, self._metrics = reranks, limits, clock, metrics
        self._cost = ExpectedCost()
        self._seconds = metrics.recall_seconds.labels("rerank")

    def use(self, limits: RerankLimits) -> None:
        self._limits = limits

    async def reranked(
        self, query: str, candidates: Sequence[Candidate], left: timedelta
    ) -> Sequence[Candidate] | None:
        """All of *candidates* (best first), the first of them in a new order; None when the given one stands.

        Takes less than *left*: it is not tried where it would probably be late, judged by what it took before. The
        opinion of each is its feature `rerank`; its score stays what the fusion gave. The calibrated relevances
        are dealt out anew, the highest to the first: a reranker's numbers are not calibrated and do not say how
        many memories help, so as many as before stand above any threshold, and which ones they are is the
        reranker's word.
        """
        wanted = [one.memory.content for one in candidates[: self._limits.first]]
        opinions, outcome = await self._opinions(query, wanted, left)
        self._metrics.reranks.labels(outcome.value).inc()
        if outcome not in {RerankOutcome.USED, RerankOutcome.FEWER}:
            return None
        first, rest = candidates[: len(opinions)], candidates[len(opinions) :]
        order = blended([one.score for one in first], opinions, self._limits.weight)
        relevances = sorted((one.relevance for one in first), reverse=True)
        features = [{**one.features, "rerank": opinion} for one, opinion in zip(first, opinions, strict=True)]
        return [
            *(
                msgspec.structs.replace(first[at], relevance=relevance, features=features[at])
                for at, relevance in zip(order, relevances, strict=True)
            ),
            *rest,
        ]

    async def _opinions(
        self, query: str, texts: Sequence[str], left: timedelta
    ) -> tuple[Sequence[float], RerankOutcome]:
        if len(texts) < FEWEST:
            return (), RerankOutcome.TOO_FEW
        within = (left * self._limits.share - self._limits.reserve).total_seconds()
        affordable = self._affordable(len(texts), within)
        if affordable == 0:
            self._cost.kept_away()
            return (), RerankOutcome.NO_TIME
        found: Sequence[float]
        started = self._clock()
        try:
            async with asyncio.timeout(within):
                found = await self._reranks.rerank(query, texts[:affordable])
        except TimeoutError:
            log.info("rerank.late", within_ms=round(within * 1000))
            found, outcome = (), RerankOutcome.LATE
        except MemoryExtprocError as error:  # how soon it failed says nothing of how long it takes
            log.warning("rerank.failed", kind=type(error).__name__, detail=str(error))
            return (), RerankOutcome.FAILED
        else:
            outcome = RerankOutcome.USED if affordable == len(texts) else RerankOutcome.FEWER
        took = self._clock() - started
        self._cost.took(took / affordable if self._limits.by_text else took)
        self._seconds.observe(took)
        return found, outcome

    def _affordable(self, texts: int, within: float) -> int:
        """How many of *texts* are probably done *within* seconds; 0 where the attempt would be in vain."""
        cost = self._cost.seconds
        if within <= 0 or (within <= cost and not self._limits.by_text):
            return 0
        if not self._limits.by_text or within >= cost * texts:
            return texts
        affordable = int(within / cost)
        return affordable if affordable >= min(self._limits.least, texts) else 0


def blended(scores: Sequence[float], opinions: Sequence[float], weight: float) -> tuple[int, ...]:
    """The places of *scores* by ``weight * opinion + (1 - weight) * score``, the scores stretched to [0, 1], as
    the opinions are, because numbers of two kinds can only be added on one scale. Equal blends keep their order."""
    least, most = min(scores, default=0.0), max(scores, default=0.0)
    width = (most - least) or 1.0
    blend = [
        weight * opinion + (1.0 - weight) * (score - least) / width
        for opinion, score in zip(opinions, scores, strict=True)
    ]
    return tuple(sorted(range(len(blend)), key=lambda at: -blend[at]))
