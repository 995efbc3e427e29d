"""Edits of a client's body: the block where it was promised, our fields gone, all else as it was."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_extproc.dialect.base import BodyControls, Dialect, Form, Placing
from memory_extproc.dialect.json_spans import Edit, apply
from memory_extproc.dialect.registry import dialect_for
from tests.unit.dialect.json_texts import BLOCK, OURS, Body, Tree, bodies, tree

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
KINDS = {CHAT: ("messages", "text"), RESPONSES: ("input", "input_text"), MESSAGES: ("messages", "text")}


def speaking(path: str) -> Dialect:
    dialect = dialect_for(path)
    assert dialect is not None
    return dialect


def edited(path: str, body: bytes, form: Form = Form.USER_SUFFIX, back: int = 0) -> bytes:
    """The body as it leaves us, block in and our fields out."""
    dialect = speaking(path)
    request = dialect.read(body)
    (edits,) = dialect.place(request, [Placing(BLOCK, form, back)])
    return apply(body, [*edits, *request.removals])


def last(pairs: list[tuple[str, Tree]], name: str) -> int:
    return max(at for at, (key, _) in enumerate(pairs) if key == name)


def with_block(body: Body, path: str, form: Form) -> Tree:
    """What the edited body must say: made from the tree of the original, not by the code under test."""
    field, kind = KINDS[path]
    _, pairs = tree(body.text)
    pairs = [pair for pair in pairs if pair[0] not in OURS]
    at = last(pairs, field)
    talk = list(pairs[at][1])
    if form is Form.SYSTEM_MESSAGE and path != MESSAGES:
        message = [("role", "system"), ("content", BLOCK)]
        typed = [("type", "message")] if path == RESPONSES else []
        talk.insert(body.at + 1, ("object", [*typed, *message]))
    else:
        _, message = talk[body.at]
        content_at = last(message, "content")
        content = message[content_at][1]
        if body.parts:
            content = [*content, ("object", [("type", kind), ("text", BLOCK)])]
        else:
            content = f"{content}\n\n{BLOCK}" if content else BLOCK
        message[content_at] = ("content", content)
    pairs[at] = (field, talk)
    return ("object", pairs)


@settings(max_examples=50, deadline=None)
@pytest.mark.parametrize("path", KINDS)
@given(st.data())
def test_any_body_keeps_every_value_and_byte_but_for_the_block_and_our_fields(
    path: str, data: st.DataObject
) -> None:
    body, form = data.draw(bodies(*KINDS[path])), data.draw(st.sampled_from(Form))
    dialect = speaking(path)
    request = dialect.read(body.text)
    assert request.asked == body.asked
    assert tree(edited(path, body.text, form)) == with_block(body, path, form)

    ((edit,),) = dialect.place(request, [Placing(BLOCK, form)])
    placed = apply(body.text, [edit])
    assert placed[: edit.start] + placed[edit.start + len(edit.new) :] == body.text
    kept = apply(body.text, request.removals)
    assert all(edit.new == b"" for edit in request.removals)
    assert body.has_ours or kept == body.text

    again = dialect.read(edited(path, body.text))
    assert again.asked.startswith(body.asked)
    assert again.asked.endswith(BLOCK)
    assert again.controls == BodyControls()


def chat(*messages: object, **fields: object) -> bytes:
    return json.dumps({"model": "m", "messages": messages, **fields}).encode()


def user(content: object) -> dict[str, object]:
    return {"role": "user", "content": content}


def talk_of(body: bytes) -> list[dict[str, object]]:
    return list(json.loads(body)["messages"])


LOOP = [
    {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": {"name": "f"}}]},
    {"role": "tool", "tool_call_id": "c", "content": "42"},
]


def test_a_clients_developer_role_is_the_blocks_role_too() -> None:
    body = chat({"role": "developer", "content": "Be brief"}, user("Budget?"))
    assert talk_of(edited(CHAT, body, Form.SYSTEM_MESSAGE))[-1] == {"role": "developer", "content": BLOCK}


@pytest.mark.parametrize("form", Form)
def test_in_a_tool_loop_the_block_stands_at_the_callers_words(form: Form) -> None:
    messages = talk_of(edited(CHAT, chat(user("Budget?"), *LOOP), form))
    assert messages[-2:] == LOOP
    assert BLOCK in str(messages[:-2][-1]["content"])


@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, chat(*LOOP)),
        (CHAT, chat()),
        (CHAT, chat({"role": "system", "content": "Be brief"})),
        (RESPONSES, b'{"previous_response_id":"r","input":[{"type":"function_call_output","output":"1"}]}'),
        (RESPONSES, b'{"prompt":{"id":"p"}}'),
        (RESPONSES, b'{"input":null}'),
        (MESSAGES, chat({"role": "user", "content": [{"type": "tool_result", "content": "1"}]})),
    ],
)
def test_there_is_no_block_where_the_callers_words_are_out_of_reach(path: str, body: bytes, form: Form) -> None:
    assert edited(path, body, form) == body


def test_a_user_message_without_content_takes_no_suffix() -> None:
    for message in (user(None), {"role": "user"}):
        assert edited(CHAT, chat(message)) == chat(message)


def test_an_empty_list_of_parts_stays_a_list() -> None:
    assert talk_of(edited(CHAT, chat(user([]))))[0]["content"] == [{"type": "text", "text": BLOCK}]


def test_in_responses_a_string_stays_a_string_in_both_forms() -> None:
    for form in Form:
        result = json.loads(edited(RESPONSES, b'{"input": "Budget?", "store": 1.0}', form))
        assert result["input"] == f"Budget?\n\n{BLOCK}"


def test_anthropics_block_follows_tool_results_and_moves_no_cache_marker() -> None:
    marked = {"type": "text", "text": "Budget?", "cache_control": {"type": "ephemeral"}}
    content = [{"type": "tool_result", "tool_use_id": "t", "content": "1"}, marked]
    for form in Form:
        result = talk_of(edited(MESSAGES, chat(user(content)), form))
        assert result == [user([*content, {"type": "text", "text": BLOCK}])]


def test_an_earlier_block_returns_to_the_message_it_was_made_for() -> None:
    body = chat(user("One"), {"role": "assistant", "content": "1"}, user(""), user("Two"), *LOOP)
    assert talk_of(edited(CHAT, body, back=1))[0]["content"] == f"One\n\n{BLOCK}"
    assert edited(CHAT, body, back=2) == body


def test_every_duplicate_of_our_fields_goes_and_its_comma_with_it() -> None:
    spaced = (
        b' { "auto_store" : true , "messages":[ ] ,\n "auto\\u005fstore":false, "x":1.0 ,"memory_config":null } '
    )
    assert edited(CHAT, spaced) == b' { "messages":[ ], "x":1.0 } '
    assert edited(RESPONSES, b'{"memory_config":{},"auto_store":true }') == b"{ }"


def test_half_a_surrogate_pair_in_a_body_or_block_does_not_stand_in_the_way() -> None:
    body = chat(user("cut \ud83d"), user("Bud\ud83c\udf34get? \ude00"))
    dialect = speaking(CHAT)
    request = dialect.read(body)
    assert request.asked == "Bud🌴get? \ufffd"
    (edits,) = dialect.place(request, [Placing("block \udc00", Form.SYSTEM_MESSAGE)])
    result = apply(body, edits)
    assert talk_of(result)[-1]["content"] == "block ?"
    assert result.startswith(body[:-2])


@pytest.mark.parametrize("write", [json.dumps, lambda value: json.dumps(value, indent=2)])
def test_ten_thousand_messages_and_a_megabyte_in_one_are_no_matter(write: Callable[[object], str]) -> None:
    many = write({"messages": [user(f"number {n}") for n in range(10_000)]}).encode()
    assert talk_of(edited(CHAT, many))[-1]["content"] == f"number 9999\n\n{BLOCK}"
    long = write({"messages": [user('"words"\n' * 125_000)]}).encode()
    assert str(talk_of(edited(CHAT, long))[-1]["content"]).endswith(f'"words"\n\n\n{BLOCK}')


def test_edits_come_in_any_order_and_never_overlap() -> None:
    assert apply(b"abcdef", [Edit(4, 6, b""), Edit(1, 1, b"1"), Edit(1, 1, b"2"), Edit(2, 3, b"C")]) == b"a12bCd"
    for edits in ([Edit(0, 2, b""), Edit(1, 3, b"")], [Edit(5, 7, b"")]):
        with pytest.raises(ValueError, match="overlaps"):
            apply(b"abcdef", edits)


@pytest.mark.parametrize("form", list(Form))
@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_blocks_go_to_their_messages_all_at_once_as_one_by_one(path: str, form: Form) -> None:
    field, kind = KINDS[path]
    talk = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "1"},
        {"role": "user", "content": [{"type": kind, "text": "two"}]},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "three"},
    ]
    body = json.dumps({"model": "m", field: talk}, indent=1).encode()
    dialect = speaking(path)
    request = dialect.read(body)
    blocks = [Placing(f"block {back}", form, back) for back in (2, 0, 3, 1)]
    together = dialect.place(request, blocks)
    assert [list(edits) for edits in together] == [list(dialect.place(request, [one])[0]) for one in blocks]
    assert [bool(edits) for edits in together] == [True, True, False, True]
    said = json.dumps(json.loads(apply(body, [edit for edits in together for edit in edits])))
    places = ["one", "block 2", "two", "block 1", "three", "block 0"]
    assert sorted(places, key=said.index) == places
