"""A task that is cancelled while Redis is asked ends, whatever the client makes of it."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from redis import exceptions as faults

from memory_extproc.coordination.redis_client import RedisLink
from memory_extproc.errors import TransientError
from tests.support.waiting import until

NOBODY = "redis://127.0.0.1:1"
TIMEOUT = timedelta(seconds=30)


@pytest.mark.parametrize("answer", ["an answer", "an error"])
async def test_who_is_told_to_end_as_redis_takes_the_command_ends(answer: str) -> None:
    taken: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    asked = asyncio.Event()

    async def command() -> str:
        asked.set()
        return await asyncio.wait_for(taken, 30)  # as redis-py does while it sends

    async with RedisLink(NOBODY, TIMEOUT) as link:
        task = asyncio.create_task(link.limit_time(command()))
        await asked.wait()
        if answer == "an answer":
            taken.set_result(answer)
        else:
            taken.set_exception(faults.ConnectionError(answer))
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()


async def test_who_is_not_told_to_end_gets_what_redis_answers() -> None:
    async def answer() -> str:
        return await asyncio.wait_for(asyncio.sleep(0, "an answer"), 30)

    async def refusal() -> str:
        raise faults.ConnectionError

    async def written_to_a_closed_connection() -> str:
        raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")

    async def fault_of_ours() -> str:
        raise RuntimeError("generator raised StopIteration")

    async with RedisLink(NOBODY, TIMEOUT) as link:
        assert await link.limit_time(answer()) == "an answer"
        with pytest.raises(TransientError):
            await link.limit_time(refusal())
        with pytest.raises(TransientError):
            await link.limit_time(written_to_a_closed_connection())
        with pytest.raises(RuntimeError):
            await link.limit_time(fault_of_ours())


async def test_what_is_tidied_up_after_the_end_still_reaches_redis() -> None:
    """A lease is given back by a task that was told to end already."""
    given_back: list[str] = []
    began = asyncio.Event()

    async def give_back() -> None:
        given_back.append(await asyncio.wait_for(asyncio.sleep(0, "lease"), 30))

    async def works(link: RedisLink) -> None:
        try:
            began.set()
            await asyncio.Event().wait()
        finally:
            await link.limit_time(give_back())

    async with RedisLink(NOBODY, TIMEOUT) as link:
        task = asyncio.create_task(works(link))
        await began.wait()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
    assert given_back == ["lease"]


async def test_redis_is_asked_for_until_it_answers_whatever_the_client_raises_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    faults_left = [RuntimeError("a bug of the client"), faults.ConnectionError(), IndexError()]

    async def ping() -> None:
        if faults_left:
            raise faults_left.pop()

    async def away() -> None:
        raise faults.ConnectionError

    async with RedisLink(NOBODY, TIMEOUT) as link:
        monkeypatch.setattr(link.client, "ping", ping)
        link.FAILURES, link.PAUSE = 1, timedelta()
        with pytest.raises(TransientError):
            await link.limit_time(away())
        await until(lambda: link.answering, "it answers")
        assert not faults_left
