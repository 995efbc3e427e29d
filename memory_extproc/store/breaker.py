"""A circuit breaker: after some failures in a row nobody waits for a store that is down."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from memory_extproc.errors import TryLaterError

Clock = Callable[[], float]  # seconds that never go back


class Breaker:
    """Closed: calls pass. Open after *failures* in a row: they are refused at once. Half-open after *pause*: one
    call passes as a probe, and what becomes of it decides. One event loop owns it."""

    def __init__(self, failures: int, pause: timedelta, clock: Clock) -> None:
        self._most = failures
        self._pause = pause.total_seconds()
        self._clock = clock
        self._failed = 0
        self._opened_at: float | None = None
        self._probing = False

    @property
    def closed(self) -> bool:
        return self._opened_at is None

    def admit(self) -> None:
        """TryLaterError while it is open; who is admitted calls one of the three below afterwards."""
        if self._opened_at is None:
            return
        if self._probing or self._clock() - self._opened_at < self._pause:
            raise TryLaterError("the store did not answer a moment ago")
        self._probing = True

    def succeeded(self) -> None:
        self._failed = 0
        self._opened_at = None
        self._probing = False

    def failed(self) -> None:
        self._failed += 1
        self._probing = False
        if self._failed >= self._most:
            self._opened_at = self._clock()

    def undecided(self) -> None:
        """The call was cancelled before anybody could tell."""
        self._probing = False
