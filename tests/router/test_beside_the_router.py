"""Memory behind the semantic router and before it, through a real Envoy. The router is recorded data."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from memory_extproc.inference.classifier import FactClassifier
from memory_extproc.observe.metrics import Metrics
from memory_extproc.settings.semantic_router import import_configuration
from memory_extproc.settings.traffic import ClassifierSection
from tests.support.envoy import PATH_CHAT, Answer, Stand
from tests.support.router import PATH_RESPONSES, RECORDED, Router
from tests.support.upstream import a_stream, an_answer, sse_events
from tests.support.waiting import until
from tests.support.whole import WholeStand

pytestmark = pytest.mark.envoy
PATHS = (PATH_CHAT, PATH_RESPONSES)
FACT, QUESTION = "My budget for the Hawaii trip is $10,000", "What's my budget for Hawaii?"
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "status": "completed",
    "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Noted."}]}],
}


def asking(path: str, words: str, **changes: Any) -> dict[str, Any]:
    if path == PATH_RESPONSES:
        return {"model": "auto", "input": words, **changes}
    return {"model": "auto", "messages": [{"role": "user", "content": words}], **changes}


@pytest.fixture
async def behind(whole: WholeStand) -> AsyncIterator[WholeStand]:
    """Memory behind a router that translates Responses, configured by the router's own file."""
    whole.changes = import_configuration(RECORDED["configuration"]).settings
    whole.changes["privacy"] = {"secrets": {"code": "keep"}}  # as the router does
    async with Router(translates=True) as router:
        await whole.start(router.wiring(before_us=True))
        yield whole


async def ask(stand: Stand, path: str, words: str, **headers: str) -> Answer:
    return await stand.chat(asking(path, words), path=path, **headers)


@pytest.mark.parametrize("path", PATHS)
async def test_behind_the_router_its_signals_and_decisions_count_and_none_of_them_reaches_the_model(
    behind: WholeStand, path: str
) -> None:
    await ask(behind, path, FACT)
    await until(lambda: _is_known(behind), "the fact is known")
    assert (await ask(behind, path, "The budget for the Hawaii trip?")).memory.startswith("used")
    answer = await ask(behind, path, QUESTION)
    assert answer.memory.startswith("used")
    assert "$10,000" in behind.shown
    kind = json.loads(answer.body).get("object")
    assert (kind == "response") is (path == PATH_RESPONSES), "the client gets the API that it called"
    assert behind.upstream.got[-1].path == PATH_CHAT
    assert behind.upstream.got[-1].headers["x-selected-model"] == "qwen3"
    assert answer.headers["x-vsr-response-path"] == "upstream"

    expected = {
        "The capital budget for the Hawaii trip?": "skipped_fact",
        f"NOMEM_MARKER {QUESTION}": "disabled",
        f"THRESHOLD_MARKER {QUESTION}": "nothing_relevant",
    }
    for words, outcome in expected.items():
        assert (await ask(behind, path, words)).memory == outcome, words
        assert not [name for name in behind.upstream.got[-1].headers if name.startswith("x-memory-")]


@pytest.mark.parametrize("path", PATHS)
async def test_a_pin_that_the_operator_lets_be_kept_is_recalled_for_the_one_who_said_it_and_nobody_else(
    behind: WholeStand, path: str
) -> None:
    await ask(behind, path, "Remember this: My secret PIN is 9876")
    await until(lambda: _is_known(behind), "the PIN is known")
    for user, recalled in (("bob", False), ("ann", True)):
        await ask(behind, path, "What is my PIN?", user=user)
        assert ("9876" in behind.shown) is recalled, user


async def _is_known(stand: WholeStand) -> bool:
    return stand.accepted >= 1


async def test_a_client_cannot_speak_for_a_decision_of_the_router(behind: WholeStand) -> None:
    answer = await ask(behind, PATH_CHAT, f"NOMEM_MARKER {QUESTION}", x_memory_decision="custom_threshold_route")
    assert answer.memory == "disabled"


@pytest.mark.parametrize(
    ("said", "path", "streamed"),
    [
        *((said, PATH_CHAT, False) for said in RECORDED["taught"]),
        # Every kind of teaching in the other forms of an answer.
        *((said, PATH_CHAT, True) for said in ("upstream", "cache", "blocked")),
        *((said, PATH_RESPONSES, at) for said in ("upstream", "cache", "blocked") for at in (False, True)),
    ],
)
async def test_before_the_router_nothing_is_learned_that_no_model_said(
    stand: Stand, said: str, path: str, *, streamed: bool
) -> None:
    if streamed and path == PATH_CHAT:
        stand.upstream.answers = a_stream(sse_events("Noted."))
    elif streamed:
        done = {"type": "response.completed", "response": RESPONSE}
        stand.upstream.answers = a_stream(
            [b"event: response.completed\ndata: " + json.dumps(done).encode() + b"\n\n"]
        )
    elif path == PATH_RESPONSES:
        stand.upstream.answers = an_answer(json.dumps(RESPONSE).encode())
    async with Router(said) as router:
        await stand.start(router.wiring(before_us=False))
        answer = await ask(stand, path, QUESTION)
        assert answer.memory.startswith("used")
        assert "<memories>" in json.dumps(router.seen[-1]), "the router sees what memory inserted"
        taught = RECORDED["taught"][said]
        if taught == "nothing":
            registry = stand.sidecar.metrics.registry
            await until(lambda: _refused(registry), "the turn is counted")
            assert stand.sidecar.learns.exchanged == []
            return
        await stand.sidecar.learns.wait_for(1)
    (turn,) = stand.sidecar.learns.exchanged
    assert turn.asked == QUESTION
    assert bool(turn.answered) is (taught == "whole")


async def _refused(registry: Any) -> bool:
    return bool(registry.get_sample_value("memory_extproc_turns_total", {"outcome": "router_refused"}))


async def test_its_classification_api_is_asked_and_read_as_recorded() -> None:
    recorded, asked = RECORDED["classification"], list[Any]()

    async def classify(request: web.Request) -> web.StreamResponse:
        asked.append(await request.json())
        return web.json_response(recorded["response"])

    application = web.Application()
    application.router.add_post(recorded["path"], classify)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url, timeout = f"http://127.0.0.1:{runner.addresses[0][1]}", timedelta(seconds=30)
        section, metrics = ClassifierSection(url=url, timeout=timeout), Metrics(CollectorRegistry(), "test")
        async with FactClassifier(section, metrics, lambda: 0.0) as classifier:
            assert await classifier.is_fact(recorded["request"]["text"], timedelta(seconds=30)) == (
                True,
                "answered",
            )
    finally:
        await runner.cleanup()
    assert asked == [recorded["request"]]
