"""Long chats through the real Envoy: shortened on their way, whole in what is learned, and restored on demand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fixtures.envoy import until
from tests.fixtures.whole import WholeStand

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
