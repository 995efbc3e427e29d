"""Ids that lead from one place to another, and what they must not carry."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_extproc.model import Owner
from memory_extproc.observe.log import NO_TRACES, TraceParent, Trail, current, exemplar, following, with_ids

TRACE = "0af7651916cd43dd8448eb211c80319c"
SAMPLED = TraceParent(TRACE, sampled=True)


@pytest.mark.parametrize(
    ("header", "parsed"),
    [
        (f"00-{TRACE}-b7ad6b7169203331-01", SAMPLED),
        (f"  00-{TRACE}-b7ad6b7169203331-03 ", SAMPLED),
        (f"00-{TRACE}-b7ad6b7169203331-00", TraceParent(TRACE, sampled=False)),
        (f"01-{TRACE}-b7ad6b7169203331-01-more", SAMPLED),  # a later version may add
        (f"ff-{TRACE}-b7ad6b7169203331-01", TraceParent()),
        (f"00-{'0' * 32}-b7ad6b7169203331-01", TraceParent()),
        (f"00-{TRACE}-{'0' * 16}-01", TraceParent()),
        (f"00-{TRACE.upper()}-b7ad6b7169203331-01", TraceParent()),
        (f"00-{TRACE}-b7ad6b7169203331", TraceParent()),
        ("", TraceParent()),
    ],
)
def test_a_traceparent_is_read_as_the_standard_writes_it(header: str, parsed: TraceParent) -> None:
    assert TraceParent.parse(header) == parsed


@given(st.text())
def test_whatever_a_client_sends_as_ids_is_no_words_in_a_log(sent: str) -> None:
    trail = Trail(TraceParent.parse(sent), sent)
    for _, value in trail.ids():
        assert value.isascii()
        assert not any(char.isspace() for char in value)
        assert len(value) <= 128


def test_a_line_carries_the_ids_of_the_exchange_that_it_is_about_and_no_other() -> None:
    trail = Trail(SAMPLED, "5f0c")
    trail.caller = "abcdef"
    assert with_ids(None, "info", {"event": "a.b"}) == {"event": "a.b"}
    with following(trail):
        ids = {"trace_id": TRACE, "request_id": "5f0c", "caller": "abcdef"}
        assert with_ids(None, "info", {"event": "a.b"}) == {"event": "a.b", **ids}
        with following(None):
            assert with_ids(None, "info", {"event": "a.b"}) == {"event": "a.b"}
    assert current() is None


async def test_work_that_outlives_the_exchange_it_began_with_carries_its_ids_no_more() -> None:
    trail, gone = Trail(SAMPLED), asyncio.Event()

    async def later() -> Trail | None:
        await gone.wait()
        return current()

    with following(trail):
        task = asyncio.create_task(later())
        assert exemplar() == {"trace_id": TRACE}
    trail.open = False
    gone.set()
    assert await task is None


def test_only_a_trace_that_is_collected_is_an_example() -> None:
    assert exemplar() is None
    with following(Trail(TraceParent(TRACE, sampled=False))):
        assert exemplar() is None


async def test_learning_is_about_no_single_exchange() -> None:
    seen: list[Trail | None] = []

    async def work(_: Owner, __: Sequence[Any]) -> None:
        seen.append(current())

    with following(Trail(SAMPLED)):
        await NO_TRACES.trace_step("learn", work)(Owner("", "ann"), ["turn"])
    assert seen == [None]
