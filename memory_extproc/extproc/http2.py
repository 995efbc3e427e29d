"""A gRPC server for plaintext addresses: the protocol by `h2`, a task per call, messages as bytes.

A message costs two fifths of its price in grpc.aio, where it passes through three threads. Frames with a piece of a
message, nearly all frames, do not pass through `h2` in either direction, which would cost as much again. The server
takes the handlers that generated code and `grpc` make, and offers the part of grpc.aio's context that ours use.
TLS, compression and deadlines are left to grpc.aio: an address with a certificate is served there. A fault in one
call ends that call alone, because Envoy sends the calls of many people over one connection."""

from __future__ import annotations

import asyncio
import errno
import socket
import stat
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import grpc
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    PingAckReceived,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings

from memory_extproc.concurrency import locate_error
from memory_extproc.observe.log import logger

log = logger(__name__)

WINDOW = 1 << 20  # bytes that a client may send ahead in one call
_CONNECTION_WINDOW = 1 << 24  # the same in all calls of a connection
_MOST_UNSENT = 1 << 24  # bytes that wait for a client to read them
_HANDSHAKE = 5.0  # seconds from the connection to its first frame
_FAREWELL = 1.0  # seconds for a client to hear that it shall open no more calls
_BACKLOG = 4096  # connections that wait to be accepted
_LONGEST_HEADERS = 1 << 16  # bytes, as RFC 9113, 6.5.2, counts them; above it the call is refused
_MOST_HEADERS = 1 << 20  # and above this the connection ends: only an attack on the memory has them
_PREFACE, _HEADER = 24, 9  # bytes, of a connection and of a frame
_LONGEST_FRAME = 1 << 14  # bytes of a frame that we receive, without its header: RFC 9113, 6.5.2
_DATA, _GOAWAY, _WINDOW_UPDATE = 0, 7, 8  # types of frames
_END_STREAM, _PADDED = 1, 8  # flags of a frame with data
_PREFIX = 5  # bytes before a message: whether it is compressed, and its length
# RFC 9113, 6.8: no call is lost by it, and the client opens no more. h2 itself would refuse all further frames.
_GO_AWAY = bytes((0, 0, 8, 7, 0, 0, 0, 0, 0)) + (2**31 - 1).to_bytes(4, "big") + bytes(4)
_HEAD = [(b":status", b"200"), (b"content-type", b"application/grpc")]
# For a header against the rules, such as a space at an end, h2 would end the connection, and Envoy passes on a
# `tracestate` as its client wrote it.
_CONFIG = H2Configuration(
    client_side=False,
    header_encoding="latin-1",
    validate_inbound_headers=False,
    normalize_inbound_headers=False,
    validate_outbound_headers=False,
    normalize_outbound_headers=False,
)


class _Http2(H2Connection):
    MAX_CLOSED_STREAMS = 1 << 12  # that it remembers, in 200 bytes each; by default 16 times as many


def _frame(kind: int, stream: int, payload: bytes, flags: int = 0) -> bytes:
    return b"%b%c%c%b%b" % (len(payload).to_bytes(3, "big"), kind, flags, stream.to_bytes(4, "big"), payload)


class AbortedError(Exception):
    """A handler ended its call by `abort`."""


