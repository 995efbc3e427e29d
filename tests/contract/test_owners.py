"""The promises of every OwnerRegistry, over the SQLite file and a real Redis; and how it is kept up."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest

from memory_extproc.coordination.redis import RedisOwners
from memory_extproc.coordination.redis_client import LinkLimits, RedisLink
from memory_extproc.coordination.sqlite import SqliteOwners
from memory_extproc.model import Embedded, Owner
from memory_extproc.ports import OwnerEntry, OwnerRegistry
from memory_extproc.retention.usage import OwnerCounter
from memory_extproc.testing.adapters import InMemoryStore
from tests.builders import MONDAY, a_memory
from tests.fixtures.redis import RedisServer, redis_server

__all__ = ["redis_server"]

ANN, BOB, ACME = Owner("", "ann"), Owner("", "bob"), Owner("acme", "ann")
UNIT = np.array([1.0, 0.0], dtype=np.float32)
TEAM = Owner.of_project("acme", "apollo")


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.redis)])
async def owners(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OwnerRegistry]:
    if request.param == "sqlite":
        async with SqliteOwners(tmp_path / "owners.db") as sqlite:
            yield sqlite
        return
    server: RedisServer = request.getfixturevalue("redis_server")
    async with RedisLink(server.url, LinkLimits(timedelta(seconds=10))) as link:
        yield RedisOwners(link, prefix=uuid4().hex)


def entry(owner: Owner, memories: int = 1) -> OwnerEntry:
    return OwnerEntry(owner, memories, MONDAY)


async def test_owners_are_paged_by_tenant_and_user(owners: OwnerRegistry) -> None:
    for owner in (ACME, BOB, TEAM, ANN):
        await owners.put(entry(owner))
    ordered = sorted([ANN, BOB, ACME, TEAM], key=lambda one: (one.tenant, one.user))
    assert [one.owner for one in await owners.page(None, 10)] == ordered
    assert [one.owner for one in await owners.page(ordered[1], 2)] == ordered[2:]
    assert await owners.page(ordered[-1], 10) == []
    assert {one.owner for one in await owners.page(None, 10, tenant="acme")} == {ACME, TEAM}
    assert await owners.page(None, 10, tenant="acm") == []
    assert await owners.totals() == (4, 4)


async def test_an_entry_takes_the_place_of_the_one_before_and_goes_without_memories(owners: OwnerRegistry) -> None:
    assert await owners.totals() == (0, 0)
    await owners.put(entry(ANN, 3))
    await owners.put(entry(ANN, 5))
    await owners.put(entry(ACME, 2))
    assert await owners.totals() == (2, 7)
    assert await owners.page(None, 1) == [entry(ANN, 5)]
    await owners.put(entry(ANN, 0))
    await owners.put(entry(BOB, 0))
    assert await owners.totals() == (1, 2)
    assert [one.owner for one in await owners.page(None, 10)] == [ACME]


async def test_owners_are_counted_as_their_memories_change(owners: OwnerRegistry) -> None:
    store = InMemoryStore(2, now=lambda: MONDAY)
    counter = OwnerCounter(owners, store, now=lambda: MONDAY, most=1)

    async def has(owner: Owner, count: int) -> None:
        await store.put(owner, [Embedded(a_memory(f"n {at}", owner), UNIT) for at in range(count)])

    await has(ANN, 2)
    await has(ACME, 3)
    await counter.fill()
    await counter.count()
    assert len(await owners.page(None, 10)) == 1, "one at a time is asked of the store"
    await counter.count()
    assert await owners.totals() == (2, 5)
    await store.delete_owner(ANN)
    counter.note(ANN)
    counter.note(Owner.of_canary())
    await counter.count()
    assert await owners.page(None, 10) == [entry(ACME, 3)]


async def test_a_store_that_is_away_is_asked_again(owners: OwnerRegistry) -> None:
    store = InMemoryStore(2, now=lambda: MONDAY)
    counter = OwnerCounter(owners, store, now=lambda: MONDAY)
    await store.put(ANN, [Embedded(a_memory("Likes tea", ANN), UNIT)])
    counter.note(ANN)
    store.weather.down = True
    await counter.count()
    assert await owners.totals() == (0, 0)
    store.weather.down = False
    await counter.count()
    assert await owners.totals() == (1, 1)
