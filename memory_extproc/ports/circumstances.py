"""Time and chance, as arguments."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

Now = Callable[[], datetime]  # the time in UTC
Chance = Callable[[], float]  # uniform in [0, 1), for jitter
