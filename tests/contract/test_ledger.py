"""The promises of every Ledger, over the one in memory, the SQLite file and a real Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from memory_extproc.coordination.redis import RedisLedger
from memory_extproc.coordination.redis_client import RedisLink
from memory_extproc.coordination.sqlite import SqliteLedger
from memory_extproc.model import LedgerJob, LedgerMarks
from memory_extproc.ports import Ledger
from memory_extproc.testing.adapters import InMemoryLedger
from tests.support.redis import RedisFleet, RedisServer, redis_cluster, redis_server

__all__ = ["redis_cluster", "redis_server"]

ANN, BOB = "a" * 64, "b" * 64


def a_job(name: str = "1", subject: str = ANN, *, shut: bool = True, open_: bool = True) -> LedgerJob:
    return LedgerJob(name * 32, subject, b"what is to be done", shut=shut, open=open_)


def holds(directory: Path, text: bytes) -> bool:
    return any(text in file.read_bytes() for file in directory.iterdir())


REDIS = [pytest.param(name, marks=pytest.mark.redis) for name in ("redis_server", "redis_cluster")]


@pytest.fixture(params=["transient", "sqlite", *REDIS])
async def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Ledger]:
    match request.param:
        case "transient":
            yield InMemoryLedger()
        case "sqlite":
            async with SqliteLedger(tmp_path / "erasure.db") as sqlite:
                yield sqlite
        case _:
            server: RedisServer | RedisFleet = request.getfixturevalue(request.param)
            async with RedisLink(server.url, timedelta(seconds=1)) as link:
                yield RedisLedger(link, prefix=uuid4().hex)


async def test_nothing_is_known_of_whom_nothing_was_forgotten(ledger: Ledger) -> None:
    assert await ledger.marks(ANN) == LedgerMarks()
    assert await ledger.list_unfinished() == []
    assert await ledger.job("0" * 32) is None


async def test_a_job_is_known_with_its_marks_once_it_is_written(ledger: Ledger) -> None:
    job = a_job()
    await ledger.write(job, cut=b"cut", items=[b"x" * 16, b"y" * 16], at=12.5)
    assert await ledger.job(job.id) == job
    assert await ledger.list_unfinished() == [job]
    assert await ledger.marks(ANN) == LedgerMarks((b"cut",), {b"x" * 16: 12.5, b"y" * 16: 12.5}, shut=True)
    assert await ledger.marks(BOB) == LedgerMarks()


async def test_marks_outlive_their_job_and_keep_the_latest_moment(ledger: Ledger) -> None:
    job = a_job()
    await ledger.write(job, cut=b"cut", items=[b"x" * 16], at=1.0)
    await ledger.write(job, cut=b"cut", items=[b"x" * 16], at=3.0)
    await ledger.write(replace(job, shut=False, open=False, body=b""), items=[b"x" * 16], at=2.0)
    assert await ledger.list_unfinished() == []
    assert await ledger.marks(ANN) == LedgerMarks((b"cut",), {b"x" * 16: 3.0}, shut=False)


async def test_an_owner_is_shut_as_long_as_one_of_their_jobs_is(ledger: Ledger) -> None:
    first, second = a_job("1"), a_job("2")
    await ledger.write(first)
    await ledger.write(second)
    await ledger.write(replace(first, shut=False))
    assert (await ledger.marks(ANN)).shut
    await ledger.write(replace(second, shut=False))
    assert not (await ledger.marks(ANN)).shut


async def test_unfinished_jobs_come_in_the_order_they_were_accepted(ledger: Ledger) -> None:
    jobs = [a_job(name) for name in "7315"]
    for job in jobs:
        await ledger.write(job)
    await ledger.write(replace(jobs[0], shut=False))
    await ledger.write(replace(jobs[2], open=False, shut=False))
    assert [job.id[0] for job in await ledger.list_unfinished()] == ["7", "3", "5"]


async def test_there_is_one_key_and_it_stays(ledger: Ledger) -> None:
    key = await ledger.key()
    assert len(key) == 32
    assert await ledger.key() == key


async def test_any_number_of_items_is_kept(ledger: Ledger) -> None:
    items = [n.to_bytes(16, "big") for n in range(5_000)]
    await ledger.write(a_job(), items=items, at=1.0)
    assert set((await ledger.marks(ANN)).items) == set(items)


async def test_what_a_finished_job_said_is_in_no_file_any_more(tmp_path: Path) -> None:
    canary = b"ann@example.com"
    async with SqliteLedger(tmp_path / "erasure.db") as ledger:
        job = replace(a_job(), body=canary)
        await ledger.write(job)
        assert holds(tmp_path, canary)
        await ledger.write(replace(job, body=b"{}", shut=False, open=False))
        assert not holds(tmp_path, canary)
    async with SqliteLedger(tmp_path / "erasure.db") as again:
        assert await again.marks(ANN) == LedgerMarks()
