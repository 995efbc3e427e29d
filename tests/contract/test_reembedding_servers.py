"""The embedding model is changed on a Milvus Lite server while people go on talking: everything stays to be found,
nothing that was forgotten comes back, and the way back is open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import pytest

from memory_extproc.coordination.sqlite import SoleReplica
from memory_extproc.erasure.forgetter import ForgetLimits, Forgetter
from memory_extproc.erasure.steps import Erasable
from memory_extproc.erasure.tombstones import TombstoneFilteringStore, TombstoneIndex
from memory_extproc.errors import TransientError
from memory_extproc.model import Embedded, ForgetScope, Matrix, Memory, MemoryState, Owner, Scope
from memory_extproc.retention.reembed import Checked, Pace, Reembedding
from memory_extproc.store.loader import PartitionLimits
from memory_extproc.store.milvus.options import MilvusOptions
from memory_extproc.store.milvus.store import MilvusStore
from memory_extproc.store.partition import Partitions
from memory_extproc.testing.adapters import InMemoryCoordination, InMemoryJournal, InMemoryLedger
from memory_extproc.testing.models import CannedEmbedder
from tests.support.builders import MONDAY, a_memory, later
from tests.support.milvus_server import Process
from tests.support.milvus_stores import changed, metrics, milvus_lite, options, somebody
from tests.unit.erasure.forgetting import Files, complete

__all__ = ["milvus_lite"]


class Model(CannedEmbedder):
    """Something may happen while it works."""

    happens: Callable[[], Any] | None = None

    async def embed(self, texts: Sequence[str]) -> Matrix:
        if self.happens is not None:
            happens, self.happens = self.happens, None
            await happens()
        return await super().embed(texts)


@dataclass
class World:
    """What both models' sidecars share."""

    now: Any = MONDAY
    ledger: InMemoryLedger = field(default_factory=InMemoryLedger)

    def __post_init__(self) -> None:
        self.coordination = InMemoryCoordination(self.clock)

    def clock(self) -> Any:
        self.now += timedelta(milliseconds=5)
        return self.now


class Side:
    """A sidecar, or a command, with one model."""

    def __init__(self, world: World, chosen: MilvusOptions) -> None:
        self.world, self.model = world, Model(chosen.section.dimension)
        self.store = MilvusStore(chosen, metrics(), now=world.clock)

    async def __aenter__(self) -> Self:
        self._stack = AsyncExitStack()
        world, replicas = self.world, SoleReplica()
        await self.store.open()
        self._stack.push_async_callback(self.store.close)
        self.forgotten = TombstoneIndex(world.ledger, replicas)
        self.hiding = TombstoneFilteringStore(self.store, self.forgotten)
        self.partitions = await self._stack.enter_async_context(
            Partitions(
                self.hiding,
                world.coordination,
                PartitionLimits(),
                metrics(),
                now=world.clock,
                forgotten=self.forgotten,
            )
        )
        erasable = Erasable(
            replicas=replicas,
            store=self.store,
            partitions=self.partitions,
            journal=InMemoryJournal(now=world.clock, max_turns=10),
            coordination=world.coordination,
            purges=Files(),
            caches=(),
        )
        limits = ForgetLimits(patience=timedelta(seconds=30))
        self.forgets = await self._stack.enter_async_context(
            Forgetter(
                world.ledger,
                self.forgotten,
                erasable,
                limits,
                metrics(),
                now=world.clock,
            )
        )
        self.hiding.found = self.forgets.sweep
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def says(self, memory: Memory) -> None:
        vector = (await self.model.embed([memory.content]))[0]
        row = Embedded(replace(memory, embed_model=self.model.fingerprint), vector)
        await self.partitions.put(memory.owner, [row])

    async def finds(self, memory: Memory) -> bool:
        vector = await self.model.embed_query(memory.content)
        found = (await self.partitions.nearest(memory.owner, vector, 3, Scope())).found
        return any(one.memory.content == memory.content for one in found)

    async def forget(self, memory: Memory) -> None:
        receipt = await self.forgets.forget(memory.owner, ForgetScope(ids=(memory.id,)))
        await complete(self.forgets, receipt, memory.owner)

    async def takes_over(self, other: Side) -> Checked:
        """As `store reembed --from` does, in a process of its own beside those that serve."""
        pace = Pace(page=8, pause=timedelta())
        made = Reembedding(other.store, self.hiding, self.partitions, self.partitions, self.model, pace)
        return await made.take_over(other.store)

    async def contents(self, owner: Owner) -> set[str]:
        pages = self.hiding.pages(owner, 100, fresh=True)
        return {
            row.memory.content async for page in pages for row in page if row.memory.state is MemoryState.ACTIVE
        }


