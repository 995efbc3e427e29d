"""A retention pass over one owner: read all memories, apply the rules, write conditionally.

A pass that a crash interrupts is completed by the next pass."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Protocol

from memory_extproc.errors import MemoryExtprocError
from memory_extproc.model import Embedded, Memory, Owner
from memory_extproc.observe.log import logger
from memory_extproc.ports import ConditionalWriter, EmbeddingModel, MemoryStore, MemoryWriter, Now
from memory_extproc.retention.merge import (
    About,
    Agree,
    Consolidation,
    Merging,
    duplicates,
    histories,
    speaking,
)
from memory_extproc.retention.reflection import Reflections, Subjects
from memory_extproc.retention.rules import (
    AsRead,
    Leaving,
    RetentionReason,
    as_read,
    find_unfounded,
    half_merged,
    is_outdated_summary,
    leaving,
    merge_memory,
    restore_memory,
    retire_memory,
    revive_memory,
    same_words,
)
from memory_extproc.settings.memory import Retention

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Wording:
    """How the write path normalises text; retention uses the same functions so that both agree on equality."""

    says: Callable[[str], object]
    about: About
    agree: Agree


class SummaryRebuilder(Protocol):
    """Rebuilds a summary after one of its sources was forgotten or corrected."""

    async def rebuild(self, memory: Memory, known: Mapping[str, Memory]) -> Embedded | None:
        """Rebuild *memory* under the same id, active, from its sources in *known* that still hold.

        *known* holds the owner's memories. None: too few sources are left."""


@dataclass(slots=True)
class PassReport:
    """Counts of the changes to an owner's memories, made or (in a dry run) due."""

    memories: int = 0  # rows in any state, before the pass
    themes: int = 0  # groups of facts that are due for reflection
    retired: Counter[RetentionReason] = field(default_factory=Counter)
    merged: int = 0  # superseded by a memory with the same content
    derived: int = 0  # new memories built from others
    revived: int = 0
    rebuilt: int = 0  # summaries rebuilt without the forgotten or corrected source
    erased: int = 0

    def __add__(self, other: PassReport) -> PassReport:
        return PassReport(
            self.memories + other.memories,
            self.themes + other.themes,
            self.retired + other.retired,
            self.merged + other.merged,
            self.derived + other.derived,
            self.revived + other.revived,
            self.rebuilt + other.rebuilt,
            self.erased + other.erased,
        )


