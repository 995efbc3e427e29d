"""Looking through one owner's memories: pages, one with its history, counts."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from memory_extproc.language.words import fold
from memory_extproc.model import JournalState, Memory, MemoryState, MemoryType, Owner, Source
from memory_extproc.ports import Journal, KeepsMemories, ListsMemories, Now

MOST_HISTORY = 100
_ROW_BYTES = 400  # of a row's fields beside content, metadata and vector
_AGES = (
    ("day", timedelta(days=1)),
    ("week", timedelta(days=7)),
    ("month", timedelta(days=30)),
    ("year", timedelta(days=365)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """What narrows a list: each condition that is given must hold; of several values of one, any."""

    project: str = ""
    session: str = field(default="", repr=False)
    types: frozenset[MemoryType] = frozenset(MemoryType)
    sources: frozenset[Source] = frozenset(Source)
    states: frozenset[MemoryState] = frozenset({MemoryState.ACTIVE})
    after: datetime | None = None  # created then or later
    before: datetime | None = None  # created earlier
    words: tuple[str, ...] = field(default=(), repr=False)  # folded; all of them stand in the content

    def holds(self, memory: Memory) -> bool:
        return (
            memory.state in self.states
            and memory.type in self.types
            and memory.source in self.sources
            and (not self.project or memory.project == self.project)
            and (not self.session or memory.session == self.session)
            and (self.after is None or memory.created_at >= self.after)
            and (self.before is None or memory.created_at < self.before)
            and self._says(memory)
        )

    def _says(self, memory: Memory) -> bool:
        if not self.words:
            return True
        content = fold(memory.content)
        return all(word in content for word in self.words)


class Cursor(NamedTuple):
    """Where a page ended: a memory's place among all, the newest first, then by id."""

    newest_first: int  # seconds since 1970, negative
    id: str


def place_of(memory: Memory) -> Cursor:
    return Cursor(-int(memory.created_at.timestamp()), memory.id)


@dataclass(frozen=True, slots=True)
class Page:
    memories: tuple[Memory, ...]
    total: int  # of all pages together
    more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Counts of one owner's memories; by type, source and age of the active ones alone."""

    total: int
    recallable: int
    by_type: Mapping[str, int]
    by_state: Mapping[str, int]
    by_source: Mapping[str, int]
    by_age: Mapping[str, int]
    bytes: int  # about, in the store
    backlog: int
    dead_letters: int
    oldest: datetime | None
    newest: datetime | None


class Catalogue:
    """Reads; changes nothing."""

    def __init__(
        self, lists: ListsMemories, keeps: KeepsMemories, journal: Journal, *, vector_bytes: int, now: Now
    ) -> None:
        self._lists, self._keeps, self._journal = lists, keeps, journal
        self._vector_bytes = vector_bytes
        self._now = now

    async def page(self, owner: Owner, chosen: Filter, limit: int, after: Cursor | None = None) -> Page:
        """At most *limit* memories behind *after*, the newest first. Looks through all that *owner* has and holds
        no more of it than a page."""
        total = 0
        best: list[tuple[Cursor, Memory]] = []
        async for rows in self._lists.rows(owner):
            fitting = [(place_of(memory), memory) for memory in rows if chosen.holds(memory)]
            total += len(fitting)
            behind = [one for one in fitting if after is None or one[0] > after]
            best = heapq.nsmallest(limit + 1, [*best, *behind], key=lambda one: one[0])
        return Page(tuple(memory for _, memory in best[:limit]), total, more=len(best) > limit)

    async def get(self, owner: Owner, memory_id: str) -> Memory | None:
        found = await self._keeps.get(owner, [memory_id])
        return next((one for one in found if one.state is not MemoryState.DELETED), None)

    async def history(self, owner: Owner, memory: Memory) -> tuple[Memory, ...]:
        """What *memory* took the place of, and what that did, the newest first."""
        before: dict[str, list[Memory]] = {}
        async for rows in self._lists.rows(owner):
            for row in rows:
                if row.superseded_by:
                    before.setdefault(row.superseded_by, []).append(row)
        found: dict[str, Memory] = {}
        waiting = [memory.id]
        while waiting and len(found) < MOST_HISTORY:
            for row in before.get(waiting.pop(), ()):
                if row.id not in found and row.id != memory.id:
                    found[row.id] = row
                    waiting.append(row.id)
        newest_first = sorted(
            found.values(), key=lambda row: (row.valid_to or row.updated_at, row.id), reverse=True
        )
        return tuple(newest_first[:MOST_HISTORY])

    async def stats(self, owner: Owner) -> Stats:
        now = self._now()
        states, types, sources, ages = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
        recallable = size = 0
        oldest: datetime | None = None
        newest: datetime | None = None
        async for rows in self._lists.rows(owner):
            for row in rows:
                states[row.state] += 1
                size += len(row.content.encode()) + len(str(dict(row.metadata))) + _ROW_BYTES + self._vector_bytes
                recallable += row.recallable(now)
                oldest = row.created_at if oldest is None else min(oldest, row.created_at)
                newest = row.created_at if newest is None else max(newest, row.created_at)
                if row.state is MemoryState.ACTIVE:
                    types[row.type] += 1
                    sources[row.source] += 1
                    ages[_age(now - row.created_at)] += 1
        waiting, dead = await self._backlog(owner)
        return Stats(
            total=states.total(),
            recallable=recallable,
            by_type=types,
            by_state=states,
            by_source=sources,
            by_age=ages,
            bytes=size,
            backlog=waiting,
            dead_letters=dead,
            oldest=oldest,
            newest=newest,
        )

    async def _backlog(self, owner: Owner) -> tuple[int, int]:
        states = Counter([entry.state async for entry in self._journal.of_owner(owner)])
        return states[JournalState.WAITING] + states[JournalState.STORED], states[JournalState.DEAD]


def _age(age: timedelta) -> str:
    return next((name for name, most in _AGES if age < most), "older")
