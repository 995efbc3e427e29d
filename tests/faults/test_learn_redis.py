"""A Redis that is away, stalled, loading or refusing: an error of ours each, in bounded time."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import SecretStr
from redis import exceptions as faults
from redis.asyncio import Redis

from memory_extproc.app.context import make_context
from memory_extproc.app.coordination import open_link
from memory_extproc.coordination.redis import RedisCoordination
from memory_extproc.coordination.redis_client import Keeping, Persistence, RedisLink, translate_error
from memory_extproc.errors import (
    MemoryExtprocError,
    NotReadyError,
    PermanentError,
    TransientError,
    UnknownFaultError,
)
from memory_extproc.journal.failover import FailoverJournal
from memory_extproc.journal.redis import RedisJournal
from memory_extproc.journal.sqlite import SqliteJournal
from memory_extproc.model import TurnOutcome
from memory_extproc.settings import Settings
from tests.support.builders import ANN, MONDAY, a_turn
from tests.support.ports import free_port
from tests.support.redis import RedisServer, redis_coordination, start_redis, stop_redis
from tests.support.waiting import until

pytestmark = pytest.mark.redis
SHORTLY = timedelta(seconds=1)  # in which a Redis that is well answers on a busy machine, too

# What each of the client's exceptions comes to; one that the client adds later fails the test below.
EXPECTED: dict[str, type[MemoryExtprocError]] = {
    **dict.fromkeys(["BusyLoadingError", "ClusterDownError", "MasterDownError", "TryAgainError"], NotReadyError),
    **dict.fromkeys(
        [
            "AskError",
            "AuthenticationError",
            "AuthenticationWrongNumberOfArgsError",
            "AuthorizationError",
            "ConnectionError",
            "ExternalAuthProviderError",
            "InvalidResponse",
            "MaxConnectionsError",
            "MovedError",
            "NoPermissionError",
            "NoScriptError",
            "OutOfMemoryError",
            "ReadOnlyError",
            "RedisClusterException",
            "SlotNotCoveredError",
            "TimeoutError",
            "WatchError",
        ],
        TransientError,
    ),
    **dict.fromkeys(
        [
            "ClusterCrossSlotError",
            "ClusterError",
            "CrossSlotTransactionError",
            "ExecAbortError",
            "InvalidPipelineStack",
            "LockError",
            "LockNotOwnedError",
            "ModuleError",
            "NoSuchFieldsetError",
            "PubSubError",
            "RedisError",
            "ResponseError",
        ],
        UnknownFaultError,
    ),
    "DataError": PermanentError,
}


def test_every_exception_of_the_client_has_its_kind() -> None:
    theirs = (faults.RedisError, faults.RedisClusterException)
    classes = [
        each
        for _, each in inspect.getmembers(faults, inspect.isclass)
        if issubclass(each, theirs) and each.__module__ == faults.__name__
    ]
    found = {each.__name__: type(translate_error(each.__new__(each))) for each in classes}
    assert found == {name: EXPECTED.get(name) for name in found}


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[RedisServer]:
    server = start_redis(tmp_path)
    yield server
    stop_redis(server)


async def test_a_redis_that_is_away_is_tried_later_and_taken_up_when_it_is_there(tmp_path: Path) -> None:
    port = free_port()
    async with redis_coordination(f"redis://127.0.0.1:{port}/0", patience=SHORTLY) as coordination:
        with pytest.raises(TransientError):
            await coordination.open()
        with pytest.raises(TransientError):
            await coordination.bump(ANN)
    server = start_redis(tmp_path)
    try:
        async with redis_coordination(server.url, patience=timedelta(seconds=5)) as coordination:
            await coordination.open()
            assert await coordination.bump(ANN) == 1
    finally:
        stop_redis(server)


async def version(coordination: RedisCoordination) -> int:
    """A glance at it has 50 ms, which a busy machine does not always keep."""
    deadline = asyncio.get_running_loop().time() + 20
    while True:
        try:
            return await coordination.version(ANN)
        except TransientError:
            if asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(0.01)


async def test_a_redis_that_stalls_costs_the_timeout_and_no_more(own_server: RedisServer) -> None:
    async with redis_coordination(own_server.url, patience=SHORTLY) as coordination:
        await coordination.bump(ANN)
        own_server.stall()
        began = asyncio.get_running_loop().time()
        with pytest.raises(TransientError):
            await coordination.version(ANN)
        assert asyncio.get_running_loop().time() - began < 10 * SHORTLY.total_seconds()
        own_server.resume()
    async with redis_coordination(own_server.url, patience=timedelta(seconds=5)) as coordination:
        assert await version(coordination) == 1


async def _full(operator: Redis, _: Path) -> None:
    await operator.config_set("maxmemory", "1")


async def _a_replica(operator: Redis, _: Path) -> None:
    await operator.replicaof("127.0.0.1", "1")


async def _without_replicas(operator: Redis, _: Path) -> None:
    await operator.config_set("min-replicas-to-write", "1")


async def _without_a_disk(operator: Redis, scratch: Path) -> None:
    (scratch / "dump.rdb" / "in the way").mkdir(parents=True)
    await operator.config_set("save", "3600 1")
    await operator.bgsave()

    async def failed() -> bool:
        return bool((await operator.info("persistence"))["rdb_last_bgsave_status"] == "err")

    await until(failed, "it has noticed")


@pytest.mark.parametrize("fault", [_full, _a_replica, _without_replicas, _without_a_disk])
async def test_a_redis_that_takes_nothing_for_now_costs_no_turn(
    own_server: RedisServer, fault: Callable[[Redis, Path], Awaitable[None]], tmp_path: Path
) -> None:
    limit = timedelta(seconds=5)
    async with (
        Redis.from_url(own_server.url) as operator,
        RedisLink(own_server.url, limit) as link,
        RedisJournal(link, now=lambda: MONDAY) as shared,
        SqliteJournal(tmp_path / "spare.db", now=lambda: MONDAY) as spare,
    ):
        await fault(operator, tmp_path)
        with pytest.raises(TransientError):
            await RedisCoordination(link).bump(ANN)
        assert await FailoverJournal(shared, spare).append(a_turn("kept")) is TurnOutcome.JOURNALLED


def test_an_older_redis_says_in_mid_sentence_that_it_takes_nothing_for_now() -> None:
    said = "Error running script (call to f_1): @user_script:1: @user_script: 1: -READONLY You can't write"
    assert isinstance(translate_error(faults.ResponseError(said)), TransientError)
    assert isinstance(translate_error(faults.ResponseError("ERR of a kind that nobody knows")), UnknownFaultError)


async def test_a_wrong_password_is_named_and_no_reason_to_give_up_a_turn(own_server: RedisServer) -> None:
    async with Redis.from_url(own_server.url) as operator:
        await operator.config_set("requirepass", "right")
    limit = timedelta(seconds=5)
    async with redis_coordination(own_server.url, patience=limit, password="wrong") as coordination:
        with pytest.raises(TransientError, match="refuses our credentials"):
            await coordination.open()
    async with redis_coordination(own_server.url, patience=limit, password="right") as coordination:
        await coordination.open()


async def test_scripts_are_known_again_after_a_restart(own_server: RedisServer) -> None:
    async with (
        Redis.from_url(own_server.url) as operator,
        redis_coordination(own_server.url, patience=timedelta(seconds=5)) as coordination,
    ):
        assert await coordination.acquire("lease", "a", timedelta(minutes=1))
        await operator.script_flush()
        assert not await coordination.acquire("lease", "b", timedelta(minutes=1))


async def test_nobody_waits_for_a_redis_that_hangs_until_it_answers_again(own_server: RedisServer) -> None:
    told: list[bool] = []
    async with RedisLink(own_server.url, SHORTLY, answers=told.append) as link:
        link.SLOW = link.PAUSE = timedelta(milliseconds=10)
        coordination = RedisCoordination(link)
        await coordination.bump(ANN)
        own_server.stall()
        for _ in range(link.FAILURES):
            with pytest.raises(TransientError, match="TimeoutError"):
                await coordination.version(ANN)
        assert not link.answering
        with pytest.raises(TransientError, match="a moment ago"):
            await coordination.epoch(ANN)
        own_server.resume()
        await until(lambda: link.answering, "it is found to answer though nobody asked")
        assert await version(coordination) == 1
    assert told == [False, True]


async def test_callers_who_leave_before_the_timeout_find_out_that_it_hangs_too(own_server: RedisServer) -> None:
    async with RedisLink(own_server.url, SHORTLY) as link:
        link.SLOW = link.PAUSE = timedelta(milliseconds=10)
        coordination = RedisCoordination(link)
        own_server.stall()
        for _ in range(link.FAILURES):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await coordination.get_record("given", ANN, "k")
        assert not link.answering
        own_server.resume()


async def test_a_refusal_is_an_answer(own_server: RedisServer) -> None:
    async with Redis.from_url(own_server.url) as operator:
        await operator.config_set("requirepass", "right")
    async with RedisLink(own_server.url, timedelta(seconds=5), password=lambda: SecretStr("wrong")) as link:
        for _ in range(5):
            with pytest.raises(TransientError, match="credentials"):
                await link.open()
        assert link.answering


@pytest.mark.parametrize(
    ("settings", "keeping"),
    [
        ({"appendonly": "yes"}, Keeping(Persistence.APPENDED, evicts=False)),
        ({"save": "3600 1"}, Keeping(Persistence.SNAPSHOTS, evicts=False)),
        ({"maxmemory-policy": "allkeys-lru", "appendonly": "no"}, Keeping(Persistence.NONE, evicts=True)),
    ],
)
async def test_it_is_told_how_a_redis_keeps_what_it_is_given(
    own_server: RedisServer, settings: dict[str, str], keeping: Keeping
) -> None:
    async with (
        Redis.from_url(own_server.url) as operator,
        RedisLink(own_server.url, timedelta(seconds=5)) as link,
    ):
        for name, value in settings.items():
            await operator.config_set(name, value)
        assert await link.keeping() == keeping


async def test_a_redis_that_does_not_tell_how_it_keeps_things_is_no_fault(own_server: RedisServer) -> None:
    async with (
        Redis.from_url(own_server.url) as operator,
        RedisLink(own_server.url, timedelta(seconds=5)) as link,
    ):
        await operator.acl_setuser("default", enabled=True, nopass=True, commands=["+@all", "-config"])
        assert await link.keeping() == Keeping(Persistence.UNKNOWN, evicts=False)


async def test_another_password_counts_for_the_connections_made_from_then_on(own_server: RedisServer) -> None:
    def settings(password: str) -> Settings:
        given = {"url": own_server.url, "timeout": "3s", "password": password}
        return Settings.model_validate({"coordination": given})

    async with AsyncExitStack() as stack, RedisLink(own_server.url, timedelta(seconds=5)) as operator:
        context = make_context(settings(""), stack)
        live, link = context.live, await open_link(context)
        assert link is not None
        await link.open()
        await operator.client.config_set("requirepass", "first")
        live.reconfigure(live.merge(settings("first")))
        await operator.client.client_kill_filter(_type="normal", skipme=True)
        await link.open()
        await operator.client.config_set("requirepass", "second")
        await operator.client.client_kill_filter(_type="normal", skipme=True)
        with pytest.raises(TransientError, match="credentials"):
            await link.open()
        live.reconfigure(live.merge(settings("second")))
        await link.open()


async def test_a_user_in_the_url_goes_with_the_password(own_server: RedisServer) -> None:
    timeout = timedelta(seconds=5)
    async with RedisLink(own_server.url, timeout) as operator:
        await operator.client.acl_setuser(
            "memory", enabled=True, passwords=["+its own"], categories=["+@all"], keys=["*"]
        )
    named = own_server.url.replace("redis://", "redis://memory@")
    async with RedisLink(named, timeout, password=lambda: SecretStr("its own")) as link:
        await link.open()
        assert await link.client.acl_whoami() in {"memory", b"memory"}
