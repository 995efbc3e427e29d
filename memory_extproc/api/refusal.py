"""Why a call is not answered: a gRPC code with google.rpc details, the same for the same fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from enum import StrEnum

import grpc
from google.protobuf.any_pb2 import Any as Packed
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

from memory_extproc.errors import MemoryExtprocError

DOMAIN = "memory-extproc"
DETAILS = "grpc-status-details-bin"  # the trailer that gRPC's libraries read a google.rpc.Status from


class Reason(StrEnum):
    """ErrorInfo.reason. Clients decide by it, so a value is never renamed."""

    NO_CREDENTIALS = "NO_CREDENTIALS"
    CREDENTIALS_REFUSED = "CREDENTIALS_REFUSED"
    NOT_ALLOWED = "NOT_ALLOWED"  # the caller's roles do not reach so far
    TOO_MANY_CALLS = "TOO_MANY_CALLS"
    BAD_REQUEST = "BAD_REQUEST"
    BAD_PAGE_TOKEN = "BAD_PAGE_TOKEN"  # noqa: S105 - not a secret
    NO_SUCH_MEMORY = "NO_SUCH_MEMORY"
    NO_SUCH_RECEIPT = "NO_SUCH_RECEIPT"
    NOT_ACTIVE = "NOT_ACTIVE"  # history cannot be corrected
    DUPLICATE = "DUPLICATE"
    REQUEST_ID_REUSED = "REQUEST_ID_REUSED"
    REQUEST_UNDER_WAY = "REQUEST_UNDER_WAY"  # the same request_id, a moment ago, and not answered yet
    NOT_CONFIRMED = "NOT_CONFIRMED"  # a query's forget without its dry run's token
    NO_CONSENT = "NO_CONSENT"
    UNAVAILABLE = "UNAVAILABLE"
    AUDIT_UNAVAILABLE = "AUDIT_UNAVAILABLE"
    OUT_OF_TIME = "OUT_OF_TIME"
    NOT_OFFERED = "NOT_OFFERED"  # this server is not set up for it
    INTERNAL = "INTERNAL"


class RefusedError(MemoryExtprocError):
    """Ends a call. *message* is for people and holds nobody's words."""

    def __init__(
        self,
        code: grpc.StatusCode,
        reason: Reason,
        message: str,
        *,
        violations: Sequence[tuple[str, str]] = (),
        metadata: Mapping[str, str] | None = None,
        retry_after: timedelta | None = None,
    ) -> None:
        """*violations*: (field, what would be right)."""
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message
        self.violations = tuple(violations)
        self.metadata = dict(metadata or {})
        self.retry_after = retry_after

    def trailer(self) -> tuple[tuple[str, bytes], ...]:
        details = [error_details_pb2.ErrorInfo(reason=self.reason, domain=DOMAIN, metadata=self.metadata)]
        if self.violations:
            fields = [
                error_details_pb2.BadRequest.FieldViolation(field=field, description=description)
                for field, description in self.violations
            ]
            details.append(error_details_pb2.BadRequest(field_violations=fields))
        if self.retry_after is not None:
            delay = Duration()
            delay.FromTimedelta(self.retry_after)
            details.append(error_details_pb2.RetryInfo(retry_delay=delay))
        packed = []
        for detail in details:
            packed.append(Packed())
            packed[-1].Pack(detail)
        status = status_pb2.Status(code=self.code.value[0], message=self.message, details=packed)
        return ((DETAILS, status.SerializeToString()),)


def bad_request(*violations: tuple[str, str]) -> RefusedError:
    expected = "; ".join(f"{field}: {description}" for field, description in violations)
    return RefusedError(grpc.StatusCode.INVALID_ARGUMENT, Reason.BAD_REQUEST, expected, violations=violations)


def no_such_memory() -> RefusedError:
    """The same for an id that is nobody's and one that is another's."""
    return RefusedError(grpc.StatusCode.NOT_FOUND, Reason.NO_SUCH_MEMORY, "no such memory")
