"""How often one caller may call: a bucket of calls for each, refilled at a steady rate."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

_MOST = 10_000  # callers remembered; one that is let go begins with a full bucket again


@dataclass(frozen=True, slots=True)
class RateLimits:
    per_second: float = 50.0  # calls, on average
    burst: int = 200  # calls at once


class Rates:
    def __init__(self, limits: RateLimits, clock: Callable[[], float]) -> None:
        """*clock*: seconds, monotonic."""
        self._limits = limits
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # (calls left, as of)

    def use(self, limits: RateLimits) -> None:
        self._limits = limits

    def take(self, name: str) -> timedelta | None:
        """Counts a call of *name*; else how long to wait until the next is due."""
        now = self._clock()
        left, then = self._left.pop(name, (float(self._limits.burst), now))
        left = min(float(self._limits.burst), left + (now - then) * self._limits.per_second)
        allowed = left >= 1.0
        self._left[name] = (left - 1.0 if allowed else left, now)
        if len(self._left) > _MOST:
            self._left.popitem(last=False)
        return None if allowed else timedelta(seconds=(1.0 - left) / self._limits.per_second)
