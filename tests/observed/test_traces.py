"""Traces as a collector receives them, through the real Envoy: one trace from the gateway to what was learned."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator, Iterator

import pytest
import structlog
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from memory_extproc.observe.log import configure
from tests.support.collector import Collector, attributes
from tests.support.envoy import Wiring
from tests.support.waiting import until
from tests.support.whole import WholeStand

TOLD = "My budget for the Hawaii trip is $10,000."
ASKED = "What is my budget for the Hawaii trip?"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
STAGES = {"memory.gate", "memory.query", "memory.embed", "memory.search", "memory.rank", "memory.splice"}


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    async with Collector() as made:
        yield made


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    configure("debug", "json", stream)
    yield stream
    structlog.reset_defaults()


def _parsed(text: str) -> list[Metric]:
    return list(text_string_to_metric_families(text))  # type: ignore[no-untyped-call]


async def talk(whole: WholeStand, collector: Collector, *, envoys: bool, **telemetry: object) -> None:
    """Something is told and then asked for; the sidecar has left, so that all spans are sent."""
    whole.changes["telemetry"] = {"otlp_endpoint": f"http://127.0.0.1:{collector.port}", **telemetry}
    await whole.start(Wiring(collector=collector.port if envoys else 0))
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    assert (await whole.say(TOLD, **headers)).status == 200
    assert (await whole.say(ASKED, **headers)).memory.startswith("used")
    await whole.stop_sidecar()


async def test_an_exchange_joins_envoys_trace_with_a_span_for_each_stage(
    whole: WholeStand, collector: Collector
) -> None:
    await talk(whole, collector, envoys=True)
    gateways = collector.spans  # Envoy sends its own a moment later
    await until(lambda: len(gateways("gateway")) >= 2, "Envoy has sent its spans", seconds=10)
    ours = collector.spans("memory-extproc")
    assert {span.trace_id.hex() for span in ours if not span.links} == {TRACE}
    exchange = next(span for span in ours if attributes(span).get("memory.outcome") == "used")
    assert exchange.name == "memory.exchange"
    # Its parent is the span of Envoy's that called us, not the client's that the header names.
    assert exchange.parent_span_id.hex() != PARENT
    assert exchange.parent_span_id in {span.span_id for span in gateways("gateway")}
    assert attributes(exchange)["memory.memories"] == 1
    assert attributes(exchange)["memory.arm"] == "memory"
    assert {span.name for span in ours if span.parent_span_id == exchange.span_id} >= STAGES


async def test_without_envoys_own_span_the_header_is_joined(whole: WholeStand, collector: Collector) -> None:
    await talk(whole, collector, envoys=False)
    exchanges = [span for span in collector.spans("memory-extproc") if span.name == "memory.exchange"]
    assert {(span.trace_id.hex(), span.parent_span_id.hex()) for span in exchanges} == {(TRACE, PARENT)}


async def test_what_is_learned_is_linked_to_the_exchange_that_said_it(
    whole: WholeStand, collector: Collector
) -> None:
    await talk(whole, collector, envoys=False)
    ours = collector.spans("memory-extproc")
    exchanges = {span.span_id for span in ours if span.name == "memory.exchange"}
    for step in ("memory.learn.remember", "memory.learn.extract"):
        linked = {link.span_id for span in ours if span.name == step for link in span.links}
        assert linked == exchanges, step


@pytest.mark.parametrize("content", [False, True])
async def test_words_are_in_spans_only_where_an_operator_wants_it(
    whole: WholeStand, collector: Collector, content: bool
) -> None:
    await talk(whole, collector, envoys=False, content=content)
    assert len(collector.spans("memory-extproc")) > 0
    assert (b"Hawaii" in collector.everything) is content
    assert b"ann" not in collector.everything  # the caller, in any case


async def test_a_trace_that_the_gateway_does_not_collect_is_not_collected(
    whole: WholeStand, collector: Collector
) -> None:
    whole.changes["telemetry"] = {"otlp_endpoint": f"http://127.0.0.1:{collector.port}"}
    await whole.start()
    assert (await whole.say(TOLD, traceparent=f"00-{TRACE}-{PARENT}-00")).status == 200
    await whole.stop_sidecar()
    assert collector.spans("memory-extproc") == []


async def test_a_collector_that_is_away_costs_no_request_its_memory(whole: WholeStand) -> None:
    whole.changes["telemetry"] = {"otlp_endpoint": "http://127.0.0.1:9"}
    await whole.start()
    assert (await whole.say(TOLD)).status == 200
    assert (await whole.say(ASKED)).memory.startswith("used")


async def test_log_lines_carry_the_ids_of_their_exchange_and_the_caller_as_a_hash(
    whole: WholeStand, lines: io.StringIO
) -> None:
    await whole.start()
    await whole.say(TOLD, traceparent=f"00-{TRACE}-{PARENT}-01", x_request_id="5f0c7a3e-1")
    decided = [json.loads(line) for line in lines.getvalue().splitlines() if "exchange.decided" in line]
    (line,) = decided
    assert line["trace_id"] == TRACE
    assert line["request_id"]
    assert len(line["caller"]) == 12
    assert '"ann"' not in lines.getvalue()


async def test_prometheus_is_given_a_trace_as_an_example_of_a_recall(whole: WholeStand) -> None:
    await whole.start()
    await whole.say(TOLD, traceparent=f"00-{TRACE}-{PARENT}-01")
    await whole.say(TOLD, traceparent=f"00-{'1' * 32}-{PARENT}-00")
    url, accept = (
        f"http://{whole.whole.http}/metrics",
        "application/openmetrics-text;version=1.0.0,text/plain;q=0.5",
    )
    async with whole.session.get(url, headers={"accept": accept}) as answer:
        assert answer.content_type == "application/openmetrics-text"
        families = {family.name: family for family in _parsed(await answer.text())}
    shown = [sample.exemplar for sample in families["memory_extproc_recall_seconds"].samples if sample.exemplar]
    assert {exemplar.labels["trace_id"] for exemplar in shown} == {TRACE}
    status, text = await whole.http("/metrics")
    assert status == 200
    assert TRACE not in text
