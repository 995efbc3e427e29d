"""Consent where it rests: in memory, in a SQLite file, in Redis. Never expires, and no forget takes it away."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

from memory_extproc.errors import GiveUpError
from memory_extproc.model import Consent, ConsentChange, Owner
from memory_extproc.sqlite_file import Schema, SqliteFile

if TYPE_CHECKING:
    from memory_extproc.redis_link import RedisLink

# Owners stand here by key, never by name.
_SCHEMA = Schema(
    application=0x6D657873,  # "mexs"
    version=1,
    script="""
CREATE TABLE changes (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    owner TEXT NOT NULL,
    consent TEXT NOT NULL,
    at REAL NOT NULL,
    by TEXT NOT NULL
);

CREATE INDEX changes_by_owner ON changes (owner, number)
""",
)


class TransientConsent:
    """ConsentRecords in a dictionary. Several users of one object see one another's changes, as replicas do."""

    def __init__(self) -> None:
        self._changes: dict[Owner, list[ConsentChange]] = {}

    async def add(self, owner: Owner, change: ConsentChange) -> None:
        self._changes.setdefault(owner, []).append(change)

    async def latest(self, owner: Owner) -> ConsentChange | None:
        changes = self._changes.get(owner)
        return changes[-1] if changes else None

    async def history(self, owner: Owner) -> Sequence[ConsentChange]:
        return tuple(self._changes.get(owner, ()))


class SqliteConsent:
    """ConsentRecords in a file of its own, which backups can take apart from everything else. A change survives
    power loss: it is seldom, and a person relies on it."""

    def __init__(self, path: Path, *, patience: timedelta = timedelta(seconds=2)) -> None:
        self._file = SqliteFile(path, _SCHEMA, fsync=True, patience=patience)

    async def __aenter__(self) -> Self:
        await self._file.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._file.__aexit__()

    async def open(self) -> None:
        """Raises what is wrong with the file."""
        await self._file.open()

    async def add(self, owner: Owner, change: ConsentChange) -> None:
        values = (owner.key, change.consent.value, change.at.timestamp(), change.by)

        def write(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT INTO changes (owner, consent, at, by) VALUES (?, ?, ?, ?)", values)

        await self._file.run(write)

    async def latest(self, owner: Owner) -> ConsentChange | None:
        row = self._file.read(f"{_CHANGES} DESC LIMIT 1", (owner.key,))
        return None if row is None else _of_row(row)

    async def history(self, owner: Owner) -> Sequence[ConsentChange]:
        def read(connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
            return connection.execute(_CHANGES, (owner.key,)).fetchall()

        return tuple(map(_of_row, await self._file.run(read)))


_CHANGES = "SELECT consent, at, by FROM changes WHERE owner = ? ORDER BY number"


class _Written(msgspec.Struct, frozen=True, array_like=True):
    """A change as Redis holds it."""

    consent: Consent
    at: float
    by: str


class RedisConsent:
    """ConsentRecords as one list for each owner. The link bounds each call."""

    def __init__(self, link: RedisLink, *, prefix: str = "memory-extproc") -> None:
        self._link = link
        self._prefix = prefix

    async def add(self, owner: Owner, change: ConsentChange) -> None:
        written = _Written(change.consent, change.at.timestamp(), change.by)
        await self._link.bounded(self._link.client.rpush(self._key(owner), msgspec.json.encode(written)))

    async def latest(self, owner: Owner) -> ConsentChange | None:
        last = await self._link.bounded(self._link.client.lindex(self._key(owner), -1))
        return None if last is None else _of_bytes(last)

    async def history(self, owner: Owner) -> Sequence[ConsentChange]:
        found = await self._link.bounded(self._link.client.lrange(self._key(owner), 0, -1))
        return tuple(map(_of_bytes, found))

    def _key(self, owner: Owner) -> str:
        return f"{self._prefix}:{{{owner.key}}}:consent"


def _of_row(row: Sequence[Any]) -> ConsentChange:
    consent, at, by = row
    return _change(consent, at, by)


def _of_bytes(raw: bytes) -> ConsentChange:
    try:
        written = msgspec.json.decode(raw, type=_Written)
    except msgspec.MsgspecError as error:
        raise GiveUpError("a record of consent is not as we write them") from error
    return _change(written.consent, written.at, written.by)


def _change(consent: str, at: float, by: str) -> ConsentChange:
    """GiveUpError for what is no consent: what cannot be read allows nothing."""
    try:
        return ConsentChange(Consent(consent), datetime.fromtimestamp(at, UTC), by)
    except ValueError as error:
        raise GiveUpError("a record of consent is not as we write them") from error
