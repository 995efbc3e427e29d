"""Crowds: requests by the thousand that nobody waits for, and more than a sidecar serves while its Redis hangs. The
others get their answers, health is answered, nothing that was taken in is lost, and nothing stays behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest

from tests.envoy.test_wire_server import SERVING, health
from tests.support.envoy import Wiring, a_chat
from tests.support.faults import FaultStand, Link
from tests.support.faults_process import Child, a_child
from tests.support.load import Load, fact, streaming
from tests.support.redis import RedisServer
from tests.support.waiting import until

pytestmark = pytest.mark.envoy

CROWD = 1_000
MIB = 1024.0  # of /proc, in KiB
BODY = json.dumps(a_chat("What is my locker's number in Hawaii?")).encode()
# As `envoy-config` writes it.
GATEWAY = Wiring(failure_mode_allow=True, attributes=("request.time",))


async def abandon(port: int, number: int, body: bytes) -> None:
    """Send a request's headers and *body*, which may be a part of what they announce, and reset the connection."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n"
        f"x-authz-user-id: crowd-{number}\r\ncontent-length: {len(BODY)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    await writer.drain()
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


@contextlib.asynccontextmanager
async def watched(child: Child) -> AsyncIterator[None]:
    """Its health is asked for all the time, by both ways."""
    over = asyncio.Event()

    async def watch() -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{child.ext_proc}") as channel:
            while not over.is_set():
                async with asyncio.timeout(5):  # as Envoy's health checks
                    assert await health(channel, "readiness") == SERVING
                    assert (await child.ask("/readyz"))[0] == 200

    async with asyncio.TaskGroup() as group:
        group.create_task(watch())
        yield
        over.set()


def handles(child: Child) -> int:
    return len(list(Path(f"/proc/{child.pid}/fd").iterdir()))


def resident(child: Child) -> float:
    status = Path(f"/proc/{child.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / MIB


@pytest.mark.parametrize("sent", [b"", BODY[:30], BODY], ids=["headers", "part of a body", "whole"])
async def test_a_thousand_requests_that_their_clients_abandon_harm_nobody_and_leave_nothing(
    faulty: FaultStand, sent: bytes
) -> None:
    async with a_child(faulty, learn={"extractor": "off"}) as child:
        faulty.upstream.answers = streaming(0.02)
        await child.serving()
        await faulty.start_around(child.ext_proc, wiring=GATEWAY)
        load = Load(faulty)
        async with load.running(), watched(child):
            await load.more()
            before = handles(child), resident(child)
            for _ in range(2):
                await asyncio.gather(*(abandon(faulty.envoy.front, at, sent) for at in range(CROWD)))
                await load.more()

        async def gone() -> bool:
            return await child.sample("streams_open") == 0 == await child.sample("process_bytes")

        await until(gone, "no stream is open and no byte is held", seconds=20)
        assert handles(child) <= before[0] + 8, "a few files of the store"
        assert resident(child) <= before[1] + 64


async def test_a_redis_that_hangs_while_there_are_more_requests_than_it_serves_costs_no_turn(
    faulty: FaultStand, redis_server: RedisServer
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        link = await stack.enter_async_context(Link(redis_server.port))
        redis = {"url": f"redis://127.0.0.1:{link.port}/7"}
        child = await stack.enter_async_context(a_child(faulty, coordination=redis, learn={"extractor": "off"}))
        await child.serving()
        await faulty.start_around(child.ext_proc, wiring=GATEWAY)
        over, outcomes = asyncio.Event(), Counter[str]()

        async def talk(who: int) -> None:
            said = 0
            while not over.is_set():
                said += 1
                answer = await faulty.say(fact(1_000 * who + said), user=f"user-{who}-{said % 9}")
                assert answer.status == 200
                outcomes[answer.memory.partition(";")[0]] += 1

        async def more(count: int) -> None:
            least = outcomes.total() + count
            await until(lambda: outcomes.total() >= least, "there is traffic", seconds=30)

        async with asyncio.TaskGroup() as group, watched(child):
            for who in range(24):
                group.create_task(talk(who))
            await more(100)
            link.stall()
            await more(300)
            await link.mend()
            await more(100)
            over.set()
        read = await child.sample('arm_exchanges_total{arm="memory",tenant="other"}')
        assert 0 < read <= outcomes.total()

        async def learned() -> bool:
            return await child.sample('remembered_total{decision="kept",role="user"}') == read

        await until(learned, "all is learned", seconds=90)
        assert await child.sample("journal_dead_letters") == 0
