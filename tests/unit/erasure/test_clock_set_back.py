"""A forget whose later steps wait, while the clock of its machine is set."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from memory_extproc.model import ForgetScope
from tests.support.builders import ANN, a_memory
from tests.unit.erasure.forgetting import LIMITS, World, complete


async def test_a_forget_taken_up_after_the_clock_was_set_back_waits_no_longer_than_it_would_have() -> None:
    world = World(forget_limits=replace(LIMITS, settle=timedelta(hours=1)))
    async with world.partitions:
        await world.put(a_memory("likes tea"))
        async with world.forgetter() as forgetter:
            receipt = await forgetter.forget(ANN, ForgetScope())
        world.now -= timedelta(hours=2)
        world.forget_limits = replace(LIMITS, settle=timedelta(milliseconds=20))
        async with world.forgetter() as forgetter:
            await complete(forgetter, receipt)
