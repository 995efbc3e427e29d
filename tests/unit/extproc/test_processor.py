"""The pump without sockets: what Envoy sends in, what it would get."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import grpc
import pytest

from memory_extproc.extproc.gen import ext_proc_pb2 as pb
from memory_extproc.extproc.processor import BodyMode, Processor, Stream
from memory_extproc.model import Outcome
from tests.support.exchange import ANSWER, CHAT, USED, Bench

DUPLEX, BUFFERED, STREAMED = BodyMode.FULL_DUPLEX_STREAMED, BodyMode.BUFFERED, BodyMode.STREAMED


class AbortedError(Exception):
    """As grpc.aio ends a handler that aborts."""


class Call:
    """Envoy's end of one stream."""

    def __init__(self, broken_after: int = 1_000) -> None:
        self.written: list[pb.ProcessingResponse] = []
        self.aborted: grpc.StatusCode | None = None
        self._left = broken_after

    async def write(self, response: bytes) -> None:
        self._left -= 1
        if self._left < 0:
            raise RuntimeError("the connection is gone")
        self.written.append(pb.ProcessingResponse.FromString(response))

    async def abort(self, code: grpc.StatusCode, _: str) -> None:
        self.aborted = code
        raise AbortedError

    def invocation_metadata(self) -> None:
        return None


def header(name: str, value: str) -> pb.HeaderValue:
    return pb.HeaderValue(key=name, raw_value=value.encode())


def headers(pairs: Any, *, last: bool = False) -> pb.HttpHeaders:
    return pb.HttpHeaders(headers=pb.HeaderMap(headers=[header(*pair) for pair in pairs]), end_of_stream=last)


def opening(asked: int, answered: int) -> pb.ProcessingRequest:
    modes = pb.ProtocolConfiguration(
        request_body_mode=cast("Any", asked),
        response_body_mode=cast("Any", answered),
    )
    return pb.ProcessingRequest(request_headers=headers(CHAT.headers), protocol_config=modes)


def asking(data: bytes, *, last: bool) -> pb.ProcessingRequest:
    return pb.ProcessingRequest(request_body=pb.HttpBody(body=data, end_of_stream=last))


def answer() -> list[pb.ProcessingRequest]:
    head = headers([(":status", "200"), ("content-type", "application/json")])
    return [
        pb.ProcessingRequest(response_headers=head),
        pb.ProcessingRequest(response_body=pb.HttpBody(body=ANSWER, end_of_stream=True)),
    ]


async def pumped(bench: Bench, call: Call, messages: Sequence[pb.ProcessingRequest]) -> None:
    async def requests() -> AsyncIterator[bytes]:
        for message in messages:
            yield message.SerializeToString()

    try:
        await Processor(bench.deps).process(requests(), cast("Stream", call))
    finally:
        await bench.background.__aexit__()


def passed_on(call: Call, kind: str) -> bytes:
    bodies = [getattr(each, kind) for each in call.written if each.WhichOneof("response") == kind]
    return b"".join(each.response.body_mutation.streamed_response.body for each in bodies)


@pytest.mark.parametrize(
    ("asked", "answered", "words"),
    [
        (BUFFERED, STREAMED, ("buffered", "streamed")),
        (DUPLEX, DUPLEX, ("full_duplex_streamed",) * 2),
        (DUPLEX, STREAMED, ("full_duplex_streamed", "streamed")),
        (BUFFERED, DUPLEX, ("buffered", "full_duplex_streamed")),
    ],
)
async def test_each_direction_has_the_mode_that_envoy_says(
    asked: int, answered: int, words: tuple[str, str]
) -> None:
    bench, call = Bench(), Call()
    await pumped(bench, call, [opening(asked, answered), asking(b"{}", last=True), *answer()])
    assert [each.WhichOneof("response") for each in call.written] == [
        "request_headers", "request_body", "response_headers", "response_body",
    ]  # fmt: skip
    asked_body, answered_body = (
        call.written[place].request_body if place == 1 else call.written[place].response_body for place in (1, 3)
    )
    new = asked_body.response.body_mutation
    assert (new.streamed_response.body if asked is DUPLEX else new.body) == USED.body
    assert passed_on(call, "response_body") == (ANSWER if answered is DUPLEX else b"")
    assert not answered_body.response.body_mutation.body
    assert len(bench.learns.exchanged) == 1
    assert bench.count("streams", request_body=words[0], response_body=words[1]) == 1


def chunks(*pieces: bytes) -> list[pb.ProcessingRequest]:
    head = headers([(":status", "200"), ("content-type", "application/json")])
    bodies = [pb.HttpBody(body=piece, end_of_stream=left == 0) for left, piece in enumerate(pieces[::-1])][::-1]
    return [
        pb.ProcessingRequest(response_headers=head),
        *(pb.ProcessingRequest(response_body=body) for body in bodies),
    ]


