"""The contents of the metrics, and words that they never hold."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
import yaml
from prometheus_client import CollectorRegistry

from memory_extproc.observe.log import configure
from memory_extproc.observe.metrics import PREFIX, Metrics
from tests.support.chart import CHART
from tests.support.waiting import until
from tests.support.whole import WholeStand

SAID = "My quaggamarsh budget for the Hawaii trip is $10,000."


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    configure("debug", "json", stream)
    yield stream
    structlog.reset_defaults()


FEW = 20  # series, where nine hundred callers more came


async def turns(whole: WholeStand, users: range, **headers: str) -> None:
    """One of each."""
    places = asyncio.Semaphore(16)

    async def turn(number: int) -> None:
        whose = {
            "x_authz_tenant_id": f"tenant{number % 50}",
            "x_session_id": f"sess-{number}",
            "x_memory_project": f"proj-{number}",
        }
        async with places:
            assert (await whole.say(SAID, user=f"person{number}", **whose, **headers)).status == 200

    await asyncio.gather(*(turn(number) for number in users))


async def learned(whole: WholeStand) -> None:
    def all_of_it() -> bool:
        turns = whole.sample("turns_total", outcome="journalled") + whole.sample(
            "turns_total", outcome="journal_late"
        )
        return whole.sample("extraction_seconds_count", extractor="rules") == turns

    await until(all_of_it, "all of it is learned", seconds=60)


async def test_the_number_of_series_does_not_follow_the_callers_and_none_of_their_names_is_in_them(
    whole: WholeStand, lines: io.StringIO
) -> None:
    whole.changes["telemetry"] = {"tenants": ["tenant7"]}
    await whole.start()
    # Whose sessions end at once, so that facts are extracted from them too: what there is to count of learning.
    await turns(whole, range(50), x_memory_session="end")
    await learned(whole)
    await turns(whole, range(50, 100), x_memory_store="skip")
    _, before = await whole.http("/metrics")
    await turns(whole, range(100, 120), x_memory_session="end")
    await learned(whole)
    await turns(whole, range(120, 1000), x_memory_store="skip")
    _, after = await whole.http("/metrics")
    # A machine that is busy may bring an outcome that was not there before; a caller brings nothing.
    assert len(series(after) - series(before)) < FEW
    for private in ("person", "sess-", "proj-", "quaggamarsh", "tenant8"):
        assert private not in after
        assert private not in lines.getvalue()
    assert whole.sample("arm_exchanges_total", tenant="tenant7", arm="memory") == 20
    assert whole.sample("arm_exchanges_total", tenant="other", arm="memory") == 980


def series(text: str) -> set[str]:
    """What a value is a value of."""
    return {line.rpartition(" ")[0] for line in text.splitlines() if line and not line.startswith("#")}


def test_every_metric_that_a_board_or_a_rule_asks_for_is_there() -> None:
    families = {family.name: family.type for family in Metrics(CollectorRegistry(), "0").registry.collect()}
    ends = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",), "info": ("_info",)}
    there = {name + end for name, kind in families.items() for end in ends[kind]}
    asked = {name for path in sources() for name in re.findall(rf"\b{PREFIX}\w+", path.read_text())}
    recorded = {
        rule["record"]
        for path in (CHART / "rules").glob("*.yaml")
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
        if "record" in rule
    }
    asked = {name for name in asked if not any(name in each for each in recorded)}
    assert len(asked) > 20
    assert asked - there == set()


def sources() -> list[Path]:
    return [*(CHART / "dashboards").glob("*.json"), *(CHART / "rules").glob("*.yaml")]
