from __future__ import annotations

import asyncio
import socket
import urllib.error
import urllib.request
from contextlib import AsyncExitStack

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from memory_extproc.errors import ConfigurationError
from memory_extproc.observe.http import OperationsEndpoint
from memory_extproc.observe.metrics import Metrics


async def test_operators_find_metrics_health_and_the_reason_for_not_being_ready() -> None:
    metrics = Metrics(CollectorRegistry(), "1.2.3")
    reasons = ["the journal is locked"]
    async with (
        OperationsEndpoint("127.0.0.1", 0, metrics.registry, lambda: reasons[-1]) as endpoint,
        aiohttp.ClientSession(f"http://127.0.0.1:{endpoint.port}") as session,
    ):
        async with session.get("/readyz") as answer:
            assert (answer.status, await answer.text()) == (503, "the journal is locked\n")
        async with session.get("/healthz") as answer:
            assert answer.status == 200
        reasons.append("")
        async with session.get("/readyz") as answer:
            assert (answer.status, await answer.text()) == (200, "ready\n")
        async with session.get("/metrics") as answer:
            assert answer.headers["content-type"].startswith("text/plain; version=")
            assert 'memory_extproc_build_info{version="1.2.3"} 1.0' in await answer.text()


@pytest.mark.parametrize("host", ["127.0.0.1", "203.0.113.1"])
async def test_a_port_that_cannot_be_had_is_a_fault_that_names_it(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        endpoint = OperationsEndpoint(host, port, CollectorRegistry(), lambda: "")
        with pytest.raises(ConfigurationError, match=f"listen.http: cannot listen on {host}:{port}"):
            await endpoint.__aenter__()


async def test_connections_that_never_finish_their_request_make_room_for_others() -> None:
    async with (
        AsyncExitStack() as stack,
        OperationsEndpoint("127.0.0.1", 0, CollectorRegistry(), lambda: "", connections=4) as endpoint,
    ):
        slow: list[asyncio.StreamReader] = []
        async with asyncio.timeout(30):
            for _ in range(20):
                reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
                stack.callback(writer.close)
                writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                await reader.readuntil(b"ok\n")  # so that it is known there before the next one comes
                writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: ")
                await writer.drain()
                slow.append(reader)
            for reader in slow[:16]:  # all but the last four
                assert await reader.read() == b""
            async with (
                aiohttp.ClientSession(f"http://127.0.0.1:{endpoint.port}") as session,
                session.get("/readyz") as answer,
            ):
                assert answer.status == 200
        assert not slow[-1].at_eof()


async def test_health_is_answered_while_the_event_loop_is_busy_and_fails_when_it_stalls() -> None:
    time = [0.0]
    endpoint = OperationsEndpoint("127.0.0.1", 0, CollectorRegistry(), lambda: "", clock=lambda: time[0])

    def ask(path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{endpoint.port}{path}", timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    async with endpoint:
        # From here on to the end of these lines the event loop does nothing else: it does not beat.
        assert ask("/healthz") == (200, "ok\n")
        time[0] += 9.9
        assert ask("/healthz")[0] == ask("/readyz")[0] == 200
        time[0] += 0.2
        for path in ("/healthz", "/readyz"):
            assert ask(path) == (503, "the event loop has not run for 10 s (health.stall)\n")
