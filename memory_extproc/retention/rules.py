"""Retention rules for one owner's memories: score, retirement, erasure. Pure functions."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from memory_extproc.model import (
    Embedded,
    Matrix,
    Memory,
    MemoryState,
    MemoryType,
    Owner,
    OwnerKind,
    Rating,
    Source,
    Trust,
    digest,
    least_trusted,
    trust_of,
    with_trust,
)
from memory_extproc.ports import ConditionalWriter, MemoryStore, MemoryWriter
from memory_extproc.settings.memory import Consolidate, Retention


@dataclass(frozen=True, slots=True)
class Leaving:
    """The changes due to one owner's memories: ids, with reasons where a memory is retired."""

    retire: Mapping[str, RetentionReason]
    erase: frozenset[str]
    revive: frozenset[str]


def score(memory: Memory, rules: Retention, now: datetime) -> float:
    """In [0, 1], the more the better: weight · importance + (1 - weight) · e^(-λ · age), λ = ln 2 / half-life. Age
    counts from when it was last said, confirmed or corrected and, where that refreshes it, given to a model. A
    rating as helpful counts as the highest importance; a rating as wrong gives 0."""
    age = max(0.0, now.timestamp() - _last(memory, rules))
    fresh = math.exp(-math.log(2) / rules.half_life.total_seconds() * age)
    if memory.provenance.rating is Rating.WRONG:
        return 0.0
    importance = 1.0 if memory.provenance.rating is Rating.HELPFUL else min(1.0, max(0.0, memory.importance))
    return rules.weight * importance + (1 - rules.weight) * fresh


def _last(memory: Memory, rules: Retention) -> float:
    last = max(memory.created_at, memory.updated_at).timestamp()
    accessed = memory.provenance.accessed or 0.0 if rules.refresh_on_access else 0.0
    return max(last, accessed, memory.provenance.unretired or 0.0)


def leaving(rows: Iterable[Memory], rules: Retention, now: datetime) -> Leaving:
    """Decide retirement, erasure and revival for all *rows* of one owner. Global memories count towards no cap."""
    known = {memory.id: memory for memory in rows}
    active = [memory for memory in known.values() if memory.state is MemoryState.ACTIVE]
    retire: dict[str, RetentionReason] = {}
    free: list[Memory] = []
    told_elsewhere = behind(active)
    for memory in active:
        reason = _end_reason(memory, rules, now) or (
            RetentionReason.SOURCES if not sources_hold(memory, known) else None
        )
        if reason is not None:
            retire[memory.id] = reason
        elif memory.id not in told_elsewhere and not _is_protected(memory, rules, now):
            free.append(memory)
    counted = sum(one.id not in told_elsewhere and one.id not in retire for one in active)
    retire |= _surplus(free, counted, rules, now)
    gone = frozenset(one for one, why in retire.items() if why is RetentionReason.SOURCES)
    revive = frozenset(memory.id for memory in known.values() if is_orphaned(memory, known, gone))
    erase = _erasable(known, frozenset(retire), rules, now) - revive
    return Leaving(retire, erase, revive)


def find_unfounded(rows: Iterable[Memory]) -> Leaving:
    """Like `leaving`, limited to derived memories: retire the unfounded, revive their orphaned sources."""
    known = {memory.id: memory for memory in rows}
    gone = frozenset(
        memory.id
        for memory in known.values()
        if memory.state is MemoryState.ACTIVE and not sources_hold(memory, known)
    )
    revive = frozenset(memory.id for memory in known.values() if is_orphaned(memory, known, gone))
    return Leaving(dict.fromkeys(gone, RetentionReason.SOURCES), frozenset(), revive)


def _erasable(
    known: Mapping[str, Memory], retire: frozenset[str], rules: Retention, now: datetime
) -> frozenset[str]:
    """Ids due for erasure, together with the memories merged into them.

    Sources of active memories are exempt, and so is their merge chain: without it a merged memory would become
    active again."""
    needed = {
        source
        for memory in known.values()
        if memory.state is MemoryState.ACTIVE and memory.id not in retire
        for source in memory.provenance.sources
    }
    waiting = list(needed)
    while waiting:
        into = merged_into(known.get(waiting.pop()))
        if into and into not in needed:
            needed.add(into)
            waiting.append(into)
    erase = {one for one, memory in known.items() if one not in needed and _due(memory, rules, now)}
    beneath: dict[str, list[str]] = {}
    for memory in known.values():
        if into := merged_into(memory):
            beneath.setdefault(into, []).append(memory.id)
    waiting = list(erase)
    while waiting:
        for one in beneath.get(waiting.pop(), ()):
            if one not in erase | needed:
                erase.add(one)
                waiting.append(one)
    return frozenset(erase)


