"""Guarantees for a forget where several replicas share a Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from memory_extproc.coordination.redis_client import RedisLink
from memory_extproc.coordination.replicas import RedisReplicas
from memory_extproc.coordination.sqlite import SoleReplica
from memory_extproc.errors import TransientError
from memory_extproc.model import WaitingPlace
from tests.support.redis import RedisServer, redis_server
from tests.support.waiting import until

__all__ = ["redis_server"]
pytestmark = pytest.mark.redis

LEASE = timedelta(seconds=2)
TIMEOUT = timedelta(seconds=1)  # of a call


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
        links = [await stack.enter_async_context(RedisLink(redis_server.url, TIMEOUT)) for _ in range(2)]
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


async def test_many_forgets_of_a_person_are_applied_once_by_a_replica_that_comes_back(pair: Pair) -> None:
    first, second = pair.replicas
    assert second._renewing is not None
    second._renewing.cancel()
    await asyncio.wait_for(asyncio.gather(*(first.tell(each) for each in ("ann", "bob", "ann", "ann"))), 20)
    await second.renew()
    assert sorted(pair.heard[1]) == ["ann", "bob"]


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


async def test_a_live_directory_says_since_when_turns_wait_by_the_time_a_forget_was_told(pair: Pair) -> None:
    first, second = pair.replicas
    assert await first.waiting() == []
    asked = datetime(2026, 3, 2, 9, tzinfo=UTC)
    second.oldest_waiting = lambda: asked
    await asyncio.wait_for(first.tell("ann"), 10)
    assert await first.waiting() == [WaitingPlace("replica-1", asked, live=True)]
    assert await second.waiting() == [WaitingPlace("replica-1", asked, live=True)]
    second.oldest_waiting = lambda: None  # it reached the shared journal
    assert await second.waiting() == []


async def test_a_directory_that_cannot_be_read_may_hold_anything(pair: Pair) -> None:
    def unreadable() -> datetime | None:
        raise TransientError("journal.db is locked")

    pair.replicas[0].oldest_waiting = unreadable
    assert await pair.replicas[0].waiting() == [WaitingPlace("replica-0", None, live=True)]


async def test_directories_that_ended_are_listed_until_they_come_back_or_are_struck(
    pair: Pair, redis_server: RedisServer
) -> None:
    first = pair.replicas[0]
    prefix = first._counter.partition(":")[0]
    asked = datetime(2026, 3, 2, 9, tzinfo=UTC)
    short = timedelta(milliseconds=50)
    async with RedisLink(redis_server.url, TIMEOUT) as link:

        def process(directory: str, number: int, lease: timedelta = LEASE) -> RedisReplicas:
            return RedisReplicas(link, f"{directory}/{number}", prefix=prefix, lease=lease, directory=directory)

        async with process("empty", 1):
            pass
        assert await first.waiting() == []  # it left, and nothing waits
        async with process("full", 1) as full:
            full.oldest_waiting = lambda: asked
        assert await first.waiting() == [WaitingPlace("full", asked, live=False)]
        await process("killed", 1, short).renew()  # and never again

        async def listed() -> bool:
            return WaitingPlace("killed", None, live=False) in await first.waiting()

        await until(listed, "its lease has run out")
        await first.renew()
        assert first.dead_directories == 2
        async with process("full", 2), process("killed", 2):  # they are back, and drained
            assert await first.waiting() == []
        assert await first.waiting() == []
        await process("killed", 3, short).renew()
        await until(listed, "its lease has run out")
        assert not await first.strike("replica-1")  # it lives
        assert await first.strike("killed")
        assert await first.waiting() == []


async def test_a_register_that_was_wiped_is_written_anew_by_who_lives(
    pair: Pair, redis_server: RedisServer
) -> None:
    first, second = pair.replicas
    asked = datetime(2026, 3, 2, 9, tzinfo=UTC)
    second.oldest_waiting = lambda: asked
    await first._link.client.flushall()
    await asyncio.wait_for(first.tell("ann"), 10)
    await second.renew()
    assert await first.waiting() == [WaitingPlace("replica-1", asked, live=True)]


async def test_a_sole_replica_says_since_when_accepted_turns_wait_outside_its_journal() -> None:
    assert await SoleReplica().waiting() == ()
    since = datetime(2026, 3, 2, tzinfo=UTC)
    waiting = SoleReplica("pod-1", oldest_waiting=lambda _: since)
    assert await waiting.waiting() == (WaitingPlace("pod-1", since, live=True),)


async def test_a_replica_whose_last_message_was_wiped_drops_all_it_cached(pair: Pair) -> None:
    """Though the numbers, which began anew, are beyond its own by the time that it looks."""
    first, second = pair.replicas
    await asyncio.wait_for(first.tell("before"), 10)
    assert second._renewing is not None
    second._renewing.cancel()  # it is late
    await first._link.client.flushall()
    for subject in ("ann", "bob", "cid"):
        await asyncio.wait_for(first.tell(subject), 10)
    pair.heard[1].clear()
    await second.renew()
    assert pair.heard[1][-1] == ""
    assert second.holds()
    pair.heard[1].clear()
    await second.renew()
    assert pair.heard[1] == []


async def test_a_forget_that_is_told_while_redis_is_wiped_is_told_again(pair: Pair) -> None:
    first, second = pair.replicas
    for subject in ("one", "two", "three"):
        await asyncio.wait_for(first.tell(subject), 10)
    for replica in pair.replicas:
        assert replica._renewing is not None
        replica._renewing.cancel()
    telling = asyncio.create_task(first.tell("ann"))

    async def waits() -> bool:
        return await first._count_behind(4, first._era) == 1

    await until(waits, "the second replica is behind")
    await first._link.client.flushall()
    for replica in pair.replicas:
        await replica.renew()  # twice: once each was told that all is gone, none reports an old number
        await replica.renew()

    async def told() -> bool:
        await second.renew()
        return telling.done()

    await until(told, "it was told")
    await telling
    assert pair.heard[1][-2:] == ["", "ann"]


async def test_a_replica_that_begins_anew_serves_nothing_until_it_has_dropped_all(pair: Pair) -> None:
    first = pair.replicas[0]
    assert first._renewing is not None
    first._renewing.cancel()
    first.begin_anew()
    assert not first.holds()
    await first.renew()
    assert first.holds()
    assert pair.heard[0] == [""]
