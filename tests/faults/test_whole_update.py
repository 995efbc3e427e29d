"""An update as docs/operations.md says it, under load: sidecars on one Milvus and one Redis behind one Envoy, one
of them drained and replaced."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from uuid import uuid4

import pytest

from memory_extproc import app
from memory_extproc.model import Owner, Role, Source
from tests.support.envoy import Wiring
from tests.support.faults import FaultStand, Link
from tests.support.faults_process import a_child
from tests.support.load import Load, streaming
from tests.support.redis import RedisServer, redis_server
from tests.support.waiting import until

__all__ = ["redis_server"]
pytestmark = [pytest.mark.envoy, pytest.mark.redis]
USERS = [f"annabel.lee.{n}@example.com" for n in range(6)]


async def stored(reader: app.Sidecar) -> Counter[str]:
    """Every message of a caller's that rests in the store, in whatever state."""
    counted: Counter[str] = Counter()
    for user in USERS:
        async for page in reader.partitions.rows(Owner("", user)):
            counted.update(one.content for one in page if (one.role, one.source) == (Role.USER, Source.VERBATIM))
    return counted


async def test_an_update_under_load_fails_no_request_and_loses_and_doubles_no_turn(
    faulty: FaultStand, link: Link, redis_server: RedisServer
) -> None:
    name = f"update_{uuid4().hex}"
    faulty.change(
        memory={"milvus": {"address": f"127.0.0.1:{link.port}", "collection": name}},
        coordination={"url": redis_server.url, "prefix": name},
        shutdown={"announce": "2s"},
    )
    async with a_child(faulty, "first") as first, a_child(faulty, "stays") as stays, a_child(faulty, "new") as new:
        # Every third answer takes more than a second.
        faulty.upstream.answers = streaming(0.02, 0.02, 0.5)
        await asyncio.gather(first.serving(), stays.serving())
        ports = (first.ext_proc, stays.ext_proc, new.ext_proc)
        # It forgives no fault of ours, and a busy machine only.
        await faulty.start_around(*ports, wiring=Wiring(health_check=True, message_timeout="10s"))
        await until(lambda: only(faulty, 1), "two of three are healthy")
        load = Load(faulty, USERS)
        async with load.running(6):
            await asyncio.gather(load.more(24), new.serving())
            await until(lambda: faulty.envoy.healthy("sidecar"), "all three are healthy")
            first.signal(signal.SIGTERM)
            ended = await first.ended()
            await load.more(24)
        assert ended == 0
        assert len(load.through) == load.answered
        async with faulty.another("reader") as reader:

            async def all_there() -> bool:
                return set(load.through) <= set(await stored(reader))

            await until(all_there, "every turn is stored", seconds=30)
            assert await stored(reader) == Counter(load.through), "a turn is there twice"
        for _ in range(4):  # at both, in turn
            asked = await faulty.say("Which number has my locker?", user=USERS[0])
            assert asked.memory.startswith("used")


async def only(faulty: FaultStand, count: int) -> bool:
    return await faulty.envoy.unhealthy("sidecar") == count
