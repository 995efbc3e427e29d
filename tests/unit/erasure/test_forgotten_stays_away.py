"""Forgotten memories do not come back: not by turns on their way, a crash, a backup or a client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest
import structlog

from memory_extproc.erasure.forgetter import Forgetter
from memory_extproc.erasure.steps import cascade
from memory_extproc.erasure.tombstones import Job
from memory_extproc.errors import TransientError
from memory_extproc.learn.extract.extractor import Fact
from memory_extproc.learn.reconcile import Reconciler
from memory_extproc.learn.sessions import Sessions
from memory_extproc.model import (
    TEXT_KINDS,
    Caller,
    Embedded,
    Exchanged,
    ForgetScope,
    ForgetState,
    LedgerJob,
    Memory,
    Message,
    Owner,
    Provenance,
    Role,
    Scope,
    Turn,
    TurnOutcome,
)
from memory_extproc.testing.adapters import InMemoryCoordination, InMemoryLedger
from tests.support.builders import ANN, BOB, MONDAY, a_memory, a_message
from tests.unit.erasure.forgetting import EVERYTHING, World, complete
from tests.unit.learn.learning import ListingExtractor, until


async def test_what_is_said_after_a_forget_is_kept(world: World, forgetter: Forgetter) -> None:
    await world.put(a_message("I live in Hawaii."))
    await complete(forgetter, await forgetter.forget(ANN, EVERYTHING))
    world.now += timedelta(milliseconds=10)
    async with world.build() as learner:
        assert await learner.accept(world.exchange("I live in Oslo now, not in Hawaii.")) is TurnOutcome.JOURNALLED
        await learner.wait_visible(Caller(ANN))
        assert await world.findable("I live in Oslo now, not in Hawaii.")


async def test_an_exchange_that_began_before_the_forget_is_not_learned(world: World, forgetter: Forgetter) -> None:
    async with world.build() as learner:
        under_way = world.exchange("My budget is $10,000.", "Noted: $10,000.")
        world.now += timedelta(seconds=5)
        await complete(forgetter, await forgetter.forget(ANN, EVERYTHING))
        world.now += timedelta(seconds=5)
        assert await learner.accept(under_way) is TurnOutcome.FORGOTTEN
    assert await world.contents() == set()
    assert [entry async for entry in world.journal.of_owner(ANN)] == []


async def test_words_noted_with_a_response_that_was_on_its_way_go_with_the_forget_that_overtook_it(
    world: World, forgetter: Forgetter
) -> None:
    gate, noting = asyncio.Event(), asyncio.Event()

    class Late(InMemoryCoordination):
        async def put_record(self, kind: str, owner: Owner, key: str, value: bytes, ttl: timedelta) -> None:
            noting.set()
            await gate.wait()
            await super().put_record(kind, owner, key, value, ttl)

    late = Late(lambda: world.now)
    late.records = world.coordination.records
    world.sessions = Sessions(late, new_session=lambda: "s")
    async with world.build() as learner:
        under_way = replace(world.exchange("My budget is $10,000.", "Noted: $10,000."), response_id="resp_1")
        accepting = asyncio.create_task(learner.accept(under_way))
        await noting.wait()
        world.now += timedelta(seconds=5)
        await complete(forgetter, await forgetter.forget(ANN, EVERYTHING))
        gate.set()
        await accepting
    assert await world.contents() == set()
    assert [kind for kind, owner, _ in world.coordination.records if owner == ANN and kind in TEXT_KINDS] == []


async def test_a_forgotten_turn_that_the_client_sends_again_is_not_learned(
    world: World, forgetter: Forgetter
) -> None:
    """A retry, a regeneration or the next step of a tool loop, after the forget."""
    history = (Message(Role.USER, "Hello, I am Ann."), Message(Role.ASSISTANT, "Hello."))
    asked = Exchanged(
        caller=Caller(ANN), history=history, asked="My budget is $10,000.", answered="Noted: $10,000.", at=world.now
    )
    async with world.build() as learner:
        await learner.accept(asked)
        await until(lambda: world.sample("journal_depth") == 1, "it is stored")
        await complete(forgetter, await forgetter.forget(ANN, EVERYTHING))
        world.now += timedelta(hours=1)
        assert await learner.accept(replace(asked, at=world.now)) is TurnOutcome.FORGOTTEN
        # The conversation goes on, and the model still sees the old words: what it answers is not kept.
        goes_on = replace(
            asked,
            history=(*history, Message(Role.USER, asked.asked), Message(Role.ASSISTANT, asked.answered)),
            asked="I prefer window seats.",
            answered="A window seat within your $10,000, then.",
            at=world.now,
        )
        assert await learner.accept(goes_on) is TurnOutcome.JOURNALLED
        await learner.wait_visible(Caller(ANN))
    assert await world.contents() == {"I prefer window seats."}


async def test_words_said_anew_long_after_they_were_forgotten_are_learned(
    world: World, forgetter: Forgetter
) -> None:
    async with world.build() as learner:
        await learner.accept(world.exchange("My budget is $10,000."))
        await learner.wait_visible(Caller(ANN))
        await complete(forgetter, await forgetter.forget(ANN, EVERYTHING))
        world.now += timedelta(seconds=30)
        assert await learner.accept(world.exchange("My budget is $10,000.")) is TurnOutcome.FORGOTTEN  # a retry
        world.now += timedelta(minutes=5)
        assert await learner.accept(world.exchange("My budget is $10,000.")) is TurnOutcome.JOURNALLED
        await learner.wait_visible(Caller(ANN))
        assert await world.findable("My budget is $10,000.")


async def test_nothing_of_an_owner_is_recalled_while_their_forget_cannot_be_carried_out(world: World) -> None:
    """The store is down: the call is accepted, and recall finds nothing rather than what was to go."""
    world.forget_limits = replace(world.forget_limits, patience=timedelta(milliseconds=20))
    await world.put(a_memory("likes tea"), a_memory("likes tea", BOB))
    async with world.forgetter() as forgetter:
        assert await world.findable("likes tea")
        world.weather.down = True
        receipt = await forgetter.forget(ANN, EVERYTHING)
        assert receipt.state is ForgetState.ACCEPTED
        world.now += timedelta(hours=2)
        assert world.sample("forget_oldest_seconds") == 7200
        with pytest.raises(TransientError):
            await world.findable("likes tea")
        world.weather.down = False
        assert (await complete(forgetter, receipt)).memories == 1
        assert not await world.findable("likes tea")
        assert await world.findable("likes tea", BOB)


async def test_a_forget_that_a_crash_cut_short_is_finished_by_the_next_process(world: World) -> None:
    await world.put(a_memory("likes tea"))
    world.weather.down = True
    world.forget_limits = replace(world.forget_limits, patience=timedelta(milliseconds=5))
    async with world.forgetter() as first:
        receipt = await first.forget(ANN, EVERYTHING)
    world.weather.down = False
    async with world.forgetter() as second:
        await complete(second, receipt)
    assert await world.contents() == set()


async def test_a_restored_backup_brings_nothing_back(world: World, forgetter: Forgetter) -> None:
    backup = [a_memory("likes tea"), a_message("I like tea.")]
    await world.put(*backup)
    await complete(forgetter, await forgetter.forget(ANN, ForgetScope(ids=(backup[0].id,))))
    everything = await forgetter.forget(ANN, EVERYTHING)
    await complete(forgetter, everything)
    vectors = await world.embedder.embed([one.content for one in backup])
    await world.store.put(ANN, [Embedded(one, vector) for one, vector in zip(backup, vectors, strict=True)])
    world.partitions.drop(ANN)
    assert not await world.findable("likes tea")
    await until(lambda: world.files.purged.count(ANN) >= 3, "what came back is erased again")
    assert await world.contents() == set()


class HeldUp(ListingExtractor):
    """Extracts when it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()

    async def extract(self, turns: Sequence[Turn], *, earlier: Sequence[Turn] = ()) -> list[Fact]:
        found = await super().extract(turns, earlier=earlier)
        self.reached.set()
        await self.go_on.wait()
        return found


