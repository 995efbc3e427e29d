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
from memory_extproc.ports import EmbeddingModel, Now
from memory_extproc.retention.reflection import Reflections, Subjects
from memory_extproc.retention.rules import (
    About,
    Agree,
    Consolidation,
    Leaving,
    Merging,
    OwnerRows,
    RetentionReason,
    as_read,
    duplicates,
    find_unfounded,
    half_merged,
    histories,
    is_outdated_summary,
    leaving,
    merge_memory,
    restore_memory,
    retire_memory,
    revive_memory,
    speaking,
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


@dataclass(frozen=True, slots=True)
class _Round:
    """A pass in progress. *known*: the owner's rows as read and changed so far."""

    owner: Owner
    known: dict[str, Embedded]
    section: Retention
    now: datetime
    report: PassReport
    dry_run: bool = False

    @property
    def memories(self) -> list[Memory]:
        return [row.memory for row in self.known.values()]


class RetentionPass:
    """Runs passes for one owner at a time. The caller must hold the owner's lease."""

    def __init__(
        self,
        rows: OwnerRows,
        embedder: EmbeddingModel,
        section: Callable[[], Retention],
        wording: Wording,
        *,
        now: Now,
        reflections: Reflections | None = None,
        rebuilds: SummaryRebuilder | None = None,
        subjects: Subjects | None = None,
    ) -> None:
        """*section* is read once per pass. *reflections*, *rebuilds* and *subjects* are None when that feature is
        disabled."""
        self._rows, self._embedder, self._section, self._wording = rows, embedder, section, wording
        self._now, self._reflections, self._rebuilds, self._subjects = now, reflections, rebuilds, subjects

    async def keep(self, owner: Owner, *, dry_run: bool = False) -> PassReport:
        """Run a whole pass. *dry_run*: change nothing and report the counts of a pass made now."""
        current = await self._begin(owner, dry_run=dry_run)
        # Here and below in a thread: with 10,000 memories each step takes from 50 ms to seconds.
        await self._leave(current, await asyncio.to_thread(leaving, current.memories, current.section, current.now))
        if current.section.duplicates.enabled:
            await self._merge(current)
        await self._make(current)
        if self._subjects is not None:
            await self._tell_together(current, self._subjects)
        if self._reflections is not None:
            await self._reflect(current, self._reflections)
        return current.report

    async def reflect(self, owner: Owner, *, dry_run: bool = False) -> PassReport:
        """Run only the reflection step of a pass."""
        known = await self._rows.read(owner)
        kept = PassReport(memories=len(known))
        if self._reflections is not None:
            rows = list(known.values())
            kept.themes = len(await self._reflections.due(owner, rows))
            kept.derived = 0 if dry_run else await self._reflections.reflect(owner, rows)
        return kept

    async def mend(self, owner: Owner) -> PassReport:
        """Repair derived memories after a forget or a correction; nothing expires."""
        current = await self._begin(owner, dry_run=False)
        await self._leave(current, await asyncio.to_thread(find_unfounded, current.memories))
        await self._make(current)
        return current.report

    async def _begin(self, owner: Owner, *, dry_run: bool) -> _Round:
        """Read the owner's rows, and complete merges of an interrupted pass, so that each memory counts once
        towards the cap."""
        now, section = self._now().replace(microsecond=0), self._section()
        known = await self._rows.read(owner)
        half = half_merged({one: row.memory for one, row in known.items()})
        becoming = {one: merge_memory(known[one].memory, into, now) for one, into in half.items()}
        done = list(becoming) if dry_run else await self._rows.change(owner, known, becoming)
        report = PassReport(memories=len(known), merged=len(done))
        for one in done:
            known[one] = Embedded(becoming[one], known[one].vector)
        return _Round(owner, known, section, now, report, dry_run)

    async def _make(self, current: _Round) -> None:
        if self._rebuilds is not None and not current.dry_run:
            current.report.rebuilt += await self._rebuild(current, self._rebuilds)
        wording, rules = self._wording, current.section.consolidate
        found = await asyncio.to_thread(
            histories, current.memories, rules, wording.about, wording.agree, current.now
        )
        for one in found:
            current.report.derived += 1
            if not current.dry_run:
                await self._consolidate(current, one)

    async def _rebuild(self, current: _Round, rebuilds: SummaryRebuilder) -> int:
        """Rebuild summaries from the lowest level up: higher levels depend on them."""
        owner, known = current.owner, current.known
        due = [memory for memory in current.memories if is_outdated_summary(memory)]
        rebuilt = 0
        for memory in sorted(due, key=lambda one: (_level(one), one.id)):
            anew = await rebuilds.rebuild(memory, {one: row.memory for one, row in known.items()})
            if anew is None or not await self._rows.stand(owner, known, anew.memory.provenance.sources):
                continue
            anew = Embedded(restore_memory(anew.memory), anew.vector)
            if await self._rows.change(owner, known, {memory.id: anew}):
                known[memory.id] = anew
                rebuilt += 1
        return rebuilt

    async def _tell_together(self, current: _Round, subjects: Subjects) -> None:
        """Consolidate subjects.

        A rejected text or an unreachable model leaves the facts unchanged and does not fail the pass."""
        owner, known, dry_run = current.owner, current.known, current.dry_run
        memories = current.memories
        for facts in subjects.due(owner, memories):
            try:
                rows = () if dry_run else await subjects.tell(owner, facts, memories)
            except MemoryExtprocError as error:
                log.warning("retention.not_told_together", error=type(error).__name__)
                continue
            if rows:
                # Earlier subject texts keep their vectors: the owner may restore them.
                rows = [rows[0], *(Embedded(row.memory, known[row.memory.id].vector) for row in rows[1:])]
                await self._rows.memories.put(owner, rows)
                known.update({row.memory.id: row for row in rows})
            current.report.derived += bool(rows) or dry_run

    async def _reflect(self, current: _Round, reflections: Reflections) -> None:
        """Reflect. An unreachable model or an exhausted token budget does not fail the pass."""
        rows = list(current.known.values())
        current.report.themes = len(await reflections.due(current.owner, rows))
        if current.dry_run:
            return
        try:
            current.report.derived += await reflections.reflect(current.owner, rows)
        except MemoryExtprocError as error:
            log.warning("retention.not_reflected", error=type(error).__name__)

    async def _leave(self, current: _Round, due: Leaving) -> None:
        owner, known, kept = current.owner, current.known, current.report
        becoming = {one: retire_memory(known[one].memory, why, current.now) for one, why in due.retire.items()}
        becoming |= {one: revive_memory(known[one].memory) for one in due.revive}
        if current.dry_run:
            kept.retired.update(due.retire.values())
            kept.revived += len(due.revive)
            kept.erased += len(due.erase)
        else:
            # Revive first: a crash between the writes leaves both memories, never neither.
            changed = await self._rows.change(owner, known, {one: becoming[one] for one in due.revive})
            kept.revived += len(changed)
            changed = await self._rows.change(owner, known, {one: becoming[one] for one in due.retire})
            kept.retired.update(due.retire[one] for one in changed)
            kept.erased += await self._rows.erase(owner, known, sorted(due.erase))
        for one, memory in becoming.items():
            known[one] = Embedded(memory, known[one].vector)
        for one in due.erase:
            del known[one]

    async def _merge(self, current: _Round) -> None:
        known, now = current.known, current.now
        rows, says = list(known.values()), self._wording.says
        for merging in await asyncio.to_thread(duplicates, rows, current.section, says, now):
            if current.dry_run:
                current.report.merged += len(merging.others)
            else:
                current.report.merged += await self._merge_group(current, merging)
            for one in merging.others:
                known[one] = Embedded(merge_memory(known[one].memory, merging.canonical, now), known[one].vector)

    async def _merge_group(self, current: _Round, merging: Merging) -> int:
        owner, known = current.owner, current.known
        best = known[merging.canonical].memory
        if not await self._rows.change(owner, known, {best.id: speaking(best, merging)}):
            return 0  # it is no longer as it was read: another pass will look again
        others = {one: merge_memory(known[one].memory, best.id, current.now) for one in merging.others}
        return len(await self._rows.change(owner, known, others))

    async def _consolidate(self, current: _Round, one: Consolidation) -> None:
        """Write the new memory first: a crash leaves both, and the next pass computes the same id."""
        owner, memories = current.owner, self._rows.memories
        vector = (await self._embedder.embed([one.derived.content]))[0]
        derived = Embedded(replace(one.derived, embed_model=self._embedder.fingerprint), vector)
        there = next(iter(await memories.get(owner, [one.current.id])), None)
        if there is None or not as_read(there, one.current):
            return
        if not await self._rows.stand(owner, current.known, derived.memory.provenance.sources):
            return
        await memories.put(owner, [derived])
        into = derived.memory.id

        def supersede(row: Embedded) -> Sequence[Embedded]:
            if not as_read(row.memory, one.current):
                return ()
            return [Embedded(merge_memory(row.memory, into, current.now), row.vector)]

        if not await memories.change_all(owner, [one.current.id], supersede):
            # Replaced, corrected or forgotten in the meantime: the derived memory is stale.
            await memories.delete(owner, [into])


def _level(summary: Memory) -> int:
    """The level of a summary: 0 for a topic, higher for summaries of summaries."""
    return summary.provenance.level or 0
