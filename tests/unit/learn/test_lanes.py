"""Order within a lane, independence between lanes, and what waits when it goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_extproc.concurrency import Backoff
from memory_extproc.errors import PermanentError, TransientError
from memory_extproc.learn.queue import OwnerQueues, QueuePolicy
from memory_extproc.model import Owner
from tests.support.builders import ANN, BOB, OTHER_ANN
from tests.unit.learn.learning import QUICK, until

NEVER = Backoff(first=timedelta(hours=1), longest=timedelta(hours=1))


class Bench:
    """Work that writes down what it did; jobs in *unlucky* raise what stands there."""

    def __init__(self, backoff: Backoff = QUICK, at_once: int = 2, together: int = 4, in_vain: int = 100) -> None:
        self.done: list[tuple[Owner, int]] = []
        self.tried: list[list[int]] = []
        self.given_up: list[int] = []
        self.unlucky: dict[int, Exception] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self.running = self.most_running = 0
        self.lanes: OwnerQueues[int] = OwnerQueues(
            "test",
            self._work,
            self._failed,
            QueuePolicy(backoff, in_vain=in_vain),
            at_once=lambda: at_once,
            together=together,
        )

    async def _work(self, owner: Owner, jobs: Sequence[int]) -> None:
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        try:
            self.tried.append(list(jobs))
            await self.gate.wait()
            for job in jobs:
                if job in self.unlucky:
                    raise self.unlucky[job]
        finally:
            self.running -= 1
        self.done += [(owner, job) for job in jobs]

    async def _failed(self, owner: Owner, job: int, error: Exception) -> bool:
        self.given_up.append(job)
        return len(self.given_up) >= 2


async def test_an_owners_jobs_run_in_order_and_what_queued_up_goes_together() -> None:
    bench = Bench()
    for job in range(10):
        bench.lanes.add(ANN, job)
    await bench.lanes.finish()
    assert bench.tried == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


async def test_owners_run_side_by_side_up_to_a_bound() -> None:
    bench = Bench(at_once=2)
    bench.gate.clear()
    for owner in (ANN, BOB, OTHER_ANN):
        bench.lanes.add(owner, 1)
    await until(lambda: bench.running == 2, "two run")
    bench.gate.set()
    await bench.lanes.finish()
    assert (len(bench.done), bench.most_running) == (3, 2)


async def test_a_job_added_the_moment_a_lane_ends_is_not_lost() -> None:
    bench = Bench()
    for job in range(200):
        bench.lanes.add(ANN, job)
        for _ in range(job % 5):
            await asyncio.sleep(0)
    await bench.lanes.finish()
    assert [job for _, job in bench.done] == list(range(200))


async def test_what_comes_while_a_lane_waits_is_tried_at_once_up_to_a_bound() -> None:
    bench = Bench(backoff=NEVER, in_vain=3)
    bench.unlucky = {job: TransientError("down") for job in range(10)}
    assert bench.lanes.add(ANN, 0)
    await until(lambda: bench.tried == [[0]], "the first was tried")
    for job in (1, 2):
        assert bench.lanes.add(ANN, job)
        await until(lambda job=job: [job] in bench.tried, "the news was tried")  # type: ignore[misc] # bound now
    assert not bench.lanes.add(ANN, 3), "as many as may wait do"
    bench.unlucky.clear()
    await bench.lanes.finish()
    assert bench.tried[3:] == [[0, 1, 2, 3]]
    assert [job for _, job in bench.done] == [0, 1, 2, 3]


async def test_news_that_gets_through_takes_what_waited_along() -> None:
    bench = Bench(backoff=NEVER)
    bench.unlucky[0] = TransientError("down")
    bench.lanes.add(ANN, 0)
    await until(lambda: bench.tried == [[0]], "the first was tried")
    bench.unlucky.clear()
    bench.lanes.add(ANN, 1)
    await until(lambda: len(bench.done) == 2, "both are done without waiting an hour")


@pytest.mark.parametrize("bug", [PermanentError("bad"), ZeroDivisionError()])
async def test_one_bad_job_is_given_up_by_itself(bug: Exception) -> None:
    bench = Bench()
    bench.unlucky[1] = bug
    for job in range(4):
        bench.lanes.add(ANN, job)
    await until(lambda: len(bench.done) == 3, "the others are done")
    assert bench.given_up == [1, 1]
    assert bench.tried[:2] == [[0, 1, 2, 3], [0]]


async def test_finishing_tries_what_waits_once_more_and_leaves_it() -> None:
    bench = Bench(backoff=NEVER)
    bench.unlucky = {0: TransientError("down")}
    bench.lanes.add(ANN, 0)
    bench.lanes.add(BOB, 1)
    await until(lambda: len(bench.tried) == 2, "both were tried")
    await asyncio.wait_for(bench.lanes.finish(), 20)
    assert (bench.done, bench.tried.count([0])) == ([(BOB, 1)], 2)


async def test_stopping_ends_work_where_it_stands() -> None:
    bench = Bench()
    bench.gate.clear()
    bench.lanes.add(ANN, 0)
    await until(lambda: bench.running, "it runs")
    await bench.lanes.stop()
    assert (bench.running, bench.done) == (0, [])


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_waits_grow_from_half_the_first_to_the_most(failures: int, chance: float) -> None:
    backoff = Backoff(first=timedelta(seconds=0.5), longest=timedelta(seconds=30), rng=lambda: chance)
    assert 0.25 <= backoff.seconds(failures) <= 30
    assert backoff.seconds(failures) <= backoff.seconds(failures + 1)
