"""A call of the memory API after authentication: its fields, its messages, its repetition and its errors."""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, TypeVar

import grpc
from google.protobuf.any_pb2 import Any as Packed
from google.protobuf.duration_pb2 import Duration
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import error_details_pb2, status_pb2

from memory_extproc.api.gen import memory_pb2 as pb
from memory_extproc.api.principal import Principal
from memory_extproc.curation.editor import RESERVED, AmbiguousIdError, MemoryCatalog, etag_of
from memory_extproc.errors import MemoryExtprocError
from memory_extproc.model import Memory, Owner, OwnerKind, digest, trust_of
from memory_extproc.model.owner import MAX_NAME_BYTES, accept_name
from memory_extproc.ports import Coordination


@dataclass(slots=True)
class Call:
    """The context of an operation, which also notes here the fields of the audit log."""

    method: str
    principal: Principal
    owner: Owner
    own: bool  # the caller's own memories; False: another user's, of the same tenant
    member: bool = False  # memories that a project shares with the caller, who only reads them
    request_id: str = ""
    scope: str = ""  # the names of the filters given, joined by "+"
    count: int = field(default=0)  # memories read or written


# How a method is carried out, by the kind of its request and answer.
Unary = Callable[[Call, Any], Awaitable[Message]]
ServerStream = Callable[[Call, Any], AsyncIterator[Message]]
ClientStream = Callable[[Call, Any, AsyncIterator[Any]], Awaitable[Message]]  # first message, then the rest
Operation = Unary | ServerStream | ClientStream


def scope_of(request: Message, *filters: str) -> str:
    """The names in *filters* that *request* sets."""
    given = {descriptor.name for descriptor, _ in request.ListFields()}
    return "+".join(name for name in filters if name in given)


# Memories as the API's messages.


def message_of(memory: Memory) -> pb.Memory:
    return pb.Memory(
        id=memory.id,
        user_id=memory.owner.user if memory.owner.kind is OwnerKind.OWN else "",
        tenant_id=memory.owner.tenant,
        project_id=memory.project,
        type=memory.type.value,
        content=memory.content,
        source=memory.source.value,
        importance=memory.importance,
        access_count=memory.access_count,
        created_at=memory.created_at,
        updated_at=memory.updated_at,
        last_accessed_at=_accessed_at(memory),
        expires_at=memory.expires_at,
        superseded_by=memory.superseded_by,
        session_id=memory.session,
        origin=memory.origin,
        metadata=memory.provenance.encode() or None,
        state=memory.state.value,
        role=memory.role.value,
        seq=memory.seq,
        valid_from=memory.valid_from,
        valid_to=memory.valid_to,
        etag=etag_of(memory),
        trust=trust_of(memory).value,
    )


def _accessed_at(memory: Memory) -> datetime | None:
    """When it was last put before a model, as far as that was counted."""
    at = memory.provenance.accessed
    return None if at is None else datetime.fromtimestamp(at, UTC)


# A call repeated with the same request_id changes nothing and gets the first call's answer.

KIND = "api"
LIFE = timedelta(days=1)
UNDER_WAY = timedelta(minutes=1)  # after which an interrupted call may be repeated
Noted = Mapping[str, str]  # ids and enum values from which the answer is rebuilt; never a user's text


class Repeats:
    def __init__(self, coordination: Coordination, key: bytes) -> None:
        self._coordination = coordination
        self._key = key

    async def once(self, call: Call, request: Message, work: Callable[[], Awaitable[Noted]]) -> Noted:
        """The result of *work*, or its earlier result for the same request. RefusedError if the id was used for
        another request, or if the same request is still running. Without a request_id *work* always runs."""
        if not call.request_id:
            return await work()
        print_ = hmac.digest(self._key, request.SerializeToString(deterministic=True), "sha256").hex()
        name = digest(call.method, call.request_id)
        begun = _record(print_, "begun", {})
        there = await self._coordination.get_record(KIND, call.owner, name)
        if there is not None:
            known, state, noted = _read(there)
            if known != print_:
                raise RefusedError(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    ErrorReason.REQUEST_ID_REUSED,
                    "this request_id was used for another request",
                    violations=[("request_id", "an id of its own for each request")],
                )
            if state == "done":
                return noted
            if state == "begun":
                raise _under_way()
        if not await self._coordination.replace_record(KIND, call.owner, name, there, begun, UNDER_WAY):
            raise _under_way()
        try:
            noted = await work()
        except BaseException:
            # Cancelled, too. It may be tried again at once; where that cannot be noted, once UNDER_WAY is over.
            with suppress(MemoryExtprocError):
                await self._coordination.put_record(
                    KIND, call.owner, name, _record(print_, "failed", {}), UNDER_WAY
                )
            raise
        await self._coordination.put_record(KIND, call.owner, name, _record(print_, "done", noted), LIFE)
        return noted


