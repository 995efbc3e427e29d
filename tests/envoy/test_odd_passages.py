"""Requests that pass in ways of their own, through the real Envoy and the whole sidecar."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from functools import partial

import pytest
from aiohttp import web

from tests.support.envoy import PATH_CHAT, Stand, Wiring, a_chat
from tests.support.upstream import answer_json
from tests.support.waiting import until
from tests.support.whole import WholeStand

pytestmark = pytest.mark.envoy

BUDGET = "My budget for the Hawaii trip is $10,000."
ASKED = "What's my budget for the Hawaii trip?"


async def moved(request: web.Request) -> web.StreamResponse:
    """The model has moved from /v1 to /v2."""
    if request.path.startswith("/v1/"):
        return web.Response(status=307, headers={"location": f"http://{request.host}/v2/chat/completions"})
    return await answer_json(request)


@pytest.mark.parametrize("duplex", [False, True])
async def test_a_request_that_envoy_sends_once_more_is_the_one_that_was_sent_first(
    whole: WholeStand, duplex: bool
) -> None:
    whole.duplex = duplex
    await whole.start(Wiring(redirects=1))
    await whole.say(BUDGET, x_session_id="s1")
    await until(partial(kept, whole, 1), "it is kept")
    whole.upstream.answers = moved
    for wish in ({"x_memory_store": "skip"}, {"x_memory_incognito": "true"}):
        answer = await whole.say(ASKED, **wish)
        assert answer.status == 200
        first, again = whole.upstream.got[-2:]
        assert (first.path, again.path) == (PATH_CHAT, "/v2/chat/completions")
        assert first.body.count(b"$10,000") == 1
        assert again.body == first.body
        assert answer.headers["cache-control"] == "private, no-store"
    assert (await whole.say(ASKED, x_memory_retrieve="skip", x_memory_store="skip")).status == 200
    assert "$10,000" not in whole.shown
    assert whole.accepted == 1


async def test_whatever_the_application_and_the_model_are_called_what_is_said_is_remembered(
    whole: WholeStand,
) -> None:
    await whole.start()
    for number, (model, app) in enumerate(
        [("demo", b"caf\xe9 \xff"), ("demo", b"a" * 20_000), ("m" * 300_000, b"chat"), ("\ud83d\0", b"chat")]
    ):
        body = {"model": model, "messages": [{"role": "user", "content": BUDGET}]}
        await whole.chat(body, user=f"user-{number}", x_memory_app=app.decode("utf-8", "surrogateescape"))
        await until(partial(kept, whole, number + 1), "it is kept")
        assert (await whole.say(ASKED, user=f"user-{number}", x_memory_store="skip")).memory.startswith("used;n=1")


def kept(whole: WholeStand, messages: int) -> bool:
    return whole.sample("remembered_total", role="user", decision="kept") == messages


async def test_a_server_that_checks_a_digest_takes_what_we_put_in(stand: Stand) -> None:
    await stand.start()
    body = json.dumps(a_chat()).encode()
    digest = f"sha-256=:{b64encode(hashlib.sha256(body).digest()).decode()}:"
    headers = {"content-type": "application/json", "content-digest": digest, "x-authz-user-id": "ann"}
    wishes: list[tuple[dict[str, str], bool]] = [({}, False), ({"x-memory-retrieve": "skip"}, True)]
    for wish, untouched in wishes:
        await stand.send("POST", PATH_CHAT, data=body, headers={**headers, **wish})
        got = stand.upstream.got[-1]
        assert (got.body == body, "content-digest" in got.headers) == (untouched, untouched)
