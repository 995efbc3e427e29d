"""One call to Milvus: bounded in time, guarded by the breaker, measured, its errors translated."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import grpc

from memory_extproc.cancellation import cancellation_kept
from memory_extproc.errors import NotReadyError, TryLaterError
from memory_extproc.observe import log
from memory_extproc.observe.metrics import Metrics
from memory_extproc.store.breaker import Breaker, Clock
from memory_extproc.store.client import MilvusException
from memory_extproc.store.faults import Fault, as_error, fault_of

_LOG = log.logger(__name__)
T = TypeVar("T")
# The client gives up by itself at the limit, where it can; ours is the bound that always holds.
_MARGIN_SECONDS = 0.05
# What pymilvus raises: its own kinds, gRPC's bare ones, and ValueError or TypeError out of its encoding.
_RAISED = (MilvusException, grpc.RpcError, OSError, ValueError, TypeError)


class Calls:
    def __init__(self, breaker: Breaker, metrics: Metrics, clock: Clock) -> None:
        self._breaker = breaker
        self._metrics = metrics
        self._clock = clock
        self._up: bool | None = None

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
        except _RAISED as error:  # TimeoutError is an OSError
            fault = fault_of(error)
            outcome = fault.value
            self._judge(fault)
            raise as_error(error, operation) from None  # its text names the caller
        except BaseException:  # cancelled, or a bug of ours: that says nothing of the store
            self._breaker.undecided()
            raise
        else:
            outcome = "ok"
            self._breaker.succeeded()
            self._report(up=True)
            return result
        finally:
            self._metrics.store_seconds.labels(operation, outcome).observe(self._clock() - started)

    def _judge(self, fault: Fault) -> None:
        if fault in {Fault.DOWN, Fault.TIMEOUT}:
            self._breaker.failed()
            self._report(up=self._breaker.closed and self._up is True, why=fault.value)
        else:  # it answered
            self._breaker.succeeded()
            self._report(up=fault is Fault.REFUSED, why=fault.value)

    def not_open(self) -> NotReadyError:
        self._report(up=False, why="not_open")
        return NotReadyError("the store is not open yet")

    def _report(self, *, up: bool, why: str = "") -> None:
        if up == self._up:
            return
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