class RetentionPass:
    """Runs passes for one owner at a time. The caller must hold the owner's lease."""

    def __init__(
        self,
        store: MemoryStore,
        keeps: MemoryWriter,
        rows: ConditionalWriter,
        embedder: EmbeddingModel,
        section: Callable[[], Retention],
        wording: Wording,
        *,
        now: Now,
        page: int = 500,
        reflections: Reflections | None = None,
        rebuilds: SummaryRebuilder | None = None,
        subjects: Subjects | None = None,
    ) -> None:
        """*section* is read once per pass; *page*: rows per read. *reflections*, *rebuilds* and *subjects* are None
        when that feature is disabled."""
        self._subjects = subjects
        self._reflections = reflections
        self._rebuilds = rebuilds
        self._written = AsRead(rows)
        self._store = store
        self._keeps = keeps
        self._rows = rows
        self._embedder = embedder
        self._section, self._page = section, page
        self._wording = wording
        self._now = now

    async def keep(self, owner: Owner, *, dry_run: bool = False) -> PassReport:
        """Run a whole pass. *dry_run*: change nothing and report the counts of a pass made now."""
        now, section = self._now().replace(microsecond=0), self._section()
        known = await self._read(owner)
        kept = PassReport(memories=len(known))
        kept.merged += await self._finish(owner, known, now, dry_run=dry_run)
        memories = [row.memory for row in known.values()]
        # Here and below in a thread: with 10,000 memories each step takes from 50 ms to seconds.
        due = await asyncio.to_thread(leaving, memories, section, now)
        await self._leave(owner, known, due, kept, now, dry_run=dry_run)
        if section.duplicates.enabled:
            await self._merge(owner, known, section, kept, now, dry_run=dry_run)
        await self._make(owner, known, section, kept, now, dry_run=dry_run)
        if self._subjects is not None:
            await self._tell_together(owner, self._subjects, known, kept, dry_run=dry_run)
        if self._reflections is not None:
            await self._reflect(owner, self._reflections, list(known.values()), kept, dry_run=dry_run)
        return kept

    async def reflect(self, owner: Owner, *, dry_run: bool = False) -> PassReport:
        """Run only the reflection step of a pass."""
        known = await self._read(owner)
        kept = PassReport(memories=len(known))
        if self._reflections is not None:
            rows = list(known.values())
            kept.themes = len(await self._reflections.due(owner, rows))
            kept.derived = 0 if dry_run else await self._reflections.reflect(owner, rows)
        return kept

    async def mend(self, owner: Owner) -> PassReport:
        """Repair derived memories after a forget or a correction; nothing expires."""
        now = self._now().replace(microsecond=0)
        known = await self._read(owner)
        kept = PassReport(memories=len(known))
        kept.merged += await self._finish(owner, known, now, dry_run=False)
        due = await asyncio.to_thread(find_unfounded, [row.memory for row in known.values()])
        await self._leave(owner, known, due, kept, now, dry_run=False)
        await self._make(owner, known, self._section(), kept, now, dry_run=False)
        return kept

    async def _read(self, owner: Owner) -> dict[str, Embedded]:
        pages = self._store.pages(owner, self._page, fresh=True)
        return {row.memory.id: row async for page in pages for row in page}

    async def _finish(self, owner: Owner, known: dict[str, Embedded], now: datetime, *, dry_run: bool) -> int:
        """Complete merges of an interrupted pass, so that each memory counts once towards the cap."""
        half = half_merged({one: row.memory for one, row in known.items()})
        becoming = {one: merge_memory(known[one].memory, into, now) for one, into in half.items()}
        done = list(becoming) if dry_run else await self._written.change(owner, known, becoming)
        for one in done:
            known[one] = Embedded(becoming[one], known[one].vector)
        return len(done)

    async def _make(
        self,
        owner: Owner,
        known: dict[str, Embedded],
        section: Retention,
        kept: PassReport,
        now: datetime,
        *,
        dry_run: bool,
    ) -> None:
        if self._rebuilds is not None and not dry_run:
            kept.rebuilt += await self._rebuilt(owner, known, self._rebuilds)
        memories = [row.memory for row in known.values()]
        wording, rules = self._wording, section.consolidate
        found = await asyncio.to_thread(histories, memories, rules, wording.about, wording.agree, now)
        for one in found:
            kept.derived += 1
            if not dry_run:
                await self._consolidate(owner, known, one, now)

    async def _rebuilt(self, owner: Owner, known: dict[str, Embedded], rebuilds: SummaryRebuilder) -> int:
        """Rebuild summaries from the lowest level up: higher levels depend on them."""
        due = [row.memory for row in known.values() if is_outdated_summary(row.memory)]
        rebuilt = 0
        for memory in sorted(due, key=lambda one: (_level(one), one.id)):
            anew = await rebuilds.rebuild(memory, {one: row.memory for one, row in known.items()})
            if anew is None or not await self._stand(owner, known, anew.memory.provenance.sources):
                continue
            anew = Embedded(restore_memory(anew.memory), anew.vector)
            if await self._written.change(owner, known, {memory.id: anew}):
                known[memory.id] = anew
                rebuilt += 1
        return rebuilt

    async def _tell_together(
        self, owner: Owner, subjects: Subjects, known: dict[str, Embedded], kept: PassReport, *, dry_run: bool
    ) -> None:
        """Consolidate subjects.

        A rejected text or an unreachable model leaves the facts unchanged and does not fail the pass."""
        memories = [row.memory for row in known.values()]
        for facts in subjects.due(owner, memories):
            try:
                rows = () if dry_run else await subjects.tell(owner, facts, memories)
            except MemoryExtprocError as error:
                log.warning("retention.not_told_together", error=type(error).__name__)
                continue
            if rows:
                # Earlier subject texts keep their vectors: the owner may restore them.
                rows = [rows[0], *(Embedded(row.memory, known[row.memory.id].vector) for row in rows[1:])]
                await self._keeps.put(owner, rows)
                known |= {row.memory.id: row for row in rows}
            kept.derived += bool(rows) or dry_run

    async def _reflect(
        self, owner: Owner, reflections: Reflections, rows: Sequence[Embedded], kept: PassReport, *, dry_run: bool
    ) -> None:
        """Reflect. An unreachable model or an exhausted token budget does not fail the pass."""
        kept.themes = len(await reflections.due(owner, rows))
        if dry_run:
            return
        try:
            kept.derived += await reflections.reflect(owner, rows)
        except MemoryExtprocError as error:
            log.warning("retention.not_reflected", error=type(error).__name__)

    async def _leave(
        self,
        owner: Owner,
        known: dict[str, Embedded],
        due: Leaving,
        kept: PassReport,
        now: datetime,
        *,
        dry_run: bool,
    ) -> None:
        becoming = {one: retire_memory(known[one].memory, why, now) for one, why in due.retire.items()}
        becoming |= {one: revive_memory(known[one].memory) for one in due.revive}
        if dry_run:
            kept.retired.update(due.retire.values())
            kept.revived += len(due.revive)
            kept.erased += len(due.erase)
        else:
            # Revive first: a crash between the writes leaves both memories, never neither.
            changed = await self._written.change(owner, known, {one: becoming[one] for one in due.revive})
            kept.revived += len(changed)
            changed = await self._written.change(owner, known, {one: becoming[one] for one in due.retire})
            kept.retired.update(due.retire[one] for one in changed)
            kept.erased += await self._written.erase(owner, known, sorted(due.erase))
        for one, memory in becoming.items():
            known[one] = Embedded(memory, known[one].vector)
        for one in due.erase:
            del known[one]

    async def _merge(
        self,
        owner: Owner,
        known: dict[str, Embedded],
        section: Retention,
        kept: PassReport,
        now: datetime,
        *,
        dry_run: bool,
    ) -> None:
        rows, says = list(known.values()), self._wording.says
        found = await asyncio.to_thread(duplicates, rows, section, says, now)
        for merging in found:
            if dry_run:
                kept.merged += len(merging.others)
            else:
                kept.merged += await self._merge_group(owner, known, merging, now)
            for one in merging.others:
                known[one] = Embedded(merge_memory(known[one].memory, merging.canonical, now), known[one].vector)

    async def _merge_group(
        self, owner: Owner, known: Mapping[str, Embedded], merging: Merging, now: datetime
    ) -> int:
        best = known[merging.canonical].memory
        if not await self._written.change(owner, known, {best.id: speaking(best, merging)}):
            return 0  # it is no longer as it was read: another pass will look again
        others = {one: merge_memory(known[one].memory, best.id, now) for one in merging.others}
        return len(await self._written.change(owner, known, others))

    async def _stand(self, owner: Owner, known: Mapping[str, Embedded], ids: Sequence[str]) -> bool:
        """Whether memories are unchanged since they were read.

        A memory forgotten or corrected while a model reads it must not enter the model's text."""
        there = {memory.id: memory for memory in await self._keeps.get(owner, ids)}
        return all(one in there and one in known and same_words(there[one], known[one].memory) for one in ids)

    async def _consolidate(
        self, owner: Owner, known: Mapping[str, Embedded], one: Consolidation, now: datetime
    ) -> None:
        """Write the new memory first: a crash leaves both, and the next pass computes the same id."""
        vector = (await self._embedder.embed([one.derived.content]))[0]
        derived = Embedded(replace(one.derived, embed_model=self._embedder.fingerprint), vector)
        there = next(iter(await self._keeps.get(owner, [one.current.id])), None)
        if there is None or not as_read(there, one.current):
            return
        if not await self._stand(owner, known, derived.memory.provenance.sources):
            return
        await self._keeps.put(owner, [derived])
        into = derived.memory.id

        def supersede(row: Embedded) -> Sequence[Embedded]:
            if not as_read(row.memory, one.current):
                return ()
            return [Embedded(merge_memory(row.memory, into, now), row.vector)]

        if not await self._rows.change_all(owner, [one.current.id], supersede):
            # Replaced, corrected or forgotten in the meantime: the derived memory is stale.
            await self._keeps.delete(owner, [into])


def _level(summary: Memory) -> int:
    """The level of a summary: 0 for a topic, higher for summaries of summaries."""
    return summary.provenance.level or 0
