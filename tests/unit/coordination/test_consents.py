"""A caller's choice holds on both paths, at once here and soon elsewhere, and a no is never overridden."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from memory_extproc.coordination.consent import Consents
from memory_extproc.errors import TransientError
from memory_extproc.model import Consent, ConsentChange, Owner
from memory_extproc.settings import CurrentSettings, Settings
from memory_extproc.settings.identity import Privacy
from memory_extproc.settings.paths import Recall
from tests.support.builders import OPT_IN
from tests.support.in_memory import InMemoryConsent

ANN, BOB = Owner("acme", "ann"), Owner("acme", "bob")
PRIVACY = Privacy()


class Clock:
    def __init__(self) -> None:
        self.time = datetime(2026, 5, 4, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.time

    def passes(self, span: timedelta) -> None:
        self.time += span


class Records(InMemoryConsent):
    """Records that can be out of reach."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False
        self.hangs = False
        self.asked = 0

    async def latest(self, owner: Owner) -> ConsentChange | None:
        self.asked += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.away:
            raise TransientError("away")
        return await super().latest(owner)

    async def add(self, owner: Owner, change: ConsentChange, *, after: ConsentChange | None) -> bool:
        if self.away:
            raise TransientError("away")
        return await super().add(owner, change, after=after)


def consents(
    records: Records,
    clock: Clock,
    settings: Settings | None = None,
    patience: timedelta = timedelta(milliseconds=50),
) -> Consents:
    settings = settings or Settings(recall=Recall(deadline=3 * patience, settle=timedelta()))
    return Consents(records, CurrentSettings(settings), now=clock)


async def test_who_never_chose_has_the_tenants_default() -> None:
    settings = Settings(privacy=Privacy(consent_of={"acme": "opt_in"}))
    known = consents(Records(), Clock(), settings)
    assert await known.read_consent(ANN) is Consent.OFF
    assert await known.read_consent(Owner("", "ann")) is Consent.ON


@pytest.mark.parametrize("chosen", list(Consent))
async def test_a_choice_counts_more_than_the_default_and_is_told_with_its_history(chosen: Consent) -> None:
    clock = Clock()
    known = consents(Records(), clock, OPT_IN)
    change = await known.set(ANN, chosen, by="ann")
    assert await known.read_consent(ANN) is chosen
    assert await known.get(ANN) is chosen
    assert await known.history(ANN) == (change,)
    assert change == ConsentChange(chosen, clock(), "ann")
    assert await known.read_consent(BOB) is Consent.OFF


async def test_a_change_holds_here_at_once_and_elsewhere_soon() -> None:
    records, clock = Records(), Clock()
    here, there = consents(records, clock), consents(records, clock)
    assert await there.read_consent(ANN) is Consent.ON
    await here.set(ANN, Consent.OFF, by="ann")
    assert await here.read_consent(ANN) is Consent.OFF
    clock.passes(PRIVACY.consent_fresh)
    assert await there.read_consent(ANN) is Consent.OFF


async def test_the_records_are_asked_once_in_a_while_only() -> None:
    records, clock = Records(), Clock()
    known = consents(records, clock)
    for _ in range(10):
        await known.read_consent(ANN)
    assert records.asked == 1


async def test_a_yes_counts_for_a_grace_while_the_records_are_away_and_a_no_for_ever() -> None:
    records, clock = Records(), Clock()
    known = consents(records, clock)
    await known.set(ANN, Consent.OFF, by="ann")
    assert await known.read_consent(BOB) is Consent.ON
    records.away = True
    clock.passes(PRIVACY.consent_fresh)
    assert await known.read_consent(BOB) is Consent.ON
    clock.passes(PRIVACY.consent_grace)
    assert await known.read_consent(BOB) is None
    assert await known.read_consent(ANN) is Consent.OFF
    records.away = False
    clock.passes(timedelta(seconds=1))
    assert await known.read_consent(BOB) is Consent.ON


@pytest.mark.parametrize("chosen", [Consent.OFF, Consent.RECALL_ONLY])
async def test_a_no_heard_long_ago_does_not_decide_what_is_learned_while_the_records_are_away(
    chosen: Consent,
) -> None:
    records, clock = Records(), Clock()
    here, elsewhere = consents(records, clock), consents(records, clock)
    await here.set(ANN, chosen, by="ann")
    assert here.refuses(ANN)
    assert await here.allows_learning(ANN) is False
    await elsewhere.set(ANN, Consent.ON, by="ann")
    records.away = True
    clock.passes(PRIVACY.consent_fresh)
    assert not here.refuses(ANN)
    assert await here.allows_learning(ANN) is None
    assert await here.read_consent(ANN) is chosen, "nothing more than that is recalled"
    records.away = False
    assert await here.allows_learning(ANN) is True


