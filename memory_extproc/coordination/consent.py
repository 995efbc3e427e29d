"""Consent where it rests: in memory, in a SQLite file, in Redis. Never expires, and no forget takes it away."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

from memory_extproc.coordination.mirror import Copied, Kind
from memory_extproc.errors import GiveUpError
from memory_extproc.model import Consent, ConsentChange, Owner
from memory_extproc.sqlite_file import Schema, SqliteFile

if TYPE_CHECKING:
    from memory_extproc.coordination.recovery import Recovery
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


# KEYS: changes of one owner. ARGV: a copy of one, which takes its place by the moment that it was made.
_MERGE = """
local at = cjson.decode(ARGV[1])[2]
local later = false
for _, change in ipairs(redis.call('LRANGE', KEYS[1], 0, -1)) do
  if change == ARGV[1] then return 0 end
  if not later and cjson.decode(change)[2] > at then later = change end
end
if later then return redis.call('LINSERT', KEYS[1], 'BEFORE', later, ARGV[1]) end
return redis.call('RPUSH', KEYS[1], ARGV[1])
"""


class RedisConsent:
    """ConsentRecords as one list for each owner. The link bounds each call. Also a Restorable: with a *recovery*,
    nothing is read from a Redis that lost what it was given, and each change has a copy when `add` returns."""

    def __init__(
        self, link: RedisLink, *, prefix: str = "memory-extproc", recovery: Recovery | None = None
    ) -> None:
        self._link, self._prefix, self._recovery = link, prefix, recovery
        self._merge = link.client.register_script(_MERGE)

    async def add(self, owner: Owner, change: ConsentChange) -> None:
        if self._recovery is not None:
            self._recovery.check()
        written = msgspec.json.encode(_Written(change.consent, change.at.timestamp(), change.by))
        await self._link.bounded(self._link.client.rpush(self._key(owner.key), written))
        if self._recovery is not None:
            await self._recovery.advance()
            await self._recovery.keep([Copied(Kind.CONSENT, owner.key, written)])

    async def latest(self, owner: Owner) -> ConsentChange | None:
        found = await self._range(owner, -1)
        return found[0] if found else None

    async def history(self, owner: Owner) -> Sequence[ConsentChange]:
        return await self._range(owner, 0)

    async def _range(self, owner: Owner, first: int) -> Sequence[ConsentChange]:
        floor = 0 if self._recovery is None else self._recovery.sequence
        # Both in one message, not in one step: a Redis is not wiped and filled again in between.
        pipeline = self._link.client.pipeline(transaction=False)
        pipeline.lrange(self._key(owner.key), first, -1)
        if self._recovery is not None:
            pipeline.hmget(self._recovery.key, self._recovery.fields)
        found, *standing = await self._link.bounded(pipeline.execute())
        if self._recovery is not None:
            self._recovery.compare(standing[0][0], standing[0][1], floor)
        return tuple(map(_of_bytes, found))

    async def merge(self, copies: Sequence[Copied]) -> None:
        pipeline = self._link.client.pipeline(transaction=False)
        for copy in copies:
            if copy.kind is Kind.CONSENT:
                await self._merge(keys=[self._key(copy.subject)], args=[copy.body], client=pipeline)
        await self._link.bounded(pipeline.execute())

    async def copies(self) -> AsyncIterator[Sequence[Copied]]:
        client, start = self._link.client, f"{self._prefix}:{{"
        cursor = -1
        while cursor:
            scan = client.scan(cursor=max(cursor, 0), match=f"{start}*}}:consent", count=1_000)
            cursor, names = await self._link.bounded(scan)
            for name in [name.decode() for name in names]:
                key = name.removeprefix(start).removesuffix("}:consent")
                changes = await self._link.bounded(client.lrange(name, 0, -1))
                yield [Copied(Kind.CONSENT, key, bytes(change)) for change in changes]

    def _key(self, key: str) -> str:
        return f"{self._prefix}:{{{key}}}:consent"


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