def _record(print_: str, state: str, noted: Noted) -> bytes:
    return json.dumps([print_, state, dict(noted)]).encode()


def _read(record: bytes) -> tuple[str, str, Noted]:
    print_, state, noted = json.loads(record)
    return print_, state, noted


def _under_way() -> RefusedError:
    return RefusedError(
        grpc.StatusCode.ABORTED,
        ErrorReason.REQUEST_UNDER_WAY,
        "a call with this request_id is under way",
        retry_after=timedelta(seconds=1),
    )


# Reading a request: all invalid fields are reported at once.

E = TypeVar("E", bound=StrEnum)

QUERY_BYTES = 8192
METADATA_BYTES = 8192
METADATA_KEYS = 64
METADATA_DEPTH = 8
PAGE = 100
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/-]{1,128}")
_EXACT = 2**53  # above it a double does not hold every whole number
_LATEST = datetime(9999, 1, 1, tzinfo=UTC)
_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


class Fields:
    """Collects the faults of a request; `check` raises them."""

    def __init__(self) -> None:
        self._faults: list[tuple[str, str]] = []

    def fault(self, field: str, description: str) -> None:
        self._faults.append((field, description))

    def check(self) -> None:
        if self._faults:
            raise bad_request(*self._faults)

    def name(self, field: str, value: str, *, needed: bool = False) -> str:
        """A project, session or user: printable, at most 256 bytes."""
        if (value or needed) and not accept_name(value):
            least = "1 to " if needed else "at most "
            self.fault(field, f"{least}{MAX_NAME_BYTES} bytes of printable characters")
            return ""
        return value

    def text(self, field: str, value: str, most: int = QUERY_BYTES) -> str:
        """A text: not only white space, without NUL, at most *most* bytes."""
        if not value.strip() or "\0" in value or len(value.encode("utf-8", "surrogatepass")) > most:
            self.fault(field, f"1 to {most} bytes of UTF-8, not only white space, without NUL")
        return value

    def words(self, field: str, given: Iterable[str], known: type[E]) -> frozenset[E]:
        """Values of *known*, also as comma-separated lists; none: all."""
        named = {word.strip() for one in given for word in one.split(",")} - {""}
        if named - set(known):
            self.fault(field, f"one of {', '.join(known)}")
        return frozenset(one for one in known if one in named) or frozenset(known)

    def word(self, field: str, given: str, known: type[E], default: E) -> E:
        if given and given not in set(known):
            self.fault(field, f"one of {', '.join(known)}")
            return default
        return known(given) if given else default

    def share(self, field: str, value: float) -> float:
        if not 0.0 <= value <= 1.0:  # NaN is not either
            self.fault(field, "a number from 0 to 1")
            return 0.0
        return value

    def limit(self, field: str, value: int, default: int) -> int:
        if not 0 <= value <= PAGE:
            self.fault(field, f"1 to {PAGE}; 0 or absent: {default}")
            return default
        return value or default

    def time(self, field: str, given: Timestamp) -> datetime | None:
        """Whole seconds; None where the message does not say."""
        try:
            found = given.ToDatetime(tzinfo=UTC)
        except (ValueError, OverflowError):
            found = None
        if found is None or not datetime(1970, 1, 2, tzinfo=UTC) <= found < _LATEST:
            self.fault(field, "a time from 1970 to 9998, such as 2026-03-02T09:00:00Z")
            return None
        return found.replace(microsecond=0)

    def request_id(self, value: str) -> str:
        if value and not _REQUEST_ID.fullmatch(value):
            self.fault("request_id", "1 to 128 of A-Z a-z 0-9 . _ : / -")
        return value

    def metadata(self, field: str, given: Struct) -> Mapping[str, Any]:
        if _depth(given) > METADATA_DEPTH:
            self.fault(field, f"at most {METADATA_DEPTH} levels deep")
            return {}
        try:
            found: dict[str, Any] = _whole_numbers(MessageToDict(given))
            size = len(json.dumps(found, ensure_ascii=False, allow_nan=False).encode())
        except (ValueError, UnicodeError):
            self.fault(field, "JSON without NaN, infinities and lone surrogates")
            return {}
        if size > METADATA_BYTES or len(found) > METADATA_KEYS:
            self.fault(field, f"at most {METADATA_BYTES} bytes as JSON and {METADATA_KEYS} keys")
        for name in sorted(RESERVED & found.keys()):
            self.fault(f"{field}.{name}", "another name: this one is the server's")
        return found


