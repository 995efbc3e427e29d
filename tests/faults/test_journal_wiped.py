"""Turns that wait to be stored, in a real Redis that loses them: the replica that accepted them puts them back."""

from __future__ import annotations

import itertools
import shutil
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from uuid import uuid4

import pytest
import structlog.testing

from memory_extproc.app.coordination import open_journal, take_part
from memory_extproc.app.storage import open_restorable_journal, review_forgotten
from memory_extproc.coordination.redis import RedisCoordination
from memory_extproc.errors import PermanentError, TransientError
from memory_extproc.learn import restorable_journal
from memory_extproc.learn.ingest import Intake
from memory_extproc.learn.learner import ForgetGuard
from memory_extproc.learn.messages import BY_CHAT
from memory_extproc.learn.restorable_journal import UNSTORED, RestorableJournal
from memory_extproc.learn.sessions import Sessions
from memory_extproc.model import Caller, Embedded, LedgerJob, MemoryState, Owner, Turn, TurnOutcome
from memory_extproc.settings.paths import JournalSection
from memory_extproc.testing.adapters import InMemoryStore, Weather
from tests.support.builders import ANN, BOB, MONDAY, a_turn
from tests.support.copying import copied_at_once
from tests.support.lost_redis import Place, Replica, place, serving
from tests.support.waiting import until
from tests.unit.learn.learning import LIMITS, Surroundings

__all__ = ["place"]

pytestmark = pytest.mark.redis

BIKE, CAT, BOAT = "I own 3 red bicycles.", "My cat is called Rex.", "My boat lies in Kiel."
LATER = (MONDAY + timedelta(hours=1)).timestamp()


@dataclass
class Learner(Replica):
    """A replica that learns, too. Its way to the store is its own."""

    weather: Weather = field(default_factory=lambda: Weather(down=True))
    rows: dict[Owner, dict[str, Embedded]] = field(default_factory=dict)
    world: Surroundings = field(init=False)
    intake: Intake = field(init=False)
    journal: RestorableJournal = field(init=False)

    async def start(self) -> None:
        context = await self.open()
        journal, _, _ = await open_journal(
            context, self.link, lambda: timedelta(hours=1) if self.weather.down else timedelta()
        )
        restorable = await open_restorable_journal(context, journal, self.erasing)
        assert restorable is not None
        self.journal = restorable
        store = InMemoryStore(32, now=lambda: MONDAY, weather=self.weather)
        store._rows = self.rows
        limits = replace(LIMITS, look=timedelta(milliseconds=50), grace=timedelta(milliseconds=100))
        self.world = Surroundings(limits=limits, shared_store=store, forgotten=self.erasing.forgotten)
        self.world.journal = restorable
        await take_part(self.erasing, self.world.partitions, self.stack)
        self.erasing.replicas.oldest_waiting = restorable.oldest_lacking  # type: ignore[attr-defined]
        await self.stack.enter_async_context(restorable)
        review_forgotten(self.erasing, restorable)
        coordination = RedisCoordination(self.link, prefix=self.settings.coordination.prefix)
        self.world.coordination = coordination  # type: ignore[assignment]
        self.world.sessions = Sessions(coordination, new_session=lambda: uuid4().hex)
        self.intake = await self.stack.enter_async_context(self.world.learner())

    async def say(self, words: str, owner: Owner = ANN, answered: str = "") -> None:
        exchanged = self.world.exchange(words, answered, owner)
        assert await self.intake.accept(exchanged) is TurnOutcome.JOURNALLED

    def stored(self, owner: Owner = ANN) -> list[str]:
        return sorted(row.memory.content for row in self.rows.get(owner, {}).values())

    def copies(self) -> int:
        return len(self.journal._kept)

    async def lost(self, *kinds: str) -> None:
        def noticed() -> bool:
            return any(self.sample("coordination_losses_total", kind=kind) for kind in kinds)

        await until(noticed, "the loss is noticed")
        await serving(self)


@dataclass
class Fleet:
    place: Place
    rows: dict[Owner, dict[str, Embedded]] = field(default_factory=dict)

    async def replica(self, name: str) -> Learner:
        plain = await self.place.replica(name)
        await plain.stop()
        made = Learner(plain.data, plain.settings, self.place.shared, rows=self.rows)
        await made.start()
        self.place.stack.push_async_callback(made.stop)
        await serving(made)
        return made


