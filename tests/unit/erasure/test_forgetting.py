"""What a forget takes, what it leaves, and what it says of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import permutations
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from memory_extproc.coordination.transient import TransientCoordination
from memory_extproc.curate.curator import Correction, Curator, Meaning, Standing
from memory_extproc.erasure.closure import closure
from memory_extproc.erasure.forgetter import Forgetter
from memory_extproc.erasure.job import Job
from memory_extproc.erasure.marks import Blind, Kind
from memory_extproc.erasure.receipts import Signer, is_genuine, key_id, read_public, read_signer
from memory_extproc.errors import GiveUpError, TryLaterError
from memory_extproc.learn.extract import Fact
from memory_extproc.learn.reconcile import Reconciler
from memory_extproc.learn.sessions import WORDED, SessionLimits, Sessions
from memory_extproc.model import (
    Caller,
    Embedded,
    Exchanged,
    ForgetScope,
    ForgetState,
    Found,
    LedgerJob,
    Memory,
    MemoryState,
    MemoryType,
    Message,
    Owner,
    Role,
    Scope,
    Source,
    Stored,
    Turn,
    digest,
)
from tests.builders import ANN, BOB, OTHER_ANN, a_memory, a_message, a_turn
from tests.unit.erasure.forgetting import World, complete
from tests.unit.learn.learning import ListingExtractor, until

EVERYTHING = ForgetScope()


class NothingUnderstood:
    async def meaning(self, owner: Owner, content: str) -> Meaning:
        return Meaning()

    def standing(self, content: str, meaning: Meaning, found: Found) -> Standing:
        return Standing.OTHER


def world_ends() -> float:
    """Later than anything was said, in seconds since 1970."""
    return datetime(2100, 1, 1, tzinfo=UTC).timestamp()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    async with made.partitions:
        yield made


@pytest.fixture
async def forgetter(world: World) -> AsyncIterator[Forgetter]:
    async with world.forgetter() as made:
        yield made


async def test_a_user_is_forgotten_and_nobody_else(world: World, forgetter: Forgetter) -> None:
    for owner in (ANN, BOB, OTHER_ANN):
        await world.put(a_memory("likes tea", owner), a_memory("is 41", owner, state=MemoryState.SUPERSEDED))
    receipt = await forgetter.forget(ANN, EVERYTHING)
    assert receipt.state is not ForgetState.ACCEPTED
    assert not await world.findable("likes tea")
    receipt = await complete(forgetter, receipt)
    assert receipt.memories == 2
    assert receipt.scope == "user"
    assert {one.store: (one.done, one.done_at) for one in receipt.stores} == dict.fromkeys(
        ("files", "journal", "memories", "records"), (True, world.now)
    )
    assert await world.contents(ANN) == set()
    assert await world.contents(BOB) == await world.contents(OTHER_ANN) == {"likes tea", "is 41"}


async def test_a_fact_goes_with_its_older_versions_and_the_words_it_came_from(
    world: World, forgetter: Forgetter
) -> None:
    said = a_message("My budget is $12,000, and I am vegetarian.", metadata={"turn": "t2"})
    newer = a_memory(
        "User's budget is $12,000",
        metadata={"subject": "user", "attribute": "budget", "value": "$12,000", "turn": "t2"},
    )
    older = a_memory(
        "User's budget is $10,000",
        superseded_by=newer.id,
        state=MemoryState.SUPERSEDED,
        metadata={"subject": "user", "attribute": "budget", "value": "$10,000", "turn": "t1"},
    )
    again = a_message("As I said, 12000 is the budget.", metadata={"turn": "t7"})
    sibling = a_memory(
        "User is vegetarian", metadata={"subject": "user", "attribute": "diet", "value": "vegetarian", "turn": "t2"}
    )
    old_words = a_message("I have $10,000.", metadata={"turn": "t1"})
    other = a_message("The flight costs 12000 points.", metadata={"turn": "t9"})
    made_of_it = a_memory("User plans an expensive trip", metadata={"sources": [newer.id]})
    await world.put(said, newer, older, again, sibling, old_words, other, made_of_it)
    receipt = await complete(forgetter, await forgetter.forget(ANN, ForgetScope(ids=(newer.id,))))
    assert await world.contents() == {sibling.content, other.content}
    assert receipt.memories == 6


async def test_a_message_goes_with_its_turn_and_what_was_taken_from_it(world: World, forgetter: Forgetter) -> None:
    asked = a_message("I moved to Lisbon.", metadata={"turn": "t1"})
    answer = a_message("Lisbon is lovely.", role=Role.ASSISTANT, metadata={"turn": "t1"})
    fact = a_memory("User lives in Lisbon", metadata={"turn": "t1"})
    unrelated = a_message("I like tea.", metadata={"turn": "t2"})
    await world.put(asked, answer, fact, unrelated)
    await complete(forgetter, await forgetter.forget(ANN, ForgetScope(ids=(answer.id,))))
    assert await world.contents() == {"I like tea."}


async def test_a_corrected_message_goes_with_all_that_was_made_of_what_it_said_first(
    world: World, forgetter: Forgetter
) -> None:
    asked = a_message("I moved to Lisbon last week.", metadata={"turn": "t1"})
    lives = a_memory(
        "User lives in Lisbon", metadata={"subject": "user", "attribute": "home", "value": "Lisbon", "turn": "t1"}
    )
    other = a_memory("User has a dog named Rex")
    retired = a_memory(
        "Often speaks of Lisbon and of Rex",
        state=MemoryState.DELETED,
        metadata={"derived": "reflection", "sources": [lives.id, other.id], "retired": "sources"},
    )
    await world.put(asked, lives, other, retired)
    curator = Curator(
        world.partitions, world.partitions, world.embedder, NothingUnderstood(), now=lambda: world.now
    )
    await curator.correct(ANN, asked.id, Correction(values={"content": "I moved to Porto last week."}))
    world.now += timedelta(seconds=1)
    await complete(forgetter, await forgetter.forget(ANN, ForgetScope(ids=(asked.id,))))
    assert await world.contents() == {other.content}


@pytest.mark.parametrize("version_kept", [True, False])
def test_what_a_corrected_message_takes_along_does_not_hang_on_the_order_of_the_rows(version_kept: bool) -> None:
    asked = a_message("I moved to Lisbon.", metadata={"turn": "t1", "heard": "h1"})
    version = replace(asked, id=digest("v"), state=MemoryState.SUPERSEDED, superseded_by=asked.id)
    corrected = replace(asked, content="I moved to Porto.", source=Source.API)
    lives = a_memory("User lives in Lisbon", metadata={"turn": "t1"})
    made_of_it = a_memory("Often speaks of Lisbon", metadata={"sources": [lives.id]})
    # The version that a correction left is history, and is erased in the end.
    rows = [corrected, lives, made_of_it, *([version] if version_kept else [])]
    blind = Blind(b"key")
    for order in permutations(rows):
        for listed in range(1, len(order) + 1):
            named = {corrected.id, *(memory.id for memory in order[:listed])}
            taken = closure(order, ForgetScope(ids=tuple(named)), world_ends())
            assert taken.memories.keys() == {memory.id for memory in rows}
            assert blind.item(Kind.HEARD, ANN, "h1") in taken.items(blind)  # the client may send it again


async def test_what_was_drawn_from_several_turns_goes_with_each_of_them(world: World, forgetter: Forgetter) -> None:
    asked = [a_message(f"I like city {n}.", metadata={"turn": f"t{n}"}) for n in range(3)]
    drawn = {"turn": "t2", "drawn_from": ["t0", "t1", "t2"]}
    note = a_memory("Cares about cities.", type=MemoryType.REFLECTIVE, metadata=drawn)
    made_of_it = a_memory("Cares about towns (first cities).", metadata={"sources": [note.id]})
    await world.put(*asked, note, made_of_it)
    await complete(forgetter, await forgetter.forget(ANN, ForgetScope(ids=(asked[0].id,))))
    assert await world.contents() == {"I like city 1.", "I like city 2."}
    await world.put(replace(note, id=digest("again")))  # out of a round that had begun before
    assert {one.content async for page in world.partitions.rows(ANN) for one in page} == {
        "I like city 1.", "I like city 2.",
    }  # fmt: skip


async def test_what_was_drawn_from_several_turns_takes_none_of_them_with_it(
    world: World, forgetter: Forgetter
) -> None:
    elsewhere = [a_message(f"I like city {n}.", session="s1", metadata={"turn": f"t{n}"}) for n in range(2)]
    here = a_message("I like tea.", session="s2", metadata={"turn": "t2"})
    newer = a_memory("Cares about tea.", session="s2", metadata={"turn": "t2", "drawn_from": ["t2"]})
    older = a_memory(
        "Cares about cities.",
        session="s1",
        state=MemoryState.SUPERSEDED,
        superseded_by=newer.id,
        metadata={"turn": "t1", "drawn_from": ["t0", "t1"]},
    )
    again = a_memory("Cares about chess.", metadata={"turn": "t0", "drawn_from": ["t0"], "also": {"t1": []}})
    await world.put(*elsewhere, here, newer, older, again)
    await complete(forgetter, await forgetter.forget(ANN, ForgetScope(session="s2")))
    await complete(forgetter, await forgetter.forget(ANN, ForgetScope(ids=(again.id,))))
    assert await world.contents() == {one.content for one in elsewhere}


async def test_what_is_said_at_every_turn_takes_no_other_turn_with_it(world: World, forgetter: Forgetter) -> None:
    def turn(name: str, asked: str, answered: str) -> tuple[Memory, Memory]:
        def answer(**more: Any) -> Memory:
            return a_message(answered, role=Role.ASSISTANT, id=digest("answer", name), **more)

        metadata = {"turn": name}
        return a_message(asked, id=digest("asked", name), metadata=metadata), answer(metadata=metadata)

    forgotten = turn("t1", "I moved to Lisbon.", "I see, tell me more about that.")
    kept = turn("t2", "I met Rex at the harbour.", "I see, tell me more about that.")
    agreed = turn("t3", "Yes please.", "Lisbon has a harbour, too.")
    agrees = turn("t4", "Yes please.", "The boat sails at noon.")
    said_again = turn("t5", "Where am I?", "Lisbon is where you moved, I see.")
    repeats = turn("t6", "And now?", "Lisbon is where you moved, I see.")
    await world.put(*forgotten, *kept, *agreed, *agrees, *said_again, *repeats)
    await complete(forgetter, await forgetter.forget(ANN, ForgetScope(ids=(forgotten[0].id, agreed[0].id))))
    assert {row.id for row in await world.rows(ANN)} == {row.id for row in (*kept, *agrees, *said_again, *repeats)}
    await complete(forgetter, await forgetter.forget(ANN, ForgetScope(ids=(said_again[1].id,))))
    assert {row.id for row in await world.rows(ANN)} == {row.id for row in (*kept, *agrees)}


@pytest.mark.parametrize(
    ("scope", "left"),
    [
        (ForgetScope(project="work"), {"at home", "long ago"}),
        (ForgetScope(session="s1"), {"at work", "long ago"}),
        (ForgetScope(types=frozenset({MemoryType.PROCEDURAL})), {"at home", "long ago"}),
        (ForgetScope(project="work", session="s1"), {"at home", "at work", "long ago"}),
    ],
)
async def test_each_condition_narrows(
    world: World, forgetter: Forgetter, scope: ForgetScope, left: set[str]
) -> None:
    await world.put(
        a_memory("at home", session="s1"),
        a_memory("at work", project="work", session="s2", type=MemoryType.PROCEDURAL),
        a_memory("long ago", created_at=world.now - timedelta(days=400)),
    )
    await complete(forgetter, await forgetter.forget(ANN, scope))
    assert await world.contents() == left


async def test_what_is_older_than_a_time_goes(world: World, forgetter: Forgetter) -> None:
    await world.put(a_memory("old", created_at=world.now - timedelta(days=2)), a_memory("new"))
    await complete(forgetter, await forgetter.forget(ANN, ForgetScope(before=world.now - timedelta(days=1))))
    assert await world.contents() == {"new"}


async def test_what_is_dated_behind_the_present_is_forgotten_with_the_rest(
    world: World, forgetter: Forgetter
) -> None:
    """A clock was set back since, or a file told a wrong time."""
    rows = [
        a_memory("is 41", created_at=world.now + timedelta(days=30)),
        a_memory("likes tea", metadata={"said": 1e18}),
    ]
    await world.put(*rows)
    waits = a_turn("I moved to Lisbon.", at=world.now + timedelta(days=30))
    await world.journal.append(waits)
    await complete(forgetter, await forgetter.forget(ANN, EVERYTHING))
    assert await world.contents() == set()
    assert [entry async for entry in world.journal.of_owner(ANN)] == []
    await world.put(*rows)  # out of a backup
    assert not [one async for page in world.partitions.rows(ANN) for one in page]


async def test_what_is_said_after_a_forget_is_kept(world: World, forgetter: Forgetter) -> None:
    await world.put(a_message("I live in Hawaii."))
    await complete(forgetter, await forgetter.forget(ANN, EVERYTHING))
    world.now += timedelta(milliseconds=10)
    async with world.build() as learner:
        assert await learner.accept(world.exchange("I live in Oslo now, not in Hawaii.")) is Stored.JOURNALLED
        await learner.settled(Caller(ANN))
        assert await world.findable("I live in Oslo now, not in Hawaii.")


async def test_an_exchange_that_began_before_the_forget_is_not_learned(world: World, forgetter: Forgetter) -> None:
    async with world.build() as learner:
        under_way = world.exchange("My budget is $10,000.", "Noted: $10,000.")
        world.now += timedelta(seconds=5)
        await complete(forgetter, await forgetter.forget(ANN, EVERYTHING))
        world.now += timedelta(seconds=5)
        assert await learner.accept(under_way) is Stored.FORGOTTEN
    assert await world.contents() == set()
    assert [entry async for entry in world.journal.of_owner(ANN)] == []


async def test_words_noted_with_a_response_that_was_on_its_way_go_with_the_forget_that_overtook_it(
    world: World, forgetter: Forgetter
) -> None:
    gate, noting = asyncio.Event(), asyncio.Event()

    class Late(TransientCoordination):
        async def put_record(self, kind: str, owner: Owner, key: str, value: bytes, ttl: timedelta) -> None:
            noting.set()
            await gate.wait()
            await super().put_record(kind, owner, key, value, ttl)

    late = Late(lambda: world.now)
    late.records = world.coordination.records
    world.sessions = Sessions(late, SessionLimits(), new_session=lambda: "s")
    async with world.build() as learner:
        under_way = replace(world.exchange("My budget is $10,000.", "Noted: $10,000."), response_id="resp_1")
        accepting = asyncio.create_task(learner.accept(under_way))
        await noting.wait()
        world.now += timedelta(seconds=5)
        await complete(forgetter, await forgetter.forget(ANN, EVERYTHING))
        gate.set()
        await accepting
    assert await world.contents() == set()
    assert [kind for kind, owner, _ in world.coordination.records if owner == ANN and kind in WORDED] == []


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
        assert await learner.accept(replace(asked, at=world.now)) is Stored.FORGOTTEN
        # The conversation goes on, and the model still sees the old words: what it answers is not kept.
        goes_on = replace(
            asked,
            history=(*history, Message(Role.USER, asked.asked), Message(Role.ASSISTANT, asked.answered)),
            asked="I prefer window seats.",
            answered="A window seat within your $10,000, then.",
            at=world.now,
        )
        assert await learner.accept(goes_on) is Stored.JOURNALLED
        await learner.settled(Caller(ANN))
    assert await world.contents() == {"I prefer window seats."}


async def test_words_said_anew_long_after_they_were_forgotten_are_learned(
    world: World, forgetter: Forgetter
) -> None:
    async with world.build() as learner:
        await learner.accept(world.exchange("My budget is $10,000."))
        await learner.settled(Caller(ANN))
        await complete(forgetter, await forgetter.forget(ANN, EVERYTHING))
        world.now += timedelta(seconds=30)
        assert await learner.accept(world.exchange("My budget is $10,000.")) is Stored.FORGOTTEN  # a retry
        world.now += timedelta(minutes=5)
        assert await learner.accept(world.exchange("My budget is $10,000.")) is Stored.JOURNALLED
        await learner.settled(Caller(ANN))
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
        with pytest.raises(TryLaterError):
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


async def test_a_dry_run_says_what_would_go_and_its_token_confirms_exactly_that(
    world: World, forgetter: Forgetter
) -> None:
    await world.put(a_memory("likes tea", project="p"), a_memory("likes rum"))
    plan = await forgetter.plan(ANN, ForgetScope(project="p"))
    assert [memory.content for memory in plan.memories] == ["likes tea"]
    assert plan.total == 1
    await world.put(a_memory("likes gin", project="p"))
    with pytest.raises(GiveUpError):
        await forgetter.forget(ANN, EVERYTHING, token=plan.token)
    with pytest.raises(GiveUpError):
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


async def test_a_query_alone_forgets_nothing(world: World, forgetter: Forgetter) -> None:
    with pytest.raises(GiveUpError):
        await forgetter.forget(ANN, ForgetScope(query="tea"))


async def test_a_receipt_is_shown_to_its_owner_alone(world: World, forgetter: Forgetter) -> None:
    receipt = await forgetter.forget(ANN, EVERYTHING)
    assert await forgetter.receipt(BOB, receipt.id) is None
    assert await forgetter.receipt(OTHER_ANN, receipt.id) is None
    assert await forgetter.receipt(ANN, "0" * 32) is None


async def test_when_a_server_purges_in_its_own_time_the_receipt_says_until_when(world: World) -> None:
    world.files.at_once = False
    world.forget_limits = replace(world.forget_limits, server_purge=timedelta(days=4))
    await world.put(a_memory("likes tea"))
    async with world.forgetter() as first:
        receipt = await first.forget(ANN, EVERYTHING)

        async def pends() -> bool:
            found = await first.receipt(ANN, receipt.id)
            return found is not None and any(one.pending_until for one in found.stores)

        await until(pends, "it says what is pending")
        told = await first.receipt(ANN, receipt.id)
        assert told is not None
        assert {one.store for one in told.stores if not one.done} == {"files"}
        assert {one.store: one.pending_until for one in told.stores}["files"] == world.now + timedelta(days=4)
        cleaned_at = world.now
        assert world.sample("forgets_pending") == 1
        world.now += timedelta(days=1)
        assert world.sample("forget_oldest_seconds") == 0, "it is on time"
    world.now += timedelta(days=3)
    async with world.forgetter() as second:
        receipt = await complete(second, receipt)
    assert receipt.completed_at == world.now
    done_at = {one.store: one.done_at for one in receipt.stores}
    assert done_at.pop("files") == world.now
    assert set(done_at.values()) == {cleaned_at}, "when they were done first, not when they were looked at again"
    assert world.sample("forgets_pending") == 0


async def test_forgets_are_counted_by_scope(world: World, forgetter: Forgetter) -> None:
    await forgetter.forget(ANN, ForgetScope(session="s", project="p"))
    assert world.sample("forgets_total", scope="project+session", outcome="accepted") == 1


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
    assert gone.id not in [row.memory.id for row in await hiding.worded(ANN, "tea rum", 5, Scope())]
    assert [row.memory.id async for page in hiding.pages(ANN, 10, fresh=True) for row in page] == [kept.id]


async def test_a_signed_receipt_can_be_checked_and_a_changed_one_is_found(world: World) -> None:
    world.signer = Signer(Ed25519PrivateKey.generate())
    async with world.forgetter() as forgetter:
        receipt = await complete(forgetter, await forgetter.forget(ANN, EVERYTHING))
    assert receipt.key_id == world.signer.key_id
    assert is_genuine(receipt.signed, receipt.signature, world.signer.public)
    assert not is_genuine(receipt.signed.replace(b"user", b"memo"), receipt.signature, world.signer.public)
    assert not is_genuine(receipt.signed, receipt.signature, Ed25519PrivateKey.generate().public_key())
    assert b"ann" not in receipt.signed
    assert json.loads(receipt.signed)["state"] == "complete"


def test_a_file_with_another_kind_of_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    for text in (b"", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"):
        path.write_bytes(text)
        with pytest.raises(GiveUpError):
            read_signer(path)
    other = ec.generate_private_key(ec.SECP256R1())
    path.write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(GiveUpError):
        read_signer(path)
    with pytest.raises(GiveUpError):
        read_public(path)
    mine = Ed25519PrivateKey.generate()
    path.write_bytes(mine.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    assert read_signer(path).key_id == key_id(read_public(path))
    path.write_bytes(mine.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    assert key_id(read_public(path)) == key_id(mine.public_key())


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
    assert {one.id for one in await world.ledger.unfinished()} >= {"newer"}
