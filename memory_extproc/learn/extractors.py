"""Extractors around extractors: measuring one, and letting another do what it cannot."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from memory_extproc.errors import GiveUpError, MemoryExtprocError, TryLaterError
from memory_extproc.learn.budget import OverBudgetError
from memory_extproc.learn.extract import Extracts, Fact
from memory_extproc.model import Turn
from memory_extproc.observe import log
from memory_extproc.observe.metrics import Metrics

_log = log.logger(__name__)


class Measured:
    """Times an extractor's batches and counts them as "done", "unavailable", "over_budget" or "failed"."""

    def __init__(self, extractor: Extracts, metrics: Metrics, clock: Callable[[], float]) -> None:
        """*clock* gives seconds that never run backwards."""
        self._extractor = extractor
        self._metrics = metrics
        self._clock = clock

    @property
    def name(self) -> str:
        return self._extractor.name

    async def extract(self, turns: Sequence[Turn], *, earlier: Sequence[Turn] = ()) -> list[Fact]:
        began = self._clock()
        try:
            facts = await self._extractor.extract(turns, earlier=earlier)
        except TryLaterError:
            self._count("unavailable", began)
            raise
        except OverBudgetError:
            self._count("over_budget", began)
            raise
        except GiveUpError:
            self._count("failed", began)
            raise
        self._count("done", began)
        return facts

    def _count(self, outcome: str, began: float) -> None:
        self._metrics.extraction_seconds.labels(self.name).observe(self._clock() - began)
        self._metrics.extractions.labels(self.name, outcome).inc()


class Fallback:
    """*first*, and *second* for the batches that *first* will never do: it answers them malformed, or they would
    cost more than is left. One that cannot be reached may do them later, and passes as TryLaterError unless
    *waits* is false."""

    def __init__(self, first: Extracts, second: Extracts, *, waits: bool = True) -> None:
        self._first = first
        self._second = second
        self._passed_on = GiveUpError if waits else MemoryExtprocError

    @property
    def name(self) -> str:
        return self._first.name

    async def extract(self, turns: Sequence[Turn], *, earlier: Sequence[Turn] = ()) -> list[Fact]:
        try:
            return await self._first.extract(turns, earlier=earlier)
        except self._passed_on as error:
            _log.warning(
                "extract.fallback", extractor=self._first.name, kind=type(error).__name__, turns=len(turns)
            )
            return await self._second.extract(turns, earlier=earlier)
