"""Models that think before they answer: asked with what they need, and left alone where that does not help."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from memory_extproc.errors import ModelStoppedError, PermanentError, TruncatedAnswerError
from memory_extproc.inference.openai_client import EndpointLimits, ModelEndpoint
from memory_extproc.inference.openai_models import OpenAICompletions
from memory_extproc.learn.extract.extractor import Fallback, Measured
from memory_extproc.learn.extract.llm_client import Budget
from memory_extproc.learn.extract.llm_extractor import LlmExtractor
from memory_extproc.learn.extract.rules import RulesExtractor
from memory_extproc.observe.metrics import Metrics
from memory_extproc.settings.memory import ExternalModel
from tests.support.builders import MONDAY, a_turn, tokens
from tests.support.endpoint import Reply, StandIn, a_completion, a_model, an_error, serving

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"facts": {"type": "array"}}, "required": ["facts"]}
ROLE = "memory_extraction"
THINKS = a_completion(None, finish_reason="length", reasoning="The user wonders")
FACTS = a_completion('{"facts": []}', reasoning="They said nothing.")
HALF_AN_HOUR = 1_800.0


class Bench:
    def __init__(self, base_url: str, model: ExternalModel) -> None:
        self.time = 0.0
        self.metrics = Metrics(CollectorRegistry(), "test")
        endpoint = ModelEndpoint(
            EndpointLimits(base_url=base_url, timeout=timedelta(seconds=5), attempts=1),
            role=ROLE,
            marker="m",
            metrics=self.metrics,
            rng=lambda: 0.5,
            clock=lambda: self.time,
        )
        self.completions = OpenAICompletions(endpoint, model)

    async def ask(self) -> str:
        return await self.completions.complete("", "what they said", schema=SCHEMA)

    def sample(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"memory_extproc_{name}", {"role": ROLE, **labels})


@asynccontextmanager
async def asking(
    *replies: Reply, by: Callable[[dict[str, Any]], Reply] | None = None, **fields: Any
) -> AsyncIterator[tuple[StandIn, Bench]]:
    async with serving(by or replies) as stand_in:
        bench = Bench(stand_in.base_url, a_model(**fields))
        try:
            yield stand_in, bench
        finally:
            await bench.completions.close()


async def test_further_fields_and_the_effort_of_reasoning_are_sent_with_each_request() -> None:
    extra = {"chat_template_kwargs": {"enable_thinking": False}, "top_p": 0.9}
    async with asking(FACTS, extra_body=extra, reasoning_effort="low") as (stand_in, bench):
        await bench.ask()
        await bench.ask()
    for asked in stand_in.asked:
        assert asked.items() >= {**extra, "reasoning_effort": "low", "max_tokens": 500}.items()


async def test_a_request_says_nothing_of_reasoning_unless_it_is_configured() -> None:
    async with asking(FACTS) as (stand_in, bench):
        await bench.ask()
    assert {"reasoning_effort", "extra_body", "chat_template_kwargs"}.isdisjoint(stand_in.asked[0])


@pytest.mark.parametrize(
    "reply",
    [
        THINKS,
        a_completion("<think>hm", finish_reason="length"),
        a_completion('{"facts": [', finish_reason="length"),
    ],
    ids=["reasoning apart", "reasoning within", "half an answer"],
)
async def test_an_answer_that_is_cut_off_raises_the_limit_once_and_for_all(reply: Reply) -> None:
    async with asking(reply, FACTS) as (stand_in, bench):
        with capture_logs() as logs:
            assert await bench.ask() == '{"facts": []}'
            assert await bench.ask() == '{"facts": []}'
    assert [asked["max_tokens"] for asked in stand_in.asked] == [500, 4000, 4000]
    assert [line["max_tokens"] for line in logs if line["event"] == "llm.limit_raised"] == [4000]
    assert bench.sample("llm_requests_total", outcome="ok") == 2


async def test_a_limit_beyond_the_models_window_is_taken_back() -> None:
    def answer(asked: dict[str, Any]) -> Reply:
        return an_error(400, "maximum context length is 4096 tokens") if asked["max_tokens"] > 500 else THINKS

    async with asking(by=answer) as (stand_in, bench):
        for _ in range(2):
            with pytest.raises(PermanentError, match="cut_off"):
                await bench.ask()
    assert [asked["max_tokens"] for asked in stand_in.asked] == [500, 4000, 500]
    assert all(asked["response_format"]["type"] == "json_schema" for asked in stand_in.asked)


async def test_a_model_that_only_thinks_is_asked_no_more_and_that_is_said_once() -> None:
    async with asking(THINKS) as (stand_in, bench):
        with capture_logs() as logs:
            for _ in range(10):
                with pytest.raises(PermanentError) as failed:
                    await bench.ask()
                assert not isinstance(failed.value, TruncatedAnswerError)  # a shorter task would not help
        assert isinstance(failed.value, ModelStoppedError)
        assert len(stand_in.asked) == 5
        assert [line["event"] for line in logs].count("llm.stopped") == 1
        assert bench.sample("llm_requests_total", outcome="stopped") == 6
        assert bench.sample("llm_usable") == 0


async def test_it_is_asked_again_after_half_an_hour_and_stays_when_its_answers_can_be_used() -> None:
    async with asking(*[THINKS] * 6, FACTS) as (stand_in, bench):
        for _ in range(4):
            with pytest.raises(PermanentError):
                await bench.ask()
        bench.time = HALF_AN_HOUR
        with pytest.raises(PermanentError, match="cut_off"):
            await bench.ask()
        with pytest.raises(ModelStoppedError):
            await bench.ask()
        bench.time = 2 * HALF_AN_HOUR
        assert [await bench.ask() for _ in range(3)] == ['{"facts": []}'] * 3
        assert len(stand_in.asked) == 9
        assert bench.sample("llm_usable") == 1


async def test_ten_turns_with_a_model_that_only_thinks_cost_few_calls_and_are_learned_by_rules() -> None:
    async with asking(THINKS) as (stand_in, bench):
        budget = Budget(tokens(all_day=10**6), now=lambda: MONDAY)
        by_model = LlmExtractor(bench.completions, budget)
        extractor = Fallback(by_model, Measured(RulesExtractor(), bench.metrics, lambda: 0.0))
        facts, spent = [], []
        with capture_logs() as logs:
            for _ in range(10):
                facts += await extractor.extract([a_turn("I live in Portland.", "Noted.")])
                spent.append(budget._day.spent.total())
    assert len(stand_in.asked) == 5
    assert len(facts) == 10
    assert [line["event"] for line in logs].count("extract.fallback") == 4
    assert spent[3] > spent[2]
    assert len(set(spent[3:])) == 1  # what is not asked is not paid for


@pytest.mark.parametrize(
    ("reply", "usable"),
    [
        (a_completion('<think>2 + 2</think>{"answer": 4}'), True),
        (a_completion('[THINK]2 + 2[/THINK]{"answer": 4}'), True),
        (a_completion('{"answer": 4}', reasoning="2 + 2"), True),
        (a_completion("It is four."), False),
        (THINKS, False),
        (a_completion(None, reasoning="It is 4."), False),
        (an_error(401), False),
        (an_error(400, param="chat_template_kwargs"), False),
        (Reply("<html>"), False),
    ],
)
async def test_the_probe_says_whether_answers_can_be_used_and_never_fails(reply: Reply, *, usable: bool) -> None:
    async with asking(reply) as (stand_in, bench):
        stand_in.scripts_probes = True
        with capture_logs() as logs:
            await bench.completions.probe()
        (line,) = [line for line in logs if line["event"] == "llm.probed"]
        assert line["usable"] is usable
        assert bench.sample("llm_usable") == usable
