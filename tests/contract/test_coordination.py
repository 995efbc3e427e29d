"""The promises of every Coordination, over the one in memory, the SQLite file and a real Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from memory_extproc.concurrency import utc_now
from memory_extproc.coordination.sqlite import SqliteCoordination
from memory_extproc.encryption.codecs import EncryptedCoordination
from memory_extproc.encryption.keys import WrappedKeys
from memory_extproc.errors import PermanentError
from memory_extproc.model import Owner
from memory_extproc.ports import Changes, Coordination
from memory_extproc.testing.adapters import InMemoryCoordination
from tests.support.in_memory import InMemoryKeyTable, InMemoryMasterKey
from tests.support.redis import RedisFleet, RedisServer, redis_cluster, redis_coordination, redis_server
from tests.support.waiting import until

__all__ = ["redis_cluster", "redis_server"]

LONG = timedelta(hours=1)
SHORT = timedelta(milliseconds=30)
ANN = Owner("acme", "ann")
OTHERS = [Owner("acme", "bob"), Owner("", "ann"), Owner("umbrella", "ann")]


REDIS = [pytest.param(name, marks=pytest.mark.redis) for name in ("redis_server", "redis_cluster")]


@pytest.fixture(params=["transient", "sealed", "sqlite", "deferred", *REDIS])
async def coordination(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Coordination]:
    match request.param:
        case "transient":
            yield InMemoryCoordination(utc_now)
        case "sealed":
            keys = WrappedKeys(InMemoryKeyTable(), InMemoryMasterKey())
            yield EncryptedCoordination(InMemoryCoordination(utc_now), keys)
        case "sqlite":
            async with SqliteCoordination(tmp_path / "coordination.sqlite", now=utc_now) as sqlite:
                yield sqlite
        case "deferred":
            path = tmp_path / "coordination.sqlite"
            async with SqliteCoordination(path, now=utc_now, deferred=timedelta(seconds=1)) as sqlite:
                yield sqlite
        case _:
            server: RedisServer | RedisFleet = request.getfixturevalue(request.param)
            # Plenty of time: the machine that runs the tests may be busy with others.
            async with redis_coordination(server.url, prefix=uuid4().hex, patience=timedelta(seconds=10)) as redis:
                yield redis


async def test_versions_count_each_owners_writes_apart(coordination: Coordination) -> None:
    assert await coordination.version(ANN) == 0
    assert await coordination.bump(ANN) == 1
    assert await coordination.bump(ANN) == 2
    assert await coordination.version(ANN) == 2
    assert [await coordination.version(other) for other in OTHERS] == [0, 0, 0]


async def test_epochs_count_each_owners_forgets_apart_from_versions(coordination: Coordination) -> None:
    assert await coordination.epoch(ANN) == 0
    assert await coordination.advance_epoch(ANN) == 1
    await coordination.bump(ANN)
    assert await coordination.epoch(ANN) == 1
    assert await coordination.version(ANN) == 1
    assert [await coordination.epoch(other) for other in OTHERS] == [0, 0, 0]


async def test_a_write_counts_once_however_many_write_at_once(coordination: Coordination) -> None:
    counted = await asyncio.gather(*(coordination.bump(ANN) for _ in range(50)))
    assert sorted(counted) == list(range(1, 51))


async def test_what_changed_since_a_version_is_told_exactly_or_not_at_all(coordination: Coordination) -> None:
    assert await coordination.changes(ANN, 0) is None
    await coordination.bump(ANN, ["a", "b"])
    await coordination.bump(ANN, ["b", "c"])
    every, last = Changes(2, frozenset("abc")), Changes(2, frozenset("bc"))
    assert await coordination.changes(ANN, 0) in (None, every)
    assert await coordination.changes(ANN, 1) in (None, last)
    assert await coordination.changes(ANN, 2) is None
    assert [await coordination.changes(other, 0) for other in OTHERS] == [None, None, None]
    await coordination.bump(ANN)
    await coordination.bump(ANN, ["d"])
    assert [await coordination.changes(ANN, since) for since in (0, 1, 2)] == [None, None, None]
    assert await coordination.changes(ANN, 3) in (None, Changes(4, frozenset("d")))


@pytest.mark.redis
async def test_redis_keeps_a_bounded_number_of_changes(redis_server: RedisServer) -> None:
    async with redis_coordination(redis_server.url, prefix=uuid4().hex, patience=timedelta(seconds=10)) as redis:
        for number in range(40):
            await redis.bump(ANN, [f"{number}"])
        assert await redis.changes(ANN, 0) is None
        assert await redis.changes(ANN, 38) == Changes(40, frozenset({"38", "39"}))
        await redis.bump(ANN, [f"{number}" for number in range(1_000)])
        assert await redis.changes(ANN, 38) is None


async def test_a_record_is_found_by_its_owner_kind_and_key_only(coordination: Coordination) -> None:
    await coordination.put_record("head", ANN, "k", b"\x00ann's\xff", LONG)
    assert await coordination.get_record("head", ANN, "k") == b"\x00ann's\xff"
    assert await coordination.get_record("head", ANN, "other") is None
    assert await coordination.get_record("slot", ANN, "k") is None
    for other in OTHERS:
        assert await coordination.get_record("head", other, "k") is None


async def test_no_two_pairs_of_kind_and_key_are_one_record(coordination: Coordination) -> None:
    await coordination.put_record("given_response", ANN, "c", b"1", LONG)
    await coordination.put_record("given", ANN, "_response:c", b"2", LONG)
    assert await coordination.get_record("given_response", ANN, "c") == b"1"
    assert await coordination.get_record("given", ANN, "_response:c") == b"2"


async def test_records_of_a_kind_that_no_forget_knows_of_are_refused(coordination: Coordination) -> None:
    with pytest.raises(PermanentError):
        await coordination.put_record("unheard of", ANN, "k", b"x", LONG)
    with pytest.raises(PermanentError):
        await coordination.replace_record("unheard of", ANN, "k", None, b"x", LONG)
    with pytest.raises(PermanentError):
        await coordination.get_record("unheard of", ANN, "k")
    with pytest.raises(PermanentError):
        await coordination.delete_records(ANN, ["head", "unheard of"])


async def test_of_several_keys_the_records_that_there_are_are_found(coordination: Coordination) -> None:
    await coordination.put_record("head", ANN, "short", b"x", SHORT)
    await coordination.put_record("head", ANN, "a", b"1", LONG)
    await coordination.put_record("head", ANN, "b", b"\x00", LONG)
    await coordination.put_record("slot", ANN, "c", b"3", LONG)
    await coordination.put_record("head", Owner("", "bob"), "d", b"4", LONG)

    async def gone() -> bool:
        return await coordination.get_record("head", ANN, "short") is None

    await until(gone, "the record expired")
    found = await coordination.find_records("head", ANN, ["short", "b", "a", "c", "d"])
    assert found == {"a": b"1", "b": b"\x00"}
    assert await coordination.find_records("head", ANN, []) == {}
    with pytest.raises(PermanentError):
        await coordination.find_records("unheard of", ANN, ["k"])


async def test_a_record_put_again_is_replaced(coordination: Coordination) -> None:
    await coordination.put_record("head", ANN, "k", b"old", LONG)
    await coordination.put_record("head", ANN, "k", b"", LONG)
    assert await coordination.get_record("head", ANN, "k") == b""


async def test_records_expire(coordination: Coordination) -> None:
    await coordination.put_record("head", ANN, "short", b"x", SHORT)
    await coordination.put_record("head", ANN, "long", b"y", LONG)

    async def gone() -> bool:
        return await coordination.get_record("head", ANN, "short") is None

    await until(gone, "the record expired")
    assert await coordination.get_record("head", ANN, "long") == b"y"
    assert await coordination.replace_record("head", ANN, "short", None, b"z", LONG), "an expired record is absent"


async def test_a_swap_needs_the_record_to_be_as_expected(coordination: Coordination) -> None:
    assert not await coordination.replace_record("head", ANN, "k", b"old", b"new", LONG)
    assert await coordination.replace_record("head", ANN, "k", None, b"first", LONG)
    assert not await coordination.replace_record("head", ANN, "k", None, b"second", LONG)
    assert not await coordination.replace_record("head", ANN, "k", b"", b"second", LONG)
    assert await coordination.replace_record("head", ANN, "k", b"first", b"second", LONG)
    assert await coordination.get_record("head", ANN, "k") == b"second"
    for other in OTHERS:
        assert await coordination.replace_record("head", other, "k", None, b"theirs", LONG)
    assert await coordination.get_record("head", ANN, "k") == b"second"


async def test_of_many_swaps_at_once_one_wins(coordination: Coordination) -> None:
    won = await asyncio.gather(
        *(coordination.replace_record("slot", ANN, "k", None, b"%d" % n, LONG) for n in range(30))
    )
    assert sum(won) == 1
    assert await coordination.get_record("slot", ANN, "k") == b"%d" % won.index(True)


async def test_an_owners_records_are_deleted_and_nobody_elses(coordination: Coordination) -> None:
    for owner in [ANN, *OTHERS]:
        for n in range(3):
            await coordination.put_record("head", owner, str(n), b"private", LONG)
    await coordination.advance_epoch(ANN)
    await coordination.delete_records(ANN)
    for n in range(3):
        assert await coordination.get_record("head", ANN, str(n)) is None
        for other in OTHERS:
            assert await coordination.get_record("head", other, str(n)) == b"private"
    assert await coordination.epoch(ANN) == 1, "that somebody was forgotten is not forgotten"


async def test_more_records_than_fit_one_command_are_deleted(coordination: Coordination) -> None:
    await asyncio.gather(*(coordination.put_record("head", ANN, str(n), b"x", LONG) for n in range(1200)))
    await coordination.delete_records(ANN)
    assert await coordination.get_record("head", ANN, "0") is None
    assert await coordination.get_record("head", ANN, "1199") is None


async def test_a_lease_has_one_holder_who_may_renew_it(coordination: Coordination) -> None:
    assert await coordination.acquire("shard-1", "a", LONG)
    assert await coordination.acquire("shard-1", "a", LONG)
    assert not await coordination.acquire("shard-1", "b", LONG)
    assert await coordination.acquire("shard-2", "b", LONG)


async def test_a_lease_is_given_back_by_its_holder_only(coordination: Coordination) -> None:
    assert await coordination.acquire("shard", "a", LONG)
    await coordination.release("shard", "b")
    assert not await coordination.acquire("shard", "b", LONG)
    await coordination.release("shard", "a")
    assert await coordination.acquire("shard", "b", LONG)


async def test_a_lease_that_is_not_renewed_passes_on(coordination: Coordination) -> None:
    assert await coordination.acquire("shard", "a", SHORT)

    async def taken() -> bool:
        return await coordination.acquire("shard", "b", LONG)

    await until(taken, "the lease ran out")
    assert not await coordination.acquire("shard", "a", LONG)
