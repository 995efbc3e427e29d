from __future__ import annotations

import gzip

from prometheus_client import CollectorRegistry

from memory_extproc.dialect.base import Answer
from memory_extproc.dialect.openai_chat import ChatCompletions
from memory_extproc.extproc.response_capture import SLICE, BodyMemoryBudget, Capture, capture
from memory_extproc.model import TurnOutcome
from memory_extproc.model.headers import Headers
from memory_extproc.observe.metrics import Metrics

ANSWER = b'{"id": "c1", "choices": [{"index": 0, "message": {"content": "Ten."}, "finish_reason": "stop"}]}'


def a_capture(
    encoding: str = "", limit: int = 1_000_000, process_bytes: int = 10_000_000
) -> tuple[Capture, BodyMemoryBudget]:
    held = BodyMemoryBudget(lambda: process_bytes, Metrics(CollectorRegistry(), "test"))
    headers = Headers([(":status", "200"), ("content-type", "application/json"), ("content-encoding", encoding)])
    captured = capture(ChatCompletions(), headers, limit, held)
    assert isinstance(captured, Capture)
    return captured, held


async def test_an_answer_in_pieces_is_read_whole_and_its_text_counts_until_it_is_learned() -> None:
    captured, held = a_capture()
    for start in range(0, len(ANSWER), 7):
        captured.add(ANSWER[start : start + 7])
    assert held.bytes_in_use == len(ANSWER)
    answer = await captured.read()
    assert isinstance(answer, Answer)
    assert (answer.text, answer.complete) == ("Ten.", True)
    assert held.bytes_in_use == len("Ten.")
    captured.forget()
    assert held.bytes_in_use == 0


async def test_an_answer_whose_text_is_larger_than_the_process_has_room_for_teaches_nothing() -> None:
    captured, held = a_capture("gzip", process_bytes=1000)
    captured.add(gzip.compress(ANSWER.replace(b"Ten.", b"T" * 1000)))
    assert await captured.read() is TurnOutcome.PROCESS_LIMIT
    assert held.bytes_in_use == 0


async def test_a_chunk_larger_than_a_slice_is_read_whole() -> None:
    captured, _ = a_capture()
    captured.add(ANSWER.replace(b"Ten.", b"T" * (3 * SLICE)))
    answer = await captured.read()
    assert isinstance(answer, Answer)
    assert len(answer.text) == 3 * SLICE


async def test_an_answer_that_unpacks_to_more_than_the_limit_is_dropped() -> None:
    captured, held = a_capture("gzip", limit=1000)
    captured.add(gzip.compress(bytes(100_000)))
    assert await captured.read() is TurnOutcome.CAPTURE_LIMIT
    assert held.bytes_in_use == 0


async def test_an_answer_not_packed_as_it_says_is_unreadable() -> None:
    captured, held = a_capture("gzip")
    captured.add(ANSWER)
    assert await captured.read() is TurnOutcome.UNREADABLE
    assert held.bytes_in_use == 0


async def test_what_was_dropped_stays_dropped() -> None:
    captured, held = a_capture(limit=10)
    captured.add(b"x" * 11)
    captured.add(b"x")
    assert held.bytes_in_use == 0
    assert await captured.read() is TurnOutcome.CAPTURE_LIMIT


async def test_when_the_process_is_full_captures_give_way() -> None:
    captured, held = a_capture(process_bytes=100)
    captured.add(b"x" * 70)
    captured.add(b"x" * 10)
    assert held.bytes_in_use == 0
    assert await captured.read() is TurnOutcome.PROCESS_LIMIT


async def test_letting_go_twice_gives_back_once() -> None:
    captured, held = a_capture()
    captured.add(b"x")
    captured.forget()
    captured.forget()
    assert held.bytes_in_use == 0
