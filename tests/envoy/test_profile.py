"""Profiles through the real Envoy: told when configured, once, in the same bytes, and only as it holds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from memory_extproc.model import Consent, Owner
from tests.support.upstream import ANSWER, an_answer
from tests.support.whole import WholeStand

pytestmark = pytest.mark.envoy

WHO = "Who the user is"
NUTS = "allergic to peanuts"
SNACK = "Suggest a snack for the train."


class Talk:
    """One conversation, all of it sent along each time."""

    def __init__(self, whole: WholeStand) -> None:
        self.whole = whole
        self.items: list[dict[str, Any]] = []
        self.sent: list[bytes] = []

    async def ask(self, words: str) -> str:
        """What the model was shown, all of it."""
        self.items.append({"role": "user", "content": words})
        answer = await self.whole.chat({"model": "demo", "messages": self.items})
        assert answer.status == 200
        self.items.append({"role": "assistant", "content": "Noted."})
        self.sent.append(self.whole.upstream.got[-1].body)
        return self.sent[-1].decode()


async def told(whole: WholeStand, mode: str) -> None:
    whole.changes["inject"] = {"profile": mode}
    await whole.start()
    message = {"role": "assistant", "content": "Noted."}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    whole.upstream.answers = an_answer(json.dumps({**ANSWER, "choices": choices}).encode())
    await whole.say("Remember that I'm allergic to peanuts.")


@pytest.mark.parametrize(
    ("mode", "unrelated", "related"),
    [("off", False, False), ("always", True, True), ("when_relevant", False, True)],
)
async def test_it_is_told_when_it_is_configured_to_be(
    whole: WholeStand, mode: str, *, unrelated: bool, related: bool
) -> None:
    await told(whole, mode)
    await whole.say("How far is the moon?")
    assert (WHO in whole.shown) is unrelated
    await whole.say("What am I allergic to?")
    assert (WHO in whole.shown) is related
    assert NUTS in whole.shown


async def test_it_is_told_once_and_every_request_begins_with_the_one_before(whole: WholeStand) -> None:
    await told(whole, "always")
    talk = Talk(whole)
    for words in (SNACK, "And for the way back?", "Thanks. How far is the moon?"):
        shown = await talk.ask(words)
        assert shown.count(WHO) == 1
        assert shown.count(NUTS) == 1
    for before, after in zip(talk.sent, talk.sent[1:], strict=False):
        assert after.startswith(before.removesuffix(b"]}"))


async def test_what_is_forgotten_in_a_chat_is_in_it_no_longer_not_even_where_it_was_told(whole: WholeStand) -> None:
    await told(whole, "always")
    talk = Talk(whole)
    assert NUTS in await talk.ask(SNACK)
    await whole.say("Forget everything I told you about peanuts.")
    assert "peanuts" not in await talk.ask("And for the way back?")
    await whole.say(SNACK)
    assert "peanuts" not in whole.shown


async def test_it_is_told_of_nobody_who_does_not_want_it_and_learns_nothing_that_is_not_to_be_kept(
    whole: WholeStand,
) -> None:
    await told(whole, "always")
    await whole.say("Remember that I'm allergic to shrimps.", x_memory_incognito="true")
    await whole.say(SNACK)
    assert WHO in whole.shown
    assert "shrimps" not in whole.shown
    await whole.whole.door.consent.set(Owner("", "ann"), Consent.OFF, by="user")
    await whole.say(SNACK)
    assert WHO not in whole.shown
    await whole.whole.door.consent.set(Owner("", "ann"), Consent.ON, by="user")
    await whole.say(SNACK)
    assert NUTS in whole.shown


async def test_what_took_the_place_of_a_value_stands_in_it_with_what_was_before(whole: WholeStand) -> None:
    whole.changes["learn"] = {"session_idle": "100ms"}
    await told(whole, "always")
    await whole.say("Remember that I live in Oslo.")
    await whole.say("Remember that I live in Bergen now.")
    await whole.say(SNACK)
    line = next(line for line in whole.shown.splitlines() if "Bergen" in line)
    assert line == "- home: Bergen (before: Oslo)"
