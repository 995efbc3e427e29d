"""Requests and answers as client and LLM see them through a real Envoy, when all goes well."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from datetime import timedelta
from typing import Any

import brotli
import pytest
import zstandard
from aiohttp import ClientTimeout

from memory_extproc.model import Outcome
from tests.support.envoy import PATH_CHAT, Stand, Wiring, a_chat
from tests.support.sidecar import BLOCK, request_settings
from tests.support.upstream import ANSWER, RawUpstream, a_stream, an_answer, sse_events
from tests.support.waiting import until

pytestmark = [pytest.mark.envoy, pytest.mark.usefixtures("bodies")]

STREAM_CHUNKS = sse_events("It is ", "$10,000", ".")


async def test_memories_reach_the_model_and_the_answer_is_learned(stand: Stand) -> None:
    await stand.start()
    answer = await stand.chat()
    assert answer.status == 200
    assert json.loads(answer.body) == ANSWER
    assert answer.memory == "used;n=1;path=hybrid"
    assert answer.headers["cache-control"] == "private, no-store"
    sent = stand.upstream.got[0]
    assert BLOCK in sent.json["messages"][0]["content"]
    assert sent.framed
    assert stand.sidecar.exchanges(Outcome.USED) == 1
    (exchanged,) = stand.sidecar.learns.exchanged
    assert exchanged.asked == "What is my budget for Hawaii?"
    assert exchanged.answered == "It is $10,000."
    assert exchanged.injected == ("The budget for the Hawaii trip is $10,000",)
    assert exchanged.response_id == "chatcmpl-1"


async def test_a_turn_is_accepted_before_the_client_has_the_whole_answer(stand: Stand) -> None:
    await stand.start()
    await stand.chat()
    assert len(stand.sidecar.learns.exchanged) == 1  # no waiting: it was there first


@pytest.mark.parametrize(
    ("path", "body", "dialect", "answer"),
    [
        (
            "/v1/responses",
            {"model": "demo", "input": "What is my budget?"},
            "responses",
            {
                "id": "resp_1",
                "object": "response",
                "status": "completed",
                "output": [
                    {
                        "type": "message",
                        "role": "assistant",
                        "content": [{"type": "output_text", "text": "It is $10,000."}],
                    }
                ],
            },
        ),
        (
            "/v1/messages",
            {"model": "demo", "max_tokens": 9, "messages": [{"role": "user", "content": "What is my budget?"}]},
            "messages",
            {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "content": [{"type": "text", "text": "It is $10,000."}],
                "stop_reason": "end_turn",
            },
        ),
    ],
)
async def test_every_dialect_makes_the_round(
    stand: Stand, path: str, body: dict[str, Any], dialect: str, answer: dict[str, Any]
) -> None:
    stand.upstream.answers = an_answer(json.dumps(answer).encode())
    await stand.start()
    got = await stand.chat(body, path=path)
    assert got.memory == "used;n=1;path=hybrid"
    assert BLOCK in json.dumps(stand.upstream.got[0].json, ensure_ascii=False).replace("\\n", "\n")
    assert stand.sidecar.exchanges(Outcome.USED, dialect) == 1
    (exchanged,) = stand.sidecar.learns.exchanged
    assert (exchanged.asked, exchanged.answered) == ("What is my budget?", "It is $10,000.")
    assert exchanged.origin.dialect == dialect


async def test_streamed_chunks_arrive_as_the_model_sends_them(stand: Stand) -> None:
    """Each chunk is held by the model until the client has the one before: buffering anywhere would hang."""
    seen = [asyncio.Event() for _ in STREAM_CHUNKS]

    async def after_the_one_before(number: int) -> None:
        if number:
            await seen[number - 1].wait()

    stand.upstream.answers = a_stream(STREAM_CHUNKS, after_the_one_before)
    await stand.start()
    got = b""
    async with stand.session.post(
        stand.url + PATH_CHAT,
        json=a_chat(stream=True),
        headers={"x-authz-user-id": "ann"},
        timeout=ClientTimeout(total=10),
    ) as answer:
        async for chunk in answer.content.iter_any():
            got += chunk
            for number in range(len(STREAM_CHUNKS)):
                if len(got) >= sum(map(len, STREAM_CHUNKS[: number + 1])):
                    seen[number].set()
    assert got == b"".join(STREAM_CHUNKS)
    await stand.sidecar.learns.wait_for(1)
    assert stand.sidecar.learns.exchanged[0].answered == "It is $10,000."


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("br", brotli.compress),
        ("zstd", zstandard.ZstdCompressor().compress),
    ],
)
async def test_a_packed_request_gets_its_block_and_goes_out_unpacked(
    stand: Stand, encoding: str, pack: Any
) -> None:
    await stand.start()
    answer = await stand.send(
        "POST",
        PATH_CHAT,
        data=pack(json.dumps(a_chat()).encode()),
        headers={
            "content-type": "application/json",
            "content-encoding": encoding,
            "x-authz-user-id": "ann",
        },
    )
    assert answer.memory == "used;n=1;path=hybrid"
    sent = stand.upstream.got[0]
    assert "content-encoding" not in sent.headers
    assert sent.framed
    assert BLOCK in sent.json["messages"][0]["content"]


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [("gzip", gzip.compress), ("br", brotli.compress), ("zstd", zstandard.ZstdCompressor().compress)],
)
async def test_a_packed_answer_is_learned_and_passes_byte_for_byte(stand: Stand, encoding: str, pack: Any) -> None:
    packed = pack(json.dumps(ANSWER).encode())
    stand.upstream.answers = an_answer(packed, content_encoding=encoding)
    await stand.start()
    answer = await stand.chat()
    assert answer.body == packed
    assert answer.headers["content-encoding"] == encoding
    assert stand.sidecar.learns.exchanged[0].answered == "It is $10,000."


async def test_a_packed_stream_of_events_is_learned(stand: Stand) -> None:
    packer = zlib.compressobj(wbits=31)
    chunks = [packer.compress(chunk) + packer.flush(zlib.Z_SYNC_FLUSH) for chunk in STREAM_CHUNKS]
    chunks.append(packer.flush())
    stand.upstream.answers = a_stream(chunks, content_encoding="gzip")
    await stand.start()
    answer = await stand.chat(a_chat(stream=True))
    assert gzip.decompress(answer.body) == b"".join(STREAM_CHUNKS)
    await stand.sidecar.learns.wait_for(1)
    assert stand.sidecar.learns.exchanged[0].answered == "It is $10,000."


@pytest.mark.parametrize("trailers", ["SKIP", "SEND"])
async def test_an_answer_with_trailers_is_learned_whether_they_are_sent_to_us_or_not(
    stand: Stand, trailers: str
) -> None:
    body = json.dumps(ANSWER).encode()
    raw = (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n"
        + f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\nx-sum: 1\r\n\r\n"
    )  # fmt: skip
    stand.upstream = RawUpstream(raw)
    await stand.start(Wiring(response_trailers=trailers))
    answer = await stand.chat()
    assert answer.body == body
    await stand.sidecar.learns.wait_for(1)
    assert stand.sidecar.learns.exchanged[0].answered == "It is $10,000."


@pytest.mark.parametrize("trailers", ["SKIP", "SEND"])
async def test_a_request_with_trailers_is_whole_when_its_body_arrives(stand: Stand, trailers: str) -> None:
    """Envoy then sends the BUFFERED body without its end flag."""
    await stand.start(Wiring(request_trailers=trailers))
    body = json.dumps(a_chat()).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", stand.envoy.front)
    writer.write(
        f"POST {PATH_CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nx-authz-user-id: ann\r\n"
        f"connection: close\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n{len(body):x}\r\n".encode()
        + body
        + b"\r\n0\r\nx-sum: 1\r\n\r\n"
    )
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"x-memory-status: used;n=1" in answer
    assert BLOCK in stand.upstream.got[0].json["messages"][0]["content"]


async def test_a_client_that_waits_for_100_continue_gets_it(stand: Stand) -> None:
    await stand.start()
    answer = await stand.send(
        "POST", PATH_CHAT, json=a_chat(), headers={"x-authz-user-id": "ann"}, expect100=True
    )  # fmt: skip
    assert answer.memory == "used;n=1;path=hybrid"


async def test_the_routers_signals_reach_recall(stand: Stand) -> None:
    await stand.start()
    await stand.chat(x_vsr_matched_fact_check="needs_fact_check", x_memory_signal_tool="false")
    signals = stand.sidecar.recalls.wishes[0].signals
    assert (signals.fact, signals.tool, signals.greeting) == (True, False, None)


async def test_the_route_is_known_to_the_rules(stand: Stand) -> None:
    await stand.start(Wiring(attributes=("xds.route_name",)))
    await stand.chat()
    assert stand.sidecar.learns.exchanged[0].origin.route == "to-the-model"


async def test_a_request_behind_a_queue_gets_no_memory_and_is_learned_from(stand: Stand) -> None:
    """Envoy says when a request arrived. Without patience, every request but the quickest has queued."""
    stand.sidecar.options = request_settings(deadline=timedelta(), message_timeout=timedelta(hours=2))
    await stand.start(Wiring(attributes=("request.time",)))
    answers = await asyncio.gather(*(stand.chat(user=f"user-{number}") for number in range(60)))
    late = [answer for answer in answers if answer.memory.startswith("overloaded")]
    assert late
    assert all(answer.status == 200 for answer in answers)
    await stand.sidecar.learns.wait_for(60)
    assert len(stand.sidecar.recalls.wishes) == 60 - len(late)


@pytest.mark.parametrize("bodies", ["buffered"], indirect=True)
async def test_observability_mode_changes_nothing_and_still_learns(stand: Stand) -> None:
    await stand.start(Wiring(observability=True, request_body="STREAMED"))
    answer = await stand.chat()
    assert answer.status == 200
    assert answer.memory == ""
    assert stand.upstream.got[0].json == a_chat()
    await stand.sidecar.learns.wait_for(1)
    assert stand.sidecar.exchanges(Outcome.SHADOWED) == 1


async def test_every_byte_is_given_back_once_exchanges_are_over(stand: Stand) -> None:
    stand.upstream.answers = a_stream(STREAM_CHUNKS)
    await stand.start()
    await asyncio.gather(*(stand.chat(a_chat(stream=True), user=f"user-{n}") for n in range(20)))
    await until(lambda: stand.sidecar.sample("streams_open") == 0, "no stream is open")
    await until(lambda: stand.sidecar.held.bytes_in_use == 0, "no bytes are held")


async def test_an_answer_of_many_megabytes_passes_whole_and_is_not_kept(stand: Stand) -> None:
    text = "x" * (6 * 1024 * 1024)
    stand.upstream.answers = an_answer(json.dumps({**ANSWER, "padding": text}).encode())
    await stand.start()
    answer = await stand.chat()
    assert len(answer.body) > 6 * 1024 * 1024
    await until(lambda: stand.sidecar.sample("turns_total", outcome="capture_limit") == 1, "the turn is counted")
    assert stand.sidecar.learns.exchanged == []