class Call:
    """A call as its handler sees it: an iterator over the client's messages, and the context to answer in."""

    def __init__(self, connection: _Connection, stream: int, metadata: tuple[tuple[str, str], ...]) -> None:
        self._connection, self.stream, self._metadata = connection, stream, metadata
        self._messages = deque[bytes]()
        self._partial = bytearray()
        self._waiting = 0  # bytes of `_messages`, with their prefixes
        self._uncredited = 0  # bytes received since the last credit
        self._arrival: asyncio.Future[None] | None = None
        self._serialize: Any = None
        self.has_ended = False  # the client sends no more
        self.is_closed = False  # nothing can be sent any more
        self._is_headed = False

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._metadata

    def auth_context(self) -> Mapping[str, Any]:
        """Empty: nobody is known by a certificate here."""
        return {}

    def __aiter__(self) -> Call:
        return self

    async def __anext__(self) -> bytes:
        while not self._messages:
            if self.has_ended:
                raise StopAsyncIteration
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        message = self._messages.popleft()
        self._waiting -= _PREFIX + len(message)
        self._credit()
        return message

    async def write(self, message: Any) -> None:
        """Send a message; waits while the client takes none. Without effect where the call is over."""
        if self.is_closed:
            return
        data: bytes = message if self._serialize is None else self._serialize(message)
        if not self._is_headed:
            self._is_headed = True
            self._connection.h2.send_headers(self.stream, _HEAD)
        await self._connection.send(self, b"\0" + len(data).to_bytes(4, "big") + data)

    async def abort(self, code: grpc.StatusCode, details: str = "") -> None:
        self.finish(code, details)
        raise AbortedError

    def finish(self, code: grpc.StatusCode, details: str = "") -> None:
        """End the call with a status. Idempotent."""
        if self.is_closed:
            return
        self.is_closed = True
        trailers = [(b"grpc-status", str(code.value[0]).encode())]
        if details:
            trailers.append((b"grpc-message", quote(details, safe=" ").encode()))
        h2 = self._connection.h2
        h2.send_headers(self.stream, trailers if self._is_headed else [*_HEAD, *trailers], end_stream=True)
        if not self.has_ended:  # the client stops sending
            h2.reset_stream(self.stream, ErrorCodes.NO_ERROR)
        self._connection.flush()

    def feed(self, data: bytes, longest: int) -> None:
        """Take received bytes; *longest*: bytes of a message."""
        partial = self._partial
        partial += data
        while len(partial) >= _PREFIX:
            size = int.from_bytes(partial[1:_PREFIX], "big")
            if partial[0]:
                return self._refuse(grpc.StatusCode.UNIMPLEMENTED, "compressed messages are not supported")
            if size > longest:
                return self._refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, f"a message has more than {longest} bytes")
            if len(partial) < _PREFIX + size:
                break
            self._messages.append(bytes(partial[_PREFIX : _PREFIX + size]))
            self._waiting += _PREFIX + size
            del partial[: _PREFIX + size]
        if self._messages:
            self._wake()
        return None

    def end_input(self) -> None:
        self.has_ended = True
        self._wake()

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def count(self, size: int) -> None:
        """Count received bytes that `h2` does not."""
        self._uncredited += size
        if self._uncredited > WINDOW:
            self._refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, "more was sent than the window allows")
        self._credit()

    def _refuse(self, code: grpc.StatusCode, details: str) -> None:
        self.finish(code, details)
        self._connection.cancel(self.stream)

    def _credit(self) -> None:
        """Let the client send more, unless the handler is behind."""
        if self._uncredited >= WINDOW // 2 and self._waiting < WINDOW and not (self.has_ended or self.is_closed):
            self._connection.open_window(self.stream, self._uncredited)
            self._uncredited = 0

    async def serve(self, handler: grpc.RpcMethodHandler[Any, Any] | None) -> None:
        """Run *handler* to its end; CancelledError where the client is gone."""
        code, details = grpc.StatusCode.OK, ""
        try:
            if handler is None:
                code, details = grpc.StatusCode.UNIMPLEMENTED, "unknown method"
            else:
                await self._run(handler)
        except AbortedError:
            pass
        except asyncio.CancelledError:
            code, details = grpc.StatusCode.UNAVAILABLE, "the server is shutting down"
            raise
        except Exception as error:  # noqa: BLE001 - a fault of a handler ends its call alone
            _report(error)
            code, details = grpc.StatusCode.UNKNOWN, "a fault of the server"
        finally:
            self.finish(code, details)

    async def _run(self, handler: grpc.RpcMethodHandler[Any, Any]) -> None:
        self._serialize, read = handler.response_serializer, handler.request_deserializer
        # The stubs know the signatures of the library's blocking servers alone.
        method: Any = handler.stream_stream or handler.unary_unary or handler.unary_stream or handler.stream_unary
        if handler.request_streaming:
            replies = method(self if read is None else _deserialize(self, read), self)
        else:
            raw = await anext(self, None)
            if raw is None:
                return await self.abort(grpc.StatusCode.INTERNAL, "no request")
            replies = method(raw if read is None else read(raw), self)
        if isinstance(replies, AsyncIterator):
            async for reply in replies:
                await self.write(reply)
        else:
            reply = await replies
            if not handler.response_streaming:
                await self.write(reply)
        return None


