"""Memories that say the same become one, one thing's values over time become one, and nothing current is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from memory_extproc.erasure.steps import cascade
from memory_extproc.model import Embedded, ForgetScope, MemoryState, MemoryType, Owner, Scope, Source
from memory_extproc.observe.metrics import Metrics
from memory_extproc.retention.rules import RetentionReason
from memory_extproc.store.loader import PartitionLimits
from memory_extproc.store.partition import Partitions
from memory_extproc.testing.adapters import InMemoryCoordination, InMemoryStore
from memory_extproc.testing.models import CannedEmbedder
from tests.support.builders import ANN, Clock, a_memory, later
from tests.unit.retention.keeping import DAY, Desk, a_budget, a_fact, three_budgets


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
    assert made.provenance.sources == ("budget-3", "budget-1", "budget-2")
    assert made.provenance.value == "$12,000"
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
    taken = cascade((await desk.rows()).values(), ForgetScope(ids=("budget-1",)), later(days=99).timestamp())
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
    assert cascade(rows, ForgetScope(ids=(made.id,)), later(days=99).timestamp()).memories.keys() == {
        memory.id for memory in rows
    }


values = st.lists(st.integers(1, 6).map(lambda number: f"${number},000"), min_size=1, max_size=8)


@settings(max_examples=40, deadline=None)
@given(things=st.dictionaries(st.sampled_from(["rent", "budget", "car"]), values, min_size=1))
async def test_no_value_is_lost_that_was_current(things: dict[str, list[str]]) -> None:
    clock = Clock(later(days=40))
    embedder = CannedEmbedder()
    store, coordination = InMemoryStore(embedder.dimension, now=clock), InMemoryCoordination(clock)
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
                active = [one.id for one in await desk.active() if one.provenance.subject == thing]
                (before,) = active
    await desk.keeper().keep(ANN)
    current = {one.provenance.subject: one for one in await desk.active()}
    assert current.keys() == things.keys()
    for thing, said in things.items():
        assert current[thing].content.startswith(f"The {thing} is {said[-1]}")
        if current[thing].provenance.derived:
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
    assert foreseen.retired == {RetentionReason.CAP: 2}
    assert (foreseen.merged, foreseen.derived) == (1, 1)


async def test_what_goes_is_recalled_by_nobody_at_once_and_gone_for_good_after_its_grace(desk: Desk) -> None:
    worst = a_memory("worst", importance=0.0)
    await desk.put(worst, *(a_memory(f"fact {n}") for n in range(3)))
    assert (await desk.keeper(max_memories=3, prune_share=0).keep(ANN)).retired == {RetentionReason.CAP: 1}
    vector = (await desk.embedder.embed(["worst"]))[0]
    found = (await desk.partitions.nearest(ANN, vector, 10, Scope())).found
    assert worst.id not in {one.memory.id for one in found}
    assert (await desk.rows())[worst.id].provenance.retired == "cap"
    desk.clock.now += 31 * DAY
    assert (await desk.keeper(max_memories=3, prune_share=0).keep(ANN)).erased == 1
    assert worst.id not in await desk.rows()


class Meanwhile(InMemoryStore):
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
