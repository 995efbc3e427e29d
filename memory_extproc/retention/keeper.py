"""Applies to one owner's memories what the rules say: reads all of them, works out what is to happen, and changes
what still is as it was read. What a crash leaves undone, the next pass does."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from memory_extproc.errors import MemoryExtprocError
from memory_extproc.model import Embedded, Memory, Owner
from memory_extproc.observe.log import logger
from memory_extproc.ports import Embeds, KeepsInOrder, KeepsMemories, MemoryStore, Now
from memory_extproc.retention.duplicates import DuplicateRules, Merging, duplicates, speaking
from memory_extproc.retention.histories import About, Agree, Consolidation, HistoryRules, histories
from memory_extproc.retention.reflections import Reflections
from memory_extproc.retention.rules import (
    ACCESSED,
    Reason,
    RetentionRules,
    leaving,
    merged,
    retired,
    revived,
)

log = logger(__name__)
_AT_ONCE = 100  # rows of one write


@dataclass(frozen=True, slots=True)
class KeeperRules:
    retention: RetentionRules = field(default_factory=RetentionRules)
    duplicates: DuplicateRules | None = field(default_factory=DuplicateRules)  # None: they stay
    histories: HistoryRules = field(default_factory=HistoryRules)
    page: int = 500  # rows read at once


@dataclass(frozen=True, slots=True)
class Wording:
    """How the write path understands words; retention is to take for one what it takes for one."""

    says: Callable[[str], object]
    about: About
    agree: Agree


@dataclass(slots=True)
class Kept:
    """What became of one owner's memories, or would."""

    memories: int = 0  # rows in any state, before
    retired: Counter[Reason] = field(default_factory=Counter)
    merged: int = 0  # superseded by another that says the same
    derived: int = 0  # made of others
    revived: int = 0
    erased: int = 0

    def __add__(self, other: Kept) -> Kept:
        return Kept(
            self.memories + other.memories,
            self.retired + other.retired,
            self.merged + other.merged,
            self.derived + other.derived,
            self.revived + other.revived,
            self.erased + other.erased,
        )


