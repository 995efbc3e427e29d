"""Between protobuf and plain values: the only module that knows Envoy's messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from enum import IntEnum
from typing import Any

from google.protobuf.struct_pb2 import Struct, Value

from memory_extproc.extproc.exchange import (
    PASS,
    Event,
    ExchangeMetadata,
    Reply,
    RequestBody,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
)
from memory_extproc.extproc.gen import ext_proc_pb2 as pb
from memory_extproc.model.headers import NOTHING, Headers, RequestHeaders
from memory_extproc.request.admission import METADATA, PASSED

# Envoy's key for the results of `request_attributes` (xds.route_name and its like).
ATTRIBUTES = "envoy.filters.http.ext_proc"
HANDED, TURN = "memory_learning", "turn"  # metadata from one filter to the observing filter: see observer.py


class BodyMode(IntEnum):
    """How Envoy sends a body: processing_mode.proto, BodySendMode."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX_STREAMED = 4
    GRPC = 5


_ANSWER_CHUNK = bytes([pb.ProcessingRequest.RESPONSE_BODY_FIELD_NUMBER << 3 | 2])  # the tag of such a message


def answer_chunk(raw: bytes) -> bytes | None:
    """Return the data of *raw* if it is a chunk of the response other than the last; None otherwise."""
    if not raw.startswith(_ANSWER_CHUNK):
        return None
    message = pb.ProcessingRequest.FromString(raw)
    piece = message.response_body
    return None if piece.end_of_stream or message.WhichOneof("request") != "response_body" else piece.body


def decode(message: pb.ProcessingRequest) -> Event | None:
    """The event; None for a kind of message that this version of ours does not know."""
    kind = message.WhichOneof("request")
    return _DECODERS[kind](message) if kind is not None else None


def _request_headers(message: pb.ProcessingRequest) -> RequestHeaders:
    return RequestHeaders(
        headers=_headers(message.request_headers.headers.headers),
        last=message.request_headers.end_of_stream,
        metadata=_structs(message.metadata_context.filter_metadata),
        attributes=_structs(message.attributes).get(ATTRIBUTES, NOTHING),
    )


_DECODERS: Mapping[str, Callable[[pb.ProcessingRequest], Event]] = {
    "request_headers": _request_headers,
    "request_body": lambda m: RequestBody(m.request_body.body, m.request_body.end_of_stream),
    "request_trailers": lambda _: RequestTrailers(),
    "response_headers": lambda m: ResponseHeaders(
        _headers(m.response_headers.headers.headers),
        m.response_headers.end_of_stream,
        _structs(m.metadata_context.filter_metadata),
    ),
    "response_body": lambda m: ResponseBody(m.response_body.body, m.response_body.end_of_stream),
    "response_trailers": lambda _: ResponseTrailers(),
}


def named_headers(message: pb.ProcessingRequest, names: tuple[str, ...]) -> dict[str, str]:
    """The first value of each of *names* (lower case) among the request's headers; "" if absent."""
    headers = _headers(message.request_headers.headers.headers)
    return {name: headers.get(name) for name in names}


def body_modes(message: pb.ProcessingRequest) -> tuple[int, int] | None:
    """(request, response) as `BodyMode` numbers, which Envoy tells with the first message of a stream; None
    where it does not: in observability mode, and from Envoys before 1.34."""
    if not message.HasField("protocol_config"):
        return None
    return message.protocol_config.request_body_mode, message.protocol_config.response_body_mode


_MODE_NAMES = {mode.value: mode.name.lower() for mode in BodyMode}


def mode_name(number: int) -> str:
    """A `BodyMode` in lower case; `other` for an unknown mode."""
    return _MODE_NAMES.get(number, "other")


def encode(event: Event, reply: Reply) -> pb.ProcessingResponse:
    """The message that answers *event*, or the event type that *reply* names: Envoy treats any other kind as a
    fault."""
    response = _ANSWERS[reply.to or type(event)](reply)
    if reply.told is not None:
        _tell(response, reply.told)
    if reply.handed is not None:
        response.dynamic_metadata.fields[HANDED].struct_value.fields[TURN].string_value = reply.handed
    if reply.passed:
        response.dynamic_metadata.fields[METADATA].struct_value.fields[PASSED].bool_value = True
    return response


