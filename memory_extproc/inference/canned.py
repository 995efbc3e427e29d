"""Stand-ins for tests and demonstrations: they need no model and no network, and say the same every time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from memory_extproc.errors import GiveUpError
from memory_extproc.inference.vectors import of_unit_length
from memory_extproc.inference.word_vectors import words_of
from memory_extproc.language.words import stems
from memory_extproc.model import Matrix, Vector, Words

_AXES_PER_WORD = 4  # few words then share many axes


class CannedEmbedder:
    """Implements ports.Embeds: hashed bags of stemmed content words, so texts that share words are near and
    texts that share none are close to orthogonal. *failing*, when set, is raised instead."""

    def __init__(self, dimension: int = 384) -> None:
        self._dimension = dimension
        self.failing: Exception | None = None

    @property
    def fingerprint(self) -> str:
        return f"canned/{self._dimension}"

    @property
    def dimension(self) -> int:
        return self._dimension

    @property
    def max_tokens(self) -> int:
        return 256

    async def embed(self, texts: Sequence[str]) -> Matrix:
        if self.failing:
            raise self.failing
        rows: Matrix = np.zeros((len(texts), self._dimension), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            for word in sorted(stems(text)):
                self._add(row, word)
        return of_unit_length(rows)

    async def embed_query(self, text: str) -> Vector:
        vector: Vector = (await self.embed([text]))[0]
        vector.flags.writeable = False
        return vector

    def _add(self, row: Vector, word: str) -> None:
        seed = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=4 * _AXES_PER_WORD).digest()
        for at in range(0, len(seed), 4):
            number = int.from_bytes(seed[at : at + 4], "big")
            row[number % self._dimension] += 1.0 if number >> 31 else -1.0


class CannedReranker:
    """Implements ports.Reranks: the share of the query's stemmed content words that a text has. *failing*, when
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


class CannedCompletions:
    """Implements ports.Completes with answers given beforehand: a function of (system, user), or a list that
    is used up in order, its exceptions raised. What was asked stands in *asked*."""

    def __init__(self, answers: Callable[[str, str], str] | Sequence[str | Exception]) -> None:
        self._answers = answers if callable(answers) else iter(answers)
        self.asked: list[tuple[str, str, Mapping[str, Any] | None]] = []

    async def complete(self, system: str, user: str, *, schema: Mapping[str, Any] | None = None) -> str:
        """GiveUpError once the list is used up."""
        self.asked.append((system, user, schema))
        if callable(self._answers):
            return self._answers(system, user)
        answer = next(self._answers, None)
        if answer is None:
            raise GiveUpError("no answer is left")
        if isinstance(answer, Exception):
            raise answer
        return answer


class CannedWords(CannedEmbedder):
    """Implements ports.ReadsWords: what was embedded is known until `forget_words`. Words of one stem have one
    vector, wherever they stand."""

    reads_words = True

    def __init__(self, dimension: int = 384) -> None:
        super().__init__(dimension)
        self._known: dict[str, Words] = {}

    def forget_words(self) -> None:
        self._known.clear()

    def words(self, texts: Sequence[str]) -> list[Words | None]:
        return [self._known.get(text) for text in texts]

    async def embed(self, texts: Sequence[str]) -> Matrix:
        rows = await super().embed(texts)
        for text in texts:
            states: Matrix = np.zeros((max(1, len(stems(text))), self.dimension), dtype=np.float32)
            for state, word in zip(states, sorted(stems(text)), strict=False):
                self._add(state, word)
            self._known[text] = words_of(states, np.ones(len(states), dtype=bool))
        return rows
