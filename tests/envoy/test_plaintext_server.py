"""The server of plaintext addresses against a client of grpc.aio, and against bare frames."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import pytest
import uvloop
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RemoteSettingsChanged,
    ResponseReceived,
    StreamReset,
    TrailersReceived,
)
from h2.settings import SettingCodes

from memory_extproc.extproc.http2 import WINDOW, Call, PlaintextServer, bind_tcp
from tests.support.waiting import until

LONGEST = 4 * WINDOW


def framed(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


@dataclass
class Desk:
    """A server with an echo and a method that waits for ever, and what became of their calls."""

    server: PlaintextServer
    port: int = 0
    waiting: int = 0
    cancelled: int = 0
    released: asyncio.Event = field(default_factory=asyncio.Event)

    async def echo(self, messages: AsyncIterator[bytes], call: Call) -> None:
        async for message in messages:
            await call.write(message)

    async def park(self, _messages: AsyncIterator[bytes], _call: Call) -> None:
        self.waiting += 1
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.waiting -= 1

    async def refuse(self, _message: bytes, call: Call) -> None:
        await call.abort(grpc.StatusCode.NOT_FOUND, "nothing is called 5 % here")

    async def break_down(self, _message: bytes, _call: Call) -> bytes:
        raise ValueError("a person's words")


@contextlib.asynccontextmanager
async def a_desk(*, streams: int = 100, grace: float = 5.0) -> AsyncIterator[Desk]:
    desk = Desk(PlaintextServer(longest=LONGEST, streams=streams))
    methods = {
        "Echo": grpc.stream_stream_rpc_method_handler(desk.echo),
        "Park": grpc.stream_stream_rpc_method_handler(desk.park),
        "Refuse": grpc.unary_unary_rpc_method_handler(desk.refuse),
        "Break": grpc.unary_unary_rpc_method_handler(desk.break_down),
    }
    desk.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s", methods),))
    desk.port = desk.server.add_insecure_port("127.0.0.1:0")
    await desk.server.start()
    try:
        yield desk
    finally:
        desk.released.set()
        await desk.server.stop(grace)


@contextlib.asynccontextmanager
async def a_channel(desk: Desk) -> AsyncIterator[Any]:
    options = [("grpc.max_receive_message_length", LONGEST), ("grpc.max_send_message_length", 2 * LONGEST)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{desk.port}", options=options) as channel:
        yield channel


class Bare:
    """A client that sends frames as a test wants them."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.h2 = H2Connection(
            H2Configuration(client_side=True, validate_outbound_headers=False, normalize_outbound_headers=False)
        )
        self.events: list[Event] = []
        self.is_over = False
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await self._reader.readexactly(9)
                self._take(head, await self._reader.readexactly(int.from_bytes(head[:3], "big")))
        self.is_over = True

    def _take(self, head: bytes, payload: bytes) -> None:
        if head[3] == 7:  # GOAWAY: to h2 that is the end; on the wire, open calls go on
            self.events.append(ConnectionTerminated())
            return
        for event in self.h2.receive_data(head + payload):
            self.events.append(event)
            if isinstance(event, DataReceived) and event.stream_id is not None:
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        self.send()

    def send(self, more: bytes = b"") -> None:
        self._writer.write(self.h2.data_to_send() + more)

    def open(self, method: str = "Echo", **more: str) -> int:
        """*more*: further headers, or others of the usual ones, "" for none; `_` for a hyphen."""
        stream: int = self.h2.get_next_available_stream_id()
        pseudo = {"method": "POST", "scheme": "http", "authority": "s", "path": f"/s/{method}"}
        usual = {**{f":{name}": value for name, value in pseudo.items()}, "content-type": "application/grpc"}
        headers = {**usual, "te": "trailers", **{name.replace("_", "-"): value for name, value in more.items()}}
        self.h2.send_headers(stream, [(name, value) for name, value in headers.items() if value])
        return stream

    def received(self, stream: int) -> bytes:
        return b"".join(
            one.data for one in self.events if isinstance(one, DataReceived) and one.stream_id == stream
        )

    def has(self, kind: type[Any], stream: int | None = None) -> bool:
        return any(isinstance(one, kind) and (stream is None or one.stream_id == stream) for one in self.events)

    def status(self, stream: int) -> str | None:
        for one in self.events:
            if isinstance(one, TrailersReceived | ResponseReceived) and one.stream_id == stream:
                status = dict(one.headers).get(b"grpc-status")
                if status is not None:
                    return status.decode()
        return None

    async def close(self) -> None:
        self._writer.close()
        await self._reading


