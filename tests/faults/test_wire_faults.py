"""The client gets its answer whatever breaks in the sidecar, through a real Envoy that forgives nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from dataclasses import replace
from datetime import timedelta

import pytest

from memory_extproc.model import Outcome
from tests.support.envoy import PATH_CHAT, Stand, Wiring, a_chat
from tests.support.sidecar import Sidecar, request_settings
from tests.support.upstream import ANSWER, a_stream, an_answer, sse_events
from tests.support.waiting import until

pytestmark = pytest.mark.envoy
both_ways = pytest.mark.usefixtures("bodies")


async def broken() -> None:
    raise RuntimeError("a bug that quotes a person's words")


async def never() -> None:
    await asyncio.Event().wait()


@both_ways
async def test_a_bug_in_recall_leaves_the_request_as_it_came(stand: Stand) -> None:
    stand.sidecar.recalls.before = broken
    await stand.start()
    answer = await stand.chat()
    assert answer.status == 200
    assert json.loads(answer.body) == ANSWER
    assert stand.upstream.got[0].json == a_chat()
    assert stand.sidecar.sample("stream_faults_total", kind="bug") == 1
    await until(lambda: stand.sidecar.exchanges(Outcome.UNAVAILABLE) == 1, "the exchange is counted")
    await until(lambda: stand.sidecar.held.bytes_in_use == 0, "no bytes are held")


@both_ways
async def test_a_recall_that_never_comes_costs_the_guards_time_and_no_more(stand: Stand) -> None:
    stand.sidecar.recalls.before = never
    short = timedelta(milliseconds=50)
    stand.sidecar.options = request_settings(deadline=short, message_timeout=short)
    await stand.start()
    answer = await stand.chat()
    assert answer.memory == "out_of_time"
    assert stand.upstream.got[0].json == a_chat()


async def test_a_recall_slower_than_envoys_own_patience_passes_when_envoy_may_fail_open(stand: Stand) -> None:
    stand.sidecar.recalls.before = never
    await stand.start(Wiring(failure_mode_allow=True, message_timeout="0.1s"))
    answer = await stand.chat()
    assert answer.status == 200
    assert stand.upstream.got[0].json == a_chat()
    await until(lambda: stand.sidecar.exchanges(Outcome.ABANDONED) == 1, "the exchange is counted")
    await until(lambda: stand.sidecar.held.bytes_in_use == 0, "no bytes are held")


@both_ways
@pytest.mark.parametrize("fault", [broken, never])
async def test_a_learner_that_breaks_or_hangs_does_not_keep_the_answer(stand: Stand, fault: object) -> None:
    stand.sidecar.learns.before = fault  # type: ignore[assignment]  # parametrize knows no types
    stand.sidecar.last_reply_waits = timedelta(milliseconds=50)
    stand.sidecar.background_grace = timedelta(milliseconds=50)
    await stand.start()
    answer = await stand.chat()
    assert json.loads(answer.body) == ANSWER
    await until(lambda: stand.sidecar.sample("streams_open") == 0, "the stream has ended")
    stand.sidecar.learns.before = None
    assert (await stand.chat(user="bob")).status == 200


@both_ways
@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        (b"{not json", Outcome.BAD_BODY),
        (b'{"model": "demo", "messages": 7}', Outcome.BAD_BODY),
        (b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}', Outcome.BAD_BODY),
        (b"", Outcome.NOT_CHAT),
        (b"[" * 100_000, Outcome.BAD_BODY),
    ],
)
async def test_a_body_that_is_no_chat_request_reaches_the_model_byte_for_byte(
    stand: Stand, body: bytes, outcome: Outcome
) -> None:
    await stand.start()
    headers = {"content-type": "application/json", "x-authz-user-id": "ann"}
    answer = await stand.send("POST", PATH_CHAT, data=body, headers=headers)
    assert answer.status == 200
    assert stand.upstream.got[0].body == body
    dialect = "none" if outcome is Outcome.NOT_CHAT else "chat_completions"
    assert stand.sidecar.exchanges(outcome, dialect) == 1


@both_ways
@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd", "deflate", "rot13"])
async def test_a_body_not_packed_as_it_says_reaches_the_model_as_it_came(stand: Stand, encoding: str) -> None:
    await stand.start()
    headers = {"content-type": "application/json", "content-encoding": encoding, "x-authz-user-id": "ann"}
    answer = await stand.send("POST", PATH_CHAT, data=b"plain text", headers=headers)
    assert answer.memory == "bad_body"
    assert stand.upstream.got[0].body == b"plain text"
    assert stand.upstream.got[0].headers["content-encoding"] == encoding


@both_ways
async def test_an_upstream_that_fails_passes_its_error_on_and_teaches_nothing(stand: Stand) -> None:
    stand.expected_5xx = {500}
    stand.upstream.answers = an_answer(b'{"error": {"message": "boom"}}', status=500)
    await stand.start()
    answer = await stand.chat()
    assert (answer.status, answer.body) == (500, b'{"error": {"message": "boom"}}')
    await until(lambda: stand.sidecar.sample("turns_total", outcome="not_ok") == 1, "the turn is counted")


@both_ways
async def test_an_error_that_comes_with_200_teaches_nothing(stand: Stand) -> None:
    stand.upstream.answers = an_answer(b'{"error": {"message": "no such model", "code": 404}}')
    await stand.start()
    await stand.chat()
    await until(lambda: stand.sidecar.sample("turns_total", outcome="not_ok") == 1, "the turn is counted")
    assert stand.sidecar.learns.exchanged == []


@both_ways
async def test_an_upstream_that_is_not_there_is_envoys_503(stand: Stand) -> None:
    stand.expected_5xx = {503}
    await stand.start()
    await stand.upstream.__aexit__()
    answer = await stand.chat()
    assert answer.status == 503
    await until(lambda: stand.sidecar.sample("turns_total", outcome="not_ok") == 1, "the turn is counted")


@both_ways
async def test_a_stream_that_the_model_breaks_off_is_not_learned(stand: Stand) -> None:
    stand.upstream.answers = a_stream(sse_events("It is", done=False))
    await stand.start()
    await stand.chat(a_chat(stream=True))
    await until(lambda: stand.sidecar.sample("turns_total", outcome="cut_off") == 1, "the turn is counted")
    assert stand.sidecar.learns.exchanged == []


@both_ways
async def test_a_client_that_leaves_in_the_middle_teaches_nothing(stand: Stand) -> None:
    gone = asyncio.Event()

    async def until_gone(number: int) -> None:
        if number == 2:
            await gone.wait()

    stand.upstream.answers = a_stream(sse_events("It ", "is ", "much"), until_gone)
    await stand.start()
    async with stand.session.post(
        stand.url + PATH_CHAT, json=a_chat(stream=True), headers={"x-authz-user-id": "ann"}
    ) as answer:
        await answer.content.readany()
        answer.close()
    await until(lambda: stand.sidecar.sample("turns_total", outcome="cut_off") == 1, "the turn is counted")
    gone.set()
    assert stand.sidecar.learns.exchanged == []
    await until(lambda: stand.sidecar.held.bytes_in_use == 0, "no bytes are held")


@both_ways
async def test_a_process_out_of_memory_for_bodies_lets_requests_pass(stand: Stand) -> None:
    stand.sidecar.process_bytes = 50
    await stand.start()
    answer = await stand.chat()
    assert answer.memory == "overloaded"
    assert stand.upstream.got[0].json == a_chat()


@both_ways
async def test_a_process_short_of_memory_recalls_but_does_not_learn(stand: Stand) -> None:
    body = a_chat("What is my budget? " * 100)
    stand.sidecar.process_bytes = len(json.dumps(body)) + 10
    await stand.start()
    answer = await stand.chat(body)
    assert answer.memory == "used;n=1;path=hybrid"
    await until(lambda: stand.sidecar.sample("turns_total", outcome="process_limit") == 1, "the turn is counted")


async def test_envoys_pings_every_second_do_not_end_a_long_answer(stand: Stand) -> None:
    """With gRPC's defaults a model that thinks for five seconds between two words is cut off: too many pings."""

    async def thinking(number: int) -> None:
        if number == 1:
            await asyncio.sleep(6)

    stand.upstream.answers = a_stream(sse_events("It is", " ten."), thinking)
    await stand.start(Wiring(keepalive="1s"))
    answer = await stand.chat(a_chat(stream=True))
    assert answer.body.endswith(b"data: [DONE]\n\n")
    await stand.sidecar.learns.wait_for(1)


