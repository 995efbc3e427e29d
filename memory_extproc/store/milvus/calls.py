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

    def _judge(self, fault: Fault, operation: str) -> None:
        answered = fault not in {Fault.DOWN, Fault.TIMEOUT}
        if answered:
            self._breaker.count_success()
        else:
            self._breaker.count_failure()
        if operation in _WRITES:
            self._writes_fail = True
        elif operation in _READS and fault is not Fault.REFUSED:
            self._reads_fail = self._reads_fail or answered or not self._breaker.closed  # a single timeout may pass
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


class Fault(StrEnum):
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
    2: Fault.DOWN,
    3: Fault.NOT_READY,  # memory limit exceeded
    4: Fault.NOT_READY,  # too many concurrent requests
    7: Fault.NOT_READY,  # disk limit exceeded
    8: Fault.NOT_READY,  # rate limit exceeded
    9: Fault.NOT_READY,  # writes denied for now
    11: Fault.NOT_READY,  # time tick long delay
    12: Fault.NOT_READY,  # resource insufficient
    100: Fault.MISSING,
    101: Fault.NOT_LOADED,
    103: Fault.NOT_READY,  # not fully loaded
    106: Fault.NOT_READY,  # recovering
    201: Fault.NOT_LOADED,
    202: Fault.NOT_READY,
    401: Fault.NOT_READY,  # replica not available
    **dict.fromkeys(range(500, 505), Fault.NOT_READY),  # channels, while nodes change
    **dict.fromkeys(range(600, 605), Fault.NOT_READY),  # segments, likewise
    800: Fault.MISSING,  # database
    **dict.fromkeys(range(901, 907), Fault.NOT_READY),  # nodes that leave or do not match
    **dict.fromkeys(range(1000, 1003), Fault.NOT_READY),  # its object storage or metadata
    **dict.fromkeys(range(1100, 1103), Fault.REFUSED),  # parameter invalid, missing, too large
    **dict.fromkeys(range(1300, 1304), Fault.NOT_READY),  # its message queue
    **dict.fromkeys((1400, 1401, 1800), Fault.DENIED),
    1600: Fault.MISSING,  # alias
    **dict.fromkeys((1700, 1701, 1804), Fault.REFUSED),  # field not found or named so; invalid insert data
    10000: Fault.NOT_READY,  # canceled within the server
    10001: Fault.TIMEOUT,
}
_BY_STATUS = {
    grpc.StatusCode.DEADLINE_EXCEEDED: Fault.TIMEOUT,
    grpc.StatusCode.CANCELLED: Fault.DOWN,
    grpc.StatusCode.UNAVAILABLE: Fault.DOWN,
    grpc.StatusCode.ABORTED: Fault.NOT_READY,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Fault.NOT_READY,
    grpc.StatusCode.UNAUTHENTICATED: Fault.DENIED,
    grpc.StatusCode.PERMISSION_DENIED: Fault.DENIED,
    grpc.StatusCode.INVALID_ARGUMENT: Fault.REFUSED,
}
# The client's own exceptions. REFUSED: it rejects the data or the schema of a call before sending it. The others
# are sorted by code or message, else they are UNKNOWN.
BY_KIND: dict[type[Exception], Fault] = {
    milvus.ParamError: Fault.REFUSED,
    milvus.ConnectError: Fault.DOWN,
    milvus.MilvusUnavailableException: Fault.DOWN,
    milvus.CollectionNotExistException: Fault.MISSING,
    milvus.SchemaNotReadyException: Fault.NOT_READY,
    milvus.DataTypeNotMatchException: Fault.REFUSED,
    milvus.DataTypeNotSupportException: Fault.REFUSED,
    milvus.DataNotMatchException: Fault.REFUSED,
    milvus.SchemaMismatchRetryableException: Fault.NOT_READY,
    milvus.ConnectionNotExistException: Fault.DOWN,
    milvus.PrimaryKeyException: Fault.REFUSED,
    milvus.PartitionKeyException: Fault.REFUSED,
    milvus.ClusteringKeyException: Fault.REFUSED,
    milvus.FieldsTypeException: Fault.REFUSED,
    milvus.FunctionsTypeException: Fault.REFUSED,
    milvus.FieldTypeException: Fault.REFUSED,
    milvus.AutoIDException: Fault.REFUSED,
    milvus.InvalidConsistencyLevel: Fault.REFUSED,
}
# Codes 1 and 65535 are ambiguous: these words in the message mark transient faults.
_WORDS = (
    ("retry timeout", Fault.TIMEOUT),
    ("retry run out", Fault.TIMEOUT),
    ("deadline exceeded", Fault.TIMEOUT),
    ("not loaded", Fault.NOT_LOADED),
    ("not ready", Fault.NOT_READY),
    ("not healthy", Fault.NOT_READY),
    ("not available", Fault.NOT_READY),
    ("find no available", Fault.NOT_READY),  # a coordinator is being elected
    ("code = unavailable", Fault.NOT_READY),  # a node cannot reach another
    ("no available shard", Fault.NOT_READY),
    ("shard leader", Fault.NOT_READY),
    ("node not match", Fault.NOT_READY),
    ("context canceled", Fault.NOT_READY),
    ("[errno ", Fault.NOT_READY),  # from Milvus Lite: an OSError of its disk
)


def fault_of(error: BaseException) -> Fault:
    """Sort *error*, which pymilvus or our own timeout raised."""
    if isinstance(error, TimeoutError):
        return Fault.TIMEOUT
    if isinstance(error, OSError):
        return Fault.DOWN
    if isinstance(error, grpc.RpcError):
        status = error.code() if isinstance(error, grpc.Call | grpc.aio.AioRpcError) else None
        return _BY_STATUS.get(status, Fault.UNKNOWN) if status is not None else Fault.DOWN
    if isinstance(error, milvus.MilvusException):
        return _fault_of_milvus(error)
    if isinstance(error, TypeError | UnicodeError):  # from the client's encoding of our data
        return Fault.REFUSED
    return Fault.UNKNOWN


def _fault_of_milvus(error: milvus.MilvusException) -> Fault:
    code = error.code
    if isinstance(code, grpc.StatusCode):  # the client puts a status where its number should be
        return _BY_STATUS.get(code, Fault.UNKNOWN)
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
    return BY_KIND.get(type(error), Fault.UNKNOWN)


def as_error(error: BaseException, operation: str) -> MemoryExtprocError:
    """Translate *error*. Milvus's message is left out: it repeats the filter, which names the caller."""
    fault = fault_of(error)
    code = getattr(error, "code", None)
    number = f", code {code}" if isinstance(code, int) else ""
    text = f"Milvus, {operation}: {fault.value} ({type(error).__name__}{number})"
    match fault:
        case Fault.TIMEOUT | Fault.DOWN | Fault.DENIED:
            return TransientError(text)
        case Fault.NOT_LOADED | Fault.NOT_READY | Fault.MISSING:
            # A missing collection, too: its turns wait in the journal until an operator has restored it.
            return NotReadyError(text)
        case Fault.UNKNOWN:
            return UnknownFaultError(text)
        case Fault.REFUSED:
            return PermanentError(text)
