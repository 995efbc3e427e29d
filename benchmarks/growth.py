"""Part (e): does a search slow down as the store fills with other people's memories?"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from benchmarks.figures import Growth, Size, Spread, median, percentile
from benchmarks.lines import Child, child
from benchmarks.one_store import Asked, Told
from tests.support.milvus_server import milvus_server

LITE, SERVER = "Milvus Lite", "Milvus 2.3.5"
FILL_WITHIN = 3600.0  # seconds; a million rows take minutes
ROUND_WITHIN = 120.0
KINDS = ("store", "cold", "warm")


def sizes(*, quick: bool, million: bool) -> list[int]:
    if quick:
        return [1_000, 10_000]
    return [10_000, 100_000, 1_000_000] if million else [10_000, 100_000]


async def growth(scratch: Path, order: random.Random, *, quick: bool, million: bool) -> Growth:
    measured: dict[str, list[Size]] = {}
    missing: dict[str, str] = {}
    wanted = sizes(quick=quick, million=million)
    rounds, calls = (2, 100) if quick else (5, 300)
    for backend in (LITE, SERVER):
        async with AsyncExitStack() as stack:
            address = ""
            if backend == SERVER:
                # It starts and is killed by blocking calls.
                server = milvus_server(scratch)
                try:
                    address = (await asyncio.to_thread(server.__enter__)).address
                except pytest.skip.Exception as error:
                    missing[backend] = str(error)
                    continue
                stack.push_async_callback(asyncio.to_thread, server.__exit__, None, None, None)
            measured[backend] = await _backend(stack, scratch, address, wanted, order, rounds, calls)
    ratios = {
        backend: {kind: getattr(found[-1], kind).p50 / getattr(found[0], kind).p50 for kind in KINDS}
        for backend, found in measured.items()
    }
    return Growth(sizes=measured, ratios=ratios, missing=missing)


async def _backend(
    stack: AsyncExitStack,
    scratch: Path,
    address: str,
    wanted: list[int],
    order: random.Random,
    rounds: int,
    calls: int,
) -> list[Size]:
    """All sizes stand at the same time and take turns, so that the machine's moods meet them alike."""
    stores: dict[int, Child] = {}
    filling: dict[int, float] = {}
    for rows in wanted:
        arguments = (str(scratch), address, f"bench_{rows}")
        stores[rows] = await stack.enter_async_context(child("one_store", *arguments, scratch=scratch))
        told = await stores[rows].ask(Asked(fill=rows, seed=rows), Told, within=FILL_WITHIN)
        filling[rows] = rows / told.took
    times: defaultdict[tuple[int, str], list[list[float]]] = defaultdict(list)
    for number in range(rounds):
        for rows in order.sample(wanted, len(wanted)):
            told = await stores[rows].ask(Asked(calls=calls, seed=number), Told, within=ROUND_WITHIN)
            for kind in KINDS:
                times[rows, kind].append(getattr(told, kind))
    return [
        Size(rows=rows, filling=filling[rows], **{kind: _spread(times[rows, kind]) for kind in KINDS})
        for rows in wanted
    ]


def _spread(rounds: list[list[float]]) -> Spread:
    """The median of the rounds' p50, and the p99 of all together."""
    p99 = percentile([took for one in rounds for took in one], 99)
    return Spread(1000 * median([percentile(one, 50) for one in rounds]), 1000 * p99)
