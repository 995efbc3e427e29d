"""A conversation keeps its blocks: each later request of it begins with the very bytes of the one before."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memory_extproc.model import Outcome
from memory_extproc.recall.prompt_block import CLOSING, OPENING, OPENING_AGAIN
from memory_extproc.testing.adapters import InMemoryCoordination
from tests.support.sidecar import NOON
from tests.unit.extproc.talking import (
    BUDGET,
    CHAT,
    HOTEL,
    KNOWN,
    MESSAGES,
    RESPONSES,
    SEAT,
    WORDS,
    Talk,
    a_desk,
    never,
    now_known,
)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
async def test_each_request_begins_with_the_bytes_of_the_one_before(path: str, parts: bool, stream: bool) -> None:
    talk = Talk(a_desk(), path, parts=parts, stream=stream)
    for words in WORDS:
        body = await talk.ask(words)
    assert talk.keeps_its_beginning
    assert [body.count(text) for text in KNOWN.values()] == [1, 1, 1]
    assert body.count(CLOSING) == 3


@pytest.mark.parametrize("model", ["gpt-4o", "claude-sonnet-4"])
async def test_a_block_goes_back_in_the_form_it_had(model: str) -> None:
    talk = Talk(a_desk(), model=model)
    talk.items.append({"role": "developer", "content": "Be brief."})
    for words in WORDS:
        await talk.ask(words)
    assert talk.keeps_its_beginning
    roles = [message["role"] for message in json.loads(talk.sent[-1])["messages"]]
    assert roles.count("developer") == (4 if model == "gpt-4o" else 1)


async def test_after_a_change_of_model_no_late_system_message_goes_where_it_is_not_taken() -> None:
    talk = Talk(a_desk(), model="gpt-4o")
    await talk.ask("my budget?")
    assert '"role":"system"' in talk.sent[-1].decode()
    talk.changes["model"] = "llama-3.1"
    body = await talk.ask("and what else?")
    assert "system" not in body
    assert BUDGET in body


async def test_a_memory_in_view_is_not_given_again_and_the_request_still_counts_as_used() -> None:
    talk = Talk(a_desk())
    await talk.ask("my budget?")
    assert talk.last.status == "used;n=1;path=hybrid"
    await talk.ask("my budget again?")
    assert talk.last.status == "used;n=1;path=replay"
    assert BUDGET in talk.desk.recalls.wishes[-1].in_view
    assert talk.last.personal
    assert talk.last.heard is not None
    assert list(talk.last.heard.injected) == [BUDGET]
    await talk.ask("which hotel?")
    assert talk.last.status == "used;n=1;path=hybrid"
    assert list(talk.last.heard.injected) == [BUDGET, HOTEL]


async def test_only_the_first_block_of_a_conversation_is_introduced_at_length() -> None:
    talk = Talk(a_desk())
    for words in WORDS:
        body = await talk.ask(words)
    openings = [json.dumps(opening)[1:-1] for opening in (OPENING, OPENING_AGAIN)]
    assert [body.count(opening) for opening in openings] == [1, 2]
    assert body.index(openings[0]) < body.index(openings[1])


async def test_what_stopped_the_recall_is_said_and_the_blocks_go_back_all_the_same() -> None:
    shared = InMemoryCoordination(now=lambda: NOON)
    talk = Talk(a_desk(shared=shared))
    await talk.ask("my budget?")
    talk.desk = a_desk(
        shared=shared, message_timeout=timedelta(milliseconds=50), deadline=timedelta(milliseconds=50)
    )
    talk.desk.recalls.before = never
    body = await talk.ask("which hotel?")
    assert talk.last.status == "out_of_time"
    assert talk.last.personal
    assert BUDGET in body
    assert talk.keeps_its_beginning


async def test_words_said_again_get_the_same_block_again() -> None:
    talk = Talk(a_desk())
    await talk.ask("hi")
    first = await talk.ask("my budget?")
    talk.items.pop()
    now_known(talk.desk, budget="The budget is $15,000")
    assert await talk.send() == first
    assert len(talk.desk.recalls.wishes) == 2


@pytest.mark.parametrize("between", ["another question", "time"])
async def test_words_said_again_later_are_asked_anew(between: str) -> None:
    talk = Talk(a_desk())
    await talk.ask("hi")
    await talk.ask("my budget?")
    talk.items.pop()
    now_known(talk.desk, budget="The budget is $15,000")
    if between == "time":
        talk.desk.time += timedelta(minutes=3)
    else:
        await Talk(talk.desk).ask("what is new?")
    assert "$15,000" in await talk.send()


async def test_an_opening_said_again_is_asked_anew_and_what_was_not_known_is_looked_for_again() -> None:
    desk = a_desk()
    await Talk(desk).ask("my budget?")
    now_known(desk, budget="The budget is $15,000")
    assert "$15,000" in await Talk(desk).ask("my budget?")
    talk = Talk(desk)
    await talk.ask("hi")
    await talk.ask("my seat?")
    assert talk.last.outcome is Outcome.NOTHING_RELEVANT
    talk.items.pop()
    now_known(desk, **KNOWN)
    assert SEAT in await talk.send()


async def test_a_conversation_edited_in_the_middle_keeps_what_stood_before() -> None:
    talk = Talk(a_desk())
    for words in ("my budget?", "which hotel?", "my seat?"):
        await talk.ask(words)
    del talk.items[2:]
    body = await talk.ask("which hotel is it, again?")
    before = talk.sent[0].removesuffix(b"]}").decode()
    assert body.startswith(before)
    assert [body.count(text) for text in KNOWN.values()] == [1, 1, 0]
    assert talk.sent[-2].decode() not in body


async def test_a_client_that_cuts_off_the_beginning_gets_nothing_in_a_wrong_place() -> None:
    talk = Talk(a_desk())
    for words in ("my budget?", "which hotel?", "my seat?"):
        await talk.ask(words)
    del talk.items[:2]
    body = await talk.ask("my budget and hotel?")
    assert body.count(CLOSING) == 1
    assert body.index(BUDGET) > body.index("my budget and hotel?")
    await talk.ask("thanks")
    assert talk.sent[-1].startswith(talk.sent[-2].removesuffix(b"]}"))


async def test_two_conversations_that_begin_alike_do_not_mix_once_they_differ() -> None:
    desk = a_desk()
    one, two = Talk(desk), Talk(desk)
    await one.ask("my budget?")
    await two.ask("my budget?")
    await one.ask("which hotel?")
    await two.ask("my seat?")
    for talk, own, other in ((one, HOTEL, SEAT), (two, SEAT, HOTEL)):
        body = await talk.ask("thanks")
        assert talk.keeps_its_beginning
        assert (body.count(own), body.count(other), body.count(BUDGET)) == (1, 0, 1)


async def test_sessions_that_the_client_names_are_apart_from_their_first_word_on() -> None:
    desk = a_desk()
    one, two = Talk(desk), Talk(desk)
    await one.ask("my budget?", x_session_id="one")
    now_known(desk, budget="The budget is $15,000")
    await two.ask("my budget?", x_session_id="two")
    await one.ask("thanks", x_session_id="one")
    await two.ask("thanks", x_session_id="two")
    assert one.keeps_its_beginning
    assert two.keeps_its_beginning
    assert one.sent[-1] != two.sent[-1]


async def test_with_replay_off_only_tool_loops_keep_their_block() -> None:
    talk = Talk(a_desk(replay=False))
    await talk.ask("my budget?")
    assert CLOSING not in await talk.ask("and what else?")
    talk = Talk(a_desk(replay=False), tools=[{"type": "function", "function": {"name": "look_up"}}])
    await talk.ask("my budget?")
    talk.items[-1:] = a_tool_call(1)
    await talk.send()
    assert talk.keeps_its_beginning
    assert len(talk.desk.recalls.wishes) == 1


def a_tool_call(number: int) -> list[dict[str, Any]]:
    call = {"id": f"c{number}", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": f"result {number}"},
    ]


async def test_tool_loops_keep_their_beginning_through_all_steps_and_turns() -> None:
    talk = Talk(a_desk(), tools=[{"type": "function", "function": {"name": "look_up"}}])
    for words in ("my budget?", "which hotel?", "my seat?"):
        talk.user(words)
        await talk.send()
        for step in range(5):
            talk.items += a_tool_call(step)
            await talk.send()
        talk.assistant("Done.")
    assert talk.keeps_its_beginning
    assert len(talk.desk.recalls.wishes) == 3
    assert talk.sent[-1].decode().count(CLOSING) == 3


async def test_pictures_without_words_leave_the_places_as_they_are() -> None:
    talk = Talk(a_desk())
    await talk.ask("my budget?")
    talk.items.append({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]})
    await talk.send()
    talk.assistant("A beach.")
    await talk.ask("which hotel?")
    await talk.ask("thanks")
    assert talk.keeps_its_beginning


SCRIPTS = st.lists(
    st.tuples(st.sampled_from([*WORDS, "salary", ""]), st.sampled_from(["ask", "again", "edit", "skip", "tools"])),
    max_size=12,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(SCRIPTS, st.sampled_from([CHAT, RESPONSES, MESSAGES]), st.booleans())
async def test_whatever_a_client_does_only_whole_blocks_are_added_and_each_memory_once(
    script: list[tuple[str, str]], path: str, parts: bool
) -> None:
    talk = Talk(a_desk(), path, parts=parts)
    for words, step in script:
        if step == "edit" and talk.items:
            del talk.items[len(talk.items) // 2 & ~1 :]
        if step == "again" and talk.items:
            talk.items.pop()
            body = await talk.send()
            talk.assistant("Once more: yes.")
        else:
            body = await talk.ask(words, **({"x_memory_retrieve": "skip"} if step == "skip" else {}))
        assert json.loads(body)
        assert all(body.count(text) <= 1 for text in KNOWN.values())
        assert body.count("<memory>") == body.count(CLOSING) == body.count("otes remembered from")