async def test_without_records_nothing_is_known_of_a_stranger_and_so_nothing_allowed() -> None:
    records = Records()
    records.away = True
    assert await consents(records, Clock()).read_consent(ANN) is None


async def test_records_that_hang_cost_a_request_its_patience_once_and_the_next_nothing() -> None:
    records = Records()
    records.hangs = True
    known = consents(records, Clock(), patience=timedelta(milliseconds=1))
    assert await known.read_consent(ANN) is None
    assert await known.read_consent(BOB) is None
    assert records.asked == 1


async def test_a_no_that_could_not_be_written_holds_here_all_the_same() -> None:
    records, clock = Records(), Clock()
    known = consents(records, clock)
    await known.read_consent(ANN)
    records.away = True
    with pytest.raises(TransientError):
        await known.set(ANN, Consent.OFF, by="ann")
    clock.passes(PRIVACY.consent_fresh)
    assert await known.read_consent(ANN) is Consent.OFF
    assert known.refuses(ANN)
    assert await known.allows_learning(ANN) is False


async def test_a_yes_that_could_not_be_written_changes_nothing() -> None:
    records, clock = Records(), Clock()
    known = consents(records, clock)
    await known.set(ANN, Consent.OFF, by="ann")
    records.away = True
    with pytest.raises(TransientError):
        await known.set(ANN, Consent.ON, by="ann")
    assert await known.read_consent(ANN) is Consent.OFF


async def test_an_answer_from_before_a_change_does_not_outlive_it() -> None:
    class Slow(Records):
        def __init__(self) -> None:
            super().__init__()
            self.reading, self.go_on = asyncio.Event(), asyncio.Event()

        async def latest(self, owner: Owner) -> ConsentChange | None:
            found = await super().latest(owner)
            if not self.reading.is_set():  # the first one
                self.reading.set()
                await self.go_on.wait()
            return found

    records, clock = Slow(), Clock()
    known = consents(records, clock, patience=timedelta(seconds=10))
    asking = asyncio.create_task(known.read_consent(ANN))
    await records.reading.wait()
    await known.set(ANN, Consent.OFF, by="ann")
    records.go_on.set()
    assert await asking is Consent.OFF
    assert await known.read_consent(ANN) is Consent.OFF


async def test_only_so_many_owners_are_held() -> None:
    records, clock = Records(), Clock()
    known = Consents(records, CurrentSettings(Settings()), owners=2, now=clock)
    owners: Sequence[Owner] = [Owner("acme", str(n)) for n in range(3)]
    for owner in owners:
        await known.read_consent(owner)
    await known.read_consent(owners[0])
    assert records.asked == 4


async def test_other_terms_hold_at_once_for_who_never_chose_and_change_no_choice() -> None:
    records, clock = Records(), Clock()
    known = consents(records, clock)
    assert await known.read_consent(ANN) is Consent.ON
    await known.set(BOB, Consent.ON, by="bob")
    known._current.settings = OPT_IN
    assert await known.read_consent(ANN) is Consent.OFF
    assert await known.read_consent(BOB) is Consent.ON
    known._current.settings = Settings()
    assert await known.read_consent(ANN) is Consent.ON


async def test_a_no_that_could_not_be_written_outlives_a_change_of_terms() -> None:
    records, clock = Records(), Clock()
    known = consents(records, clock)
    records.away = True
    with pytest.raises(TransientError):
        await known.set(ANN, Consent.OFF, by="ann")
    known._current.settings = Settings(privacy=Privacy(consent_of={"acme": "opt_out"}))
    assert await known.read_consent(ANN) is Consent.OFF


@pytest.mark.parametrize("jump", [timedelta(hours=-2), timedelta(hours=2)])
async def test_whatever_becomes_of_the_wall_clock_a_no_said_elsewhere_is_heard_and_an_outage_ends(
    jump: timedelta,
) -> None:
    records, wall, passing = Records(), Clock(), Clock()
    known = Consents(records, CurrentSettings(Settings()), now=wall, monotonic_now=passing)
    assert await known.read_consent(ANN) is Consent.ON
    records.away = True
    assert await known.read_consent(BOB) is None
    wall.passes(jump)
    records.away = False
    await records.add(ANN, ConsentChange(Consent.OFF, wall(), "another replica"), after=None)
    assert await known.read_consent(ANN) is Consent.ON  # it was just asked
    passing.passes(PRIVACY.consent_fresh)
    assert await known.read_consent(ANN) is Consent.OFF
    assert await known.read_consent(BOB) is Consent.ON
