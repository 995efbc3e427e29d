"""Time and chance, as arguments."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

Now = Callable[[], datetime]  # the time in UTC
# To be compared with one another alone, within one process: passes as time does, whatever the clock is set to.
Steady = Callable[[], datetime]
Chance = Callable[[], float]  # uniform in [0, 1), for jitter
