"""Calls to Milvus: bounded in time, guarded by a circuit breaker, measured, with translated errors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from enum import StrEnum
from typing import TypeVar

import grpc
from pymilvus import exceptions as milvus

from memory_extproc.concurrency import Breaker, Clock, cancellation_kept
from memory_extproc.errors import (
    MemoryExtprocError,
    NotReadyError,
    PermanentError,
    TransientError,
    UnknownFaultError,
)
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics

log = logger(__name__)
T = TypeVar("T")
# The client gives up at the limit where it can; our own timeout always holds.
_MARGIN_SECONDS = 0.05
_WRITES = frozenset({"put", "delete", "delete_owner"})
_READS = frozenset({"nearest", "worded", "get", "fetch", "pages", "page", "count", "owners"})


class Calls:
    """`store_up` is 1 while the store is open and its last write and its last read succeeded."""

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
        """The value of the metric store_up."""
        return self._up is True

    @property
    def failing_for(self) -> timedelta:
        """How long the store has not been up; zero while it is."""
        since = self._failing_since
        return timedelta() if since is None else timedelta(seconds=self._clock() - since)

    async def run(self, operation: str, limit: timedelta, call: Callable[[float], Awaitable[T]]) -> T:
        """Run *call*, which takes its limit in seconds. Raises only errors of errors.py."""
        try:
            self._breaker.admit()
        except TransientError:
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
        except BaseException:  # cancelled: says nothing about the store
            self._breaker.count_undecided()
            raise
        else:
            outcome = "ok"
            self._breaker.count_success()
            if operation in _WRITES:
                self._writes_fail = False  # a server takes writes of a collection that it has not loaded yet
            elif operation in _READS:
                self._reads_fail = False
            if self._open:
                self._report()
            return result
        finally:
            self._metrics.store_seconds.labels(operation, outcome).observe(self._clock() - started)

    def _judge(self, fault: StoreFault, operation: str) -> None:
        answered = fault not in {StoreFault.DOWN, StoreFault.TIMEOUT}
        if answered:
            self._breaker.count_success()
        else:
            self._breaker.count_failure()
        if operation in _WRITES:
            self._writes_fail = True
        elif operation in _READS and fault is not StoreFault.REFUSED:
            self._reads_fail = (
                self._reads_fail or answered or not self._breaker.is_closed
            )  # a single timeout may pass
        self._report(fault.value)

    def mark_opened(self) -> None:
        """From here on, calls decide whether the store is up."""
        self._open, self._reads_fail, self._writes_fail = True, False, False
        self._report()

    def mark_closed(self) -> None:
        """The store is down until `mark_opened`, whatever the calls that open it return."""
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
            log.info("store.up")
        else:
            log.warning("store.down", why=why)
        self._up = up
        self._metrics.store_up.set(1 if up else 0)


@contextmanager
def _cancellation_told_apart() -> Iterator[None]:
    """Let our own cancellation through; turn any other CancelledError into a ConnectionAbortedError.

    The client may swallow our cancellation, and it causes others: it replaces a broken channel and closes the old
    channel together with its running calls, in which gRPC raises CancelledError. The waiting task was not cancelled
    then: the store went away, and the call must be retried."""
    with cancellation_kept() as cancelled:
        try:
            yield
        except asyncio.CancelledError:
            if not cancelled():
                raise ConnectionAbortedError("the channel was closed under the call") from None
            raise


# Faults of Milvus, sorted by the remedy.


class StoreFault(StrEnum):
    """Also the outcome label of store_operations_seconds."""

    TIMEOUT = "timeout"
    DOWN = "down"
    NOT_LOADED = "not_loaded"  # the collection has to be loaded first
    NOT_READY = "not_ready"  # electing, recovering, over a quota
    MISSING = "missing"  # the collection, or its alias, is gone
    DENIED = "denied"  # credentials or permissions: an operator restores them, then the same call succeeds
    UNKNOWN = "unknown"  # not listed here: transient until the same call succeeds for other data
    REFUSED = "refused"  # the data or the schema of this call: a retry fails again


# https://github.com/milvus-io/milvus/blob/v2.5.4/pkg/util/merr/errors.go. The client also uses 1
# for errors without a code, and servers use 65535 for them ("find no available rootcoord"). Codes that are not
# listed are UNKNOWN: REFUSED is only for codes that blame the data of a call.
_BY_CODE = {
    2: StoreFault.DOWN,
    3: StoreFault.NOT_READY,  # memory limit exceeded
    4: StoreFault.NOT_READY,  # too many concurrent requests
    7: StoreFault.NOT_READY,  # disk limit exceeded
    8: StoreFault.NOT_READY,  # rate limit exceeded
    9: StoreFault.NOT_READY,  # writes denied for now
    11: StoreFault.NOT_READY,  # time tick long delay
    12: StoreFault.NOT_READY,  # resource insufficient
    100: StoreFault.MISSING,
    101: StoreFault.NOT_LOADED,
    103: StoreFault.NOT_READY,  # not fully loaded
    106: StoreFault.NOT_READY,  # recovering
    201: StoreFault.NOT_LOADED,
    202: StoreFault.NOT_READY,
    401: StoreFault.NOT_READY,  # replica not available
    **dict.fromkeys(range(500, 505), StoreFault.NOT_READY),  # channels, while nodes change
    **dict.fromkeys(range(600, 605), StoreFault.NOT_READY),  # segments, likewise
    800: StoreFault.MISSING,  # database
    **dict.fromkeys(range(901, 907), StoreFault.NOT_READY),  # nodes that leave or do not match
    **dict.fromkeys(range(1000, 1003), StoreFault.NOT_READY),  # its object storage or metadata
    **dict.fromkeys(range(1100, 1103), StoreFault.REFUSED),  # parameter invalid, missing, too large
    **dict.fromkeys(range(1300, 1304), StoreFault.NOT_READY),  # its message queue
    **dict.fromkeys((1400, 1401, 1800), StoreFault.DENIED),
    1600: StoreFault.MISSING,  # alias
    **dict.fromkeys((1700, 1701, 1804), StoreFault.REFUSED),  # field not found or named so; invalid insert data
    10000: StoreFault.NOT_READY,  # canceled within the server
    10001: StoreFault.TIMEOUT,
}
_BY_STATUS = {
    grpc.StatusCode.DEADLINE_EXCEEDED: StoreFault.TIMEOUT,
    grpc.StatusCode.CANCELLED: StoreFault.DOWN,
    grpc.StatusCode.UNAVAILABLE: StoreFault.DOWN,
    grpc.StatusCode.ABORTED: StoreFault.NOT_READY,
    grpc.StatusCode.RESOURCE_EXHAUSTED: StoreFault.NOT_READY,
    grpc.StatusCode.UNAUTHENTICATED: StoreFault.DENIED,
    grpc.StatusCode.PERMISSION_DENIED: StoreFault.DENIED,
    grpc.StatusCode.INVALID_ARGUMENT: StoreFault.REFUSED,
}
# The client's own exceptions. REFUSED: it rejects the data or the schema of a call before sending it. The others
# are sorted by code or message, else they are UNKNOWN.
BY_KIND: dict[type[Exception], StoreFault] = {
    milvus.ParamError: StoreFault.REFUSED,
    milvus.ConnectError: StoreFault.DOWN,
    milvus.MilvusUnavailableException: StoreFault.DOWN,
    milvus.CollectionNotExistException: StoreFault.MISSING,
    milvus.SchemaNotReadyException: StoreFault.NOT_READY,
    milvus.DataTypeNotMatchException: StoreFault.REFUSED,
    milvus.DataTypeNotSupportException: StoreFault.REFUSED,
    milvus.DataNotMatchException: StoreFault.REFUSED,
    milvus.SchemaMismatchRetryableException: StoreFault.NOT_READY,
    milvus.ConnectionNotExistException: StoreFault.DOWN,
    milvus.PrimaryKeyException: StoreFault.REFUSED,
    milvus.PartitionKeyException: StoreFault.REFUSED,
    milvus.ClusteringKeyException: StoreFault.REFUSED,
    milvus.FieldsTypeException: StoreFault.REFUSED,
    milvus.FunctionsTypeException: StoreFault.REFUSED,
    milvus.FieldTypeException: StoreFault.REFUSED,
    milvus.AutoIDException: StoreFault.REFUSED,
    milvus.InvalidConsistencyLevel: StoreFault.REFUSED,
}
# Codes 1 and 65535 are ambiguous: these words in the message mark transient faults.
_WORDS = (
    ("retry timeout", StoreFault.TIMEOUT),
    ("retry run out", StoreFault.TIMEOUT),
    ("deadline exceeded", StoreFault.TIMEOUT),
    ("not loaded", StoreFault.NOT_LOADED),
    ("not ready", StoreFault.NOT_READY),
    ("not healthy", StoreFault.NOT_READY),
    ("not available", StoreFault.NOT_READY),
    ("find no available", StoreFault.NOT_READY),  # a coordinator is being elected
    ("code = unavailable", StoreFault.NOT_READY),  # a node cannot reach another
    ("no available shard", StoreFault.NOT_READY),
    ("shard leader", StoreFault.NOT_READY),
    ("node not match", StoreFault.NOT_READY),
    ("context canceled", StoreFault.NOT_READY),
    ("[errno ", StoreFault.NOT_READY),  # from Milvus Lite: an OSError of its disk
)


def fault_of(error: BaseException) -> StoreFault:
    """Sort *error*, which pymilvus or our own timeout raised."""
    if isinstance(error, TimeoutError):
        return StoreFault.TIMEOUT
    if isinstance(error, OSError):
        return StoreFault.DOWN
    if isinstance(error, grpc.RpcError):
        status = error.code() if isinstance(error, grpc.Call | grpc.aio.AioRpcError) else None
        return _BY_STATUS.get(status, StoreFault.UNKNOWN) if status is not None else StoreFault.DOWN
    if isinstance(error, milvus.MilvusException):
        return _fault_of_milvus(error)
    if isinstance(error, TypeError | UnicodeError):  # from the client's encoding of our data
        return StoreFault.REFUSED
    return StoreFault.UNKNOWN


def _fault_of_milvus(error: milvus.MilvusException) -> StoreFault:
    code = error.code
    if isinstance(code, grpc.StatusCode):  # the client puts a status where its number should be
        return _BY_STATUS.get(code, StoreFault.UNKNOWN)
    by_code = _BY_CODE.get(code)
    if by_code is not None:
        return by_code
    message = str(error.message).lower()
    for words, fault in _WORDS:
        if words in message:
            return fault
    cause = error.__cause__
    if cause is not None and not isinstance(cause, milvus.MilvusException):
        return fault_of(cause)
    return BY_KIND.get(type(error), StoreFault.UNKNOWN)


def as_error(error: BaseException, operation: str) -> MemoryExtprocError:
    """Translate *error*. Milvus's message is left out: it repeats the filter, which names the caller."""
    fault = fault_of(error)
    code = getattr(error, "code", None)
    number = f", code {code}" if isinstance(code, int) else ""
    text = f"Milvus, {operation}: {fault.value} ({type(error).__name__}{number})"
    match fault:
        case StoreFault.TIMEOUT | StoreFault.DOWN | StoreFault.DENIED:
            return TransientError(text)
        case StoreFault.NOT_LOADED | StoreFault.NOT_READY | StoreFault.MISSING:
            # A missing collection, too: its turns wait in the journal until an operator has restored it.
            return NotReadyError(text)
        case StoreFault.UNKNOWN:
            return UnknownFaultError(text)
        case StoreFault.REFUSED:
            return PermanentError(text)
