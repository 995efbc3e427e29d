"""A store, its partitions, and what keeps the memories in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from prometheus_client import CollectorRegistry

from memory_extproc.learn.wording import about, agree, saying
from memory_extproc.model import Embedded, Memory, MemoryState, Owner
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import MemoryStore
from memory_extproc.retention.passes import RetentionPass, Wording
from memory_extproc.retention.rules import OwnerRows
from memory_extproc.retention.scheduler import Clocks, RetentionJob
from memory_extproc.settings.memory import Retention
from memory_extproc.store.partition import Partitions
from memory_extproc.testing.adapters import InMemoryCoordination, InMemoryStore
from memory_extproc.testing.models import CannedEmbedder
from tests.support.builders import ANN, Clock, a_memory, later

WORDING = Wording(says=saying, about=about, agree=agree)
DAY = timedelta(days=1)


@dataclass
class Desk:
    """A store, its partitions and a keeper before them."""

    clock: Clock
    store: InMemoryStore
    coordination: InMemoryCoordination
    partitions: Partitions
    embedder: CannedEmbedder
    metrics: Metrics

    def keeper(
        self, *, reads: MemoryStore | None = None, embedder: CannedEmbedder | None = None, **rules: Any
    ) -> RetentionPass:
        given = Retention(**rules)
        partitions, embeds = self.partitions, embedder or self.embedder
        return RetentionPass(
            OwnerRows(reads or self.store, partitions), embeds, lambda: given, WORDING, now=self.clock
        )

    def job(
        self,
        lists: Any = None,
        keeper: Any = None,
        clocks: Clocks | None = None,
        every: Callable[[], timedelta | None] = lambda: DAY,
        **waits: timedelta,
    ) -> RetentionJob:
        """*waits*: the constants of a job, by their names in small letters; PAUSE and SETTLE are 0 otherwise."""
        self.metrics = Metrics(CollectorRegistry(), "test")
        job = RetentionJob(
            lists or self.store,
            keeper or self.keeper(),
            self.coordination,
            every,
            self.metrics,
            holder="one",
            now=self.clock,
            rng=lambda: 0.5,
            clocks=clocks,
        )
        for name, wait in {"pause": timedelta(), "settle": timedelta(), **waits}.items():
            setattr(job, name.upper(), wait)
        return job

    def rounds(self) -> float:
        return self.metrics.registry.get_sample_value("memory_extproc_retention_rounds_total") or 0.0

    async def put(self, *memories: Memory) -> None:
        for memory in memories:
            vector = (await self.embedder.embed([memory.content]))[0]
            await self.partitions.put(memory.owner, [Embedded(memory, vector)])

    async def rows(self, owner: Owner = ANN) -> dict[str, Memory]:
        pages = self.store.pages(owner, 100, fresh=True)
        return {row.memory.id: row.memory async for page in pages for row in page}

    async def active(self, owner: Owner = ANN) -> list[Memory]:
        found = [row for row in (await self.rows(owner)).values() if row.state is MemoryState.ACTIVE]
        return sorted(found, key=lambda memory: memory.content)


def a_fact(content: str, attribute: str, value: str, subject: str = "user", **changes: Any) -> Memory:
    metadata = {"subject": subject, "attribute": attribute, "value": value, "turn": f"turn of {content}"}
    return a_memory(content, **{"metadata": metadata, **changes})


def a_budget(value: str, day: int, **changes: Any) -> Memory:
    at = later(days=day)
    return a_fact(
        f"Hawaii trip budget: {value}.", "budget", value, "Hawaii trip",
        id=f"budget-{day}", created_at=at, updated_at=at, valid_from=at, **changes,
    )  # fmt: skip


def three_budgets() -> list[Memory]:
    first, second, third = a_budget("$10,000", 1), a_budget("$11,000", 2), a_budget("$12,000", 3)

    def replaced(old: Memory, by: Memory) -> Memory:
        return replace(old, state=MemoryState.SUPERSEDED, superseded_by=by.id, valid_to=by.created_at)

    return [replaced(first, second), replaced(second, third), third]
