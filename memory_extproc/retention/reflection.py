"""Conclusions and subject texts drawn by a language model from several memories, with their sources as evidence."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

import numpy as np
import numpy.typing as npt

from memory_extproc.model import (
    Embedded,
    Memory,
    MemoryState,
    MemoryType,
    Owner,
    OwnerKind,
    Provenance,
    Source,
    digest,
    least_trusted,
    trust_of,
)
from memory_extproc.ports import Coordination, EmbeddingModel, MemoryWriter, Now
from memory_extproc.retention.rules import (
    SUBJECT,
    About,
    RetentionReason,
    expires_with,
    read_at,
    retire_memory,
    same_words,
)
from memory_extproc.settings.memory import Reflect

# Themes: groups of an owner's facts that are worth a reflection. Pure functions.

Floats = npt.NDArray[np.float64]

_SELF = "user"  # the caller, as facts name them: everything is about them
_LEAST_LENGTH = 1e-9


NEAR = 0.45  # cosine to a theme's middle from which on a fact belongs to it
_SHOWN = 40  # facts of a theme, the newest
_IMPORTANCE = 0.6  # of a conclusion, 0 to 1


@dataclass(frozen=True, slots=True)
class Theme:
    """*facts* newest first."""

    facts: tuple[Memory, ...]

    @property
    def key(self) -> str:
        """A key that is equal for equal facts."""
        return digest("theme", *sorted(memory.id for memory in self.facts))


def themes(rows: Sequence[Embedded], above: int, about: About, near: float = NEAR) -> list[Theme]:
    """Group *rows*, facts of a project: by subject, and the rest by similarity.

    Each fact is in at most one group; groups with too few facts are dropped."""
    by_subject: defaultdict[Hashable, list[Embedded]] = defaultdict(list)
    for row in rows:
        subject = about(row.memory.provenance.subject)
        named = row.memory.provenance.subject and subject != about(_SELF)
        by_subject[subject if named else None].append(row)
    rest = by_subject.pop(None, [])
    found: list[list[Embedded]] = []
    for group in by_subject.values():
        if len(group) >= above:
            found.append(group)
        else:
            rest += group
    found += _near_one_another(rest, near)
    return [Theme(_newest_first(group)) for group in found if len(group) >= above]


def due(found: Iterable[Theme], thought_over: Collection[str], section: Reflect) -> list[Theme]:
    """Select the themes of *found* that are new or have grown, most new facts first.

    *thought_over*: ids of the facts already used."""
    news = [(sum(memory.id not in thought_over for memory in theme.facts), theme) for theme in found]
    wanted = [(new, theme) for new, theme in news if new == len(theme.facts) or new >= section.grown]
    wanted.sort(key=lambda one: (-one[0], one[1].key))
    return [theme for _, theme in wanted[: section.themes]]


def _newest_first(rows: Iterable[Embedded]) -> tuple[Memory, ...]:
    memories = [row.memory for row in rows]
    return tuple(sorted(memories, key=lambda memory: (-memory.created_at.timestamp(), memory.id)))


def _near_one_another(rows: Sequence[Embedded], near: float) -> list[list[Embedded]]:
    """Cluster rows greedily: each row joins the nearest centroid if it is close enough, else starts a cluster.

    A second round assigns the rows to the final centroids. The result does not depend on the order of the rows."""
    if not rows:
        return []
    ordered = sorted(rows, key=lambda row: (row.memory.created_at, row.memory.id))
    vectors = np.stack([row.vector for row in ordered]).astype(np.float64)
    middles, lengths, count = np.zeros_like(vectors), np.zeros(len(vectors)), 0
    for vector in vectors:
        at, cosine = _nearest(vector, middles[:count], lengths[:count])
        if cosine < near:
            at, count = count, count + 1
        middles[at] += vector
        lengths[at] = max(float(np.linalg.norm(middles[at])), _LEAST_LENGTH)
    groups: defaultdict[int, list[Embedded]] = defaultdict(list)
    for row, vector in zip(ordered, vectors, strict=True):
        at, cosine = _nearest(vector, middles[:count], lengths[:count])
        if cosine >= near:
            groups[at].append(row)
    return list(groups.values())


def _nearest(vector: Floats, middles: Floats, lengths: Floats) -> tuple[int, float]:
    if not len(middles):
        return 0, -1.0
    cosines = (middles @ vector) / lengths
    at = int(np.argmax(cosines))
    return at, float(cosines[at])


REFLECTION = "reflection"
RECORD = "retention"  # kind of the record that lists facts already reflected on
_REMEMBERED = timedelta(days=400)
_FACTS = frozenset({MemoryType.SEMANTIC, MemoryType.PROCEDURAL})
_SOURCES = frozenset({Source.RULES, Source.LLM, Source.API})
_LEAST = 2  # memories required as evidence for a conclusion
_SHORT = 16  # hex digits that identify a memory among an owner's memories
_MOST_KNOWN = 20_000  # facts of a project in each record


class ThemeReflector(Protocol):
    """A language model that draws conclusions from memories."""

    @property
    def version(self) -> str:
        """The version of its prompt, stored with the result."""

    async def reflect(self, owner: Owner, memories: Sequence[Memory]) -> Sequence[tuple[str, tuple[str, ...]]]:
        """Return sentences, each with the ids of the supporting *memories*."""


class Reflections:
    """Reflects theme by theme.

    A theme is used again only after it has grown; coordination records the facts used."""

    def __init__(
        self,
        reflects: ThemeReflector,
        keeps: MemoryWriter,
        embedder: EmbeddingModel,
        coordination: Coordination,
        section: Callable[[], Reflect],
        about: About,
        *,
        now: Now,
        near: float = NEAR,
    ) -> None:
        self._reflects = reflects
        self._keeps = keeps
        self._embedder = embedder
        self._coordination = coordination
        self._section, self._near = section, near
        self._about = about
        self._now = now

    async def due(self, owner: Owner, rows: Sequence[Embedded]) -> list[Theme]:
        """Themes among all *rows* of *owner* that `reflect` would use."""
        found: list[Theme] = []
        for project, facts in self._projects(owner, rows).items():
            found += await self._due(owner, project, facts)
        return found

    async def reflect(self, owner: Owner, rows: Sequence[Embedded]) -> int:
        """Reflect on all *rows* of *owner* and return the number of conclusions stored.

        Errors of the model propagate; the next round tries again."""
        stored = 0
        for project, facts in self._projects(owner, rows).items():
            for theme in await self._due(owner, project, facts):
                stored += await self._reflect_on(owner, project, theme, rows)
                known = {row.memory.id for row in facts}
                await self._note(owner, project, theme, known)
        return stored

    def _projects(self, owner: Owner, rows: Sequence[Embedded]) -> dict[str, list[Embedded]]:
        """Facts by project.

        Shared memories are excluded: they come from several people and support no conclusion about any."""
        projects: dict[str, list[Embedded]] = {}
        now = self._now()
        for row in rows if owner.kind is OwnerKind.OWN else ():
            memory = row.memory
            if memory.recallable(now) and memory.type in _FACTS and memory.source in _SOURCES:
                projects.setdefault(memory.project, []).append(row)
        return projects

    async def _due(self, owner: Owner, project: str, facts: list[Embedded]) -> list[Theme]:
        section = self._section()
        # Facts by project, from the owner's own memories.
        #
        # Shared memories are excluded: they come from several people and support no conclusion about any of them.
        found = await asyncio.to_thread(themes, facts, section.above, self._about, self._near)
        short = await self._thought_over(owner, project)
        return due(found, {row.memory.id for row in facts if row.memory.id[:_SHORT] in short}, section)

    async def _reflect_on(self, owner: Owner, project: str, theme: Theme, rows: Sequence[Embedded]) -> int:
        now = self._now().replace(microsecond=0)
        shown = theme.facts[:_SHOWN]
        found = await self._reflects.reflect(owner, shown)
        said = {row.memory.content for row in rows}
        # Embed before the evidence is checked, so that no wait lies between that check and the write.
        vectors = await self._embedder.embed([says for says, _ in found]) if found else ()
        drawn: list[Embedded] = []
        for place, ((says, named), vector) in enumerate(zip(found, vectors, strict=True)):
            evidence = await self._evidence(owner, named, shown)
            if len(evidence) >= _LEAST and says not in said:
                # The id depends on position, not on words: asked again after a crash, a model may phrase it
                # otherwise.
                row_id = digest(REFLECTION, owner.key, project, theme.key, str(place))
                drawn.append(Embedded(self._row(row_id, project, says, evidence, now), vector))
        if drawn:
            await self._keeps.put(owner, drawn)
        return len(drawn)

    async def _evidence(self, owner: Owner, named: Sequence[str], shown: Sequence[Memory]) -> list[Memory]:
        """The memories *named*, if all were shown to the model and are unchanged in the store; else none."""
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
            importance=_IMPORTANCE,
            embed_model=self._embedder.fingerprint,
            provenance=Provenance(
                derived=REFLECTION,
                sources=tuple(memory.id for memory in evidence),
                past=(),
                made=read_at(now.timestamp(), evidence),
                trust=least_trusted(map(trust_of, evidence)),
                version=self._reflects.version,
            ),
        )

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


# Subject texts: a language model combines the facts about a subject into a single memory. The facts stay, so that
# each can be replaced, corrected and forgotten; recall returns the combined text.

_TOLD_OF = frozenset({Source.RULES, Source.LLM, Source.API})


class SubjectConsolidator(Protocol):
    """A language model that combines several facts into a single text."""

    @property
    def version(self) -> str:
        """The version of its prompt, stored with the result."""

    async def consolidate(self, owner: Owner, memories: Sequence[Memory]) -> str:
        """Return a text with every value in *memories*. PermanentError if no text does."""


_FACTS_PER_TEXT = 24  # the newest


class Subjects:
    def __init__(
        self,
        consolidates: SubjectConsolidator,
        keeps: MemoryWriter,
        embedder: EmbeddingModel,
        above: Callable[[], int | None],
        about: About,
        *,
        now: Now,
        grown: int = 3,
    ) -> None:
        """*above*: facts about a subject from which on they are combined; None: never. *grown*: new facts before
        the text is rebuilt."""
        self._consolidates, self._keeps, self._embedder = consolidates, keeps, embedder
        self._above, self._grown, self._about, self._now = above, grown, about, now

    def due(self, owner: Owner, memories: Iterable[Memory]) -> list[tuple[Memory, ...]]:
        """Groups of facts that are due to be combined. Shared memories are excluded."""
        above, now = self._above(), self._now()
        if above is None or owner.kind is not OwnerKind.OWN:
            return []
        subjects: defaultdict[Hashable, list[Memory]] = defaultdict(list)
        told: set[str] = set()
        for memory in memories:
            if memory.state is MemoryState.ACTIVE and memory.provenance.derived == SUBJECT:
                told |= set(memory.provenance.sources)
            elif (named := self._subject(memory, now)) is not None:
                subjects[memory.project, named].append(memory)
        found: list[tuple[Memory, ...]] = []
        for facts in subjects.values():
            facts.sort(key=lambda memory: (-memory.created_at.timestamp(), memory.id))
            new = sum(memory.id not in told for memory in facts)
            if len(facts) >= above and (new == len(facts) or new >= self._grown):
                found.append(tuple(facts[:_FACTS_PER_TEXT]))
        return sorted(found, key=lambda facts: facts[0].id)

    def _subject(self, memory: Memory, now: datetime) -> Hashable | None:
        known = memory.provenance
        fact = memory.source in _TOLD_OF and memory.type is MemoryType.SEMANTIC and not known.ends
        if not fact or not memory.recallable(now) or not known.subject or not known.value:
            return None
        key = self._about(known.subject)
        return key if key != self._about(_SELF) else None

    async def tell(self, owner: Owner, facts: Sequence[Memory], known: Iterable[Memory]) -> list[Embedded]:
        """Return the combined row and the retired earlier rows. The caller writes them."""
        now = self._now().replace(microsecond=0)
        says = await self._consolidates.consolidate(owner, facts)
        vector = (await self._embedder.embed([says]))[0]
        row = self._row(owner, says, facts, now)
        ids = {memory.id for memory in facts}
        before = [
            memory.id
            for memory in known
            if memory.state is MemoryState.ACTIVE
            and memory.provenance.derived == SUBJECT
            and memory.id != row.id
            and ids & set(memory.provenance.sources)
        ]
        there = await self._keeps.get(owner, [*ids, *before])
        standing = {memory.id: memory for memory in there}
        if not all(one.id in standing and same_words(standing[one.id], one) for one in facts):
            return []  # a fact was replaced in the meantime: the text would be stale
        gone = [standing[one] for one in before if one in standing]
        return [
            Embedded(row, vector),
            *(Embedded(retire_memory(one, RetentionReason.SOURCES, now), vector) for one in gone),
        ]

    def _row(self, owner: Owner, says: str, facts: Sequence[Memory], now: datetime) -> Memory:
        return Memory(
            id=digest("derived", SUBJECT, owner.key, *sorted(memory.id for memory in facts)),
            owner=owner,
            type=MemoryType.SEMANTIC,
            content=says,
            # Not a fact by itself: it is replaced only when a source is.
            source=Source.SUMMARY,
            created_at=now,
            updated_at=now,
            valid_from=now,
            expires_at=expires_with(facts),
            project=facts[0].project,
            importance=max(memory.importance for memory in facts),
            embed_model=self._embedder.fingerprint,
            provenance=Provenance(
                derived=SUBJECT,
                kind=SUBJECT,
                subject=facts[0].provenance.subject,
                sources=tuple(memory.id for memory in facts),
                past=(),
                made=read_at(now.timestamp(), facts),
                trust=least_trusted(map(trust_of, facts)),
                version=self._consolidates.version,
            ),
        )
