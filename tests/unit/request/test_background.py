from __future__ import annotations

import asyncio
from datetime import timedelta

from prometheus_client import CollectorRegistry

from memory_extproc.concurrency import Background, locate_error
from memory_extproc.observe.metrics import Metrics

LONG = timedelta(seconds=5)
SHORT = timedelta(milliseconds=10)


def faults(metrics: Metrics, kind: str) -> float:
    return metrics.registry.get_sample_value("memory_extproc_stream_faults_total", {"kind": kind}) or 0.0


async def test_leaving_waits_for_what_was_begun() -> None:
    done = []

    async def work() -> None:
        await asyncio.sleep(0)
        done.append(1)

    async with Background(Metrics(CollectorRegistry(), "test"), grace=LONG) as background:
        background.start(work())
    assert done == [1]


async def test_leaving_gives_up_after_the_grace() -> None:
    cancelled = asyncio.Event()

    async def for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with Background(Metrics(CollectorRegistry(), "test"), grace=SHORT) as background:
        background.start(for_ever())
    assert cancelled.is_set()


async def test_work_goes_on_when_who_waits_for_it_is_cancelled() -> None:
    release, done = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await release.wait()
        done.set()

    async with Background(Metrics(CollectorRegistry(), "test"), grace=LONG) as background:
        waiter = asyncio.ensure_future(background.see_to_its_end(work(), LONG))
        await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
        release.set()
    assert done.is_set()


async def test_a_fault_in_the_background_is_counted_and_harms_nobody() -> None:
    metrics = Metrics(CollectorRegistry(), "test")

    async def broken() -> None:
        raise RuntimeError("a person's words")

    async with Background(metrics, grace=LONG) as background:
        await background.see_to_its_end(broken(), LONG)
    assert faults(metrics, "bug") == 1


async def test_more_than_there_is_place_for_is_refused_and_counted() -> None:
    metrics = Metrics(CollectorRegistry(), "test")
    release = asyncio.Event()

    async def work() -> None:
        await release.wait()

    async with Background(metrics, grace=LONG, most=1) as background:
        assert background.start(work()) is not None
        assert background.start(work()) is None
        release.set()
    assert faults(metrics, "background_full") == 1


def test_a_fault_is_told_by_its_place_and_never_by_its_text() -> None:
    try:
        int("a person's words")
    except ValueError as error:
        told = locate_error(error)
    assert told.startswith("test_background.py:")
    assert "words" not in told
