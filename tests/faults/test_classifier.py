"""The semantic router's classification API, asked over a real connection: what it says, and every way it fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from memory_extproc.concurrency import BreakerLimits
from memory_extproc.inference.classifier import FactClassifier
from memory_extproc.observe.metrics import Metrics
from memory_extproc.settings.traffic import ClassifierSection

LONG = timedelta(seconds=30)
Answers = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Router:
    """Plays the classification API, at the place where it is since version 0.4.0 or where it was before."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.paths: list[str] = []
        self.asked: list[dict[str, str]] = []
        self.keys: list[str] = []
        self.answers: Answers = self.says_fact

    async def says_fact(self, _: web.Request) -> web.StreamResponse:
        return web.json_response(
            {"needs_fact_check": True, "label": "FACT_CHECK_NEEDED", "confidence": 0.97, "processing_time_ms": 3}
        )

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.paths.append(request.path)
        if request.path != self.path:
            raise web.HTTPNotFound
        self.asked.append(await request.json())
        self.keys.append(request.headers.get("authorization", ""))
        return await self.answers(request)


PATHS = ("/api/v1/diagnostics/classify/fact-check", "/api/v1/classify/fact-check")


@pytest.fixture(params=PATHS)
def router(request: pytest.FixtureRequest) -> Router:
    return Router(request.param)


@pytest.fixture
async def classifier(router: Router) -> AsyncIterator[FactClassifier]:
    application = web.Application()
    application.router.add_post("/{path:.*}", router.handle)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        url = f"http://{host}:{port}/"
        section = ClassifierSection(url=url, access_key=SecretStr("sesame"), timeout=LONG, cache=2)
        metrics, breaker = Metrics(CollectorRegistry(), "test"), BreakerLimits(failures=3)
        async with FactClassifier(section, metrics, lambda: 0.0, breaker) as made:
            yield made
    finally:
        await runner.cleanup()


async def test_a_question_is_asked_once_and_then_known(router: Router, classifier: FactClassifier) -> None:
    assert await classifier.is_fact("Who wrote Faust?", LONG) == (True, "answered")
    assert await classifier.is_fact("Who wrote Faust?", LONG) == (True, "cached")
    assert router.asked == [{"text": "Who wrote Faust?"}]
    assert router.keys == ["Bearer sesame"]
    for other in ("a", "b", "c"):
        await classifier.is_fact(other, LONG)
    assert (await classifier.is_fact("Who wrote Faust?", LONG))[1] == "answered", "the least recently used went"
    assert router.paths[-4:] == [router.path] * 4, "the place is searched once"


async def html(_: web.Request) -> web.StreamResponse:
    return web.Response(text="<html>sign in</html>", content_type="text/html")


async def other_json(_: web.Request) -> web.StreamResponse:
    return web.json_response({"needs_fact_check": "maybe"})


async def garbage(_: web.Request) -> web.StreamResponse:
    return web.Response(body=b"\xff\x00{", content_type="application/json")


async def endless(_: web.Request) -> web.StreamResponse:
    return web.Response(body=b'{"needs_fact_check": true, "x": "' + b"x" * 1_000_000)


async def refuses(_: web.Request) -> web.StreamResponse:
    return web.json_response({"error": {"code": "FORBIDDEN"}}, status=403)


async def redirects(_: web.Request) -> web.StreamResponse:
    return web.Response(status=307, headers={"location": "http://127.0.0.1:9/"})


@pytest.mark.parametrize(
    ("answers", "outcome"),
    [
        (html, "unreadable"),
        (other_json, "unreadable"),
        (garbage, "unreadable"),
        (endless, "unreadable"),
        (refuses, "failed"),
        (redirects, "failed"),
    ],
)
async def test_an_answer_that_is_none_says_nothing_and_then_it_is_left_alone(
    router: Router, classifier: FactClassifier, answers: Answers, outcome: str
) -> None:
    router.answers = answers
    for text in ("a", "b", "c"):
        assert await classifier.is_fact(text, LONG) == (None, outcome)
    assert await classifier.is_fact("d", LONG) == (None, "open")
    assert len(router.asked) == 3


async def test_a_classifier_that_hangs_costs_no_more_than_there_is_time(
    router: Router, classifier: FactClassifier
) -> None:
    async def hangs(_: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    router.answers = hangs
    assert await classifier.is_fact("a", timedelta(milliseconds=1)) == (None, "late")
    assert await classifier.is_fact("a", timedelta(seconds=-1)) == (None, "late")


async def test_without_a_url_nobody_is_asked() -> None:
    async with FactClassifier(ClassifierSection(), Metrics(CollectorRegistry(), "test"), lambda: 0.0) as classifier:
        assert await classifier.is_fact("a", LONG) == (None, "")


async def test_a_router_that_is_not_there_says_nothing() -> None:
    section = ClassifierSection(url="http://127.0.0.1:9", timeout=LONG)
    async with FactClassifier(section, Metrics(CollectorRegistry(), "test"), lambda: 0.0) as classifier:
        assert await classifier.is_fact("a", LONG) == (None, "failed")
