"""Whether the wall clock can be believed: what is old by it is ended, and one that jumps makes everything old."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from memory_extproc.ports import Now

Steady = Callable[[], float]  # seconds that pass as they do, suspension included, whatever the wall clock is set to


class Clocks:
    """*most*: what the wall clock may gain since the process began. One that stays ahead of that for as long as
    *believed* was wrong before and is right by now."""

    def __init__(
        self,
        now: Now,
        steady: Steady,
        *,
        most: timedelta = timedelta(hours=1),
        believed: timedelta = timedelta(hours=24),
    ) -> None:
        self._now = now
        self._steady = steady
        self._most = most.total_seconds()
        self._believed = believed.total_seconds()
        self._apart = self._difference()
        self._ahead_since: float | None = None

    def ahead(self) -> timedelta | None:
        """By how much the wall clock jumped ahead; None while it can be believed. One that was set back makes
        things younger, which ends nothing."""
        gained = self._difference() - self._apart
        if gained <= self._most:
            self._ahead_since = None
            return None
        if self._ahead_since is None:
            self._ahead_since = self._steady()
        if self._steady() - self._ahead_since < self._believed:
            return timedelta(seconds=gained)
        self._apart, self._ahead_since = self._difference(), None
        return None

    def _difference(self) -> float:
        return self._now().timestamp() - self._steady()
