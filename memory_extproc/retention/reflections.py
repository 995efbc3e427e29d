"""What several of a caller's memories show together, as memories of their own that name their evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from memory_extproc.model import Embedded, Memory, MemoryType, Owner, OwnerKind, Source, digest
from memory_extproc.ports import Coordination, Embeds, KeepsMemories, Now
from memory_extproc.retention.histories import DERIVED
from memory_extproc.retention.rules import SOURCES

REFLECTION = "reflection"
RECORD = "retention"  # kind of the record of when a caller's memories were last reflected on
_REMEMBERED = timedelta(days=400)
_FACTS = frozenset({MemoryType.SEMANTIC, MemoryType.PROCEDURAL})
_SOURCES = frozenset({Source.RULES, Source.LLM, Source.API})


class Reflects(Protocol):
    """A language model that reads memories together."""

    @property
    def version(self) -> str:
        """Of its prompt, kept with what it says."""

    async def reflect(self, owner: Owner, memories: Sequence[Memory]) -> Sequence[tuple[str, tuple[str, ...]]]:
        """Sentences, each with the ids of those of *memories* that it is drawn from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReflectionLimits:
    above: int = 20  # facts of one project, new since the last time
    shown: int = 100  # of them and of older ones, the newest first
    importance: float = 0.6


class Reflections:
    """Never twice over the same facts: when a caller's were last reflected on is kept by coordination."""

    def __init__(
        self,
        reflects: Reflects,
        keeps: KeepsMemories,
        embedder: Embeds,
        coordination: Coordination,
        limits: ReflectionLimits,
        *,
        now: Now,
    ) -> None:
        self._reflects = reflects
        self._keeps = keeps
        self._embedder = embedder
        self._coordination = coordination
        self._limits = limits
        self._now = now

    def use(self, limits: ReflectionLimits) -> None:
        self._limits = limits

    async def reflect(self, owner: Owner, memories: Sequence[Memory]) -> int:
        """Over *memories*, all that *owner* has. Says how many insights were stored; what the model's port raises
        passes, and the next round tries again."""
        if owner.kind is not OwnerKind.OWN:
            return 0  # what several people said shows nothing about one
        now, stored = self._now().replace(microsecond=0), 0
        projects: dict[str, list[Memory]] = {}
        for memory in memories:
            if memory.recallable(now) and memory.type in _FACTS and memory.source in _SOURCES:
                projects.setdefault(memory.project, []).append(memory)
        for project, facts in projects.items():
            stored += await self._reflect_on(owner, project, facts, memories, now)
        return stored

    async def _reflect_on(
        self, owner: Owner, project: str, facts: list[Memory], memories: Sequence[Memory], now: datetime
    ) -> int:
        key = f"reflected:{digest(project)}"
        record = await self._coordination.get_record(RECORD, owner, key)
        last = float(record) if record else 0.0
        if sum(memory.created_at.timestamp() > last for memory in facts) < self._limits.above:
            return 0
        facts.sort(key=lambda memory: (-memory.created_at.timestamp(), memory.id))
        shown = facts[: self._limits.shown]
        found = await self._reflects.reflect(owner, shown)
        known = {memory.id for memory in memories} | {memory.content for memory in memories}
        rows = [self._row(owner, project, says, sources, now) for says, sources in found]
        new = [row for row in rows if row.id not in known and row.content not in known]
        if new:
            vectors = await self._embedder.embed([row.content for row in new])
            await self._keeps.put(owner, [Embedded(row, vector) for row, vector in zip(new, vectors, strict=True)])
        moment = str(shown[0].created_at.timestamp()).encode()
        await self._coordination.put_record(RECORD, owner, key, moment, _REMEMBERED)
        return len(new)

    def _row(self, owner: Owner, project: str, says: str, sources: tuple[str, ...], now: datetime) -> Memory:
        return Memory(
            id=digest(REFLECTION, owner.key, *sorted(sources)),
            owner=owner,
            type=MemoryType.REFLECTIVE,
            content=says,
            source=Source.LLM,
            created_at=now,
            updated_at=now,
            valid_from=now,
            project=project,
            importance=self._limits.importance,
            embed_model=self._embedder.fingerprint,
            metadata={DERIVED: REFLECTION, SOURCES: list(sources), "version": self._reflects.version},
        )