async def test_extraction_under_way_brings_nothing_back(world: World, forgetter: Forgetter) -> None:
    extractor = world.extractor = HeldUp()
    world.limits = replace(world.limits, batch=1)
    reconciler = Reconciler(world.partitions, world.embedder, world.metrics)
    world.reconciler = reconciler  # type: ignore[assignment]  # the real one
    async with world.build() as learner:
        await learner.accept(world.exchange("My budget is $10,000."))
        await extractor.reached.wait()
        await complete(forgetter, await forgetter.forget(ANN, EVERYTHING))
        extractor.go_on.set()
    assert await world.contents() == set()
    assert [entry async for entry in world.journal.of_owner(ANN)] == []


async def test_a_write_that_comes_after_its_forget_is_not_kept(world: World, forgetter: Forgetter) -> None:
    """Of an extraction that had passed every other check, or of a replica that was cut off for a while."""
    late = a_memory("likes tea")
    await forgetter.forget(ANN, EVERYTHING)
    await world.put(late, a_memory("likes tea", BOB))
    (vector,) = await world.embedder.embed([late.content])
    await world.hiding.put(ANN, [Embedded(late, vector)])
    assert await world.contents() == set()
    assert await world.contents(BOB) == {"likes tea"}
    assert not await world.findable("likes tea")


