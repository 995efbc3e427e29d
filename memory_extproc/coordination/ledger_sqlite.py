"""The ledger of forgets in a SQLite file of its own, to be kept out of backups."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Self

from memory_extproc.model import LedgerJob, LedgerMarks
from memory_extproc.sqlite_file import Schema, SqliteFile

_SCHEMA = Schema(
    application=0x6D65786C,  # "mexl"
    version=1,
    script="""
CREATE TABLE keys (id INTEGER PRIMARY KEY, key BLOB NOT NULL);

CREATE TABLE jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    subject TEXT NOT NULL,
    body BLOB NOT NULL,
    shut INTEGER NOT NULL,
    open INTEGER NOT NULL
);

CREATE INDEX jobs_shut ON jobs (subject) WHERE shut = 1;

CREATE INDEX jobs_open ON jobs (number) WHERE open = 1;

CREATE TABLE cuts (subject TEXT NOT NULL, cut BLOB NOT NULL, PRIMARY KEY (subject, cut)) WITHOUT ROWID;

CREATE TABLE items (
    subject TEXT NOT NULL,
    item BLOB NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (subject, item)
) WITHOUT ROWID
""",
)
_JOBS = "SELECT id, subject, body, shut, open FROM jobs WHERE "
_JOB = """
INSERT INTO jobs (id, subject, body, shut, open) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET body = excluded.body, shut = excluded.shut, open = excluded.open
"""
_ITEM = """
INSERT INTO items (subject, item, at) VALUES (?, ?, ?)
ON CONFLICT (subject, item) DO UPDATE SET at = max(at, excluded.at)
"""
_KNOWN = """
SELECT EXISTS (SELECT 1 FROM jobs WHERE subject = ?1 AND shut = 1)
OR EXISTS (SELECT 1 FROM cuts WHERE subject = ?1) OR EXISTS (SELECT 1 FROM items WHERE subject = ?1)
"""


class SqliteLedger:
    """Every commit outlives power loss: what was promised to be forgotten is not forgotten itself."""

    def __init__(self, path: Path, *, patience: timedelta = timedelta(seconds=2)) -> None:
        self._file = SqliteFile(path, _SCHEMA, fsync=True, patience=patience)

    async def __aenter__(self) -> Self:
        await self._file.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._file.__aexit__()

    async def key(self) -> bytes:
        def key(connection: sqlite3.Connection) -> bytes:
            connection.execute("INSERT OR IGNORE INTO keys VALUES (1, ?)", (secrets.token_bytes(32),))
            return bytes(connection.execute("SELECT key FROM keys").fetchone()[0])

        return await self._file.run(key)

    async def write(
        self, job: LedgerJob, *, cut: bytes | None = None, items: Sequence[bytes] = (), at: float = 0.0
    ) -> None:
        def write(connection: sqlite3.Connection) -> None:
            connection.execute(_JOB, (job.id, job.subject, job.body, job.shut, job.open))
            if cut is not None:
                connection.execute("INSERT OR IGNORE INTO cuts VALUES (?, ?)", (job.subject, cut))
            connection.executemany(_ITEM, [(job.subject, item, at) for item in items])

        # What is overwritten named an owner.
        await self._file.run(write, scrub=not job.open)

    async def job(self, job_id: str) -> LedgerJob | None:
        rows = await self._jobs("id = ?", (job_id,))
        return rows[0] if rows else None

    async def unfinished(self) -> Sequence[LedgerJob]:
        return await self._jobs("open = 1 ORDER BY number", ())

    async def marks(self, subject: str) -> LedgerMarks:
        # Asked of everybody, and most never had anything forgotten: that is found out without a transaction.
        known = self._file.read(_KNOWN, (subject,))
        if known is None or not known[0]:
            return LedgerMarks()

        def read(connection: sqlite3.Connection) -> LedgerMarks:
            shut = connection.execute("SELECT 1 FROM jobs WHERE subject = ? AND shut = 1", (subject,)).fetchone()
            cuts = connection.execute("SELECT cut FROM cuts WHERE subject = ? ORDER BY cut", (subject,))
            items = connection.execute("SELECT item, at FROM items WHERE subject = ?", (subject,))
            return LedgerMarks(
                tuple(bytes(row[0]) for row in cuts), {bytes(row[0]): row[1] for row in items}, shut is not None
            )

        return await self._file.run(read)

    async def _jobs(self, condition: str, values: tuple[object, ...]) -> list[LedgerJob]:
        def read(connection: sqlite3.Connection) -> list[LedgerJob]:
            rows = connection.execute(_JOBS + condition, values)
            return [LedgerJob(row[0], row[1], bytes(row[2]), bool(row[3]), bool(row[4])) for row in rows]

        return await self._file.run(read)
