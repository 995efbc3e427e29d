"""What becomes of one owner's memories with time: what each is worth, what goes, what is erased. Pure."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType

from memory_extproc.model import (
    Embedded,
    Memory,
    MemoryState,
    MemoryType,
    Owner,
    OwnerKind,
    Rating,
    Source,
    seconds_said,
)
from memory_extproc.ports import ConditionalWriter


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
    counts from when it was last said, confirmed or corrected and, where that refreshes it, given to a model. A
    rating as helpful counts as the highest importance; a rating as wrong gives 0."""
    age = max(0.0, now.timestamp() - _last(memory, rules))
    fresh = math.exp(-math.log(2) / rules.half_life.total_seconds() * age)
    if memory.rating is Rating.WRONG:
        return 0.0
    importance = 1.0 if memory.rating is Rating.HELPFUL else min(1.0, max(0.0, memory.importance))
    return rules.weight * importance + (1 - rules.weight) * fresh


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
        reason = _end_reason(memory, rules, now) or (Reason.SOURCES if not sources_hold(memory, known) else None)
        if reason is not None:
            retire[memory.id] = reason
        elif memory.id not in told_elsewhere and not _is_protected(memory, rules, now):
            free.append(memory)
    counted = sum(one.id not in told_elsewhere and one.id not in retire for one in active)
    retire |= _surplus(free, counted, rules, now)
    gone = frozenset(one for one, why in retire.items() if why is Reason.SOURCES)
    revive = frozenset(memory.id for memory in known.values() if is_orphaned(memory, known, gone))
    erase = _erasable(known, frozenset(retire), rules, now) - revive
    return Leaving(retire, erase, revive)


def find_unfounded(rows: Iterable[Memory]) -> Leaving:
    """As leaving, of what was made of others alone: what does not hold any more, and what speaks for itself."""
    known = {memory.id: memory for memory in rows}
    gone = frozenset(
        memory.id
        for memory in known.values()
        if memory.state is MemoryState.ACTIVE and not sources_hold(memory, known)
    )
    revive = frozenset(memory.id for memory in known.values() if is_orphaned(memory, known, gone))
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


def _end_reason(memory: Memory, rules: RetentionRules, now: datetime) -> Reason | None:
    if memory.expires_at is not None and memory.expires_at <= now:
        return Reason.EXPIRED
    ttl = rules.ttl.get(memory.type)
    if ttl is not None and now - memory.created_at > ttl and not _is_protected(memory, rules, now):
        return Reason.TTL
    return None


def _is_protected(memory: Memory, rules: RetentionRules, now: datetime) -> bool:
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
def retire_memory(memory: Memory, why: Reason, at: datetime) -> Memory:
    """*memory* deleted softly: kept, recalled by nobody, until the grace is over."""
    metadata = {**memory.metadata, RETIRED: why.value, RETIRED_AT: int(at.timestamp())}
    return replace(memory, state=MemoryState.DELETED, updated_at=max(at, memory.updated_at), metadata=metadata)


def merge_memory(memory: Memory, into: str, at: datetime) -> Memory:
    """*memory* as history: *into* says what it said."""
    return replace(
        memory,
        state=MemoryState.SUPERSEDED,
        superseded_by=into,
        valid_to=at,
        updated_at=max(at, memory.updated_at),
        metadata={**memory.metadata, MERGED: into},
    )


def revive_memory(memory: Memory) -> Memory:
    """*memory* as it was before it was merged."""
    metadata = {name: value for name, value in memory.metadata.items() if name != MERGED}
    return replace(memory, state=MemoryState.ACTIVE, superseded_by="", valid_to=None, metadata=metadata)


def restore_memory(memory: Memory) -> Memory:
    """*memory* as if it had never been deleted softly."""
    metadata = {name: value for name, value in memory.metadata.items() if name not in {RETIRED, RETIRED_AT}}
    return replace(memory, state=MemoryState.ACTIVE, metadata=metadata)


# --- derived -----------------------------------------------------------------------------------------
# What was made of other memories: whether it still holds, and what speaks for itself again without it. Pure.

# Keys of a memory's metadata.
DERIVED = "derived"  # how it was made of its sources
SOURCES = "sources"  # the ids of the memories that it was made of
PAST = "past"  # those of its sources that were history already; where it is not said, times decide
MADE = "made"  # seconds since 1970: when its sources were read
MERGED = "merged"  # the id of the memory that says what it said
HISTORY = "history"  # a value of DERIVED: one thing's values over time; the one that holds is its first source
SUBJECT = "subject"  # a value of DERIVED: what is known of one subject, told in its sources' place


