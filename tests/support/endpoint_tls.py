"""A stand-in for a model's endpoint that speaks TLS, and whatever else on the connection below it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.authority import Authority
from tests.support.endpoint import a_completion


@dataclass
class TlsStandIn:
    """Speaks TLS with a certificate."""

    base_url: str = ""
    asked: int = 0
    raw: bytes = b""  # instead of an answer, written to the connection as it is, which is closed then
    trickles: bool = False  # headers, and then a byte of the answer now and then


@asynccontextmanager
async def serving_tls(directory: Path, authority: Authority, name: str = "localhost") -> AsyncIterator[TlsStandIn]:
    server = TlsStandIn()
    talks: set[asyncio.Task[None]] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        own = asyncio.current_task()
        assert own is not None
        talks.add(own)
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await _answer(server, reader, writer)
        writer.transport.abort()

    listening = await asyncio.start_server(talk, "127.0.0.1", 0, ssl=_context(directory, authority, name))
    try:
        port = listening.sockets[0].getsockname()[1]
        server.base_url = f"https://localhost:{port}/v1"
        yield server
    finally:
        listening.close()
        for one in talks:
            one.cancel()
        await asyncio.gather(*talks, return_exceptions=True)


def _context(directory: Path, authority: Authority, name: str) -> ssl.SSLContext:
    key, certificate = authority.issue(name, name)
    chain = directory / "server.pem"
    chain.write_bytes(key + certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain)
    return context


async def _answer(server: TlsStandIn, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    server.asked += 1
    body = a_completion("Paris").body
    assert isinstance(body, str)
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode())
    if server.raw:
        writer.write(body[:10].encode())
        await writer.drain()
        with writer.get_extra_info("socket").dup() as below:  # past the encryption
            below.send(server.raw)
        return
    for part in body if server.trickles else (body,):
        writer.write(part.encode())
        await writer.drain()
        if server.trickles:
            await asyncio.sleep(0.05)
