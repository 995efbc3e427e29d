"""Turns in the intake log that were forgotten meanwhile are not learned."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from memory_extproc.learn.intake_log import IntakeLog, LogKind
from memory_extproc.model import Caller, ForgetScope, TurnOutcome
from tests.support.builders import ANN, BOB
from tests.unit.erasure.forgetting import World
from tests.unit.learn.learning import until

MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize("scope", [ForgetScope(), ForgetScope(session="s")])
async def test_what_was_asked_before_a_forget_is_not_learned_from_the_log(
    tmp_path: Path, scope: ForgetScope
) -> None:
    world = World()
    asked = world.now
    async with IntakeLog(tmp_path) as log:  # of a process that was killed
        for words, owner, at in (
            ("Before.", ANN, asked),
            ("Other.", BOB, asked),
            ("After.", ANN, asked + 2 * MINUTE),
        ):
            exchanged = replace(world.exchange(words, owner=owner), at=at)
            log.append(LogKind.TURN, owner, at, msgspec.json.encode(exchanged))
    world.now += MINUTE
    async with world.partitions, world.forgetter() as forgetter:
        await forgetter.forget(ANN, scope)
        async with IntakeLog(tmp_path) as log:
            world.intake_log = log
            async with world.build() as learner:
                await until(lambda: learner.oldest_waiting() is None, "all is decided")
                await learner.wait_visible(Caller(ANN))
                await learner.wait_visible(Caller(BOB))
    assert world.sample("turns_total", outcome=TurnOutcome.FORGOTTEN.value) == 1
    assert await world.stored(ANN) == ["After."]
    assert await world.stored(BOB) == ["Other."]
