"""Copies of the Redis data that must survive its loss: forget marks, unfinished forgets, consent changes.

In a SQLite file of the data directory; store/milvus/store.py keeps them in Milvus. Exclude them from backups,
like the ledger."""

from __future__ import annotations

import hashlib
import secrets
import sqlite3
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from memory_extproc.coordination.sqlite_file import Schema, SqliteBacked, SqliteFile, code_of
from memory_extproc.errors import TransientError
from memory_extproc.model import LedgerJob
from memory_extproc.observe.log import logger

log = logger(__name__)
T = TypeVar("T")

_SCHEMA = Schema(
    application=0x6D65786D,  # "mexm"
    version=1,
    script="""
CREATE TABLE records (id TEXT PRIMARY KEY, body BLOB NOT NULL, waits INTEGER NOT NULL) WITHOUT ROWID;

CREATE INDEX records_waiting ON records (id) WHERE waits = 1
""",
)
_PAGE = 500
_ITEMS = 1_000  # per record
_PUT = """
INSERT INTO records VALUES (?1, ?2, ?3)
ON CONFLICT (id) DO UPDATE SET waits = max(?3, waits * (body = ?2)), body = ?2
"""


class CopyKind(StrEnum):
    """The kind of the copied record. Stored, so values are never renamed."""

    KEY = "key"  # the HMAC key of the ledger's hashes
    JOB = "job"
    CUT = "cut"
    ITEMS = "items"
    CONSENT = "consent"


class Copied(msgspec.Struct, frozen=True, omit_defaults=True):
    """A copied record. *subject*: of the ledger, or the owner's key for consent."""

    kind: CopyKind
    subject: str
    body: bytes = b""
    id: str = ""  # of a job
    shut: bool = False
    open: bool = False
    at: float = 0.0
    items: tuple[bytes, ...] = ()

    @classmethod
    def of_job(cls, job: LedgerJob) -> Self:
        return cls(CopyKind.JOB, job.subject, job.body, job.id, job.shut, job.open)


def encode_copies(copies: Sequence[Copied]) -> dict[str, bytes]:
    """Encode copies for a Mirror. Equal records have equal ids on every replica."""
    bodies = [msgspec.json.encode(copy) for copy in copies]
    return {
        f"{copy.kind}:{copy.id or hashlib.blake2b(body, digest_size=16).hexdigest()}": body
        for copy, body in zip(copies, bodies, strict=True)
    }


def decode_copies(records: Mapping[str, bytes]) -> list[Copied]:
    """Decode copies; records of a newer version are skipped."""
    found = []
    for body in records.values():
        try:
            found.append(msgspec.json.decode(body, type=Copied))
        except msgspec.MsgspecError:
            log.warning("mirror.record_unreadable")
    return found


def split_pages(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    """Split *rows* into parts that fit a message."""
    return (rows[start : start + _PAGE] for start in range(0, len(rows), _PAGE))


def of_items(subject: str, items: Sequence[bytes], at: float) -> list[Copied]:
    starts = range(0, len(items), _ITEMS)
    return [Copied(CopyKind.ITEMS, subject, at=at, items=tuple(items[n : n + _ITEMS])) for n in starts]


_RESERVE = 4 * 1024 * 1024  # bytes, for forgets and refusals on a full disk


class SqliteMirror(SqliteBacked):
    """A mirror in a SQLite file that also marks records not yet in the shared mirror.

    Commits survive power loss."""

    def __init__(self, path: Path) -> None:
        self._file = SqliteFile(path, _SCHEMA, fsync=True, reserve=_RESERVE)

    async def put(self, records: Mapping[str, bytes], *, waits: bool = False) -> None:
        """Store records. *waits*: mark them as not yet copied, until `mark_sent`."""

        def put(connection: sqlite3.Connection) -> None:
            connection.executemany(_PUT, [(id_, body, waits) for id_, body in records.items()])

        # Overwritten rows contained owner names.
        await self._file.run(put, scrub=True)

    async def waiting(self) -> Mapping[str, bytes]:
        """A page of records not yet copied."""
        return await self._rows("SELECT id, body FROM records WHERE waits = 1 ORDER BY id LIMIT ?", _PAGE)

    async def mark_sent(self, records: Mapping[str, bytes]) -> None:
        def mark_sent(connection: sqlite3.Connection) -> None:
            connection.executemany("UPDATE records SET waits = 0 WHERE id = ? AND body = ?", records.items())

        await self._file.run(mark_sent)

    async def all(self) -> AsyncIterator[Mapping[str, bytes]]:
        after = ""
        while page := await self._rows(
            "SELECT id, body FROM records WHERE id > ? ORDER BY id LIMIT ?", after, _PAGE
        ):
            yield page
            after = max(page)

    async def _rows(self, statement: str, *values: object) -> Mapping[str, bytes]:
        return {row[0]: bytes(row[1]) for row in await self._file.fetch(statement, values)}


def set_aside_unusable(path: Path) -> bool:
    """Whether *path* was unusable for this version; if so it is renamed and kept."""
    if not path.exists():
        return False
    try:
        with closing(sqlite3.connect(path)) as connection:
            whole = connection.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok"
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            ours = connection.execute("PRAGMA application_id").fetchone()[0] == _SCHEMA.application
    except sqlite3.Error as error:
        if code_of(error) not in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
            raise TransientError(f"{path.name} cannot be read now") from error
        whole, version, ours = False, 0, True
    if whole and ours and version <= _SCHEMA.version:
        return False
    why = "newer" if whole and ours else "damaged"
    name = f"{path.name}.{why}-{secrets.token_hex(4)}"
    for end in ("", "-wal", "-shm"):
        beside = path.with_name(path.name + end)
        if beside.exists():
            beside.rename(path.with_name(name + end))
    log.error("file.set_aside", file=path.name, why=why, aside=name)
    return True
