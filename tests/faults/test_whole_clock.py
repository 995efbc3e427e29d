"""The wall clock of a running sidecar is set by hours: nothing stops, and nothing waits for hours."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from memory_extproc.concurrency import utc_now
from memory_extproc.model import Consent, Owner
from tests.support.faults import ASKED, BUDGET, USER, FaultStand
from tests.support.waiting import until

pytestmark = pytest.mark.envoy


class SetClock:
    """The machine's, and by how much it was set wrong."""

    def __init__(self) -> None:
        self.wrong = timedelta()

    def __call__(self) -> datetime:
        return utc_now() + self.wrong


@pytest.mark.parametrize("jump", [timedelta(hours=-2), timedelta(hours=2)])
async def test_a_clock_set_by_hours_stops_no_recall_no_learning_and_no_session_from_ending(
    faulty: FaultStand, jump: timedelta
) -> None:
    clock = faulty.now = SetClock()
    faulty.change(
        learn={"session_idle": "300ms", "quota": {"turns_per_hour": 36_000, "burst": 1}},
        topics={"idle": "1s"},
        privacy={"consent_fresh": "100ms"},
    )
    await faulty.start()
    await faulty.say(BUDGET)
    await until(lambda: faulty.kept == 1, "it is remembered")

    clock.wrong = jump
    await until(lambda: _ended(faulty) >= 1, "the session that fell silent ends")
    assert (await faulty.say(ASKED)).memory.startswith("used")
    assert "$10,000" in faulty.shown
    await _remembered(faulty, "My sister lives in Hawaii since March.")
    await _remembered(faulty, "My brother lives in Wailea since May.")
    await until(lambda: faulty.sample("journal_depth") == 0, "all of it is learned")
    assert (await faulty.say("Where does my sister live?")).memory.startswith("used")
    owner = Owner("", USER)
    await faulty.whole.door.consent.set(owner, Consent.OFF, by="test")
    assert not (await faulty.say(ASKED)).memory.startswith("used")
    await faulty.whole.door.consent.set(owner, Consent.ON, by="test")

    clock.wrong = timedelta()
    assert (await faulty.say("Where does my brother live?")).memory.startswith("used")
    await _remembered(faulty, "My dentist is in Wailea.")
    assert (await faulty.http("/readyz"))[0] == 200
    assert faulty.sample("journal_dead_letters") == 0


async def _remembered(faulty: FaultStand, words: str) -> None:
    """Said until it is: a caller may have no more than ten turns a second learned."""
    before = faulty.kept

    async def said() -> bool:
        await faulty.say(words)
        return faulty.kept > before

    await until(said, "what is said is remembered")


def _ended(faulty: FaultStand) -> float:
    return faulty.sample("topics_total", outcome="written") + faulty.sample("topics_total", outcome="small")
