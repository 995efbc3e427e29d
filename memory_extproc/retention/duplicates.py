"""Memories that say the same more than once: one stays and speaks for all. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np

from memory_extproc.model import Embedded, Memory, MemoryType, Source
from memory_extproc.retention.clusters import components
from memory_extproc.retention.derived import sources_of
from memory_extproc.retention.reasons import PINNED
from memory_extproc.retention.rules import RetentionRules, score

Says = Callable[[str], Hashable]  # what a text says, the same for texts that say the same


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicateRules:
    distance: float = 0.08  # 1 - cosine, at most, between neighbours in a cluster
    same_words: bool = True  # False: the distance alone decides, and near memories of different things become one
    types: frozenset[MemoryType] = frozenset(
        {MemoryType.SEMANTIC, MemoryType.PROCEDURAL, MemoryType.REFLECTIVE}
    )  # two messages in the same words are two events


@dataclass(frozen=True, slots=True)
class Merging:
    """*others* are superseded by *canonical*, which gets *importance*."""

    canonical: str
    importance: float
    others: tuple[str, ...]


def duplicates(
    rows: Iterable[Embedded], rules: DuplicateRules, retention: RetentionRules, says: Says, now: datetime
) -> list[Merging]:
    """Of *rows*, one owner's. Only recallable ones of one project and type become one; the one with the highest
    retention score stays, a pinned one before all, with the average importance of all."""
    alike: defaultdict[Hashable, list[Embedded]] = defaultdict(list)
    for row in rows:
        memory = row.memory
        if memory.type not in rules.types or not memory.recallable(now) or memory.source is Source.VERBATIM:
            continue
        words = says(memory.content) if rules.same_words else ""
        # What ends by itself is not what stays, and what an end was said of is not what began.
        ends = (memory.expires_at, bool(memory.metadata.get("ends")))
        alike[memory.project, memory.type, words, ends].append(row)
    found: list[Merging] = []
    for group in alike.values():
        if len(group) < 2:  # noqa: PLR2004 - one has no duplicate
            continue
        group.sort(key=lambda row: row.memory.id)
        vectors = np.stack([row.vector for row in group])
        clusters = components(vectors, rules.distance)
        found += [_merging([group[at].memory for at in cluster], retention, now) for cluster in clusters]
    return sorted(found, key=lambda merging: merging.canonical)


def _merging(memories: Sequence[Memory], retention: RetentionRules, now: datetime) -> Merging:
    def rank(memory: Memory) -> tuple[bool, float, bool, str]:
        return memory.metadata.get(PINNED) is True, score(memory, retention, now), not sources_of(memory), memory.id

    best = max(memories, key=rank)
    importance = sum(memory.importance for memory in memories) / len(memories)
    return Merging(best.id, round(importance, 6), tuple(one.id for one in memories if one.id != best.id))


def speaking(canonical: Memory, merging: Merging) -> Memory:
    """*canonical* as it speaks for all."""
    return replace(canonical, importance=merging.importance)
