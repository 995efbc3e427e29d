"""Two sidecars, each behind an Envoy of its own, on one Milvus and a Redis of their own that loses its data."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
from redis.asyncio import Redis

from tests.support.envoy import Envoy
from tests.support.faults import ASKED, BUDGET, FaultStand, Link
from tests.support.ports import free_port
from tests.support.redis import start_redis, stop_redis
from tests.support.waiting import until

pytestmark = [pytest.mark.envoy, pytest.mark.redis]


@pytest.fixture
async def operator(tmp_path: Path) -> AsyncIterator[Redis]:
    (directory := tmp_path / "redis").mkdir()
    server = start_redis(directory, lasting=True, port=free_port())
    try:
        async with Redis.from_url(server.url) as made:
            yield made
    finally:
        stop_redis(server)


@pytest.fixture
async def pair(
    operator: Redis, faulty: FaultStand, link: Link, envoy_binary: Path, int8_model_dir: Path, tmp_path: Path
) -> AsyncIterator[tuple[FaultStand, FaultStand]]:
    """Started."""
    (scratch := tmp_path / "second").mkdir()
    name = f"replicas_{uuid4().hex}"
    port = operator.connection_pool.connection_kwargs["port"]
    async with FaultStand(Envoy(envoy_binary, scratch), scratch, int8_model_dir.parent, faulty.logs) as second:
        for one in (faulty, second):
            one.change(
                memory={"milvus": {"address": f"127.0.0.1:{link.port}", "collection": name}},
                coordination={"url": f"redis://127.0.0.1:{port}/0", "prefix": name, "timeout": "500ms"},
            )
            await one.start()
        yield faulty, second


async def test_a_turn_that_waited_for_the_store_outlives_the_journal_that_held_it(
    pair: tuple[FaultStand, FaultStand], link: Link, operator: Redis
) -> None:
    first, second = pair
    await link.cut()
    await first.say(BUDGET)
    await until(lambda: first.accepted == 1, "it is in the journal")
    await operator.flushall()
    await until(
        lambda: sum(one.sample("coordination_losses_total", kind="wiped") for one in pair), "a replica has noticed"
    )
    await link.mend()
    await until(lambda: first.kept + second.kept >= 1, "it is stored", seconds=60)

    async def recalled() -> bool:
        await second.say(ASKED)
        return "$10,000" in second.shown

    await until(recalled, "the other knows it", seconds=30)
    assert (await first.memories()).count(BUDGET) == 1
