"""The contract of ports.CompletionModel, held by the endpoint's client and by the stand-in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry

from memory_extproc.errors import PermanentError, TransientError
from memory_extproc.inference.openai_client import EndpointLimits, ModelEndpoint
from memory_extproc.inference.openai_models import OpenAICompletions
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import CompletionModel
from memory_extproc.testing.models import CannedCompletions
from tests.support.endpoint import Reply, a_completion, a_model, an_error, serving

Answers = list[str | Exception]
Opening = Callable[[Answers], AbstractAsyncContextManager[CompletionModel]]


@asynccontextmanager
async def canned(answers: Answers) -> AsyncIterator[CompletionModel]:
    yield CannedCompletions(answers)


def reply(answer: str | Exception) -> Reply:
    if isinstance(answer, Exception):
        return an_error(503 if isinstance(answer, TransientError) else 400)
    return a_completion(answer)


@asynccontextmanager
async def endpoint(answers: Answers) -> AsyncIterator[CompletionModel]:
    async with serving([reply(answer) for answer in answers]) as stand_in:
        completions = OpenAICompletions(
            ModelEndpoint(
                EndpointLimits(base_url=stand_in.base_url, attempts=1),
                role="memory_extraction",
                marker="",
                metrics=Metrics(CollectorRegistry(), "test"),
                rng=lambda: 0.0,
                clock=lambda: 0.0,
            ),
            a_model(),
        )
        try:
            yield completions
        finally:
            await completions.close()


@pytest.fixture(params=[canned, endpoint])
def opening(request: pytest.FixtureRequest) -> Opening:
    chosen: Opening = request.param
    return chosen


async def test_answers_come_back_as_text(opening: Opening) -> None:
    async with opening(["one", '{"two": 2}']) as completes:
        assert await completes.complete("s", "u") == "one"
        assert await completes.complete("s", "u", schema={"type": "object"}) == '{"two": 2}'


@pytest.mark.parametrize("fault", [TransientError("down"), PermanentError("bad request")])
async def test_a_fault_is_of_the_kind_that_says_what_to_do(opening: Opening, fault: Exception) -> None:
    async with opening([fault, "back"]) as completes:
        with pytest.raises(type(fault)):
            await completes.complete("s", "u")
        assert await completes.complete("s", "u") == "back"
