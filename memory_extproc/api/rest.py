"""The memory API as HTTP and JSON: each method at the place that its google.api.http annotation names.

It knows no method by name: paths, parameters and bodies come from the proto, and calls go through the same
service as gRPC's. An answer is short by default, for people and programs; `?verbose=true` gives every field."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import unquote

import grpc
from aiohttp import web
from google.api import annotations_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from memory_extproc.api.authentication import Credentials
from memory_extproc.api.call import PAGE, ErrorReason, RefusedError, bad_request
from memory_extproc.api.gen import memory_pb2 as pb
from memory_extproc.api.principal import METHODS
from memory_extproc.api.service import MemoryService
from memory_extproc.curation.editor import RESERVED
from memory_extproc.model import Source
from memory_extproc.observe.log import logger
from memory_extproc.ports import Now
from memory_extproc.settings.api import PrincipalRole

log = logger(__name__)

_PATH = "/v1/memory"
_ROUTER_PATH = "/api/v1/storage/memories"  # of the semantic router's versions since 0.4.0; before them _PATH
SHORT_ID = 16  # hex digits of an id that answers show; any unambiguous prefix names the memory
VERBOSE = "verbose"
_INTERNAL = RESERVED - {"rating"}  # metadata that only our own programs use
_WHOLE_ID = re.compile(r"[0-9a-f]{64}")
_PIECE = 64 * 1024  # bytes read at a time from an import
_ELEMENT = 256 * 1024  # bytes of an element of an import
_UNKNOWN_FIELD = re.compile(r'has no field named "([^"]{1,1000})"')
_FAILED_FIELD = re.compile(r"Failed to parse (\w[\w.\[\]]{0,100}) field")
# The HTTP status that belongs to a gRPC code, as google/rpc/code.proto maps them.
STATUSES: Mapping[grpc.StatusCode, int] = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
Presents = Callable[[web.Request], Credentials]  # reads the credentials of a request
Query = Sequence[tuple[str, str]]
ErrorBody = Literal["status", "semantic_router"]


@dataclass(frozen=True, slots=True)
class Binding:
    """An HTTP verb and a path that lead to a method."""

    method: MethodDescriptor
    verb: str
    path: re.Pattern[str]
    body: str  # the field that the body is; "*": the whole request; "": there is none

    @property
    def in_path(self) -> frozenset[str]:
        return frozenset(self.path.groupindex)


def bindings() -> Iterator[Binding]:
    """The bindings of all methods that are served; literal paths come before paths with fields."""
    found = []
    for method in pb.DESCRIPTOR.services_by_name["MemoryService"].methods:
        rule = method.GetOptions().Extensions[annotations_pb2.http]
        for each in (rule, *rule.additional_bindings):
            verb = each.WhichOneof("pattern")
            if verb is not None and method.name in METHODS:
                found.append(Binding(method, verb.upper(), _pattern(getattr(each, verb)), each.body))
    yield from sorted(found, key=lambda one: (len(one.in_path), -len(one.path.pattern)))


def _pattern(template: str) -> re.Pattern[str]:
    pieces = re.split(r"\{(\w+)\}", template)
    return re.compile("".join(f"(?P<{one}>[^/]+)" if at % 2 else re.escape(one) for at, one in enumerate(pieces)))


class RestApi:
    """Answers every path below /v1/memory, and below the path of the same methods in the semantic router's API."""

    def __init__(
        self,
        service: MemoryService,
        presents: Presents,
        *,
        body_bytes: int,
        error_body: ErrorBody = "status",
        now: Now = lambda: datetime.now(UTC),
    ) -> None:
        """*body_bytes*: of a body that is read as a whole; an import is read in pieces."""
        self._service, self._presents, self._body_bytes = service, presents, body_bytes
        self._error_body, self._now = error_body, now
        self._bindings = tuple(bindings())

    def register(self, application: web.Application) -> None:
        for path in (_PATH, _ROUTER_PATH):
            application.router.add_route("*", path, self.answer)
            application.router.add_route("*", path + "{verb:[:/%].*}", self.answer)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except RefusedError as refused:
            if self._error_body == "semantic_router":
                return _refusal_response(refused, _router_error(refused, self._now()))
            return _refusal_response(refused, MessageToDict(refused.status, preserving_proto_field_name=True))

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = re.sub("%3[Aa]", ":", request.rel_url.raw_path)
        if path.startswith(_ROUTER_PATH):
            path = _PATH + path.removeprefix(_ROUTER_PATH)
        if path == "/v1/memory/":
            # Without this, an id that a client lost on the way would name the whole collection.
            raise bad_request(("id", "an id after /v1/memory/; without the slash the path names every memory"))
        matching = [(one, match) for one in self._bindings if (match := one.path.fullmatch(path))]
        for binding, match in matching:
            if binding.verb == request.method:
                named = {name: unquote(value) for name, value in match.groupdict().items()}
                return await self._carry_out(request, binding, named)
        if not matching:
            raise RefusedError(
                grpc.StatusCode.NOT_FOUND, ErrorReason.NOT_OFFERED, "no method of the memory API is here"
            )
        allowed = ", ".join(sorted({binding.verb for binding, _ in matching}))
        raise web.HTTPMethodNotAllowed(request.method, allowed.split(", "))

    async def _carry_out(
        self, request: web.Request, binding: Binding, named: Mapping[str, str]
    ) -> web.StreamResponse:
        method, presented = binding.method, self._presents(request)
        verbose, query = _split_verbose(list(request.query.items()))
        if binding.verb == "GET":
            query = self._read_leniently(binding, query, presented)
        if method.client_streaming:
            if query:
                raise bad_request(*((name, "no parameter of this method") for name, _ in query))
            taken = _elements(request, method.input_type)
            return _json_response(to_json(await self._service.take_in(method.name, taken, presented), verbose=True))
        fields: dict[str, Any] = dict(named)
        fields |= _query_fields(binding, query)
        fields |= await self._body_fields(request, binding, fields)
        if _is_zero(fields.get("limit")):
            raise bad_request(("limit", "1 or more"))
        if method.name == "ForgetMemories":
            _refuse_empty_filters(fields)
        message = _parse(fields, GetMessageClass(method.input_type)())
        if isinstance(message, pb.ListMemoriesRequest) and not verbose:
            _facts_first(message)
        if method.server_streaming:
            return await self._stream(request, method.name, message, presented)
        answer = await self._service.call(method.name, message, presented)
        response = _json_response(to_json(answer, verbose=verbose))
        if isinstance(answer, pb.ForgetReceipt):
            response.headers["content-disposition"] = f'attachment; filename="receipt-{answer.id[:SHORT_ID]}.json"'
        return response

    def _read_leniently(self, binding: Binding, query: Query, presented: Credentials) -> Query:
        """*query* of a GET as clients of the vLLM semantic router know it: unknown parameters are dropped, a limit
        above the maximum is capped, and the name of a caller of role `user` wins over `user_id`. A GET
        destroys no memory by such a mistake; other verbs refuse the same."""
        known = {*binding.method.input_type.fields_by_name, *binding.in_path}
        query = [(name, _cap(value) if name == "limit" else value) for name, value in query if name in known]
        if any(name == "user_id" for name, _ in query):
            principal = self._service.identify(presented)
            if principal.user and principal.roles == {PrincipalRole.USER}:
                query = [(name, value) for name, value in query if name != "user_id"]
        return query

    async def _body_fields(
        self, request: web.Request, binding: Binding, fields: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        if not binding.body:
            return {}
        given = _read_json(await _read_body(request, self._body_bytes))
        if not isinstance(given, dict):
            raise bad_request(("body", "a JSON object"))
        if binding.body != "*":
            return {binding.body: given}
        twice = [name for name in given if name in fields]
        if twice:
            raise bad_request(*((name, "in the path or the body, not in both") for name in twice))
        return given

    async def _stream(
        self, request: web.Request, method: str, message: Message, presented: Credentials
    ) -> web.StreamResponse:
        """JSON Lines. A fault after the first line breaks the connection off: half an answer never looks whole."""
        async with aclosing(self._service.stream(method, message, presented)) as answers:
            # The first is a head: a request that is wrong shows with the second.
            first = [each for _ in range(2) if (each := await anext(answers, None)) is not None]
            response = web.StreamResponse(headers={"content-type": "application/json", **NO_STORE})
            await response.prepare(request)
            try:
                for answer in first:
                    await response.write(json_line(answer))
                async for answer in answers:
                    await response.write(json_line(answer))
            except RefusedError as refused:
                log.warning("api.stream_broken", method=method, reason=refused.reason)
                if request.transport is not None:
                    request.transport.abort()
                return response
        await response.write_eof()
        return response


def _split_verbose(query: Query) -> tuple[bool, Query]:
    wanted = [value for name, value in query if name == VERBOSE]
    if any(value not in {"true", "false"} for value in wanted):
        raise bad_request((VERBOSE, "true or false"))
    return "true" in wanted, [(name, value) for name, value in query if name != VERBOSE]


def _cap(limit: str) -> str:
    digits = limit.lstrip("0")
    above = limit.isascii() and limit.isdigit() and (len(digits) > len(str(PAGE)) or int(digits or "0") > PAGE)
    return str(PAGE) if above else limit


def _is_zero(limit: Any) -> bool:
    return limit is not None and str(limit).strip().strip("+-0.") == "" and "0" in str(limit)


def _query_fields(binding: Binding, query: Query) -> Mapping[str, Any]:
    """The parameters, as JSON has them. An unknown name is refused: a mistyped filter would be no filter."""
    descriptor, taken = binding.method.input_type, {*binding.in_path, binding.body}
    found: dict[str, Any] = {}
    faults: list[tuple[str, str]] = []
    for name, value in query:
        field = None if binding.body == "*" or name in taken else descriptor.fields_by_name.get(name)
        if field is None or (field.message_type is not None and not _is_text(field.message_type)):
            faults.append((name[:100], "no parameter of this method"))
        elif field.is_repeated:
            found.setdefault(name, []).append(value)
        elif name in found:
            faults.append((name, "once"))
        elif field.type == FieldDescriptor.TYPE_BOOL:
            if value not in {"true", "false"}:
                faults.append((name, "true or false"))
            found[name] = value == "true"
        else:
            found[name] = value
    if faults:
        raise bad_request(*faults)
    return found


def _is_text(message: Descriptor) -> bool:
    """Whether JSON has it as a text."""
    return message.full_name in {"google.protobuf.Timestamp", "google.protobuf.FieldMask"}


def _refuse_empty_filters(fields: Mapping[str, Any]) -> None:
    empty = [name for name, value in fields.items() if value in ("", [], {}, [""]) and name != "user_id"]
    if empty:
        raise bad_request(*((name, "something, or not at all: an empty filter would forget all") for name in empty))


def _facts_first(request: pb.ListMemoriesRequest) -> None:
    request.order = request.order or "facts"
    if not request.source:
        request.source.extend(each for each in Source if each is not Source.QUESTION)


async def _read_body(request: web.Request, most: int) -> bytes:
    pieces, size = [], 0
    async for piece in request.content.iter_chunked(_PIECE):
        size += len(piece)
        if size > most:
            raise web.HTTPRequestEntityTooLarge(most, size)
        pieces.append(piece)
    return b"".join(pieces)


def _read_json(body: bytes) -> Any:
    try:
        return json.loads(body or b"{}")
    except (ValueError, RecursionError):
        raise bad_request(("body", "JSON in UTF-8")) from None


def _parse(fields: Mapping[str, Any], into: Message, *, ignore_unknown: bool = False) -> Message:
    """Raise a bad request for a field of another type, and for an unknown field: a mistyped filter of a forget
    would be no filter."""
    try:
        return ParseDict(dict(fields), into, ignore_unknown_fields=ignore_unknown, max_recursion_depth=64)
    except (ParseError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        # The parser's own message holds the value, which may be private; only the field's name goes on.
        unknown = _UNKNOWN_FIELD.search(str(error))
        if unknown:
            raise bad_request((unknown[1][:100], "a field that /openapi.json names")) from None
        named = _FAILED_FIELD.search(str(error))
        raise bad_request((named[1] if named else "body", "a value of the type that /openapi.json names")) from None


async def _elements(request: web.Request, kind: Descriptor) -> AsyncIterator[Message]:
    """The messages of a JSON array, or of JSON Lines, as they come; a few of them are held at a time."""
    decoder, held, make = json.JSONDecoder(), "", GetMessageClass(kind)
    pending = b""
    async for piece in request.content.iter_chunked(_PIECE):
        whole, pending = _split_utf8(pending + piece)
        held += whole
        while held := held.lstrip(" \t\r\n,["):
            if held[0] == "]":
                held = held[1:]
                continue
            try:
                value, end = decoder.raw_decode(held)
            except (ValueError, RecursionError):
                break
            held = held[end:]
            if not isinstance(value, dict):
                raise bad_request(("body", "an array of objects"))
            yield _parse(value, make(), ignore_unknown=True)  # of an export by a newer version
        if len(held) > _ELEMENT:
            raise bad_request(("body", f"JSON objects of at most {_ELEMENT} bytes"))
    if held.strip(" \t\r\n,]") or pending:
        raise bad_request(("body", "a JSON array, or JSON Lines, to its end"))


def _split_utf8(piece: bytes) -> tuple[str, bytes]:
    """The text of *piece*, and the bytes at its end that are the beginning of a character."""
    try:
        return piece.decode(), b""
    except UnicodeDecodeError as error:
        if len(piece) - error.start > 3 or error.reason != "unexpected end of data":  # noqa: PLR2004 - of 4 bytes
            raise bad_request(("body", "JSON in UTF-8")) from None
        return piece[: error.start].decode(), piece[error.start :]


NO_STORE: Mapping[str, str] = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


def to_json(message: Message, *, verbose: bool) -> dict[str, Any]:
    """*message* with the names of the proto. Zeros and empty texts are there: clients read them without asking."""
    plain: dict[str, Any] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return plain if verbose else _shorten(plain, message.DESCRIPTOR, top=True)


def _shorten(plain: dict[str, Any], kind: Any, *, top: bool) -> dict[str, Any]:
    """Drops the fields that only our own programs use: whole ids, internal metadata, and a receipt's stores and
    signature where the receipt is part of another answer."""
    if kind.name == "ForgetReceipt" and not top:
        return {name: plain[name] for name in ("id", "state", "scope", "accepted_at", "memories") if name in plain}
    for field in kind.fields:
        value = plain.get(field.name)
        if field.message_type is None or field.message_type.GetOptions().map_entry or not value:
            continue
        if field.message_type.file.package != kind.file.package:
            continue
        if isinstance(value, list):
            plain[field.name] = [_shorten(one, field.message_type, top=False) for one in value]
        elif isinstance(value, dict):
            plain[field.name] = _shorten(value, field.message_type, top=False)
    if kind.name == "Memory":
        for name in ("id", "superseded_by"):
            plain[name] = shorten_id(plain.get(name, ""))
        if "metadata" in plain:
            plain["metadata"] = {name: one for name, one in plain["metadata"].items() if name not in _INTERNAL}
    return plain


def shorten_id(memory_id: str) -> str:
    return memory_id[:SHORT_ID] if _WHOLE_ID.fullmatch(memory_id) else memory_id


def json_line(message: Message) -> bytes:
    """*message* as a line of JSON."""
    return json.dumps(to_json(message, verbose=True), ensure_ascii=False).encode() + b"\n"


def _json_response(body: Mapping[str, Any], status: int = 200) -> web.Response:
    return web.json_response(body, status=status, headers=NO_STORE, dumps=_dump)


def _dump(body: Any) -> str:
    return json.dumps(body, ensure_ascii=False)


# The vLLM semantic router's error codes, by our reasons and by the field that is wrong.
_ROUTER_CODES: Mapping[str, str] = {
    ErrorReason.NO_CREDENTIALS: "MISSING_USER_ID",
    ErrorReason.NO_SUCH_MEMORY: "NOT_FOUND",
    ErrorReason.UNAVAILABLE: "MEMORY_NOT_AVAILABLE",
}
_ROUTER_CODES_OF_FIELDS: Mapping[str, str] = {
    "user_id": "INVALID_USER_ID", "id": "INVALID_ID", "type": "INVALID_TYPE", "limit": "INVALID_LIMIT",
}  # fmt: skip


def _router_error(refused: RefusedError, now: datetime) -> Mapping[str, Any]:
    """A refusal as the vLLM semantic router writes it; reasons that it does not have keep our names."""
    of_fields = [
        _ROUTER_CODES_OF_FIELDS[field] for field, _ in refused.violations if field in _ROUTER_CODES_OF_FIELDS
    ]
    code = of_fields[0] if of_fields else _ROUTER_CODES.get(refused.reason, refused.reason.value)
    at = now.isoformat(timespec="seconds").replace("+00:00", "Z")
    return {"error": {"code": code, "message": refused.message, "timestamp": at}}


def _refusal_response(refused: RefusedError, body: Mapping[str, Any]) -> web.Response:
    """*body* with the HTTP status and headers that belong to the refusal."""
    status = 409 if refused.reason is ErrorReason.STALE else STATUSES.get(refused.code, 500)
    response = _json_response(body, status)
    if refused.code is grpc.StatusCode.UNAUTHENTICATED:
        response.headers["www-authenticate"] = 'Bearer realm="memory-extproc"'
    if refused.retry_after is not None:
        response.headers["retry-after"] = str(max(1, round(refused.retry_after.total_seconds())))
    return response


def read_names(pairs: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    """Header fields as texts; bytes that are no UTF-8 become U+FFFD, which no name may hold."""
    return [(name.decode("ascii", "replace"), value.decode("utf-8", "replace")) for name, value in pairs]
