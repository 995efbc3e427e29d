"""The journal kept in memory: nothing survives the process. For tests; passes the contract suite of Journal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from memory_extproc.learn.journal import Depth, Entry, Stage
from memory_extproc.model import Owner, Stored, Turn
from memory_extproc.ports import JournalEntry, Now


@dataclass(slots=True)
class _Row:
    entry: Entry
    stage: Stage
    ended: datetime
    reason: str = ""


class TransientJournal:
    """As SqliteJournal, bounds included. *fault*, when set, is raised by every call: a journal that fails."""

    def __init__(self, *, now: Now, max_turns: int = 100_000, max_dead: int = 1_000) -> None:
        self._now = now
        self._max_turns = max_turns
        self._max_dead = max_dead
        self._rows: dict[str, _Row] = {}  # by turn id, in the order of their places
        self._last_place = 0
        self.fault: Exception | None = None

    async def append(self, turn: Turn) -> Stored:
        self._check()
        there = self._rows.get(turn.id)
        if there and there.entry.turn.answered == turn.answered and there.stage is not Stage.DEAD:
            return Stored.DUPLICATE
        if (there is None or there.stage >= Stage.LEARNED) and len(self._pending()) >= self._max_turns:
            return Stored.JOURNAL_FULL
        self._rows.pop(turn.id, None)
        self._last_place += 1
        entry = Entry(turn, f"{self._last_place}", replaced=there is not None)
        self._rows[turn.id] = _Row(entry, Stage.WAITING, turn.at)
        return Stored.JOURNALLED

    async def pending(self, limit: int, *, after: str = "") -> Sequence[Entry]:
        self._check()
        return [entry for entry in self._pending() if int(entry.place) > int(after or 0)][:limit]

    async def get(self, ids: Sequence[str]) -> Sequence[Entry]:
        self._check()
        return [entry for entry in self._pending() if entry.turn.id in set(ids)]

    async def mark_stored(self, entries: Sequence[JournalEntry]) -> None:
        for row in self._current(entries):
            row.stage = Stage.STORED
            row.entry = replace(row.entry, stored=True, attempts=0)

    async def mark_learned(self, entries: Sequence[JournalEntry]) -> None:
        for row in self._current(entries):
            row.stage, row.ended = Stage.LEARNED, self._now()

    async def mark_failed(self, entry: JournalEntry, reason: str, *, dead: bool) -> None:
        for row in self._current([entry]):
            row.entry = replace(row.entry, attempts=row.entry.attempts + 1)
            row.reason, row.ended = reason, self._now()
            row.stage = Stage.DEAD if dead else row.stage
        letters = [id_ for id_, row in self._rows.items() if row.stage is Stage.DEAD]
        for id_ in letters[: max(0, len(letters) - self._max_dead)]:
            del self._rows[id_]

    async def erase_learned(self, before: datetime) -> int:
        self._check()
        return self._erase(
            [i for i, row in self._rows.items() if row.stage is Stage.LEARNED and row.ended < before]
        )

    async def erase_owner(self, owner: Owner) -> int:
        self._check()
        return self._erase([i for i, row in self._rows.items() if row.entry.turn.owner == owner])

    async def depth(self) -> Depth:
        self._check()
        pending = self._pending()
        dead = sum(row.stage is Stage.DEAD for row in self._rows.values())
        return Depth(len(pending), dead, pending[0].turn.at if pending else None)

    def _check(self) -> None:
        if self.fault is not None:
            raise self.fault

    def _pending(self) -> list[Entry]:
        return [row.entry for row in self._rows.values() if row.stage < Stage.LEARNED]

    def _current(self, entries: Sequence[JournalEntry]) -> list[_Row]:
        self._check()
        rows = [(self._rows.get(entry.turn.id), entry.place) for entry in entries]
        return [row for row, place in rows if row and row.stage < Stage.LEARNED and row.entry.place == place]

    def _erase(self, ids: Sequence[str]) -> int:
        for id_ in ids:
            del self._rows[id_]
        return len(ids)
