"""The promises of every table of wrapped keys, over the one in memory, the SQLite file and a real Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from memory_extproc.coordination.redis_client import RedisLink
from memory_extproc.encryption.keys import KeyTable, RedisKeyTable, SqliteKeyTable
from tests.support.in_memory import InMemoryKeyTable
from tests.support.redis import RedisServer, redis_server

__all__ = ["redis_server"]


@pytest.fixture(params=["transient", "sqlite", pytest.param("redis", marks=pytest.mark.redis)])
async def table(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[KeyTable]:
    match request.param:
        case "transient":
            yield InMemoryKeyTable()
        case "sqlite":
            async with SqliteKeyTable(tmp_path / "keys.db") as made:
                yield made
        case _:
            server: RedisServer = request.getfixturevalue("redis_server")
            async with RedisLink(server.url, timedelta(seconds=10)) as link:
                redis = RedisKeyTable(link, prefix=uuid4().hex)
                assert not await redis.holds_any()
                await redis.add("seen", b"")
                assert await redis.holds_any()
                await redis.remove("seen", b"")
                yield redis


async def test_the_first_to_add_is_who_counts(table: KeyTable) -> None:
    assert await table.get("ann") is None
    given = await asyncio.gather(*(table.add("ann", bytes([n])) for n in range(10)))
    assert len(set(given)) == 1
    assert await table.get("ann") == given[0]


async def test_a_swap_counts_only_for_what_it_saw(table: KeyTable) -> None:
    await table.add("ann", b"\x00old")
    assert not await table.swap("ann", b"other", b"new")
    assert await table.swap("ann", b"\x00old", b"new")
    assert not await table.swap("ann", b"\x00old", b"newer")
    assert not await table.swap("bob", b"", b"new")
    assert await table.get("ann") == b"new"
    assert await table.get("bob") is None


async def test_what_is_removed_is_gone_and_nothing_else(table: KeyTable) -> None:
    await table.add("ann", b"1")
    await table.add("bob", b"2")
    assert not await table.remove("ann", b"2"), "a later key stays"
    assert await table.remove("ann", b"1")
    assert not await table.remove("ann", b"1")
    assert await table.get("ann") is None
    assert await table.get("bob") == b"2"


async def test_all_of_them_are_listed(table: KeyTable) -> None:
    wanted = {f"{n:04}": n.to_bytes(2, "big") for n in range(1001)}
    await asyncio.gather(*(table.add(place, wrapped) for place, wrapped in wanted.items()))
    assert dict([one async for page in table.all() for one in page]) == wanted
