"""Memories in the whole sidecar as time goes by: what was used is counted, what is over is recalled no more."""

from __future__ import annotations

import pytest

from memory_extproc.model import Owner
from tests.support.waiting import until
from tests.support.whole import WholeStand

pytestmark = pytest.mark.envoy
SAID, ASKED = "My dog is called Bruno.", "What is my dog called?"


async def told(whole: WholeStand) -> None:
    await whole.start()
    await whole.say(SAID, x_memory_session="end")
    await until(lambda: whole.sample("reconcile_total", decision="added") == 1, "the fact is stored", seconds=10)


async def test_what_was_put_before_a_model_is_counted_when_the_sidecar_has_left(whole: WholeStand) -> None:
    await told(whole)
    for _ in range(2):
        assert (await whole.say(ASKED)).memory.startswith("used;")
    await whole.restart()
    rows = [row async for page in whole.whole.partitions.rows(Owner("", "ann")) for row in page]
    assert 2 in {row.access_count for row in rows}


async def test_what_is_over_is_recalled_no_more_and_says_why(whole: WholeStand) -> None:
    times = dict.fromkeys(("semantic", "episodic", "procedural"), "1s")
    whole.changes["retention"] = {"every": "500ms", "protect": "0s", "ttl": times}
    await told(whole)

    await until(lambda: whole.sample("retired_total", reason="ttl") >= 1, "its time is over", seconds=20)
    answer = await whole.say(ASKED)
    assert not answer.memory.startswith("used;")