def _end_reason(memory: Memory, rules: Retention, now: datetime) -> RetentionReason | None:
    if memory.expires_at is not None and memory.expires_at <= now:
        return RetentionReason.EXPIRED
    ttl = rules.ttl.of(memory.type)
    if ttl is not None and now - memory.created_at > ttl and not _is_protected(memory, rules, now):
        return RetentionReason.TTL
    return None


def _is_protected(memory: Memory, rules: Retention, now: datetime) -> bool:
    """Whether the memory is exempt from age limits and caps."""
    began = max(memory.created_at.timestamp(), memory.provenance.unretired or 0.0)
    return memory.provenance.pinned or now.timestamp() - began < rules.protect.total_seconds()


def _surplus(free: Sequence[Memory], count: int, rules: Retention, now: datetime) -> Mapping[str, RetentionReason]:
    """The lowest-scored of *free* to retire so that *count* falls below the cap by the prune share."""
    most = rules.max_memories
    if most is None or count <= most or not free or free[0].owner.kind is OwnerKind.GLOBAL:
        return {}
    surplus = count - max(1, math.floor(most * (1 - rules.prune_share)))
    worst = heapq.nsmallest(
        surplus, free, key=lambda memory: (score(memory, rules, now), memory.created_at, memory.id)
    )
    return dict.fromkeys((memory.id for memory in worst), RetentionReason.CAP)


def _due(memory: Memory, rules: Retention, now: datetime) -> bool:
    if memory.state is MemoryState.DELETED:
        since = memory.provenance.retired_at or memory.updated_at.timestamp()
        return now.timestamp() - since >= rules.grace.total_seconds()
    if memory.state is MemoryState.SUPERSEDED and rules.history is not None:
        return now - max(memory.valid_to or memory.updated_at, memory.updated_at) >= rules.history
    return False


def retire_memory(memory: Memory, why: RetentionReason, at: datetime) -> Memory:
    """Return *memory* soft-deleted: stored until the grace period ends, never recalled."""
    retired = memory.provenance.replace(retired=why.value, retired_at=int(at.timestamp()))
    return replace(memory, state=MemoryState.DELETED, updated_at=max(at, memory.updated_at), provenance=retired)


def merge_memory(memory: Memory, into: str, at: datetime) -> Memory:
    """Return *memory* superseded by *into*, which repeats its content."""
    return replace(
        memory,
        state=MemoryState.SUPERSEDED,
        superseded_by=into,
        valid_to=at,
        updated_at=max(at, memory.updated_at),
        provenance=memory.provenance.replace(merged=into),
    )


def revive_memory(memory: Memory) -> Memory:
    """Return *memory* active again, as before the merge."""
    parted = memory.provenance.replace(merged="")
    return replace(memory, state=MemoryState.ACTIVE, superseded_by="", valid_to=None, provenance=parted)


def restore_memory(memory: Memory) -> Memory:
    """Return *memory* active again, with the soft deletion undone."""
    restored = memory.provenance.replace(retired="", retired_at=None)
    return replace(memory, state=MemoryState.ACTIVE, provenance=restored)


# Derived memories: whether their sources still support them, and which sources become active again without them.

# Values of Provenance.derived.
HISTORY = "history"  # an attribute's values over time; the current value is the first source
SUBJECT = "subject"  # a text about a single subject, recalled in place of its sources


def sources_hold(memory: Memory, known: Mapping[str, Memory]) -> bool:
    """Whether every source of *memory* exists and is unchanged since it was read.

    A source counts when it was merged into *memory*, was history already, or is active and was neither corrected
    nor rebuilt since. Retirement by the cap does not invalidate a source. True for memories without sources."""
    return _sources_hold(memory, known, frozenset({memory.id}))