async def test_every_piece_of_an_answer_is_answered_with_nothing_and_read_at_the_end() -> None:
    bench, call = Bench(), Call()
    pieces = [ANSWER[at : at + 7] for at in range(0, len(ANSWER), 7)]
    await pumped(bench, call, [opening(BUFFERED, STREAMED), asking(b"{}", last=True), *chunks(*pieces)])
    replies = [each for each in call.written if each.WhichOneof("response") == "response_body"]
    assert len(replies) == len(pieces)
    assert all(not each.response_body.response.HasField("body_mutation") for each in replies)
    assert [exchanged.answered for exchanged in bench.learns.exchanged] == ["Ten."]


async def test_the_stream_of_an_answer_that_is_too_long_to_learn_from_ends() -> None:
    bench, call = Bench(answer_capture=20), Call()
    await pumped(
        bench, call, [opening(BUFFERED, STREAMED), asking(b"{}", last=True), *chunks(*[b"0123456789"] * 9)]
    )
    assert [each.WhichOneof("response") for each in call.written].count("response_body") == 3
    assert call.aborted is None
    assert bench.count("turns", outcome="capture_limit") == 1


async def test_a_message_that_cannot_be_read_ends_the_stream_cleanly() -> None:
    bench, call = Bench(), Call()

    async def requests() -> AsyncIterator[bytes]:
        yield b"\xff\xff\xff"

    await Processor(bench.deps).process(requests(), cast("Stream", call))
    assert (call.written, call.aborted) == ([], None)
    assert bench.count("stream_faults", kind="bug") == 1


async def test_a_mode_of_a_later_envoy_is_counted_without_a_label_of_its_own() -> None:
    bench, call = Bench(), Call()
    await pumped(bench, call, [opening(17, STREAMED)])
    assert bench.count("streams", request_body="other", response_body="streamed") == 1
    assert bench.count("stream_faults", kind="unsupported_mode") == 1


async def test_a_bug_costs_the_memories_and_not_the_body() -> None:
    bench, call = Bench(RuntimeError("a bug")), Call()
    body = [asking(b"{", last=False), asking(b"}", last=True)]
    await pumped(bench, call, [opening(DUPLEX, DUPLEX), *body, *answer()])
    assert passed_on(call, "request_body") == b"{}"
    assert passed_on(call, "response_body") == ANSWER
    assert call.aborted is None
    assert bench.count("stream_faults", kind="bug") == 1
    assert bench.outcome(Outcome.UNAVAILABLE) == 1


async def test_a_bug_beside_buffered_bodies_ends_the_stream_cleanly() -> None:
    bench, call = Bench(RuntimeError("a bug")), Call()
    await pumped(bench, call, [opening(BUFFERED, STREAMED), asking(b"{}", last=True), *answer()])
    assert [each.WhichOneof("response") for each in call.written] == ["request_headers"]
    assert call.aborted is None
    assert bench.outcome(Outcome.UNAVAILABLE) == 1


async def test_a_body_that_cannot_be_given_back_ends_in_an_error_and_not_in_half_a_request() -> None:
    """Envoy would send on what it has, as if it were all."""
    bench, call = Bench(), Call(broken_after=1)
    with pytest.raises(AbortedError):
        await pumped(bench, call, [opening(DUPLEX, STREAMED), asking(b"{}", last=True), *answer()])
    assert call.aborted is grpc.StatusCode.UNAVAILABLE
    assert bench.held.bytes_in_use == 0


async def test_a_kind_of_message_not_known_in_the_middle_of_a_body_is_an_error_too() -> None:
    bench, call = Bench(), Call()
    later = pb.ProcessingRequest.FromString(b"\x9a\x06\x02hi")
    with pytest.raises(AbortedError):
        await pumped(bench, call, [opening(DUPLEX, DUPLEX), asking(b"{", last=False), later])
    assert bench.held.bytes_in_use == 0


async def test_after_a_request_that_is_not_ours_the_stream_ends_where_nothing_is_lost() -> None:
    bench, call = Bench(), Call()
    first = opening(DUPLEX, STREAMED)
    first.request_headers.CopyFrom(headers([(":method", "POST"), (":path", "/v1/embeddings")]))
    body = [asking(b"a", last=False), asking(b"b", last=True)]
    await pumped(bench, call, [first, *body, *answer()])
    assert passed_on(call, "request_body") == b"ab"
    assert [each.WhichOneof("response") for each in call.written][-1] == "request_body"
    assert call.aborted is None
