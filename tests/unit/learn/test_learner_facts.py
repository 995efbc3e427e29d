"""The learner's promises about facts: who finds them when the model is away, what they are read with, and that
what was injected never comes back as something new."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from memory_extproc.errors import TransientError
from memory_extproc.learn.extract.extractor import Earlier, Fact
from memory_extproc.learn.extract.rules import RulesExtractor
from memory_extproc.learn.queue import Trigger
from memory_extproc.learn.reconcile import Reconciler
from memory_extproc.model import Caller, Memory, MemoryState, Owner, Source, Turn
from tests.support.builders import ANN, BOB, a_turn
from tests.support.learner import LearnSettings, reconfigure
from tests.unit.learn.learning import LIMITS, ListingExtractor, Surroundings, until

BUDGET = "My budget for the Hawaii trip is $10,000."
PARIS = "I live in Paris near the Canal Saint-Martin."
AT_ONCE = replace(LIMITS, batch=1)


def a_world(limits: LearnSettings = AT_ONCE) -> tuple[Surroundings, ListingExtractor, ListingExtractor]:
    """A model that is away, and a stand-in."""
    model, fallback = ListingExtractor(), ListingExtractor()
    model.failing = TransientError("the model is down")
    return Surroundings(limits=limits, extractor=model, fallback=fallback), model, fallback


async def test_while_the_model_is_away_the_rules_serve_once_and_the_turns_wait_for_it() -> None:
    world, model, fallback = a_world()
    async with world.learner() as learner:
        await learner.accept(world.exchange(BUDGET))
        await until(lambda: world.reconciler.facts == [(ANN, BUDGET)], "the stand-in's fact is there")
        await learner.accept(world.exchange(PARIS))
        await until(lambda: len(world.reconciler.facts) == 2, "the next turn did not wait")
        assert (await world.journal.depth()).turns == 2
        model.failing = None
        await until(lambda: len(model.batches) == 2, "the model has read them all the same")
        await until(lambda: world.sample("journal_depth") == 0, "nothing is left")
    assert fallback.batches == [[BUDGET], [PARIS]]


async def test_turns_older_than_the_patience_wait_no_longer() -> None:
    world, model, _ = a_world(replace(AT_ONCE, patience=timedelta(hours=1)))
    exchange = world.exchange(BUDGET)
    world.now += timedelta(hours=2)
    async with world.learner() as learner:
        await learner.accept(exchange)
        await until(lambda: world.reconciler.facts, "the stand-in's fact is there")
        await until(lambda: world.sample("journal_depth") == 0, "nothing is left")
    assert model.batches == []


async def test_no_more_turns_wait_for_the_model_than_may() -> None:
    world, model, _ = a_world(replace(AT_ONCE, stood_in_for=1))
    async with world.learner() as learner:
        await learner.accept(world.exchange(BUDGET))
        await until(lambda: world.reconciler.facts, "the first is served")
        await learner.accept(world.exchange(PARIS, owner=BOB))
        await until(lambda: len(world.reconciler.facts) == 2, "both have their facts")

        async def one_waits() -> bool:
            return (await world.journal.depth()).turns == 1

        await until(one_waits, "one of them waits")
        model.failing = None
        await until(lambda: len(model.batches) == 1, "the model has read the one that waited")
    assert len(world.reconciler.facts) == 3


async def test_the_sessions_of_one_caller_are_read_one_after_the_other() -> None:
    class Busy(ListingExtractor):
        def __init__(self) -> None:
            super().__init__()
            self.at_once: Counter[Owner] = Counter()
            self.most: Counter[Owner] = Counter()

        async def extract(self, turns: Sequence[Turn], *, earlier: Sequence[Turn] = ()) -> list[Fact]:
            owner = turns[0].owner
            self.at_once[owner] += 1
            self.most[owner] = max(self.most[owner], self.at_once[owner])
            await asyncio.sleep(0)
            self.at_once[owner] -= 1
            return await super().extract(turns)

    extractor = Busy()
    world = Surroundings(limits=AT_ONCE, extractor=extractor)
    async with world.learner() as learner:
        for session in "abc":
            for owner in (ANN, BOB):
                await learner.accept(world.exchange(f"I have a cat in {session}.", owner=owner, session=session))
        await until(lambda: len(extractor.batches) == 6, "all were read")
    assert set(extractor.most.values()) == {1}


def names(tasks: Iterable[asyncio.Task[Any]]) -> set[str]:
    return {task.get_name() for task in tasks}


async def test_a_turn_that_was_forgotten_while_it_waited_holds_no_place() -> None:
    world, model, _ = a_world(replace(AT_ONCE, stood_in_for=1))
    async with world.learner() as learner:
        await learner.accept(world.exchange(BUDGET))
        await until(lambda: world.reconciler.facts, "the stand-in's fact is there")
        await world.journal.erase_owner(ANN)
        await until(lambda: "extract lane" not in names(asyncio.all_tasks()), "it was found to be gone")
        await learner.accept(world.exchange(PARIS))
        await until(lambda: len(world.reconciler.facts) == 2, "the next turn was served")
        model.failing = None
        await until(lambda: len(model.batches) == 1, "it had waited for the model")


async def test_a_batch_is_read_with_the_turns_before_it() -> None:
    extractor = ListingExtractor()
    world = Surroundings(limits=AT_ONCE, extractor=extractor)
    async with world.learner() as learner:
        for n in range(5):
            await learner.accept(world.exchange(f"I have {n} cats."))
            await until(lambda n=n: len(extractor.batches) == n + 1, "it was read")  # type: ignore[misc]  # a default binds it
        await learner.accept(world.exchange("I have a dog.", session="other"))
        await until(lambda: len(extractor.batches) == 6, "it was read")
    assert extractor.earlier[4] == ["I have 1 cats.", "I have 2 cats.", "I have 3 cats."]
    assert extractor.earlier[5] == []


def test_what_was_read_before_a_forget_is_not_shown_again() -> None:
    earlier = Earlier(sessions=2)
    turn = a_turn("x" * 5000)
    earlier.note(ANN, "s", 0, [turn])
    (shown,) = earlier.of(ANN, "s", 0)
    assert len(shown.asked) == 800
    assert not earlier.of(ANN, "s", 1)
    assert not earlier.of(BOB, "s", 0)
    for session in ("t", "u"):
        earlier.note(ANN, session, 0, [turn])
    assert not earlier.of(ANN, "s", 0), "only so many sessions are held"


async def test_what_makes_a_batch_due_is_counted() -> None:
    world = Surroundings(limits=replace(LIMITS, batch=2))
    async with world.learner() as learner:
        for text in ("one", "two", "three"):
            await learner.accept(world.exchange(f"I have {text} cats."))
        await until(lambda: world.sample("extraction_triggers_total", trigger="batch") == 1, "two came together")
        await learner.end_session(Caller(ANN))
        await until(lambda: world.sample("extraction_triggers_total", trigger="ended") == 1, "the session ended")
        await learner.accept(world.exchange("I have no cats."))
    assert world.sample("extraction_triggers_total", trigger="drain") == 1
    assert {one.value for one in Trigger} == {"batch", "idle", "ended", "topic", "command", "drain"}


# --- with the real pieces ----------------------------------------------------------------------------
def a_real_world() -> Surroundings:
    world = Surroundings(limits=AT_ONCE, extractor=RulesExtractor())
    world.reconciles = Reconciler(world.keeps, world.embedder, world.metrics)
    return world


def facts(rows: list[Memory]) -> list[str]:
    return sorted(row.content for row in rows if row.source is Source.RULES and row.state is MemoryState.ACTIVE)


def messages(rows: list[Memory]) -> list[str]:
    return [row.content for row in rows if row.source is Source.VERBATIM and row.state is MemoryState.ACTIVE]


@pytest.mark.no_cover
async def test_two_hundred_turns_with_an_echoing_model_leave_as_many_memories_as_one() -> None:
    world = a_real_world()
    told = "User's budget for the Hawaii trip is $10,000"
    async with world.learner() as learner:
        await learner.accept(world.exchange(BUDGET, "Noted."))
        await until(lambda: world.sample("reconcile_total", decision="added") == 1, "the fact is there")
        for n in range(200):
            asked = "What is my budget?" if n % 2 else BUDGET
            exchange = world.exchange(asked, f"I remember: {told}.", session=f"s{n}")
            await learner.accept(replace(exchange, injected=(told, BUDGET)))
        await until(lambda: world.sample("journal_depth") == 0, "all was learned", limit=20)
    rows = await world.rows()
    assert facts(rows) == [told]
    assert messages(rows) == [BUDGET]


@pytest.mark.parametrize(
    ("said", "left"),
    [
        (["I live in Paris.", "I moved to Tokyo."], ["I moved to Tokyo."]),
        (["I live in Paris.", "I no longer live in Paris."], ["I no longer live in Paris."]),
        # something else was said with it, which still holds
        (
            ["I live in Paris and I love tea.", "I moved to Tokyo."],
            ["I live in Paris and I love tea.", "I moved to Tokyo."],
        ),
        # or may do so: no rule understands all of it
        (
            ["I live in Paris, my aunt taught me glassblowing.", "I moved to Tokyo."],
            ["I live in Paris, my aunt taught me glassblowing.", "I moved to Tokyo."],
        ),
        # who said it again said nothing else either
        (["I live in Paris.", "As I said, I live in Paris!", "I moved to Tokyo."], ["I moved to Tokyo."]),
        (
            ["I live in Paris and I love tea.", "I moved to Tokyo.", "I hate tea."],
            ["I moved to Tokyo.", "I hate tea."],
        ),
    ],
)
async def test_a_message_goes_with_the_last_of_its_facts(said: list[str], left: list[str]) -> None:
    world = a_real_world()

    async def all_is_learned() -> bool:
        return (await world.journal.depth()).turns == 0

    async with world.learner() as learner:
        for text in said:
            world.now += timedelta(minutes=1)
            await learner.accept(world.exchange(text))
            await until(all_is_learned, "it was learned")
    assert messages(await world.rows()) == left


async def test_another_batch_and_another_patience_hold_from_the_next_turn_on() -> None:
    world, _, fallback = a_world(replace(LIMITS, batch=10))
    async with world.learner() as learner:
        await learner.accept(world.exchange(PARIS))
        await learner.wait_visible(Caller(ANN))
        assert not world.reconciler.facts
        reconfigure(learner, replace(AT_ONCE, patience=timedelta(0)))
        exchange = world.exchange(BUDGET)
        world.now += timedelta(seconds=1)
        await learner.accept(exchange)
        await until(lambda: (ANN, BUDGET) in world.reconciler.facts, "extracted at once")
        await until(lambda: world.sample("journal_depth") == 0, "the stand-in's word is the last")
    assert BUDGET in [words for batch in fallback.batches for words in batch]


async def test_fewer_attempts_hold_from_the_next_turn_on() -> None:
    extractor = ListingExtractor()
    extractor.failing = ValueError("a bug")
    world = Surroundings(limits=replace(AT_ONCE, attempts=1000), extractor=extractor)
    async with world.learner() as learner:
        reconfigure(learner, replace(AT_ONCE, attempts=1))
        await learner.accept(world.exchange(BUDGET))
        await until(lambda: world.sample("journal_dead_letters") == 1, "one attempt, and it is put aside")
