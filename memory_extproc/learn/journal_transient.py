"""The journal kept in memory: nothing survives the process. For tests; passes the contract suite of Journal."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from memory_extproc.learn.journal import Depth, Entry, Stage
from memory_extproc.model import DeadLetter, JournalState, Owner, Stored, Turn
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
        self._given = 0  # the place up to which arrivals were given
        self._own: set[str] = set()  # places that append made
        self.fault: Exception | None = None

    def reopen(self) -> None:
        """As if another process took it up: everything not learned yet arrives."""
        self._given, self._own = 0, set()

    async def append(self, turn: Turn) -> Stored:
        self._check()
        there = self._rows.get(turn.id)
        if there and there.entry.turn.answered == turn.answered and there.stage is not Stage.DEAD:
            return Stored.DUPLICATE
        if (there is None or there.stage >= Stage.LEARNED) and len(self._pending()) >= self._max_turns:
            return Stored.JOURNAL_FULL
        self._own.add(self._put(turn, replaced=there is not None))
        return Stored.JOURNALLED

    def _put(self, turn: Turn, *, replaced: bool) -> str:
        """At a new place at the end."""
        self._rows.pop(turn.id, None)
        self._last_place += 1
        entry = Entry(turn, f"{self._last_place}", replaced=replaced)
        self._rows[turn.id] = _Row(entry, Stage.WAITING, turn.at)
        return entry.place

    async def pending(self, limit: int, *, after: str = "") -> Sequence[Entry]:
        self._check()
        return [entry for entry in self._pending() if int(entry.place) > int(after or 0)][:limit]

    async def get(self, ids: Sequence[str]) -> Sequence[Entry]:
        self._check()
        return [entry for entry in self._pending() if entry.turn.id in set(ids)]

    async def mark_stored(self, entries: Sequence[JournalEntry]) -> None:
        for row in self._current(entries):
            row.stage = Stage.STORED
            row.entry = replace(row.entry, state=JournalState.STORED, attempts=0)

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

    async def of_owner(self, owner: Owner) -> AsyncIterator[Entry]:
        self._check()
        for row in [row for row in self._rows.values() if row.entry.turn.owner == owner]:
            yield replace(row.entry, state=row.stage.state)

    async def erase(self, owner: Owner, turn_ids: Sequence[str]) -> int:
        self._check()
        rows = {id_: self._rows[id_] for id_ in turn_ids if id_ in self._rows}
        return self._erase([id_ for id_, row in rows.items() if row.entry.turn.owner == owner])

    async def dead(self, limit: int, *, after: str = "") -> Sequence[DeadLetter]:
        self._check()
        rows = [row for row in self._rows.values() if row.stage is Stage.DEAD]
        return [_letter(row) for row in rows if int(row.entry.place) > int(after or 0)][:limit]

    async def retry(self, turn_ids: Sequence[str]) -> int:
        self._check()
        wanted = set(turn_ids)
        rows = [row for id_, row in self._rows.items() if id_ in wanted and row.stage is Stage.DEAD]
        for row in rows:
            self._put(row.entry.turn, replaced=row.entry.replaced)
        return len(rows)

    async def arrivals(self, limit: int) -> Sequence[Entry]:
        self._check()
        arrived = [
            entry for entry in self._pending() if int(entry.place) > self._given and entry.place not in self._own
        ][:limit]
        if arrived:
            self._given = int(arrived[-1].place)
        return arrived

    def holds(self, owner: Owner) -> bool:  # noqa: ARG002 - one replica: every owner's turns
        return True

    async def end(self, owner: Owner, session: str) -> None:
        self._check()
        for row in [row for row in self._rows.values() if row.stage < Stage.LEARNED]:
            turn = row.entry.turn
            if turn.owner == owner and session in {"", turn.session}:
                row.entry = replace(row.entry, turn=replace(turn, last=True))

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


def _letter(row: _Row) -> DeadLetter:
    turn = row.entry.turn
    return DeadLetter(
        turn_id=turn.id,
        place=row.entry.place,
        owner=turn.owner.key,
        reason=row.reason,
        attempts=row.entry.attempts,
        asked_at=turn.at,
        failed_at=row.ended,
    )
