"""Traffic that is odd, broken or too much, through the whole sidecar: everybody gets what they would have got
without it, nothing is learned that was not said, and the next request is served as ever."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.envoy import PATH_CHAT, Answer, a_chat
from tests.support.faults import ASKED, BUDGET, USER, FaultStand
from tests.support.upstream import ANSWER, a_stream, an_answer, sse_events
from tests.support.waiting import until

pytestmark = pytest.mark.envoy

KIB = 1024
WHO = {"x-authz-user-id": USER}
JSON = {"content-type": "application/json", **WHO}


async def post(faulty: FaultStand, body: Any, **headers: str) -> Answer:
    """*body* as it is, bytes or pieces of them."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await faulty.send("POST", PATH_CHAT, data=body, headers={**JSON, **named})


async def assert_untouched(faulty: FaultStand, answer: Answer, body: bytes) -> None:
    """Client and model saw each other's bytes, nothing was learned, and memory works on."""
    assert answer.status == 200
    assert json.loads(answer.body) == ANSWER
    assert faulty.upstream.got[-1].body == body
    assert faulty.journalled == 0
    assert await faulty.memories() == []
    await faulty.say(BUDGET)
    assert (await faulty.say(ASKED)).memory == "used;n=1;path=hybrid"


@pytest.mark.parametrize(
    "body",
    [
        b"{not json",
        b'{"model": "demo", "messages": [{"role": "user", "content": "Hawaii',
        b'{"messages": [{"role": "user", "content": "Hawaii \xff\xfe \xc0\xaf"}]}',
        b'{"model": "demo", "messages": 7}',
        b'{"model": "demo", "messages": ["Hawaii"]}',
        b'"Hawaii"',
        b"\x00" * 100,
        b"[" * 100_000,
        b'{"model": "demo", "messages": ' + b'[{"a":' * 5_000 + b"1" + b"}]" * 5_000 + b"}",
    ],
    ids=["no JSON", "cut off", "no UTF-8", "number", "strings", "string", "zeros", "open brackets", "deep"],
)
async def test_a_body_that_cannot_be_read_is_none_of_our_business(faulty: FaultStand, body: bytes) -> None:
    await faulty.start()
    answer = await post(faulty, body)
    assert answer.memory == "bad_body"
    assert faulty.exchanges("bad_body") == 1
    assert faulty.logs.said("request.unreadable")
    await assert_untouched(faulty, answer, body)


@pytest.mark.parametrize(
    "changes",
    [
        {"messages": []},
        {"messages": None},
        {"messages": [{"role": "user", "content": None}]},
        {"messages": [{"role": "user", "content": 7}]},
        {"messages": [{"role": 7, "content": "Hawaii"}]},
        {"messages": [{"content": "Hawaii"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 7}, 8, None, {"type": "text"}]}]},
        {"messages": [{"role": "user", "content": {"text": "Hawaii"}}]},
        {"model": 7, "max_tokens": "many", "tools": "none", "messages": [{"role": "user", "content": ""}]},
    ],
    ids=str,
)
async def test_values_of_the_wrong_type_harm_nobody(faulty: FaultStand, changes: dict[str, Any]) -> None:
    await faulty.start()
    body = json.dumps({"model": "demo", **changes}).encode()
    answer = await post(faulty, body)
    assert answer.memory in {"bad_body", "empty", "nothing_relevant"}
    assert faulty.sample("stream_faults_total", kind="bug") == 0
    assert answer.status == 200
    assert faulty.upstream.got[-1].body == body
    assert not [one for one in await faulty.memories() if "7" in one]


async def test_wrong_types_in_our_own_fields_harm_nobody_and_do_not_reach_the_model(faulty: FaultStand) -> None:
    await faulty.start()
    await faulty.say(BUDGET)
    ours = {"memory_config": 7, "memory_context": ["x"], "auto_store": "perhaps"}
    answer = await faulty.chat({**a_chat(ASKED), **ours}, user=USER)
    assert answer.memory == "bad_body"
    assert not ours.keys() & faulty.upstream.got[-1].json.keys()
    assert faulty.sample("stream_faults_total", kind="bug") == 0


