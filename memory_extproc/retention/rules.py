"""What becomes of one owner's memories with time: what each is worth, what goes, what is erased. Pure."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType

from memory_extproc.model import Memory, MemoryState, MemoryType, OwnerKind

# Keys of a memory's metadata.
PINNED = "pinned"  # true: it is kept whatever its score; whoever writes memories over the API may set it
ACCESSED = "accessed"  # seconds since 1970: when it was last given to a model
RETIRED = "retired"  # why it was deleted softly
RETIRED_AT = "retired_at"  # seconds since 1970
UNRETIRED = "unretired"  # seconds since 1970: when its owner brought it back
MERGED = "merged"  # the id of the memory that says what it said
SOURCES = "sources"  # the ids of the memories that it was made of


class Reason(StrEnum):
    """Why a memory leaves recall. Also the metric label and what stands in its row, so a value is never renamed."""

    EXPIRED = "expired"  # its own time is over
    TTL = "ttl"  # its type is kept for so long
    CAP = "cap"  # its owner has more than may be kept, and it is worth least
    SOURCES = "sources"  # it was made of memories that are no longer there, or that say something else now
    DUPLICATE = "duplicate"  # another says the same
    UNRETIRED = "unretired"  # seconds since 1970: when its owner brought it back


MERGED = "merged"  # another says it together with what it is part of


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
    accessed = _moment(memory, ACCESSED) if rules.refresh_on_access else 0.0
    return max(last, accessed, _moment(memory, UNRETIRED))


def _moment(memory: Memory, name: str) -> float:
    """Seconds since 1970; 0 where the metadata does not say."""
    at = memory.metadata.get(name)
    return float(at) if isinstance(at, int | float) and not isinstance(at, bool) else 0.0


def leaving(rows: Iterable[Memory], rules: RetentionRules, now: datetime) -> Leaving:
    """Of *rows*, all that one owner has. What an operator wrote for everyone counts towards no cap."""
    known = {memory.id: memory for memory in rows}
    active = [memory for memory in known.values() if memory.state is MemoryState.ACTIVE]
    retire: dict[str, Reason] = {}
    free: list[Memory] = []
    for memory in active:
        reason = _ended(memory, rules, now) or (Reason.SOURCES if not sources_hold(memory, known) else None)
        if reason is not None:
            retire[memory.id] = reason
        elif not _held(memory, rules, now):
            free.append(memory)
    retire |= _surplus(free, len(active) - len(retire), rules, now)
    gone = frozenset(one for one, why in retire.items() if why is Reason.SOURCES)
    revive = frozenset(memory.id for memory in known.values() if _orphan(memory, known, gone))
    erase = _erasable(known, frozenset(retire), rules, now) - revive
    return Leaving(retire, erase, revive)


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
        into = _merged_into(known.get(waiting.pop()))
        if into and into not in needed:
            needed.add(into)
            waiting.append(into)
    erase = {one for one, memory in known.items() if one not in needed and _due(memory, rules, now)}
    beneath: dict[str, list[str]] = {}
    for memory in known.values():
        if into := _merged_into(memory):
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
    began = max(memory.created_at.timestamp(), _moment(memory, UNRETIRED))
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
        since = _moment(memory, RETIRED_AT) or memory.updated_at.timestamp()
        return now.timestamp() - since >= rules.grace.total_seconds()
    if memory.state is MemoryState.SUPERSEDED and rules.history is not None:
        return now - max(memory.valid_to or memory.updated_at, memory.updated_at) >= rules.history
    return False


# --- what was made of others -------------------------------------------------------------------------
def sources_of(memory: Memory) -> tuple[str, ...]:
    sources = memory.metadata.get(SOURCES)
    return tuple(one for one in sources if isinstance(one, str)) if isinstance(sources, list | tuple) else ()


def sources_hold(memory: Memory, known: Mapping[str, Memory]) -> bool:
    """Whether all that *memory* was made of is there and says what it said then: it was merged into *memory*, was
    history already, or is active and was not corrected since. True for what was made of nothing."""
    return all(_holds(memory, known.get(one), known) for one in sources_of(memory))


def _holds(memory: Memory, source: Memory | None, known: Mapping[str, Memory]) -> bool:
    seen: set[str] = set()
    while source is not None and (into := _merged_into(source)) not in {"", memory.id, *seen}:
        seen.add(source.id)
        source = known.get(into)  # says what it said
    if source is None:
        return False
    if source.state is MemoryState.SUPERSEDED:
        ended = source.valid_to or source.updated_at
        return source.superseded_by == memory.id or ended <= memory.created_at
    said = source.valid_from or source.created_at
    return source.state is MemoryState.ACTIVE and said <= memory.created_at


def _orphan(memory: Memory, known: Mapping[str, Memory], gone: frozenset[str]) -> bool:
    """Whether it was merged into another that is not there any more, so that it has to speak for itself again."""
    into = _merged_into(memory)
    if not into:
        return False
    other = known.get(into)
    if other is None or into in gone:
        return True
    # After a crash between the two writes the other is deleted already.
    return other.state is MemoryState.DELETED and other.metadata.get(RETIRED) == Reason.SOURCES.value


def _merged_into(memory: Memory | None) -> str:
    """The id of what says what *memory* said; empty: it was not merged, or was replaced otherwise since."""
    if memory is None or memory.state is not MemoryState.SUPERSEDED:
        return ""
    into = memory.metadata.get(MERGED)
    return into if isinstance(into, str) and into == memory.superseded_by else ""


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
