"""Answers as providers send them, recorded in their real shapes, read whole and cut anywhere."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from memory_extproc.dialect.base import Answer, AnswerReader
from memory_extproc.dialect.registry import dialect_for

CASSETTES = Path(__file__).with_name("cassettes")
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
TYPES = {".sse": "text/event-stream; charset=utf-8", ".json": "application/json"}

EXPECTED = {
    "chat_openai.sse": Answer(
        text='Aloha 🌺 – "ten" thousand\n$ 🌴.', complete=True, response_id="chatcmpl-B9MBs8", prompt_tokens=19
    ),
    "chat_azure.sse": Answer(text="Once upon", complete=True, refused=True, response_id="chatcmpl-AZ1"),
    "chat_tool_calls.sse": Answer(complete=True, called_tools=True, response_id="chatcmpl-T1"),
    "chat_openrouter_error.sse": Answer(text="The first half", failed=True, response_id="gen-1"),
    "chat_without_done.sse": Answer(text="It is $10,000.", complete=True, response_id="r1", cached_tokens=64),
    "chat_gemini_like.sse": Answer(text="yes indeed", complete=True, response_id="g1"),
    "chat_parts_cr.sse": Answer(text="Bonjour", complete=True, truncated=True, response_id="m1"),
    "chat_cut_off.sse": Answer(text="The answer is", response_id="c1"),
    "chat_vllm_error.sse": Answer(failed=True),
    "chat_garbled.sse": Answer(text="one ", complete=True, response_id="x", damaged=1),
    "chat_audio.sse": Answer(text="Your budget is ten thousand.", complete=True, response_id="chatcmpl-A2"),
    "chat_audio.json": Answer(text="Your budget is ten thousand.", complete=True, response_id="chatcmpl-A1"),
    "chat_refusal.sse": Answer(complete=True, refused=True, response_id="f1"),
    "chat_openai.json": Answer(
        text='Your budget is "$10,000" {really} \\',
        complete=True,
        response_id="chatcmpl-123",
        prompt_tokens=1309,
        cached_tokens=1280,
    ),
    "chat_think.json": Answer(text="Final words", complete=True, truncated=True, response_id="t"),
    "chat_tool_calls.json": Answer(complete=True, called_tools=True, response_id="t"),
    "chat_error.json": Answer(failed=True),
    "chat_empty_choices.json": Answer(response_id="t"),
    "chat_cut_off.json": Answer(),
    "chat_finish_error.sse": Answer(text="Half", failed=True, response_id="t"),
    "chat_middle_think.json": Answer(text="Write <think>so</think>.", complete=True, response_id="t"),
    "chat_vllm_error.json": Answer(failed=True),
    "chat_function_call.json": Answer(complete=True, called_tools=True, response_id="t"),
    "chat_whole_message.sse": Answer(text="All at once", complete=True, refused=True, response_id="t"),
    "responses_openai.sse": Answer(
        text="Hi there 🌺", complete=True, response_id="resp_67c9", prompt_tokens=1400, cached_tokens=1152
    ),
    "responses_incomplete.sse": Answer(text="As much as", complete=True, truncated=True, response_id="resp_2"),
    "responses_failed.sse": Answer(failed=True, response_id="resp_3"),
    "responses_error.sse": Answer(failed=True),
    "responses_tool.sse": Answer(complete=True, called_tools=True, response_id="resp_4"),
    "responses_openai.json": Answer(text="One. Two.\nThree.", complete=True, response_id="resp_5"),
    "responses_refusal.json": Answer(complete=True, refused=True, response_id="resp_6"),
    "responses_done_only.sse": Answer(text="First\nSecond", complete=True, response_id="resp_9"),
    "responses_cancelled.json": Answer(failed=True, response_id="resp_10"),
    # In the background: its words come later, to a request that is no chat.
    "responses_queued.json": Answer(complete=True, response_id="resp_7"),
    "responses_filtered.json": Answer(complete=True, refused=True, response_id="resp_8"),
    "messages_claude.sse": Answer(
        text="Okay, 東京 it is", complete=True, response_id="msg_01X", prompt_tokens=2125, cached_tokens=2000
    ),
    "messages_tool.sse": Answer(text="Checking.", complete=True, called_tools=True, response_id="msg_02"),
    "messages_overloaded.sse": Answer(failed=True, response_id="msg_03"),
    "messages_claude.json": Answer(text="The sky is blue.", complete=True, truncated=True, response_id="msg_04"),
    "messages_error.json": Answer(failed=True),
    "messages_tool.json": Answer(complete=True, called_tools=True, response_id="msg_05"),
    "messages_refusal.json": Answer(complete=True, refused=True, response_id="msg_06"),
}
# Those whose last event or bracket says so; the others end with the stream alone.
WITHOUT_END = {
    "chat_without_done.sse",
    "chat_gemini_like.sse",  # its [DONE] lacks the newline that would end the event
    "chat_cut_off.sse",
    "chat_cut_off.json",
}


def reader_of(cassette: str) -> AnswerReader:
    dialect = dialect_for(PATHS[cassette.partition("_")[0]])
    assert dialect is not None
    reader = dialect.reader(TYPES[Path(cassette).suffix])
    assert reader is not None
    return reader


def read(cassette: str, *chunks: bytes) -> Answer:
    reader = reader_of(cassette)
    for chunk in chunks:
        reader.feed(chunk)
    return reader.answer()


def recorded(cassette: str) -> bytes:
    return (CASSETTES / cassette).read_bytes()


def test_every_cassette_has_an_expected_answer() -> None:
    assert {path.name for path in CASSETTES.iterdir()} == set(EXPECTED)


@pytest.mark.parametrize("cassette", EXPECTED)
def test_a_recorded_answer_is_read_as_its_provider_meant_it(cassette: str) -> None:
    assert read(cassette, recorded(cassette)) == EXPECTED[cassette]


@pytest.mark.no_cover
@pytest.mark.parametrize("cassette", EXPECTED)
def test_an_answer_cut_in_two_at_any_byte_is_the_same_answer(cassette: str) -> None:
    whole = recorded(cassette)
    for cut in range(len(whole)):
        assert read(cassette, whole[:cut], whole[cut:]) == EXPECTED[cassette], cut


@pytest.mark.parametrize("cassette", EXPECTED)
def test_an_answer_that_comes_byte_by_byte_is_the_same_answer(cassette: str) -> None:
    whole = recorded(cassette)
    assert read(cassette, *(whole[at : at + 1] for at in range(len(whole)))) == EXPECTED[cassette]


@given(cassette=st.sampled_from(sorted(EXPECTED)), seeds=st.lists(st.integers(0, 4000), max_size=12))
def test_an_answer_cut_anywhere_any_number_of_times_is_the_same_answer(cassette: str, seeds: list[int]) -> None:
    whole = recorded(cassette)
    cuts = sorted({0, len(whole), *(seed % len(whole) for seed in seeds)})
    chunks = [whole[start:end] for start, end in itertools.pairwise(cuts)]
    assert read(cassette, *chunks, b"") == EXPECTED[cassette]


@pytest.mark.parametrize("cassette", EXPECTED)
def test_the_end_is_seen_with_its_last_byte_and_not_before(cassette: str) -> None:
    reader = reader_of(cassette)
    whole = recorded(cassette)
    seen_at = None
    for at in range(len(whole)):
        reader.feed(whole[at : at + 1])
        if reader.ended and seen_at is None:
            seen_at = at
    if cassette in WITHOUT_END:
        assert seen_at is None
    else:
        assert seen_at is not None
        rest = whole[seen_at + 1 :].strip()
        # An error is an end, whatever a provider may send behind it.
        assert not rest or EXPECTED[cassette].failed


@pytest.mark.parametrize("cassette", [name for name in EXPECTED if EXPECTED[name].complete])
def test_a_complete_answer_is_not_complete_before_its_last_words(cassette: str) -> None:
    whole = recorded(cassette)
    early = read(cassette, whole[: len(whole) // 3])
    assert not early.complete
    assert EXPECTED[cassette].text.startswith(early.text)


@pytest.mark.parametrize("cassette", EXPECTED)
def test_asking_for_the_answer_midway_changes_nothing(cassette: str) -> None:
    reader = reader_of(cassette)
    whole = recorded(cassette)
    for at in range(0, len(whole), 97):
        reader.feed(whole[at : at + 97])
        reader.answer()
    assert reader.answer() == EXPECTED[cassette]


@given(st.binary(max_size=200), st.sampled_from(sorted(PATHS.values())), st.sampled_from(sorted(TYPES.values())))
@example(b"data:[DONE]", "/v1/chat/completions", "text/event-stream")
def test_no_bytes_make_a_reader_raise_or_say_anything(answer: bytes, path: str, content_type: str) -> None:
    dialect = dialect_for(path)
    assert dialect is not None
    reader = dialect.reader(content_type)
    assert reader is not None
    reader.feed(answer)
    assert reader.answer().text == ""


ODD = [None, 1, -1.5, True, "x", [], [1], {}, {"index": "0"}, {"type": 7}, [{"text": 5, "type": "text"}]]
FIELDS = ["id", "choices", "delta", "message", "content", "type", "index", "output", "response", "status"]
FIELDS += ["item", "content_block", "incomplete_details", "output_index", "stop_reason", "finish_reason", "error"]
KINDS = ["response.output_text.delta", "response.completed", "response.output_item.done", "content_block_delta"]
KINDS += ["content_block_start", "message_start", "message_delta", "response.output_text.done", "message"]


@given(
    st.recursive(
        st.sampled_from(ODD),
        lambda inner: (
            st.dictionaries(st.sampled_from(FIELDS), inner | st.sampled_from(KINDS)) | st.lists(inner, max_size=3)
        ),
    ).filter(lambda value: isinstance(value, dict)),
    st.sampled_from(sorted(PATHS.values())),
)
@example({"output": [{"type": {}}]}, "/v1/responses")
def test_no_json_of_wrong_types_makes_a_reader_raise(document: object, path: str) -> None:
    dialect = dialect_for(path)
    assert dialect is not None
    text = json.dumps(document).encode()
    for content_type, answer in ((TYPES[".json"], text), (TYPES[".sse"], b"data: " + text + b"\n\n")):
        reader = dialect.reader(content_type)
        assert reader is not None
        reader.feed(answer)
        reader.answer()