@both_ways
async def test_sigterm_under_load_fails_no_request(stand: Stand) -> None:
    """NOT_SERVING first, so that Envoy turns to another sidecar; then open streams end in peace."""
    stand.sidecar.server_options = replace(stand.sidecar.server_options, drain_wait=timedelta(seconds=1))
    stand.second = Sidecar()

    async def slowly(number: int) -> None:
        await asyncio.sleep(0.02)

    stand.upstream.answers = a_stream(sse_events("a", "b", "c"), slowly)
    await stand.start(Wiring(health_check=True))
    await until(lambda: stand.envoy.healthy("sidecar"), "the sidecars are healthy")
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    over = asyncio.Event()
    bodies: list[bytes] = []

    async def load() -> None:
        while not over.is_set():
            bodies.append((await stand.chat(a_chat(stream=True))).body)

    async with asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(load())
        await until(lambda: len(bodies) > 8, "there is load")
        os.kill(os.getpid(), signal.SIGTERM)
        await told.wait()
        await stand.sidecar.server.drain()
        before = len(bodies)
        await until(lambda: len(bodies) > before + 8, "the other one serves on")
        over.set()
    asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
    assert all(body.endswith(b"data: [DONE]\n\n") for body in bodies)
    assert stand.sidecar.sample("streams_open") == 0
    both = (stand.sidecar, stand.second)
    await until(
        lambda: sum(one.sample("turns_total", outcome="journalled") for one in both) == len(bodies), "learned"
    )
    assert sum(one.exchanges(Outcome.USED) for one in both) == len(bodies)
