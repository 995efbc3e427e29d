"""A forget reaches turns that wait to be learned: rows that no store has yet, wherever their turns are."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from memory_extproc.app.coordination import make_news_handler
from memory_extproc.erasure.forgetter import Forgetter
from memory_extproc.erasure.tombstones import TombstoneKind, items_of_turn
from memory_extproc.errors import TransientError
from memory_extproc.learn.messages import judge
from memory_extproc.learn.reconcile import Reconciler, row_of
from memory_extproc.model import (
    Caller,
    Erased,
    ForgetReceipt,
    ForgetScope,
    ForgetState,
    Source,
    TurnOutcome,
    WaitingPlace,
    digest,
    message_id_of,
)
from tests.support.builders import ANN, BOB, a_memory, a_turn
from tests.support.learner import reconfigure
from tests.unit.erasure.forgetting import FakeReplicas, World, complete
from tests.unit.learn.learning import a_fact, until

BUDGET = "My budget is $10,000 for the trip to Lisbon."


async def say(world: World, text: str = BUDGET) -> str:
    """The id of the memory of *text*, which was accepted while the store is away; only this process has the row."""
    async with world.build() as learner:
        assert await learner.accept(world.exchange(text, "Noted.")) is TurnOutcome.JOURNALLED
        await learner.accept(world.exchange("I like tea.", owner=BOB))
        await until(lambda: world.findable(text), "it is known in process")
        reconfigure(learner, replace(world.limits, grace=timedelta()))  # killed
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
            await learner.wait_visible(Caller(ANN))
            await until(lambda: later.findable("I like tea.", BOB), "everything that waited is learned")
            assert not await later.findable(BUDGET)
            later.now += timedelta(hours=1)
            again = later.exchange(BUDGET, "Noted.")
            assert await learner.accept(replace(again, at=away.now)) is TurnOutcome.FORGOTTEN
    assert await later.contents() == set()
    assert await later.contents(BOB) == {"I like tea."}
    assert [entry async for entry in later.journal.of_owner(ANN)] == []
    [journal] = [store for store in done.stores if store.store == "journal"]
    assert journal.removed == 1


async def recovered(world: World, receipt: ForgetReceipt) -> ForgetReceipt:
    """The receipt once another process has carried its forget out, with nothing of BUDGET learned later."""
    world.weather.down = False
    later = world.next_process()
    async with later.partitions, later.forgetter() as forgetter:
        done = await complete(forgetter, receipt)
        async with later.build() as learner:
            dead = [letter.turn_id for letter in await later.journal.dead(10)]
            await later.journal.retry(dead)
            await learner.wait_visible(Caller(ANN))
            await until(lambda: later.findable("I like tea.", BOB), "everything that waited is learned")
            assert not await later.findable(BUDGET)
    assert not [text for text in await later.contents() if "budget" in text]
    return done


async def test_the_ids_are_in_the_ledger_before_the_forget_is_accepted(away: World) -> None:
    memory_id = await say(away)
    async with away.forgetter() as forgetter:
        accepted = await forgetter._accept(ANN, ForgetScope(ids=(memory_id,)), "")
    subject = accepted.subject
    blind = await away.forgotten.blind()
    [turn] = [entry.turn async for entry in away.journal.of_owner(ANN)]
    marks = await away.ledger.marks(subject)
    # What was known in this process is traced already, words included.
    assert {blind.item(TombstoneKind.MEMORY, ANN, memory_id), *items_of_turn(blind, turn)} <= marks.items.keys()
    assert marks.shut


async def test_a_dead_letter_that_was_forgotten_is_not_learned_when_it_is_retried(away: World) -> None:
    memory_id = await say(away)
    async for entry in away.journal.of_owner(ANN):
        await away.journal.mark_failed(entry, "Error", dead=True)
    async with away.forgetter() as forgetter:
        receipt = await forgetter.forget(ANN, ForgetScope(ids=(memory_id,)))
    await recovered(away, receipt)


async def test_a_fact_that_only_a_dead_process_knew_is_traced_to_its_turn(world: World) -> None:
    """Its messages are stored, its own write failed."""
    world.forget_limits = replace(world.forget_limits, patience=timedelta(milliseconds=5))
    world.limits = replace(world.limits, batch=1)
    world.reconciler = Reconciler(world.partitions, world.embedder, world.metrics)  # type: ignore[assignment]
    async with world.build() as learner:
        await learner.accept(world.exchange(BUDGET, "Noted."))
        world.weather.hold("nearest")
        await until(world.contents, "its message is stored")
        world.weather.down = True
        world.weather.hold("nearest").set()
        await learner.accept(world.exchange("I like tea.", owner=BOB))
        await asyncio.sleep(0)
        reconfigure(learner, replace(world.limits, grace=timedelta()))
    [turn] = [entry.turn async for entry in world.journal.of_owner(ANN)]
    fact = row_of(a_fact(turn), turn, 0, "")
    async with world.forgetter() as forgetter:
        receipt = await forgetter.forget(ANN, ForgetScope(ids=(fact.id,)))
        assert receipt.state is ForgetState.ACCEPTED
    done = await recovered(world, receipt)
    assert done.memories == 1  # the message that said it
    assert step(done, "memories").note == ""


async def test_an_id_that_is_found_nowhere_is_told_in_the_receipt(world: World, forgetter: Forgetter) -> None:
    known = a_memory("likes tea")
    await world.put(known)
    one = await forgetter.forget(ANN, ForgetScope(ids=(known.id, digest("nobody's"))))
    assert (one.memories, step(one, "memories").note) == (1, "1 of 2 ids were nowhere when it was carried out")
    none = await complete(forgetter, await forgetter.forget(ANN, ForgetScope(ids=(digest("nobody's"),))))
    assert (none.memories, step(none, "memories").note) == (0, "nothing was found of what was asked for")
    assert step(none, "memories").done


@pytest.mark.parametrize("scope", ["id", "session", "everything"])
async def test_a_receipt_is_not_clean_while_turns_of_before_wait_out_of_reach(world: World, scope: str) -> None:
    replicas = world.replicas = FakeReplicas()
    world.forget_limits = replace(world.forget_limits, patience=timedelta(milliseconds=5))
    world.build_partitions()
    elsewhere = a_turn(BUDGET, at=world.now, session="s")
    kept = a_turn("I have a cat.", at=world.now, session="other")
    replicas.places = [WaitingPlace("pod-2", world.now, live=False)]
    asked = {
        "id": ForgetScope(ids=(message_id_of(ANN, elsewhere.id, 0),)),
        "session": ForgetScope(session="s"),
        "everything": ForgetScope(),
    }[scope]
    world.now += timedelta(seconds=1)
    async with world.partitions, world.forgetter() as forgetter, world.build() as learner:
        receipt = await forgetter.forget(ANN, asked)
        assert receipt.state is ForgetState.ACCEPTED
        waits = step(receipt, "waiting_turns")
        assert waits.note.endswith("in data directories: 1 (pod-2 (no replica runs on it))")
        world.now += timedelta(minutes=5)
        # Meanwhile the owner is served, and learned from.
        await learner.accept(world.exchange("I live in Oslo now.", session="new"))
        await until(lambda: world.findable("I live in Oslo now."), "what is said later is known")
        # The other directory is joined, a turn at a time.
        await world.journal.append(elsewhere)
        await world.journal.append(kept)
        world.journal.reopen()  # type: ignore[attr-defined]
        if scope != "everything":
            await until(lambda: world.findable("I have a cat."), "what was not forgotten is learned")
        assert (await forgetter.receipt(ANN, receipt.id)).state is ForgetState.ACCEPTED  # type: ignore[union-attr]
        replicas.places = []
        done = await complete(forgetter, receipt)
        assert step(done, "waiting_turns").done
        again = replace(world.exchange(BUDGET), at=elsewhere.at + timedelta(days=1))
        assert await learner.accept(again) is TurnOutcome.JOURNALLED  # new words, long after
    assert "I live in Oslo now." in await world.contents()
    assert ("I have a cat." in await world.contents()) is (scope != "everything")


async def test_a_forget_that_waits_for_turns_is_taken_up_again_without_closing_the_owner(world: World) -> None:
    replicas = world.replicas = FakeReplicas()
    world.forget_limits = replace(world.forget_limits, patience=timedelta(milliseconds=5))
    world.build_partitions()
    replicas.places = [WaitingPlace("pod-2", None, live=False)]
    await world.put(a_memory("likes tea"))
    async with world.partitions, world.forgetter() as forgetter:
        receipt = await forgetter.forget(ANN, ForgetScope())
        world.now += timedelta(minutes=5)
        await world.put(a_memory("likes rum", created_at=world.now))
    later = world.next_process()
    async with later.partitions, later.forgetter() as forgetter:
        assert await later.findable("likes rum")
        replicas.places = []
        await complete(forgetter, receipt)
    assert await later.contents() == {"likes rum"}


async def test_what_was_asked_after_the_forget_keeps_no_receipt_waiting(world: World) -> None:
    replicas = world.replicas = FakeReplicas()
    world.build_partitions()
    replicas.places = [WaitingPlace("pod-2", world.now + timedelta(seconds=1), live=True)]
    async with world.partitions, world.forgetter() as forgetter:
        assert (await forgetter.forget(ANN, ForgetScope())).state is not ForgetState.ACCEPTED


async def test_while_a_model_may_yet_find_it_an_unknown_id_is_not_clean(world: World) -> None:
    """What a model will find in a turn that waits nobody can foresee."""
    world.forget_limits = replace(world.forget_limits, patience=timedelta(milliseconds=5))
    world.by_rules_alone = False
    async with world.forgetter() as forgetter, world.build() as learner:
        await learner.accept(world.exchange("I like tea."))
        await until(world.contents, "its message is stored")
        receipt = await forgetter.forget(ANN, ForgetScope(ids=(digest("a fact"),)))
        assert receipt.state is ForgetState.ACCEPTED
        assert step(receipt, "waiting_turns").note.endswith("in the journal: 1")
        assert await world.findable("I like tea.")
        await learner.end_session(Caller(ANN))
        await complete(forgetter, receipt)
    assert await world.contents() == {"I like tea."}


async def test_a_fact_that_comes_under_a_forgotten_id_takes_the_words_it_came_from_along(
    world: World, forgetter: Forgetter
) -> None:
    turn = a_turn(BUDGET, at=world.now)
    fact = row_of(a_fact(turn), turn, 0, "")
    await forgetter.forget(ANN, ForgetScope(ids=(fact.id,)))
    message = judge(turn, world.now)[0].memory
    assert message is not None
    await world.put(message, replace(message, id=digest("bob"), owner=BOB))
    await world.put(fact)
    await until(lambda: gone(world), "the message goes, too")
    assert await world.contents(BOB) == {BUDGET}


async def gone(world: World) -> bool:
    return not await world.contents()


async def test_what_only_another_replica_knows_is_told_and_gone_when_it_hears_of_the_forget(away: World) -> None:
    """It extracted a fact that nobody else can foresee, and could not store it."""
    replicas = away.replicas = FakeReplicas()
    away.build_partitions()
    turn = a_turn(BUDGET, at=away.now)
    fact = replace(row_of(a_fact(turn), turn, 0, ""), id=digest("in a model's words"))
    message = judge(turn, away.now)[0].memory
    assert message is not None
    away.weather.down = False
    await away.put(message)
    away.weather.down = True
    with pytest.raises(TransientError):
        await away.put(fact)
    here = away.next_process()
    replicas.heard = [make_news_handler(one.forgotten, one.partitions) for one in (away, here)]
    away.weather.down = False
    async with here.partitions, here.forgetter() as forgetter:
        receipt = await complete(forgetter, await forgetter.forget(ANN, ForgetScope(ids=(fact.id,))))
        assert not await away.findable(fact.content)
    assert receipt.memories == 1
    assert await here.contents() == set()


async def test_a_dry_run_lists_what_only_this_process_has(away: World) -> None:
    memory_id = await say(away)
    away.weather.down = False
    async with away.forgetter() as forgetter:
        plan = await forgetter.plan(ANN, ForgetScope(ids=(memory_id,)))
        assert {memory.content for memory in plan.memories} >= {BUDGET}
        away.weather.down = True
        receipt = await forgetter.forget(ANN, ForgetScope(ids=(memory_id,)), token=plan.token)
    await recovered(away, receipt)


def step(receipt: ForgetReceipt, store: str) -> Erased:
    [found] = [one for one in receipt.stores if one.store == store]
    return found


@pytest.mark.parametrize("scope", ["message", "fact", "session"])
async def test_a_restored_journal_brings_nothing_back_and_what_it_held_is_known_when_it_is_sent_again(
    world: World, forgetter: Forgetter, scope: str
) -> None:
    """Its turn was nowhere when it was forgotten."""
    world.limits = replace(world.limits, batch=1)
    world.reconciler = Reconciler(world.partitions, world.embedder, world.metrics)  # type: ignore[assignment]
    turn = a_turn(BUDGET, at=world.now, session="s", heard="h1", resumes=True)
    asked = {
        "message": ForgetScope(ids=(message_id_of(ANN, turn.id, 1),)),
        "fact": ForgetScope(ids=(row_of(a_fact(turn), turn, 0, "").id,)),
        "session": ForgetScope(session="s"),
    }[scope]
    world.now += timedelta(seconds=1)
    await complete(forgetter, await forgetter.forget(ANN, asked))
    world.now += timedelta(hours=1)
    await world.journal.append(turn)
    await world.journal.append(a_turn("I like tea.", owner=BOB))
    world.journal.reopen()  # type: ignore[attr-defined]
    async with world.build() as learner:
        await until(lambda: world.findable("I like tea.", BOB), "what was restored is learned")
        await learner.end_session(Caller(ANN))

        async def settled() -> bool:
            return not [entry async for entry in world.journal.of_owner(ANN)] or scope == "fact"

        await until(settled, "it leaves the journal")

        async def known() -> bool:
            sent_again = replace(turn, id=digest("sent again"), at=world.now)
            return (await world.forgotten.of(ANN)).covers_turn(sent_again)

        await until(known, "it is known when it is sent again")
    await until(lambda: gone(world), "nothing of it is left")


async def test_a_summary_of_what_only_a_dead_process_knew_goes_with_it(away: World) -> None:
    memory_id = await say(away)
    away.weather.down = False
    summary = a_memory("They spoke of money.", source=Source.SUMMARY, metadata={"sources": [memory_id]})
    other = a_memory("They spoke of tea.", source=Source.SUMMARY, metadata={"sources": [digest("other")]})
    here = away.next_process()
    await here.put(summary, other)
    async with here.partitions, here.forgetter() as forgetter:
        await complete(forgetter, await forgetter.forget(ANN, ForgetScope(ids=(memory_id,))))
    assert await here.contents() == {other.content}


async def test_ids_that_are_narrowed_leave_what_is_outside(away: World) -> None:
    memory_id = await say(away)
    away.weather.down = False
    here = away.next_process()
    async with here.partitions, here.forgetter() as forgetter, here.build() as learner:
        for scope in (ForgetScope(ids=(memory_id,), session="t"), ForgetScope(ids=(memory_id,), project="p")):
            await complete(forgetter, await forgetter.forget(ANN, scope))
        await learner.wait_visible(Caller(ANN))
        await until(lambda: here.findable(BUDGET), "it is learned")
        narrowed = ForgetScope(ids=(memory_id,), session="s")
        assert (await forgetter.forget(ANN, narrowed)).memories == 1


@pytest.mark.parametrize("stored", [True, False])
async def test_what_is_said_again_after_a_forget_that_waits_is_kept(away: World, stored: bool) -> None:
    """Here for the store, and for a turn out of reach."""
    replicas = away.replicas = FakeReplicas()
    memory_id = await say(away)
    here = away.next_process()
    async with here.partitions, here.forgetter() as forgetter:
        replicas.places = [WaitingPlace("pod-2", None, live=False)] if stored else []
        here.weather.down = not stored
        receipt = await forgetter.forget(ANN, ForgetScope(ids=(memory_id,)))
        here.now += timedelta(hours=1)
        again = a_turn(BUDGET, at=here.now, session="another")
        await here.journal.append(again)
        replicas.places, here.weather.down = [], False
        await complete(forgetter, receipt)
        assert [entry.turn.id async for entry in here.journal.of_owner(ANN)] == [again.id]
        here.journal.reopen()  # type: ignore[attr-defined]
        async with here.build():
            await until(lambda: here.findable(BUDGET), "what was said again is learned")