@contextlib.asynccontextmanager
async def a_bare_client(desk: Desk, *, waits: bool = True) -> AsyncIterator[Bare]:
    client = Bare(*await asyncio.open_connection("127.0.0.1", desk.port))
    client.h2.initiate_connection()
    client.send()
    if waits:
        await until(lambda: client.has(RemoteSettingsChanged), "the server has said its settings")
    try:
        yield client
    finally:
        await client.close()


@pytest.mark.parametrize("size", [0, 1, 16_384, 70_000, WINDOW, LONGEST])
async def test_messages_of_every_size_pass_both_ways_again_and_again(size: int) -> None:
    """More than all windows together, so that a byte which is not credited would stop them."""
    async with a_desk() as desk, a_channel(desk) as channel:
        call = channel.stream_stream("/s/Echo")()
        for number in range(6):
            sent = bytes([number]) * size
            await call.write(sent)
            assert await call.read() == sent
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs lack it
        assert await call.code() is grpc.StatusCode.OK


async def test_many_calls_of_one_connection_do_not_mix() -> None:
    async def talk(channel: Any, name: bytes) -> None:
        call = channel.stream_stream("/s/Echo")()
        for number in range(40):
            sent = name * (1 + 500 * number)
            await call.write(sent)
            assert await call.read() == sent
        await call.done_writing()

    async with a_desk() as desk, a_channel(desk) as channel:
        await asyncio.gather(*(talk(channel, bytes([65 + number])) for number in range(20)))


async def test_calls_end_with_the_status_of_their_handler() -> None:
    async with a_desk() as desk, a_channel(desk) as channel:
        for method, code, details in (
            ("Refuse", grpc.StatusCode.NOT_FOUND, "nothing is called 5 % here"),
            ("Break", grpc.StatusCode.UNKNOWN, "a fault of the server"),
            ("Nothing", grpc.StatusCode.UNIMPLEMENTED, "unknown method"),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await channel.unary_unary(f"/s/{method}")(b"hi")
            assert (failed.value.code(), failed.value.details()) == (code, details)


async def test_a_message_above_the_limit_ends_its_call_alone() -> None:
    async with a_desk() as desk, a_channel(desk) as channel:
        other = channel.stream_stream("/s/Echo")()
        call = channel.stream_stream("/s/Echo")()
        await call.write(bytes(LONGEST + 1))
        assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await other.write(b"hi")
        assert await other.read() == b"hi"
        other.cancel()


async def test_compressed_messages_are_refused() -> None:
    async with a_desk() as desk, a_channel(desk) as channel:
        call = channel.stream_stream("/s/Echo")(compression=grpc.Compression.Gzip)
        await call.write(bytes(1000))
        assert await call.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_frames_are_read_wherever_the_network_cuts_them() -> None:
    """Byte by byte, with padding, and a message over several frames; the last frame ends the call."""
    async with a_desk() as desk, a_bare_client(desk) as client:
        stream = client.open()
        whole = framed(b"one") + framed(b"second")
        client.h2.send_data(stream, whole[:3])
        client.h2.send_data(stream, whole[3:12], pad_length=7)
        client.h2.send_data(stream, whole[12:], end_stream=True)
        for at in client.h2.data_to_send():
            client.send(bytes([at]))
            await asyncio.sleep(0)
        await until(lambda: client.status(stream) == "0", "the call ends")
        assert client.received(stream) == whole


async def test_who_takes_slowly_gets_everything() -> None:
    async with a_desk() as desk, a_bare_client(desk) as client:
        client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 10})
        stream = client.open()
        sent = framed(bytes(range(256)) * 4)
        client.h2.send_data(stream, sent, end_stream=True)
        client.send()
        await until(lambda: client.status(stream) == "0", "the call ends")
        assert client.received(stream) == sent


