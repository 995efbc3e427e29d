"""One call to Milvus: bounded in time, guarded by the breaker, measured, its errors translated."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

from memory_extproc.cancellation import cancellation_kept
from memory_extproc.errors import NotReadyError, TryLaterError
from memory_extproc.observe import log
from memory_extproc.observe.metrics import Metrics
from memory_extproc.store.breaker import Breaker, Clock
from memory_extproc.store.faults import Fault, as_error, fault_of

_LOG = log.logger(__name__)
T = TypeVar("T")
# The client gives up by itself at the limit, where it can; ours is the bound that always holds.
_MARGIN_SECONDS = 0.05
_WRITES = frozenset({"put", "delete", "delete_owner"})
_READS = frozenset({"nearest", "worded", "get", "fetch", "pages", "page", "count", "owners"})


class Calls:
    """`store_up` is 1 while the store is open, its last write succeeded, and no read has failed since."""

    def __init__(self, breaker: Breaker, metrics: Metrics, clock: Clock) -> None:
        self._breaker = breaker
        self._metrics = metrics
        self._clock = clock
        self._up: bool | None = None
        self._open = True
        self._writes_fail = False
        self._reads_fail = False
        self._failing_since: float | None = None

    @property
    def up(self) -> bool:
        """As store_up says."""
        return self._up is True

    @property
    def failing_for(self) -> timedelta:
        """How long the store has not been up; zero while it is."""
        since = self._failing_since
        return timedelta() if since is None else timedelta(seconds=self._clock() - since)

    async def run(self, operation: str, limit: timedelta, call: Callable[[float], Awaitable[T]]) -> T:
        """What *call* returns; it gets its limit in seconds. Only errors of ours."""
        try:
            self._breaker.admit()
        except TryLaterError:
            self._metrics.store_seconds.labels(operation, "refused_by_breaker").observe(0)
            raise
        started, outcome, seconds = self._clock(), "cancelled", limit.total_seconds()
        try:
            with _cancellation_told_apart():
                async with asyncio.timeout(seconds + _MARGIN_SECONDS):
                    result = await call(seconds)
        # The client raises its own kinds, gRPC's, and whatever else its encoding or a closed channel comes upon.
        except Exception as error:  # noqa: BLE001
            fault = fault_of(error)
            outcome = fault.value
            self._judge(fault, operation)
            raise as_error(error, operation) from None  # its text names the caller
        except BaseException:  # cancelled: that says nothing of the store
            self._breaker.undecided()
            raise
        else:
            outcome = "ok"
            self._breaker.succeeded()
            if operation in _WRITES:
                self._writes_fail = self._reads_fail = False
            elif operation in _READS:
                self._reads_fail = False
            if self._open:
                self._report()
            return result
        finally:
            self._metrics.store_seconds.labels(operation, outcome).observe(self._clock() - started)

    def _judge(self, fault: Fault, operation: str) -> None:
        answered = fault not in {Fault.DOWN, Fault.TIMEOUT}
        if answered:
            self._breaker.succeeded()
        else:
            self._breaker.failed()
        if operation in _WRITES:
            self._writes_fail = True
        elif operation in _READS and fault is not Fault.REFUSED:
            self._reads_fail = self._reads_fail or answered or not self._breaker.closed  # one that is late may pass
        self._report(fault.value)

    def opened(self) -> None:
        """From here on calls decide."""
        self._open, self._reads_fail, self._writes_fail = True, False, False
        self._report()

    def closed(self) -> None:
        """Until `opened`, whatever the calls that open it come to."""
        self._open, self._failing_since = False, self._clock()

    def not_open(self) -> NotReadyError:
        self._report("not_open")
        return NotReadyError("the store is not open yet")

    def _report(self, why: str = "") -> None:
        up = self._open and not self._writes_fail and not self._reads_fail
        if up == self._up:
            return
        self._failing_since = None if up else self._clock()
        if up:
            _LOG.info("store.up")
        else:
            _LOG.warning("store.down", why=why)
        self._up = up
        self._metrics.store_up.set(1 if up else 0)


@contextmanager
def _cancellation_told_apart() -> Iterator[None]:
    """Lets a cancellation of ours through, and no other.

    The client may forget ours. And it may make one: where it finds its channel broken it exchanges it, and closes
    the old one with the calls that are under way on it: gRPC raises CancelledError in these. Nobody told the task
    that waits to end; it is the store that went away, and what the task does is to be tried again, and not given
    up without a word.
    """
    with cancellation_kept() as cancelled:
        try:
            yield
        except asyncio.CancelledError:
            if not cancelled():
                raise ConnectionAbortedError("the channel was closed under the call") from None
            raise
