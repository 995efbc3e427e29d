"""The main job: what a user says in one session is known in the next, through the real Envoy, the real store and
the real model."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.support.upstream import ANSWER, a_stream, an_answer, sse_events
from tests.support.waiting import until
from tests.support.whole import WholeStand

pytestmark = pytest.mark.envoy

BUDGET = "My budget for the Hawaii trip is $10,000."
ASKED = "What's my budget for the trip?"
# The second where a caller's memories are not in process yet: the store finds none, and whether there are any
# is not known.
NONE = {"empty", "nothing_relevant"}


async def test_what_was_said_in_one_session_is_known_in_the_next_and_to_nobody_else(whole: WholeStand) -> None:
    await whole.start()
    whole.upstream.answers = an_answer(json.dumps(ANSWER).encode())
    assert (await whole.say(BUDGET)).memory in NONE
    answer = await whole.say(ASKED)
    assert answer.memory == "used;n=1;path=hybrid"
    assert answer.headers["cache-control"] == "private, no-store"
    assert "$10,000" in whole.shown
    assert whole.shown.startswith(ASKED)
    for user, headers in (("bob", {}), ("ann", {"x_authz_tenant_id": "globex"})):
        answer = await whole.say(ASKED, user=user, **headers)
        assert answer.memory in NONE
        assert whole.shown == ASKED
    assert (await whole.say(ASKED, user="")).memory == "no_caller"
    assert whole.shown == ASKED


async def test_a_restart_forgets_nothing_and_leaving_extracts_what_was_said(whole: WholeStand) -> None:
    await whole.start()
    await whole.say(BUDGET)
    await whole.restart()
    assert whole.sample("journal_depth") == 0
    answer = await whole.say("How much may I spend on the Hawaii trip?", x_memory_session="end")
    assert answer.memory.startswith("used")
    assert "$10,000" in whole.shown
    await whole.say(BUDGET, x_session_id="another", x_memory_session="end")

    def met_again() -> bool:
        return sum(whole.sample("reconcile_total", decision=word) for word in ("confirmed", "known")) == 1

    await until(met_again, "the fact was there", seconds=10)
    assert whole.sample("reconcile_total", decision="added") == 0


async def test_the_end_of_a_session_extracts_its_facts_at_once(whole: WholeStand) -> None:
    await whole.start()
    await whole.say("I prefer window seats on long flights.", x_memory_session="end")
    await until(lambda: whole.sample("reconcile_total", decision="added") == 1, "the fact is stored", seconds=10)
    answer = await whole.say("Which seats do I prefer on flights?")
    assert answer.memory == "used;n=1;path=hybrid"
    assert "window seats on long flights" in whole.shown


async def test_a_new_value_replaces_the_old_one(whole: WholeStand) -> None:
    await whole.start()
    await whole.say("My budget for the Hawaii trip is $10,000.", x_memory_session="end")
    await until(lambda: whole.sample("reconcile_total", decision="added") == 1, "the fact is stored", seconds=10)
    await whole.say("My budget for the Hawaii trip is now $15,000.", x_memory_session="end")
    await until(lambda: whole.sample("reconcile_total", decision="replaced") == 1, "it is replaced", seconds=10)
    await whole.say(ASKED)
    facts = [line for line in whole.shown.splitlines() if "User's budget" in line]
    assert len(facts) == 1
    assert "$15,000" in facts[0]


async def test_a_streamed_answer_is_learned_too(whole: WholeStand) -> None:
    await whole.start()
    whole.upstream.answers = a_stream(sse_events("The Grand Wailea ", "costs $900 ", "a night."))
    await whole.chat(
        {"model": "demo", "stream": True, "messages": [{"role": "user", "content": "A hotel in Maui?"}]}
    )
    answer = await whole.say("What did the hotel in Maui cost a night?")
    assert answer.memory == "used;n=1;path=hybrid"
    assert "The Grand Wailea costs $900 a night." in whole.shown


@pytest.mark.parametrize(
    ("path", "body", "answered", "text_of"),
    [
        (
            "/v1/responses",
            {"model": "demo", "input": "{}"},
            {
                "id": "resp_1",
                "object": "response",
                "status": "completed",
                "output": [
                    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Noted."}]}
                ],
            },
            lambda body: body["input"],
        ),
        (
            "/v1/messages",
            {"model": "claude", "max_tokens": 100, "messages": [{"role": "user", "content": "{}"}]},
            {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "content": [{"type": "text", "text": "Noted."}],
                "stop_reason": "end_turn",
            },
            lambda body: body["messages"][-1]["content"],
        ),
    ],
    ids=["responses", "messages"],
)
async def test_the_other_dialects_remember_as_well(
    whole: WholeStand, path: str, body: dict[str, Any], answered: dict[str, Any], text_of: Any
) -> None:
    await whole.start()
    whole.upstream.answers = an_answer(json.dumps(answered).encode())

    def said(words: str) -> Any:
        return json.loads(json.dumps(body).replace("{}", words))

    assert (await whole.chat(said(BUDGET), path=path)).memory in NONE
    assert (await whole.chat(said(ASKED), path=path)).memory == "used;n=1;path=hybrid"
    assert "$10,000" in text_of(json.loads(whole.upstream.got[-1].body))


async def test_our_own_block_is_never_learned_as_new(whole: WholeStand) -> None:
    await whole.start()
    parrot = {"role": "assistant", "content": "Your budget for the Hawaii trip is $10,000."}
    echo = {"choices": [{"index": 0, "message": parrot, "finish_reason": "stop"}]}
    await whole.say(BUDGET, x_memory_session="end")
    await until(lambda: whole.sample("reconcile_total", decision="added") == 1, "the fact is stored", seconds=10)
    whole.upstream.answers = an_answer(json.dumps(echo).encode())
    for _ in range(3):
        assert (await whole.say(ASKED, x_memory_session="end")).memory.startswith("used")
    await until(lambda: whole.sample("journal_depth") == 0, "all is learned", seconds=10)
    assert whole.sample("reconcile_total", decision="added") == 1
    assert whole.sample("remembered_total", role="assistant", decision="kept") == 0


async def test_callers_at_the_same_time_get_their_own_memories_only(whole: WholeStand) -> None:
    await whole.start()
    noted = {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Noted."}, "finish_reason": "stop"}]
    }
    whole.upstream.answers = an_answer(json.dumps(noted).encode())
    users = [f"user-{n}" for n in range(8)]
    said = {user: f"My budget for the Hawaii trip is ${n}77." for n, user in enumerate(users)}
    await asyncio.gather(*(whole.say(words, user=user) for user, words in said.items()))
    answers = await asyncio.gather(*(whole.say(ASKED, user=user) for user in users))
    assert {answer.memory.rpartition(";")[0] for answer in answers} == {"used;n=1"}
    asked = [json.loads(got.body)["messages"][0]["content"] for got in whole.upstream.got[-len(users) :]]
    amounts = sorted(
        line.split("$")[1].split(".")[0] for text in asked for line in text.splitlines() if "$" in line
    )
    assert amounts == sorted(f"{n}77" for n in range(len(users)))


async def test_operators_see_that_it_is_ready_and_what_it_did(whole: WholeStand) -> None:
    await whole.start()
    assert await whole.http("/readyz") == (200, "ready\ncalibration: fitted\n")
    await whole.say(BUDGET)

    def counted() -> bool:
        empty = whole.sample("exchanges_total", dialect="chat_completions", outcome="empty")
        return (empty, whole.accepted) == (1, 1)

    await until(counted, "both are counted, which the client's answer waits a moment for at most", seconds=10)
    status, text = await whole.http("/metrics")
    assert status == 200
    assert 'memory_extproc_exchanges_total{dialect="chat_completions",outcome="empty"} 1.0' in text
    taken = ("journalled", "journal_late")  # on a busy machine a little later
    assert any(f'memory_extproc_turns_total{{outcome="{outcome}"}} 1.0' in text for outcome in taken)
    assert "memory_extproc_store_up 1.0" in text
    assert "ann" not in text.replace("channel", "")