@pytest.mark.parametrize("padding", [b"", b"\x03"], ids=["", "padded"])
async def test_who_sends_more_than_the_window_is_refused(padding: bytes) -> None:
    async with a_desk() as desk, a_bare_client(desk) as client:
        stream = client.open("Park")
        client.send()
        await until(lambda: desk.waiting == 1, "the call is open")
        piece = padding + bytes(16_384 - len(padding))
        flags = b"\x08" if padding else b"\0"
        frame = len(piece).to_bytes(3, "big") + b"\0" + flags + stream.to_bytes(4, "big") + piece
        for _ in range(2 * WINDOW // len(piece) + 2):
            client.send(frame)
        await until(lambda: client.status(stream) == "8", "the call is refused")
        await until(lambda: desk.cancelled == 1, "its handler ends")


@pytest.mark.parametrize(
    "more",
    [
        {"tracestate": " a=b"},
        {"tracestate": "a=\xff"},
        {"tracestate": "a=b\r\nc: d"},
        {"te": "gzip"},
        {"connection": "close"},
        {"Upper": "1"},
        {"content_length": "7"},
        {":authority": ""},
        {"x_long": "a" * 60_000},
    ],
    ids=lambda more: next(iter(more)),
)
async def test_a_header_against_the_rules_ends_no_call(more: dict[str, str]) -> None:
    async with a_desk() as desk, a_bare_client(desk) as client:
        stream = client.open(**more)
        client.h2.send_data(stream, framed(b"hi"))
        client.send()
        await until(lambda: client.received(stream) == framed(b"hi"), "it is served")
        client.h2.end_stream(stream)
        client.send()
        await until(lambda: client.status(stream) == "0", "it ends well")


async def test_metadata_above_the_limit_end_their_call_alone() -> None:
    async with a_desk() as desk, a_bare_client(desk) as client:
        other, stream = client.open(), client.open(x_long="a" * 70_000)
        client.send()
        await until(lambda: client.status(stream) == "8", "the call is refused")
        client.h2.send_data(other, framed(b"hi"))
        client.send()
        await until(lambda: client.received(other) == framed(b"hi"), "the other goes on")


async def test_what_is_no_grpc_is_refused_as_http_says() -> None:
    """A health check by HTTP would else take any answer for health."""
    async with a_desk() as desk, a_bare_client(desk) as client:
        stream = client.open(content_type="text/plain")
        client.send()
        await until(lambda: client.has(ResponseReceived, stream), "it is answered")
        answer = next(one for one in client.events if isinstance(one, ResponseReceived))
        assert dict(answer.headers)[b":status"] == b"415"


async def test_a_reset_and_a_lost_connection_cancel_their_calls() -> None:
    async with a_desk() as desk:
        async with a_bare_client(desk) as client:
            first, _ = client.open("Park"), client.open("Park")
            client.send()
            await until(lambda: desk.waiting == 2, "both calls are open")
            client.h2.reset_stream(first)
            client.send()
            await until(lambda: desk.cancelled == 1, "the first is cancelled")
        await until(lambda: desk.cancelled == 2, "the second is cancelled")


async def test_no_more_calls_are_open_than_allowed_and_the_others_go_on() -> None:
    """By a client that does not know the limit yet."""
    async with a_desk(streams=3) as desk, a_bare_client(desk, waits=False) as client:
        streams = [client.open("Park") for _ in range(5)]
        client.send()
        await until(lambda: sum(client.has(StreamReset, one) for one in streams) == 2, "two are refused")
        assert desk.waiting == 3
        assert not client.is_over


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nhost: here\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((255, 255, 255, 0, 0, 0, 0, 0, 1)),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 3, 4, 0, 0, 0, 0, 0, 1, 1, 1)),
    ],
    ids=["another protocol", "a frame too long", "broken settings"],
)
async def test_what_is_no_http2_ends_the_connection(sent: bytes) -> None:
    async with a_desk() as desk:
        reader, writer = await asyncio.open_connection("127.0.0.1", desk.port)
        writer.write(sent)
        async with asyncio.timeout(30):
            await reader.read(-1)
        writer.close()
        await until(lambda: not desk.server.connections, "nothing is left of it")


