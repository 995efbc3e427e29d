"""Exchanges whose consent or incognito state cannot be known, or that a process was killed with: they wait sealed
in the intake log, are used for nothing, and are decided once that is possible."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest

from memory_extproc.concurrency import HELPER_THREAD, HelperThread
from memory_extproc.coordination.consent import Consents
from memory_extproc.errors import PermanentError, TransientError
from memory_extproc.learn.ingest import Intake
from memory_extproc.learn.intake_log import IntakeLog
from memory_extproc.learn.screening import Incognito, Quota, Screening
from memory_extproc.model import Caller, Consent, ConsentChange, Exchanged, Message, Owner, Role, Turn, TurnOutcome
from memory_extproc.safety.policy import Policy
from memory_extproc.settings import CurrentSettings
from memory_extproc.settings.paths import JournalSection, QuotaSection
from memory_extproc.testing.adapters import InMemoryCoordination, InMemoryJournal
from tests.support.builders import ANN, BOB, MONDAY, consent_default
from tests.support.in_memory import InMemoryConsent
from tests.unit.learn.learning import Surroundings, until

PIZZA = "I like pizza."
P = ParamSpec("P")
R = TypeVar("R")


class Outage:
    on = False
    asked = 0

    def check(self) -> None:
        self.asked += 1
        if self.on:
            raise TransientError("away")


class Records(InMemoryCoordination):
    def __init__(self, outage: Outage) -> None:
        super().__init__(lambda: MONDAY)
        self.outage = outage

    async def get_record(self, kind: str, owner: Owner, key: str) -> bytes | None:
        self.outage.check()
        return await super().get_record(kind, owner, key)

    async def put_record(self, kind: str, owner: Owner, key: str, value: bytes, ttl: timedelta) -> None:
        self.outage.check()
        await super().put_record(kind, owner, key, value, ttl)

    async def replace_record(
        self, kind: str, owner: Owner, key: str, old: bytes | None, new: bytes, ttl: timedelta
    ) -> bool:
        self.outage.check()
        return await super().replace_record(kind, owner, key, old, new, ttl)


class Choices(InMemoryConsent):
    def __init__(self, outage: Outage) -> None:
        super().__init__()
        self.outage = outage

    async def latest(self, owner: Owner) -> ConsentChange | None:
        self.outage.check()
        return await super().latest(owner)

    async def history(self, owner: Owner) -> Sequence[ConsentChange]:
        self.outage.check()
        return await super().history(owner)


class Failing(InMemoryJournal):
    def __init__(self, now: datetime) -> None:
        super().__init__(now=lambda: now)
        self.error: Exception | None = None
        self.before: Callable[[], object] = lambda: None

    async def append(self, turn: Turn) -> TurnOutcome:
        self.before()
        if self.error is not None:
            raise self.error
        return await super().append(turn)


class Replica:
    """A learner behind the door, over records and choices that all replicas share; *directory* is its own."""

    def __init__(self, directory: Path, shared: Replica | None = None, default: Consent = Consent.ON) -> None:
        self.directory = directory
        self.outage: Outage = Outage() if shared is None else shared.outage
        self.world = Surroundings()
        self.world.coordination = Records(self.outage) if shared is None else shared.world.coordination
        self.world.sessions._records = self.world.coordination
        self.journal = Failing(self.world.now)
        self.world.journal = self.journal if shared is None else shared.world.journal
        self.choices: Choices = Choices(self.outage) if shared is None else shared.choices
        self.settings = consent_default(default)
        self.records = 1000
        self.quota: Quota | None = None
        self.helper = HELPER_THREAD

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Intake]:
        async with AsyncExitStack() as stack:
            limits = JournalSection(max_turns=self.records)
            log = await stack.enter_async_context(IntakeLog(self.directory, limits))
            now = lambda: self.world.now  # noqa: E731
            self.consents = Consents(self.choices, CurrentSettings(self.settings), now=now)
            self.incognito = Incognito(self.world.coordination, log)
            self.incognito.RETRY = timedelta(milliseconds=2)
            await stack.enter_async_context(self.incognito)
            self.world.screens = Screening(
                self.consents,
                self.incognito,
                self.quota,
                Policy,
                self.world.metrics,
                most=65_536,
                helper=self.helper,
            )
            self.world.intake_log = log
            yield await stack.enter_async_context(self.world.learner())

    def said(self, asked: str, owner: Owner = ANN, session: str = "s", *history: str) -> Exchanged:
        exchanged = self.world.exchange(asked, owner=owner, session=session)
        return replace(exchanged, history=tuple(Message(Role.USER, text) for text in history))

    def outcomes(self, outcome: TurnOutcome) -> float:
        return self.world.sample("turns_total", outcome=outcome.value)

    @property
    def undecided(self) -> float:
        return self.world.sample("turns_undecided")

    async def learned(self, owner: Owner = ANN) -> list[str]:
        return await self.world.stored(owner)


@pytest.fixture
def replica(tmp_path: Path) -> Replica:
    return Replica(tmp_path / "log")


async def test_what_cannot_be_decided_waits_and_is_learned_in_order_when_it_can_be(replica: Replica) -> None:
    async with replica.running() as learner:
        replica.outage.on = True
        for number in range(3):
            for owner in (ANN, BOB):
                said = replica.said(f"I own {number} bicycles.", owner)
                assert await learner.accept(said) is TurnOutcome.UNDECIDED
        assert replica.undecided == 6
        assert await replica.learned() == []
        assert learner.oldest_waiting(ANN) == MONDAY
        replica.outage.on = False
        await until(lambda: replica.undecided == 0, "all are decided")
        for owner in (ANN, BOB):
            await until(partial(_has, replica, owner, 3), "they are learned")
            assert await replica.learned(owner) == [f"I own {number} bicycles." for number in range(3)]
        assert learner.oldest_waiting() is None
        assert replica.outcomes(TurnOutcome.JOURNALLED) == 6, "what they were decided to be"


async def _has(replica: Replica, owner: Owner, count: int) -> bool:
    return len(await replica.learned(owner)) == count


@pytest.mark.parametrize("default", [Consent.ON, Consent.OFF])
async def test_who_said_no_is_not_learned_from_whatever_was_away_when_they_asked(
    tmp_path: Path, default: Consent
) -> None:
    replica = Replica(tmp_path, default=default)
    if default is Consent.ON:
        await replica.choices.add(ANN, ConsentChange(Consent.OFF, MONDAY - timedelta(days=1)), after=None)
    async with replica.running() as learner:
        replica.outage.on = True
        assert await learner.accept(replica.said(PIZZA)) is TurnOutcome.UNDECIDED
        replica.outage.on = False
        await until(lambda: replica.outcomes(TurnOutcome.NO_CONSENT) == 1, "it is turned away")
        assert (await replica.learned(), replica.undecided) == ([], 0)
    assert list(replica.directory.iterdir()) == [], "and nothing of it is left"


async def test_a_yes_that_came_after_the_words_does_not_let_them_be_learned(tmp_path: Path) -> None:
    replica = Replica(tmp_path, default=Consent.OFF)
    async with replica.running() as learner:
        replica.outage.on = True
        assert await learner.accept(replica.said(PIZZA)) is TurnOutcome.UNDECIDED
        await replica.choices.add(ANN, ConsentChange(Consent.ON, MONDAY + timedelta(seconds=1)), after=None)
        replica.outage.on = False
        await until(lambda: replica.outcomes(TurnOutcome.NO_CONSENT) == 1, "it is turned away")


async def test_the_grace_of_recall_is_none_for_learning(replica: Replica) -> None:
    async with replica.running() as learner:
        assert await learner.accept(replica.said(PIZZA)) is TurnOutcome.JOURNALLED
        replica.outage.on = True
        replica.world.now += timedelta(seconds=10)
        assert await replica.consents.read_consent(ANN) is Consent.ON
        assert await learner.accept(replica.said("I own a bicycle.")) is TurnOutcome.UNDECIDED


async def test_an_incognito_conversation_is_not_learned_from_whichever_replica_was_told(tmp_path: Path) -> None:
    one = Replica(tmp_path / "one")
    other = Replica(tmp_path / "other", shared=one)
    async with one.running() as learner:
        async with other.running():
            one.outage.on = True
            await other.incognito.mark(Caller(ANN, session="secret"), (), "Hush.", "")
            assert await learner.accept(one.said(PIZZA, ANN, "secret")) is TurnOutcome.UNDECIDED
            assert await learner.accept(one.said("I own a bicycle.", ANN, "open")) is TurnOutcome.UNDECIDED
        async with other.running():  # it ended with the mark unshared, and comes again
            one.outage.on = False
            await until(lambda: one.undecided == 0, "all are decided")
        assert one.outcomes(TurnOutcome.INCOGNITO) == 1
        await until(
            lambda: one.world.sample("remembered_total", role="user", decision="kept") == 1, "one is stored"
        )
        assert await one.learned() == ["I own a bicycle."]


async def test_what_waited_is_incognito_by_a_mark_however_far_back(replica: Replica) -> None:
    """What came between was heard by another replica, which marks it only when it decides it."""
    said = ("Hush.", *(f"I own {number} bicycles." for number in range(20)))
    async with replica.running() as learner:
        await Incognito(replica.world.coordination).mark(Caller(ANN), (), said[0], "")
        replica.outage.on = True
        assert await learner.accept(replica.said(PIZZA, ANN, "", *said)) is TurnOutcome.UNDECIDED
        replica.outage.on = False
        await until(lambda: replica.undecided == 0, "it is decided")
        assert replica.outcomes(TurnOutcome.INCOGNITO) == 1
        assert await replica.learned() == []


async def test_an_incognito_conversation_stays_one_while_another_replica_has_several_turns_to_decide(
    replica: Replica,
) -> None:
    said = ("Hush.", *(f"I own {number} bicycles." for number in range(8)))
    async with replica.running() as learner:
        await Incognito(replica.world.coordination).mark(Caller(ANN), (), said[0], "")
        assert await learner.accept(replica.said(PIZZA, ANN, "", *said)) is TurnOutcome.INCOGNITO


async def test_a_mark_outlives_a_killed_process(replica: Replica, tmp_path: Path) -> None:
    async with replica.running():
        replica.outage.on = True
        await replica.incognito.mark(Caller(ANN, session="secret"), (), "Hush.", "")
        shutil.copytree(replica.directory, tmp_path / "killed")
    heir = Replica(tmp_path / "killed", shared=replica)
    async with heir.running() as learner:
        assert await learner.accept(heir.said(PIZZA, ANN, "secret")) is TurnOutcome.INCOGNITO, "known at once"
        replica.outage.on = False
        await until(heir.incognito.is_shared, "it is shared")
    assert await Incognito(heir.world.coordination).holds(heir.said("x", ANN, "secret"))


async def test_what_was_accepted_when_the_process_was_killed_is_learned_once_by_the_next(
    replica: Replica, tmp_path: Path
) -> None:
    async with replica.running() as learner:
        replica.journal.error = TransientError("locked")
        for number in range(3):
            said = replica.said(f"I own {number} bicycles.")
            assert await learner.accept(said) is TurnOutcome.JOURNAL_LATE
        shutil.copytree(replica.directory, tmp_path / "killed")
        replica.journal.error = None
        await until(lambda: _has(replica, ANN, 3), "they are learned here")
    heir = Replica(tmp_path / "killed", shared=replica)
    heir.world.store = replica.world.store
    async with heir.running():
        await until(lambda: heir.outcomes(TurnOutcome.DUPLICATE) == 3, "and known there")
    assert await replica.learned() == [f"I own {number} bicycles." for number in range(3)]


async def test_what_waits_when_we_leave_is_learned_by_the_next(replica: Replica, tmp_path: Path) -> None:
    async with replica.running() as learner:
        replica.outage.on = True
        assert await learner.accept(replica.said(PIZZA)) is TurnOutcome.UNDECIDED
    replica.outage.on = False
    async with replica.running() as learner:
        await until(lambda: _has(replica, ANN, 1), "it is learned")
    assert await learner.accept(replica.said("I own a bicycle.")) is TurnOutcome.JOURNAL_FAILED, "the log is closed"


async def test_beyond_its_bound_the_log_takes_nothing_and_says_so(replica: Replica) -> None:
    replica.records = 2
    async with replica.running() as learner:
        replica.outage.on = True
        outcomes = [await learner.accept(replica.said(f"I own {n} bicycles.")) for n in range(3)]
        assert outcomes == [TurnOutcome.UNDECIDED, TurnOutcome.UNDECIDED, TurnOutcome.JOURNAL_FULL]
        replica.outage.on = False
        await until(lambda: _has(replica, ANN, 2), "the others are learned")


async def test_a_caller_cannot_fill_the_log_beyond_their_quota(replica: Replica) -> None:
    replica.quota = Quota(lambda: QuotaSection(turns_per_hour=1, burst=2), now=lambda: MONDAY)
    async with replica.running() as learner:
        replica.outage.on = True
        outcomes = [await learner.accept(replica.said(f"I own {n} bicycles.")) for n in range(3)]
        assert outcomes == [TurnOutcome.UNDECIDED, TurnOutcome.UNDECIDED, TurnOutcome.OVER_QUOTA]
        replica.outage.on = False
        await until(lambda: _has(replica, ANN, 2), "what was within it is learned, and counted once")


async def test_a_journal_that_fails_for_now_delays_and_one_that_refuses_a_turn_ends_it(replica: Replica) -> None:
    async with replica.running() as learner:
        replica.journal.error = TransientError("locked")
        assert await learner.accept(replica.said(PIZZA)) is TurnOutcome.JOURNAL_LATE
        assert await learner.accept(replica.said("I own a bicycle.")) is TurnOutcome.JOURNAL_LATE, "behind it"
        replica.journal.error = None
        await until(lambda: _has(replica, ANN, 2), "they are learned")
        assert await replica.learned() == [PIZZA, "I own a bicycle."]
        replica.journal.error = PermanentError("refused")
        assert await learner.accept(replica.said("I own a car.")) is TurnOutcome.JOURNAL_LATE
        await until(lambda: replica.outcomes(TurnOutcome.JOURNAL_FAILED) == 1, "it is given up")
        assert learner.oldest_waiting() is None


async def test_a_crowd_that_comes_at_once_waits_its_turn(replica: Replica) -> None:
    replica.world.limits = replace(replica.world.limits, accepting=0)
    async with replica.running() as learner:
        assert await learner.accept(replica.said(PIZZA)) is TurnOutcome.JOURNAL_LATE
        await until(lambda: _has(replica, ANN, 1), "it is learned")


class BusyHelper(HelperThread):
    """Works once it is free."""

    def __init__(self) -> None:
        self.free = asyncio.Event()

    async def run(self, size: int, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        await self.free.wait()
        return await super().run(size, work, *args, **kwargs)


async def test_long_texts_that_wait_to_be_analysed_fill_the_disk_and_not_the_memory(replica: Replica) -> None:
    replica.helper = busy = BusyHelper()
    replica.world.limits = replace(replica.world.limits, accepting_bytes=20_000)
    pasted = "I own a bicycle. " * 500
    owners = [Owner("acme", f"user-{number}") for number in range(10)]
    async with replica.running() as learner:
        accepted = [asyncio.create_task(learner.accept(replica.said(pasted, owner))) for owner in owners]
        await until(lambda: replica.undecided == 8, "all but two wait in the log")
        assert 0 < replica.world.sample("accepting_bytes") <= 20_000
        busy.free.set()
        for owner in owners:
            await until(partial(replica.learned, owner), "they are learned")
        assert [await one for one in accepted].count(TurnOutcome.JOURNAL_LATE) == 8
        assert replica.world.sample("accepting_bytes") == 0


async def test_what_was_forgotten_while_it_waited_is_erased(replica: Replica) -> None:
    async with replica.running() as learner:
        replica.outage.on = True
        await learner.accept(replica.said(PIZZA))
        await learner.accept(replica.said(PIZZA, BOB))
        await learner.accept(replace(replica.said("I own a bicycle."), at=MONDAY + timedelta(hours=1)))
        assert learner.erase(ANN, MONDAY + timedelta(minutes=1)) == 1
        assert learner.oldest_waiting(ANN) == MONDAY + timedelta(hours=1)
        replica.outage.on = False
        await until(lambda: replica.undecided == 0, "the others are decided")
        await until(lambda: _has(replica, ANN, 1), "what came after it is learned")
        assert await replica.learned() == ["I own a bicycle."]


async def test_words_that_no_utf_8_can_hold_wait_as_others_do(replica: Replica) -> None:
    async with replica.running() as learner:
        replica.outage.on = True
        assert await learner.accept(replica.said("I like \ud83c pizza.")) is TurnOutcome.UNDECIDED
        replica.outage.on = False
        await until(lambda: _has(replica, ANN, 1), "they are learned")


async def test_words_that_go_on_coming_keep_nothing_from_being_decided(replica: Replica) -> None:
    async with replica.running() as learner:
        replica.outage.on = True
        await learner.accept(replica.said(PIZZA))
        replica.outage.on = False
        spoken = itertools.count()

        async def decided() -> bool:
            await learner.accept(replica.said(f"I own {next(spoken)} bicycles.", BOB))
            return PIZZA in await replica.learned()

        await until(decided, "what waited is decided", limit=10)


async def test_a_backlog_is_decided_in_time_that_grows_as_it_does(tmp_path: Path) -> None:
    """Counted in what is asked of the records."""

    async def asked_for(turns: int) -> float:
        replica = Replica(tmp_path / str(turns))
        async with replica.running() as learner:
            replica.outage.on = True
            for number in range(turns):
                await learner.accept(replica.said(f"I own {number} bicycles."))
            before = replica.outage.asked
            replica.outage.on = False
            await until(lambda: replica.undecided == 0, "all are decided")
            return (replica.outage.asked - before) / turns

    few, many = await asked_for(25), await asked_for(100)
    assert many < 1.5 * few


async def test_what_is_erased_while_it_is_taken_in_waits_no_longer(replica: Replica) -> None:
    async with replica.running() as learner:
        replica.journal.error = TransientError("locked")
        replica.journal.before = lambda: learner.erase(ANN, MONDAY)
        await learner.accept(replica.said(PIZZA))
        assert (replica.undecided, learner.oldest_waiting()) == (0, None)
        replica.journal.error = None
        assert await learner.accept(replica.said("I own a bicycle.")) is TurnOutcome.JOURNALLED
