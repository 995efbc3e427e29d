"""Traffic that passes a real Envoy as if we were not there, and traffic that never gets through."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from memory_extproc.model import Outcome
from tests.support.envoy import PATH_CHAT, Stand, Wiring, a_chat
from tests.support.sidecar import BLOCK, request_settings
from tests.support.upstream import an_answer
from tests.support.waiting import until

pytestmark = [pytest.mark.envoy, pytest.mark.usefixtures("bodies")]

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/models"),
        ("HEAD", "/v1/models"),
        ("GET", PATH_CHAT),
        ("HEAD", PATH_CHAT),
        ("OPTIONS", PATH_CHAT),
        ("DELETE", "/v1/responses/resp_1"),
        ("POST", "/v1/embeddings"),
        ("POST", "/v1/messages/count_tokens"),
    ],
)
async def test_what_is_not_a_chat_passes_without_our_headers(stand: Stand, method: str, path: str) -> None:
    await stand.start()
    body = {"json": a_chat()} if method == "POST" else {}
    answer = await stand.send(
        method,
        path,
        headers={"x-authz-user-id": "ann", "x-memory-retrieve": "force", "x-disable-router-memory": "true"},
        **body,
    )
    assert answer.status == 200
    sent = stand.upstream.got[0]
    assert not [name for name in sent.headers if name.startswith(("x-memory", "x-disable"))]
    assert sent.headers["x-authz-user-id"] == "ann"
    assert sent.body == (json.dumps(a_chat()).encode() if body else b"")
    assert stand.sidecar.exchanges(Outcome.NOT_CHAT, "none") == 1
    await until(lambda: stand.sidecar.sample("streams_open") == 0, "the stream has ended")


async def test_a_websocket_runs_through(stand: Stand) -> None:
    await stand.start()
    async with stand.session.ws_connect(stand.url + "/v1/realtime") as socket:
        await socket.send_str("hello")
        assert (await socket.receive_str(timeout=5)) == "echo hello"
    assert stand.sidecar.exchanges(Outcome.NOT_CHAT, "none") == 1


@pytest.mark.parametrize("bodies", ["buffered"], indirect=True)
async def test_a_websocket_on_a_chat_path_runs_through_too(stand: Stand) -> None:
    await stand.start()
    async with stand.session.ws_connect(stand.url + "/v1/responses") as socket:
        await socket.send_str("hello")
        assert (await socket.receive_str(timeout=5)) == "echo hello"


@pytest.mark.parametrize("content_type", ["text/plain", "multipart/form-data; boundary=x", "application/grpc"])
async def test_another_content_type_is_no_chat(stand: Stand, content_type: str) -> None:
    await stand.start()
    headers = {"content-type": content_type, "x-authz-user-id": "ann"}
    await stand.send("POST", PATH_CHAT, data=b"anything", headers=headers)
    assert stand.upstream.got[0].body == b"anything"
    assert stand.sidecar.exchanges(Outcome.NOT_CHAT, "none") == 1


@pytest.mark.parametrize(
    ("user", "headers", "outcome"),
    [
        ("", {}, Outcome.NO_CALLER),
        ("ann,bob", {}, Outcome.NO_CALLER),
        ("ann", {"x-memory-retrieve": "skip"}, Outcome.OPTED_OUT),
        ("ann", {"x-disable-router-memory": "true"}, Outcome.OPTED_OUT),
        ("ann", {"x-memory-extproc-internal": "1"}, Outcome.DISABLED),
    ],
)
async def test_who_has_no_memory_gets_the_word_for_it_and_no_block(
    stand: Stand, user: str, headers: dict[str, str], outcome: Outcome
) -> None:
    await stand.start()
    answer = await stand.send(
        "POST", PATH_CHAT, json=a_chat(), headers={**({"x-authz-user-id": user} if user else {}), **headers}
    )
    assert answer.memory == outcome.value
    assert "cache-control" not in answer.headers
    assert stand.upstream.got[0].json == a_chat()
    assert stand.sidecar.recalls.wishes == []


async def test_a_repeated_identity_header_is_no_identity(stand: Stand) -> None:
    await stand.start()
    headers = [("x-authz-user-id", "ann"), ("x-authz-user-id", "bob")]
    answer = await stand.send("POST", PATH_CHAT, json=a_chat(), headers=headers)
    assert answer.memory == "no_caller"
    assert stand.sidecar.learns.exchanged == []


async def test_a_forged_identity_header_that_envoy_strips_before_us_opens_nothing(stand: Stand) -> None:
    """A header_mutation filter before ours; removal on the route would come too late, after us."""
    strip = {
        "name": "strip",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation",
            "mutations": {"request_mutations": [{"remove": "x-authz-user-id"}]},
        },
    }
    await stand.start(Wiring(before_us=[strip]))
    assert (await stand.chat(user="ann")).memory == "no_caller"


async def test_our_body_fields_never_reach_the_model(stand: Stand) -> None:
    await stand.start()
    for headers in ({}, {"x-memory-retrieve": "skip"}):
        await stand.send(
            "POST",
            PATH_CHAT,
            json=a_chat(memory_config={"enabled": True}, memory_context={"project_id": "p"}, auto_store=False),
            headers=headers,
        )
    assert [set(got.json) for got in stand.upstream.got] == [{"model", "messages"}] * 2


async def test_five_megabytes_pass_untouched_with_their_outcome(stand: Stand) -> None:
    await stand.start()
    body = json.dumps(a_chat("x" * (5 * MIB))).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), "x-authz-user-id": "ann"}
    answer = await stand.send("POST", PATH_CHAT, data=io.BytesIO(body), headers=headers)
    assert answer.status == 200
    assert stand.upstream.got[0].body == body
    assert stand.sidecar.exchanges(Outcome.TOO_LARGE) == 1


async def test_five_megabytes_of_unknown_length_pass_untouched_too(stand: Stand) -> None:
    await stand.start()
    body = json.dumps(a_chat("x" * (5 * MIB))).encode()

    async def chunks() -> Any:
        for start in range(0, len(body), 256 * 1024):
            yield body[start : start + 256 * 1024]

    headers = {"content-type": "application/json", "x-authz-user-id": "ann"}
    answer = await stand.send("POST", PATH_CHAT, data=chunks(), headers=headers)
    assert answer.memory == "too_large"
    assert stand.upstream.got[0].body == body


@pytest.mark.parametrize("bodies", ["buffered"], indirect=True)
async def test_what_envoy_refuses_itself_is_its_own_413(stand: Stand) -> None:
    await stand.start(Wiring(buffer_bytes=64 * 1024))

    async def chunks() -> Any:
        for _ in range(16):
            yield b" " * 64 * 1024

    headers = {"content-type": "application/json", "x-authz-user-id": "ann"}
    answer = await stand.send("POST", PATH_CHAT, data=chunks(), headers=headers)
    assert answer.status == 413
    assert stand.upstream.got == []
    await until(lambda: stand.sidecar.exchanges(Outcome.ABANDONED) == 1, "the exchange is counted")
    assert stand.sidecar.learns.exchanged == []


async def test_a_route_that_answers_itself_teaches_nothing(stand: Stand) -> None:
    await stand.start()
    answer = await stand.chat(path="/teapot/v1/chat/completions")
    assert (answer.status, answer.body) == (418, b"teapot")
    await until(lambda: stand.sidecar.sample("turns_total", outcome="not_ok") == 1, "the turn is counted")
    assert stand.sidecar.learns.exchanged == []


UNSURE = {
    "name": "router",
    "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua",
        "default_source_code": {
            "inline_string": (
                "function envoy_on_request(handle)\n"
                "  local said = handle:streamInfo():dynamicMetadata()\n"
                "  said:set('router', 'confidence', 0 / 0)\n"
                "  said:set('router', 'distance', math.huge)\n"
                "end\n"
            )
        },
    },
}


async def test_numbers_of_a_router_that_json_has_no_word_for_cost_no_request_its_memories(stand: Stand) -> None:
    await stand.start(Wiring(before_us=[UNSURE], metadata_namespaces=("router",)))
    answer = await stand.chat()
    assert answer.memory == "used;n=1;path=hybrid"
    await stand.sidecar.learns.wait_for(1)


async def test_shadow_mode_shows_what_would_have_been_and_changes_nothing(stand: Stand) -> None:
    stand.sidecar.options = request_settings(mode="shadow")
    await stand.start()
    answer = await stand.chat()
    assert answer.memory == "shadowed"
    assert stand.upstream.got[0].json == a_chat()
    assert len(stand.sidecar.recalls.wishes) == 1
    assert len(stand.sidecar.learns.exchanged) == 1


@pytest.mark.parametrize("bodies", ["buffered"], indirect=True)
@pytest.mark.parametrize("mode", ["NONE", "STREAMED", "BUFFERED_PARTIAL"])
async def test_a_body_mode_that_we_do_not_support_is_left_alone(stand: Stand, mode: str) -> None:
    await stand.start(Wiring(request_body=mode))
    answer = await stand.chat(x_memory_retrieve="force")
    assert answer.status == 200
    assert stand.upstream.got[0].json == a_chat()
    assert "x-memory-retrieve" not in stand.upstream.got[0].headers
    assert stand.sidecar.sample("stream_faults_total", kind="unsupported_mode") == 1


@pytest.mark.parametrize("bodies", ["buffered"], indirect=True)
async def test_without_answers_shown_to_us_memories_still_reach_the_model(stand: Stand) -> None:
    await stand.start(Wiring(response_body="NONE"))
    answer = await stand.chat()
    assert answer.memory == "used;n=1;path=hybrid"
    assert BLOCK in stand.upstream.got[0].json["messages"][0]["content"]
    await until(lambda: stand.sidecar.sample("turns_total", outcome="unreadable") == 1, "the turn is counted")


async def test_an_answer_that_is_no_json_and_no_events_passes(stand: Stand) -> None:
    stand.upstream.answers = an_answer(b"<html>", content_type="text/html")
    await stand.start()
    answer = await stand.chat()
    assert answer.body == b"<html>"
    await until(lambda: stand.sidecar.sample("turns_total", outcome="unreadable") == 1, "the turn is counted")
