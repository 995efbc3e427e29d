"""An hour without the store, or without the model that extracts: nothing is lost, the backlog drains by itself."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from memory_extproc.errors import TransientError
from memory_extproc.learn.ingest import Intake
from memory_extproc.model import TurnOutcome
from memory_extproc.testing.adapters import InMemoryJournal
from tests.support.builders import ANN, BOB
from tests.unit.learn.learning import LIMITS, ListingExtractor, Surroundings, until

MINUTES = 60


async def talk_for_an_hour(world: Surroundings, learner: Intake) -> list[TurnOutcome]:
    """Each of two people says something each minute."""
    outcomes: list[TurnOutcome] = []
    for minute in range(MINUTES):
        words = f"I own {minute} red bicycles."
        outcomes += [await learner.accept(world.exchange(words, owner=owner)) for owner in (ANN, BOB)]
        world.now += timedelta(minutes=1)
    return outcomes


def said(minutes: int) -> list[str]:
    return [f"I own {minute} red bicycles." for minute in range(minutes)]


async def assert_drained(world: Surroundings) -> None:
    await until(lambda: world.sample("journal_depth") == 0, "the backlog is learned", limit=20)
    assert world.sample("journal_oldest_seconds") == 0
    assert world.sample("journal_dead_letters") == 0
    for owner in (ANN, BOB):
        assert await world.stored(owner) == said(MINUTES)
        # What comes once the model is back may be read before what has to be tried again: dates decide then.
        facts = [fact for whose, fact in world.reconciler.facts if whose == owner]
        assert sorted(facts) == sorted(said(MINUTES)), "each once"


@pytest.mark.no_cover
async def test_a_store_that_is_down_for_an_hour_costs_nothing_but_the_hour() -> None:
    world = Surroundings(limits=replace(LIMITS, idle=timedelta(milliseconds=5), attempts=1))
    async with world.learner() as learner:
        world.weather.down = True
        assert set(await talk_for_an_hour(world, learner)) == {TurnOutcome.JOURNALLED}
        await until(
            lambda: world.sample("journal_oldest_seconds") == MINUTES * 60, "the age of the backlog is shown"
        )
        assert world.sample("journal_depth") == 2 * MINUTES
        world.weather.down = False
        await assert_drained(world)


async def test_a_model_that_is_down_for_an_hour_costs_nothing_but_the_hour() -> None:
    extractor = ListingExtractor()
    limits = replace(LIMITS, idle=timedelta(milliseconds=5), attempts=1)
    world = Surroundings(limits=limits, extractor=extractor)
    async with world.learner() as learner:
        extractor.failing = TransientError("the endpoint is down")
        assert set(await talk_for_an_hour(world, learner)) == {TurnOutcome.JOURNALLED}
        await until(
            lambda: world.sample("journal_oldest_seconds") == MINUTES * 60, "the age of the backlog is shown"
        )

        async def are_stored() -> bool:
            return all([await world.stored(owner) == said(MINUTES) for owner in (ANN, BOB)])

        await until(are_stored, "messages need no model")
        extractor.failing = None
        await assert_drained(world)


async def test_a_backlog_is_bounded_and_says_so() -> None:
    world = Surroundings(limits=replace(LIMITS, idle=timedelta(milliseconds=5)))
    world.journal = InMemoryJournal(now=lambda: world.now, max_turns=10)
    async with world.learner() as learner:
        world.weather.down = True
        outcomes = await talk_for_an_hour(world, learner)
        assert (outcomes.count(TurnOutcome.JOURNALLED), outcomes.count(TurnOutcome.JOURNAL_FULL)) == (10, 110)
        world.weather.down = False
        await until(lambda: world.sample("journal_depth") == 0, "the backlog is learned")
        assert await learner.accept(world.exchange("There is room again.")) is TurnOutcome.JOURNALLED
    assert await world.stored() == [*said(5), "There is room again."]


@pytest.mark.no_cover
async def test_a_process_that_ends_within_the_hour_leaves_it_to_the_next() -> None:
    world = Surroundings(limits=replace(LIMITS, idle=timedelta(milliseconds=5), grace=timedelta(milliseconds=50)))
    async with world.learner() as learner:
        world.weather.down = True
        await talk_for_an_hour(world, learner)
    world.weather.down = False
    async with world.learner():
        await assert_drained(world)