@pytest.fixture
def fleet(place: Place) -> Fleet:
    return Fleet(place)


@pytest.mark.parametrize("how", ["wiped", "older"])
async def test_turns_that_wait_for_the_store_are_put_back_into_a_journal_that_lost_them(
    fleet: Fleet, how: str
) -> None:
    one, place = await fleet.replica("one"), fleet.place
    older = place.scratch / "older"
    await until(lambda: copied_at_once(place.files, older), "there is a backup")
    await one.say(BIKE)
    await one.say(CAT, BOB)
    await one.renew()
    with structlog.testing.capture_logs() as logs:
        if how == "wiped":
            await place.wipe(one)
        else:
            place.exchange(keeping=older)
        await one.lost("wiped", "rolled_back")
    assert [entry["turns"] for entry in logs if entry["event"] == "journal.put_back"] == [2]
    one.weather.down = False
    await until(lambda: (one.stored(), one.stored(BOB)) == ([BIKE], [CAT]), "they are stored, each once")
    await until(lambda: not one.copies(), "no copy is left")


async def kill(one: Learner) -> None:
    """What is left of it is in its directory."""
    left = one.data.with_name("left")
    await until(lambda: copied_at_once(one.data, left), "as a kill leaves it")
    await one.stop()
    shutil.rmtree(one.data)
    left.rename(one.data)


async def test_turns_of_a_replica_that_was_killed_are_put_back_when_it_starts_again(fleet: Fleet) -> None:
    one = await fleet.replica("one")
    await one.say(BIKE)
    await kill(one)
    fleet.place.exchange()
    one.weather.down = False
    await one.start()
    await until(lambda: one.stored() == [BIKE], "it is stored")


async def test_a_turn_that_another_replica_stored_brings_back_nothing_that_was_forgotten_in_chat(
    fleet: Fleet,
) -> None:
    one, two = await fleet.replica("one"), await fleet.replica("two")
    await one.say(BIKE)
    await kill(one)
    two.weather.down = False
    await until(lambda: two.stored() == [BIKE], "the other stores it")
    [row] = fleet.rows[ANN].values()  # which a forget in chat leaves, retired
    fleet.rows[ANN][row.memory.id] = replace(row, memory=replace(row.memory, state=MemoryState.DELETED))
    await fleet.place.wipe(two)
    await two.lost("wiped")
    one.weather.down = False
    await one.start()
    await until(lambda: not one.copies(), "nothing is left to be stored", seconds=30)
    [row] = fleet.rows[ANN].values()
    assert row.memory.state is MemoryState.DELETED


async def test_what_was_forgotten_does_not_come_back_with_the_journal(fleet: Fleet) -> None:
    one = await fleet.replica("one")
    await one.say(BIKE)
    await one.say(CAT, BOB)
    # Accepted, and the process ends before it looks into the journal.
    job = LedgerJob(f"{1:032x}", await one.subject(ANN), b"{}", shut=False, open=False)
    await one.erasing.ledger.write(job, cut=b'[%f,"","",[],null]' % LATER, at=LATER)
    await fleet.place.wipe(one)
    await one.lost("wiped")
    one.weather.down = False
    await until(lambda: one.stored(BOB) == [CAT], "what was not forgotten is stored")
    await until(lambda: not one.copies(), "nothing is left to be stored")
    assert one.stored() == []


async def test_a_turn_that_was_erased_leaves_no_copy(fleet: Fleet) -> None:
    one = await fleet.replica("one")
    await one.say(BIKE)
    await one.say(CAT, BOB)
    assert one.copies() == 2
    assert await one.journal.erase_owner(ANN) == 1
    [entry] = [entry async for entry in one.journal.of_owner(BOB)]
    assert await one.journal.erase(ANN, [entry.turn.id]) == 0, "of another person"
    assert one.copies() == 1
    assert await one.journal.erase(BOB, [entry.turn.id]) == 1
    assert one.copies() == 0


