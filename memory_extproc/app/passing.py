"""Time as it passes, whatever the wall clock is set to."""

from __future__ import annotations

import time
from datetime import UTC, datetime

# Goes on while the machine sleeps, where there is such a one.
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def steady_seconds() -> float:
    """Since some moment before this process began."""
    return time.clock_gettime(_STEADY)


def steady_now() -> datetime:
    """To be compared with others of this process alone."""
    return datetime.fromtimestamp(steady_seconds(), UTC)
