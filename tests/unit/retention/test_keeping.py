"""Memories that say the same become one, one thing's values over time become one, and nothing current is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
import structlog.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from memory_extproc.coordination.transient import TransientCoordination
from memory_extproc.erasure.closure import closure
from memory_extproc.errors import TryLaterError
from memory_extproc.inference.canned import CannedEmbedder
from memory_extproc.learn.same import about, agree, saying
from memory_extproc.model import (
    Embedded,
    ForgetScope,
    Memory,
    MemoryState,
    MemoryType,
    Outcome,
    Owner,
    Ranked,
    Recalled,
    Scope,
    Source,
    Wish,
)
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import MemoryStore
from memory_extproc.retention.accesses import Accesses, AccessLimits, CountedRecalls
from memory_extproc.retention.clocks import Clocks
from memory_extproc.retention.job import JobLimits, RetentionJob
from memory_extproc.retention.keeper import Keeper, KeeperRules, Kept, Wording
from memory_extproc.retention.reasons import Reason
from memory_extproc.retention.rules import RetentionRules
from memory_extproc.store.partition import PartitionLimits, Partitions
from memory_extproc.store.transient import TransientStore
from tests.builders import ANN, BOB, MONDAY, a_memory, a_wish, later

WORDING = Wording(says=saying, about=about, agree=agree)
DAY = timedelta(days=1)


class Clock:
    def __init__(self) -> None:
        self.now = later(days=40)

    def __call__(self) -> datetime:
        return self.now


@dataclass
class Desk:
    """A store, its partitions and a keeper before them."""

    clock: Clock
    store: TransientStore
    coordination: TransientCoordination
    partitions: Partitions
    embedder: CannedEmbedder
    metrics: Metrics

    def keeper(
        self, *, reads: MemoryStore | None = None, embedder: CannedEmbedder | None = None, **rules: Any
    ) -> Keeper:
        given = KeeperRules(retention=RetentionRules(**rules))
        partitions, embeds = self.partitions, embedder or self.embedder
        return Keeper(reads or self.store, partitions, partitions, embeds, given, WORDING, now=self.clock)

    def job(
        self,
        lists: Any = None,
        limits: JobLimits | None = None,
        keeper: Any = None,
        clocks: Clocks | None = None,
    ) -> RetentionJob:
        self.metrics = Metrics(CollectorRegistry(), "test")
        return RetentionJob(
            lists or self.store,
            keeper or self.keeper(),
            self.coordination,
            limits or JobLimits(pause=timedelta(), settle=timedelta()),
            self.metrics,
            holder="one",
            now=self.clock,
            chance=lambda: 0.5,
            clocks=clocks,
        )

    def rounds(self) -> float:
        return self.metrics.registry.get_sample_value("memory_extproc_retention_rounds_total") or 0.0

    async def put(self, *memories: Memory) -> None:
        for memory in memories:
            vector = (await self.embedder.embed([memory.content]))[0]
            await self.partitions.put(memory.owner, [Embedded(memory, vector)])

    async def rows(self, owner: Owner = ANN) -> dict[str, Memory]:
        pages = self.store.pages(owner, 100, fresh=True)
        return {row.memory.id: row.memory async for page in pages for row in page}

    async def active(self, owner: Owner = ANN) -> list[Memory]:
        found = [row for row in (await self.rows(owner)).values() if row.state is MemoryState.ACTIVE]
        return sorted(found, key=lambda memory: memory.content)


@pytest.fixture
def desk() -> Desk:
    clock = Clock()
    embedder = CannedEmbedder()
    store, coordination = TransientStore(embedder.dimension, now=clock), TransientCoordination(clock)
    metrics = Metrics(CollectorRegistry(), "test")
    partitions = Partitions(store, coordination, PartitionLimits(), metrics, now=clock)
    return Desk(clock, store, coordination, partitions, embedder, metrics)


def a_fact(content: str, attribute: str, value: str, subject: str = "user", **changes: Any) -> Memory:
    metadata = {"subject": subject, "attribute": attribute, "value": value, "turn": f"turn of {content}"}
    return a_memory(content, **{"metadata": metadata, **changes})


def a_budget(value: str, day: int, **changes: Any) -> Memory:
    at = later(days=day)
    return a_fact(
        f"Hawaii trip budget: {value}.", "budget", value, "Hawaii trip",
        id=f"budget-{day}", created_at=at, updated_at=at, valid_from=at, **changes,
    )  # fmt: skip


def three_budgets() -> list[Memory]:
    first, second, third = a_budget("$10,000", 1), a_budget("$11,000", 2), a_budget("$12,000", 3)

    def replaced(old: Memory, by: Memory) -> Memory:
        return replace(old, state=MemoryState.SUPERSEDED, superseded_by=by.id, valid_to=by.created_at)

    return [replaced(first, second), replaced(second, third), third]


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(10):
        while not await condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.001)


# --- the same said more than once ----------------------------------------------------------------------
async def test_facts_that_say_the_same_become_the_best_of_them_with_the_average_importance(desk: Desk) -> None:
    best = a_memory("Likes sushi", importance=0.9)
    again = a_memory("likes  sushi.", importance=0.3)
    await desk.put(best, again)
    kept = await desk.keeper().keep(ANN)
    (left,) = await desk.active()
    assert left.id == best.id
    assert left.importance == pytest.approx(0.6)
    assert (await desk.rows())[again.id].superseded_by == best.id
    assert kept.merged == 1
    assert (await desk.keeper().keep(ANN)).merged == 0


async def test_near_facts_about_two_things_both_stay(desk: Desk) -> None:
    desk.embedder = CannedEmbedder()
    flights = [a_memory("Flight to Rome on May 3"), a_memory("Flight to Rome on May 8")]
    vector = (await desk.embedder.embed(["Flight"]))[0]
    for flight in flights:
        await desk.partitions.put(ANN, [Embedded(flight, vector)])
    await desk.keeper().keep(ANN)
    assert len(await desk.active()) == 2


@pytest.mark.parametrize(
    "other",
    [
        {"project": "hawaii"},
        {"type": MemoryType.PROCEDURAL},
        {"source": Source.VERBATIM},
        {"expires_at": later(days=90)},
        {"state": MemoryState.QUARANTINED},
    ],
)
async def test_what_differs_in_kind_is_no_duplicate(desk: Desk, other: dict[str, Any]) -> None:
    await desk.put(a_memory("Likes sushi", id="one"), a_memory("Likes sushi", id="two", **other))
    assert (await desk.keeper().keep(ANN)).merged == 0


async def test_a_pinned_one_stays_before_a_better_one(desk: Desk) -> None:
    pinned = a_memory("Likes sushi", id="pinned", importance=0.1, metadata={"pinned": True})
    await desk.put(pinned, a_memory("Likes sushi", id="better", importance=1.0))
    await desk.keeper().keep(ANN)
    assert [memory.id for memory in await desk.active()] == ["pinned"]


# --- one thing over time -------------------------------------------------------------------------------
async def test_values_of_one_thing_over_time_become_one_memory_that_names_its_sources(desk: Desk) -> None:
    await desk.put(*three_budgets())
    kept = await desk.keeper().keep(ANN)
    (made,) = await desk.active()
    assert made.content == "Hawaii trip budget: $12,000 (first $10,000, then $11,000)."
    assert made.metadata["sources"] == ["budget-3", "budget-1", "budget-2"]
    assert made.metadata["value"] == "$12,000"
    assert made.embed_model == desk.embedder.fingerprint
    assert (await desk.rows())["budget-3"].superseded_by == made.id
    assert kept.derived == 1
    again = await desk.keeper().keep(ANN)
    assert (again.derived, again.retired.total(), again.revived) == (0, 0, 0)


async def test_a_newer_value_takes_the_made_ones_place_and_is_made_anew_with_all_before(desk: Desk) -> None:
    await desk.put(*three_budgets())
    await desk.keeper().keep(ANN)
    (made,) = await desk.active()
    newest = a_budget("$15,000", 45)
    desk.clock.now = later(days=46)
    await desk.put(newest)
    await desk.partitions.supersede(ANN, made.id, newest.id, newest.created_at)
    await desk.keeper().keep(ANN)
    (anew,) = await desk.active()
    assert anew.content == "Hawaii trip budget: $15,000 (first $10,000, then $11,000, then $12,000)."


async def test_a_value_that_was_told_for_a_time_only_is_named_in_nothing_that_lasts(desk: Desk) -> None:
    first, *others = three_budgets()
    await desk.put(replace(first, expires_at=later(days=400)), *others)
    assert (await desk.keeper().keep(ANN)).derived == 0
    assert "budget-3" in {memory.id for memory in await desk.active()}


async def test_of_things_with_several_values_at_a_time_each_stays(desk: Desk) -> None:
    dogs = [a_fact(f"has a dog named {name}", "dog", name) for name in ("Rex", "Bella", "Max")]
    await desk.put(*dogs)
    assert (await desk.keeper().keep(ANN)).derived == 0
    assert len(await desk.active()) == 3


async def test_when_an_earlier_value_is_forgotten_the_current_one_speaks_for_itself_again(desk: Desk) -> None:
    await desk.put(*three_budgets())
    await desk.keeper().keep(ANN)
    taken = closure((await desk.rows()).values(), ForgetScope(ids=("budget-1",)), later(days=99).timestamp())
    assert "budget-3" not in taken.memories
    await desk.partitions.delete(ANN, sorted(taken.memories))
    await desk.keeper().keep(ANN)
    (left,) = await desk.active()
    assert (left.id, left.content) == ("budget-3", "Hawaii trip budget: $12,000.")
    assert not any("10,000" in memory.content for memory in (await desk.rows()).values())


async def test_forgetting_what_was_made_takes_its_sources_along(desk: Desk) -> None:
    await desk.put(*three_budgets())
    await desk.keeper().keep(ANN)
    (made,) = await desk.active()
    rows = (await desk.rows()).values()
    assert closure(rows, ForgetScope(ids=(made.id,)), later(days=99).timestamp()).memories.keys() == {
        memory.id for memory in rows
    }


values = st.lists(st.integers(1, 6).map(lambda number: f"${number},000"), min_size=1, max_size=8)


@settings(max_examples=40, deadline=None)
@given(things=st.dictionaries(st.sampled_from(["rent", "budget", "car"]), values, min_size=1))
async def test_no_value_is_lost_that_was_current(things: dict[str, list[str]]) -> None:
    clock = Clock()
    embedder = CannedEmbedder()
    store, coordination = TransientStore(embedder.dimension, now=clock), TransientCoordination(clock)
    metrics = Metrics(CollectorRegistry(), "test")
    partitions = Partitions(store, coordination, PartitionLimits(), metrics, now=clock)
    desk = Desk(clock, store, coordination, partitions, embedder, metrics)
    for thing, said in things.items():
        before = ""
        for day, value in enumerate(said):
            at = later(days=day)
            row = a_fact(
                f"The {thing} is {value}", "cost", value, thing,
                id=f"{thing}-{day}", created_at=at, updated_at=at, valid_from=at,
            )  # fmt: skip
            await desk.put(row)
            if before:
                await partitions.supersede(ANN, before, row.id, at)
            before = row.id
            if day % 3 == 2:
                await desk.keeper().keep(ANN)
                active = [one.id for one in await desk.active() if one.metadata["subject"] == thing]
                (before,) = active
    await desk.keeper().keep(ANN)
    current = {one.metadata["subject"]: one for one in await desk.active()}
    assert current.keys() == things.keys()
    for thing, said in things.items():
        assert current[thing].content.startswith(f"The {thing} is {said[-1]}")
        if current[thing].metadata.get("derived"):
            assert all(value in current[thing].content for value in said)


# --- applied to the store ------------------------------------------------------------------------------
async def test_a_dry_run_counts_what_a_run_then_does_and_changes_nothing(desk: Desk) -> None:
    await desk.put(*three_budgets(), *(a_memory(f"fact {n}", importance=n / 10) for n in range(8)))
    await desk.put(a_memory("Likes sushi"), a_memory("likes sushi"))
    keeper = desk.keeper(max_memories=10)
    before = await desk.rows()
    foreseen = await keeper.keep(ANN, dry_run=True)
    assert await desk.rows() == before
    assert await keeper.keep(ANN) == foreseen
    assert foreseen.retired == {Reason.CAP: 2}
    assert (foreseen.merged, foreseen.derived) == (1, 1)


async def test_what_goes_is_recalled_by_nobody_at_once_and_gone_for_good_after_its_grace(desk: Desk) -> None:
    worst = a_memory("worst", importance=0.0)
    await desk.put(worst, *(a_memory(f"fact {n}") for n in range(3)))
    assert (await desk.keeper(max_memories=3, prune_share=0).keep(ANN)).retired == {Reason.CAP: 1}
    vector = (await desk.embedder.embed(["worst"]))[0]
    found = (await desk.partitions.nearest(ANN, vector, 10, Scope())).found
    assert worst.id not in {one.memory.id for one in found}
    assert (await desk.rows())[worst.id].metadata["retired"] == "cap"
    desk.clock.now += 31 * DAY
    assert (await desk.keeper(max_memories=3, prune_share=0).keep(ANN)).erased == 1
    assert worst.id not in await desk.rows()


class Meanwhile(TransientStore):
    """Something happens between the reading and the writing."""

    happens: Callable[[], Any]

    async def pages(self, owner: Owner, size: int, *, fresh: bool) -> AsyncIterator[Any]:
        async for page in super().pages(owner, size, fresh=fresh):
            yield page
        await self.happens()


@pytest.mark.parametrize("what", ["corrected", "forgotten"])
async def test_what_changes_while_it_is_worked_out_is_left_as_it_was_changed(desk: Desk, what: str) -> None:
    worst = a_memory("worst", importance=0.0)
    await desk.put(worst, a_memory("better", importance=1.0))
    store = Meanwhile(desk.embedder.dimension, now=desk.clock)
    async for page in desk.store.pages(ANN, 100, fresh=True):
        await store.put(ANN, page)

    async def happens() -> None:
        if what == "forgotten":
            await desk.partitions.delete(ANN, [worst.id])
        else:
            changed = replace(worst, content="corrected", importance=1.0)
            await desk.partitions.change(ANN, worst.id, lambda row: [Embedded(changed, row.vector)])

    store.happens = happens
    assert not (await desk.keeper(reads=store, max_memories=1).keep(ANN)).retired
    left = (await desk.rows()).get(worst.id)
    assert left is None if what == "forgotten" else left is not None and left.state is MemoryState.ACTIVE


# --- rounds --------------------------------------------------------------------------------------------
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
    limits = JobLimits(pause=timedelta(), lease=timedelta(milliseconds=30))
    running = asyncio.create_task(desk.job(limits=limits).one(ANN))

    async def reads() -> bool:
        return "pages" in desk.store.weather.calls

    await until(reads)
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
                    raise TryLaterError("one answer took too long")
                yield [owner]

    job = desk.job(Lists(), limits=JobLimits(pause=timedelta()))
    with pytest.raises(TryLaterError):
        await job.round()
    report = await job.round()
    assert (report.owners, report.passed_over, report.failed) == (1, 1, 0)


async def test_a_bug_that_one_owners_memories_bring_out_ends_no_round(desk: Desk) -> None:
    await desk.put(a_memory("a"), replace(a_memory("b"), owner=BOB))
    keeper = desk.keeper()

    class Broken:
        """The one method that a round asks for."""

        async def keep(self, owner: Owner, *, dry_run: bool = False) -> Kept:
            if owner == ANN:
                raise ValueError("what nobody thought of")
            return await keeper.keep(owner, dry_run=dry_run)

    report = await desk.job(keeper=Broken()).round()
    assert (report.owners, report.failed) == (1, 1)


async def test_rounds_run_in_the_background_again_and_again_through_a_store_that_is_away(desk: Desk) -> None:
    await desk.put(a_memory("over", expires_at=MONDAY))
    short = timedelta(milliseconds=5)
    job = desk.job(limits=JobLimits(every=short, first=short, again=short, pause=timedelta()))
    desk.store.weather.down = True

    async def tried_twice() -> bool:
        return desk.store.weather.calls.count("owners") >= 2

    async def done_twice() -> bool:
        return desk.rounds() >= 2

    async with job:
        await until(tried_twice)
        desk.store.weather.down = False
        await until(done_twice)
    assert (await desk.rows()).popitem()[1].state is MemoryState.DELETED


async def test_while_the_clock_is_ahead_of_time_nothing_is_too_old(desk: Desk) -> None:
    await desk.put(a_memory("kept", expires_at=later(days=60)))
    short = timedelta(milliseconds=5)
    limits = JobLimits(every=short, first=short, again=short, pause=timedelta())
    job = desk.job(limits=limits, clocks=Clocks(desk.clock, lambda: 0.0))
    right = desk.clock.now
    desk.clock.now = later(days=400)

    async def doubted_twice() -> bool:
        return len([one for one in entries if one["event"] == "retention.clock_ahead"]) >= 2

    async def done() -> bool:
        return desk.rounds() >= 1

    with structlog.testing.capture_logs() as entries:
        async with job:
            await until(doubted_twice)
            assert desk.rounds() == 0
            desk.clock.now = right
            await until(done)
    assert (await desk.rows()).popitem()[1].state is MemoryState.ACTIVE


async def test_who_forgot_something_is_seen_to_soon(desk: Desk) -> None:
    await desk.put(*three_budgets())
    job = desk.job()
    await job.one(ANN)
    async with job:
        await desk.partitions.delete(ANN, ["budget-1"])
        job.soon(ANN)

        async def speaks_again() -> bool:
            return [one.id for one in await desk.active()] == ["budget-3"]

        await until(speaks_again)


async def test_without_a_schedule_nobody_is_gone_through_and_what_was_corrected_is_seen_to(desk: Desk) -> None:
    await desk.put(*three_budgets(), a_memory("over", expires_at=MONDAY))
    await desk.keeper(half_life=DAY).mend(ANN)
    async with desk.job(limits=JobLimits(every=None, pause=timedelta(), settle=timedelta())) as job:
        await desk.partitions.delete(ANN, ["budget-1"])
        job.soon(ANN)

        async def made_anew() -> bool:
            return any("(first $11,000)" in one.content for one in await desk.active()) or not any(
                one.metadata.get("derived") for one in await desk.active()
            )

        await until(made_anew)
    assert "over" in {one.content for one in await desk.active()}
    assert "owners" not in desk.store.weather.calls


async def test_a_schedule_may_be_given_taken_and_changed_while_it_runs(desk: Desk) -> None:
    await desk.put(*three_budgets())
    seen: list[Owner] = []

    class Keeps:
        """Whom a round keeps is counted by the round itself; who is seen to soon stands in *seen*."""

        async def keep(self, owner: Owner, *, dry_run: bool = False) -> Kept:
            return Kept()

        async def mend(self, owner: Owner) -> Kept:
            seen.append(owner)
            return Kept()

    by_command = JobLimits(every=None, pause=timedelta(), settle=timedelta())
    job = desk.job(limits=by_command, keeper=Keeps())

    async def came_round() -> None:
        """Twice through what it does when it is woken: sees to who is to be seen to, then looks at the schedule."""
        for _ in range(2):
            before = len(seen)
            job.soon(BOB)

            async def seen_to(before: int = before) -> bool:
                return len(seen) > before

            await until(seen_to)

    async def went_round() -> bool:
        return desk.rounds() > 0

    async with job:
        await came_round()
        assert not desk.rounds(), "by command alone"
        job.use(replace(by_command, every=timedelta(hours=24)))
        await came_round()
        assert not desk.rounds(), "the first of a day's rounds is minutes away"
        job.use(replace(by_command, every=timedelta(milliseconds=1)))
        await until(went_round)
        job.use(by_command)
        await came_round()
        done = desk.rounds()
        await came_round()
        assert desk.rounds() == done


# --- accesses ------------------------------------------------------------------------------------------
def counting(desk: Desk, **limits: Any) -> Accesses:
    return Accesses(desk.partitions, AccessLimits(**limits), now=desk.clock, chance=lambda: 0.5)


async def test_accesses_are_counted_without_a_write_each_and_written_together(desk: Desk) -> None:
    one, two = a_memory("one"), a_memory("two")
    await desk.put(one, two)
    before = len(desk.store.weather.calls)
    async with counting(desk) as accesses:
        for _ in range(5):
            accesses.note([one, two])
        assert len(desk.store.weather.calls) == before
    rows = await desk.rows()
    assert rows[one.id].access_count == rows[two.id].access_count == 5
    assert rows[one.id].metadata["accessed"] == int(desk.clock.now.timestamp())
    assert desk.store.weather.calls[before:].count("put") == 1


async def test_counting_undoes_no_correction_and_brings_nothing_forgotten_back(desk: Desk) -> None:
    one, two, three = a_memory("one"), a_memory("two"), a_memory("three")
    await desk.put(one, two, three)
    accesses = counting(desk)
    accesses.note([one, two, three])
    corrected = replace(one, content="corrected")
    await desk.partitions.change(ANN, one.id, lambda row: [Embedded(corrected, row.vector)])
    await desk.partitions.delete(ANN, [two.id])
    await desk.partitions.supersede(ANN, three.id, one.id, MONDAY)
    assert await accesses.write() == 1
    rows = await desk.rows()
    assert (rows[one.id].content, rows[one.id].access_count) == ("corrected", 1)
    assert two.id not in rows
    assert rows[three.id].access_count == 0


async def test_counts_are_bounded_and_a_store_that_is_away_costs_them_alone(desk: Desk) -> None:
    rows = [a_memory(f"fact {number}") for number in range(5)]
    await desk.put(*rows)
    accesses = counting(desk, most=3)
    accesses.note(rows)
    desk.store.weather.down = True
    assert await accesses.write() == 0
    desk.store.weather.down = False
    assert await accesses.write() == 0
    accesses.note(rows[:1])
    assert await accesses.write() == 1


async def test_counts_are_written_every_interval(desk: Desk) -> None:
    one = a_memory("one")
    await desk.put(one)
    async with counting(desk, interval=timedelta(milliseconds=2)) as accesses:
        accesses.note([one])

        async def counted() -> bool:
            return bool((await desk.rows())[one.id].access_count)

        await until(counted)


async def test_what_recall_gave_is_counted_and_what_it_only_found_is_not(desk: Desk) -> None:
    one = a_memory("one")
    await desk.put(one)

    class Recaller:
        outcome = Outcome.USED

        async def recall(self, wish: Wish) -> Recalled:
            return Recalled(outcome=self.outcome, block="one", memories=(Ranked(one, 0.9),))

    recaller, accesses = Recaller(), counting(desk)
    counted = CountedRecalls(recaller, accesses)
    await counted.recall(a_wish("what?"))
    recaller.outcome = Outcome.SHADOWED
    await counted.recall(a_wish("what?"))
    await accesses.write()
    assert (await desk.rows())[one.id].access_count == 1


async def test_the_store_not_being_there_is_told_to_who_asked_for_a_round(desk: Desk) -> None:
    desk.store.weather.down = True
    with pytest.raises(TryLaterError):
        await desk.job().round()
