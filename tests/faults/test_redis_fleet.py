"""URLs of Redis, and a Redis of several servers: what the operator hears, and when a turn counts as accepted."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from memory_extproc.coordination.redis_client import RedisLink
from memory_extproc.errors import TransientError
from memory_extproc.journal.redis import RedisJournal
from memory_extproc.settings.paths import Topology, parse_redis_url
from tests.support.builders import MONDAY, a_turn
from tests.support.redis import RedisFleet, RedisServer, ask_redis, redis_cluster, redis_server

__all__ = ["redis_cluster", "redis_server"]

TIMEOUT = timedelta(seconds=1)


def test_a_url_names_one_server_a_cluster_or_sentinels() -> None:
    one = parse_redis_url("rediss://ann%40x@redis:6380/2?ssl_cert_reqs=none")
    assert (one.topology, one.user, one.options) == (
        Topology.SERVER,
        "ann@x",
        "rediss://redis:6380/2?ssl_cert_reqs=none",
    )
    cluster = parse_redis_url("redis+cluster://a,[::1]:7001")
    assert (cluster.topology, cluster.nodes) == (Topology.CLUSTER, (("a", 6379), ("::1", 7001)))
    sentinel = parse_redis_url("rediss+sentinel://u@a:1,b/mymaster/3")
    assert (sentinel.nodes, sentinel.master, sentinel.user) == ((("a", 1), ("b", 26379)), "mymaster", "u")
    assert sentinel.options == "rediss://a:1/3"


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("http://redis", r"redis\+cluster://"),
        ("unix+cluster:///x", "expected redis://"),
        ("redis://", "no server"),
        ("redis://a:1,b:2/0", "several servers"),
        ("redis+cluster://a:1,,b:2", "without a name"),
        ("redis+cluster://a:port", "no number"),
        ("redis+cluster://a:1/4", "only database 0"),
        ("redis+sentinel://a:1", "names no master"),
        ("redis+sentinel://a:1/master/x", "must be a number"),
        ("redis+cluster://ann:hunter2@a:1", "no password"),
    ],
)
def test_any_other_url_is_refused_and_said_nothing_of(url: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault) as refused:
        parse_redis_url(url)
    assert "hunter2" not in str(refused.value)


@pytest.mark.redis
async def test_a_turn_counts_only_once_a_replica_has_it(redis_server: RedisServer) -> None:
    """Without a replica to have it the caller hears of it, and puts the turn aside."""
    async with RedisLink(redis_server.url, TIMEOUT, replicas=1) as link:
        journal = RedisJournal(link, now=lambda: MONDAY, prefix="alone")
        with pytest.raises(TransientError, match=r"learn\.journal\.replicas"):
            await journal.append(a_turn("hello"))


@pytest.mark.redis
async def test_a_node_of_a_cluster_is_no_server(redis_cluster: RedisFleet) -> None:
    """The error says which URL it needs."""
    async with RedisLink(redis_cluster.servers[0].url, TIMEOUT) as link:
        with pytest.raises(TransientError, match=r"redis\+cluster://"):
            await asyncio.gather(*(link.limit_time(link.client.get(str(number))) for number in range(20)))


@pytest.mark.redis
async def test_a_link_leaves_no_connection_to_a_cluster_that_failed_meanwhile(redis_cluster: RedisFleet) -> None:
    """After an error the client closes itself; calls under way on other nodes connect again behind it."""
    before = [connections(server) for server in redis_cluster.servers]
    async with RedisLink(redis_cluster.url, TIMEOUT) as link:
        await link.limit_time(link.client.set("a key", "a value"))
        node = link.client.get_node_from_key("a key")
        await link.client.aclose()
        await node.execute_command("PING")
    assert [connections(server) for server in redis_cluster.servers] == before


def connections(server: RedisServer) -> int:
    """Besides the one that asks."""
    return ask_redis(server, "CLIENT", "LIST", "TYPE", "NORMAL").count("id=") - 1