async def test_what_was_forgotten_is_hidden_from_every_way_of_reading(world: World, forgetter: Forgetter) -> None:
    gone, kept = a_memory("likes tea"), a_memory("likes rum")
    await world.put(gone, kept)
    await complete(forgetter, await forgetter.forget(ANN, ForgetScope(ids=(gone.id,))))
    rows = await world.embedder.embed([gone.content, kept.content])
    await world.store.put(ANN, [Embedded(gone, rows[0]), Embedded(kept, rows[1])])  # a backup, behind our back
    hiding = world.hiding
    assert [memory.id for memory in await hiding.get(ANN, [gone.id, kept.id])] == [kept.id]
    assert [row.memory.id for row in await hiding.fetch(ANN, [gone.id, kept.id])] == [kept.id]
    assert [one.memory.id for one in (await hiding.nearest(ANN, rows[0], 5, Scope())).found] == [kept.id]
    assert gone.id not in [row.memory.id for row in await hiding.search_text(ANN, "tea rum", 5, Scope())]
    assert [row.memory.id async for page in hiding.pages(ANN, 10, fresh=True) for row in page] == [kept.id]


async def test_a_forget_that_a_newer_version_wrote_is_left_to_it_and_keeps_none_from_being_carried_out(
    world: World,
) -> None:
    await world.put(a_memory("likes tea", BOB))
    subject = (await world.forgotten.blind()).subject(BOB)
    job = Job(id="ours", subject=subject, name="user", at=world.now, owner=BOB, scope=EVERYTHING)
    ours = msgspec.json.encode(job)
    newer = json.dumps({**json.loads(ours), "id": "newer", "only_in": "tomorrow"}).encode()
    for name, body in (("newer", newer), ("ours", ours)):
        await world.ledger.write(LedgerJob(id=name, subject=subject, body=body, shut=False, open=True))
    with structlog.testing.capture_logs() as logs:
        async with world.forgetter():

            async def gone() -> bool:
                return await world.contents(BOB) == set()

            await until(gone, "our own forget is carried out")
    assert [line["event"] for line in logs if line["event"] == "forget.unreadable"] == ["forget.unreadable"]
    assert {one.id for one in await world.ledger.list_unfinished()} >= {"newer"}


