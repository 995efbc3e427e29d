"""The configuration changes while requests come, through the real Envoy."""

from __future__ import annotations

import asyncio
import json

import pytest
import yaml

from tests.fixtures.envoy import until
from tests.fixtures.upstream import ANSWER, an_answer
from tests.fixtures.whole import WholeStand

pytestmark = pytest.mark.envoy

BUDGET = "My budget for the Hawaii trip is $10,000."
ASKED = "What's my budget for the trip?"


def told(whole: WholeStand, outcome: str) -> float:
    return whole.sample("configuration_reloads_total", outcome=outcome)


async def ask_until(whole: WholeStand, outcome: str, count: float = 1.0) -> None:
    """As SIGHUP does; the file is watched as well, and either way comes to the same."""
    assert whole.whole.reloading is not None
    whole.whole.reloading.ask()
    await until(lambda: told(whole, outcome) >= count, f"the configuration is {outcome}")


async def test_a_raised_threshold_ends_injection_without_a_restart_and_a_lowered_one_brings_it_back(
    whole: WholeStand,
) -> None:
    await whole.start()
    whole.upstream.answers = an_answer(json.dumps(ANSWER).encode())
    await whole.say(BUDGET)
    assert (await whole.say(ASKED)).memory.startswith("used")
    whole.changes["memory"] = {"default_similarity_threshold": 1.0}
    whole.settings()
    await ask_until(whole, "applied")
    assert (await whole.say(ASKED)).memory == "nothing_relevant"
    assert whole.shown == ASKED
    whole.changes["memory"]["default_similarity_threshold"] = 0.6
    whole.settings()
    await ask_until(whole, "applied", 2)
    assert (await whole.say(ASKED)).memory.startswith("used")


async def test_a_rule_comes_by_the_file_alone_and_a_bad_file_takes_nothing_away(whole: WholeStand) -> None:
    await whole.start()
    whole.changes["rules"] = [{"when": {"path": "*"}, "then": {"retrieve": "skip"}}]
    whole.settings()
    # Watching may begin after the file was written: then the next change is seen.
    async with asyncio.timeout(20):
        while not told(whole, "applied"):
            whole.config.write_text(whole.config.read_text() + "\n")
            await asyncio.sleep(0.1)
    assert (await whole.say(ASKED)).memory == "disabled"
    whole.config.write_text("rules: [{when: {path: '*'}, then: {store: never}}]\n")
    await ask_until(whole, "refused")
    assert whole.sample("configuration_reload_failed") == 1
    assert (await whole.say(ASKED)).memory == "disabled"
    whole.changes["rules"] = []
    whole.settings()
    await ask_until(whole, "applied", 2)
    assert whole.sample("configuration_reload_failed") == 0
    assert (await whole.say(ASKED)).memory != "disabled"


async def test_requests_under_way_while_it_changes_are_all_answered(whole: WholeStand) -> None:
    await whole.start()
    await whole.say(BUDGET)

    async def chats() -> set[str]:
        return {(await whole.say(ASKED)).memory.partition(";")[0] for _ in range(20)}

    chatting = [asyncio.create_task(chats()) for _ in range(4)]
    for number in range(6):
        given = yaml.safe_load(whole.config.read_text())
        given["mode"] = "active" if number % 2 else "shadow"
        whole.config.write_text(yaml.safe_dump(given))
        await ask_until(whole, "applied", number + 1)
    seen = set().union(*await asyncio.gather(*chatting))
    assert seen <= {"used", "shadowed"}
    assert whole.sample("stream_faults_total", kind="bug") == 0
