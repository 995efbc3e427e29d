"""The promises of every ConsentRecords, over the one in memory, the SQLite file and a real Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from memory_extproc.coordination.consent import RedisConsent, SqliteConsent
from memory_extproc.coordination.redis import RedisCoordination
from memory_extproc.coordination.redis_client import RedisLink
from memory_extproc.errors import PermanentError
from memory_extproc.model import Consent, ConsentChange, Owner
from memory_extproc.ports import ConsentRecords
from tests.support.in_memory import InMemoryConsent
from tests.support.redis import RedisFleet, RedisServer, redis_cluster, redis_server

__all__ = ["redis_cluster", "redis_server"]

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
ANN = Owner("acme", "ann")
OTHERS = [Owner("acme", "bob"), Owner("", "ann"), Owner("umbrella", "ann")]
OFF = ConsentChange(Consent.OFF, NOON, "ann")
BACK_ON = ConsentChange(Consent.ON, NOON + timedelta(minutes=5), "support\N{EN DASH}desk")
PLENTY = timedelta(seconds=10)  # the machine that runs the tests may be busy with others


REDIS = [pytest.param(name, marks=pytest.mark.redis) for name in ("redis_server", "redis_cluster")]


@pytest.fixture(params=["transient", "sqlite", *REDIS])
async def records(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ConsentRecords]:
    match request.param:
        case "transient":
            yield InMemoryConsent()
        case "sqlite":
            async with SqliteConsent(tmp_path / "consent.db") as sqlite:
                yield sqlite
        case _:
            server: RedisServer | RedisFleet = request.getfixturevalue(request.param)
            prefix = uuid4().hex
            async with RedisLink(server.url, PLENTY) as link:
                yield RedisConsent(link, prefix=prefix)


async def test_who_never_chose_has_no_record(records: ConsentRecords) -> None:
    assert await records.latest(ANN) is None
    assert list(await records.history(ANN)) == []


async def test_the_latest_choice_is_the_last_one_made_and_all_are_kept(records: ConsentRecords) -> None:
    assert await records.add(ANN, OFF, after=None)
    assert await records.latest(ANN) == OFF
    assert await records.add(ANN, BACK_ON, after=OFF)
    assert await records.latest(ANN) == BACK_ON
    assert list(await records.history(ANN)) == [OFF, BACK_ON]


async def test_order_is_that_of_the_writing_not_of_clocks(records: ConsentRecords) -> None:
    await records.add(ANN, BACK_ON, after=None)
    await records.add(ANN, OFF, after=BACK_ON)  # another replica, whose clock is behind
    assert await records.latest(ANN) == OFF


async def test_a_choice_that_arrives_after_a_later_one_does_not_count(records: ConsentRecords) -> None:
    await records.add(ANN, OFF, after=None)
    assert not await records.add(ANN, BACK_ON, after=None)
    assert await records.latest(ANN) == OFF
    await records.add(ANN, BACK_ON, after=OFF)
    assert not await records.add(ANN, OFF, after=None)
    assert not await records.add(ANN, ConsentChange(Consent.RECALL_ONLY, BACK_ON.at, "late"), after=OFF)
    assert list(await records.history(ANN)) == [OFF, BACK_ON]


async def test_nobody_elses_choice_is_seen(records: ConsentRecords) -> None:
    await records.add(ANN, OFF, after=None)
    for other in OTHERS:
        assert await records.latest(other) is None
        assert list(await records.history(other)) == []


async def test_of_choices_made_at_once_one_is_the_latest(records: ConsentRecords) -> None:
    changes = [ConsentChange(Consent.RECALL_ONLY, NOON, str(n)) for n in range(20)]
    written = await asyncio.gather(*(records.add(ANN, change, after=None) for change in changes))
    assert sum(written) == 1, "of those that knew of no other"
    assert await records.history(ANN) == (changes[written.index(True)],)


async def test_a_choice_survives_a_restart(tmp_path: Path) -> None:
    async with SqliteConsent(tmp_path / "consent.db") as before:
        await before.add(ANN, OFF, after=None)
    async with SqliteConsent(tmp_path / "consent.db") as after:
        await after.open()
        assert await after.latest(ANN) == OFF


@pytest.mark.redis
async def test_forgetting_an_owners_records_leaves_what_they_chose(redis_server: RedisServer) -> None:
    prefix = uuid4().hex
    async with RedisLink(redis_server.url, PLENTY) as link:
        redis = RedisCoordination(link, prefix=prefix)
        records = RedisConsent(link, prefix=prefix)
        await records.add(ANN, OFF, after=None)
        await redis.put_record("head", ANN, "k", b"x", PLENTY)
        await redis.delete_records(ANN)
        assert await records.latest(ANN) == OFF


@pytest.mark.redis
async def test_a_record_that_nobody_can_read_is_a_fault_and_not_a_yes(redis_server: RedisServer) -> None:
    prefix = uuid4().hex
    async with RedisLink(redis_server.url, PLENTY) as link:
        await link.client.rpush(f"{prefix}:{{{ANN.key}}}:consent", b"perhaps")
        with pytest.raises(PermanentError):
            await RedisConsent(link, prefix=prefix).latest(ANN)


async def test_owners_are_counted_by_their_latest_choice(records: ConsentRecords) -> None:
    assert not await records.counts()
    await records.add(ANN, OFF, after=None)
    await records.add(ANN, BACK_ON, after=OFF)
    for other in OTHERS[:2]:
        await records.add(other, OFF, after=None)
    assert dict(await records.counts()) == {Consent.ON: 1, Consent.OFF: 2}
