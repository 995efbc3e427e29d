"""What becomes of one owner's memories with time: what each is worth, what goes, what is erased. Pure."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import MappingProxyType

from memory_extproc.model import Memory, MemoryState, MemoryType, OwnerKind
from memory_extproc.retention.derived import MERGED, behind, merged_into, orphaned, sources_hold, sources_of
from memory_extproc.retention.reasons import ACCESSED, PINNED, RETIRED, RETIRED_AT, UNRETIRED, Reason, moment


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRules:
    weight: float = 0.5  # of importance, 0 to 1; the rest is age's
    half_life: timedelta = timedelta(days=60)
    max_memories: int | None = 1000  # active ones of one owner; None: any number
    prune_share: float = 0.01  # of max_memories, made room for beyond what is too many
    protect: timedelta = timedelta(hours=24)  # younger than that only its own expiry ends a memory
    grace: timedelta = timedelta(days=30)  # from deleted softly to erased
    history: timedelta | None = timedelta(days=365)  # from superseded to erased; None: kept
    ttl: Mapping[MemoryType, timedelta] = field(default_factory=lambda: MappingProxyType({}))
    refresh_on_access: bool = True


@dataclass(frozen=True, slots=True)
class Leaving:
    """What is to happen to memories of one owner; ids with reasons."""

    retire: Mapping[str, Reason]
    erase: frozenset[str]
    revive: frozenset[str]


def score(memory: Memory, rules: RetentionRules, now: datetime) -> float:
    """In [0, 1], the more the better: weight · importance + (1 - weight) · e^(-λ · age), λ = ln 2 / half-life. Age
    counts from when it was last said, confirmed or corrected and, where that refreshes it, given to a model."""
    age = max(0.0, now.timestamp() - _last(memory, rules))
    fresh = math.exp(-math.log(2) / rules.half_life.total_seconds() * age)
    return rules.weight * min(1.0, max(0.0, memory.importance)) + (1 - rules.weight) * fresh


def _last(memory: Memory, rules: RetentionRules) -> float:
    last = max(memory.created_at, memory.updated_at).timestamp()
    accessed = moment(memory, ACCESSED) if rules.refresh_on_access else 0.0
    return max(last, accessed, moment(memory, UNRETIRED))


def leaving(rows: Iterable[Memory], rules: RetentionRules, now: datetime) -> Leaving:
    """Of *rows*, all that one owner has. What an operator wrote for everyone counts towards no cap."""
    known = {memory.id: memory for memory in rows}
    active = [memory for memory in known.values() if memory.state is MemoryState.ACTIVE]
    retire: dict[str, Reason] = {}
    free: list[Memory] = []
    told_elsewhere = behind(active)
    for memory in active:
        reason = _ended(memory, rules, now) or (Reason.SOURCES if not sources_hold(memory, known) else None)
        if reason is not None:
            retire[memory.id] = reason
        elif memory.id not in told_elsewhere and not _held(memory, rules, now):
            free.append(memory)
    counted = sum(one.id not in told_elsewhere and one.id not in retire for one in active)
    retire |= _surplus(free, counted, rules, now)
    gone = frozenset(one for one, why in retire.items() if why is Reason.SOURCES)
    revive = frozenset(memory.id for memory in known.values() if orphaned(memory, known, gone))
    erase = _erasable(known, frozenset(retire), rules, now) - revive
    return Leaving(retire, erase, revive)


def unfounded(rows: Iterable[Memory]) -> Leaving:
    """As leaving, of what was made of others alone: what does not hold any more, and what speaks for itself."""
    known = {memory.id: memory for memory in rows}
    gone = frozenset(
        memory.id
        for memory in known.values()
        if memory.state is MemoryState.ACTIVE and not sources_hold(memory, known)
    )
    revive = frozenset(memory.id for memory in known.values() if orphaned(memory, known, gone))
    return Leaving(dict.fromkeys(gone, Reason.SOURCES), frozenset(), revive)


def _erasable(
    known: Mapping[str, Memory], retire: frozenset[str], rules: RetentionRules, now: datetime
) -> frozenset[str]:
    """What is due, with what was merged into it; but for what an active memory was made of, and what that was
    merged into, since a merged memory without it would speak for itself again."""
    needed = {
        source
        for memory in known.values()
        if memory.state is MemoryState.ACTIVE and memory.id not in retire
        for source in sources_of(memory)
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


def _ended(memory: Memory, rules: RetentionRules, now: datetime) -> Reason | None:
    if memory.expires_at is not None and memory.expires_at <= now:
        return Reason.EXPIRED
    ttl = rules.ttl.get(memory.type)
    if ttl is not None and now - memory.created_at > ttl and not _held(memory, rules, now):
        return Reason.TTL
    return None


def _held(memory: Memory, rules: RetentionRules, now: datetime) -> bool:
    """Whether neither age nor a cap ends it."""
    began = max(memory.created_at.timestamp(), moment(memory, UNRETIRED))
    return memory.metadata.get(PINNED) is True or now.timestamp() - began < rules.protect.total_seconds()


def _surplus(free: Sequence[Memory], count: int, rules: RetentionRules, now: datetime) -> Mapping[str, Reason]:
    """Those of *free* that have to go so that of *count* no more than may be kept are left, and a share below."""
    most = rules.max_memories
    if most is None or count <= most or not free or free[0].owner.kind is OwnerKind.GLOBAL:
        return {}
    surplus = count - max(1, math.floor(most * (1 - rules.prune_share)))
    worst = heapq.nsmallest(
        surplus, free, key=lambda memory: (score(memory, rules, now), memory.created_at, memory.id)
    )
    return dict.fromkeys((memory.id for memory in worst), Reason.CAP)


def _due(memory: Memory, rules: RetentionRules, now: datetime) -> bool:
    if memory.state is MemoryState.DELETED:
        since = moment(memory, RETIRED_AT) or memory.updated_at.timestamp()
        return now.timestamp() - since >= rules.grace.total_seconds()
    if memory.state is MemoryState.SUPERSEDED and rules.history is not None:
        return now - max(memory.valid_to or memory.updated_at, memory.updated_at) >= rules.history
    return False


# --- a row as it becomes -----------------------------------------------------------------------------
def retired(memory: Memory, why: Reason, at: datetime) -> Memory:
    """*memory* deleted softly: kept, recalled by nobody, until the grace is over."""
    metadata = {**memory.metadata, RETIRED: why.value, RETIRED_AT: int(at.timestamp())}
    return replace(memory, state=MemoryState.DELETED, updated_at=max(at, memory.updated_at), metadata=metadata)


def merged(memory: Memory, into: str, at: datetime) -> Memory:
    """*memory* as history: *into* says what it said."""
    return replace(
        memory,
        state=MemoryState.SUPERSEDED,
        superseded_by=into,
        valid_to=at,
        updated_at=max(at, memory.updated_at),
        metadata={**memory.metadata, MERGED: into},
    )


def revived(memory: Memory) -> Memory:
    """*memory* as it was before it was merged."""
    metadata = {name: value for name, value in memory.metadata.items() if name != MERGED}
    return replace(memory, state=MemoryState.ACTIVE, superseded_by="", valid_to=None, metadata=metadata)


def restored(memory: Memory) -> Memory:
    """*memory* as if it had never been deleted softly."""
    metadata = {name: value for name, value in memory.metadata.items() if name not in {RETIRED, RETIRED_AT}}
    return replace(memory, state=MemoryState.ACTIVE, metadata=metadata)
