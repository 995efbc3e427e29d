"""What was said of one thing over time, in one memory: what holds, and what held before. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from memory_extproc.model import Memory, MemoryState, Source, digest
from memory_extproc.retention.derived import DERIVED, HISTORY, MADE, PAST, SOURCES, read_at
from memory_extproc.retention.reasons import ACCESSED

About = Callable[[str], Hashable]  # what a subject or attribute names, the same for names of the same
Agree = Callable[[str, str], bool]  # whether two values are one
_FACTS = frozenset({Source.RULES, Source.LLM, Source.API})
_NOT_INHERITED = frozenset(
    {"turn", "ordinal", "beside", "replaces", "also", "confirmations", "revision", ACCESSED, SOURCES, PAST, MADE}
)
_ENDS = ". ! ?"


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRules:
    above: int | None = 3  # statements of one thing from which on they become one; None: never
    most: int = 12  # earlier values that one memory names, the latest of them


@dataclass(frozen=True, slots=True)
class Consolidation:
    """*derived* says what *current* says, and what held before; *current* is superseded by it."""

    current: Memory
    derived: Memory


def histories(
    rows: Iterable[Memory], rules: HistoryRules, about: About, agree: Agree, now: datetime
) -> list[Consolidation]:
    """Of *rows*, all that one owner has. A thing is a subject with an attribute in a project. Where several values
    of it hold at a time (a person may have two dogs) nothing is made: each stays as it is."""
    if rules.above is None:
        return []
    things: defaultdict[Hashable, list[Memory]] = defaultdict(list)
    for memory in rows:
        named = _named(memory)
        if named is not None:
            key = (memory.project, memory.type, about(named["subject"]), about(named["attribute"]))
            things[key].append(memory)
    made = (_consolidated(statements, rules, agree, now) for statements in things.values())
    return sorted((one for one in made if one is not None), key=lambda one: one.derived.id)


def _named(memory: Memory) -> Mapping[str, str] | None:
    """Subject, attribute and value; None for what does not say all three, or says that something ended."""
    metadata = memory.metadata
    named = {name: metadata.get(name) for name in ("subject", "attribute", "value")}
    whole = all(isinstance(value, str) and value for value in named.values())
    if not whole or metadata.get("ends") or memory.source not in _FACTS:
        return None
    if memory.state not in {MemoryState.ACTIVE, MemoryState.SUPERSEDED}:
        return None
    return {name: str(value) for name, value in named.items()}


def _consolidated(
    statements: Sequence[Memory], rules: HistoryRules, agree: Agree, now: datetime
) -> Consolidation | None:
    active = [memory for memory in statements if memory.recallable(now)]
    if len(active) != 1 or active[0].metadata.get(DERIVED):
        return None
    current = active[0]
    # What is to be told for a time only is in nothing that is told for longer.
    before = sorted(
        (one for one in statements if _was_made_for_good(one)),
        key=lambda one: (one.valid_from or one.created_at, one.id),
    )
    if rules.above is None or len(before) + 1 < rules.above:
        return None
    earlier: list[Memory] = []
    for one in before:
        value = str(one.metadata["value"])
        if agree(value, str(current.metadata["value"])):
            continue
        earlier = [known for known in earlier if not agree(value, str(known.metadata["value"]))]
        earlier.append(one)
    if not earlier:
        return None
    earlier = earlier[-rules.most :]
    return Consolidation(current, _derived(current, earlier, now))


def _was_made_for_good(memory: Memory) -> bool:
    history = memory.state is MemoryState.SUPERSEDED and not memory.metadata.get(DERIVED)
    return history and memory.expires_at is None


def _derived(current: Memory, earlier: Sequence[Memory], now: datetime) -> Memory:
    at = now.replace(microsecond=0)
    values = ", then ".join(str(one.metadata["value"]) for one in earlier)
    text = current.content.rstrip()
    end = text[-1] if text and text[-1] in _ENDS else ""
    sources = [current.id, *(one.id for one in earlier)]
    inherited = {name: value for name, value in current.metadata.items() if name not in _NOT_INHERITED}
    return replace(
        current,
        id=digest("derived", HISTORY, current.owner.key, *sources),
        content=f"{text.removesuffix(end)} (first {values}){end}",
        created_at=at,
        updated_at=max(at, current.updated_at),
        embed_model="",
        metadata={
            **inherited,
            DERIVED: HISTORY,
            SOURCES: sources,
            PAST: sources[1:],
            MADE: read_at(at.timestamp(), [current, *earlier]),
        },
    )