async def test_what_a_chat_forgot_elsewhere_does_not_come_back_with_the_journal(fleet: Fleet) -> None:
    """The copy is another replica's, which has not noticed when Redis is wiped."""
    one, two = await fleet.replica("one"), await fleet.replica("two")
    await one.say(BIKE)
    await one.say(BOAT)
    coordination = RedisCoordination(two.link, prefix=fleet.place.prefix)
    guard = ForgetGuard(two.journal, coordination, two.erasing.forgotten)
    await guard.withdraw_earlier(a_turn("Forget my bicycles", at=MONDAY), lambda text: "bicycles" in text)
    await fleet.place.wipe(two)
    await one.lost("wiped", "replaced")
    one.weather.down = False
    await until(lambda: BOAT in one.stored(), "the other is stored")
    await until(lambda: not one.copies(), "nothing is left to be stored")
    assert one.stored() == [BOAT]


async def test_copies_of_turns_that_others_stored_are_dropped(fleet: Fleet) -> None:
    one, two = await fleet.replica("one"), await fleet.replica("two")
    await one.say(BIKE)
    two.weather.down = False
    await until(lambda: two.stored() == [BIKE], "the other stores it")
    await until(lambda: not one.copies(), "the copy is dropped", seconds=30)


async def test_a_replica_that_leaves_in_order_keeps_no_copy_unless_redis_is_away(fleet: Fleet) -> None:
    one = await fleet.replica("one")
    await one.say(BIKE)
    await one.stop()
    assert not list((one.data / UNSTORED).iterdir())
    await one.start()
    await serving(one)
    await one.say(CAT)
    fleet.place.server.stall()
    await one.stop()
    assert list((one.data / UNSTORED).iterdir())
    assert one.journal.oldest_lacking() == MONDAY
    fleet.place.server.resume()
    await fleet.place.wipe(await fleet.place.replica("operator"))
    one.weather.down = False
    await one.start()
    await until(lambda: CAT in one.stored(), "it is stored")


async def test_a_journal_that_is_full_takes_the_rest_later(fleet: Fleet) -> None:
    one = await fleet.replica("one")
    for words in (BIKE, CAT, BOAT):
        await one.say(words)
    shared = one.journal._journal.shared  # type: ignore[attr-defined]
    shared._section = JournalSection(max_turns=2)
    await fleet.place.wipe(one)
    await one.lost("wiped")
    assert one.journal.oldest_lacking() == MONDAY
    shared._section = JournalSection(max_turns=100)
    await until(lambda: one.journal.oldest_lacking() is None, "the rest is put back", seconds=30)
    one.weather.down = False
    await until(lambda: one.stored() == sorted([BIKE, CAT, BOAT]), "all are stored")


async def test_a_fact_that_a_chat_forgot_before_it_was_extracted_does_not_come_back_with_the_journal(
    fleet: Fleet,
) -> None:
    one, two = await fleet.replica("one"), await fleet.replica("two")
    await one.say(BIKE)
    await kill(one)
    two.weather.down = False
    await until(lambda: two.stored() == [BIKE], "the other stores it")
    [row] = fleet.rows[ANN].values()
    forgotten = row.memory.provenance.replace(retired=BY_CHAT)
    gone = replace(row.memory, state=MemoryState.DELETED, provenance=forgotten)
    fleet.rows[ANN][gone.id] = replace(row, memory=gone)
    coordination = RedisCoordination(two.link, prefix=fleet.place.prefix)
    guard = ForgetGuard(two.journal, coordination, two.erasing.forgotten)
    await guard.withdraw_earlier(a_turn("Forget my bicycles", at=MONDAY), lambda text: "bicycles" in text)
    await fleet.place.wipe(two)
    await two.lost("wiped")
    one.weather.down = False
    await one.start()
    await one.say(BOAT)
    await until(lambda: not one.copies(), "nothing is left to be stored", seconds=30)
    for each in (one, two):
        await each.intake.end_session(Caller(ANN))

    def extracted() -> list[str]:
        return [text for each in (one, two) for _, text in each.world.reconciler.facts]

    await until(lambda: BOAT in extracted(), "facts are extracted", seconds=30)
    assert BIKE not in extracted()


async def test_an_earlier_answer_does_not_take_the_place_of_a_later_one(fleet: Fleet) -> None:
    one, two = await fleet.replica("one"), await fleet.replica("two")
    await one.say(BIKE, answered="The first answer speaks of 3 bicycles.")
    await kill(one)
    two.world.now += timedelta(minutes=1)
    await two.say(BIKE, answered="The second answer speaks of 4 bicycles.")
    await fleet.place.wipe(two)
    await two.lost("wiped")
    await one.start()
    await serving(one)
    await until(lambda: one.journal.oldest_lacking() is None, "its copy is put back or dropped")
    one.weather.down = two.weather.down = False
    await until(lambda: not one.copies() and not two.copies(), "all are stored", seconds=30)
    assert "The second answer speaks of 4 bicycles." in one.stored()
    assert "The first answer speaks of 3 bicycles." not in one.stored()


