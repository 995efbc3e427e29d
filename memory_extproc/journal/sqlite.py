"""The journal in a SQLite file: accepted turns wait here until they are learned.

A turn is waiting → stored (messages in the store) → learned (facts extracted), then erased after a short retention.
A turn that fails permanently becomes a dead letter, kept for review up to a limit."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from pathlib import Path

import msgspec

from memory_extproc.coordination.sqlite_file import Schema, SqliteBacked, SqliteFile
from memory_extproc.model import DeadLetter, JournalState, Owner, Turn, TurnOutcome, digest
from memory_extproc.ports import JournalEntry, Now
from memory_extproc.settings.paths import JournalSection


class TurnStage(IntEnum):
    """The stage of a turn. The numbers are stored; pending stages are below LEARNED."""

    WAITING = 0
    STORED = 1
    LEARNED = 2
    DEAD = 3

    @property
    def state(self) -> JournalState:
        return JournalState(self.name.lower())


@dataclass(frozen=True, slots=True)
class JournalRow:
    """JournalEntry as a value."""

    turn: Turn
    place: str
    state: JournalState = JournalState.WAITING
    replaced: bool = False
    attempts: int = 0

    @property
    def stored(self) -> bool:
        return self.state is not JournalState.WAITING


@dataclass(frozen=True, slots=True)
class Depth:
    """JournalDepth as a value. *turns*: not learned yet; *oldest*: the time of the first of them."""

    turns: int
    dead: int
    oldest: datetime | None


# AUTOINCREMENT never reuses a place, so a mark for an erased entry affects no other. Triggers maintain the totals:
# counting rows at each append would take time that grows with the backlog.
_SCHEMA = Schema(
    application=0x6D65786A,  # "mexj"
    version=1,
    script="""
CREATE TABLE turns (
    place INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    stage INTEGER NOT NULL,
    replaced INTEGER NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    reason TEXT NOT NULL DEFAULT '',
    at REAL NOT NULL,
    ended REAL NOT NULL DEFAULT 0,
    answer TEXT NOT NULL,
    turn BLOB NOT NULL
);

CREATE INDEX turns_pending ON turns (place) WHERE stage < 2;

CREATE INDEX turns_ended ON turns (stage, ended) WHERE stage >= 2;

CREATE INDEX turns_by_owner ON turns (owner);

CREATE TABLE totals (stage INTEGER PRIMARY KEY, turns INTEGER NOT NULL);

INSERT INTO totals VALUES (0, 0), (1, 0), (2, 0), (3, 0);

CREATE TRIGGER count_new AFTER INSERT ON turns BEGIN
    UPDATE totals SET turns = turns + 1 WHERE stage = new.stage; END;

CREATE TRIGGER count_gone AFTER DELETE ON turns BEGIN
    UPDATE totals SET turns = turns - 1 WHERE stage = old.stage; END;

CREATE TRIGGER count_moved AFTER UPDATE OF stage ON turns BEGIN
    UPDATE totals SET turns = turns - 1 WHERE stage = old.stage;
    UPDATE totals SET turns = turns + 1 WHERE stage = new.stage; END