def serialize(event: Event, reply: Reply) -> bytes:
    """Encode *reply* as bytes of the wire."""
    return PASSES[type(event)] if reply is PASS else encode(event, reply).SerializeToString()


def _tell(response: pb.ProcessingResponse, told: ExchangeMetadata) -> None:
    """Envoy drops namespaces that are not in `metadata_options.receiving_namespaces`."""
    fields = response.dynamic_metadata.fields[METADATA].struct_value.fields
    fields["outcome"].string_value = told.outcome.value
    fields["arm"].string_value = told.arm.value
    fields["n"].number_value = told.count
    fields["tokens"].number_value = told.tokens
    fields["ms"].number_value = round(told.took / timedelta(milliseconds=1), 3)
    if told.explanation:
        fields["memories"].string_value = told.explanation


_ANSWERS: Mapping[type[Event], Callable[[Reply], pb.ProcessingResponse]] = {
    RequestHeaders: lambda r: pb.ProcessingResponse(request_headers=pb.HeadersResponse(response=_common(r))),
    RequestBody: lambda r: pb.ProcessingResponse(request_body=pb.BodyResponse(response=_common(r))),
    RequestTrailers: lambda _: pb.ProcessingResponse(request_trailers=pb.TrailersResponse()),
    ResponseHeaders: lambda r: pb.ProcessingResponse(response_headers=pb.HeadersResponse(response=_common(r))),
    ResponseBody: lambda r: pb.ProcessingResponse(response_body=pb.BodyResponse(response=_common(r))),
    ResponseTrailers: lambda _: pb.ProcessingResponse(response_trailers=pb.TrailersResponse()),
}


def _common(reply: Reply) -> pb.CommonResponse:
    common = pb.CommonResponse()
    for name, value in reply.set_headers:
        _set(common, name, value)
    if reply.remove_headers:
        common.header_mutation.remove_headers.extend(reply.remove_headers)
    if reply.body is not None:
        common.body_mutation.body = reply.body
        # Envoy answers 500 by itself, failure_mode_allow or not, when a BUFFERED body and its content-length
        # differ (processing_mode.proto, BodySendMode); so the two are set here together and nowhere else.
        _set(common, "content-length", str(len(reply.body)))
    if reply.chunk is not None:
        # No content-length here: Envoy removes it in this mode, and the body goes on in chunks.
        common.body_mutation.streamed_response.body = reply.chunk.data
        common.body_mutation.streamed_response.end_of_stream = reply.chunk.last
    return common


# Replies that change nothing, by kind of event.
PASSES: Mapping[type[Event], bytes] = {kind: make(PASS).SerializeToString() for kind, make in _ANSWERS.items()}


def _set(common: pb.CommonResponse, name: str, value: str) -> None:
    option = common.header_mutation.set_headers.add()
    option.header.key = name
    # base.proto, HeaderValue: set either value or raw_value; raw_value holds any bytes.
    option.header.raw_value = value.encode()
    option.append_action = pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD


def _headers(pairs: Iterable[pb.HeaderValue]) -> Headers:
    # Bytes that are not UTF-8 become lone surrogates: they survive, and no check for printable text passes them.
    return Headers(
        (pair.key, pair.raw_value.decode("utf-8", "surrogateescape") if pair.raw_value else pair.value)
        for pair in pairs
    )


def _structs(structs: Mapping[str, Struct]) -> Mapping[str, Any]:
    return {name: _fields(struct) for name, struct in structs.items()} if structs else NOTHING


def _fields(struct: Struct) -> dict[str, Any]:
    return {name: _plain(value) for name, value in struct.fields.items()}


def _plain(value: Value) -> Any:
    """Unlike protobuf's own JSON format, which raises for NaN and infinities: other filters write these."""
    match value.WhichOneof("kind"):
        case "struct_value":
            return _fields(value.struct_value)
        case "list_value":
            return [_plain(one) for one in value.list_value.values]
        case "string_value" | "bool_value" | "number_value" as kind:
            return getattr(value, kind)
        case _:
            return None
