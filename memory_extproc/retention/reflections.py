"""What several of a caller's memories show together, as memories of their own that name their evidence."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from memory_extproc.model import Embedded, Memory, MemoryState, MemoryType, Owner, OwnerKind, Source, digest
from memory_extproc.ports import Coordination, Embeds, KeepsMemories, Now
from memory_extproc.retention.derived import DERIVED, MADE, PAST, SOURCES, expires_with, read_at
from memory_extproc.retention.histories import About
from memory_extproc.retention.themes import Theme, ThemeRules, due, themes

REFLECTION = "reflection"
RECORD = "retention"  # kind of the record of which facts were thought over
_REMEMBERED = timedelta(days=400)
_FACTS = frozenset({MemoryType.SEMANTIC, MemoryType.PROCEDURAL})
_SOURCES = frozenset({Source.RULES, Source.LLM, Source.API})
_LEAST = 2  # memories that an insight is drawn from
_SHORT = 16  # hex digits that tell one owner's memories apart
_MOST_KNOWN = 20_000  # facts of a project in one record


class Reflects(Protocol):
    """A language model that reads memories together."""

    @property
    def version(self) -> str:
        """Of its prompt, kept with what it says."""

    async def reflect(self, owner: Owner, memories: Sequence[Memory]) -> Sequence[tuple[str, tuple[str, ...]]]:
        """Sentences, each with the ids of those of *memories* that it is drawn from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReflectionLimits:
    themes: ThemeRules = field(default_factory=ThemeRules)
    shown: int = 40  # facts of one theme, the newest
    importance: float = 0.6  # of a conclusion, 0 to 1


class Reflections:
    """Theme by theme; none is thought over again before it has grown. Which facts were is kept by coordination."""

    def __init__(
        self,
        reflects: Reflects,
        keeps: KeepsMemories,
        embedder: Embeds,
        coordination: Coordination,
        limits: ReflectionLimits,
        about: About,
        *,
        now: Now,
    ) -> None:
        self._reflects = reflects
        self._keeps = keeps
        self._embedder = embedder
        self._coordination = coordination
        self._limits = limits
        self._about = about
        self._now = now

    def use(self, limits: ReflectionLimits) -> None:
        self._limits = limits

    async def due(self, owner: Owner, rows: Sequence[Embedded]) -> list[Theme]:
        """Those of *rows*, all that *owner* has, that reflect would think over."""
        found: list[Theme] = []
        for project, facts in self._projects(owner, rows).items():
            found += await self._due(owner, project, facts)
        return found

    async def reflect(self, owner: Owner, rows: Sequence[Embedded]) -> int:
        """Over *rows*, all that *owner* has. Says how many insights were stored; what the model's port raises
        passes, and the next round tries again."""
        stored = 0
        for project, facts in self._projects(owner, rows).items():
            for theme in await self._due(owner, project, facts):
                stored += await self._reflect_on(owner, project, theme, rows)
                known = {row.memory.id for row in facts}
                await self._note(owner, project, theme, known)
        return stored

    def _projects(self, owner: Owner, rows: Sequence[Embedded]) -> dict[str, list[Embedded]]:
        """What several people said shows nothing about one."""
        projects: dict[str, list[Embedded]] = {}
        now = self._now()
        for row in rows if owner.kind is OwnerKind.OWN else ():
            memory = row.memory
            if memory.recallable(now) and memory.type in _FACTS and memory.source in _SOURCES:
                projects.setdefault(memory.project, []).append(row)
        return projects

    async def _due(self, owner: Owner, project: str, facts: list[Embedded]) -> list[Theme]:
        rules = self._limits.themes
        # In a thread: thousands of facts are compared.
        found = await asyncio.to_thread(themes, facts, rules, self._about)
        short = await self._thought_over(owner, project)
        return due(found, {row.memory.id for row in facts if row.memory.id[:_SHORT] in short}, rules)

    async def _reflect_on(self, owner: Owner, project: str, theme: Theme, rows: Sequence[Embedded]) -> int:
        now = self._now().replace(microsecond=0)
        shown = theme.facts[: self._limits.shown]
        found = await self._reflects.reflect(owner, shown)
        said = {row.memory.content for row in rows}
        # Before their evidence is looked at: nothing comes between that look and the writing.
        vectors = await self._embedder.embed([says for says, _ in found]) if found else ()
        drawn: list[Embedded] = []
        for place, ((says, named), vector) in enumerate(zip(found, vectors, strict=True)):
            evidence = await self._evidence(owner, named, shown)
            if len(evidence) >= _LEAST and says not in said:
                # By place and not by words: asked again after a crash, a model may put it otherwise.
                row_id = digest(REFLECTION, owner.key, project, theme.key, str(place))
                drawn.append(Embedded(self._row(row_id, project, says, evidence, now), vector))
        if drawn:
            await self._keeps.put(owner, drawn)
        return len(drawn)

    async def _evidence(self, owner: Owner, named: Sequence[str], shown: Sequence[Memory]) -> list[Memory]:
        """Those of *named* that were shown and are *owner*'s still, as they were shown; none if one is not."""
        were = {memory.id: memory for memory in shown}
        there = {memory.id: memory for memory in await self._keeps.get(owner, named)}
        stand = all(
            one in were
            and one in there
            and there[one].state is MemoryState.ACTIVE
            and there[one].content == were[one].content
            for one in named
        )
        return [were[one] for one in dict.fromkeys(named)] if stand else []

    def _row(self, row_id: str, project: str, says: str, evidence: Sequence[Memory], now: datetime) -> Memory:
        return Memory(
            id=row_id,
            owner=evidence[0].owner,
            type=MemoryType.REFLECTIVE,
            content=says,
            source=Source.LLM,
            created_at=now,
            updated_at=now,
            valid_from=now,
            expires_at=expires_with(evidence),
            project=project,
            importance=self._limits.importance,
            embed_model=self._embedder.fingerprint,
            metadata={
                DERIVED: REFLECTION,
                SOURCES: [memory.id for memory in evidence],
                PAST: [],
                MADE: read_at(now.timestamp(), evidence),
                "version": self._reflects.version,
            },
        )

    # --- what was thought over -----------------------------------------------------------------------
    async def _thought_over(self, owner: Owner, project: str) -> frozenset[str]:
        record = await self._coordination.get_record(RECORD, owner, _key(project)) or b""
        text = record.decode("ascii", "replace")
        return frozenset(text[at : at + _SHORT] for at in range(0, len(text), _SHORT))

    async def _note(self, owner: Owner, project: str, theme: Theme, known: set[str]) -> None:
        before = await self._thought_over(owner, project)
        there = {one[:_SHORT] for one in known}
        latest = [memory.id[:_SHORT] for memory in theme.facts]
        kept = list(dict.fromkeys([*latest, *sorted(before & there)]))[:_MOST_KNOWN]
        record = "".join(kept).encode("ascii")
        await self._coordination.put_record(RECORD, owner, _key(project), record, _REMEMBERED)


def _key(project: str) -> str:
    return f"thought over:{digest(project)}"
