"""A write that its sender gave up on, because the way to the server hung, arrives when the way is well again; a
stopped process goes on. By then the caller has chosen, forgotten or said something through another replica, and the
late write must not undo it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from memory_extproc.coordination.consent import Consents, RedisConsent
from memory_extproc.coordination.redis import RedisLedger
from memory_extproc.coordination.redis_client import RedisLink
from memory_extproc.encryption.keys import RedisKeyTable, WrappedKeys
from memory_extproc.errors import TransientError
from memory_extproc.model import Consent, LedgerJob, Owner
from memory_extproc.settings import CurrentSettings, Settings
from memory_extproc.store.milvus.options import MilvusOptions
from memory_extproc.store.milvus.store import MilvusStore
from tests.support.builders import MONDAY
from tests.support.faults import Link
from tests.support.in_memory import InMemoryMasterKey
from tests.support.milvus_server import Process
from tests.support.milvus_stores import a_row, metrics, milvus_lite, on_monday, opened, options
from tests.support.redis import RedisServer, ask_redis, redis_server
from tests.support.waiting import until

__all__ = ["milvus_lite", "redis_server"]
pytestmark = pytest.mark.redis

ANN = Owner("acme", "ann")
SOON = timedelta(milliseconds=300)


class Ways:
    """Two replicas' ways to one Redis, of which one hangs at times."""

    def __init__(self, server: RedisServer, hanging: Link, through: RedisLink, beside: RedisLink) -> None:
        self._server, self._hanging, self.through, self.beside = server, hanging, through, beside
        self.prefix = uuid4().hex

    async def given_up(self, write: Awaitable[Any]) -> None:
        """Sends *write* on the way that hangs from now on."""
        self._hanging.stall()
        with pytest.raises(TransientError):
            await write

    async def arrives(self) -> None:
        """The way is well again, and the server has taken in all that waited on it."""
        before = self._calls()
        await self._hanging.mend()
        await until(lambda: self._calls() > before, "the late command is there")

    def _calls(self) -> int:
        """Commands that the server has carried out, but for those that look for them."""
        told = ask_redis(self._server, "INFO", "commandstats")
        lines = [line for line in told.splitlines() if line.startswith("cmdstat_") and "cmdstat_info" not in line]
        return sum(int(line.partition("calls=")[2].partition(",")[0]) for line in lines)


@pytest.fixture
async def ways(redis_server: RedisServer) -> AsyncIterator[Ways]:
    async with Link(redis_server.port) as hanging:
        url = f"redis://127.0.0.1:{hanging.port}/0"
        async with RedisLink(url, SOON) as through, RedisLink(redis_server.url, timedelta(seconds=1)) as beside:
            yield Ways(redis_server, hanging, through, beside)


@pytest.mark.parametrize("chosen", [Consent.ON, Consent.RECALL_ONLY])
async def test_a_late_choice_does_not_replace_a_later_one(ways: Ways, chosen: Consent) -> None:
    def consents(link: RedisLink) -> Consents:
        records = RedisConsent(link, prefix=ways.prefix)
        return Consents(records, CurrentSettings(Settings()), now=lambda: MONDAY)

    here, there = consents(ways.through), consents(ways.beside)
    await here.set(ANN, Consent.OFF, by="ann")
    await ways.given_up(here.set(ANN, chosen, by="ann"))
    await there.set(ANN, chosen, by="ann")
    last = Consent.OFF if chosen is Consent.ON else Consent.ON
    await there.set(ANN, last, by="ann")
    await ways.arrives()
    assert await there.get(ANN) is last


async def test_a_late_end_of_a_key_does_not_end_the_key_after_it(ways: Ways) -> None:
    master = InMemoryMasterKey()
    here, there = (
        WrappedKeys(RedisKeyTable(link, prefix=ways.prefix), master) for link in (ways.through, ways.beside)
    )
    await here.of(ANN)
    await ways.given_up(here.destroy(ANN))
    await there.destroy(ANN)
    after = await there.of(ANN)
    await ways.arrives()
    assert await there.find(ANN) == after


async def test_a_late_step_of_a_forget_does_not_begin_it_anew(ways: Ways) -> None:
    here, there = (RedisLedger(link, prefix=ways.prefix) for link in (ways.through, ways.beside))
    accepted = LedgerJob("1" * 32, ANN.key, b"accepted", shut=True, open=True)
    clean = LedgerJob("1" * 32, ANN.key, b"clean", shut=False, open=True)
    complete = LedgerJob("1" * 32, ANN.key, b"complete", shut=False, open=False)
    await here.write(accepted, cut=b"cut")
    await ways.given_up(here.write(accepted, cut=b"cut"))
    await there.write(clean)
    await there.write(complete)
    await ways.arrives()
    assert await there.job(accepted.id) == complete
    assert await there.list_unfinished() == []
    assert not (await there.marks(ANN.key)).shut


class HeldUp(MilvusStore):
    """Of a process that is stopped before it deletes."""

    def __init__(self, chosen: MilvusOptions) -> None:
        super().__init__(chosen, metrics(), now=on_monday)
        self.reached, self.goes_on = asyncio.Event(), asyncio.Event()

    async def _delete(self, *args: Any) -> None:
        self.reached.set()
        await self.goes_on.wait()
        await super()._delete(*args)


async def test_a_late_deletion_of_all_that_somebody_has_spares_what_they_said_since(
    milvus_lite: Process, tmp_path: Path
) -> None:
    old, new = a_row("I have a dog.", ANN), a_row("I have a cat.", ANN)
    chosen = options(tmp_path, milvus_lite.address)
    held_up = HeldUp(chosen)
    async with opened(chosen) as store:
        await store.put(ANN, [old])
        await held_up.open()
        deleting = asyncio.create_task(held_up.delete_owner(ANN))
        await held_up.reached.wait()
        await store.delete_owner(ANN)
        await store.put(ANN, [new])
        held_up.goes_on.set()
        await deleting
        found = await store.get(ANN, [old.memory.id, new.memory.id])
        assert [memory.content for memory in found] == ["I have a cat."]
        await held_up.close()
