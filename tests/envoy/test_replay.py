"""A conversation keeps its blocks, through the real Envoy, the real store and the real model."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.upstream import a_stream, an_answer, sse_events
from tests.support.waiting import until
from tests.support.whole import WholeStand

pytestmark = pytest.mark.envoy

SAID = ("My budget for the Hawaii trip is $10,000.", "I prefer window seats on long flights.")
ASKED = ("What's my budget for the trip?", "Which seats do I prefer on flights?", "Thank you, that is all.")
PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/messages")
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "status": "completed",
    "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Noted."}]}],
    "usage": {"input_tokens": 2000, "input_tokens_details": {"cached_tokens": 1024}},
}
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "content": [{"type": "text", "text": "Noted."}],
    "stop_reason": "end_turn",
}


def answering(words: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": {"role": "assistant", "content": words}, "finish_reason": "stop"}]}


ANSWERS = dict(zip(PATHS, (answering("Noted."), RESPONSE, MESSAGE), strict=True))


class Talk:
    """One conversation of Ann's: each request repeats what was said, as a client knows it."""

    def __init__(self, whole: WholeStand, path: str = PATHS[0], **changes: Any) -> None:
        self.whole, self.path, self.changes = whole, path, changes
        self.items: list[dict[str, Any]] = []
        self.statuses: list[str] = []
        self.got: list[bytes] = []  # by the upstream

    async def ask(self, words: str) -> None:
        self.items.append({"role": "user", "content": words})
        await self.send()
        self.items.append({"role": "assistant", "content": "Noted."})

    async def send(self, **headers: str) -> None:
        field = "input" if self.path == "/v1/responses" else "messages"
        body = {"model": "demo", "max_tokens": 100, **self.changes, field: self.items}
        self.statuses.append((await self.whole.chat(body, path=self.path, **headers)).memory)
        self.got.append(self.whole.upstream.got[-1].body)

    @property
    def keeps_its_beginning(self) -> bool:
        pairs = zip(self.got, self.got[1:], strict=False)
        return all(after.startswith(before.removesuffix(b"]}")) for before, after in pairs)

    @property
    def blocks(self) -> int:
        return self.got[-1].count(b"</memory>")


async def told(whole: WholeStand) -> None:
    """Ann has said two things, and they were learned."""
    await whole.start()
    whole.upstream.answers = an_answer(json.dumps(answering("Noted.")).encode())
    for words in SAID:
        await whole.say(words, x_memory_session="end")
    await until(lambda: whole.sample("reconcile_total", decision="added") == 2, "facts are stored", seconds=10)


@pytest.mark.parametrize("path", PATHS)
async def test_each_request_begins_with_the_one_before_and_each_memory_is_given_once(
    whole: WholeStand, path: str
) -> None:
    await told(whole)
    whole.upstream.answers = an_answer(json.dumps(ANSWERS[path]).encode())
    talk = Talk(whole, path)
    for words in (*ASKED, "And how much may I spend on the trip again?"):
        await talk.ask(words)
    assert talk.statuses[:2] == ["used;n=1;path=hybrid"] * 2
    assert talk.keeps_its_beginning
    body = talk.got[-1].decode()
    assert body.count("$10,000") == 1
    assert body.count("window seats") == 1
    assert talk.blocks == 2
    assert talk.statuses[-1] == "used;n=2;path=replay"


@pytest.mark.parametrize("duplex", [False, True])
async def test_a_streamed_conversation_survives_a_restart(whole: WholeStand, *, duplex: bool) -> None:
    whole.duplex = duplex
    await told(whole)
    whole.upstream.answers = a_stream(sse_events("Not", "ed."))
    talk = Talk(whole, stream=True)
    await talk.ask(ASKED[0])
    await whole.restart()
    await talk.ask(ASKED[1])
    assert talk.keeps_its_beginning
    assert talk.blocks == 2


async def test_a_tool_loop_keeps_its_beginning(whole: WholeStand) -> None:
    await told(whole)
    talk = Talk(whole, tools=[{"type": "function", "function": {"name": "look_up"}}])
    for words in ASKED[:2]:
        talk.items.append({"role": "user", "content": words})
        await talk.send()
        for step in range(3):
            call = {"id": f"c{step}", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
            talk.items += [
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": f"c{step}", "content": "42"},
            ]
            await talk.send()
        talk.items.append({"role": "assistant", "content": "Noted."})
    assert talk.keeps_its_beginning
    assert talk.blocks == 2


async def test_what_a_provider_keeps_is_not_given_twice_and_its_cache_is_counted(
    whole: WholeStand,
) -> None:
    await told(whole)
    whole.upstream.answers = an_answer(json.dumps(RESPONSE).encode())
    talk = Talk(whole, "/v1/responses")
    await talk.ask(ASKED[0])
    assert talk.blocks == 1
    talk.items.clear()
    talk.changes["previous_response_id"] = "resp_1"
    await talk.ask("And how much may I spend on the trip again?")
    assert talk.blocks == 0
    labels = {"dialect": "responses", "outcome": "used"}
    assert whole.sample("llm_cached_tokens_total", **labels) == 1024
    assert whole.sample("llm_prompt_tokens_total", **labels) == 2000


async def test_replay_switched_off_puts_nothing_back(whole: WholeStand) -> None:
    whole.changes["inject"] = {"replay": False}
    await told(whole)
    talk = Talk(whole)
    for words in ASKED[:2]:
        await talk.ask(words)
    assert b"$10,000" not in talk.got[1]
    assert not talk.keeps_its_beginning


async def test_what_was_put_back_is_not_learned(whole: WholeStand) -> None:
    await told(whole)
    talk = Talk(whole)
    await talk.ask(ASKED[0])
    whole.upstream.answers = an_answer(
        json.dumps(answering("Your budget for the Hawaii trip is $10,000.")).encode()
    )
    await talk.ask("Say that again, please.")
    await talk.send(x_memory_session="end")
    await until(lambda: whole.sample("journal_depth") == 0, "all is learned", seconds=10)
    assert whole.sample("reconcile_total", decision="added") == 2
    assert whole.sample("remembered_total", role="assistant", decision="kept") == 0
