"""How many tokens language models may cost: for a caller, a tenant and in all, by the hour and by the day."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from memory_extproc.errors import GiveUpError
from memory_extproc.model import Owner
from memory_extproc.ports import Now


class OverBudgetError(GiveUpError):
    """The call would cost more than is left. Whoever wanted it does without."""


class Payer(StrEnum):
    CALLER = "caller"
    TENANT = "tenant"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Allowance:
    """Tokens, prompts and answers together; None: no bound."""

    hour: int | None = None
    day: int | None = None


@dataclass(frozen=True, slots=True)
class BudgetLimits:
    caller: Allowance = field(default_factory=Allowance)
    tenant: Allowance = field(default_factory=Allowance)
    all: Allowance = field(default_factory=Allowance)


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
    """Counts in whole hours and days of UTC. What was spent is known to this process only, and forgotten when it
    ends. A call is let through while anything is left for it, so a window is overdrawn by one call at most for
    every call under way."""

    def __init__(self, limits: BudgetLimits, *, now: Now) -> None:
        self._limits = limits
        self._now = now
        self._hour = _Window(timedelta(hours=1))
        self._day = _Window(timedelta(days=1))

    def use(self, limits: BudgetLimits) -> None:
        """Counting for a payer without a bound begins when it gets one."""
        self._limits = limits

    def admit(self, owner: Owner) -> None:
        """OverBudgetError if nothing is left for *owner* in some window."""
        for window, payer, allowed in self._bounds(owner):
            if allowed is not None and window.spent[payer] >= allowed:
                raise OverBudgetError(f"the tokens of this {payer[0].value} are spent for now")

    def spend(self, owner: Owner, tokens: int) -> None:
        """Counts *tokens* against everybody who pays for *owner*."""
        for window, payer, allowed in self._bounds(owner):
            if allowed is not None:
                window.spent[payer] += tokens

    def _bounds(self, owner: Owner) -> Iterator[tuple[_Window, tuple[Payer, str], int | None]]:
        now = self._now()
        payers = (
            ((Payer.CALLER, owner.key), self._limits.caller),
            ((Payer.TENANT, owner.tenant), self._limits.tenant),
            ((Payer.ALL, ""), self._limits.all),
        )
        for window, of in ((self._hour, "hour"), (self._day, "day")):
            window.turn(now)
            for payer, allowance in payers:
                yield window, payer, allowance.hour if of == "hour" else allowance.day