def _report(error: Exception) -> None:
    # Not log.exception: an exception's text may quote a person's words.
    log.error("server.call_failed", kind=type(error).__name__, at=locate_error(error))


async def _deserialize(messages: AsyncIterator[bytes], read: Any) -> AsyncIterator[Any]:
    async for one in messages:
        yield read(one)


def _settings(streams: int) -> Settings:
    return Settings(
        client=False,
        initial_values={
            SettingCodes.INITIAL_WINDOW_SIZE: WINDOW,
            SettingCodes.MAX_CONCURRENT_STREAMS: streams,
            SettingCodes.MAX_HEADER_LIST_SIZE: _LONGEST_HEADERS,
        },
    )


class _Connection(asyncio.Protocol):
    def __init__(self, server: PlaintextServer) -> None:
        self._server = server
        self.h2 = _Http2(_CONFIG)
        self.h2.local_settings = _settings(server.streams)
        self.h2.decoder.max_header_list_size = _MOST_HEADERS
        self.calls: dict[int, tuple[Call, asyncio.Task[None]]] = {}
        self._rest, self._is_greeted = b"", False
        self._uncredited = 0  # bytes received since the last credit
        self._room = asyncio.Event()  # set when a waiting `send` should look again
        self._is_paused = False
        self._has_heard = False  # the client, that it shall open no more calls
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # by uvloop, of no such class
        self._server.connections.add(self)
        self._timer = asyncio.get_running_loop().call_later(_HANDSHAKE, self._transport.abort)
        self.h2.initiate_connection()
        # `_open` keeps the limit: h2 would end the connection of a client that does not know it yet.
        self.h2.local_settings = _settings(2**31 - 1)
        self.h2.increment_flow_control_window(_CONNECTION_WINDOW)
        self.flush()
        if self._server.is_stopping:
            self.go_away()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._timer.cancel()
        self._server.forget(self)
        self._cancel_all()

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._room.set()

    def data_received(self, data: bytes) -> None:
        if self._is_paused and self._transport.get_write_buffer_size() > _MOST_UNSENT:
            self._transport.abort()  # it asks (pings) and reads no answer
            return
        data = self._rest + data if self._rest else data
        try:
            self._rest = data[self._read_frames(data) :]
        except ProtocolError:  # of the client; h2 has written the reason
            self._cancel_all()
            self.flush()
            self._transport.close()
            return
        self.flush()

    def _read_frames(self, data: bytes) -> int:
        """Take the whole frames at the beginning of *data*; where the next one begins."""
        at = 0
        if not self._is_greeted:
            if len(data) < _PREFACE:
                return 0
            self._pass_to_h2(data[:_PREFACE])
            self._is_greeted, at = True, _PREFACE
        while len(data) - at >= _HEADER:
            size = int.from_bytes(data[at : at + 3], "big")
            end = at + _HEADER + size
            if size > _LONGEST_FRAME:
                end = len(data)  # h2 refuses it
            elif end > len(data):
                break
            kind = data[at + 3]
            call = self._call(int.from_bytes(data[at + 5 : at + 9], "big")) if kind == _DATA else None
            if kind == _GOAWAY:
                pass  # the client makes no more calls; h2 would end the open calls
            elif call is None or call.has_ended or call.is_closed:
                self._pass_to_h2(data[at:end])
            else:
                self._take_data(call, data[at + 4], data[at + _HEADER : end])
            at = end
        return at

    def _take_data(self, call: Call, flags: int, data: bytes) -> None:
        size = len(data)
        if flags & _PADDED:
            if not data or data[0] >= size:
                return self._pass_to_h2(_frame(_DATA, call.stream, data, flags))  # it refuses it
            data = data[1 : size - data[0]]
        self._uncredited += size
        if self._uncredited >= _CONNECTION_WINDOW // 2:
            self.open_window(0, self._uncredited)
            self._uncredited = 0
        call.feed(data, self._server.longest)
        if not flags & _END_STREAM:
            call.count(size)
        elif not call.is_closed:
            self._pass_to_h2(_frame(_DATA, call.stream, b"", _END_STREAM))
        return None

    def open_window(self, stream: int, size: int) -> None:
        """Let the client send *size* bytes more, of those that `h2` does not count."""
        self._transport.write(_frame(_WINDOW_UPDATE, stream, size.to_bytes(4, "big")))

    def _pass_to_h2(self, data: bytes) -> None:
        for event in self.h2.receive_data(data):
            self._take(event)

    def _take(self, event: Event) -> None:
        match event:
            case DataReceived():  # of a call that is over
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case RequestReceived():
                self._open(event.stream_id, [(str(name), str(value)) for name, value in event.headers])
            case StreamEnded():
                call = self._call(event.stream_id)
                if call is not None:
                    call.end_input()
            case StreamReset():
                self.cancel(event.stream_id)
            case RemoteSettingsChanged():
                if not self._server.is_stopping:
                    self._timer.cancel()
                self._room.set()
            case WindowUpdated():
                self._room.set()
            case PingAckReceived() if self._server.is_stopping:
                self._close_when_over()

    def _call(self, stream: int | None) -> Call | None:
        found = None if stream is None else self.calls.get(stream)
        return None if found is None else found[0]

    def _open(self, stream: int, headers: Sequence[tuple[str, str]]) -> None:
        if len(self.calls) >= self._server.streams:
            # Calls that were reset count until their handlers have ended: resets are no way around the limit
            # (CVE-2023-44487).
            self.h2.reset_stream(stream, ErrorCodes.REFUSED_STREAM)
            return
        # h2 would compare it with the data that passes beside it.
        self.h2.streams[stream]._expected_content_length = None  # noqa: SLF001
        named = dict(headers)
        if not named.get("content-type", "").startswith("application/grpc"):
            self.h2.send_headers(stream, [(b":status", b"415")], end_stream=True)
            self.h2.reset_stream(stream, ErrorCodes.NO_ERROR)
            return
        call = Call(self, stream, tuple(pair for pair in headers if not pair[0].startswith(":")))
        if sum(len(name) + len(value) + 32 for name, value in headers) > _LONGEST_HEADERS:
            call.finish(grpc.StatusCode.RESOURCE_EXHAUSTED, f"the metadata has more than {_LONGEST_HEADERS} bytes")
            return
        handler = self._server.find_handler(named.get(":path", ""), call)
        task = asyncio.get_running_loop().create_task(call.serve(handler))
        self.calls[stream] = call, task
        task.add_done_callback(lambda _: self._forget(stream))

    def _forget(self, stream: int) -> None:
        self.calls.pop(stream, None)
        if self._has_heard:
            self._close_when_over()

    def cancel(self, stream: int | None) -> None:
        found = None if stream is None else self.calls.get(stream)
        if found is not None:
            call, task = found
            call.is_closed = True
            task.cancel()

    def _cancel_all(self) -> None:
        for stream in list(self.calls):
            self.cancel(stream)
        self._room.set()

    async def send(self, call: Call, data: bytes) -> None:
        self.flush()
        connection = self.h2
        stream, start = connection.streams[call.stream], 0
        while start < len(data) and not call.is_closed:
            room = min(connection.outbound_flow_control_window, stream.outbound_flow_control_window)
            if room <= 0 or self._is_paused:
                self._room.clear()
                await self._room.wait()
                continue
            piece = data[start : start + min(room, connection.max_outbound_frame_size)]
            connection.outbound_flow_control_window -= len(piece)
            stream.outbound_flow_control_window -= len(piece)
            self._transport.write(_frame(_DATA, call.stream, piece))
            start += len(piece)

    def flush(self) -> None:
        data = self.h2.data_to_send()
        if data:
            self._transport.write(data)

    def go_away(self) -> None:
        """Ask for no more calls, and close once those are over which the client opened before it heard of that."""
        if self._transport.is_closing():
            return
        self._transport.write(_GO_AWAY)
        self.h2.ping(b"goodbye.")
        self.flush()
        self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(_FAREWELL, self._close_when_over)

    def _close_when_over(self) -> None:
        self._has_heard = True
        if not self.calls:
            self.close()

    def close(self) -> None:
        self._transport.close()


