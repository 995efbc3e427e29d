"""A circuit breaker: an endpoint that keeps failing is left alone for a while."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from memory_extproc.errors import TransientError

Clock = Callable[[], float]  # seconds, monotonic


@dataclass(frozen=True, slots=True)
class BreakerLimits:
    failures: int = 5  # in a row, before calls are refused
    pause: timedelta = timedelta(seconds=30)  # then a trial call is let through


class Breaker:
    """Closed while calls succeed; open after *failures* in a row; after *pause* a trial decides again."""

    def __init__(self, limits: BreakerLimits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._failures = 0
        self._open_until = 0.0
        self._trying = False

    def admit(self) -> None:
        """TransientError while open. An admitted caller reports success, failure or abandonment."""
        if self._failures < self._limits.failures:
            return
        if self._trying or self._clock() < self._open_until:
            raise TransientError("the endpoint kept failing and is left alone for a while")
        self._trying = True

    def record_success(self) -> None:
        self._failures = 0
        self._trying = False

    def record_failure(self) -> None:
        self._failures += 1
        self._trying = False
        self._open_until = self._clock() + self._limits.pause.total_seconds()

    def record_abandonment(self) -> None:
        """The caller left before the endpoint answered: nothing was learned about it."""
        self._trying = False
