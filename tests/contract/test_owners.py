"""The promises of every OwnerRegistry, over the SQLite file and a real Redis; and how it is kept up."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest

from memory_extproc.coordination.redis import RedisOwners
from memory_extproc.coordination.redis_client import RedisLink
from memory_extproc.coordination.sqlite import SqliteOwners
from memory_extproc.model import Embedded, MemoryState, Owner
from memory_extproc.ports import OwnerEntry, OwnerRegistry
from memory_extproc.retention.usage import OwnerCounter
from memory_extproc.testing.adapters import InMemoryStore
from tests.support.builders import MONDAY, a_memory
from tests.support.redis import RedisServer, redis_server

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
    async with RedisLink(server.url, timedelta(seconds=10)) as link:
        yield RedisOwners(link, prefix=uuid4().hex)


def entry(owner: Owner, memories: int = 1, quarantined: int = 0) -> OwnerEntry:
    return OwnerEntry(owner, memories, MONDAY, quarantined)


async def test_owners_are_paged_by_tenant_and_user(owners: OwnerRegistry) -> None:
    for owner in (ACME, BOB, TEAM, ANN):
        await owners.put(entry(owner))
    ordered = sorted([ANN, BOB, ACME, TEAM], key=lambda one: (one.tenant, one.user))
    assert [one.owner for one in await owners.page(None, 10)] == ordered
    assert [one.owner for one in await owners.page(ordered[1], 2)] == ordered[2:]
    assert await owners.page(ordered[-1], 10) == []
    assert {one.owner for one in await owners.page(None, 10, tenant="acme")} == {ACME, TEAM}
    assert await owners.page(None, 10, tenant="acm") == []
    assert await owners.totals() == (4, 4, 0)


async def test_an_entry_takes_the_place_of_the_one_before_and_goes_without_memories(owners: OwnerRegistry) -> None:
    assert await owners.totals() == (0, 0, 0)
    await owners.put(entry(ANN, 3))
    await owners.put(entry(ANN, 5))
    await owners.put(entry(ACME, 2))
    assert await owners.totals() == (2, 7, 0)
    assert await owners.page(None, 1) == [entry(ANN, 5)]
    await owners.put(entry(ANN, 0))
    await owners.put(entry(BOB, 0))
    assert await owners.totals() == (1, 2, 0)
    assert [one.owner for one in await owners.page(None, 10)] == [ACME]


async def test_owners_with_memories_in_quarantine_are_listed_alone(owners: OwnerRegistry) -> None:
    for owner, quarantined in ((ANN, 2), (BOB, 0), (ACME, 1), (TEAM, 3)):
        await owners.put(entry(owner, 5, quarantined))
    held = [one for one in await owners.page(None, 10) if one.quarantined]
    assert await owners.page(None, 10, quarantined=True) == held
    assert await owners.page(held[0].owner, 1, quarantined=True) == held[1:2]
    assert {one.owner for one in await owners.page(None, 9, tenant="acme", quarantined=True)} == {ACME, TEAM}
    assert await owners.totals() == (4, 20, 6)
    await owners.put(entry(ANN, 4))
    await owners.put(entry(TEAM, 0))
    assert await owners.page(None, 10, quarantined=True) == [entry(ACME, 5, 1)]
    assert await owners.totals() == (3, 14, 1)


async def test_an_older_file_of_owners_is_counted_anew(tmp_path: Path) -> None:
    path = tmp_path / "owners.db"
    with closing(sqlite3.connect(path)) as older:
        older.executescript(
            "PRAGMA application_id = 0x6D65786F; PRAGMA user_version = 1; PRAGMA journal_mode = WAL;"
            "CREATE TABLE owners (tenant TEXT, user TEXT, memories INTEGER, updated REAL,"
            " PRIMARY KEY (tenant, user)) WITHOUT ROWID;"
            "CREATE TABLE totals (id INTEGER PRIMARY KEY, owners INTEGER, memories INTEGER);"
            "INSERT INTO owners VALUES ('', 'ann', 3, 0); INSERT INTO totals VALUES (1, 1, 3);"
        )
    async with SqliteOwners(path) as owners:
        assert await owners.totals() == (0, 0, 0), "an empty registry is filled from the store"
        await owners.put(entry(ANN, 3, 1))
        assert await owners.page(None, 10) == [entry(ANN, 3, 1)]


async def test_owners_are_counted_as_their_memories_change(owners: OwnerRegistry) -> None:
    store = InMemoryStore(2, now=lambda: MONDAY)
    counter = OwnerCounter(owners, store, now=lambda: MONDAY, most=1)

    async def has(owner: Owner, count: int) -> None:
        states = [MemoryState.QUARANTINED, *[MemoryState.ACTIVE] * count]
        await store.put(
            owner, [Embedded(a_memory(f"n {at}", owner, state=states[at]), UNIT) for at in range(count)]
        )

    await has(ANN, 2)
    await has(ACME, 3)
    await counter.fill()
    await counter.count()
    assert len(await owners.page(None, 10)) == 1, "one at a time is asked of the store"
    await counter.count()
    assert await owners.totals() == (2, 5, 2)
    await store.delete_owner(ANN)
    counter.note(ANN)
    counter.note(Owner.of_canary())
    await counter.count()
    assert await owners.page(None, 10) == [entry(ACME, 3, 1)]


async def test_a_store_that_is_away_is_asked_again(owners: OwnerRegistry) -> None:
    store = InMemoryStore(2, now=lambda: MONDAY)
    counter = OwnerCounter(owners, store, now=lambda: MONDAY)
    await store.put(ANN, [Embedded(a_memory("Likes tea", ANN), UNIT)])
    counter.note(ANN)
    store.weather.down = True
    await counter.count()
    assert await owners.totals() == (0, 0, 0)
    store.weather.down = False
    await counter.count()
    assert await owners.totals() == (1, 1, 0)
