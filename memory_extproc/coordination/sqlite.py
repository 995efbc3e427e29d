"""Coordination in a SQLite file: one replica, or several processes on one machine that share the file."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Self

from memory_extproc.coordination.record_kinds import check_registered
from memory_extproc.model import Owner
from memory_extproc.ports import Now
from memory_extproc.sqlite_file import Schema, SqliteFile

# Statements are parted by a semicolon and an empty line. Owners stand here by key, never by name.
_SCHEMA = Schema(
    application=0x6D657863,  # "mexc"
    version=1,
    script="""
CREATE TABLE counters (
    owner TEXT PRIMARY KEY,
    version INTEGER NOT NULL DEFAULT 0,
    epoch INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

CREATE TABLE records (
    owner TEXT NOT NULL,
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    value BLOB NOT NULL,
    expires REAL NOT NULL,
    PRIMARY KEY (owner, kind, key)
) WITHOUT ROWID;

CREATE INDEX records_by_expiry ON records (expires);

CREATE TABLE leases (name TEXT PRIMARY KEY, holder TEXT NOT NULL, expires REAL NOT NULL) WITHOUT ROWID
""",
)
_SWEEP = 16  # expired records that each write clears away, so that none is left for long


class SqliteCoordination:
    """Reads are answered on the event loop from the file itself, some ten microseconds each; writes wait for
    their commit. Times are the machine's, as *now* tells them, in seconds since 1970."""

    def __init__(self, path: Path, *, now: Now, patience: timedelta = timedelta(seconds=2)) -> None:
        self._file = SqliteFile(path, _SCHEMA, patience=patience)
        self._now = now

    async def __aenter__(self) -> Self:
        await self._file.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._file.__aexit__()

    async def open(self) -> None:
        """Raises what is wrong with the file."""
        await self._file.open()

    async def version(self, owner: Owner) -> int:
        return self._counter("SELECT version FROM counters WHERE owner = ?", owner)

    async def bump(self, owner: Owner) -> int:
        return await self._count(
            "INSERT INTO counters (owner, version) VALUES (?, 1)"
            " ON CONFLICT (owner) DO UPDATE SET version = version + 1 RETURNING version",
            owner,
        )

    async def epoch(self, owner: Owner) -> int:
        return self._counter("SELECT epoch FROM counters WHERE owner = ?", owner)

    async def advance_epoch(self, owner: Owner) -> int:
        return await self._count(
            "INSERT INTO counters (owner, epoch) VALUES (?, 1)"
            " ON CONFLICT (owner) DO UPDATE SET epoch = epoch + 1 RETURNING epoch",
            owner,
        )

    async def get_record(self, kind: str, owner: Owner, key: str) -> bytes | None:
        check_registered([kind])
        row = self._file.read(_LIVE, (owner.key, kind, key, self._time()))
        return None if row is None else bytes(row[0])

    async def put_record(self, kind: str, owner: Owner, key: str, value: bytes, ttl: timedelta) -> None:
        check_registered([kind])
        await self._file.run(lambda connection: self._put(connection, (owner.key, kind, key), value, ttl))

    async def replace_record(
        self, kind: str, owner: Owner, key: str, old: bytes | None, new: bytes, ttl: timedelta
    ) -> bool:
        check_registered([kind])

        def swap(connection: sqlite3.Connection) -> bool:
            row = connection.execute(_LIVE, (owner.key, kind, key, self._time())).fetchone()
            if (None if row is None else bytes(row[0])) != old:
                return False
            self._put(connection, (owner.key, kind, key), new, ttl)
            return True

        return await self._file.run(swap)

    async def delete_records(self, owner: Owner, kinds: Sequence[str] | None = None) -> None:
        check_registered(kinds or ())

        def delete(connection: sqlite3.Connection) -> None:
            if kinds is None:
                connection.execute("DELETE FROM records WHERE owner = ?", (owner.key,))
                return
            these = [(owner.key, kind) for kind in kinds]
            connection.executemany("DELETE FROM records WHERE owner = ? AND kind = ?", these)

        await self._file.run(delete, scrub=True)

    async def acquire(self, name: str, holder: str, ttl: timedelta) -> bool:
        def take(connection: sqlite3.Connection) -> bool:
            now = self._time()
            ends = now + ttl.total_seconds()
            # One that ends later than it could was taken before the clock was set back.
            connection.execute("UPDATE leases SET expires = ? WHERE name = ? AND expires > ?", (ends, name, ends))
            taken = connection.execute(
                "INSERT INTO leases (name, holder, expires) VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE"
                " SET holder = excluded.holder, expires = excluded.expires"
                " WHERE holder = excluded.holder OR expires <= ?",
                (name, holder, ends, now),
            )
            return taken.rowcount == 1

        return await self._file.run(take)

    async def release(self, name: str, holder: str) -> None:
        def give(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM leases WHERE name = ? AND holder = ?", (name, holder))

        await self._file.run(give)

    def _time(self) -> float:
        return self._now().timestamp()

    def _counter(self, statement: str, owner: Owner) -> int:
        row = self._file.read(statement, (owner.key,))
        return 0 if row is None else int(row[0])

    async def _count(self, statement: str, owner: Owner) -> int:
        def count(connection: sqlite3.Connection) -> int:
            return int(connection.execute(statement, (owner.key,)).fetchone()[0])

        return await self._file.run(count)

    def _put(
        self, connection: sqlite3.Connection, place: tuple[str, str, str], value: bytes, ttl: timedelta
    ) -> None:
        now = self._time()
        connection.execute(
            "DELETE FROM records WHERE (owner, kind, key) IN"
            " (SELECT owner, kind, key FROM records WHERE expires <= ? LIMIT ?)",
            (now, _SWEEP),
        )
        connection.execute(
            "INSERT INTO records (owner, kind, key, value, expires) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (owner, kind, key) DO UPDATE SET value = excluded.value, expires = excluded.expires",
            (*place, value, now + ttl.total_seconds()),
        )


_LIVE = "SELECT value FROM records WHERE owner = ? AND kind = ? AND key = ? AND expires > ?"