async def in_pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), 64 * KIB):
        yield body[start : start + 64 * KIB]


@pytest.mark.parametrize("known", [True, False], ids=["length known", "in chunks"])
async def test_a_body_over_the_limit_passes(faulty: FaultStand, known: bool) -> None:
    faulty.change(limits={"request_body": "256KiB"})
    await faulty.start()
    body = json.dumps(a_chat("Hawaii " * 40 * KIB)).encode()
    answer = await post(faulty, body if known else in_pieces(body))
    assert faulty.exchanges("too_large") == 1
    await assert_untouched(faulty, answer, body)


@pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data; boundary=x", "application/x-ndjson", ""])
async def test_a_content_type_that_is_not_json_passes(faulty: FaultStand, kind: str) -> None:
    await faulty.start()
    body = json.dumps(a_chat(BUDGET)).encode()
    answer = await post(faulty, body, content_type=kind)
    assert faulty.exchanges("not_chat", "none") == 1
    await assert_untouched(faulty, answer, body)


async def test_ten_thousand_messages_are_a_conversation_like_any_other(faulty: FaultStand) -> None:
    await faulty.start()
    await faulty.say(BUDGET)
    turns = [{"role": ("user", "assistant")[n % 2], "content": f"Word number {n}."} for n in range(10_000)]
    body = {"model": "demo", "messages": [*turns, {"role": "user", "content": ASKED}]}
    answer = await faulty.chat(body, user=USER)
    assert answer.memory == "used;n=1;path=hybrid"
    assert json.loads(answer.body) == ANSWER
    seen = faulty.upstream.got[-1].json["messages"]
    assert seen[:10_000] == turns
    assert "$10,000" in seen[-1]["content"]
    await until(lambda: faulty.journalled == 2, "it is learned from")


async def test_a_megabyte_in_one_message_is_kept_up_to_the_bound_and_found(faulty: FaultStand) -> None:
    await faulty.start()
    long = "My boat in Hawaii is called Wailea. " + "It is blue and has a very long name. " * 28_500
    assert len(long) > 1024 * KIB
    # As a file: aiohttp warns of large bodies that are bytes.
    answer = await post(faulty, io.BytesIO(json.dumps(a_chat(long)).encode()))
    assert json.loads(answer.body) == ANSWER
    assert faulty.upstream.got[-1].json["messages"][-1]["content"] == long
    await until(lambda: faulty.kept >= 1, "it is stored", seconds=60)
    known = await faulty.memories()
    assert any("Wailea" in one for one in known)
    assert len(known) <= 100
    assert max(len(one.encode()) for one in known) <= 8 * KIB
    answer = await faulty.say("My boat in Hawaii is blue and has a very long name, but which?")
    assert answer.memory.startswith("used")
    assert len(faulty.shown) < 16 * KIB


BAD_TEXT = b'{"choices": [{"index": 0, "message": {"role": "assistant", "content": "\xff\xfe Wailea \xc3"}}]}'
SURROGATE = (
    rb'{"choices": [{"message": {"role": "assistant", "content": "\ud800 Wailea"}, "finish_reason": "stop"}]}'
)


@pytest.mark.parametrize(
    ("answered", "kind", "learned"),
    [
        (BAD_TEXT, "application/json", "cut_off"),
        (b"<html>Wailea</html>", "text/html", "unreadable"),
        (b"<html>Wailea</html>", "application/json", "cut_off"),
        (b'{"error": {"message": "Wailea", "code": 404}}', "application/json", "not_ok"),
        (b'{"choices": [{"index": 0, "message": {"role"', "application/json", "cut_off"),
        (b"", "application/json", "cut_off"),
        (b'data: {"choices": [{"delta": {"content": "\xff Wailea"}}]}\n\n', "text/event-stream", "cut_off"),
        (b'data: {"error": {"message": "Wailea"}}\n\ndata: [DONE]\n\n', "text/event-stream", "not_ok"),
    ],
    ids=["no UTF-8", "html", "html as JSON", "error with 200", "cut off", "empty", "events cut off", "error event"],
)
async def test_an_answer_that_is_none_reaches_the_client_as_it_is_and_teaches_nothing(
    faulty: FaultStand, answered: bytes, kind: str, learned: str
) -> None:
    await faulty.start()
    faulty.upstream.answers = an_answer(answered, content_type=kind)
    answer = await faulty.say(BUDGET)
    assert (answer.status, answer.body) == (200, answered)
    await until(lambda: faulty.turns(learned) == 1, "the turn is counted")
    assert await faulty.memories() == []
    assert faulty.sample("stream_faults_total", kind="bug") == 0


