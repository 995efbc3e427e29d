"""Server-sent events by the standard's own rules, whatever the bytes' cuts."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_extproc.dialect import base
from memory_extproc.dialect.base import Answer, Event, EventStream
from memory_extproc.dialect.openai_chat import ChatAnswer, ChatCompletions
from memory_extproc.errors import BadBodyError


def events(*chunks: bytes) -> list[Event]:
    stream = EventStream()
    return [event for chunk in chunks for event in stream.feed(chunk)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"data: a\n\n", [Event("", b"a")]),
        (b"data:a\r\rdata: b\r\n\r\n", [Event("", b"a"), Event("", b"b")]),
        (b"data:  a \n\n", [Event("", b" a ")]),
        (b"event: x\ndata: 1\ndata: 2\n\n", [Event("x", b"1\n2")]),
        (b"event: x\n\ndata: 1\n\n", [Event("", b"1")]),
        (b": comment\nid: 7\nretry: 5\nunknown\ndata\n\n", [Event("", b"")]),
        (b"data: a:b\n\n", [Event("", b"a:b")]),
        (b"\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n", [Event("", b"a")]),
        (b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\ndata: b\n\n", [Event("", b"b")]),
        (b"\n\n\r\n\r", []),
        (b"data: unfinished\n", []),
        (b"event: \xff\ndata: a\n\n", [Event("\ufffd", b"a")]),
    ],
)
def test_lines_become_events_as_the_standard_says(text: bytes, expected: Sequence[Event]) -> None:
    assert events(text) == list(expected)
    assert events(*(text[at : at + 1] for at in range(len(text)))) == list(expected)


lines = st.lists(
    st.sampled_from([b"data", b"event", b":", b" ", b"a", b"\r", b"\n", b"\r\n", b"\n\n", b"\xef\xbb\xbf"])
)


@given(lines.map(b"".join), st.data())
def test_cuts_between_any_two_bytes_change_no_event(text: bytes, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(text)))
    again = data.draw(st.integers(cut, len(text)))
    assert events(text[:cut], text[cut:again], text[again:]) == events(text)


def test_one_event_holds_so_much_and_no_more() -> None:
    for chunks in ([b"data: 12345678"], [b"x" * 8, b"y" * 8], [b"data: 123\n", b"data: 123\n"]):
        with pytest.raises(BadBodyError, match="more than 12 bytes"):
            [list(stream.feed(chunk)) for stream in [EventStream(limit=12)] for chunk in chunks]


def test_keep_alives_and_finished_events_are_not_held() -> None:
    stream = EventStream(limit=12)
    for _ in range(100):
        list(stream.feed(b": ping\n\n: pong\ndata: 1\n\n"))


@pytest.mark.parametrize("content_type", ["text/event-stream", "application/json"])
def test_an_answer_beyond_any_size_is_not_complete(content_type: str) -> None:
    reader = base.reader(content_type, ChatAnswer(), limit=300)
    assert reader is not None
    choice = b'"choices":[{"index":0,"delta":{"content":"a"},"message":{"content":"a"},"finish_reason":"stop"}]}'
    whole = b"data: {" + choice + b"\n\n" if content_type == "text/event-stream" else b"{" + choice
    reader.feed(whole)
    assert reader.answer().complete
    reader.feed(b" " * 300)
    assert not reader.answer().complete


def test_an_event_beyond_the_bound_ends_the_reading_quietly() -> None:
    reader = base.reader("text/event-stream", ChatAnswer())
    assert reader is not None
    reader.feed(b"data: " + b"x" * (4 * 1024 * 1024))
    reader.feed(b"\n\ndata: [DONE]\n\n")
    assert not reader.ended
    assert not reader.answer().complete


def _told(*lines: str) -> Answer:
    made = ChatCompletions().reader("text/event-stream")
    assert made is not None
    for line in lines:
        made.feed(f"data: {line}\n\n".encode())
    return made.answer()


def _piece(text: str) -> str:
    return json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]})


END = json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})


def test_a_line_that_is_no_json_takes_nothing_from_the_answer_and_is_counted() -> None:
    answer = _told(_piece("one "), "ping", ": keep-alive", _piece("two"), END, "[DONE]")
    assert (answer.text, answer.complete, answer.damaged) == ("one two", True, 2)


def test_an_answer_with_a_damaged_event_is_learned_up_to_it() -> None:
    answer = _told(_piece("one "), _piece("lost")[:-4], _piece("two"), END, "[DONE]")
    assert (answer.text, answer.complete, answer.damaged) == ("one ", True, 1)
