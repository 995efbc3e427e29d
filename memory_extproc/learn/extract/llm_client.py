"""Asking a model for an answer in a given form: paid for by the caller's budget, parsed strictly."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from importlib.resources import files
from typing import Any, TypeVar

import msgspec

from memory_extproc.errors import ModelStoppedError, PermanentError
from memory_extproc.model import Owner
from memory_extproc.ports import CompletionModel, Now
from memory_extproc.settings.paths import ModelTokens
from memory_extproc.text.words import estimate_tokens

T = TypeVar("T")
_FENCE = re.compile(r"\A\s*```(?:json)?\s*\n(.*?)\n?\s*```\s*\Z", re.DOTALL)


def prompt(name: str) -> str:
    """The prompt *name*, which is also its version: a file never changes, a new version is a new file."""
    return (files(__package__) / "prompts" / f"{name}.txt").read_text(encoding="utf-8")


class LlmPrompt:
    """A prompt for a model."""

    def __init__(
        self, completes: CompletionModel, name: str, schema: Mapping[str, Any], budget: Budget, *, words: str = ""
    ) -> None:
        """*words* of the prompt, where it is none of ours."""
        self._completes = completes
        self._system = words or prompt(name)
        self._schema = schema
        self._budget = budget
        self._name = name

    async def answer(self, owner: Owner, shown: str, parsed: Callable[[bytes], T]) -> T:
        """The result of *parsed* for the answer to *shown*. If it raises msgspec.DecodeError, the model is asked
        again with the fault named. PermanentError after a second failure, OverBudgetError when *owner*'s tokens are
        spent; errors of the port pass."""
        answer = await self._complete(owner, shown)
        try:
            return parsed(_bare(answer))
        except msgspec.DecodeError as fault:
            again = f"{shown}\n\nYour last answer could not be used: {fault}. Answer again, with the JSON alone."
        answer = await self._complete(owner, again)
        try:
            return parsed(_bare(answer))
        except msgspec.DecodeError:
            # without the cause: its text may quote the user
            raise PermanentError(f"the model answered malformed JSON twice to {self._name}") from None

    async def _complete(self, owner: Owner, shown: str) -> str:
        self._budget.admit(owner)
        # Before the call: a failed call also costs its prompt.
        self._budget.spend(owner, estimate_tokens(self._system) + estimate_tokens(shown))
        try:
            answer = await self._completes.complete(self._system, shown, schema=self._schema)
        except ModelStoppedError:  # before the call
            self._budget.spend(owner, -(estimate_tokens(self._system) + estimate_tokens(shown)))
            raise
        self._budget.spend(owner, estimate_tokens(answer))
        return answer


def _bare(answer: str) -> bytes:
    """Code fences are tolerated, nothing else."""
    fenced = _FENCE.match(answer)
    return (fenced[1] if fenced is not None else answer).strip().encode("utf-8", "replace")


# --- budget ------------------------------------------------------------------------------------------
# How many tokens language models may cost: for a caller, a tenant and in all, by the hour and by the day.


class OverBudgetError(PermanentError):
    """The call would exceed the token budget."""


class Payer(StrEnum):
    CALLER = "caller"
    TENANT = "tenant"
    ALL = "all"


@dataclass(slots=True)
class _Window:
    length: timedelta
    since: int = -1  # number of the window since the epoch
    spent: Counter[tuple[Payer, str]] = field(default_factory=Counter)

    def turn(self, now: datetime) -> None:
        at = int(now.timestamp() // self.length.total_seconds())
        if at != self.since:
            self.since = at
            self.spent.clear()


class Budget:
    """Token budget in whole hours and days of UTC, kept in this process only. A call is allowed while any tokens
    are left, so concurrent calls can overdraw a window by one call each."""

    def __init__(self, section: Callable[[], ModelTokens], *, now: Now) -> None:
        """*section*: read at each call. Counting for an unlimited payer begins with its first limit."""
        self._section, self._now = section, now
        self._hour = _Window(timedelta(hours=1))
        self._day = _Window(timedelta(days=1))

    def admit(self, owner: Owner) -> None:
        """OverBudgetError if nothing is left for *owner* in some window."""
        for window, payer, allowed in self._bounds(owner):
            if allowed is not None and window.spent[payer] >= allowed:
                raise OverBudgetError(f"the tokens of this {payer[0].value} are spent for now")

    def spend(self, owner: Owner, tokens: int) -> None:
        """Count *tokens* against all payers of *owner*."""
        for window, payer, allowed in self._bounds(owner):
            if allowed is not None:
                window.spent[payer] += tokens

    def _bounds(self, owner: Owner) -> Iterator[tuple[_Window, tuple[Payer, str], int | None]]:
        now, most = self._now(), self._section()
        bounds = (
            (self._hour, (Payer.CALLER, owner.key), most.caller_hour),
            (self._hour, (Payer.TENANT, owner.tenant), most.tenant_hour),
            (self._hour, (Payer.ALL, ""), most.all_hour),
            (self._day, (Payer.CALLER, owner.key), most.caller_day),
            (self._day, (Payer.TENANT, owner.tenant), most.tenant_day),
            (self._day, (Payer.ALL, ""), most.all_day),
        )
        for window in (self._hour, self._day):
            window.turn(now)
        yield from bounds


# --- strict schema -----------------------------------------------------------------------------------
# JSON Schemas in the form that structured output takes. Pure.

# Keywords that several endpoints refuse in a strict schema; our own parser enforces them anyway.
_BOUNDS = frozenset({"default", "minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems", "title"})


def strict_schema(answer: type[msgspec.Struct]) -> Mapping[str, Any]:
    """The schema of *answer* as OpenAI's strict mode wants it: an object at the root, every property required, no
    other properties, no bounds (platform.openai.com, "Structured Outputs", supported schemas)."""
    (root,), components = msgspec.json.schema_components([answer], ref_template="#/$defs/{name}")
    name = str(root["$ref"]).rpartition("/")[2]
    definitions = {key: _strict(schema) for key, schema in components.items()}
    return {**definitions.pop(name), "$defs": definitions} if definitions else definitions[name]


def _strict(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {
        key: {name: _strict(one) for name, one in value.items()} if key == "properties" else _strict(value)
        for key, value in schema.items()
        if key not in _BOUNDS
    }
    if found.get("type") == "object":
        found |= {"required": list(found.get("properties", {})), "additionalProperties": False}
    return found