def _sources_hold(memory: Memory, known: Mapping[str, Memory], above: frozenset[str]) -> bool:
    return all(_holds(memory, one, known, above) for one in memory.provenance.sources)


def _holds(memory: Memory, name: str, known: Mapping[str, Memory], above: frozenset[str]) -> bool:
    source = _speaker(memory, known.get(name), known)
    if source is None:
        return False
    if source.id not in above and not _sources_hold(source, known, above | {source.id}):
        return False  # a summary of summaries depends on theirs
    match source.state:
        case MemoryState.ACTIVE:
            # A merged memory may be newer than the derived memory; its content was stated earlier.
            said = _stated_at(source) if source.id == name else _began(source)
            return said <= made_at(memory)
        case MemoryState.SUPERSEDED:
            return source.superseded_by == memory.id or _was_past(memory, name, source)
        case MemoryState.DELETED:
            return source.provenance.retired == RetentionReason.CAP or _brought_back(memory, source)
        case _:
            return False


def _speaker(memory: Memory, source: Memory | None, known: Mapping[str, Memory]) -> Memory | None:
    """Follow merges from *source* to the memory that now holds its content."""
    seen: set[str] = set()
    while source is not None and (into := merged_into(source)) not in {"", memory.id, *seen}:
        seen.add(source.id)
        source = known.get(into)
    return source


def _was_past(memory: Memory, name: str, source: Memory) -> bool:
    if memory.provenance.made is not None:
        return name in (memory.provenance.past or ())
    ended = source.valid_to or source.updated_at
    return ended <= memory.created_at


def _brought_back(memory: Memory, source: Memory) -> bool:
    """Whether the owner restored *memory* after forgetting *source* in the same request."""
    asked = source.provenance.retired == BY_CHAT
    return asked and (memory.provenance.unretired or 0) >= (source.provenance.retired_at or 0) > 0


def made_at(memory: Memory) -> float:
    """When its sources were read, in seconds since 1970."""
    return memory.provenance.made or memory.created_at.timestamp()


def expires_with(sources: Iterable[Memory]) -> datetime | None:
    """The earliest expiry of *sources*, which a derived memory inherits; None: never."""
    return min((one.expires_at for one in sources if one.expires_at is not None), default=None)


def read_at(now: float, sources: Iterable[Memory]) -> float:
    """Provenance.made for a memory derived from *sources* at *now*.

    At least the time of the latest source, because another replica's clock may run ahead."""
    return max([now, *map(_stated_at, sources)])


def _stated_at(memory: Memory) -> float:
    return max(_began(memory), memory.provenance.made or 0.0)


def _began(memory: Memory) -> float:
    # A correction records its time more precisely than in whole seconds.
    return max((memory.valid_from or memory.created_at).timestamp(), memory.provenance.said or 0.0)


def merged_into(memory: Memory | None) -> str:
    """The id of the memory that *memory* was merged into.

    Empty if it was not merged, or was superseded again since."""
    if memory is None or memory.state is not MemoryState.SUPERSEDED:
        return ""
    return memory.superseded_by if memory.provenance.merged == memory.superseded_by else ""


def is_orphaned(memory: Memory, known: Mapping[str, Memory], gone: frozenset[str]) -> bool:
    """Whether its merge target is missing, or is in *gone*, so that the memory must become active again."""
    into = merged_into(memory)
    if not into:
        return False
    other = known.get(into)
    if other is None or into in gone:
        return True
    if other.state is not MemoryState.DELETED:
        return False
    # After a crash between the two writes the target is already deleted. A memory forgotten in a conversation takes
    # with it the sources that state the same; its other sources stay.
    made_of = other.provenance.retired == BY_CHAT and memory.id in other.provenance.sources
    return made_of or other.provenance.retired == RetentionReason.SOURCES


def half_merged(known: Mapping[str, Memory]) -> dict[str, str]:
    """History sources that a crash between two writes left active: their id to the history's id."""
    found: dict[str, str] = {}
    for memory in known.values():
        if memory.state is MemoryState.ACTIVE and memory.provenance.derived == HISTORY:
            current = next((known[one] for one in memory.provenance.sources[:1] if one in known), None)
            if current is not None and current.state is MemoryState.ACTIVE and sources_hold(memory, known):
                found[current.id] = memory.id
    return found


