"""What is said in a chat about remembering holds for the very next request, through the real Envoy."""

from __future__ import annotations

import pytest

from tests.fixtures.whole import WholeStand

pytestmark = pytest.mark.envoy


async def test_what_is_to_be_remembered_and_forgotten_is_so_for_the_next_request(whole: WholeStand) -> None:
    await whole.start()
    await whole.say("Remember that my ex is called Sarah Quist.")
    asked = "What is my ex called?"
    assert (await whole.say(asked)).memory.startswith("used")
    assert "Sarah Quist" in whole.shown
    await whole.say("Forget what I told you about my ex.")
    await whole.say(asked)
    assert "Sarah" not in whole.shown
    assert whole.sample("chat_commands_total", act="remember") == 1
    assert whole.sample("chat_commands_total", act="forget") == 1


async def test_who_the_caller_is_goes_along_from_the_next_chat_on(whole: WholeStand) -> None:
    whole.changes["inject"] = {"profile": "always"}
    await whole.start()
    await whole.say("Remember that I'm allergic to peanuts.")
    await whole.say("Suggest a snack.")
    assert "Who the user is" in whole.shown
    assert "peanuts" in whole.shown
    await whole.say("Suggest a snack.", user="bob")
    assert "peanuts" not in whole.shown