async def test_a_lone_surrogate_is_learned_around_and_not_stumbled_over(faulty: FaultStand) -> None:
    await faulty.start()
    faulty.upstream.answers = an_answer(SURROGATE)
    body = (
        rb'{"model": "demo", "messages": [{"role": "user", "content": "My budget for Hawaii \udc00 is $10,000."}]}'
    )
    assert (await post(faulty, body)).body == SURROGATE
    assert faulty.upstream.got[-1].body == body
    await until(lambda: faulty.kept == 1, "what was said is kept")
    assert (await faulty.say(ASKED)).memory.startswith("used")
    assert "$10,000" in faulty.shown


async def test_an_upstream_that_fails_is_not_learned_from(faulty: FaultStand) -> None:
    faulty.expected_5xx = {500}
    faulty.upstream.answers = an_answer(b'{"error": "Wailea"}', status=500)
    await faulty.start()
    answer = await faulty.say(BUDGET)
    assert (answer.status, answer.body) == (500, b'{"error": "Wailea"}')
    await until(lambda: faulty.turns("not_ok") == 1, "the turn is counted")
    assert await faulty.memories() == []


async def test_a_client_that_leaves_in_mid_stream_teaches_nothing(faulty: FaultStand) -> None:
    gone = asyncio.Event()

    async def until_gone(number: int) -> None:
        if number == 2:
            await gone.wait()

    await faulty.start()
    faulty.upstream.answers = a_stream(sse_events("The ", "Wailea ", "of course"), until_gone)
    async with faulty.session.post(faulty.url + PATH_CHAT, json=a_chat(BUDGET, stream=True), headers=WHO) as answer:
        await answer.content.readany()
        answer.close()
    await until(lambda: faulty.turns("cut_off") == 1, "the turn is counted")
    gone.set()
    assert await faulty.memories() == []
    assert faulty.sample("process_bytes") == 0


async def test_when_bytes_run_short_reads_go_before_learning_and_requests_before_both(faulty: FaultStand) -> None:
    faulty.change(limits={"process_bytes": "1MiB", "request_body": "600KiB", "answer_capture": "64KiB"})
    over = asyncio.Event()

    async def until_over(number: int) -> None:
        if number == 1:
            await over.wait()

    await faulty.start()
    faulty.upstream.answers = a_stream(sse_events("Noted", "."), until_over)
    said = {name: BUDGET + " " + name * (count * KIB) for name, count in (("a", 500), ("b", 500), ("c", 590))}

    def ask(name: str) -> asyncio.Task[Answer]:
        return asyncio.create_task(faulty.chat(a_chat(said[name], stream=True), user=USER))

    # The first is held until its answer ends, and takes most of what learning may have.
    first = ask("a")
    await until(lambda: len(faulty.upstream.got) == 1, "the first is with the model")
    second = ask("b")
    await until(lambda: len(faulty.upstream.got) == 2, "the second is read and passes")
    third = ask("c")
    await until(lambda: len(faulty.upstream.got) == 3, "the third passes unread")
    assert faulty.exchanges("overloaded") == 1
    over.set()
    answers = await asyncio.gather(first, second, third)
    assert [answer.memory for answer in answers] == ["empty", "empty", "overloaded"]
    assert [answer.body for answer in answers] == [b"".join(sse_events("Noted", "."))] * 3
    assert sorted(got.json["messages"][0]["content"] for got in faulty.upstream.got) == sorted(said.values())
    await until(lambda: faulty.sample("process_bytes") == 0, "every byte is given back")
    assert (faulty.turns("process_limit"), faulty.journalled) == (1, 1)
