"""Models, recalls and learners with fixed answers: they need no model and no network."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import numpy as np

from memory_extproc.inference.batching import words_of
from memory_extproc.model import (
    Caller,
    Exchanged,
    Matrix,
    Outcome,
    RecallRequest,
    RecallResult,
    TurnOutcome,
    WordPieces,
)
from memory_extproc.testing.models import CannedEmbedder
from memory_extproc.text.words import stems

Before = Callable[[], Awaitable[None]]


class CannedReranker:
    """Implements ports.RerankModel: the share of the query's stemmed content words that a text has. *failing*, when
    set, is raised instead; what was asked stands in *asked*."""

    def __init__(self) -> None:
        self.failing: Exception | None = None
        self.asked: list[tuple[str, tuple[str, ...]]] = []

    async def rerank(self, query: str, texts: Sequence[str]) -> Sequence[float]:
        self.asked.append((query, tuple(texts)))
        if self.failing:
            raise self.failing
        wanted = stems(query)
        return [len(wanted & stems(text)) / max(1, len(wanted)) for text in texts]


class CannedWords(CannedEmbedder):
    """Implements ports.TokenEmbeddingModel: what was embedded is known until `forget_words`. Words of one stem have
    one vector, wherever they stand."""

    reads_words = True

    def __init__(self, dimension: int = 384) -> None:
        super().__init__(dimension)
        self._known: dict[str, WordPieces] = {}

    def forget_words(self) -> None:
        self._known.clear()

    def words(self, texts: Sequence[str]) -> list[WordPieces | None]:
        return [self._known.get(text) for text in texts]

    async def embed(self, texts: Sequence[str]) -> Matrix:
        rows = await super().embed(texts)
        for text in texts:
            states: Matrix = np.zeros((max(1, len(stems(text))), self.dimension), dtype=np.float32)
            for state, word in zip(states, sorted(stems(text)), strict=False):
                self._add(state, word)
            self._known[text] = words_of(states, np.ones(len(states), dtype=bool))
        return rows


class CannedRecalls:
    """Implements ports.MemoryRecaller with one answer. Keeps the wishes it was given."""

    def __init__(self, recalled: RecallResult | None = None, before: Before | None = None) -> None:
        """*before* is awaited in each recall: a place for slowness and faults."""
        self.recalled = recalled or RecallResult(outcome=Outcome.EMPTY)
        self.before = before
        self.wishes: list[RecallRequest] = []

    async def recall(self, wish: RecallRequest) -> RecallResult:
        self.wishes.append(wish)
        if self.before is not None:
            await self.before()
        return self.recalled


class RecordedTurns:
    """Implements ports.TurnLearner by remembering what it was given."""

    def __init__(self, stored: TurnOutcome = TurnOutcome.JOURNALLED, before: Before | None = None) -> None:
        self.stored = stored
        self.before = before
        self.settling: Before | None = None  # what waiting for turns under way waits for; None: there are none
        self.exchanged: list[Exchanged] = []
        self.ended: list[Caller] = []
        self._arrived = asyncio.Condition()

    async def accept(self, exchanged: Exchanged) -> TurnOutcome:
        if self.before is not None:
            await self.before()
        self.exchanged.append(exchanged)
        async with self._arrived:
            self._arrived.notify_all()
        return self.stored

    async def wait_visible(self, caller: Caller) -> None:
        if self.settling is not None:
            await self.settling()

    async def end_session(self, caller: Caller) -> None:
        self.ended.append(caller)

    async def wait_for(self, count: int) -> None:
        """Returns once *count* exchanges were accepted."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.exchanged) >= count)
