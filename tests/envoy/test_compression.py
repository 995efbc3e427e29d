"""Long chats through the real Envoy: shortened on their way, whole in what is learned, and restored on demand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.upstream import ANSWER, an_answer
from tests.support.waiting import until
from tests.support.whole import WholeStand

pytestmark = pytest.mark.envoy

STATE = "<conversation_state>"


async def test_a_long_chat_goes_on_shortened_keeps_its_values_and_can_be_had_in_full(whole: WholeStand) -> None:
    whole.changes["compress"] = {"enabled": True, "above_tokens": 256, "keep_turns": 2}
    await whole.start()
    items: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]

    async def ask(words: str, **headers: str) -> list[dict[str, Any]]:
        items.append({"role": "user", "content": words})
        answer = await whole.chat({"model": "demo", "messages": items, "temperature": 0.0}, **headers)
        assert answer.status == 200
        items.append({"role": "assistant", "content": "I see. " * 20})
        return list(json.loads(whole.upstream.got[-1].body)["messages"])

    await ask("My budget for the Hawaii trip is $10,000.")
    for turn in range(6):
        await ask(f"Tell me about island number {turn}, please. " * 4)
    await until(
        lambda: whole.sample("compressions_total", outcome="condensed") >= 1, "the state is made", seconds=10
    )
    shortened = await ask("And then?")
    assert shortened[0] == items[0]
    assert STATE in shortened[1]["content"]
    assert "$10,000" in shortened[1]["content"]
    assert len(shortened) < len(items)
    full = await ask("And in full?", x_memory_compress="skip")
    assert STATE not in json.dumps(full)
    assert next(one for one in full if one["role"] != "system") == items[1]
    assert "x-memory-compress" not in {name.lower() for name in whole.upstream.got[-1].headers}


ISLAND = "Which beaches of Kauai suit small children best?"
TOLD = "The beaches of Kauai that suit small children are Lydgate and Poipu."


async def test_what_was_left_out_of_a_long_chat_can_be_recalled_into_it(whole: WholeStand) -> None:
    whole.changes["compress"] = {"enabled": True, "above_tokens": 256, "keep_turns": 2}
    await whole.start()
    items: list[dict[str, Any]] = []

    async def ask(words: str, answered: str = "I see. " * 20) -> list[dict[str, Any]]:
        items.append({"role": "user", "content": words})
        reply = {
            "choices": [
                {"index": 0, "message": {"role": "assistant", "content": answered}, "finish_reason": "stop"}
            ]
        }
        whole.upstream.answers = an_answer(json.dumps({**ANSWER, **reply}).encode())
        answer = await whole.chat({"model": "demo", "messages": items}, x_session_id="long")
        assert answer.status == 200
        items.append({"role": "assistant", "content": answered})
        return list(json.loads(whole.upstream.got[-1].body)["messages"])

    await ask(ISLAND, TOLD)
    seen = await ask("Remind me: which beaches of Kauai suit small children?")
    assert TOLD not in str(seen[-1]["content"])  # the model sees it where it was said
    for turn in range(6):
        await ask(f"Now the weather of month number {turn}, please. " * 4)
    await until(
        lambda: whole.sample("compressions_total", outcome="condensed") >= 1, "the state is made", seconds=10
    )
    shortened = await ask("And which beaches of Kauai suit small children, again?")
    assert STATE in str(shortened[0]["content"])
    assert TOLD in str(shortened[-1]["content"])