async def test_an_earlier_answer_does_not_take_the_place_of_one_that_is_stored(fleet: Fleet) -> None:
    one, two = await fleet.replica("one"), await fleet.replica("two")
    await one.say(BIKE, answered="The first answer speaks of 3 bicycles.")
    await kill(one)
    two.world.now += timedelta(minutes=1)
    two.weather.down = False
    await two.say(BIKE, answered="The second answer speaks of 4 bicycles.")
    await until(lambda: not two.copies(), "the later one is stored")
    await fleet.place.wipe(two)
    await two.lost("wiped")
    one.weather.down = False
    await one.start()
    await until(lambda: not one.copies(), "nothing is left to be stored", seconds=30)
    assert one.stored() == sorted([BIKE, "The second answer speaks of 4 bicycles."])


async def test_a_turn_that_waits_in_the_journal_of_a_replica_keeps_its_copy(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restorable_journal, "_REVIEW", 0.0)
    monkeypatch.setattr(restorable_journal, "_LOOK", 0.0)
    one = await fleet.replica("one")
    shared, spare = one.journal._journal.shared, one.journal._journal.spare  # type: ignore[attr-defined]
    fleet.place.server.stall()
    await one.say(BIKE)
    assert (await spare.depth()).turns == 1
    fleet.place.server.resume()
    await serving(one)

    async def moved() -> bool:
        with suppress(TransientError):  # Redis was away a moment ago
            return ((await spare.depth()).turns, (await shared.depth()).turns) == (0, 1)
        return False

    await until(moved, "it is in the shared journal")
    await one.renew()
    await fleet.place.wipe(one)
    await one.lost("wiped")
    one.weather.down = False
    await until(lambda: one.stored() == [BIKE], "it is stored")


async def test_a_turn_whose_append_meets_the_loss_is_put_back(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With encryption an append reads the key once more after the journal has the turn."""
    one = await fleet.replica("one")
    append = one.journal._journal.append

    async def interrupted(turn: Turn) -> TurnOutcome:
        stored = await append(turn)
        monkeypatch.undo()
        await fleet.place.wipe(one)
        await one.lost("wiped")
        return stored

    monkeypatch.setattr(one.journal._journal, "append", interrupted)
    await one.say(BIKE)
    one.weather.down = False
    await until(lambda: one.stored() == [BIKE], "it is stored")


async def test_a_turn_that_the_journal_refuses_keeps_no_other_from_being_put_back(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await fleet.replica("one")
    await one.say(BIKE)
    await one.say(CAT, BOB)
    append = one.journal._journal.append

    async def refused(turn: Turn) -> TurnOutcome:
        if turn.owner == ANN:
            raise PermanentError("a data key that cannot be read")
        return await append(turn)

    monkeypatch.setattr(one.journal._journal, "append", refused)
    await fleet.place.wipe(one)
    await one.lost("wiped")
    one.weather.down = False
    await until(lambda: one.stored(BOB) == [CAT], "the other is stored")
    assert one.journal.oldest_lacking() == MONDAY
    monkeypatch.undo()
    await until(lambda: one.stored() == [BIKE], "it is stored once the journal takes it")


async def test_copies_of_somebody_whom_another_replica_forgot_are_dropped_before_those_of_others(
    fleet: Fleet,
) -> None:
    one, two = await fleet.replica("one"), await fleet.replica("two")
    for number in range(400):
        await one.say(f"My parcel has the number {number}.", BOB)
    await one.say(BIKE)
    assert await two.journal.erase_owner(ANN) == 1
    await two.erasing.replicas.tell(await two.subject(ANN))

    def left() -> set[Owner]:
        return {copy.record.owner for copy in one.journal._kept.values()}

    looks = itertools.count()
    look = one.journal._look

    async def counted() -> None:
        next(looks)
        await look()

    one.journal._look = counted  # type: ignore[method-assign]
    await until(lambda: left() == {BOB}, "the copy is dropped")
    assert next(looks) <= 3, "400 copies are reviewed in 8 looks"
