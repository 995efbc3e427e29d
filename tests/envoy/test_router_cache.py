"""A router's cache that answers by what was asked, not by who asked, in front of our memory."""

from __future__ import annotations

import json

import pytest
import yaml
from aiohttp import web

from tests.support.chart import CHART, documents, one, rendered
from tests.support.envoy import PATH_CHAT, Stand, Wiring, a_chat


class CachingRouter:
    """Stands for the model and the cache before it. What it answers holds the name of whoever asked first."""

    def __init__(self) -> None:
        self._kept: dict[str, str] = {}

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        # as the client sent it: that cache stands in front of us
        asked = body["messages"][-1]["content"].partition("\n")[0]
        fresh = f"{request.headers.get('x-authz-user-id', 'nobody')}: {asked}"
        bypassed = request.headers.get("x-vsr-cache-control") == "bypass"
        answer = fresh if bypassed else self._kept.setdefault(asked, fresh)
        message = {"role": "assistant", "content": answer}
        return web.json_response({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})


@pytest.fixture
def bypass() -> list[dict[str, object]]:
    data = one(documents(rendered(CHART / "ci" / "semantic-router.yaml")), "ConfigMap", "test-memory-extproc-envoy")
    filters: list[dict[str, object]] = yaml.safe_load(data["data"]["2-before-the-router.yaml"])
    return filters


async def answers(stand: Stand, user: str) -> str:
    headers = {"x-authz-user-id": user} if user else {}
    async with stand.session.post(
        f"http://127.0.0.1:{stand.envoy.front}{PATH_CHAT}", json=a_chat("What's my budget?"), headers=headers
    ) as got:
        content: str = json.loads(await got.read())["choices"][0]["message"]["content"]
        return content


async def test_one_callers_answer_is_not_given_to_another_from_the_routers_cache(
    stand: Stand, bypass: list[dict[str, object]]
) -> None:
    stand.upstream.answers = CachingRouter()
    await stand.start(Wiring(before_us=bypass))
    assert [await answers(stand, user) for user in ("ann", "bob", "ann")] == [
        "ann: What's my budget?",
        "bob: What's my budget?",
        "ann: What's my budget?",
    ]


async def test_who_names_nobody_keeps_the_routers_cache(stand: Stand, bypass: list[dict[str, object]]) -> None:
    stand.upstream.answers = CachingRouter()
    await stand.start(Wiring(before_us=bypass))
    assert await answers(stand, "") == await answers(stand, "") == "nobody: What's my budget?"


async def test_without_the_bypass_the_cache_does_mix_callers_up(stand: Stand) -> None:
    """What the filter is for: the stub of the cache can do the harm."""
    stand.upstream.answers = CachingRouter()
    await stand.start()
    assert [await answers(stand, user) for user in ("ann", "bob")] == ["ann: What's my budget?"] * 2