class Traffic:
    """People who talk and are reminded of what they said, all the while."""

    def __init__(self, serving: Side, ann: Owner) -> None:
        self.serving, self._began, self.ann = serving, serving, ann
        self.said: list[Memory] = []
        self.missed: list[str] = []
        self.asked = 0
        self._ends = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._talk())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ends.set()
        await self._task

    async def _talk(self) -> None:
        while not self._ends.is_set():
            # While a forget of theirs is under way, turns wait in the journal and requests go without memories.
            with suppress(TransientError):
                await self.once()
            await asyncio.sleep(0)

    async def once(self) -> None:
        side, number = self.serving, len(self.said)
        memory = a_memory(f"word{number}a word{number}b word{number}c", self.ann)
        await side.says(memory)
        self.said.append(memory)
        # What was said to the other one a moment before the change is found once that was taken over.
        for known in (memory, self.said[number // 2] if side is self._began else memory):
            self.asked += 1
            if not await side.finds(known):
                self.missed.append(known.content)


@pytest.fixture
def sides(milvus_lite: Process, tmp_path: Path) -> tuple[World, MilvusOptions, MilvusOptions]:
    old = changed(options(tmp_path, milvus_lite.address), fingerprint="canned/8")
    return World(), old, changed(options(tmp_path, milvus_lite.address), fingerprint="canned/16", dimension=16)


async def test_the_model_is_changed_under_traffic_and_back_again(
    sides: tuple[World, MilvusOptions, MilvusOptions],
) -> None:
    world, with_old, with_new = sides
    ann, bob, _ = somebody()
    secret, other = a_memory("secret of ann", ann), a_memory("bob likes tea", bob)
    async with Side(world, with_old) as old, Side(world, with_new) as new:
        await old.says(secret)
        await old.says(other)
        for number in range(20):
            await old.says(a_memory(f"fact{number} said{number} before{number}", ann))
        async with Traffic(old, ann) as traffic:
            async with Side(world, with_new) as command:
                # Forgotten while it is being embedded anew, by a process that has not heard of it.
                command.model.happens = lambda: old.forget(secret)
                first = await command.takes_over(old)
                assert (first.owners, first.failed) == (2, 0)
            traffic.serving = new
            straggler = a_memory("learned late by the old one", ann)
            await old.says(straggler)
            async with Side(world, with_new) as command:
                await command.takes_over(old)
        # Behind the last word: what was on its way to the old one when it was left.
        async with Side(world, with_new) as command:
            await command.takes_over(old)
        assert traffic.missed == []
        assert traffic.asked > 0
        there = await new.contents(ann)
        assert {memory.content for memory in traffic.said} <= there
        assert straggler.content in there
        assert secret.content not in there
        assert not await new.finds(secret)
        assert await new.contents(bob) == {other.content}
        await _back(world, new, with_old, ann)


async def _back(world: World, new: Side, with_old: MilvusOptions, ann: Owner) -> None:
    late, unwanted = a_memory("said to the new one", ann), a_memory("unwanted words", ann)
    await new.says(late)
    await new.says(unwanted)
    await new.forget(unwanted)
    changed = a_memory("fact0 said0 before0", ann)
    newer = replace(changed, content="fact0 was corrected", updated_at=later(days=1))
    await new.says(newer)
    async with Side(world, with_old) as command:
        assert (await command.takes_over(new)).failed == 0
        there = await command.contents(ann)
        assert {late.content, newer.content} <= there
        assert not {unwanted.content, changed.content, "secret of ann"} & there
        assert await command.finds(late)
