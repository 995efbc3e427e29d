"""A store and a coordination, with as many partitions before them as a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry

from memory_extproc.model import Embedded, Owner, Scope, SearchResult, Vector
from memory_extproc.observe.metrics import Metrics
from memory_extproc.store.loader import PartitionLimits
from memory_extproc.store.partition import Partitions
from memory_extproc.testing.adapters import InMemoryCoordination, InMemoryStore
from tests.support.builders import ANN, Clock, a_memory

DIMENSION = 4
EVERYTHING = Scope()
AT_ONCE = timedelta(0)  # no patience: what is answered without a fill


def pointing(angle: float) -> Vector:
    return np.array([np.cos(angle), np.sin(angle), 0, 0], dtype=np.float32)


def a_row(content: str, owner: Owner = ANN, angle: float = 0.0, **changes: Any) -> Embedded:
    memory = a_memory(content, owner, **changes)
    return Embedded(memory, pointing(angle))


@dataclass
class Setting:
    """One store and one coordination, with as many processes in front of them as a test wants."""

    clock: Clock
    store: InMemoryStore
    coordination: InMemoryCoordination
    registry: CollectorRegistry

    def process(self, **limits: object) -> Partitions:
        chosen = replace(PartitionLimits(patience=timedelta(seconds=5)), **limits)  # type: ignore[arg-type]
        return Partitions(
            self.store, self.coordination, chosen, Metrics(CollectorRegistry(), "test"), now=self.clock
        )


def a_setting(*, lags: bool = False, finds_words: bool = False) -> Setting:
    clock = Clock()
    store = InMemoryStore(DIMENSION, now=clock, lags=lags, finds_words=finds_words)
    return Setting(clock, store, InMemoryCoordination(clock), CollectorRegistry())


async def until(condition: Callable[[], bool], what: str) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError(f"waited in vain until {what}")


async def search(
    partitions: Partitions, owner: Owner = ANN, limit: int = 10, scope: Scope = EVERYTHING
) -> SearchResult:
    return await partitions.nearest(owner, pointing(0.0), limit, scope)


async def up_to_date(partitions: Partitions, owner: Owner = ANN) -> SearchResult:
    """The first answer of a partition that knows of every write."""
    for _ in range(10):
        searched = await search(partitions, owner)
        await until(lambda: not partitions.filling, "no fill runs")
        if searched.path == "hybrid":
            return await search(partitions, owner)
    raise AssertionError("the partition never caught up")


async def said(partitions: Partitions, owner: Owner = ANN) -> list[str]:
    return [one.memory.content for one in (await search(partitions, owner)).found]