class Keeper:
    """One owner at a time; who else runs for the same owner is for the caller to see to."""

    def __init__(
        self,
        store: MemoryStore,
        keeps: KeepsMemories,
        rows: KeepsInOrder,
        embedder: Embeds,
        rules: KeeperRules,
        wording: Wording,
        *,
        now: Now,
        reflections: Reflections | None = None,
    ) -> None:
        """*reflections*: None where no model draws conclusions."""
        self._reflections = reflections
        self._store = store
        self._keeps = keeps
        self._rows = rows
        self._embedder = embedder
        self._rules = rules
        self._wording = wording
        self._now = now

    def use(self, rules: KeeperRules) -> None:
        self._rules = rules

    async def keep(self, owner: Owner, *, dry_run: bool = False) -> Kept:
        """*dry_run*: nothing is changed, and the counts are those of a pass made now."""
        now = self._now().replace(microsecond=0)
        pages = self._store.pages(owner, self._rules.page, fresh=True)
        known = {row.memory.id: row async for page in pages for row in page}
        kept = Kept(memories=len(known))
        await self._leave(owner, known, kept, now, dry_run=dry_run)
        if self._rules.duplicates is not None:
            await self._merge(owner, known, self._rules.duplicates, kept, now, dry_run=dry_run)
        memories = [row.memory for row in known.values()]
        wording = self._wording
        rules = self._rules.histories
        found = await asyncio.to_thread(histories, memories, rules, wording.about, wording.agree, now)
        for one in found:
            kept.derived += 1
            if not dry_run:
                await self._consolidate(owner, one, now)
        if self._reflections is not None and not dry_run:
            kept.derived += await self._reflected(owner, self._reflections, memories)
        return kept

    async def _reflected(self, owner: Owner, reflections: Reflections, memories: Sequence[Memory]) -> int:
        """A model that is away, or has no tokens left for the caller, holds up nothing else."""
        try:
            return await reflections.reflect(owner, memories)
        except MemoryExtprocError as error:
            log.warning("retention.not_reflected", error=type(error).__name__)
            return 0

    async def _leave(
        self, owner: Owner, known: dict[str, Embedded], kept: Kept, now: datetime, *, dry_run: bool
    ) -> None:
        # In a thread, here and below: of 10,000 memories each step takes from 50 ms to seconds.
        memories = [row.memory for row in known.values()]
        due = await asyncio.to_thread(leaving, memories, self._rules.retention, now)
        becoming = {one: retired(known[one].memory, why, now) for one, why in due.retire.items()}
        becoming |= {one: revived(known[one].memory) for one in due.revive}
        if dry_run:
            kept.retired.update(due.retire.values())
            kept.revived += len(due.revive)
            kept.erased += len(due.erase)
        else:
            # What speaks for itself again comes first: a crash in between leaves both, never none.
            changed = await self._change(owner, known, {one: becoming[one] for one in due.revive})
            kept.revived += len(changed)
            changed = await self._change(owner, known, {one: becoming[one] for one in due.retire})
            kept.retired.update(due.retire[one] for one in changed)
            kept.erased += await self._erase(owner, known, sorted(due.erase))
        for one, memory in becoming.items():
            known[one] = Embedded(memory, known[one].vector)
        for one in due.erase:
            del known[one]

    async def _merge(
        self,
        owner: Owner,
        known: dict[str, Embedded],
        rules: DuplicateRules,
        kept: Kept,
        now: datetime,
        *,
        dry_run: bool,
    ) -> None:
        rows, says = list(known.values()), self._wording.says
        found = await asyncio.to_thread(duplicates, rows, rules, self._rules.retention, says, now)
        for merging in found:
            if dry_run:
                kept.merged += len(merging.others)
            else:
                kept.merged += await self._merged(owner, known, merging, now)
            for one in merging.others:
                known[one] = Embedded(merged(known[one].memory, merging.canonical, now), known[one].vector)

    async def _merged(self, owner: Owner, known: Mapping[str, Embedded], merging: Merging, now: datetime) -> int:
        best = known[merging.canonical].memory
        if not await self._change(owner, known, {best.id: speaking(best, merging)}):
            return 0  # it is no longer as it was read: another pass will look again
        others = {one: merged(known[one].memory, best.id, now) for one in merging.others}
        return len(await self._change(owner, known, others))

    async def _consolidate(self, owner: Owner, one: Consolidation, now: datetime) -> None:
        """The new memory first: a crash in between leaves both, and the next pass comes to the same id."""
        vector = (await self._embedder.embed([one.derived.content]))[0]
        derived = Embedded(replace(one.derived, embed_model=self._embedder.fingerprint), vector)
        there = next(iter(await self._keeps.get(owner, [one.current.id])), None)
        if there is None or not _as_read(there, one.current):
            return
        await self._keeps.put(owner, [derived])
        into = derived.memory.id

        def superseded(row: Embedded) -> Sequence[Embedded]:
            if not _as_read(row.memory, one.current):
                return ()
            return [Embedded(merged(row.memory, into, now), row.vector)]

        if not await self._rows.change_all(owner, [one.current.id], superseded):
            # It was replaced, corrected or forgotten in this moment: what was made of it holds no more.
            await self._keeps.delete(owner, [into])

    async def _change(
        self, owner: Owner, known: Mapping[str, Embedded], becoming: Mapping[str, Memory]
    ) -> list[str]:
        """The ids of those that were still as they were read, and are changed."""
        changed: list[str] = []

        def change(row: Embedded) -> Sequence[Embedded]:
            before = known[row.memory.id].memory
            if not _as_read(row.memory, before):
                return ()
            changed.append(row.memory.id)
            return [Embedded(_with_accesses(becoming[row.memory.id], row.memory), row.vector)]

        ids = list(becoming)
        for start in range(0, len(ids), _AT_ONCE):
            await self._rows.change_all(owner, ids[start : start + _AT_ONCE], change)
        return changed

    async def _erase(self, owner: Owner, known: Mapping[str, Embedded], ids: Sequence[str]) -> int:
        erased = 0
        for start in range(0, len(ids), _AT_ONCE):
            erased += await self._rows.delete_where(
                owner, ids[start : start + _AT_ONCE], lambda memory: _as_read(memory, known[memory.id].memory)
            )
        return erased


def _as_read(now: Memory, before: Memory) -> bool:
    """Whether nothing but its accesses changed since it was read."""
    return _with_accesses(now, before) == before


def _with_accesses(memory: Memory, of: Memory) -> Memory:
    """*memory* with the accesses counted in *of*."""
    metadata = {name: value for name, value in memory.metadata.items() if name != ACCESSED}
    if ACCESSED in of.metadata:
        metadata[ACCESSED] = of.metadata[ACCESSED]
    return replace(memory, access_count=of.access_count, metadata=metadata)
