"""What goes wrong at Milvus, sorted by what we can do about it."""

from __future__ import annotations

import errno
from enum import StrEnum

import grpc
from pymilvus import exceptions as milvus

from memory_extproc.errors import GiveUpError, MemoryExtprocError, NotReadyError, TryLaterError


class Fault(StrEnum):
    """Also the outcome label of store_operations_seconds."""

    TIMEOUT = "timeout"
    DOWN = "down"
    NOT_LOADED = "not_loaded"  # the collection has to be loaded first
    NOT_READY = "not_ready"  # electing, recovering, over a quota
    MISSING = "missing"  # the collection, or its alias, is gone
    REFUSED = "refused"  # bad input, schema, configuration or credentials: a retry fails alike


# https://github.com/milvus-io/milvus/blob/v2.5.4/pkg/util/merr/errors.go; 1 is also what the client
# gives to everything it has no code for.
_BY_CODE = {
    2: Fault.DOWN,
    3: Fault.NOT_READY,  # memory limit exceeded
    4: Fault.NOT_READY,  # too many concurrent requests
    7: Fault.NOT_READY,  # disk limit exceeded
    8: Fault.NOT_READY,  # rate limit exceeded
    9: Fault.NOT_READY,  # writes denied for now
    100: Fault.MISSING,
    101: Fault.NOT_LOADED,
    103: Fault.NOT_READY,  # not fully loaded
    201: Fault.NOT_LOADED,
    202: Fault.NOT_READY,
    503: Fault.NOT_READY,  # channel not available
    901: Fault.NOT_READY,  # a node left
    902: Fault.NOT_READY,
    903: Fault.NOT_READY,
    904: Fault.NOT_READY,
    1600: Fault.MISSING,  # alias
}
_BY_STATUS = {
    grpc.StatusCode.DEADLINE_EXCEEDED: Fault.TIMEOUT,
    grpc.StatusCode.CANCELLED: Fault.DOWN,
    grpc.StatusCode.UNAVAILABLE: Fault.DOWN,
    grpc.StatusCode.ABORTED: Fault.NOT_READY,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Fault.NOT_READY,
}
# The client's own kinds. All that are not here carry a code of the server's, or are our own mistake.
BY_KIND: dict[type[Exception], Fault | None] = {
    milvus.MilvusException: None,
    milvus.ParamError: Fault.REFUSED,
    milvus.ConnectError: Fault.DOWN,
    milvus.MilvusUnavailableException: Fault.DOWN,
    milvus.CollectionNotExistException: Fault.MISSING,
    milvus.DescribeCollectionException: None,
    milvus.PartitionAlreadyExistException: Fault.REFUSED,
    milvus.IndexNotExistException: Fault.REFUSED,
    milvus.AmbiguousIndexName: Fault.REFUSED,
    milvus.CannotInferSchemaException: Fault.REFUSED,
    milvus.SchemaNotReadyException: Fault.REFUSED,
    milvus.DataTypeNotMatchException: Fault.REFUSED,
    milvus.DataTypeNotSupportException: Fault.REFUSED,
    milvus.DataNotMatchException: Fault.REFUSED,
    milvus.SchemaMismatchRetryableException: Fault.NOT_READY,
    milvus.ConnectionNotExistException: Fault.DOWN,
    milvus.ConnectionConfigException: Fault.REFUSED,
    milvus.PrimaryKeyException: Fault.REFUSED,
    milvus.PartitionKeyException: Fault.REFUSED,
    milvus.ClusteringKeyException: Fault.REFUSED,
    milvus.FieldsTypeException: Fault.REFUSED,
    milvus.FunctionsTypeException: Fault.REFUSED,
    milvus.FieldTypeException: Fault.REFUSED,
    milvus.AutoIDException: Fault.REFUSED,
    milvus.InvalidConsistencyLevel: Fault.REFUSED,
    milvus.ServerVersionIncompatibleException: Fault.REFUSED,
}
# Codes 1 and 65535 are given to all sorts of things; these words tell those that pass.
_WORDS = (
    ("retry timeout", Fault.TIMEOUT),
    ("retry run out", Fault.TIMEOUT),
    ("deadline exceeded", Fault.TIMEOUT),
    ("not loaded", Fault.NOT_LOADED),
    ("not ready", Fault.NOT_READY),
    ("not healthy", Fault.NOT_READY),
    ("not available", Fault.NOT_READY),
    ("no available shard", Fault.NOT_READY),
    ("shard leader", Fault.NOT_READY),
    ("node not match", Fault.NOT_READY),
    ("context canceled", Fault.NOT_READY),
    # Lite says of its disk what Python says: full, in any way, or not to be read or written for now, or gone.
    *(
        (f"[errno {number}]", Fault.NOT_READY)
        for number in (
            errno.ENOSPC,
            errno.EDQUOT,
            errno.EFBIG,
            errno.EIO,
            errno.EROFS,
            errno.EACCES,
            errno.EPERM,
            errno.EMFILE,
            errno.ENFILE,
            errno.ENOENT,
        )
    ),
)


def fault_of(error: BaseException) -> Fault:
    """Which kind *error*, raised by pymilvus or by our own bound around it, is."""
    if isinstance(error, TimeoutError):
        return Fault.TIMEOUT
    if isinstance(error, OSError):
        return Fault.DOWN
    if isinstance(error, grpc.RpcError):
        status = error.code() if isinstance(error, grpc.Call | grpc.aio.AioRpcError) else None
        return _BY_STATUS.get(status, Fault.REFUSED) if status is not None else Fault.DOWN
    if isinstance(error, milvus.MilvusException):
        return _fault_of_milvus(error)
    return Fault.REFUSED


def _fault_of_milvus(error: milvus.MilvusException) -> Fault:
    code = error.code
    if isinstance(code, grpc.StatusCode):  # the client puts a status where its number should be
        return _BY_STATUS.get(code, Fault.REFUSED)
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
    return BY_KIND.get(type(error)) or Fault.REFUSED


def as_error(error: BaseException, operation: str) -> MemoryExtprocError:
    """What to raise. The message of Milvus is left out: it repeats the filter, and with it the caller."""
    fault = fault_of(error)
    code = getattr(error, "code", None)
    number = f", code {code}" if isinstance(code, int) else ""
    text = f"Milvus, {operation}: {fault.value} ({type(error).__name__}{number})"
    match fault:
        case Fault.TIMEOUT | Fault.DOWN:
            return TryLaterError(text)
        case Fault.NOT_LOADED | Fault.NOT_READY | Fault.MISSING:
            # Of a collection that is gone, too: what belongs into it waits until somebody has brought it back.
            return NotReadyError(text)
        case Fault.REFUSED:
            return GiveUpError(text)
