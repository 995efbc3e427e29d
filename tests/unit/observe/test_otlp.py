"""Spans and metrics without a collector: the exporter is never reached."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from memory_extproc.model import Owner
from memory_extproc.observe.otlp import KEPT, OtlpTraces

ANN = Owner("acme", "ann")
COLLECTED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Ended(SpanProcessor):
    """Spans as they end."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


class Bench:
    def __init__(self, **options: Any) -> None:
        self.ended = Ended()
        self.traces = OtlpTraces("", "test", ended=self.ended, **options)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    async with made.traces:
        yield made


async def work(_: Owner, __: Sequence[Any]) -> None:
    """Nothing goes wrong."""


async def test_an_exception_appears_by_its_kind_and_never_by_its_words(bench: Bench) -> None:
    span = bench.traces.exchange(COLLECTED)
    with pytest.raises(ValueError, match="Hawaii"), span.active(), bench.traces.stage("search"):
        raise ValueError("my budget for Hawaii")
    span.end()
    assert [(each.name, each.status.description) for each in bench.ended.spans] == [
        ("memory.search", "ValueError"),
        ("memory.exchange", None),
    ]
    assert [event for each in bench.ended.spans for event in each.events] == []


async def test_a_stage_outside_of_an_exchange_is_no_span(bench: Bench) -> None:
    with bench.traces.stage("search"):
        pass
    assert bench.ended.spans == []


async def test_steps_on_turns_that_nobody_traced_are_no_spans(bench: Bench) -> None:
    await bench.traces.trace_step("learn.extract", work)(ANN, [("a", "b")])
    assert bench.ended.spans == []


async def test_a_step_is_linked_to_every_exchange_that_led_to_it_and_is_no_part_of_them(bench: Bench) -> None:
    for turn in ("a", "b"):
        with bench.traces.exchange(COLLECTED).active():
            bench.traces.keep(turn)
    await bench.traces.trace_step("learn.extract", work)(ANN, [("a", "b", "c")])
    (step,) = bench.ended.spans
    assert (step.name, len(step.links), step.parent) == ("memory.learn.extract", 2, None)
    assert dict(step.attributes or {}) == {"memory.turns": 3}


async def test_what_is_kept_of_turns_is_bounded(bench: Bench) -> None:
    with bench.traces.exchange(COLLECTED).active():
        for number in range(KEPT + 1):
            bench.traces.keep(str(number))
    await bench.traces.trace_step("learn.remember", work)(ANN, ["0"])
    assert bench.ended.spans == []  # the oldest is forgotten
    await bench.traces.trace_step("learn.remember", work)(ANN, ["1"])
    assert len(bench.ended.spans) == 1


async def test_without_a_gateways_trace_the_share_decides() -> None:
    bench = Bench(share=0.0)
    async with bench.traces:
        own, joined = bench.traces.exchange(""), bench.traces.exchange(COLLECTED)
        own.end()
        joined.end()
    assert (own.trace.sampled, joined.trace.sampled) == (False, True)
    assert len(bench.ended.spans) == 1


@pytest.mark.parametrize("content", [False, True])
async def test_words_are_shown_only_where_an_operator_wants_it(content: bool) -> None:
    bench = Bench(content=content)
    async with bench.traces:
        span = bench.traces.exchange(COLLECTED)
        with span.active():
            bench.traces.show(asked="my budget?", block="")
        span.end()
    shown = dict(bench.ended.spans[0].attributes or {})
    assert shown == ({"memory.asked": "my budget?"} if content else {})
