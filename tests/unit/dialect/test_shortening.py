"""The summary of a conversation's beginning goes in its place; nothing is torn apart, all else stays."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_extproc.dialect.anthropic_messages import Anthropic
from memory_extproc.dialect.json_spans import apply
from memory_extproc.dialect.messages import READ, condense_edits, latest_cut
from memory_extproc.dialect.openai_chat import ChatCompletions
from memory_extproc.dialect.openai_responses import Responses

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
    edits = condense_edits(dialect, request, keep_from, STATE)
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
    assert condense_edits("responses", request, 1, STATE) == ()


# --- any history with tools, in every dialect -----------------------------------------------------------
Step = tuple[str, int, int]  # what happens, how many calls at once, and which of their results never comes (or -1)
STEPS = st.tuples(st.sampled_from(["say", "call", "late", "system"]), st.integers(1, 3), st.integers(-1, 2))


def history(dialect: str, steps: list[Step], *, same_ids: bool) -> list[dict[str, Any]]:
    """A conversation in which each step is a turn, with calls and their results behind what was asked; those of
    "late" ones come only after the user spoke again."""
    items: list[dict[str, Any]] = []
    late: list[dict[str, Any]] = []
    for number, (kind, count, lost) in enumerate(steps):
        items.append(user(f"question {number}"))
        items += late
        late = []
        if kind == "system" and dialect != "messages":
            items.append({"role": "system", "content": f"rule {number}"})
        if kind in {"call", "late"}:
            ids = [f"c{place}" if same_ids else f"c{number}-{place}" for place in range(count)]
            results = [WRITES[dialect][1](one) for place, one in enumerate(ids) if place != lost]
            items += WRITES[dialect][0](ids)
            if kind == "late":
                late = results
            else:
                items += results
        items.append(assistant(f"answer {number}"))
    return [*items, *late, user("and now?")]


def _chat_calls(ids: list[str]) -> list[dict[str, Any]]:
    calls = [{"id": one, "type": "function", "function": {"name": "look", "arguments": "{}"}} for one in ids]
    return [{"role": "assistant", "content": None, "tool_calls": calls}]


def _anthropic_calls(ids: list[str]) -> list[dict[str, Any]]:
    uses = [{"type": "tool_use", "id": one, "name": "look", "input": {}} for one in ids]
    return [{"role": "assistant", "content": uses}]


def _items_of_calls(ids: list[str]) -> list[dict[str, Any]]:
    return [{"type": "function_call", "call_id": one, "name": "look", "arguments": "{}"} for one in ids]


WRITES: dict[str, tuple[Any, Any]] = {
    "chat_completions": (_chat_calls, lambda one: {"role": "tool", "tool_call_id": one, "content": "42"}),
    "messages": (
        _anthropic_calls,
        lambda one: {"role": "user", "content": [{"type": "tool_result", "tool_use_id": one, "content": "42"}]},
    ),
    "responses": (
        _items_of_calls,
        lambda one: {"type": "function_call_output", "call_id": one, "output": "42"},
    ),
}


def orphans(items: list[dict[str, Any]]) -> tuple[int, int]:
    """Results without a call before them, and calls without a result behind them, read off the wire alone."""
    open_calls: list[str] = []
    unasked = 0
    for item in items:
        content = item.get("content")
        parts = [item, *(content if isinstance(content, list) else [])]
        for part in parts:
            answers = part.get("tool_call_id") or part.get("tool_use_id")
            answers = answers or (part.get("call_id") if part.get("type") == "function_call_output" else None)
            if answers in open_calls:
                open_calls.remove(answers)
            elif answers:
                unasked += 1
        for part in parts:
            open_calls += [call["id"] for call in part.get("tool_calls") or ()]
            open_calls += [part["id"]] if part.get("type") == "tool_use" else []
            open_calls += [part["call_id"]] if part.get("type") == "function_call" else []
    return unasked, len(open_calls)


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
@given(steps=st.lists(STEPS, min_size=2, max_size=8), same_ids=st.booleans(), wanted=st.integers(1, 8))
def test_no_cut_tears_a_call_from_its_result_whatever_the_history(
    dialect: str, steps: list[Step], wanted: int, *, same_ids: bool
) -> None:
    items = history(dialect, steps, same_ids=same_ids)
    field = "input" if dialect == "responses" else "messages"
    request = DIALECTS[dialect].read(json.dumps({"model": "m", field: items}).encode())
    place = latest_cut(dialect, request, wanted)
    for keep_from in range(1, len(request.user_at)):
        after = cut(items, keep_from, dialect)
        if after is None:
            assert keep_from != place
            continue
        rules = [one for one in items if one.get("role") == "system"]
        assert [one for one in after if one.get("role") == "system"] == rules
        kept = items[request.user_at[keep_from] :]
        assert after[-len(kept) :] == kept
        gone = [one for one in items[: request.user_at[keep_from]] if one not in rules]
        assert orphans(gone)[1] == 0
        assert orphans(after) == orphans(items)


def test_where_nothing_may_be_cut_an_earlier_place_is_taken() -> None:
    call = _chat_calls(["c1"])
    result = WRITES["chat_completions"][1]("c1")
    items = [user("a"), assistant("b"), user("c"), *call, user("wait"), result, assistant("d"), user("e")]
    request = DIALECTS["chat_completions"].read(json.dumps({"model": "m", "messages": items}).encode())
    assert [latest_cut("chat_completions", request, wanted) for wanted in (3, 2, 1, 9, 0)] == [3, 1, 1, 3, 0]
