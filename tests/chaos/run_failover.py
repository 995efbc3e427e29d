"""The master of the shared journal dies under load, in a cluster and behind Sentinel: no accepted turn is lost."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from memory_extproc.coordination.redis_client import RedisLink
from memory_extproc.errors import MemoryExtprocError
from memory_extproc.journal.failover import FailoverJournal
from memory_extproc.journal.redis import JournalSharing, RedisJournal, ShardedJournal
from memory_extproc.journal.sqlite import SqliteJournal
from memory_extproc.model import Owner, TurnOutcome, digest
from tests.support.builders import MONDAY, a_turn
from tests.support.redis import (
    RedisFleet,
    RedisServer,
    ask_redis,
    restart_redis,
    start_cluster,
    start_sentinels,
    stop_redis,
)
from tests.support.waiting import until

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

PREFIX = "failover"
TIMEOUT = timedelta(seconds=1)
SHARING = JournalSharing(lease=timedelta(seconds=2), grace=timedelta(seconds=1))


@pytest.fixture(params=["cluster", "sentinels"])
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisFleet]:
    found = start_cluster(tmp_path, replicas=1) if request.param == "cluster" else start_sentinels(tmp_path)
    yield found
    found.close()


def master_of_the_journal(fleet: RedisFleet) -> RedisServer:
    """The one that has the journal, found by its keys."""
    for server in fleet.servers:
        if "role:master" in ask_redis(server, "INFO", "replication") and PREFIX in ask_redis(server, "KEYS", "*"):
            return server
    raise AssertionError("nobody has the journal")


async def is_replicated(fleet: RedisFleet) -> bool:
    told = [await asyncio.to_thread(ask_redis, server, "INFO", "replication") for server in fleet.servers]
    masters = [one for one in told if "role:master" in one]
    return all("connected_slaves:0" not in one for one in masters) and "master_link_status:down" not in str(told)


class Load:
    """Writers of turns and a learner, until told to end."""

    def __init__(self, journal: FailoverJournal) -> None:
        self._journal = journal
        self.accepted, self.learned = set[str](), Counter[str]()
        self._ends = False

    async def write(self, who: int) -> None:
        number = 0
        while not self._ends:
            number += 1
            turn = a_turn(f"turn {number} of {who}", owner=Owner("acme", f"person {who}"))
            turn = replace(turn, id=digest(str(who), str(number)))
            if await self._journal.append(turn) in {TurnOutcome.JOURNALLED, TurnOutcome.DUPLICATE}:
                self.accepted.add(turn.id)
            await asyncio.sleep(0.02)

    async def learn(self) -> None:
        while not (self._ends and self.accepted <= set(self.learned)):
            try:
                entries = await self._journal.arrivals(50)
                pending = await self._journal.pending(50)
                mine = [one for one in {*entries, *pending} if self._journal.holds(one.turn.owner)]
                await self._journal.mark_stored(mine)
                await self._journal.mark_learned(mine)
                self.learned.update(one.turn.id for one in mine)
            except MemoryExtprocError:
                pass  # as the learner does: it asks again
            await asyncio.sleep(0.01)

    def end(self) -> None:
        self._ends = True


async def test_a_failover_loses_nothing_accepted(fleet: RedisFleet, tmp_path: Path) -> None:
    async with (
        RedisLink(fleet.url, TIMEOUT, replicas=1, prefix=PREFIX) as link,
        (ShardedJournal if link.is_cluster else RedisJournal)(
            link, now=lambda: MONDAY, prefix=PREFIX, sharing=SHARING
        ) as shared,
        SqliteJournal(tmp_path / "spare.sqlite", now=lambda: MONDAY) as spare,
        asyncio.TaskGroup() as tasks,
    ):
        link.PAUSE = timedelta(milliseconds=50)
        load = Load(FailoverJournal(shared, spare))
        for who in range(8):
            tasks.create_task(load.write(who))
        learner = tasks.create_task(load.learn())

        async def some(before: int = 0) -> bool:
            return len(load.learned) > before + 100

        await until(some, "turns are learned")
        # In a cluster each master has some shards; a second one dies once the first is a replica.
        for _ in range(2 if link.is_cluster else 1):
            stop_redis(dead := master_of_the_journal(fleet))
            before = len(load.learned)
            await until(partial(some, before), "turns are learned from the new master", seconds=60)
            # Until it comes back as a replica, turns that want one wait in the file.
            fleet.servers[fleet.servers.index(dead)] = await asyncio.to_thread(restart_redis, dead)
            await until(lambda: is_replicated(fleet), "each master has a replica again", seconds=60)
        load.end()
        async with asyncio.timeout(120):
            await learner
        assert load.accepted <= set(load.learned)
        again = sum(load.learned.values()) - len(load.learned)
        sys.stdout.write(f"\n{len(load.accepted)} accepted, {again} learned again\n")
