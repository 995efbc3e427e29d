"""A write that its sender gave up on, because the way to the server hung, arrives when the way is well again. By
then the caller has chosen or forgotten something through another replica: the late write must not undo that."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from memory_extproc.coordination.consent import ConsentLimits, Consents, ConsentTerms, RedisConsent
from memory_extproc.coordination.redis import RedisLedger
from memory_extproc.coordination.redis_client import LinkLimits, RedisLink
from memory_extproc.encryption.keys import RedisKeyTable, WrappedKeys
from memory_extproc.errors import TransientError
from memory_extproc.model import Consent, LedgerJob, Owner
from tests.builders import MONDAY
from tests.fixtures.faults import Link
from tests.fixtures.in_memory import InMemoryMasterKey
from tests.fixtures.milvus_server import Process
from tests.fixtures.milvus_stores import a_row, milvus_lite, opened, options
from tests.fixtures.redis import RedisServer, ask_redis, redis_server
from tests.fixtures.waiting import until

__all__ = ["milvus_lite", "redis_server"]
pytestmark = pytest.mark.redis

ANN = Owner("acme", "ann")
SOON = LinkLimits(timeout=timedelta(milliseconds=300))


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
        async with RedisLink(url, SOON) as through, RedisLink(redis_server.url, LinkLimits()) as beside:
            yield Ways(redis_server, hanging, through, beside)


@pytest.mark.parametrize("chosen", [Consent.ON, Consent.RECALL_ONLY])
async def test_a_late_choice_does_not_replace_a_later_one(ways: Ways, chosen: Consent) -> None:
    def consents(link: RedisLink) -> Consents:
        records = RedisConsent(link, prefix=ways.prefix)
        return Consents(records, ConsentTerms(), ConsentLimits(), now=lambda: MONDAY)

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


async def test_a_late_deletion_of_all_that_somebody_has_spares_what_they_said_since(
    milvus_lite: Process, tmp_path: Path
) -> None:
    old, new = a_row("I have a dog.", ANN), a_row("I have a cat.", ANN)
    async with Link(int(milvus_lite.address.rpartition(":")[2])) as hanging:
        chosen = options(tmp_path, milvus_lite.address)
        far = replace(chosen, address=f"127.0.0.1:{hanging.port}", timeout=timedelta(seconds=1))
        async with opened(chosen) as there, opened(far) as here:
            await there.put(ANN, [old])
            hanging.stall()
            with pytest.raises(TransientError):
                await here.delete_owner(ANN)
            await there.delete_owner(ANN)
            await there.put(ANN, [new])
            await hanging.mend()
            await here.get(ANN, [new.memory.id])  # behind the late call, on its connection
            found = await there.get(ANN, [old.memory.id, new.memory.id])
            assert [memory.content for memory in found] == ["I have a cat."]
