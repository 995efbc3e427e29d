"""Before anything of an exchange is written: may it be kept, and what of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from memory_extproc.coordination.consent import Consents
from memory_extproc.errors import TransientError
from memory_extproc.learn.screening import Incognito, Quota, Screening
from memory_extproc.model import Caller, Consent, Exchanged, Message, Owner, Role, Screened, Turn, TurnOutcome
from memory_extproc.ports import Now
from memory_extproc.request.admission import learning_caller
from memory_extproc.safety.policy import Found, Policy
from memory_extproc.settings import CurrentSettings
from memory_extproc.settings.identity import ProjectScope, Scopes
from memory_extproc.settings.paths import QuotaSection
from memory_extproc.testing.adapters import InMemoryCoordination, InMemoryJournal
from tests.support.builders import ANN, BOB, MONDAY, consent_default
from tests.support.in_memory import InMemoryConsent
from tests.unit.learn.learning import Surroundings

PASSWORD = "hunter2"
MOST = 65_536
CALLER = Caller(ANN)


class Watched(InMemoryJournal):
    """A journal that tells all that was ever written to it."""

    def __init__(self, now: Now) -> None:
        super().__init__(now=now)
        self.written: list[bytes] = []

    async def append(self, turn: Turn) -> TurnOutcome:
        self.written.append(msgspec.json.encode(turn))
        return await super().append(turn)


class ReadingPolicy(Policy):
    """Keeps all that it reads."""

    def filter_exchange(self, exchanged: Exchanged) -> Found:
        return Found(replace(exchanged, answered="read"))


class AwayCoordination(InMemoryCoordination):
    """Records out of reach."""

    async def put_record(self, kind: str, owner: Owner, key: str, value: bytes, ttl: timedelta) -> None:
        raise TransientError("away")

    async def get_record(self, kind: str, owner: Owner, key: str) -> bytes | None:
        raise TransientError("away")


class Door:
    """A screening over records in memory."""

    def __init__(self, quota: QuotaSection | None = None, default: Consent = Consent.ON) -> None:
        self.world = Surroundings()
        now = lambda: self.world.now  # noqa: E731
        self.consent = Consents(InMemoryConsent(), CurrentSettings(consent_default(default)), now=now)
        self.incognito = Incognito(self.world.coordination)
        self.screening = Screening(
            self.consent,
            self.incognito,
            Quota(lambda: quota, now=now) if quota else None,
            Policy,
            self.world.metrics,
            most=MOST,
        )
        self.world.screens = self.screening

    async def lets_in(self, exchanged: Exchanged) -> bool:
        if not self.screening.has_room(exchanged.caller.owner):
            return False
        return isinstance(await self.screening.screen(exchanged), Screened)


def said(asked: str, *history: str, caller: Caller = CALLER, continues: str = "", response: str = "") -> Exchanged:
    messages = [Message(Role.USER if at % 2 == 0 else Role.ASSISTANT, text) for at, text in enumerate(history)]
    return Exchanged(
        caller=caller,
        history=tuple(messages),
        asked=asked,
        answered="Fine.",
        at=MONDAY,
        previous_response_id=continues,
        response_id=response,
    )


# --- consent -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("chosen", "kept"), [(Consent.ON, True), (Consent.RECALL_ONLY, False), (Consent.OFF, False)]
)
async def test_only_a_yes_lets_anything_be_kept(chosen: Consent, kept: bool) -> None:
    door = Door()
    await door.consent.set(ANN, chosen, by="ann")
    assert await door.lets_in(said("I like pizza.")) is kept
    assert await door.lets_in(said("I like pizza.", caller=Caller(BOB)))


async def test_who_said_no_leaves_nothing_in_the_journal_nor_in_any_record() -> None:
    door = Door()
    await door.consent.set(ANN, Consent.OFF, by="ann")
    async with door.world.learner() as learner:
        assert await learner.accept(said("I like pizza.")) is TurnOutcome.NO_CONSENT
        assert (await door.world.journal.depth()).turns == 0
    assert await door.world.stored() == []


async def test_what_a_member_says_for_a_project_was_allowed_by_the_member() -> None:
    door = Door(default=Consent.OFF)
    project = Caller(Owner.of_project("acme", "apollo"), project="apollo", speaker="somebody")
    assert await door.lets_in(said("We ship on Friday.", caller=project))


# --- words -------------------------------------------------------------------------------------------
async def test_a_secret_is_in_neither_journal_nor_memories_nor_vectors() -> None:
    door = Door()
    journal = door.world.journal = Watched(lambda: door.world.now)
    async with door.world.learner() as learner:
        assert await learner.accept(said(f"The password of my router is {PASSWORD}.")) is TurnOutcome.JOURNALLED
    assert journal.written
    assert not any(PASSWORD.encode() in turn for turn in journal.written)
    assert await door.world.stored() == ["The password of my router is [masked: password].", "Fine."]
    assert door.world.sample("withheld_total", kind="password") == 1


async def test_a_long_conversation_is_read_in_a_thread_to_the_same_end() -> None:
    door = Door()
    long = said(f"my password is {PASSWORD}", *["I walked for a while. " * 100] * 20)
    screened = await door.screening.screen(long)
    assert isinstance(screened, Screened)
    assert screened.kept.asked == "my password is [masked: password]"


# --- quota -------------------------------------------------------------------------------------------
async def test_a_caller_has_so_much_kept_and_others_are_not_the_poorer() -> None:
    door = Door(QuotaSection(turns_per_hour=60, burst=2))
    async with door.world.learner() as learner:
        answers = [await learner.accept(said(f"I like number {n}.")) for n in range(3)]
    assert answers[2] is TurnOutcome.OVER_QUOTA
    assert await door.lets_in(said("I like pizza.", caller=Caller(BOB)))
    door.world.now += timedelta(minutes=1)
    assert await door.lets_in(said("I like number 4."))
    assert not await door.lets_in(said("I like number 5."))


def test_a_clock_that_steps_back_gives_nothing_and_takes_nothing() -> None:
    now = [MONDAY]
    quota = Quota(lambda: QuotaSection(turns_per_hour=60, burst=1), owners=1, now=lambda: now[0])
    assert quota.take(ANN)
    now[0] -= timedelta(hours=1)
    assert not quota.take(ANN)
    now[0] = MONDAY + timedelta(minutes=1)
    assert quota.take(ANN)
    assert quota.take(BOB)
    assert quota.take(ANN), "only so many are held, and who is dropped begins anew"


# --- incognito ---------------------------------------------------------------------------------------
async def test_a_named_session_stays_incognito() -> None:
    door = Door()
    caller = Caller(ANN, session="s-1")
    await door.incognito.mark(caller, (), "I see a doctor.", "")
    assert await door.screening.screen(said("And I like pizza.", caller=caller)) is TurnOutcome.INCOGNITO
    assert await door.lets_in(said("And I like pizza.", caller=replace(caller, session="s-2")))
    assert await door.lets_in(said("And I like pizza.", caller=Caller(BOB, session="s-1")))


async def test_a_conversation_that_is_sent_again_stays_incognito_for_all_its_turns() -> None:
    door = Door()
    history = ["Hello", "Hi!"]
    await door.incognito.mark(Caller(ANN), said("", *history).history, "I see a doctor.", "")
    history += ["I see a doctor.", "The answer, as the client wrapped it."]
    for turn in range(6):
        exchanged = said(f"more {turn}", *history)
        assert await door.screening.screen(exchanged) is TurnOutcome.INCOGNITO
        history += [exchanged.asked, "an answer"]
    assert await door.lets_in(said("more 0", "Something else", "ok", "I see a doctor.", "ok"))


async def test_a_turn_sent_again_without_the_header_is_incognito_still() -> None:
    door = Door()
    before = said("I see a doctor.", "Hello", "Hi!")
    await door.incognito.mark(Caller(ANN), before.history, before.asked, "")
    assert await door.screening.screen(before) is TurnOutcome.INCOGNITO


async def test_a_chat_that_only_begins_alike_is_incognito_for_a_short_time_at_most() -> None:
    door = Door()
    await door.incognito.mark(Caller(ANN), (), "hi", "")
    assert await Incognito(door.world.coordination).holds(said("I like pizza.", "hi", "Hi!"))
    door.world.now += timedelta(hours=1)
    fresh = Incognito(door.world.coordination)
    assert not await fresh.holds(said("I like tea.", "hi", "Hi!"))


async def test_what_continues_an_incognito_response_is_incognito_and_so_on() -> None:
    door = Door()
    await door.incognito.mark_response(ANN, "resp_1")
    assert (
        await door.screening.screen(said("go on", continues="resp_1", response="resp_2")) is TurnOutcome.INCOGNITO
    )
    assert (
        await door.screening.screen(said("and on", continues="resp_2", response="resp_3")) is TurnOutcome.INCOGNITO
    )
    assert await door.lets_in(said("elsewhere", continues="resp_9"))


async def test_what_goes_on_in_a_projects_name_stays_incognito() -> None:
    """Else a conversation that was to leave no trace became what all members share."""
    door, sharing = Door(), Scopes(project=ProjectScope(recall=True, learn=True))
    ann = Caller(ANN, session="s-1", projects=("atlas",))
    in_atlas = learning_caller(sharing, replace(ann, project="atlas"))
    unnamed = replace(ann, session="")
    history = ("Hello", "Hi!", "I see a doctor.", "I see.")
    await door.incognito.mark(ann, (), "I see a doctor.", "resp_1")
    await door.incognito.mark(unnamed, said("", *history[:2]).history, history[2], "")
    for caller in (in_atlas, replace(in_atlas, session="elsewhere"), replace(unnamed, project="home")):
        assert await door.screening.screen(said("And more.", *history, caller=caller)) is TurnOutcome.INCOGNITO
    assert await door.screening.screen(said("And more.", caller=in_atlas)) is TurnOutcome.INCOGNITO
    assert await door.screening.screen(said("On.", caller=in_atlas, continues="resp_1")) is TurnOutcome.INCOGNITO
    bob = learning_caller(sharing, Caller(BOB, project="atlas", session="s-1", projects=("atlas",)))
    assert await door.lets_in(said("And more.", *history, caller=bob)), "another member's conversation is theirs"


async def test_what_was_incognito_stays_so_when_all_else_of_a_person_is_forgotten() -> None:
    door = Door()
    caller = Caller(ANN, session="s-1")
    await door.incognito.mark(caller, (), "I see a doctor.", "")
    await door.world.coordination.delete_records(ANN)
    assert await Incognito(door.world.coordination).holds(said("And more.", caller=caller))


async def test_marks_reach_other_replicas() -> None:
    door = Door()
    elsewhere = Incognito(door.world.coordination)
    await door.incognito.mark(Caller(ANN, session="s-1"), (), "x", "resp_1")
    assert await elsewhere.holds(said("y", caller=Caller(ANN, session="s-1")))
    assert await elsewhere.holds(said("z", continues="resp_1"))


async def test_a_mark_that_takes_long_is_written_all_the_same_and_waited_for_at_the_end() -> None:
    class Slow(InMemoryCoordination):
        async def put_record(self, *record: Any) -> None:
            await slow.wait()
            await super().put_record(*record)

    slow, records = asyncio.Event(), Slow(lambda: MONDAY)
    async with Incognito(records) as incognito:
        incognito.PATIENCE = timedelta(0)
        await incognito.mark(Caller(ANN, session="s-1"), (), "x", "")
        assert not await Incognito(records).holds(said("y", caller=Caller(ANN, session="s-1")))
        slow.set()
    assert await Incognito(records).holds(said("y", caller=Caller(ANN, session="s-1")))


async def test_while_records_are_away_marks_hold_here_and_what_is_unknown_is_not_decided() -> None:
    door = Door()

    incognito = Incognito(AwayCoordination(lambda: MONDAY))
    incognito.IN_PROCESS = 2
    screening = Screening(door.consent, incognito, None, Policy, door.world.metrics, most=MOST)
    await incognito.mark(Caller(ANN, session="s-1"), (), "x", "")
    assert await incognito.holds(said("y", caller=Caller(ANN, session="s-1")))
    assert await screening.screen(said("y", caller=Caller(ANN, session="s-2"))) is TurnOutcome.UNDECIDED


async def test_of_a_pasted_book_no_more_is_read_than_is_written() -> None:
    door = Door()
    screening = Screening(door.consent, door.incognito, None, ReadingPolicy, door.world.metrics, most=MOST)
    book = "I live in Bonn. " + "It was a dark night. " * MOST + "What is this about?"
    screened = await screening.screen(said(book, book, "Ok."))
    assert isinstance(screened, Screened)
    assert screened.whole.asked == book, "by all of which the message is known again"
    assert screened.kept.answered == "read", "by the policy"
    for text in (screened.kept.asked, screened.kept.history[0].text):
        assert len(text) <= MOST
        assert text.startswith("I live in Bonn.")
        assert text.endswith("What is this about?")


def test_a_quota_that_is_changed_counts_at_once_and_none_at_all_bounds_nobody() -> None:
    section = bounded = QuotaSection(turns_per_hour=60, burst=1)
    quota = Quota(lambda: section, now=lambda: MONDAY)
    assert [quota.take(ANN) for _ in range(2)] == [True, False]
    section = QuotaSection(turns_per_hour=0, burst=1)
    assert all(quota.take(ANN) for _ in range(100))
    section = bounded
    assert not quota.take(ANN), "what was used up stays used up"


async def test_marks_are_written_again_where_the_records_were_lost() -> None:
    door = Door()
    caller = Caller(ANN, session="s-1")
    await door.incognito.mark(caller, (), "I like pizza.", "")
    lost = Incognito(InMemoryCoordination(now=lambda: MONDAY))
    door.incognito._records = lost._records
    assert not await lost.holds(said("And more.", caller=caller))
    await door.incognito.write_again()
    assert await lost.holds(said("And more.", caller=caller))
