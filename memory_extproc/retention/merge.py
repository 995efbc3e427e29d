"""Deduplication: among memories with the same content a single canonical memory stays. Pure functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from memory_extproc.model import (
    Embedded,
    Matrix,
    Memory,
    MemoryState,
    MemoryType,
    Source,
    Trust,
    digest,
    least_trusted,
    trust_of,
    with_trust,
)
from memory_extproc.retention.rules import (
    HISTORY,
    read_at,
    score,
)
from memory_extproc.settings.memory import Consolidate, Retention

Says = Callable[[str], Hashable]  # normalises a text; equal texts give equal keys


# Two messages in the same words are two events.
_MERGED = frozenset({MemoryType.SEMANTIC, MemoryType.PROCEDURAL, MemoryType.REFLECTIVE})


@dataclass(frozen=True, slots=True)
class Merging:
    """*others* are superseded by *canonical*, which gets *importance*."""

    canonical: str
    importance: float
    others: tuple[str, ...]
    trust: Trust  # of all of them, the least


def duplicates(rows: Iterable[Embedded], retention: Retention, says: Says, now: datetime) -> list[Merging]:
    """Find duplicates among *rows* of a single owner.

    Only recallable memories of the same project and type are merged. A pinned memory stays before all others, else
    the highest retention score; it gets the average importance of the group."""
    alike: defaultdict[Hashable, list[Embedded]] = defaultdict(list)
    for row in rows:
        memory = row.memory
        if memory.type not in _MERGED or not memory.recallable(now) or memory.source is Source.VERBATIM:
            continue
        words = says(memory.content) if retention.duplicates.same_words else ""
        # An expiring memory is no duplicate of a permanent memory, nor an ending of a beginning.
        ends = (memory.expires_at, memory.provenance.ends)
        alike[memory.project, memory.type, words, ends].append(row)
    found: list[Merging] = []
    for group in alike.values():
        if len(group) < 2:  # noqa: PLR2004 - one has no duplicate
            continue
        group.sort(key=lambda row: row.memory.id)
        vectors = np.stack([row.vector for row in group])
        clusters = components(vectors, retention.duplicates.distance)
        found += [_merging([group[at].memory for at in cluster], retention, now) for cluster in clusters]
    return sorted(found, key=lambda merging: merging.canonical)


def _merging(memories: Sequence[Memory], retention: Retention, now: datetime) -> Merging:
    def rank(memory: Memory) -> tuple[bool, float, bool, str]:
        known = memory.provenance
        return known.pinned, score(memory, retention, now), not known.sources, memory.id

    best = max(memories, key=rank)
    importance = sum(memory.importance for memory in memories) / len(memories)
    others = tuple(one.id for one in memories if one.id != best.id)
    return Merging(best.id, round(importance, 6), others, least_trusted(map(trust_of, memories)))


def speaking(canonical: Memory, merging: Merging) -> Memory:
    """*canonical* as it speaks for all."""
    return with_trust(replace(canonical, importance=merging.importance), merging.trust)


# Clusters of close memories: connected components under a cosine distance, computed exactly. Pure functions.

_BLOCK = 256  # rows compared with all others at once: 10 MB for 10,000
_ROUNDING = 1e-5  # largest error of a float32 product of unit vectors
_LENGTH = 1e-6  # error of a unit vector's length in float32: a vector has distance 0 to itself


def components(vectors: Matrix, distance: float) -> list[list[int]]:
    """Group the rows of *vectors*, unit vectors, into connected components of two or more.

    Two rows are connected if a chain of rows leads from the first to the second whose neighbours are at most
    *distance* (1 - cosine) apart. Groups and rows are in ascending order. Time grows with the square of the rows,
    memory with the rows."""
    count = len(vectors)
    label: npt.NDArray[np.int64] = np.arange(count)
    for start in range(0, count, _BLOCK):
        block = vectors[start : start + _BLOCK]
        # Each pair is compared only once: earlier blocks were compared with this block already.
        near = _near(block, vectors[start:], 1 - distance - _LENGTH)
        for row in np.flatnonzero(near.sum(axis=1) > 1).tolist():
            found = label[start:][near[row]]
            if (found != found[0]).any():
                label[np.isin(label, found)] = found.min()
    return _groups(label)


def _near(block: Matrix, others: Matrix, least: float) -> npt.NDArray[np.bool_]:
    products = block @ others.T
    near: npt.NDArray[np.bool_] = products >= least + _ROUNDING
    # Pairs within the rounding error are recomputed in double precision.
    unsure = np.argwhere(np.abs(products - least) < _ROUNDING)
    for start in range(0, len(unsure), _BLOCK * 16):
        rows, columns = unsure[start : start + _BLOCK * 16].T
        exact = np.einsum("ij,ij->i", block[rows].astype(np.float64), others[columns].astype(np.float64))
        near[rows, columns] = exact >= least
    return near


def _groups(label: npt.NDArray[np.int64]) -> list[list[int]]:
    order = np.argsort(label, kind="stable")
    edges = np.flatnonzero(np.diff(label[order])) + 1
    groups: Sequence[npt.NDArray[np.int64]] = np.split(order, edges)
    return [group.tolist() for group in groups if len(group) > 1]


# Histories: the values of an attribute over time in a single memory, the current value first. Pure functions.

About = Callable[[str], Hashable]  # normalises the name of a subject or attribute
Agree = Callable[[str, str], bool]  # whether two values are equal
_FACTS = frozenset({Source.RULES, Source.LLM, Source.API})
# Fields that belong to the current value, not to the history.
_NOT_INHERITED: Mapping[str, Any] = {
    "turn": "", "ordinal": None, "beside": (), "replaces": (), "also": {}, "confirmations": 0, "revision": None,
    "accessed": None,
}  # fmt: skip
_ENDS = ". ! ?"


@dataclass(frozen=True, slots=True)
class Consolidation:
    """*derived* states the current value and the earlier values; it supersedes *current*."""

    current: Memory
    derived: Memory


def histories(
    rows: Iterable[Memory], rules: Consolidate, about: About, agree: Agree, now: datetime
) -> list[Consolidation]:
    """Consolidate repeated statements among all *rows* of an owner.

    Statements are grouped by project, type, subject and attribute. Statements of which several hold at a
    time (a person may have two dogs) are left alone."""
    if rules.above is None:
        return []
    things: defaultdict[Hashable, list[Memory]] = defaultdict(list)
    for memory in rows:
        if _is_statement(memory):
            known = memory.provenance
            things[memory.project, memory.type, about(known.subject), about(known.attribute)].append(memory)
    made = (_consolidate_statements(statements, rules, agree, now) for statements in things.values())
    return sorted((one for one in made if one is not None), key=lambda one: one.derived.id)


def _is_statement(memory: Memory) -> bool:
    """Whether it gives an attribute of a subject a value, and does not state that something ended."""
    known = memory.provenance
    whole = bool(known.subject and known.attribute and known.value) and not known.ends
    return whole and memory.source in _FACTS and memory.state in {MemoryState.ACTIVE, MemoryState.SUPERSEDED}


def _consolidate_statements(
    statements: Sequence[Memory], rules: Consolidate, agree: Agree, now: datetime
) -> Consolidation | None:
    active = [memory for memory in statements if memory.recallable(now)]
    if len(active) != 1 or active[0].provenance.derived:
        return None
    current = active[0]
    # An expiring statement must not enter a history that outlives it.
    before = sorted((one for one in statements if _was_made_for_good(one)), key=_when_said)
    if rules.above is None or len(before) + 1 < rules.above:
        return None
    earlier: list[Memory] = []
    for one in before:
        value = one.provenance.value
        if agree(value, current.provenance.value):
            continue
        earlier = [known for known in earlier if not agree(value, known.provenance.value)]
        earlier.append(one)
    if not earlier:
        return None
    earlier = earlier[-rules.earlier :]
    return Consolidation(current, _derive_memory(current, earlier, now))


def _when_said(memory: Memory) -> tuple[float, int, int, str]:
    """Sort key: time, position in the session, position in the message.

    Rows keep whole seconds, and a second can hold several values."""
    whole = (memory.valid_from or memory.created_at).timestamp()
    known = memory.provenance
    return whole if known.said is None else known.said, memory.seq, known.ordinal or 0, memory.id


def _was_made_for_good(memory: Memory) -> bool:
    history = memory.state is MemoryState.SUPERSEDED and not memory.provenance.derived
    return history and memory.expires_at is None


def _derive_memory(current: Memory, earlier: Sequence[Memory], now: datetime) -> Memory:
    at = now.replace(microsecond=0)
    values = ", then ".join(one.provenance.value for one in earlier)
    text = current.content.rstrip()
    end = text[-1] if text and text[-1] in _ENDS else ""
    sources = (current.id, *(one.id for one in earlier))
    return replace(
        current,
        id=digest("derived", HISTORY, current.owner.key, *sources),
        content=f"{text.removesuffix(end)} (first {values}){end}",
        created_at=at,
        updated_at=max(at, current.updated_at),
        embed_model="",
        provenance=current.provenance.replace(
            derived=HISTORY,
            sources=sources,
            past=sources[1:],
            made=read_at(at.timestamp(), [current, *earlier]),
            trust=least_trusted(map(trust_of, [current, *earlier])),
            **_NOT_INHERITED,
        ),
    )