def is_id(text: str) -> bool:
    """Whether *text* has the form of a memory's id."""
    return _ID.fullmatch(text) is not None


def _depth(given: Struct) -> int:
    """Levels of objects and lists, counted without recursion: a request may nest a hundred."""
    deepest = 0
    waiting: list[tuple[Iterable[Value], int]] = [(given.fields.values(), 1)]
    while waiting:
        values, depth = waiting.pop()
        deepest = max(deepest, depth)
        for value in values:
            if value.HasField("struct_value"):
                waiting.append((value.struct_value.fields.values(), depth + 1))
            elif value.HasField("list_value"):
                waiting.append((value.list_value.values, depth + 1))
    return deepest


def _whole_numbers(value: Any) -> Any:
    """Restore integers: a Struct has only doubles."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    if isinstance(value, Mapping):
        return {key: _whole_numbers(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_whole_numbers(one) for one in value]
    return value


# Why a call is not answered: a gRPC code with google.rpc details, the same for the same fault.

DOMAIN = "memory-extproc"
DETAILS = "grpc-status-details-bin"  # the trailer that gRPC's libraries read a google.rpc.Status from


class ErrorReason(StrEnum):
    """ErrorInfo.reason. Clients decide by it, so a value is never renamed."""

    NO_CREDENTIALS = "NO_CREDENTIALS"
    CREDENTIALS_REFUSED = "CREDENTIALS_REFUSED"
    NOT_ALLOWED = "NOT_ALLOWED"  # the caller's roles do not reach so far
    TOO_MANY_CALLS = "TOO_MANY_CALLS"
    BAD_REQUEST = "BAD_REQUEST"
    BAD_PAGE_TOKEN = "BAD_PAGE_TOKEN"  # noqa: S105 - not a secret
    NO_SUCH_MEMORY = "NO_SUCH_MEMORY"
    NO_SUCH_RECEIPT = "NO_SUCH_RECEIPT"
    NO_SUCH_TURN = "NO_SUCH_TURN"
    NO_SUCH_DECISION = "NO_SUCH_DECISION"  # or it is kept no longer
    AMBIGUOUS_ID = "AMBIGUOUS_ID"  # several of the user's memories have ids that begin so
    STALE = "STALE"  # the memory was changed since its etag was read
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
    """Ends a call. *message* is for people and contains no text of a user."""

    def __init__(
        self,
        code: grpc.StatusCode,
        reason: ErrorReason,
        message: str,
        *,
        violations: Sequence[tuple[str, str]] = (),
        metadata: Mapping[str, str] | None = None,
        retry_after: timedelta | None = None,
        attached: Sequence[Message] = (),
    ) -> None:
        """*violations*: (field, the expected value). *attached*: further details, for the caller only."""
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message
        self.violations = tuple(violations)
        self.metadata = dict(metadata or {})
        self.retry_after = retry_after
        self.attached = tuple(attached)

    @property
    def status(self) -> status_pb2.Status:
        """As a google.rpc.Status with its details."""
        details: list[Message] = [
            error_details_pb2.ErrorInfo(reason=self.reason, domain=DOMAIN, metadata=self.metadata)
        ]
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
        details += self.attached
        packed = []
        for detail in details:
            packed.append(Packed())
            packed[-1].Pack(detail)
        return status_pb2.Status(code=self.code.value[0], message=self.message, details=packed)

    def trailer(self) -> tuple[tuple[str, bytes], ...]:
        return ((DETAILS, self.status.SerializeToString()),)


def bad_request(*violations: tuple[str, str]) -> RefusedError:
    expected = "; ".join(f"{field}: {description}" for field, description in violations)
    return RefusedError(grpc.StatusCode.INVALID_ARGUMENT, ErrorReason.BAD_REQUEST, expected, violations=violations)


def no_such_memory() -> RefusedError:
    """The error for an unknown id and for the id of another user's memory alike."""
    return RefusedError(grpc.StatusCode.NOT_FOUND, ErrorReason.NO_SUCH_MEMORY, "no such memory")


async def whole_id(catalogue: MemoryCatalog, call: Call, given: str) -> str:
    """The id that *given*, which may be its first digits alone, stands for among the memories of *call*'s owner."""
    try:
        return await catalogue.whole_id(call.owner, given)
    except AmbiguousIdError as error:
        raise RefusedError(
            grpc.StatusCode.INVALID_ARGUMENT,
            ErrorReason.AMBIGUOUS_ID,
            str(error),
            violations=[("id", "more digits of it")],
        ) from error