""",
)
_PENDING = """
SELECT place, stage, replaced, attempts, turn FROM turns
WHERE stage < 2 AND place > ? ORDER BY place LIMIT ?
"""
_THESE = """
SELECT place, stage, replaced, attempts, turn FROM turns
WHERE stage < 2 AND +owner = ? AND id IN (SELECT value FROM json_each(?)) ORDER BY place
"""  # the plus sign: by id, not by the index of owners
_OF_OWNER = """
SELECT place, stage, replaced, attempts, turn FROM turns
WHERE owner = ? AND place > ? ORDER BY place LIMIT ?
"""
_LETTERS = """
SELECT place, id, owner, reason, attempts, at, ended FROM turns
WHERE stage = 3 AND place > ? ORDER BY place LIMIT ?
"""
_INSERT = """
INSERT INTO turns (id, owner, stage, replaced, at, answer, turn) VALUES (?, ?, 0, ?, ?, ?, ?)
"""
# Turns are nearly in the order of their places: concurrent streams may differ.
_OLDEST = "SELECT MIN(at) FROM (SELECT at FROM turns WHERE stage < 2 ORDER BY place LIMIT 1000)"
# The last place that was ever taken, and the last of a pending turn behind another place.
_REACHED = """
SELECT seq, (SELECT place FROM turns WHERE stage < 2 AND place > ? ORDER BY place DESC LIMIT 1)
FROM sqlite_sequence WHERE name = 'turns'
"""
_PAGE = 100  # entries of an owner read at once
_USUAL = JournalSection()
_FEW = 32  # turns read on the event loop, without a transaction


class SqliteJournal(SqliteBacked):
    """Implements ports.Journal. Use within `async with`; an unusable file fails the calls, not the entering.

    `max_turns` bounds unlearned turns, *max_dead* the dead letters (the oldest is erased first)."""

    def __init__(
        self,
        path: Path,
        section: JournalSection = _USUAL,
        *,
        now: Now,
        max_dead: int = 1_000,
        patience: timedelta = timedelta(seconds=2),
    ) -> None:
        self._file = SqliteFile(path, _SCHEMA, fsync=section.fsync, patience=patience)
        self._section, self._now, self._max_dead = section, now, max_dead
        self._given = 0  # the place up to which arrivals were given
        self._own: set[int] = set()  # places beyond it that our own appends made

    async def check(self) -> None:
        """Raise the error that would prevent a write now: a lock, a full disk, damage."""
        # Rewrites a page with the same value; an UPDATE without a change writes none.
        await self._file.execute(f"PRAGMA user_version = {_SCHEMA.version}")

    async def append(self, turn: Turn) -> TurnOutcome:
        body = msgspec.json.encode(turn)
        answer = digest(turn.answered)

        def write(connection: sqlite3.Connection) -> tuple[TurnOutcome, int]:
            there = connection.execute("SELECT stage, answer FROM turns WHERE id = ?", (turn.id,)).fetchone()
            if there is not None and there[1] == answer and there[0] != TurnStage.DEAD:
                return TurnOutcome.DUPLICATE, 0
            full = self._pending(connection) >= self._section.max_turns
            if full and (there is None or there[0] >= TurnStage.LEARNED):
                return TurnOutcome.JOURNAL_FULL, 0
            if there is not None:
                connection.execute("DELETE FROM turns WHERE id = ?", (turn.id,))
            values = (turn.id, turn.owner.key, there is not None, turn.at.timestamp(), answer, body)
            return TurnOutcome.JOURNALLED, connection.execute(_INSERT, values).lastrowid or 0

        stored, place = await self._file.run(write)
        if place > self._given:
            self._own.add(place)
        return stored

    async def pending(self, limit: int, *, after: str = "") -> Sequence[JournalRow]:
        return await self._entries(_PENDING, (int(after or 0), limit))

    async def get(self, owner: Owner, ids: Sequence[str]) -> Sequence[JournalRow]:
        wanted = (owner.key, json.dumps(list(ids)))
        if len(ids) <= _FEW:
            entries = [_entry(row) for row in self._file.read_all(_THESE, wanted)]
            if None not in entries:
                return [entry for entry in entries if entry is not None]
        return await self._entries(_THESE, wanted)

    async def mark_stored(self, entries: Sequence[JournalEntry]) -> None:
        await self._move(entries, "UPDATE turns SET stage = 1, ended = ?, attempts = 0 WHERE stage = 0")

    async def mark_learned(self, entries: Sequence[JournalEntry]) -> None:
        await self._move(entries, "UPDATE turns SET stage = 2, ended = ? WHERE stage < 2")

    async def mark_failed(self, entry: JournalEntry, reason: str, *, dead: bool) -> None:
        def write(connection: sqlite3.Connection) -> None:
            connection.execute(
                "UPDATE turns SET attempts = attempts + 1, reason = ?, ended = ?, stage = CASE ? WHEN 1 THEN 3"
                " ELSE stage END WHERE stage < 2 AND id = ? AND place = ?",
                (reason, self._now().timestamp(), dead, entry.turn.id, int(entry.place)),
            )
            connection.execute(
                "DELETE FROM turns WHERE stage = 3 AND place IN"
                " (SELECT place FROM turns WHERE stage = 3 ORDER BY ended DESC, place DESC LIMIT -1 OFFSET ?)",
                (self._max_dead,),
            )

        await self._file.run(write)

    async def erase_learned(self, before: datetime) -> int:
        learned = "DELETE FROM turns WHERE stage = 2 AND ended < ?"
        return await self._file.execute(learned, (before.timestamp(),), scrub=True)

    async def erase_owner(self, owner: Owner) -> int:
        return await self._file.execute("DELETE FROM turns WHERE owner = ?", (owner.key,), scrub=True)

    async def depth(self) -> Depth:
        def read(connection: sqlite3.Connection) -> Depth:
            dead = connection.execute("SELECT turns FROM totals WHERE stage = 3").fetchone()[0]
            first = connection.execute("SELECT at FROM turns WHERE stage < 2 ORDER BY place LIMIT 1").fetchone()
            oldest = None if first is None else datetime.fromtimestamp(first[0], UTC)
            return Depth(self._pending(connection), dead, oldest)

        return await self._file.run(read)

    def oldest(self) -> datetime | None:
        """The time of the oldest unlearned turn; read on the calling thread."""
        row = self._file.read(_OLDEST, ())
        return None if row is None or row[0] is None else datetime.fromtimestamp(row[0], UTC)

    async def of_owner(self, owner: Owner) -> AsyncIterator[JournalRow]:
        after = 0
        while rows := await self._file.fetch(_OF_OWNER, (owner.key, after, _PAGE)):
            for row in rows:
                if (entry := _entry(row)) is not None:
                    yield entry
            after = rows[-1][0]

    async def erase(self, owner: Owner, turn_ids: Sequence[str]) -> int:
        these = "DELETE FROM turns WHERE owner = ? AND id IN (SELECT value FROM json_each(?))"
        return await self._file.execute(these, (owner.key, json.dumps(list(turn_ids))), scrub=True)

    async def dead(self, limit: int, *, after: str = "") -> Sequence[DeadLetter]:
        return [_letter(row) for row in await self._file.fetch(_LETTERS, (int(after or 0), limit))]

    async def retry(self, turn_ids: Sequence[str]) -> int:
        wanted = json.dumps(list(turn_ids))

        def again(connection: sqlite3.Connection) -> int:
            # A new row, because AUTOINCREMENT ignores values set by an UPDATE.
            rows = connection.execute(
                "DELETE FROM turns WHERE stage = 3 AND id IN (SELECT value FROM json_each(?))"
                " RETURNING place, id, owner, replaced, at, answer, turn",
                (wanted,),
            ).fetchall()
            connection.executemany(_INSERT, [row[1:] for row in sorted(rows)])
            return len(rows)

        return await self._file.run(again)

    async def arrivals(self, limit: int) -> Sequence[JournalRow]:
        row = self._file.read(_REACHED, (self._given,))
        if row is None or row[0] < self._given:  # an operator moved the file aside, and this is another
            self._given, self._own = 0, set()
            row = self._file.read(_REACHED, (0,))
        last, pending = row or (0, 1)  # of an empty file the transaction tells
        # Asked every second: a transaction only where turns wait that we did not append.
        if pending is None or self._own.issuperset(range(self._given + 1, pending + 1)):
            self._give(last if pending is None else pending)
            return []
        while page := await self._entries(_PENDING, (self._given, limit)):
            arrived = [entry for entry in page if int(entry.place) not in self._own]
            self._give(int(page[-1].place))
            if arrived:
                return arrived
        return []

    def _give(self, reached: int) -> None:
        self._given = max(self._given, reached)
        self._own = {place for place in self._own if place > self._given}

    def holds(self, owner: Owner) -> bool:  # noqa: ARG002 - one replica: every owner's turns
        return True

    async def end(self, owner: Owner, session: str) -> None:
        def end(connection: sqlite3.Connection) -> None:
            rows = connection.execute(_OF_OWNER, (owner.key, 0, -1)).fetchall()
            for entry in [entry for entry in map(_entry, rows) if entry is not None]:
                pending = entry.state in {JournalState.WAITING, JournalState.STORED}
                if pending and session in {"", entry.turn.session} and not entry.turn.last:
                    body = msgspec.json.encode(replace(entry.turn, last=True))
                    connection.execute("UPDATE turns SET turn = ? WHERE place = ?", (body, int(entry.place)))

        await self._file.run(end)

    async def _entries(self, statement: str, values: tuple[object, ...]) -> list[JournalRow]:
        """Read entries; unreadable rows become dead letters, so that they do not block the others."""

        def read(connection: sqlite3.Connection) -> list[JournalRow]:
            rows = connection.execute(statement, values).fetchall()
            entries = [_entry(row) for row in rows]
            unreadable = [row[0] for row, entry in zip(rows, entries, strict=True) if entry is None]
            connection.executemany(
                "UPDATE turns SET stage = 3, reason = 'unreadable', ended = ? WHERE place = ?",
                [(self._now().timestamp(), place) for place in unreadable],
            )
            return [entry for entry in entries if entry is not None]

        return await self._file.run(read)

    def _pending(self, connection: sqlite3.Connection) -> int:
        return int(connection.execute("SELECT SUM(turns) FROM totals WHERE stage < 2").fetchone()[0])

    async def _move(self, entries: Sequence[JournalEntry], update: str) -> None:
        places = [(self._now().timestamp(), entry.turn.id, int(entry.place)) for entry in entries]

        def write(connection: sqlite3.Connection) -> None:
            connection.executemany(f"{update} AND id = ? AND place = ?", places)

        await self._file.run(write)


def _entry(row: tuple[int, int, int, int, bytes]) -> JournalRow | None:
    """Decode a row; None if it is invalid: another version's, or a damaged page."""
    place, stage, replaced, attempts, body = row
    try:
        turn = msgspec.json.decode(body, type=Turn)
    except msgspec.MsgspecError:
        return None
    return JournalRow(turn, str(place), TurnStage(stage).state, bool(replaced), attempts)


def _letter(row: tuple[int, str, str, str, int, float, float]) -> DeadLetter:
    place, id_, owner, reason, attempts, at, ended = row
    return DeadLetter(
        turn_id=id_,
        place=str(place),
        owner=owner,
        reason=reason,
        attempts=attempts,
        asked_at=datetime.fromtimestamp(at, UTC),
        failed_at=datetime.fromtimestamp(ended, UTC),
    )
