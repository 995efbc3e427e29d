"""The gRPC streams of Envoy, one per HTTP exchange. A failure here never fails the request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from enum import IntEnum
from typing import Any, Protocol

import grpc
from google.protobuf.struct_pb2 import Struct, Value

from memory_extproc.concurrency import locate_error
from memory_extproc.extproc.duplex import DuplexExchange
from memory_extproc.extproc.exchange import (
    PASS,
    Event,
    Exchange,
    ExchangeDeps,
    ExchangeMetadata,
    OutOfOrderError,
    Phase,
    Reply,
    RequestBody,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
    StreamMode,
)
from memory_extproc.extproc.gen import ext_proc_pb2 as pb
from memory_extproc.extproc.observer import HANDED, TURN, ObservedExchange, RequestObserver
from memory_extproc.extproc.response_capture import Capture
from memory_extproc.model.headers import NOTHING, Headers, RequestHeaders
from memory_extproc.observe.log import Field, Span, TraceParent, Trail, following, logger
from memory_extproc.request.admission import METADATA, PASSED
from memory_extproc.request.identity import AllowedPeers
from memory_extproc.settings.traffic import most_received

log = logger(__name__)


class Stream(Protocol):
    """The context of a call, as grpc.aio and `PlaintextServer` offer it."""

    def invocation_metadata(self) -> Any: ...

    def auth_context(self) -> Mapping[str, Iterable[bytes]]: ...

    async def write(self, message: bytes) -> None: ...

    async def abort(self, code: grpc.StatusCode, details: str = "") -> Any: ...


class HandlerRegistry(Protocol):
    def add_generic_rpc_handlers(self, generic_rpc_handlers: Any) -> None: ...


class BodyMode(IntEnum):
    """How Envoy sends a body: processing_mode.proto, BodySendMode."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX_STREAMED = 4
    GRPC = 5


DUPLEX = BodyMode.FULL_DUPLEX_STREAMED

SERVICE: str = pb.DESCRIPTOR.services_by_name["ExternalProcessor"].full_name


