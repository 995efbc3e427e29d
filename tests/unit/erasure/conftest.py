"""A world for each test, and a forgetter over it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from memory_extproc.erasure.forgetter import Forgetter
from tests.unit.erasure.forgetting import World


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    async with made.partitions:
        yield made


@pytest.fixture
async def forgetter(world: World) -> AsyncIterator[Forgetter]:
    async with world.forgetter() as made:
        yield made