def behind(known: Iterable[Memory]) -> frozenset[str]:
    """The ids of memories that a subject text replaces in recall: they are retired and kept together with it."""
    return frozenset(
        source
        for memory in known
        if memory.state is MemoryState.ACTIVE and memory.provenance.derived == SUBJECT
        for source in memory.provenance.sources
    )


def is_outdated_summary(memory: Memory) -> bool:
    """Whether a summary was retired because its sources changed, so that it can be rebuilt from the rest."""
    return (
        memory.source is Source.SUMMARY
        and memory.provenance.derived != SUBJECT
        and memory.state is MemoryState.DELETED
        and memory.provenance.retired == RetentionReason.SOURCES
    )


# Why a memory leaves recall, as written to Provenance.retired.

BY_CHAT = "chat"  # besides the values of Reason: its owner asked in a conversation


class RetentionReason(StrEnum):
    """Why a memory leaves recall. Used as metric label and stored in rows, so values are never renamed."""

    EXPIRED = "expired"  # its expiry time passed
    TTL = "ttl"  # older than the TTL of its type
    CAP = "cap"  # its owner exceeds max_memories and it has the lowest score
    SOURCES = "sources"  # its sources are gone or have changed


# Rows change only if they are still as they were read.

_AT_ONCE = 100  # rows per write


class RetainedMemories(MemoryWriter, ConditionalWriter, Protocol):
    """Reads and writes of an owner's memories that a pass needs."""


class OwnerRows:
    """Reads all rows of an owner, and changes those that are still as read. *known*: the pass's copies, by id."""

    def __init__(self, store: MemoryStore, memories: RetainedMemories, page: int = 500) -> None:
        """*page*: rows per read."""
        self._store, self.memories, self._page = store, memories, page

    async def read(self, owner: Owner) -> dict[str, Embedded]:
        pages = self._store.pages(owner, self._page, fresh=True)
        return {row.memory.id: row async for page in pages for row in page}

    async def stand(self, owner: Owner, known: Mapping[str, Embedded], ids: Sequence[str]) -> bool:
        """Whether memories are unchanged since they were read.

        A memory forgotten or corrected while a model reads it must not enter the model's text."""
        there = {memory.id: memory for memory in await self.memories.get(owner, ids)}
        return all(one in there and one in known and same_words(there[one], known[one].memory) for one in ids)

    async def change(
        self, owner: Owner, known: Mapping[str, Embedded], becoming: Mapping[str, Memory | Embedded]
    ) -> list[str]:
        """Change rows that are still as they were read, and return their ids."""
        changed: list[str] = []

        def change(row: Embedded) -> Sequence[Embedded]:
            if not as_read(row.memory, known[row.memory.id].memory):
                return ()
            changed.append(row.memory.id)
            becomes = becoming[row.memory.id]
            if isinstance(becomes, Memory):
                becomes = Embedded(becomes, row.vector)
            return [Embedded(with_accesses(becomes.memory, row.memory), becomes.vector)]

        ids = list(becoming)
        for start in range(0, len(ids), _AT_ONCE):
            await self.memories.change_all(owner, ids[start : start + _AT_ONCE], change)
        return changed

    async def erase(self, owner: Owner, known: Mapping[str, Embedded], ids: Sequence[str]) -> int:
        erased = 0
        for start in range(0, len(ids), _AT_ONCE):
            erased += await self.memories.delete_where(
                owner, ids[start : start + _AT_ONCE], lambda memory: as_read(memory, known[memory.id].memory)
            )
        return erased


def as_read(now: Memory, before: Memory) -> bool:
    """Whether nothing but the access count changed since *before* was read."""
    return with_accesses(now, before) == before


def same_words(now: Memory, before: Memory) -> bool:
    """Whether content and state are unchanged since *before* was read."""
    return now.state is before.state and now.content == before.content


def with_accesses(memory: Memory, of: Memory) -> Memory:
    """Return *memory* with the access count of *of*."""
    counted = memory.provenance.replace(accessed=of.provenance.accessed)
    return replace(memory, access_count=of.access_count, provenance=counted)


# --- deduplication -----------------------------------------------------------------------------------


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
