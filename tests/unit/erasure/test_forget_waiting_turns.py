"""A forget reaches turns that wait to be learned: rows that no store has yet, wherever their turns are."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from memory_extproc.model import Caller, ForgetScope, ForgetState, Stored, message_id_of
from tests.builders import ANN, BOB
from tests.unit.erasure.forgetting import World, complete
from tests.unit.learn.learning import until

BUDGET = "My budget is $10,000 for the trip to Lisbon."


async def say(world: World, text: str = BUDGET) -> str:
    """The id of the memory of *text*, which was accepted while the store is away; only this process has the row."""
    async with world.build() as learner:
        assert await learner.accept(world.exchange(text, "Noted.")) is Stored.JOURNALLED
        await learner.accept(world.exchange("I like tea.", owner=BOB))
        await until(lambda: world.findable(text), "it is known in process")
        learner.use(replace(world.limits, grace=timedelta()))  # killed
    [turn] = [entry.turn async for entry in world.journal.of_owner(ANN)]
    return message_id_of(ANN, turn.id, 0)


@pytest.fixture
async def away(world: World) -> World:
    world.forget_limits = replace(world.forget_limits, patience=timedelta(milliseconds=5))
    world.weather.down = True
    return world


async def test_a_forgotten_row_that_only_a_dead_process_knew_is_not_learned_later(away: World) -> None:
    memory_id = await say(away)
    async with away.forgetter() as forgetter:
        receipt = await forgetter.forget(ANN, ForgetScope(ids=(memory_id,)))
        assert receipt.state is ForgetState.ACCEPTED
    away.weather.down = False
    later = away.next_process()
    async with later.partitions, later.forgetter() as forgetter:
        done = await complete(forgetter, receipt)
        async with later.build() as learner:
            await learner.settled(Caller(ANN))
            await until(lambda: later.findable("I like tea.", BOB), "everything that waited is learned")
            assert not await later.findable(BUDGET)
            later.now += timedelta(hours=1)
            again = later.exchange(BUDGET, "Noted.")
            assert await learner.accept(replace(again, at=away.now)) is Stored.FORGOTTEN
    assert await later.contents() == set()
    assert await later.contents(BOB) == {"I like tea."}
    assert [entry async for entry in later.journal.of_owner(ANN)] == []
    [journal] = [store for store in done.stores if store.store == "journal"]
    assert journal.removed == 1
