"""Who a caller is, in a few lines: stable facts of weight as attribute and value, and notes on what helps them.

Made of the memories as they are whenever it is asked for, so that what was corrected or forgotten is not in it. The
same memories give the same bytes, whatever order they are found in.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from memory_extproc.language.tokens import estimate_tokens
from memory_extproc.model import Caller, Memory, MemoryState, MemoryType, Profile, Source
from memory_extproc.ports import Learns, ListsMemories, Now
from memory_extproc.recall.block import CLOSING, OPENING_PROFILE, harmless

_NOTES = "Notes on what helps them:"
_FACTS = frozenset({Source.RULES, Source.LLM, Source.API})
_SELF = "user"
_LONGEST = 200  # characters of one value; a longer one is a text


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileLimits:
    tokens: int = 256  # estimated, of the whole block
    importance: float = 0.7  # 0 to 1; facts below it are not in it
    settle: timedelta = timedelta(milliseconds=50)  # most to wait until the caller's last turn is in it


@dataclass(frozen=True, slots=True)
class Entry:
    """One line. *before*: the value it had last, where it had another."""

    subject: str = field(repr=False)
    attribute: str = field(repr=False)  # empty: a note
    values: tuple[str, ...] = field(repr=False)
    before: str = field(repr=False)
    importance: float
    memories: tuple[Memory, ...] = field(repr=False)

    @property
    def line(self) -> str:
        value = "; ".join(harmless(value)[:_LONGEST] for value in self.values)
        if not self.attribute:
            return f"- {value}"
        about = "" if self.subject == _SELF else f"{harmless(self.subject)}: "
        earlier = f" (before: {harmless(self.before)[:_LONGEST]})" if self.before else ""
        attribute = f"{harmless(self.attribute)}:"
        if len(self.values) == 1 and self.attribute.endswith(f" {self.values[0].casefold()}"):
            attribute = harmless(self.attribute[: -len(self.values[0])])  # "likes tea: tea" says it twice
        told = f"{attribute} {value}"
        return f"- {about}{told}{earlier}"


class Profiles:
    """Implements ports.KnowsProfile over the owner's partition."""

    def __init__(
        self, lists: ListsMemories, limits: ProfileLimits, *, now: Now, learns: Learns | None = None
    ) -> None:
        self._lists, self._limits, self._now, self._learns = lists, limits, now, learns

    def use(self, limits: ProfileLimits) -> None:
        self._limits = limits

    async def profile(self, caller: Caller) -> Profile:
        if self._learns is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._limits.settle.total_seconds()):
                    await self._learns.settled(caller)
        rows = [memory async for page in self._lists.rows(caller.owner) for memory in page]
        narrow = [memory for memory in rows if not caller.project or memory.project == caller.project]
        return rendered(entries(narrow, self._limits.importance, self._now()), self._limits.tokens)


def entries(memories: Iterable[Memory], importance: float, now: datetime) -> list[Entry]:
    """Facts by what they are about, one for each attribute, and notes; the weightiest first."""
    holding: defaultdict[tuple[str, str], list[Memory]] = defaultdict(list)
    replaced: defaultdict[tuple[str, str], list[Memory]] = defaultdict(list)
    found: list[Entry] = []
    for memory in memories:
        key = _about(memory)
        if key and memory.state is MemoryState.SUPERSEDED:
            replaced[key].append(memory)
        elif not memory.recallable(now):
            continue
        elif memory.type is MemoryType.REFLECTIVE:
            found.append(Entry("", "", (memory.content,), "", memory.importance, (memory,)))
        elif key and memory.importance >= importance:
            holding[key].append(memory)
    found += [_entry(key, held, replaced[key]) for key, held in holding.items()]
    return sorted(found, key=lambda entry: (-entry.importance, *_place(entry)))


def _entry(key: tuple[str, str], held: Sequence[Memory], replaced: Sequence[Memory]) -> Entry:
    ordered = sorted(held, key=_age)
    values = tuple(dict.fromkeys(_value(memory) for memory in ordered))
    former = [_value(memory) for memory in sorted(replaced, key=_age) if _value(memory) not in values]
    weight = max(memory.importance for memory in held)
    return Entry(*key, values, former[-1] if former else "", weight, tuple(ordered))


def rendered(found: Sequence[Entry], most: int) -> Profile:
    """As many of *found*, best first, as fit into *most* estimated tokens; none: an empty text. *eligible* are all
    that might be in it."""
    left = most - estimate_tokens(OPENING_PROFILE) - estimate_tokens(CLOSING) - 2
    kept: list[Entry] = []
    for entry in found:
        extra = _NOTES if not entry.attribute and all(one.attribute for one in kept) else ""
        cost = estimate_tokens(entry.line) + 1 + (estimate_tokens(extra) + 1 if extra else 0)
        if cost <= left:
            kept.append(entry)
            left -= cost
    eligible = frozenset(memory.id for entry in found for memory in entry.memories)
    if not kept:
        return Profile(eligible=eligible)
    kept.sort(key=_place)
    facts = [entry.line for entry in kept if entry.attribute]
    notes = [entry.line for entry in kept if not entry.attribute]
    text = "\n".join([OPENING_PROFILE, *facts, *([_NOTES, *notes] if notes else []), CLOSING])
    memories = [memory for entry in kept for memory in entry.memories]
    return Profile(
        text=text,
        ids=tuple(memory.id for memory in memories),
        contents=tuple(memory.content for memory in memories),
        eligible=eligible,
        tokens=estimate_tokens(text),
    )


def _about(memory: Memory) -> tuple[str, str] | None:
    """None for what is no stable fact."""
    named: Mapping[str, object] = memory.metadata
    subject, attribute = named.get("subject"), named.get("attribute")
    stable = memory.type is MemoryType.SEMANTIC and memory.source in _FACTS and not named.get("ends")
    if not stable or not isinstance(subject, str) or not isinstance(attribute, str) or not attribute:
        return None
    return subject.casefold(), attribute.casefold()


def _value(memory: Memory) -> str:
    value = memory.metadata.get("value")
    return value if isinstance(value, str) and value else memory.content


def _age(memory: Memory) -> tuple[datetime, str]:
    return memory.valid_from or memory.created_at, memory.id


def _place(entry: Entry) -> tuple[str, str, str]:
    return entry.subject, entry.attribute, entry.memories[0].id
