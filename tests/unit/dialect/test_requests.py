"""A request read: who said what, what was asked last, what is wrong with a body and where."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_extproc.dialect.base import BodyControls, ChatRequest, Form, Placing
from memory_extproc.dialect.json_spans import MAX_CONTAINERS, MAX_DEPTH, apply
from memory_extproc.dialect.messages import removals
from memory_extproc.dialect.registry import dialect_for
from memory_extproc.errors import BadBodyError
from memory_extproc.model import MemoryType, Message, Role

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"


def read(path: str, body: bytes | Mapping[str, object]) -> ChatRequest:
    dialect = dialect_for(path)
    assert dialect is not None
    return dialect.read(body if isinstance(body, bytes) else json.dumps(body).encode())


def user(content: object, **more: object) -> dict[str, object]:
    return {"role": "user", "content": content, **more}


def assistant(content: object, **more: object) -> dict[str, object]:
    return {"role": "assistant", "content": content, **more}


TOOL = {"role": "tool", "tool_call_id": "c", "content": "42"}


def test_a_chat_is_its_history_and_the_callers_last_words() -> None:
    request = read(
        CHAT,
        {
            "model": "gpt-4o",
            "messages": [
                {"role": "system", "content": "Be brief"},
                user("Hi", name="ann"),
                assistant([{"type": "text", "text": "Hello"}, {"type": "refusal", "refusal": "no"}]),
                user(""),
                assistant(None),
                {"role": "critic", "content": {"of": "another kind"}},
                user(
                    [
                        {"type": "image_url", "image_url": {"url": "x"}},
                        {"type": "text", "text": "What"},
                        {"type": "text", "text": "is this?"},
                    ]
                ),
            ],
            "stream": True,
            "max_tokens": 1000,
            "max_completion_tokens": 500.0,
            "tools": [{"type": "function", "function": {"name": "f"}}],
        },
    )
    assert request.model == "gpt-4o"
    assert request.history == (Message(Role.USER, "Hi"), Message(Role.ASSISTANT, "Hello"))
    assert request.asked == "What\nis this?"
    assert request.user_at == (1, 6)
    assert (request.stream, request.tools, request.has_system, request.developer) == (True, True, True, False)
    assert request.max_tokens == 500
    assert not request.ends_in_tool_result


def test_in_a_tool_loop_the_callers_last_words_are_asked_and_nothing_after_is_history() -> None:
    messages = [user("Hi"), assistant("Hello"), user("Weather?"), assistant("Let me look", tool_calls=[{}]), TOOL]
    for tail in ([], [{"role": "system", "content": "Keep going"}]):
        request = read(CHAT, {"messages": [*messages, *tail]})
        assert request.asked == "Weather?"
        assert [message.text for message in request.history] == ["Hi", "Hello"]
        assert request.ends_in_tool_result


def test_without_a_user_nothing_was_asked() -> None:
    for messages in ([], [{"role": "system", "content": "x"}], [TOOL]):
        request = read(CHAT, {"messages": messages})
        assert (request.asked, request.history, request.user_at) == ("", (), ())


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        (CHAT, {"messages": [{"role": "system", "content": "Be brief"}, user("Hi")]}, "Be brief"),
        (
            CHAT,
            {"messages": [{"role": "developer", "content": [{"type": "text", "text": "Be"}]}, user("Hi"),
                          {"role": "system", "content": "brief"}]},
            "Be\nbrief",
        ),
        (RESPONSES, {"instructions": "Be", "input": [{"role": "developer", "content": "brief"}]}, "Be\nbrief"),
        (RESPONSES, {"instructions": [{"role": "system", "content": "Be brief"}], "input": "Hi"}, ""),
        (MESSAGES, {"system": "Be brief", "messages": [user("Hi")]}, "Be brief"),
        (
            MESSAGES,
            {"system": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief"}], "messages": []},
            "Be\nbrief",
        ),
        (CHAT, {"messages": [user("Hi")]}, ""),
        (CHAT, {"messages": [{"role": "system", "content": None}, {"role": "system", "content": "b" * 3000}]},
         "b" * 2000),
        (CHAT, {"messages": [{"role": "system", "content": "a" * 1999}, {"role": "system", "content": "b"}]},
         "a" * 1999 + "\n"),
    ],
)  # fmt: skip
def test_the_beginning_of_the_clients_instructions_is_known(
    path: str, body: Mapping[str, object], expected: str
) -> None:
    assert read(path, body).system == expected


def test_limits_below_zero_mean_no_limit() -> None:
    assert read(CHAT, {"messages": [], "max_tokens": -1}).max_tokens is None
    assert read(CHAT, {"messages": [], "max_tokens": None, "stream": None}).max_tokens is None


def test_a_responses_string_is_one_user_message() -> None:
    request = read(
        RESPONSES,
        {"input": "Budget?", "instructions": "Be brief", "previous_response_id": "resp_1", "max_output_tokens": 9},
    )
    assert (request.asked, request.history, request.user_at) == ("Budget?", (), (0,))
    assert (request.has_system, request.previous_response_id, request.max_tokens) == (True, "resp_1", 9)


@pytest.mark.parametrize("conversation", ["conv_1", {"id": "conv_1"}])
def test_a_conversation_that_the_provider_keeps_is_continued(conversation: object) -> None:
    request = read(RESPONSES, {"input": "Budget?", "conversation": conversation})
    assert (request.conversation, request.previous_response_id) == ("conv_1", "")
    assert request.continues
    assert request.continues != read(RESPONSES, {"input": "Budget?", "previous_response_id": "conv_1"}).continues
    assert read(RESPONSES, {"input": "Budget?", "conversation": None}).continues == ""


def test_responses_items_of_all_kinds_are_read_for_their_words() -> None:
    request = read(
        RESPONSES,
        {
            "input": [
                {"role": "developer", "content": "Be brief"},
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
                {"type": "reasoning", "summary": []},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello"}]},
                user([{"type": "input_image", "image_url": "x"}, {"type": "input_text", "text": "Weather?"}]),
                {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"},
                {"type": "function_call_output", "call_id": "c", "output": "42"},
            ]
        },
    )
    assert [message.text for message in request.history] == ["Hi", "Hello"]
    assert request.asked == "Weather?"
    assert request.ends_in_tool_result
    assert request.developer
    assert request.has_system


def test_a_tools_result_alone_asks_nothing() -> None:
    body = {"previous_response_id": "r", "input": [{"type": "custom_tool_call_output", "output": "1"}]}
    request = read(RESPONSES, body)
    assert (request.asked, request.user_at, request.ends_in_tool_result) == ("", (), True)


def test_anthropics_tool_results_are_the_tools_and_words_beside_them_the_callers() -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": "42"}
    loop = [user("Weather?"), assistant([{"type": "tool_use", "id": "t", "name": "f", "input": {}}])]
    request = read(MESSAGES, {"system": "Be brief", "messages": [*loop, user([result])], "max_tokens": 5})
    assert (request.asked, request.ends_in_tool_result, request.user_at) == ("Weather?", True, (0,))
    assert (request.has_system, request.max_tokens) == (True, 5)

    request = read(MESSAGES, {"messages": [*loop, user([result, {"type": "text", "text": "And tomorrow?"}])]})
    assert (request.asked, request.ends_in_tool_result, request.user_at) == ("And tomorrow?", False, (0, 2))


def test_a_coding_agents_reminder_is_not_the_callers_words() -> None:
    reminder = {"type": "text", "text": "<system-reminder>\nKeep going\n</system-reminder>\n"}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "42"}
    request = read(
        MESSAGES, {"messages": [user([reminder, {"type": "text", "text": "Fix it"}]), user([result, reminder])]}
    )
    assert (request.asked, request.ends_in_tool_result, request.has_system) == ("Fix it", True, False)


WRONG = [
    (CHAT, b"", "not JSON"),
    (CHAT, b"[]", "body: expected object, found list"),
    (CHAT, b"null", "body: expected object, found null"),
    (CHAT, b'{"messages": []} x', "trailing characters"),
    (CHAT, b'{"messages": [], "x": NaN}', "not JSON"),
    (CHAT, b'{"messages": [], "x": 1e999}', "a number beyond any range"),
    (CHAT, b'{"a": "\xff"}', "not UTF-8 at byte 7"),
    (CHAT, b'\xef\xbb\xbf{"a": "\xff"}', "not UTF-8 at byte 10"),
    (CHAT, b'{"a": "\\ud83d", "b": "\xff"}', "not UTF-8 at byte 22"),
    (CHAT, b'{"a": "\\ud83d", "b": }', "not JSON"),
    (CHAT, b'{"a": ' + b"[" * 100_000, "nested deeper than"),
    (CHAT, b"{" * 100_000, "nested deeper than"),
    (CHAT, b"{}", "messages: expected list, found null"),
    (CHAT, {"messages": "hi"}, "messages: expected list, found string"),
    (CHAT, {"messages": [user("a"), 7]}, "messages[1]: expected object, found number"),
    (CHAT, {"messages": [{"role": 1}]}, "messages[0].role: expected string, found number"),
    (CHAT, {"messages": [user(5)]}, "messages[0].content: expected string or list, found number"),
    (CHAT, {"messages": [user(["x"])]}, "messages[0].content[0]: expected object, found string"),
    (CHAT, {"messages": [user([{"type": []}])]}, "messages[0].content[0].type: expected string, found list"),
    (
        CHAT,
        {"messages": [user([{"type": "text", "text": {}}])]},
        "messages[0].content[0].text: expected string, found object",
    ),
    (CHAT, {"messages": [], "model": True}, "model: expected string, found boolean"),
    (CHAT, {"messages": [], "stream": "yes"}, "stream: expected boolean, found string"),
    (CHAT, {"messages": [], "max_tokens": 1.5}, "max_tokens: expected whole number, found fraction"),
    (CHAT, {"messages": [], "max_tokens": True}, "max_tokens: expected number, found boolean"),
    (CHAT, {"messages": [], "tools": {}}, "tools: expected list, found object"),
    (RESPONSES, {"input": 5}, "input: expected string or list, found number"),
    (RESPONSES, {"input": ["x"]}, "input[0]: expected object, found string"),
    (RESPONSES, {"input": [user(1.5)]}, "input[0].content: expected string or list, found number"),
    (RESPONSES, {"input": "x", "previous_response_id": 5}, "previous_response_id: expected string, found number"),
    (RESPONSES, {"input": "x", "conversation": 5}, "conversation: expected string, found number"),
    (RESPONSES, {"input": "x", "conversation": {"id": 5}}, "conversation.id: expected string, found number"),
    (MESSAGES, b"{}", "messages: expected list, found null"),
    (MESSAGES, {"messages": [5]}, "messages[0]: expected object, found number"),
    (MESSAGES, {"messages": [user([5])]}, "messages[0].content[0]: expected object, found number"),
    (MESSAGES, {"messages": [], "system": 5}, "system: expected string or list, found number"),
    (CHAT, {"messages": [], "memory_config": []}, "memory_config: expected object, found list"),
    (
        CHAT,
        {"messages": [], "memory_config": {"enabled": 1}},
        "memory_config.enabled: expected boolean, found number",
    ),
    (CHAT, {"messages": [], "memory_config": {"memory_types": "x"}}, "memory_config.memory_types: expected list"),
    (
        CHAT,
        {"messages": [], "memory_config": {"memory_types": [1]}},
        "memory_config.memory_types[0]: expected string",
    ),
    (
        CHAT,
        {"messages": [], "memory_config": {"memory_types": ["x"]}},
        "memory_config.memory_types[0]: expected one of semantic",
    ),
    (
        CHAT,
        {"messages": [], "memory_config": {"retrieval_limit": "5"}},
        "memory_config.retrieval_limit: expected number",
    ),
    (
        CHAT,
        {"messages": [], "memory_config": {"retrieval_limit": -1}},
        "memory_config.retrieval_limit: expected 0 or more",
    ),
    (
        CHAT,
        {"messages": [], "memory_config": {"similarity_threshold": 2}},
        "memory_config.similarity_threshold: expected 0 to 1",
    ),
    (CHAT, {"messages": [], "memory_context": {"project_id": 5}}, "memory_context.project_id: expected string"),
    (CHAT, {"messages": [], "auto_store": "no"}, "auto_store: expected boolean, found string"),
]


@pytest.mark.parametrize(("path", "body", "said"), WRONG, ids=lambda value: value if isinstance(value, str) else "")
def test_a_bad_body_is_refused_with_what_is_wrong_and_where(
    path: str, body: bytes | dict[str, object], said: str
) -> None:
    with pytest.raises(BadBodyError) as refused:
        read(path, body)
    assert said in str(refused.value)


def test_nesting_is_read_to_its_bound_and_refused_beyond() -> None:
    def nested(levels: int) -> bytes:
        inner = levels - 1
        return b'{"messages": [], "x": ' + b"[" * inner + b'"]"' + b"]" * inner + b"}"

    assert read(CHAT, nested(MAX_DEPTH)).asked == ""
    with pytest.raises(BadBodyError, match="nested deeper"):
        read(CHAT, nested(MAX_DEPTH + 1))


def test_lists_and_objects_are_counted_without_those_in_strings() -> None:
    def holding(count: int) -> bytes:
        return b'{"messages": [], "x": ["\\"[[[[", ' + b", ".join([b"{}"] * (count - 3)) + b"]}"

    assert read(CHAT, holding(MAX_CONTAINERS)).asked == ""
    with pytest.raises(BadBodyError, match="more than 100,000 lists and objects"):
        read(CHAT, holding(MAX_CONTAINERS + 1))


@given(
    st.binary(max_size=80) | st.text('{}[]",:\\u d8 09"a', max_size=40).map(str.encode),
    st.sampled_from([CHAT, RESPONSES, MESSAGES]),
)
def test_any_bytes_are_read_or_refused(body: bytes, path: str) -> None:
    try:
        read(path, body)
    except BadBodyError:
        assert removals(body) == () or json.loads(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages": [' + b"[" * 50 + b"]" * 50 + b",[]" * 200 + b"]}" + b" " * 4_000_000,
        b"[]" * 200 + b"a" * 2_000_000 + b'"' + b"a" * 2_000_000,
        b'{"messages": [], "x": "' + b'\\"' * 2_000_000,
        b'{"\\ud83d' + b"{" * 4_000_000,
        b'{"messages": ' + b" " * 4_000_000,
    ],
    ids=["spaces behind", "open string", "escaped quotes", "brackets in an open string", "no value"],
)
def test_no_four_megabytes_of_nonsense_take_seconds(body: bytes) -> None:
    began = time.process_time()
    with pytest.raises(BadBodyError):
        read(CHAT, body)
    assert time.process_time() - began < 5


ODD: list[object] = [None, 1, -1.5, True, "x", "user", "text", "tool_result", [], {}]
FIELDS = [
    "messages",
    "input",
    "role",
    "content",
    "type",
    "text",
    "tools",
    "system",
    "instructions",
    "memory_config",
]


@given(
    st.recursive(
        st.sampled_from(ODD),
        lambda inner: st.dictionaries(st.sampled_from(FIELDS), inner) | st.lists(inner, max_size=3),
    ),
    st.sampled_from([CHAT, RESPONSES, MESSAGES]),
    st.sampled_from(Form),
)
def test_json_of_wrong_types_is_read_and_edited_or_refused(value: object, path: str, form: Form) -> None:
    body = json.dumps({"messages": [value], "input": [value], "memory_context": value}).encode()
    dialect = dialect_for(path)
    assert dialect is not None
    try:
        request = dialect.read(body)
    except BadBodyError:
        return
    (placed,) = dialect.place(request, [Placing("the block", form)])
    edits = [*placed, *request.removals]
    assert "memory_context" not in json.loads(apply(body, edits))


def test_an_error_never_repeats_what_a_person_wrote() -> None:
    for body in (b'{"messages": [{"role": "user", "content": ["my secret"]}]}', b'{"my secret": tru}'):
        with pytest.raises(BadBodyError) as refused:
            read(CHAT, body)
        assert "secret" not in str(refused.value)


def test_the_bodys_own_wishes_are_read() -> None:
    request = read(
        CHAT,
        {
            "messages": [],
            "memory_config": {
                "enabled": False,
                "memory_types": ["semantic", "procedural"],
                "retrieval_limit": 3.0,
                "similarity_threshold": 1,
                "auto_store": True,
                "unknown": {},
            },
            "memory_context": {"project_id": "p", "user_id": "ann"},
        },
    )
    assert request.controls == BodyControls(
        enabled=False,
        types=frozenset({MemoryType.SEMANTIC, MemoryType.PROCEDURAL}),
        limit=3,
        threshold=1.0,
        store=True,
        project="p",
        user="ann",
    )


@pytest.mark.parametrize(
    ("inner", "outer", "store"),
    [(None, None, None), (True, None, True), (None, True, True), (True, False, False), (False, True, False)],
)
def test_a_no_to_storing_anywhere_is_a_no(inner: bool | None, outer: bool | None, store: bool | None) -> None:
    body: Mapping[str, object] = {"messages": [], "auto_store": outer, "memory_config": {"auto_store": inner}}
    assert read(CHAT, body).controls.store is store


def test_our_fields_leave_a_body_even_when_they_make_no_sense() -> None:
    body = b'{"messages": [], "memory_config": 5, "n": 1.0}'
    assert apply(body, removals(body)) == b'{"messages": [], "n": 1.0}'
    for without in (b"[1]", b"{", b'{"n": 1}'):
        assert removals(without) == ()


def test_a_request_shows_nobody_its_words() -> None:
    assert "secret" not in repr(read(CHAT, {"messages": [user("secret"), assistant("secret"), user("secret")]}))


def test_a_prompts_tokens_count_everything_the_model_is_shown() -> None:
    words = "four letter word " * 100
    plain = read(CHAT, {"messages": [user(words)]}).prompt_tokens
    assert 400 < plain < 500
    assert read(CHAT, {"messages": [user([{"type": "text", "text": words}])]}).prompt_tokens > plain
    assert read(CHAT, {"messages": [user(words)], "tools": [{"description": words}]}).prompt_tokens > 2 * plain - 20
    for path, body in (
        (RESPONSES, {"input": words, "instructions": words}),
        (MESSAGES, {"messages": [user(words)], "system": words}),
    ):
        assert read(path, body).prompt_tokens > 2 * plain - 20


def test_a_picture_weighs_as_a_picture_and_not_as_its_base64() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 400_000}}
    assert (
        read(CHAT, {"messages": [user([picture, {"type": "text", "text": "this?", "n": None}])]}).prompt_tokens
        < 2_000
    )
    long_link = {"type": "tool_result", "data": "words and more " * 2_000}
    assert read(MESSAGES, {"messages": [user([long_link])]}).prompt_tokens > 7_000
