"""The read path: gate, query, embed, search, rank, block, under one deadline.

Whatever fails here is an outcome and a log line: the request goes on as it came.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta

import numpy as np

from memory_extproc.errors import GiveUpError, TryLaterError
from memory_extproc.model import Outcome, Ranked, Recalled, Searched, Vector, Wish
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Embeds, FindsMemories, Learns, Now
from memory_extproc.recall.block import render, smallest
from memory_extproc.recall.explanation import Considered, Explanation, Verdict
from memory_extproc.recall.gate import AboutCaller, gate
from memory_extproc.recall.query import Query, Rewriter, plain
from memory_extproc.recall.rank import chosen, weigh

log = logger(__name__)

Clock = Callable[[], float]  # seconds, monotonic


@dataclass(frozen=True, slots=True)
class RecallLimits:
    """Bounds of one recall."""

    deadline: timedelta = timedelta(milliseconds=150)  # the whole read path; below Envoy's message_timeout
    settle: timedelta = timedelta(milliseconds=50)  # most to wait until the caller's last turn can be found
    max_concurrent: int = 64
    candidates: int = 50  # memories asked of the search, before ranking
    token_budget: int = 512  # estimated tokens of a block
    threshold_on_cosine: bool = False


class Recaller:
    """Implements ports.Recalls."""

    def __init__(
        self,
        finds: FindsMemories,
        embedder: Embeds,
        limits: RecallLimits,
        *,
        now: Now,
        metrics: Metrics,
        about_caller: AboutCaller,
        learns: Learns | None = None,
        rewriter: Rewriter | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._finds, self._embedder, self._limits = finds, embedder, limits
        self._learns, self._rewriter, self._about_caller = learns, rewriter, about_caller
        self._now, self._clock, self._metrics = now, clock, metrics
        self._running = 0
        self._stages = {
            stage: metrics.recall_seconds.labels(stage)
            for stage in ("gate", "query", "embed", "search", "rank", "total")
        }

    async def recall(self, wish: Wish) -> Recalled:
        """What memory has for this request; never raises for a fault of store, model or time."""
        if self._running >= self._limits.max_concurrent:
            return Recalled(outcome=Outcome.OVERLOADED)
        started = self._clock() - wish.spent.total_seconds()
        self._running += 1
        self._metrics.recalls_running.set(self._running)
        try:
            recalled = await self._within_deadline(wish, started)
        finally:
            self._running -= 1
            self._metrics.recalls_running.set(self._running)
        took = self._clock() - started
        self._stages["total"].observe(took)
        if recalled.path:
            self._metrics.recall_path.labels(recalled.path).inc()
        if recalled.outcome is Outcome.USED:
            self._metrics.recall_injected.observe(len(recalled.memories))
            self._metrics.injected_tokens.observe(recalled.tokens)
        return Recalled(
            outcome=recalled.outcome,
            block=recalled.block,
            memories=recalled.memories,
            path=recalled.path,
            tokens=recalled.tokens,
            took=timedelta(seconds=took),
        )

    async def _within_deadline(self, wish: Wish, started: float) -> Recalled:
        with self._timed("gate"):
            skip = None if wish.force else gate(wish.asked, wish.signals, self._about_caller)
        if skip is not None:
            return Recalled(outcome=skip)
        budget = self._budget(wish)
        if budget < smallest():
            return Recalled(outcome=Outcome.NO_ROOM)
        try:
            async with asyncio.timeout((self._limits.deadline - wish.spent).total_seconds()):
                return await self._searched(wish, budget, started)
        except TimeoutError:
            log.warning("recall.out_of_time", deadline_ms=self._limits.deadline / timedelta(milliseconds=1))
            return Recalled(outcome=Outcome.OUT_OF_TIME)
        except (TryLaterError, GiveUpError) as error:
            log.warning("recall.unavailable", kind=type(error).__name__, detail=str(error))
            return Recalled(outcome=Outcome.UNAVAILABLE)

    async def explain(self, wish: Wish) -> Explanation:
        """What `recall` would do for *wish*, step by step. Not bounded by the deadline, counted in no metric but
        the stages', and it lets faults of store and model out (TryLaterError, GiveUpError)."""
        skip = None if wish.force else gate(wish.asked, wish.signals, self._about_caller)
        if skip is not None:
            return Explanation(outcome=skip, gate=skip)
        query, searched = await self._found(wish, self._clock())
        weighed = self._weighed(wish, searched)
        recalled = self._recalled(searched, chosen(weighed), self._budget(wish))
        kept = {one.memory.id for one in recalled.memories}
        return Explanation(
            outcome=recalled.outcome,
            query=query.text,
            path=searched.path,
            total=searched.total,
            considered=tuple(
                replace(one, verdict=Verdict.NO_ROOM)
                if one.verdict is Verdict.INJECTED and one.memory.id not in kept
                else one
                for one in weighed
            ),
            block=recalled.block,
        )

    async def _searched(self, wish: Wish, budget: int, started: float) -> Recalled:
        await self._settle(wish)
        _, searched = await self._found(wish, started)
        with self._timed("rank"):
            self._metrics.recall_candidates.observe(len(searched.found))
            return self._recalled(searched, chosen(self._weighed(wish, searched)), budget)

    async def _found(self, wish: Wish, started: float) -> tuple[Query, Searched]:
        with self._timed("query"):
            query = await self._query(wish, started)
        with self._timed("embed"):
            vector = await self._vector(query)
        with self._timed("search"):
            most = max(self._limits.candidates, wish.limit)
            return query, await self._finds.nearest(wish.caller.owner, vector, most, wish.scope)

    async def _settle(self, wish: Wish) -> None:
        """Lets the caller's turn of a moment ago be findable first, for as long as that stays cheap."""
        if self._learns is None:
            return
        try:
            async with asyncio.timeout(self._limits.settle.total_seconds()):
                await self._learns.settled(wish.caller)
        except TimeoutError:
            log.info("recall.not_settled")

    async def _query(self, wish: Wish, started: float) -> Query:
        if self._rewriter is None:
            return plain(wish.asked, wish.earlier)
        spent = self._clock() - started
        within = (self._limits.deadline.total_seconds() - spent) * REWRITE_SHARE
        return await self._rewriter.query(wish.asked, wish.earlier, timedelta(seconds=max(within, 0.0)))

    async def _vector(self, query: Query) -> Vector:
        if not query.supposed:
            return await self._embedder.embed_query(query.text)
        asked, supposed = await asyncio.gather(
            self._embedder.embed_query(query.text), self._embedder.embed_query(query.supposed)
        )
        mean = asked + supposed
        length = float(np.linalg.norm(mean))
        return asked if length == 0.0 else np.asarray(mean / length, dtype=np.float32)

    def _weighed(self, wish: Wish, searched: Searched) -> list[Considered]:
        return weigh(
            searched.found,
            now=self._now(),
            threshold=wish.threshold,
            limit=wish.limit,
            on_cosine=self._limits.threshold_on_cosine,
            in_view=wish.in_view,
        )

    def _recalled(self, searched: Searched, ranked: tuple[Ranked, ...], budget: int) -> Recalled:
        if searched.total == 0:
            return Recalled(outcome=Outcome.EMPTY, path=searched.path)
        block = render(ranked, budget)
        if not block.kept:
            outcome = Outcome.NO_ROOM if ranked else Outcome.NOTHING_RELEVANT
            return Recalled(outcome=outcome, path=searched.path)
        return Recalled(
            outcome=Outcome.USED, block=block.text, memories=block.kept, path=searched.path, tokens=block.tokens
        )

    def _budget(self, wish: Wish) -> int:
        """Tokens the block may have."""
        return self._limits.token_budget if wish.room is None else min(self._limits.token_budget, wish.room)

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        started = self._clock()
        try:
            yield
        finally:
            self._stages[stage].observe(self._clock() - started)


REWRITE_SHARE = 0.7  # of the time left: what a model may take, so that the search still has some
