"""Behaviour of FULL_DUPLEX_STREAMED alone, through a real Envoy. Behaviour of every mode is tested in
test_wire_answers, test_wire_passes and test_wire_faults, in this one too."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import aiohttp
import pytest
from aiohttp import web

from memory_extproc.model import Outcome
from tests.support.canned import Before
from tests.support.envoy import FULL_DUPLEX, PATH_CHAT, Answer, Stand, Wiring, a_chat
from tests.support.sidecar import BLOCK, Sidecar, request_settings
from tests.support.upstream import ANSWER, Unread, a_stream, an_answer, sse_events
from tests.support.waiting import until
from tests.support.whole import WholeStand

pytestmark = pytest.mark.envoy

KIB = 1024
MIB = 1024 * KIB
HEADERS = {"content-type": "application/json", "x-authz-user-id": "ann"}


async def in_pieces(body: bytes, size: int, pause: float = 0.0) -> AsyncIterator[bytes]:
    for start in range(0, len(body), size):
        if start and pause:
            await asyncio.sleep(pause)
        yield body[start : start + size]


async def uploaded(stand: Stand, body: bytes, size: int = 64 * KIB, pause: float = 0.0) -> Answer:
    return await stand.send("POST", PATH_CHAT, data=in_pieces(body, size, pause), headers=HEADERS)


def mortal(stand: Stand) -> None:
    """Its sidecar, when it drains, is gone at once: streams that are under way end with an error."""
    stand.sidecar.server_options = replace(stand.sidecar.server_options, grace=timedelta(0))


async def test_the_main_job_is_done_in_this_mode_too(whole: WholeStand) -> None:
    whole.duplex = True
    await whole.start()
    whole.upstream.answers = a_stream(sse_events("Noted: ", "$10,000."))
    await whole.say("My budget for the Hawaii trip is $10,000.")
    whole.upstream.answers = an_answer(json.dumps(ANSWER).encode())
    answer = await whole.say("What's my budget for the trip?")
    assert answer.memory.startswith("used;n=")
    assert json.loads(answer.body) == ANSWER
    assert "$10,000" in whole.shown
    await whole.say("What's my budget for the trip?", user="bob")
    assert "$10,000" not in whole.shown
    mode = FULL_DUPLEX.lower()
    assert whole.sample("streams_total", request_body=mode, response_body=mode) == 3


@pytest.mark.parametrize(
    ("request_body", "response_body"), [(FULL_DUPLEX, "STREAMED"), ("BUFFERED", FULL_DUPLEX), (FULL_DUPLEX, "NONE")]
)
async def test_the_two_directions_may_have_different_modes(
    stand: Stand, request_body: str, response_body: str
) -> None:
    await stand.start(
        Wiring(
            request_body=request_body,
            response_body=response_body,
            request_trailers="SEND" if request_body == FULL_DUPLEX else "SKIP",
            response_trailers="SEND" if response_body == FULL_DUPLEX else "SKIP",
        )
    )
    answer = await stand.chat()
    assert answer.memory == "used;n=1;path=hybrid"
    assert json.loads(answer.body) == ANSWER
    assert BLOCK in stand.upstream.got[0].json["messages"][0]["content"]
    learned = response_body != "NONE"
    assert len(stand.sidecar.learns.exchanged) == learned
    assert (await stand.send("GET", "/v1/models")).status == 200
    large = a_chat("x" * 200 * KIB)
    assert (await stand.send("POST", "/v1/embeddings", json=large)).status == 200
    assert stand.upstream.got[-1].json == large
    await until(lambda: stand.sidecar.sample("streams_open") == 0, "no stream is open")


async def test_three_megabytes_get_their_block_though_envoy_may_buffer_next_to_nothing(stand: Stand) -> None:
    """BUFFERED, this would be a 413."""
    stand.duplex = True
    asked = "What is my budget? " + "x" * (3 * MIB)
    await stand.start(Wiring(buffer_bytes=64 * KIB))
    answer = await uploaded(stand, json.dumps(a_chat(asked)).encode())
    assert answer.memory == "used;n=1;path=hybrid"
    content = stand.upstream.got[0].json["messages"][0]["content"]
    assert content.startswith(asked)
    assert BLOCK in content
    await until(lambda: stand.sidecar.held.bytes_in_use == 0, "no bytes are held")


async def test_ten_megabytes_pass_untouched(stand: Stand) -> None:
    stand.duplex = True
    body = json.dumps(a_chat("x" * (10 * MIB))).encode()
    await stand.start(Wiring(buffer_bytes=64 * KIB))
    answer = await uploaded(stand, body, 256 * KIB)
    assert answer.memory == "too_large"
    assert stand.upstream.got[0].body == body
    assert stand.sidecar.exchanges(Outcome.TOO_LARGE) == 1


async def test_a_client_that_takes_its_time_to_send_is_waited_for(stand: Stand) -> None:
    """Envoy's message_timeout does not count while we hold what came so far."""
    stand.duplex = True
    body = json.dumps(a_chat()).encode()
    await stand.start(Wiring(message_timeout="0.05s"))
    answer = await uploaded(stand, body, len(body) // 3 + 1, pause=0.1)
    assert answer.memory == "used;n=1;path=hybrid"


async def test_a_long_answer_in_many_pieces_arrives_and_is_learned(stand: Stand) -> None:
    stand.duplex = True
    chunks = sse_events(*(f"word{number} " for number in range(300)))
    stand.upstream.answers = a_stream(chunks)
    await stand.start()
    answer = await stand.chat(a_chat(stream=True))
    assert answer.body == b"".join(chunks)
    await stand.sidecar.learns.wait_for(1)
    assert stand.sidecar.learns.exchanged[0].answered.split() == [f"word{number}" for number in range(300)]


async def test_the_answer_to_a_request_without_a_body_arrives_whole_however_fast_it_comes(stand: Stand) -> None:
    """Where we let go at the headers, answers that were on their way to us arrived with 200 and without a body."""
    stand.duplex = True
    await stand.start()
    answers = [
        answer
        for _ in range(10)
        for answer in await asyncio.gather(*(stand.send("DELETE", "/v1/responses/resp_1") for _ in range(20)))
    ]
    assert [json.loads(answer.body or b"null") for answer in answers] == [ANSWER] * 200


async def test_a_read_path_that_never_comes_back_is_not_waited_for_though_envoy_would(stand: Stand) -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    stand.duplex = True
    stand.sidecar.recalls.before = never
    stand.sidecar.options = request_settings()
    stand.sidecar.request_waits = timedelta(milliseconds=50)
    await stand.start()
    answer = await stand.chat()
    assert answer.memory == "out_of_time"
    assert stand.upstream.got[0].json == a_chat()


async def test_a_client_that_leaves_while_it_sends_leaves_nothing_behind(stand: Stand) -> None:
    stand.duplex = True
    await stand.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", stand.envoy.front)
    writer.write(
        f"POST {PATH_CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nx-authz-user-id: ann\r\n"
        "content-length: 1000\r\n\r\n{".encode()
    )
    await until(lambda: stand.sidecar.held.bytes_in_use == 1, "its first byte is held")
    writer.close()
    await until(lambda: stand.sidecar.exchanges(Outcome.ABANDONED) == 1, "the exchange is counted")
    await until(lambda: stand.sidecar.held.bytes_in_use == 0, "no bytes are held")
    assert stand.upstream.got == []
    reader.feed_eof()


async def test_a_model_that_dies_midway_shows_as_that(stand: Stand) -> None:
    first_came = asyncio.Event()

    async def dying(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(sse_events("It is")[0])
        await first_came.wait()
        assert request.transport is not None
        request.transport.abort()
        return response

    stand.duplex = True
    stand.upstream.answers = dying
    await stand.start()
    async with stand.session.post(stand.url + PATH_CHAT, json=a_chat(stream=True), headers=HEADERS) as answer:
        await answer.content.readany()
        first_came.set()
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()
    await until(lambda: stand.sidecar.sample("turns_total", outcome="cut_off") == 1, "the turn is counted")
    assert stand.sidecar.learns.exchanged == []


@pytest.mark.parametrize("allow", [True, False])
async def test_a_sidecar_that_dies_with_a_request_in_hand_is_an_error_and_not_half_a_request(
    stand: Stand, allow: bool
) -> None:
    """Envoy has nothing left that it could send on; failure_mode_allow cannot change that."""
    stand.duplex = True
    mortal(stand)
    stand.expected_5xx = {500}
    in_hand, dead = asyncio.Event(), asyncio.Event()

    async def until_dead() -> None:
        in_hand.set()
        await dead.wait()

    stand.sidecar.recalls.before = until_dead
    await stand.start(Wiring(failure_mode_allow=allow))
    asking = asyncio.create_task(stand.chat())
    await in_hand.wait()
    await stand.sidecar.server.drain()
    assert (await asking).status == 500
    dead.set()
    assert stand.upstream.got == []


async def test_a_sidecar_that_dies_with_an_answer_in_hand_cuts_it_where_the_client_sees_it(stand: Stand) -> None:
    stand.duplex = True
    mortal(stand)
    dead = asyncio.Event()

    async def until_dead(number: int) -> None:
        if number == 2:
            await dead.wait()

    stand.upstream.answers = a_stream(sse_events("It ", "is ", "much"), until_dead)
    await stand.start(Wiring(failure_mode_allow=True))
    async with stand.session.post(stand.url + PATH_CHAT, json=a_chat(stream=True), headers=HEADERS) as answer:
        await answer.content.readany()
        await stand.sidecar.server.drain()
        dead.set()
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()


async def test_a_sidecar_known_to_be_gone_is_passed_by(stand: Stand) -> None:
    """Before a byte of the body is under way Envoy can still go on alone: health checks make that the rule."""
    stand.duplex = True
    mortal(stand)
    await stand.start(Wiring(failure_mode_allow=True, health_check=True))
    await until(lambda: stand.envoy.healthy("sidecar"), "the sidecar is healthy")
    await stand.sidecar.server.drain()

    async def gone() -> bool:
        return not await stand.envoy.healthy("sidecar")

    await until(gone, "Envoy knows")
    answer = await stand.chat()
    assert answer.status == 200
    assert stand.upstream.got[0].json == a_chat()


async def test_another_sidecar_takes_over_a_request_that_one_died_with(stand: Stand) -> None:
    """Envoy repeats what it sent, up to 64 KiB of it, to another while we have answered nothing yet."""
    stand.duplex = True
    mortal(stand)
    stand.second = Sidecar()
    stand.second.server_options = stand.sidecar.server_options
    died: list[asyncio.Task[None]] = []
    dead = asyncio.Event()

    def dies(sidecar: Sidecar) -> Before:
        async def before() -> None:
            if not died:
                died.append(asyncio.create_task(sidecar.server.drain()))
                await dead.wait()

        return before

    for each in (stand.sidecar, stand.second):
        each.recalls.before = dies(each)
    await stand.start(Wiring(retries=1))
    answer = await stand.chat()
    dead.set()
    await asyncio.gather(*died)
    assert answer.memory == "used;n=1;path=hybrid"
    assert len(stand.upstream.got) == 1
    assert BLOCK in stand.upstream.got[0].json["messages"][0]["content"]


async def test_envoys_own_answer_to_a_client_that_falls_silent_reaches_it(stand: Stand) -> None:
    stand.duplex = True
    await stand.start(Wiring(idle_timeout="0.2s"))
    reader, writer = await asyncio.open_connection("127.0.0.1", stand.envoy.front)
    writer.write(
        f"POST {PATH_CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nx-authz-user-id: ann\r\n"
        "content-length: 1000\r\n\r\n{".encode()
    )
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"stream timeout" in answer
    assert stand.upstream.got == []
    await until(lambda: stand.sidecar.exchanges(Outcome.ABANDONED) == 1, "the exchange is counted")
    await until(lambda: stand.sidecar.held.bytes_in_use == 0, "no bytes are held")
    assert stand.sidecar.sample("stream_faults_total", kind="out_of_order") == 0


async def test_a_model_that_answers_before_it_has_the_whole_of_a_large_body_is_heard(stand: Stand) -> None:
    stand.duplex = True
    refusal = b'{"error": {"message": "who are you?"}}'

    async def unread(request: web.Request) -> web.StreamResponse:
        return web.Response(status=401, body=refusal, content_type="application/json")

    stand.upstream = Unread(unread)
    await stand.start()
    answer = await uploaded(stand, json.dumps(a_chat("x" * (8 * MIB))).encode(), 256 * KIB, pause=0.001)
    assert (answer.status, answer.body) == (401, refusal)
    await until(lambda: stand.sidecar.held.bytes_in_use == 0, "no bytes are held")


async def test_many_at_once_each_get_their_own_back(stand: Stand) -> None:
    stand.duplex = True

    async def said_again(request: web.Request) -> web.StreamResponse:
        words = json.loads(stand.upstream.got[-1].body)["messages"][0]["content"]
        chunks = sse_events(*(words[start : start + 9_000] for start in range(0, len(words), 9_000)))
        return await a_stream(chunks)(request)

    stand.upstream.answers = said_again
    await stand.start()

    async def one(number: int) -> bytes:
        body = json.dumps(a_chat(f"caller-{number} " * 10_000, stream=True)).encode()
        headers = {**HEADERS, "x-authz-user-id": f"user-{number}"}
        got = await stand.send("POST", PATH_CHAT, data=in_pieces(body, 30_000), headers=headers)
        assert got.memory == "used;n=1;path=hybrid"
        return got.body

    answers = await asyncio.gather(*(one(number) for number in range(30)))
    for number, answer in enumerate(answers):
        named = {word for word in answer.split() if word.startswith(b"caller-")}
        assert named == {f"caller-{number}".encode()}, "nobody hears anybody else"
    await until(lambda: stand.sidecar.held.bytes_in_use == 0, "no bytes are held")
    assert (await stand.envoy.stats()).get("spurious_msgs_received", 0) == 0
