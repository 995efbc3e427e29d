"""What stands for the beginning of a conversation goes in its place; nothing is torn apart, all else stays."""

from __future__ import annotations

import json
from typing import Any

import pytest

from memory_extproc.dialect.anthropic import Anthropic
from memory_extproc.dialect.base import apply
from memory_extproc.dialect.chat_completions import ChatCompletions
from memory_extproc.dialect.responses import Responses
from memory_extproc.dialect.shortening import READ, shortened

DIALECTS = {one.name: one for one in (ChatCompletions(), Responses(), Anthropic())}
STATE = 'What was said: "5" < 6\nand \u00fcber'


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def cut(items: list[Any], keep_from: int, dialect: str = "chat_completions") -> list[Any] | None:
    """The items as they are after the cut; None where there is none. All bytes behind it are the client's."""
    field = "input" if dialect == "responses" else "messages"
    body = json.dumps({"model": "m", "tools": [], field: items, "seed": 12345678901234567890}, indent=1).encode()
    request = DIALECTS[dialect].read(body)
    edits = shortened(dialect, request, keep_from, STATE)
    if not edits:
        return None
    after = apply(body, edits)
    last = max(edit.end for edit in edits)
    assert after.endswith(body[last:])
    assert after.startswith(body[: min(edit.start for edit in edits)])
    found = json.loads(after)
    assert found["seed"] == 12345678901234567890
    return list(found[field])


PAIR = [user(STATE), assistant(READ)]


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
def test_the_state_and_a_word_that_it_was_read_take_the_place_of_the_older_turns(dialect: str) -> None:
    items = [user("a"), assistant("b"), user("c"), assistant("d"), user("e")]
    assert cut(items, 1, dialect) == [*PAIR, *items[2:]]
    assert cut(items, 2, dialect) == [*PAIR, items[4]]


def test_system_messages_stay_where_they_are() -> None:
    first, late = {"role": "system", "content": "Be kind."}, {"role": "developer", "content": "Now be brief."}
    items = [first, user("a"), assistant("b"), late, user("c"), assistant("d"), user("e")]
    assert cut(items, 2) == [first, *PAIR, late, user("e")]


def test_a_call_goes_together_with_its_result() -> None:
    calls = [{"id": "c1", "type": "function", "function": {}}]
    call = {"role": "assistant", "content": None, "tool_calls": calls}
    result = {"role": "tool", "tool_call_id": "c1", "content": "42"}
    items = [user("a"), call, result, assistant("b"), user("c")]
    assert cut(items, 1) == [*PAIR, user("c")]
    pending = [user("a"), assistant("b"), user("c"), call, user("wait"), result, user("d")]
    assert cut(pending, 2) is None
    assert cut([user("a"), call, user("never mind")], 1) is None
    assert cut([user("a"), assistant("b"), user("c"), call, result], 1) == [*PAIR, user("c"), call, result]


def test_the_tool_blocks_of_anthropic_are_not_torn_apart() -> None:
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "look", "input": {}}]}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "42"}]}
    both = {"role": "user", "content": [*result["content"], {"type": "text", "text": "and now?"}]}
    assert cut([user("a"), call, result, assistant("b"), user("c")], 1, "messages") == [*PAIR, user("c")]
    assert cut([user("a"), call, both], 1, "messages") is None


def test_the_items_of_responses_are_not_torn_apart() -> None:
    call = {"type": "function_call", "call_id": "f1", "name": "look", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "f1", "output": "42"}
    thought = {"type": "reasoning", "id": "r1", "summary": []}
    said = {"type": "message", **user("c")}
    assert cut([user("a"), thought, call, result, assistant("b"), said], 1, "responses") == [*PAIR, said]
    assert cut([user("a"), call, said, result, user("d")], 1, "responses") is None


@pytest.mark.parametrize(
    "odd",
    [{"role": "critic", "content": "x"}, {"type": "item_reference", "id": "x"}, {"role": "user", "type": "z"}],
)
def test_what_we_do_not_know_is_never_dropped(odd: dict[str, Any]) -> None:
    dialect = "responses" if "type" in odd else "chat_completions"
    assert cut([user("a"), odd, assistant("b"), user("c")], 1, dialect) is None


@pytest.mark.parametrize("keep_from", [0, 2, 9, -1])
def test_there_is_no_cut_outside_of_the_conversation(keep_from: int) -> None:
    assert cut([user("a"), assistant("b"), user("c")], keep_from) is None


def test_an_input_that_is_one_text_has_no_beginning() -> None:
    request = Responses().read(b'{"model":"m","input":"hello"}')
    assert shortened("responses", request, 1, STATE) == ()
