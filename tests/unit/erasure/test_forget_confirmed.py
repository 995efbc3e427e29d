"""A dry run says what would go, and its token confirms exactly that."""

from __future__ import annotations

import pytest

from memory_extproc.erasure.forgetter import Forgetter
from memory_extproc.errors import PermanentError
from memory_extproc.model import ForgetScope
from tests.support.builders import ANN, BOB, a_memory, a_message
from tests.unit.erasure.forgetting import EVERYTHING, World, complete


async def test_a_dry_run_says_what_would_go_and_its_token_confirms_exactly_that(
    world: World, forgetter: Forgetter
) -> None:
    await world.put(a_memory("likes tea", project="p"), a_memory("likes rum"))
    plan = await forgetter.plan(ANN, ForgetScope(project="p"))
    assert [memory.content for memory in plan.memories] == ["likes tea"]
    assert plan.total == 1
    await world.put(a_memory("likes gin", project="p"))
    with pytest.raises(PermanentError):
        await forgetter.forget(ANN, EVERYTHING, token=plan.token)
    with pytest.raises(PermanentError):
        await forgetter.forget(BOB, ForgetScope(project="p"), token=plan.token)
    assert await world.contents() == {"likes tea", "likes rum", "likes gin"}
    await complete(forgetter, await forgetter.forget(ANN, ForgetScope(project="p"), token=plan.token))
    assert await world.contents() == {"likes rum", "likes gin"}


@pytest.mark.parametrize("backwards", [False, True])
async def test_what_a_dry_run_did_not_list_stays_when_it_is_confirmed(
    world: World, forgetter: Forgetter, backwards: bool
) -> None:
    """The messages of a fact are listed with it. Taken for named themselves they would bring the other facts."""
    said = a_message("I have $12,000, and I am vegetarian.", metadata={"turn": "t1"})
    budget = a_memory("User's budget is $12,000", metadata={"value": "$12,000", "turn": "t1"})
    diet = a_memory("User is vegetarian", metadata={"value": "vegetarian", "turn": "t1"})
    rows = [said, diet, budget]
    await world.put(*(reversed(rows) if backwards else rows))
    scope = ForgetScope(ids=(budget.id,))
    plan = await forgetter.plan(ANN, scope)
    assert {memory.content for memory in plan.memories} == {said.content, budget.content}
    await complete(forgetter, await forgetter.forget(ANN, scope, token=plan.token))
    assert await world.contents() == {diet.content}


async def test_what_a_dry_run_listed_goes_though_what_led_to_it_is_gone_meanwhile(
    world: World, forgetter: Forgetter
) -> None:
    said = a_message("I have $12,000.", metadata={"turn": "t1"})
    budget = a_memory("User's budget is $12,000", metadata={"value": "$12,000", "turn": "t1"})
    await world.put(said, budget)
    scope = ForgetScope(ids=(budget.id,))
    plan = await forgetter.plan(ANN, scope)
    await world.partitions.delete(ANN, [budget.id])
    await complete(forgetter, await forgetter.forget(ANN, scope, token=plan.token))
    assert await world.contents() == set()
