"""Re-embeds memories whose vector is missing or comes from another model, online and in small pages.

Also copies all memories of another model's collection into the current collection. Both can be interrupted at any
time: finished rows are recognised by their fingerprint and skipped."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

import numpy as np

from memory_extproc.errors import MemoryExtprocError
from memory_extproc.model import Embedded, Memory, Owner
from memory_extproc.observe.log import logger
from memory_extproc.ports import ConditionalWriter, EmbeddingModel, MemoryStore, MemoryWriter, OwnerLister

log = logger(__name__)
Says = Callable[[str, int, int], None]  # the step, owners done, owners in total
_UNIT = 1e-2  # tolerated deviation of a stored vector's length from 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    page: int = 64  # memories embedded at once
    pause: timedelta = timedelta(milliseconds=50)  # between pages, so that requests take precedence


@dataclass(slots=True)
class Checked:
    """Counts of memories read and changed."""

    owners: int = 0
    memories: int = 0
    models: Counter[str] = field(default_factory=Counter)  # memories by the fingerprint of their embedding model
    broken: int = 0  # with a zero, non-finite or unnormalised vector
    embedded: int = 0
    failed: int = 0  # owners whose memories could not be processed


class Reembedding:
    """Re-embeds the rows of *store*; *keeps* writes to the same collection. *lists* lists the owners to read."""

    def __init__(
        self,
        lists: OwnerLister,
        store: MemoryStore,
        keeps: MemoryWriter,
        rows: ConditionalWriter,
        embedder: EmbeddingModel,
        pace: Pace,
        *,
        says: Says = lambda *_: None,
    ) -> None:
        self._lists = lists
        self._store = store
        self._keeps = keeps
        self._rows = rows
        self._embedder = embedder
        self._pace = pace
        self._says = says

    async def check(self) -> Checked:
        """Read everything, change nothing."""
        return await self._for_each_owner("checking", self._looked_at)

    async def backfill(self) -> Checked:
        """Embed memories without a vector, or with a vector of another model."""
        return await self._for_each_owner("embedding", self._backfill_owner)

    async def take_over(self, source: MemoryStore) -> Checked:
        """Copy the memories of *source*, embedded with the current model.

        Rows that are as recent here are skipped, newer rows here are kept, and forgotten memories stay forgotten.
        """

        async def take_owner(owner: Owner, report: Checked) -> None:
            async for page in source.pages(owner, self._pace.page, fresh=True):
                self._count(page, report)
                report.embedded += await self._take_page(owner, page)
                await self._pause()

        return await self._for_each_owner("taking over", take_owner)

    async def _for_each_owner(self, what: str, see_to: Callable[[Owner, Checked], Awaitable[None]]) -> Checked:
        report = Checked()
        owners = [owner async for page in self._lists.owners() for owner in page]
        for number, owner in enumerate(owners):
            self._says(what, number, len(owners))
            report.owners += 1
            try:
                await see_to(owner, report)
            except MemoryExtprocError as error:
                report.failed += 1
                log.warning("reembedding.failed", error=type(error).__name__)
        self._says(what, len(owners), len(owners))
        return report

    async def _looked_at(self, owner: Owner, report: Checked) -> None:
        async for page in self._store.pages(owner, self._pace.page, fresh=True):
            self._count(page, report)

    async def _backfill_owner(self, owner: Owner, report: Checked) -> None:
        async for page in self._store.pages(owner, self._pace.page, fresh=True):
            self._count(page, report)
            due = [row.memory for row in page if self._is_due(row)]
            if due:
                report.embedded += await self._embedded_in_place(owner, due)
                await self._pause()

    async def _embedded_in_place(self, owner: Owner, due: Sequence[Memory]) -> int:
        anew = dict(zip((memory.id for memory in due), await self._embed(due), strict=True))

        def change(row: Embedded) -> Sequence[Embedded]:
            made = anew[row.memory.id]
            if row.memory.content != made.memory.content or not self._is_due(row):
                return ()  # changed in the meantime
            return [Embedded(replace(row.memory, embed_model=made.memory.embed_model), made.vector)]

        return await self._rows.change_all(owner, list(anew), change)

    async def _take_page(self, owner: Owner, page: Sequence[Embedded]) -> int:
        there = {memory.id: memory for memory in await self._keeps.get(owner, [row.memory.id for row in page])}
        new = [row.memory for row in page if row.memory.id not in there]
        newer = [
            row.memory
            for row in page
            if row.memory.id in there and row.memory.updated_at > there[row.memory.id].updated_at
        ]
        if new:
            await self._keeps.put(owner, await self._embed(new))
        if not newer:
            return len(new)
        anew = {row.memory.id: row for row in await self._embed(newer)}

        def change(row: Embedded) -> Sequence[Embedded]:
            made = anew[row.memory.id]
            return [made] if made.memory.updated_at > row.memory.updated_at else ()

        return len(new) + await self._rows.change_all(owner, list(anew), change)

    async def _embed(self, memories: Sequence[Memory]) -> list[Embedded]:
        vectors = await self._embedder.embed([memory.content for memory in memories])
        model = self._embedder.fingerprint
        return [
            Embedded(replace(memory, embed_model=model), vector)
            for memory, vector in zip(memories, vectors, strict=True)
        ]

    def _is_due(self, row: Embedded) -> bool:
        return row.memory.embed_model != self._embedder.fingerprint or not _whole(row)

    def _count(self, page: Sequence[Embedded], report: Checked) -> None:
        report.memories += len(page)
        report.models.update(row.memory.embed_model for row in page)
        report.broken += sum(not _whole(row) for row in page)

    async def _pause(self) -> None:
        await asyncio.sleep(self._pace.pause.total_seconds())


def _whole(row: Embedded) -> bool:
    """Whether the vector is usable in search: finite, and of unit length."""
    return abs(float(np.linalg.norm(row.vector.astype(np.float64))) - 1.0) <= _UNIT