class EventHandler(Protocol):
    """An exchange in either mode."""

    @property
    def phase(self) -> Phase: ...

    @property
    def may_end(self) -> bool:
        """Whether Envoy has all that it needs to go on alone, once it has the replies to the last event."""

    @property
    def observes(self) -> Capture | None:
        """The capture that takes the response's chunks but the last in place of `handle`; None while `handle` must
        see them."""

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left for `leave` to do."""

    async def handle(self, event: Event) -> Sequence[Reply]: ...

    def rescue(self) -> Sequence[Reply] | None:
        """After `handle` failed: the replies without which Envoy cannot go on; None where it can without any."""

    async def leave(self, *, faulty: bool = False) -> None: ...


class Processor:
    """envoy.service.ext_proc.v3.ExternalProcessor."""

    def __init__(
        self, deps: ExchangeDeps, peers: AllowedPeers | None = None, overhears: RequestObserver | None = None
    ) -> None:
        """*overhears*: with two filters, the requests as the observing filter saw them."""
        self._deps, self._peers, self._overhears = deps, peers, overhears
        self._open = 0
        self._told_of_modes = False

    def reconfigure(self, deps: ExchangeDeps, peers: AllowedPeers | None) -> None:
        """Apply to new exchanges; open exchanges keep their configuration."""
        self._deps, self._peers = deps, peers

    def register(self, server: HandlerRegistry) -> None:
        _register_handler(server, self.process)

    async def process(self, requests: AsyncIterator[bytes], context: Stream) -> None:
        """Serve a stream. Ending this cleanly tells Envoy to carry the exchange on alone
        (external_processor.proto); an error would be a 500 for the user wherever failure_mode_allow is not set."""
        if self._peers is not None and not self._peers.admit(context.auth_context()):
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "this certificate's name is not allowed")
        deps = self._deps
        metrics = deps.metrics
        metrics.streams_open.inc()
        exchange: EventHandler | None = None
        span, trail = Span(), Trail()
        faulty = cuts = watching = False
        capture: Capture | None = None
        try:
            messages = aiter(requests)
            while (raw := await _next_event(messages, capture, None if watching else context)) is not None:
                message = pb.ProcessingRequest.FromString(raw)
                if exchange is None:
                    span, trail = self._begin_span(message, context)
                    exchange = self._open_exchange(deps, message, trail)
                    watching = message.observability_mode
                with following(trail), span.active():
                    goes_on = await self._handle_message(exchange, message, context, span)
                if not goes_on:
                    cuts = not exchange.may_end
                    break
                capture = exchange.observes
        except Exception as error:  # noqa: BLE001  the wire's only catch-all: a bug of ours must not become a 500
            faulty = True
            cuts = isinstance(exchange, DuplexExchange)
            with following(trail):
                self._report(error, exchange)
        finally:
            metrics.streams_open.dec()
            if exchange is None or exchange.is_settled:
                _end(span, trail)
            else:
                with following(trail), span.active():
                    left = deps.background.start(_leave(exchange, span, trail, faulty=faulty))
                if left is None:  # too many endings wait already
                    _end(span, trail)
        if cuts:
            # Ended cleanly, a body would go on cut short and look whole. To this, Envoy may try another sidecar.
            await context.abort(grpc.StatusCode.UNAVAILABLE, "a body is lost")

    def _report(self, error: Exception, exchange: EventHandler | None) -> None:
        faults = self._deps.metrics.stream_faults
        if isinstance(error, OutOfOrderError):
            faults.labels("out_of_order").inc()
            log.warning("stream.out_of_order", detail=str(error))
            return
        faults.labels("bug").inc()
        phase = exchange.phase.name if exchange else "NONE"
        # Not log.exception: an exception's text may quote a person's words.
        log.error("stream.failed", phase=phase, kind=type(error).__name__, at=locate_error(error))

    def _begin_span(self, first: pb.ProcessingRequest, context: Stream) -> tuple[Span, Trail]:
        """Envoy's own span, in the metadata of the call, before the client's, in the header."""
        headers = named_headers(first, ("traceparent", "x-request-id"))
        given = dict(context.invocation_metadata() or ()).get("traceparent") or headers["traceparent"]
        parent = given if isinstance(given, str) else ""
        span = self._deps.traces.exchange(parent)
        trace = span.trace if span.trace.trace_id else TraceParent.parse(parent)
        return span, Trail(trace, headers["x-request-id"])

    async def _handle_message(
        self, exchange: EventHandler, message: pb.ProcessingRequest, context: Stream, span: Span
    ) -> bool:
        """Answer a message. False: end the stream."""
        event = decode(message)
        if event is None:
            # Envoy waits for an answer that we cannot give: leave it to go on alone.
            self._deps.metrics.stream_faults.labels("unknown_message").inc()
            log.warning("stream.unknown_message")
            return False
        try:
            replies = await exchange.handle(event)
        except Exception as error:  # a bug; the exchange may hold a body that Envoy needs
            rescued = exchange.rescue()
            if rescued is None:
                raise  # to the catch-all, which ends the stream cleanly
            self._report(error, exchange)
            replies = rescued
        ends = False
        for reply in replies:
            if reply.told is not None:
                span.note(**_span_fields(reply.told))
            if not message.observability_mode:
                await context.write(serialize(event, reply))
            ends = ends or reply.ends
        return not ends

    def _open_exchange(self, deps: ExchangeDeps, first: pb.ProcessingRequest, trail: Trail) -> EventHandler:
        mode = self._mode(first)
        if mode.watching and self._overhears is not None:
            return ObservedExchange(deps, self._overhears, trail)
        exchange = Exchange(deps, mode, trail)
        duplex = mode.duplex_request or mode.duplex_answer
        return DuplexExchange(exchange, deps, mode) if duplex else exchange

    def _mode(self, first: pb.ProcessingRequest) -> StreamMode:
        modes = body_modes(first)
        if first.observability_mode or modes is None:
            how = "copied" if first.observability_mode else "untold"
            self._deps.metrics.streams.labels(how, how).inc()
            return StreamMode(watching=first.observability_mode)
        asked, answered = modes
        self._deps.metrics.streams.labels(mode_name(asked), mode_name(answered)).inc()
        mode = StreamMode(
            sends_body=asked in (BodyMode.BUFFERED, DUPLEX),
            streams_answer=answered in (BodyMode.STREAMED, DUPLEX),
            duplex_request=asked == DUPLEX,
            duplex_answer=answered == DUPLEX,
            hands_over=self._overhears is not None and answered == BodyMode.NONE,
        )
        if not (mode.sends_body and (mode.streams_answer or mode.hands_over)):
            self._deps.metrics.stream_faults.labels("unsupported_mode").inc()
            if not self._told_of_modes:  # once: it is a fault of the configuration and comes with every stream
                self._told_of_modes = True
                log.error("stream.unsupported_mode", request_body=asked, response_body=answered)
        return mode


async def _next_event(
    messages: AsyncIterator[bytes], capture: Capture | None, context: Stream | None
) -> bytes | None:
    """Read messages up to the first that is no chunk for *capture*; None at the end, and where *capture* takes no
    more: Envoy then carries the exchange on alone. *context* is None where Envoy waits for no reply."""
    while (raw := await anext(messages, None)) is not None:
        chunk = None if capture is None else answer_chunk(raw)
        if capture is None or chunk is None:
            break
        capture.add(chunk)
        if context is not None:
            await context.write(PASSES[ResponseBody])
        if capture.dropped is not None:
            return None
    return raw


async def _leave(exchange: EventHandler, span: Span, trail: Trail, *, faulty: bool) -> None:
    try:
        await exchange.leave(faulty=faulty)
    finally:
        _end(span, trail)


def _end(span: Span, trail: Trail) -> None:
    trail.open = False
    span.end()


def _span_fields(told: ExchangeMetadata) -> dict[str, Field]:
    return {"outcome": told.outcome.value, "arm": told.arm.value, "memories": told.count, "tokens": told.tokens}


def message_options(request_bytes: int) -> list[tuple[str, int]]:
    """GRPC options of a server that receives request bodies of up to *request_bytes*, and Envoy's pings."""
    # How much really comes is bounded by Envoy's own buffer limit.
    most = most_received(request_bytes)
    return [
        ("grpc.max_receive_message_length", most),
        ("grpc.max_send_message_length", most),
        # Against a server with the defaults, Envoy's keepalive pings end in GOAWAY (too_many_pings), and
        # answers that are being streamed are cut off with status 200. The core's constant for this argument
        # is called MIN_RECV_PING_INTERVAL, its value is not: an argument named so is ignored.
        ("grpc.http2.min_ping_interval_without_data_ms", int(PINGS / timedelta(milliseconds=1))),
        ("grpc.keepalive_permit_without_calls", 1),
        # The second sidecar on a port fails at its start, instead of taking a share of the connections.
        ("grpc.so_reuseport", 0),
    ]


PINGS = timedelta(milliseconds=500)  # the least time between two of Envoy's pings that we permit


def _register_handler(server: HandlerRegistry, process: Callable[..., Awaitable[None]]) -> None:
    """Registered with messages as bytes: most of them are chunks of responses, which need no decoding."""
    handler = grpc.stream_stream_rpc_method_handler(process)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Process": handler}),))


def register_ending(server: HandlerRegistry) -> None:
    """Serve no exchange: every stream ends at once and cleanly, so that its request passes without memory.

    A service that is not registered would be an error, and a 500 for the user."""

    async def end_stream(_requests: AsyncIterator[bytes], _context: Stream) -> None:
        """No message ever goes back."""

    _register_handler(server, end_stream)


# Between protobuf and plain values: nothing else knows Envoy's messages.

# Envoy's key for the results of `request_attributes` (xds.route_name and its like).
ATTRIBUTES = "envoy.filters.http.ext_proc"


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
