"""One question put to one of the systems that are compared, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from memory_extproc.errors import TryLaterError
from memory_extproc.evaluation.cases import Question
from memory_extproc.model import Caller, Matrix, Memory, Outcome, Owner, Scope, Vector, Wish
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Embeds, KeepsMemories
from memory_extproc.recall.explanation import Considered, Explanation, Verdict
from memory_extproc.recall.recaller import Recaller

DEEPEST = 20  # the largest k that is measured


class System(StrEnum):
    """What is measured."""

    HYBRID = "hybrid"  # recall as configured
    DENSE = "dense"  # the plain way: the cosine of the embedding, the threshold held against it
    LEXICAL = "lexical"  # recall as configured while the embedding model is down
    STORE = "store"  # recall as configured for an owner too large to be held in process


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much would be injected: *limit* memories of at least *threshold* relevance, 0 to 1."""

    threshold: float = 0.6
    limit: int = 5


@dataclass(frozen=True, slots=True)
class Answer:
    """*ranked*: all that was considered, best first, without what only repeats a better one; *injected*: what
    the bounds let through, as the block would hold it; *seconds* by stage, where they were measured."""

    ranked: tuple[Considered, ...]
    injected: tuple[Memory, ...]
    outcome: Outcome
    path: str
    worth: float | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)


class Asks(Protocol):
    async def ask(self, question: Question, *, timed: bool) -> Answer:
        """*timed*: also run it as a request would, and take the time of each stage."""


class AsksRecall:
    """The recaller, asked without a threshold for the order, and with one for what would be injected."""

    def __init__(self, recaller: Recaller, owner: Owner, bounds: Bounds, metrics: Metrics) -> None:
        self._recaller, self._owner, self._bounds, self._metrics = recaller, owner, bounds, metrics

    async def ask(self, question: Question, *, timed: bool) -> Answer:
        wish = Wish(
            caller=Caller(self._owner),
            asked=question.text,
            earlier=question.earlier,
            limit=self._bounds.limit,
            threshold=self._bounds.threshold,
        )
        # First, while the query's vector is not cached.
        seconds = await self._timed(wish) if timed else {}
        bounded = await self._recaller.explain(wish)
        free = await self._recaller.explain(
            Wish(caller=wish.caller, asked=wish.asked, earlier=wish.earlier, limit=DEEPEST, threshold=0.0)
        )
        return Answer(
            ranked=_ranked(free.considered),
            injected=_injected(bounded),
            outcome=bounded.outcome,
            path=bounded.path,
            worth=bounded.worth,
            seconds=seconds,
        )

    async def _timed(self, wish: Wish) -> Mapping[str, float]:
        before = _sums(self._metrics)
        await self._recaller.recall(wish)
        after = _sums(self._metrics)
        return {
            stage: seconds - before.get(stage, 0.0)
            for stage, seconds in after.items()
            if seconds > before.get(stage, 0.0)
        }


class AsksDense:
    """The nearest by cosine, injected from *bounds* on: how most memory layers recall, and our yardstick."""

    def __init__(self, keeps: KeepsMemories, embedder: Embeds, owner: Owner, bounds: Bounds) -> None:
        self._keeps, self._embedder, self._owner, self._bounds = keeps, embedder, owner, bounds

    async def ask(self, question: Question, *, timed: bool) -> Answer:
        started = time.perf_counter()
        vector = await self._embedder.embed_query(question.text)
        embedded = time.perf_counter()
        searched = await self._keeps.nearest(self._owner, vector, DEEPEST, Scope())
        found = time.perf_counter()
        seconds = {"embed": embedded - started, "search": found - embedded, "total": found - started}
        ranked = tuple(
            Considered(one.memory, one.cosine, max(0.0, one.cosine), Verdict.INJECTED, {"dense": one.cosine})
            for one in searched.found
        )
        injected = tuple(
            one.memory for one in ranked[: self._bounds.limit] if one.relevance >= self._bounds.threshold
        )
        outcome = Outcome.USED if injected else Outcome.NOTHING_RELEVANT
        return Answer(ranked, injected, outcome, searched.path, seconds=seconds if timed else {})


class Unreachable:
    """The embedder as it is while it is down for queries; what was embedded before stays."""

    def __init__(self, embedder: Embeds) -> None:
        self._embedder = embedder

    @property
    def fingerprint(self) -> str:
        return self._embedder.fingerprint

    @property
    def dimension(self) -> int:
        return self._embedder.dimension

    @property
    def max_tokens(self) -> int:
        return self._embedder.max_tokens

    async def embed(self, texts: Sequence[str]) -> Matrix:
        return await self._embedder.embed(texts)

    async def embed_query(self, text: str) -> Vector:  # noqa: ARG002 - as the port has it
        raise TryLaterError("the embedding model is down, for the measurement")


_IN = {Verdict.INJECTED, Verdict.THREAD}
_OUT = {Verdict.DUPLICATE, Verdict.IN_VIEW, Verdict.NOT_RECALLABLE}


def _ranked(considered: Sequence[Considered]) -> tuple[Considered, ...]:
    return tuple(one for one in considered if one.verdict not in _OUT)


def _injected(explanation: Explanation) -> tuple[Memory, ...]:
    return tuple(one.memory for one in explanation.considered if one.verdict in _IN)


def _sums(metrics: Metrics) -> dict[str, float]:
    """Seconds spent so far by stage. The questions come one at a time, so a difference is one question's."""
    return {
        sample.labels["stage"]: sample.value
        for family in metrics.recall_seconds.collect()
        for sample in family.samples
        if sample.name.endswith("_sum")
    }
