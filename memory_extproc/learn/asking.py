"""Asking a model for an answer in a given form: paid for by the caller's budget, parsed strictly."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any, TypeVar

import msgspec

from memory_extproc.errors import GiveUpError
from memory_extproc.language.tokens import estimate_tokens
from memory_extproc.learn.budget import Budget
from memory_extproc.model import Owner
from memory_extproc.ports import Completes

T = TypeVar("T")
_FENCE = re.compile(r"\A\s*```(?:json)?\s*\n(.*?)\n?\s*```\s*\Z", re.DOTALL)


def prompt(name: str) -> str:
    """The words of the prompt *name*, which is also its version: a file is never changed, the next one is added."""
    return (files(__package__) / "prompts" / f"{name}.txt").read_text(encoding="utf-8")


class Asks:
    """One prompt to one model."""

    def __init__(
        self, completes: Completes, name: str, schema: Mapping[str, Any], budget: Budget, *, words: str = ""
    ) -> None:
        """*words* of the prompt, where it is none of ours."""
        self._completes = completes
        self._system = words or prompt(name)
        self._schema = schema
        self._budget = budget
        self._name = name

    async def answer(self, owner: Owner, shown: str, parsed: Callable[[bytes], T]) -> T:
        """What *parsed* makes of the answer to *shown*; it raises msgspec.DecodeError on what it cannot use, and
        the model is then asked once more with the fault named. GiveUpError when that was in vain too,
        OverBudgetError when *owner* has no tokens left; what the port raises passes."""
        answer = await self._complete(owner, shown)
        try:
            return parsed(_bare(answer))
        except msgspec.DecodeError as fault:
            again = f"{shown}\n\nYour last answer could not be used: {fault}. Answer again, with the JSON alone."
        answer = await self._complete(owner, again)
        try:
            return parsed(_bare(answer))
        except msgspec.DecodeError:
            # without the cause: its text may hold what the person said
            raise GiveUpError(f"the model answered malformed JSON twice to {self._name}") from None

    async def _complete(self, owner: Owner, shown: str) -> str:
        self._budget.admit(owner)
        # Before the call: one that fails has cost its prompt all the same.
        self._budget.spend(owner, estimate_tokens(self._system) + estimate_tokens(shown))
        answer = await self._completes.complete(self._system, shown, schema=self._schema)
        self._budget.spend(owner, estimate_tokens(answer))
        return answer


def _bare(answer: str) -> bytes:
    """Code fences are tolerated, nothing else."""
    fenced = _FENCE.match(answer)
    return (fenced[1] if fenced is not None else answer).strip().encode("utf-8", "replace")
