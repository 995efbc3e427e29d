"""What was made of other memories: whether it still holds, and what speaks for itself again without it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from memory_extproc.model import Memory, MemoryState, Source
from memory_extproc.retention.reasons import BY_CHAT, RETIRED, RETIRED_AT, UNRETIRED, Reason, moment

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


def orphaned(memory: Memory, known: Mapping[str, Memory], gone: frozenset[str]) -> bool:
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