def sources_of(memory: Memory) -> tuple[str, ...]:
    return _ids(memory, SOURCES)


def sources_hold(memory: Memory, known: Mapping[str, Memory]) -> bool:
    """Whether all that *memory* was made of is there and says what it said then: it was merged into *memory*, was
    history already, or is active and was neither corrected nor made anew since. What only had to make room, because
    there were too many, was right. True for what was made of nothing."""
    return _sources_hold(memory, known, frozenset({memory.id}))


def _sources_hold(memory: Memory, known: Mapping[str, Memory], above: frozenset[str]) -> bool:
    return all(_holds(memory, one, known, above) for one in sources_of(memory))


def _holds(memory: Memory, name: str, known: Mapping[str, Memory], above: frozenset[str]) -> bool:
    source = _speaker(memory, known.get(name), known)
    if source is None:
        return False
    if source.id not in above and not _sources_hold(source, known, above | {source.id}):
        return False  # a summary of summaries holds as long as these do
    match source.state:
        case MemoryState.ACTIVE:
            # Who speaks for it now may have been made since; what it says was said before.
            said = _said(source) if source.id == name else _began(source)
            return said <= made_at(memory)
        case MemoryState.SUPERSEDED:
            return source.superseded_by == memory.id or _was_past(memory, name, source)
        case MemoryState.DELETED:
            return source.metadata.get(RETIRED) == Reason.CAP or _brought_back(memory, source)
        case _:
            return False


def _speaker(memory: Memory, source: Memory | None, known: Mapping[str, Memory]) -> Memory | None:
    """*source*, or what says what it said."""
    seen: set[str] = set()
    while source is not None and (into := merged_into(source)) not in {"", memory.id, *seen}:
        seen.add(source.id)
        source = known.get(into)
    return source


def _was_past(memory: Memory, name: str, source: Memory) -> bool:
    if MADE in memory.metadata:
        return name in _ids(memory, PAST)
    ended = source.valid_to or source.updated_at
    return ended <= memory.created_at


def _brought_back(memory: Memory, source: Memory) -> bool:
    """Whether its owner wants *memory* though they had *source* forgotten in the same breath."""
    asked = source.metadata.get(RETIRED) == BY_CHAT
    return asked and moment(memory, UNRETIRED) >= moment(source, RETIRED_AT) > 0


def made_at(memory: Memory) -> float:
    """When its sources were read, in seconds since 1970."""
    return moment(memory, MADE) or memory.created_at.timestamp()


def expires_with(sources: Iterable[Memory]) -> datetime | None:
    """When the first of *sources* is no longer to be told, and with it what is made of them; None: never."""
    return min((one.expires_at for one in sources if one.expires_at is not None), default=None)


def read_at(now: float, sources: Iterable[Memory]) -> float:
    """What is to stand as MADE in what is made of *sources*, read *now*: not before they were said, whatever the
    clocks of those who wrote them showed."""
    return max([now, *map(_said, sources)])


def _said(memory: Memory) -> float:
    return max(_began(memory), moment(memory, MADE))


def _began(memory: Memory) -> float:
    # A correction tells its moment more exactly than in whole seconds.
    return max((memory.valid_from or memory.created_at).timestamp(), moment(memory, "said"))


def merged_into(memory: Memory | None) -> str:
    """The id of what says what *memory* said; empty: it was not merged, or was replaced otherwise since."""
    if memory is None or memory.state is not MemoryState.SUPERSEDED:
        return ""
    into = memory.metadata.get(MERGED)
    return into if isinstance(into, str) and into == memory.superseded_by else ""


def is_orphaned(memory: Memory, known: Mapping[str, Memory], gone: frozenset[str]) -> bool:
    """Whether it was merged into another that is not there any more, or is among those that are *gone* now, so that
    it has to speak for itself again."""
    into = merged_into(memory)
    if not into:
        return False
    other = known.get(into)
    if other is None or into in gone:
        return True
    if other.state is not MemoryState.DELETED:
        return False
    # After a crash between the two writes the other is deleted already. What was forgotten in a conversation took
    # with it those of its sources that speak of the same; the others were not meant.
    made_of = other.metadata.get(RETIRED) == BY_CHAT and memory.id in sources_of(other)
    return made_of or other.metadata.get(RETIRED) == Reason.SOURCES


