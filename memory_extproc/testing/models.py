"""Stand-ins for tests and demonstrations: they need no model and no network, and say the same every time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from memory_extproc.errors import PermanentError
from memory_extproc.inference.word_hashing import WordHashEmbedder
from memory_extproc.model import Matrix


class CannedEmbedder(WordHashEmbedder):
    """Implements ports.EmbeddingModel. *failing*, when set, is raised instead."""

    def __init__(self, dimension: int = 384) -> None:
        super().__init__(dimension)
        self.fingerprint = f"canned/{dimension}"
        self.failing: Exception | None = None

    async def embed(self, texts: Sequence[str]) -> Matrix:
        if self.failing:
            raise self.failing
        return await super().embed(texts)


class CannedCompletions:
    """Implements ports.CompletionModel with answers given beforehand: a function of (system, user), or a list that
    is used up in order, its exceptions raised. *asked* holds the calls."""

    def __init__(self, answers: Callable[[str, str], str] | Sequence[str | Exception]) -> None:
        self._answers = answers if callable(answers) else iter(answers)
        self.asked: list[tuple[str, str, Mapping[str, Any] | None]] = []

    async def complete(self, system: str, user: str, *, schema: Mapping[str, Any] | None = None) -> str:
        """PermanentError once the list is used up."""
        self.asked.append((system, user, schema))
        if callable(self._answers):
            return self._answers(system, user)
        answer = next(self._answers, None)
        if answer is None:
            raise PermanentError("no answer is left")
        if isinstance(answer, Exception):
            raise answer
        return answer
