"""What a forget may rely on where several replicas share a Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from memory_extproc.coordination.replicas import RedisReplicas, SoleReplica
from memory_extproc.model import WaitingPlace
from memory_extproc.redis_link import LinkLimits, RedisLink
from tests.fixtures.redis import RedisServer, redis_server

__all__ = ["redis_server"]
pytestmark = pytest.mark.redis

LEASE = timedelta(seconds=2)


class Pair:
    """Two replicas, each with a clock of its own and a list of what it heard."""

    def __init__(self, links: list[RedisLink], prefix: str) -> None:
        self.times = [0.0, 0.0]
        self.heard: list[list[str]] = [[], []]
        self.replicas = [
            RedisReplicas(link, f"replica-{n}", prefix=prefix, lease=LEASE, clock=lambda n=n: self.times[n])  # type: ignore[misc]
            for n, link in enumerate(links)
        ]
        for replica, heard in zip(self.replicas, self.heard, strict=True):
            replica.heard = self._into(heard)

    @staticmethod
    def _into(heard: list[str]):  # type: ignore[no-untyped-def]  # noqa: ANN205
        async def hear(subject: str) -> None:
            heard.append(subject)

        return hear


@pytest.fixture
async def pair(redis_server: RedisServer) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        links = [await stack.enter_async_context(RedisLink(redis_server.url, LinkLimits())) for _ in range(2)]
        made = Pair(links, uuid4().hex)
        for replica in made.replicas:
            await stack.enter_async_context(replica)
        yield made


async def test_a_forget_is_told_once_every_replica_has_heard_of_it(pair: Pair) -> None:
    first, second = pair.replicas
    assert first.holds()
    assert second.holds()
    await asyncio.wait_for(first.tell("ann"), 10)
    assert pair.heard == [["ann"], ["ann"]]


async def test_a_replica_that_does_not_answer_serves_nothing_once_its_lease_has_run_out(pair: Pair) -> None:
    first, second = pair.replicas
    assert second._renewing is not None
    second._renewing.cancel()  # as if it hung
    await asyncio.wait_for(first.tell("ann"), 10)
    assert pair.heard[1] == []
    pair.times[1] += LEASE.total_seconds()
    assert not second.holds()
    await second.renew()  # it is back: first it hears, then it serves
    assert pair.heard[1] == ["ann"]
    assert second.holds()


async def test_news_of_before_a_replica_came_do_not_concern_it(pair: Pair) -> None:
    await pair.replicas[0].tell("ann")
    third = RedisReplicas(pair.replicas[0]._link, "replica-3", prefix="other", lease=LEASE)
    assert not third.holds()
    async with third:
        assert third.holds()
    assert not third.holds()


async def test_a_sole_replica_holds_and_has_nobody_to_tell() -> None:
    sole = SoleReplica()
    assert sole.holds()
    await sole.tell("ann")


async def test_a_sole_replica_says_since_when_accepted_turns_wait_outside_its_journal() -> None:
    assert await SoleReplica().waiting() == ()
    since = datetime(2026, 3, 2, tzinfo=UTC)
    waiting = SoleReplica("pod-1", oldest_waiting=lambda _: since)
    assert await waiting.waiting() == (WaitingPlace("pod-1", since, live=True),)