def half_merged(known: Mapping[str, Memory]) -> dict[str, str]:
    """What another memory already says, and speaks for itself all the same: a crash came between the two writes.
    Its id, to the id of what says it."""
    found: dict[str, str] = {}
    for memory in known.values():
        if memory.state is MemoryState.ACTIVE and memory.metadata.get(DERIVED) == HISTORY:
            current = next((known[one] for one in sources_of(memory)[:1] if one in known), None)
            if current is not None and current.state is MemoryState.ACTIVE and sources_hold(memory, known):
                found[current.id] = memory.id
    return found


def behind(known: Iterable[Memory]) -> frozenset[str]:
    """The ids of memories in whose place another one is told: they come and go with it."""
    return frozenset(
        source
        for memory in known
        if memory.state is MemoryState.ACTIVE and memory.metadata.get(DERIVED) == SUBJECT
        for source in sources_of(memory)
    )


def unmade(memory: Memory) -> bool:
    """Whether it is a summary that left because of what it was made of, so that it can be made of the rest."""
    return (
        memory.source is Source.SUMMARY
        and memory.metadata.get(DERIVED) != SUBJECT
        and memory.state is MemoryState.DELETED
        and memory.metadata.get(RETIRED) == Reason.SOURCES
    )


def _ids(memory: Memory, name: str) -> tuple[str, ...]:
    found: Sequence[object] | object = memory.metadata.get(name)
    return tuple(one for one in found if isinstance(one, str)) if isinstance(found, list | tuple) else ()


# --- reasons -----------------------------------------------------------------------------------------
# Why a memory leaves recall, and what stands in its metadata.

# Keys of a memory's metadata.
PINNED = "pinned"  # true: it is kept whatever its score; whoever writes memories over the API may set it
ACCESSED = "accessed"  # seconds since 1970: when it was last given to a model
RETIRED = "retired"  # why it was deleted softly
RETIRED_AT = "retired_at"  # seconds since 1970
UNRETIRED = "unretired"  # seconds since 1970: when its owner brought it back
BY_CHAT = "chat"  # a value of RETIRED beside those below: its owner said so in a conversation


class Reason(StrEnum):
    """Why a memory leaves recall. Also the metric label and what stands in its row, so a value is never renamed."""

    EXPIRED = "expired"  # its own time is over
    TTL = "ttl"  # its type is kept for so long
    CAP = "cap"  # its owner has more than may be kept, and it is worth least
    SOURCES = "sources"  # it was made of memories that are no longer there, or that say something else now


def moment(memory: Memory, name: str) -> float:
    """Seconds since 1970; 0 where the metadata does not say."""
    return seconds_said(memory.metadata.get(name)) or 0.0


# --- writing -----------------------------------------------------------------------------------------
# Rows changed only where they still are as they were read.

_AT_ONCE = 100  # rows of one write


class AsRead:
    """Writes onto *rows*. *known*: a pass's own view of them, by id."""

    def __init__(self, rows: ConditionalWriter) -> None:
        self._rows = rows

    async def change(
        self, owner: Owner, known: Mapping[str, Embedded], becoming: Mapping[str, Memory | Embedded]
    ) -> list[str]:
        """The ids of those that were still as they were read, and are changed."""
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
            await self._rows.change_all(owner, ids[start : start + _AT_ONCE], change)
        return changed

    async def erase(self, owner: Owner, known: Mapping[str, Embedded], ids: Sequence[str]) -> int:
        erased = 0
        for start in range(0, len(ids), _AT_ONCE):
            erased += await self._rows.delete_where(
                owner, ids[start : start + _AT_ONCE], lambda memory: as_read(memory, known[memory.id].memory)
            )
        return erased


def as_read(now: Memory, before: Memory) -> bool:
    """Whether nothing but its accesses changed since it was read."""
    return with_accesses(now, before) == before


def same_words(now: Memory, before: Memory) -> bool:
    """Whether it says what it said when it was read, and counts as it did."""
    return now.state is before.state and now.content == before.content


def with_accesses(memory: Memory, of: Memory) -> Memory:
    """*memory* with the accesses counted in *of*."""
    metadata = {name: value for name, value in memory.metadata.items() if name != ACCESSED}
    if ACCESSED in of.metadata:
        metadata[ACCESSED] = of.metadata[ACCESSED]
    return replace(memory, access_count=of.access_count, metadata=metadata)
