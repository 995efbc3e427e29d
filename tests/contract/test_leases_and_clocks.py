"""Leases where the machine's clock ends them: no lease is held for hours because that was set."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from memory_extproc.coordination.sqlite import SqliteCoordination
from memory_extproc.ports import Coordination
from memory_extproc.testing.adapters import InMemoryCoordination
from tests.support.builders import Clock

MINUTE = timedelta(minutes=1)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["transient", "sqlite"])
async def coordination(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> AsyncIterator[Coordination]:
    if request.param == "transient":
        yield InMemoryCoordination(clock)
        return
    async with SqliteCoordination(tmp_path / "coordination.sqlite", now=clock) as sqlite:
        yield sqlite


async def test_a_lease_of_the_dead_lasts_no_longer_where_the_clock_is_set_back(
    coordination: Coordination, clock: Clock
) -> None:
    assert await coordination.acquire("rounds", "dead", MINUTE)
    clock.now -= timedelta(hours=2)
    assert not await coordination.acquire("rounds", "next", MINUTE), "its holder may live"
    clock.now += MINUTE / 2
    assert not await coordination.acquire("rounds", "next", MINUTE)
    clock.now += MINUTE / 2
    assert await coordination.acquire("rounds", "next", MINUTE)


async def test_who_lives_keeps_a_lease_where_the_clock_is_set_back(
    coordination: Coordination, clock: Clock
) -> None:
    assert await coordination.acquire("rounds", "living", MINUTE)
    clock.now -= timedelta(hours=2)
    assert not await coordination.acquire("rounds", "next", MINUTE)
    clock.now += MINUTE / 2
    assert await coordination.acquire("rounds", "living", MINUTE)
    clock.now += MINUTE / 2
    assert not await coordination.acquire("rounds", "next", MINUTE)
