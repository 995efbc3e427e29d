"""How much each caller may have learned: a token bucket for each of them."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime, timedelta

from memory_extproc.model import Owner
from memory_extproc.ports import Now

_HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaLimits:
    turns_per_hour: float  # in the long run; 0: without bound
    burst: int  # at once, after a rest
    owners: int = 100_000  # whose buckets are held; who is dropped starts with a full one


@dataclass(slots=True)
class _Bucket:
    left: float
    at: datetime


class Quota:
    """In this process alone: with several replicas each grants as much, and a caller may get that much more."""

    def __init__(self, limits: QuotaLimits, *, now: Now) -> None:
        self._limits, self._now = limits, now
        self._buckets: OrderedDict[Owner, _Bucket] = OrderedDict()

    def use(self, limits: QuotaLimits) -> None:
        """What is left of a caller's turns stays, up to the new burst."""
        self._limits = limits

    def take(self, owner: Owner) -> bool:
        """Whether one more turn of *owner* may be kept; if so it is counted."""
        if not self._limits.turns_per_hour:
            return True
        now = self._now()
        bucket = self._buckets.get(owner)
        if bucket is None:
            bucket = self._buckets[owner] = _Bucket(self._limits.burst, now)
        self._buckets.move_to_end(owner)
        if len(self._buckets) > self._limits.owners:
            self._buckets.popitem(last=False)
        gained = max(now - bucket.at, timedelta()) / _HOUR * self._limits.turns_per_hour
        bucket.left = min(float(self._limits.burst), bucket.left + gained)
        bucket.at = max(now, bucket.at)
        if bucket.left < 1:
            return False
        bucket.left -= 1
        return True
