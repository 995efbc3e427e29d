"""Rounds of retention: who is seen to, when, and what a fault of one costs the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest
import structlog.testing

from memory_extproc.errors import TransientError
from memory_extproc.model import MemoryState, Owner
from memory_extproc.retention.passes import PassReport
from memory_extproc.retention.scheduler import Clocks
from tests.support.builders import ANN, BOB, MONDAY, a_memory, later
from tests.support.waiting import until
from tests.unit.retention.keeping import DAY, Desk, three_budgets


async def test_a_round_sees_to_everybody_and_to_nobody_twice(desk: Desk) -> None:
    await desk.put(a_memory("a"), a_memory("b", BOB))
    job = desk.job()
    first, second = await job.round(), await job.round()
    assert (first.owners, first.passed_over) == (2, 0)
    assert (second.owners, second.passed_over) == (0, 2)
    assert (await job.round(anew=True)).owners == 2
    desk.clock.now += DAY
    assert (await job.round()).owners == 2


async def test_one_runner_has_an_owner_at_a_time(desk: Desk) -> None:
    await desk.put(a_memory("a"))
    await desk.coordination.acquire(f"retention:{ANN.key}", "another", timedelta(minutes=1))
    assert (await desk.job().one(ANN)).passed_over == 1
    await desk.coordination.release(f"retention:{ANN.key}", "another")
    assert (await desk.job().one(ANN)).owners == 1


async def test_a_runner_that_loses_its_lease_stops(desk: Desk) -> None:
    await desk.put(a_memory("a"))
    gate = desk.store.weather.hold("pages")
    running = asyncio.create_task(desk.job(lease=timedelta(milliseconds=30)).one(ANN))

    async def reads() -> bool:
        return "pages" in desk.store.weather.calls

    await until(reads, "it is reading")
    desk.clock.now += DAY  # by which the lease has run out
    await desk.coordination.acquire(f"retention:{ANN.key}", "another", timedelta(minutes=1))
    report = await running
    gate.set()
    assert (report.owners, report.passed_over) == (0, 1)


async def test_what_fails_for_one_fails_for_no_other(desk: Desk) -> None:
    class Lists:
        async def owners(self) -> AsyncIterator[list[Owner]]:
            yield [Owner("", "\0"), ANN]

    await desk.put(a_memory("a"))
    report = await desk.job(Lists()).round()
    assert (report.owners, report.failed) == (1, 1)


async def test_a_listing_that_is_cut_short_leaves_to_the_next_round_what_it_did_not_come_to(desk: Desk) -> None:
    """A large store is listed in many answers, and one of them may fail in each round."""
    await desk.put(a_memory("a", expires_at=MONDAY), a_memory("b", BOB, expires_at=MONDAY))
    rounds: list[list[Owner | None]] = [[ANN, None, BOB], [ANN, BOB]]

    class Lists:
        async def owners(self) -> AsyncIterator[list[Owner]]:
            for owner in rounds.pop(0):
                if owner is None:
                    raise TransientError("one answer took too long")
                yield [owner]

    job = desk.job(Lists())
    with pytest.raises(TransientError):
        await job.round()
    report = await job.round()
    assert (report.owners, report.passed_over, report.failed) == (1, 1, 0)


async def test_a_bug_that_one_owners_memories_bring_out_ends_no_round(desk: Desk) -> None:
    await desk.put(a_memory("a"), replace(a_memory("b"), owner=BOB))
    keeper = desk.keeper()

    class Broken:
        """The one method that a round asks for."""

        async def keep(self, owner: Owner, *, dry_run: bool = False) -> PassReport:
            if owner == ANN:
                raise ValueError("what nobody thought of")
            return await keeper.keep(owner, dry_run=dry_run)

    report = await desk.job(keeper=Broken()).round()
    assert (report.owners, report.failed) == (1, 1)


async def test_rounds_run_in_the_background_again_and_again_through_a_store_that_is_away(desk: Desk) -> None:
    await desk.put(a_memory("over", expires_at=MONDAY))
    short = timedelta(milliseconds=5)
    job = desk.job(every=lambda: short, again=short)
    desk.store.weather.down = True

    async def tried_twice() -> bool:
        return desk.store.weather.calls.count("owners") >= 2

    async def done_twice() -> bool:
        return desk.rounds() >= 2

    async with job:
        await until(tried_twice, "both were tried")
        desk.store.weather.down = False
        await until(done_twice, "both are done")
    assert (await desk.rows()).popitem()[1].state is MemoryState.DELETED


async def test_while_the_clock_is_ahead_of_time_nothing_is_too_old(desk: Desk) -> None:
    await desk.put(a_memory("kept", expires_at=later(days=60)))
    short = timedelta(milliseconds=5)
    job = desk.job(every=lambda: short, again=short, clocks=Clocks(desk.clock, lambda: 0.0))
    right = desk.clock.now
    desk.clock.now = later(days=400)

    async def doubted_twice() -> bool:
        return len([one for one in entries if one["event"] == "retention.clock_ahead"]) >= 2

    async def done() -> bool:
        return desk.rounds() >= 1

    with structlog.testing.capture_logs() as entries:
        async with job:
            await until(doubted_twice, "the clock was doubted twice")
            assert desk.rounds() == 0
            desk.clock.now = right
            await until(done, "the round is done")
    assert (await desk.rows()).popitem()[1].state is MemoryState.ACTIVE


async def test_who_forgot_something_is_seen_to_soon(desk: Desk) -> None:
    await desk.put(*three_budgets())
    job = desk.job()
    await job.one(ANN)
    async with job:
        await desk.partitions.delete(ANN, ["budget-1"])
        job.request_pass(ANN)

        async def speaks_again() -> bool:
            return [one.id for one in await desk.active()] == ["budget-3"]

        await until(speaks_again, "it speaks again")


async def test_who_forgot_something_waits_for_one_caller_of_a_round_and_not_for_all_of_it(desk: Desk) -> None:
    callers = [Owner("", f"caller-{number}") for number in range(3)]
    seen: list[Owner] = []

    class Lists:
        async def owners(self) -> AsyncIterator[list[Owner]]:
            yield callers

    class Keeps:
        async def keep(self, owner: Owner, *, dry_run: bool = False) -> PassReport:
            if not seen:
                job.request_pass(BOB)  # who forgets something while the round is with its first caller
            seen.append(owner)
            return PassReport()

        async def mend(self, owner: Owner) -> PassReport:
            seen.append(owner)
            return PassReport()

    job = desk.job(Lists(), keeper=Keeps())
    report = await job.round()
    assert seen == [callers[0], BOB, *callers[1:]]
    assert report.owners == len(callers)


async def test_without_a_schedule_nobody_is_gone_through_and_what_was_corrected_is_seen_to(desk: Desk) -> None:
    await desk.put(*three_budgets(), a_memory("over", expires_at=MONDAY))
    await desk.keeper(half_life=DAY).mend(ANN)
    async with desk.job(every=lambda: None) as job:
        await desk.partitions.delete(ANN, ["budget-1"])
        job.request_pass(ANN)

        async def made_anew() -> bool:
            return any("(first $11,000)" in one.content for one in await desk.active()) or not any(
                one.provenance.derived for one in await desk.active()
            )

        await until(made_anew, "it is made anew")
    assert "over" in {one.content for one in await desk.active()}
    assert "owners" not in desk.store.weather.calls


async def test_a_schedule_may_be_given_taken_and_changed_while_it_runs(desk: Desk) -> None:
    await desk.put(*three_budgets())
    seen: list[Owner] = []

    class Keeps:
        """Whom a round keeps is counted by the round itself; who is seen to soon stands in *seen*."""

        async def keep(self, owner: Owner, *, dry_run: bool = False) -> PassReport:
            return PassReport()

        async def mend(self, owner: Owner) -> PassReport:
            seen.append(owner)
            return PassReport()

    every: timedelta | None = None
    job = desk.job(every=lambda: every, keeper=Keeps())

    async def came_round() -> None:
        """Twice through what it does when it is woken: sees to who is to be seen to, then looks at the schedule."""
        for _ in range(2):
            before = len(seen)
            job.request_pass(BOB)

            async def seen_to(before: int = before) -> bool:
                return len(seen) > before

            await until(seen_to, "it is seen to")

    async def went_round() -> bool:
        return desk.rounds() > 0

    async with job:
        await came_round()
        assert not desk.rounds(), "by command alone"
        every = timedelta(hours=24)
        job.reschedule()
        await came_round()
        assert not desk.rounds(), "the first of a day's rounds is minutes away"
        every = timedelta(milliseconds=1)
        job.reschedule()
        await until(went_round, "the round is over")
        every = None
        job.reschedule()
        await came_round()
        done = desk.rounds()
        await came_round()
        assert desk.rounds() == done


async def test_the_store_not_being_there_is_told_to_who_asked_for_a_round(desk: Desk) -> None:
    desk.store.weather.down = True
    with pytest.raises(TransientError):
        await desk.job().round()