class PlaintextServer:
    """A server like grpc.aio's, for handlers of that library."""

    def __init__(self, *, longest: int, streams: int) -> None:
        """*longest*: bytes of a message; *streams*: calls of a connection at once."""
        self.longest, self.streams = longest, streams
        self.connections: set[_Connection] = set()
        self.is_stopping = False
        self._handlers: list[grpc.GenericRpcHandler[Any, Any]] = []
        self._sockets: list[socket.socket] = []
        self._listening: list[asyncio.Server] = []
        self._is_idle = asyncio.Event()  # while stopping, set once no connection is left

    def forget(self, connection: _Connection) -> None:
        self.connections.discard(connection)
        if self.is_stopping and not self.connections:
            self._is_idle.set()

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Sequence[grpc.GenericRpcHandler[Any, Any]]) -> None:
        self._handlers += generic_rpc_handlers

    def add_registered_method_handlers(self, _service: str, _handlers: Mapping[str, object]) -> None:
        """Does nothing: generated code registers the same methods as generic handlers too."""

    def find_handler(self, path: str, call: Call) -> grpc.RpcMethodHandler[Any, Any] | None:
        details = _Details(path, call.invocation_metadata())
        return next((found for one in self._handlers if (found := one.service(details)) is not None), None)

    def add_insecure_port(self, address: str) -> int:
        """Bind to *address*, host:port or unix:/path; the port, 1 for a path. OSError where it is taken."""
        try:
            return self._bind(address)
        except OSError:
            self._close_sockets()
            raise

    def _bind(self, address: str) -> int:
        if address.startswith("unix:"):
            self._sockets.append(_bind_path(Path(address.removeprefix("unix:"))))
            return 1
        host, _, text = address.rpartition(":")
        host, port = host.strip("[]"), int(text)
        if host in ("", "0.0.0.0", "::") and socket.has_dualstack_ipv6():  # noqa: S104 - the operator's choice
            found = [(socket.AF_INET6, "::")]
        else:
            found = [(family, str(where[0])) for family, *_, where in socket.getaddrinfo(host, port)]
        self._sockets += bind_tcp(found, port)
        return int(self._sockets[-1].getsockname()[1])

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        for bound in self._sockets:
            made = loop.create_unix_server if bound.family == socket.AF_UNIX else loop.create_server
            self._listening.append(await made(lambda: _Connection(self), sock=bound, backlog=_BACKLOG))

    async def stop(self, grace: float) -> None:
        """Take no more connections, let open calls end within *grace* seconds, and cancel the others."""
        self.is_stopping = True
        for one in self._listening:
            one.close()
        for connection in list(self.connections):
            connection.go_away()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                if self.connections:
                    await self._is_idle.wait()
        running = self._running()
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        for connection in list(self.connections):
            connection.close()

    def _close_sockets(self) -> None:
        for one in self._sockets:
            one.close()

    def _running(self) -> list[asyncio.Task[None]]:
        return [task for connection in self.connections for _, task in connection.calls.values()]


