"""A wall clock that jumps ahead must not make everybody's memories old at once."""

from __future__ import annotations

from datetime import timedelta

from memory_extproc.retention.scheduler import Clocks
from tests.support.builders import MONDAY

YEAR = timedelta(days=365)
HOUR = timedelta(hours=1)


class Wall:
    """A wall clock, and the time that really passes."""

    def __init__(self) -> None:
        self.passed = timedelta()
        self.off = timedelta()
        self.clocks = Clocks(lambda: MONDAY + self.passed + self.off, lambda: 5.0 + self.passed.total_seconds())

    def after(self, time: timedelta, off: timedelta) -> timedelta | None:
        self.passed, self.off = self.passed + time, off
        return self.clocks.ahead()


def test_a_clock_that_goes_as_time_does_is_believed_for_years() -> None:
    wall = Wall()
    assert [wall.after(YEAR, timedelta(minutes=number)) for number in range(20)] == [None] * 20


def test_one_that_jumps_ahead_is_doubted_until_it_is_set_right() -> None:
    wall = Wall()
    assert wall.after(HOUR, YEAR) == YEAR
    assert wall.after(HOUR, YEAR) == YEAR
    assert wall.after(HOUR, timedelta()) is None


def test_one_that_stays_ahead_for_a_day_was_wrong_before() -> None:
    wall = Wall()
    assert wall.after(HOUR, YEAR) == YEAR
    assert wall.after(23 * HOUR, YEAR) == YEAR
    assert wall.after(HOUR, YEAR) is None
    assert wall.after(HOUR, 2 * YEAR) == YEAR


def test_one_that_is_set_back_and_right_again_is_believed() -> None:
    wall = Wall()
    assert [wall.after(HOUR, off) for off in (-HOUR, -YEAR, timedelta())] == [None] * 3


def test_each_jump_is_doubted_for_a_day_of_its_own() -> None:
    wall = Wall()
    assert wall.after(HOUR, YEAR) == YEAR
    assert wall.after(20 * HOUR, timedelta()) is None
    assert wall.after(5 * HOUR, YEAR) == YEAR
