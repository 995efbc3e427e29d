"""Where token keys come from: a file and a URL, held to the same promises."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from memory_extproc.errors import TransientError
from memory_extproc.request.jwt import MAX_KEYS_BYTES, ReadKeys, keys_at_url, keys_in_file


class File:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.read: ReadKeys = keys_in_file(path)

    async def serve(self, content: bytes | None) -> None:
        if content is None:
            self._path.unlink()
        else:
            self._path.write_bytes(content)


class Server:
    def __init__(self) -> None:
        self.content: bytes | None = b""
        self.status = 200
        self.read: ReadKeys

    async def serve(self, content: bytes | None) -> None:
        self.content = content

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/elsewhere":
            return web.Response(body=b"other keys")
        if self.status == 302:
            raise web.HTTPFound("/elsewhere")
        if self.content is None:
            return web.Response(status=503)
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        for at in range(0, len(self.content), 1000):
            await response.write(self.content[at : at + 1000])
        return response


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    served = Server()
    app = web.Application()
    app.router.add_get("/{tail:.*}", served.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    served.read = keys_at_url(f"http://127.0.0.1:{runner.addresses[0][1]}/keys")
    yield served
    await runner.cleanup()


@pytest.fixture(params=["file", "url"])
def source(request: pytest.FixtureRequest, tmp_path: Path, server: Server) -> File | Server:
    return File(tmp_path / "keys.json") if request.param == "file" else server


async def test_the_document_is_read_whole_each_time(source: File | Server) -> None:
    for content in (b"one", b"two" * 5000):
        await source.serve(content)
        assert await source.read() == content


async def test_a_source_that_is_gone_may_come_back(source: File | Server) -> None:
    await source.serve(b"one")
    await source.serve(None)
    with pytest.raises(TransientError):
        await source.read()
    await source.serve(b"two")
    assert await source.read() == b"two"


async def test_a_document_without_end_is_not_read_to_its_end(server: Server) -> None:
    await server.serve(b"x" * (2 * MAX_KEYS_BYTES))
    assert len(await server.read()) == MAX_KEYS_BYTES + 1


async def test_a_redirect_is_not_followed(server: Server) -> None:
    server.status = 302
    with pytest.raises(TransientError, match="302"):
        await server.read()


async def test_a_server_that_cannot_be_reached_is_a_fault_that_may_pass() -> None:
    with pytest.raises(TransientError, match="cannot be reached"):
        await keys_at_url("http://127.0.0.1:1/keys")()