class _Details(grpc.HandlerCallDetails):
    def __init__(self, method: str, metadata: tuple[tuple[str, str], ...]) -> None:
        self.method, self.invocation_metadata = method, metadata


def bind_tcp(addresses: Iterable[tuple[int, str]], port: int) -> list[socket.socket]:
    """Sockets that listen on *addresses*, (family, address), with one port. OSError where it is taken.

    An address that this machine lacks is skipped if it has another: `localhost` is often ::1 too where there is no
    IPv6."""
    bound: list[socket.socket] = []
    missing: OSError | None = None
    for family, address in dict.fromkeys(addresses):
        try:
            dual = address == "::" and socket.has_dualstack_ipv6()
            one = socket.create_server((address, port), family=family, backlog=_BACKLOG, dualstack_ipv6=dual)
        except OSError as error:
            if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                missing = error
                continue
            for each in bound:
                each.close()
            raise
        _probe_peers(one)
        bound.append(one)
        port = one.getsockname()[1]
    if missing is not None and not bound:
        raise missing
    return bound


def _probe_peers(listening: socket.socket) -> None:
    """Let connections end in two minutes whose client vanished without a word, with its machine or its network."""
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # accepted sockets inherit these
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 20), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            listening.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _bind_path(path: Path) -> socket.socket:
    with suppress(FileNotFoundError):  # left behind by a process that was killed
        if stat.S_ISSOCK(path.stat().st_mode):
            path.unlink()
    bound = socket.socket(socket.AF_UNIX)
    try:
        bound.bind(str(path))
        bound.listen(_BACKLOG)
    except OSError:
        bound.close()
        raise
    return bound
