"""The gRPC streams of Envoy, one per HTTP exchange. A failure here never fails the request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Protocol

import grpc
import grpc.aio

from memory_extproc.concurrency import locate_error
from memory_extproc.extproc import codec
from memory_extproc.extproc.codec import BodyMode
from memory_extproc.extproc.duplex import DuplexExchange
from memory_extproc.extproc.exchange import (
    Event,
    Exchange,
    ExchangeDeps,
    ExchangeMetadata,
    OutOfOrderError,
    Phase,
    Reply,
    ResponseBody,
    StreamMode,
)
from memory_extproc.extproc.gen import ext_proc_pb2 as pb
from memory_extproc.extproc.observer import ObservedExchange, RequestObserver
from memory_extproc.extproc.response_capture import Capture
from memory_extproc.observe.log import Field, Span, TraceParent, Trail, following, logger
from memory_extproc.request.identity import AllowedPeers
from memory_extproc.settings.traffic import most_received

log = logger(__name__)

Stream = grpc.aio.ServicerContext[bytes, bytes]

DUPLEX = BodyMode.FULL_DUPLEX_STREAMED
_CHUNK_PASSES = codec.PASSES[ResponseBody]

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

    def register(self, server: grpc.aio.Server) -> None:
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
        headers = codec.named_headers(first, ("traceparent", "x-request-id"))
        given = dict(context.invocation_metadata() or ()).get("traceparent") or headers["traceparent"]
        parent = given if isinstance(given, str) else ""
        span = self._deps.traces.exchange(parent)
        trace = span.trace if span.trace.trace_id else TraceParent.parse(parent)
        return span, Trail(trace, headers["x-request-id"])

    async def _handle_message(
        self, exchange: EventHandler, message: pb.ProcessingRequest, context: Stream, span: Span
    ) -> bool:
        """Answer a message. False: end the stream."""
        event = codec.decode(message)
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
                await context.write(codec.serialize(event, reply))
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
        modes = codec.body_modes(first)
        if first.observability_mode or modes is None:
            how = "copied" if first.observability_mode else "untold"
            self._deps.metrics.streams.labels(how, how).inc()
            return StreamMode(watching=first.observability_mode)
        asked, answered = modes
        self._deps.metrics.streams.labels(codec.mode_name(asked), codec.mode_name(answered)).inc()
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
        chunk = None if capture is None else codec.answer_chunk(raw)
        if capture is None or chunk is None:
            break
        capture.add(chunk)
        if context is not None:
            await context.write(_CHUNK_PASSES)
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


def _register_handler(server: grpc.aio.Server, process: Callable[..., Awaitable[None]]) -> None:
    """Registered with messages as bytes: most of them are chunks of responses, which need no decoding."""
    handler = grpc.stream_stream_rpc_method_handler(process)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Process": handler}),))


def register_ending(server: grpc.aio.Server) -> None:
    """Serve no exchange: every stream ends at once and cleanly, so that its request passes without memory.

    A service that is not registered would be an error, and a 500 for the user."""

    async def end_stream(_requests: AsyncIterator[bytes], _context: Stream) -> None:
        """No message ever goes back."""

    _register_handler(server, end_stream)