class OverheardLedger(InMemoryLedger):
    """Whoever lists what is unfinished hears of a job before the one who writes it hears that it is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.listed = asyncio.Event(), asyncio.Event()

    async def write(self, job: LedgerJob, **marks: Any) -> None:
        await super().write(job, **marks)
        self.written.set()
        await self.listed.wait()

    async def list_unfinished(self) -> Sequence[LedgerJob]:
        await self.written.wait()
        self.listed.set()
        return await super().list_unfinished()


async def test_a_forget_accepted_while_those_of_before_are_taken_up_is_carried_out_once_and_is_then_over() -> None:
    world = World(ledger=OverheardLedger())
    await world.put(a_memory("likes tea"))
    async with world.partitions, world.forgetter() as forgetter:
        await complete(forgetter, await forgetter.forget(ANN, EVERYTHING))
        await until(lambda: not forgetter._running, "nothing is left to be done")
        assert world.sample("forgets_pending") == 0
        assert world.files.purged == [ANN]


async def test_a_running_replica_carries_on_with_the_forget_of_one_that_ended(world: World) -> None:
    world.forget_limits = replace(
        world.forget_limits, patience=timedelta(milliseconds=5), lease=timedelta(milliseconds=20)
    )
    await world.put(a_memory("My budget is $10,000"))
    world.weather.down = True
    async with world.forgetter(holder="beside") as beside:
        async with world.forgetter(holder="ends") as ends:
            receipt = await ends.forget(ANN, EVERYTHING)
            assert receipt.state is ForgetState.ACCEPTED
        world.weather.down = False
        world.now += timedelta(seconds=1)  # the lease of the replica that ended has run out
        assert (await complete(beside, receipt)).state is ForgetState.COMPLETE
    assert await world.contents() == set()


async def test_two_replicas_do_not_carry_out_one_forget_at_a_time(world: World) -> None:
    world.forget_limits = replace(world.forget_limits, lease=timedelta(milliseconds=5))
    coordination = world.coordination
    async with world.forgetter(holder="beside"):
        assert await coordination.acquire("forget:j1", "ends", timedelta(hours=1))
        await world.ledger.write(
            Job(id="j1", subject="s", name="everything", at=world.now, owner=ANN, scope=EVERYTHING).to_ledger()
        )
        looks = 0

        def looked() -> bool:
            nonlocal looks
            looks += 1
            return looks > 20

        await until(looked, "it has had time to look several times")
        [left] = await world.ledger.list_unfinished()
        assert Job.read(left).steps == {}
        await coordination.release("forget:j1", "ends")
        await until(lambda: _is_finished(world), "it is carried out now")


async def test_a_replica_that_lost_its_lease_on_a_forget_leaves_it_to_the_one_that_has_it(world: World) -> None:
    """Or it would find nothing any more, and its receipt would say so."""
    world.forget_limits = replace(
        world.forget_limits, patience=timedelta(milliseconds=5), lease=timedelta(milliseconds=20)
    )
    await world.put(a_memory("My budget is $10,000"))
    world.weather.down = True
    async with world.forgetter(holder="late") as late:
        receipt = await late.forget(ANN, EVERYTHING)
        name = f"forget:{receipt.id}"

        async def is_taken() -> bool:
            world.now += timedelta(seconds=1)  # Redis was away for as long
            return await world.coordination.acquire(name, "other", timedelta(days=1))

        await until(is_taken, "another has it")
        await until(lambda: not late._running, "it is left alone")
        world.weather.down = False
        await world.coordination.release(name, "other")
        assert (await complete(late, receipt)).memories == 1


async def _is_finished(world: World) -> bool:
    return not await world.ledger.list_unfinished()


def a_history(of: Memory, *earlier: Memory, **known: Any) -> Memory:
    """A fact that tells earlier values too, as retention makes it."""
    return replace(
        a_memory(f"{of.content} (first {', then '.join(one.content for one in earlier)})", session=of.session),
        provenance=Provenance(
            derived="history",
            sources=(of.id, *(one.id for one in earlier)),
            past=tuple(one.id for one in earlier),
            **known,
        ),
    )


async def test_a_late_look_of_another_forget_takes_along_what_was_made_of_an_accepted_one(
    world: World, forgetter: Forgetter
) -> None:
    first = a_memory("User's team is Hawks", session="monday")
    now = a_memory("User's team is Owls", session="tuesday")
    made_of_it = a_history(now, first)
    await world.put(first, now, made_of_it)
    # Another replica accepted a forget of Monday, and has not come to it when an earlier forget looks again.
    blind = await world.forgotten.blind()
    job = Job(
        id="7" * 32, subject=blind.subject(ANN), name="session", at=world.now, owner=ANN,
        scope=ForgetScope(session="monday"),
    )  # fmt: skip
    cut = blind.make_cut(ANN, ForgetScope(session="monday"), world.now)
    await world.ledger.write(job.to_ledger(), cut=msgspec.json.encode(cut))
    world.forgotten.renew(job.subject)
    forgetter.sweep(ANN)
    await until(lambda: _is(world, {now.content}), "only what nobody forgot is left")


async def _is(world: World, wanted: set[str]) -> bool:
    return await world.contents() == wanted


async def test_a_history_with_a_forgotten_value_does_not_return_though_its_own_value_is_newer(
    world: World, forgetter: Forgetter
) -> None:
    first = a_memory("User's team is Hawks", session="monday")
    await world.put(first)
    await complete(forgetter, await forgetter.forget(ANN, ForgetScope(session="monday")))
    world.now += timedelta(seconds=5)
    now = replace(a_memory("User's team is Owls", session="tuesday"), created_at=world.now)
    await world.put(now)
    # A replica that read both before the forget writes what it made of them.
    late = a_history(now, first, said=world.now.timestamp())
    await world.put(late)
    assert await world.contents() == {now.content}


def test_what_was_derived_from_forgotten_memories_goes_whenever_it_was_derived() -> None:
    at = MONDAY.timestamp() + 60
    first = a_memory("User's team is Hawks", session="monday")
    now = replace(a_memory("User's team is Owls", session="tuesday"), created_at=MONDAY + timedelta(seconds=65))
    made_of_it = a_history(now, first, said=at + 5)
    taken = cascade([first, now, made_of_it], ForgetScope(session="monday"), at, at + 10)
    assert taken.memories.keys() == {first.id, made_of_it.id}