async def test_a_client_that_goes_away_keeps_its_open_calls() -> None:
    async with a_desk() as desk, a_bare_client(desk) as client:
        stream = client.open()
        client.send(bytes((0, 0, 8, 7, 0, 0, 0, 0, 0)) + bytes(8))
        client.h2.send_data(stream, framed(b"hi"))
        client.send()
        await until(lambda: client.received(stream) == framed(b"hi"), "the call goes on")


async def test_stopping_lets_open_calls_end_and_cancels_the_others() -> None:
    async with a_desk() as desk, a_bare_client(desk) as client:
        stream = client.open()
        client.send()
        client.h2.send_data(stream, framed(b"hi"))
        client.send()
        await until(lambda: client.received(stream) == framed(b"hi"), "the call is open")
        stopping = asyncio.ensure_future(desk.server.stop(30.0))
        await until(lambda: client.has(ConnectionTerminated), "the client is told")
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", desk.port)
        client.send(b"\0\0\0\0\1" + stream.to_bytes(4, "big"))
        await stopping
        await until(lambda: client.is_over, "the connection is closed")
    async with a_desk(grace=0.0) as desk, a_bare_client(desk) as client:
        stream = client.open("Park")
        client.send()
        await until(lambda: desk.waiting == 1, "the call is open")
        await desk.server.stop(0.0)
        assert desk.cancelled == 1


async def test_a_call_that_was_opened_before_the_client_heard_of_the_end_is_served() -> None:
    async with a_desk() as desk, a_bare_client(desk) as client:
        stopping = asyncio.ensure_future(desk.server.stop(30.0))
        await asyncio.sleep(0)  # the server says that it ends, and nobody has read it yet
        stream = client.open()
        client.h2.send_data(stream, framed(b"hi"), end_stream=True)
        client.send()
        await until(lambda: client.status(stream) == "0", "the call is served")
        await stopping
        await until(lambda: client.is_over, "the connection is closed")


async def test_a_client_that_answers_nothing_does_not_delay_the_end() -> None:
    async with a_desk() as desk:
        _, writer = await asyncio.open_connection("127.0.0.1", desk.port)
        await until(lambda: len(desk.server.connections) == 1, "it is connected")
        async with asyncio.timeout(60):
            await desk.server.stop(3600.0)
        writer.close()


async def test_a_crowd_connects_at_once() -> None:
    """While the server is busy with something else, so that the connections wait to be accepted."""
    async with a_desk() as desk:
        for _ in range(500):
            socket.create_connection(("127.0.0.1", desk.port), timeout=30).close()


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6")
async def test_any_address_is_of_both_families() -> None:
    for address in ("0.0.0.0:0", "[::]:0", ":0"):
        server = PlaintextServer(longest=LONGEST, streams=1)
        port = server.add_insecure_port(address)
        await server.start()
        for host in ("127.0.0.1", "::1"):
            _, writer = await asyncio.open_connection(host, port)
            writer.close()
        await server.stop(0.0)


def test_an_address_that_the_machine_lacks_is_left_out_if_it_has_another() -> None:
    (bound,) = bind_tcp([(socket.AF_INET, "192.0.2.1"), (socket.AF_INET, "127.0.0.1")], 0)
    with bound:
        assert bound.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        with pytest.raises(OSError, match="in use"):
            bind_tcp([(socket.AF_INET, "127.0.0.1")], bound.getsockname()[1])
    with pytest.raises(OSError, match="assign"):
        bind_tcp([(socket.AF_INET, "192.0.2.1")], 0)


def test_the_loop_of_serve_serves_as_well() -> None:
    async def talk() -> None:
        async with a_desk() as desk, a_channel(desk) as channel:
            call = channel.stream_stream("/s/Echo")()
            await call.write(b"hi")
            assert await call.read() == b"hi"
            await call.done_writing()

    uvloop.run(talk())
