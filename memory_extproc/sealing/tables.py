"""Where wrapped data keys rest: a SQLite file for one replica, a Redis for several, a dictionary for tests."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from memory_extproc.sqlite_file import Schema, SqliteFile

if TYPE_CHECKING:
    from memory_extproc.redis_link import RedisLink

_SCHEMA = Schema(
    application=0x6D65786B,  # "mexk"
    version=1,
    script="CREATE TABLE keys (place TEXT PRIMARY KEY, wrapped BLOB NOT NULL) WITHOUT ROWID",
)
_PAGE = 500


class TransientKeyTable:
    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    async def get(self, place: str) -> bytes | None:
        return self.kept.get(place)

    async def add(self, place: str, wrapped: bytes) -> bytes:
        return self.kept.setdefault(place, wrapped)

    async def swap(self, place: str, old: bytes, new: bytes) -> bool:
        if self.kept.get(place) != old:
            return False
        self.kept[place] = new
        return True

    async def remove(self, place: str) -> bool:
        return self.kept.pop(place, None) is not None

    async def all(self) -> AsyncIterator[Sequence[tuple[str, bytes]]]:
        yield list(self.kept.items())


class SqliteKeyTable:
    """Survives power loss: a key that is lost takes its owner's texts with it. Other processes may use the file at
    the same time."""

    def __init__(self, path: Path) -> None:
        self._file = SqliteFile(path, _SCHEMA, fsync=True)

    async def __aenter__(self) -> Self:
        await self._file.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._file.__aexit__()

    async def get(self, place: str) -> bytes | None:
        row = self._file.read(_READ, (place,))
        return None if row is None else bytes(row[0])

    async def add(self, place: str, wrapped: bytes) -> bytes:
        def add(connection: sqlite3.Connection) -> bytes:
            connection.execute(
                "INSERT INTO keys (place, wrapped) VALUES (?, ?) ON CONFLICT (place) DO NOTHING", (place, wrapped)
            )
            return bytes(connection.execute(_READ, (place,)).fetchone()[0])

        return await self._file.run(add)

    async def swap(self, place: str, old: bytes, new: bytes) -> bool:
        def swap(connection: sqlite3.Connection) -> bool:
            changed = connection.execute(
                "UPDATE keys SET wrapped = ? WHERE place = ? AND wrapped = ?", (new, place, old)
            )
            return changed.rowcount == 1

        return await self._file.run(swap, scrub=True)

    async def remove(self, place: str) -> bool:
        def remove(connection: sqlite3.Connection) -> bool:
            return connection.execute("DELETE FROM keys WHERE place = ?", (place,)).rowcount == 1

        return await self._file.run(remove, scrub=True)

    async def all(self) -> AsyncIterator[Sequence[tuple[str, bytes]]]:
        after = ""
        while page := await self._file.run(lambda connection, after=after: _page(connection, after)):  # type: ignore[misc]
            yield page
            after = page[-1][0]


class RedisKeyTable:
    """One hash in Redis. Which is to keep what it is given: appendonly, and no eviction."""

    def __init__(self, link: RedisLink, *, prefix: str) -> None:
        self._link, self._client, self._name = link, link.client, f"{prefix}:keys"
        self._swap = link.client.register_script(_SWAP)
        self._add = link.client.register_script(_ADD)

    async def get(self, place: str) -> bytes | None:
        found = await self._link.bounded(self._client.hget(self._name, place))
        return None if found is None else bytes(found)

    async def add(self, place: str, wrapped: bytes) -> bytes:
        return bytes(await self._link.bounded(self._add(keys=[self._name], args=[place, wrapped])))

    async def swap(self, place: str, old: bytes, new: bytes) -> bool:
        return bool(await self._link.bounded(self._swap(keys=[self._name], args=[place, old, new])))

    async def holds_any(self) -> bool:
        return bool(await self._link.bounded(self._client.exists(self._name)))

    async def remove(self, place: str) -> bool:
        return bool(await self._link.bounded(self._client.hdel(self._name, place)))

    async def all(self) -> AsyncIterator[Sequence[tuple[str, bytes]]]:
        cursor = -1
        while cursor:
            cursor, page = await self._link.bounded(
                self._client.hscan(self._name, cursor=max(cursor, 0), count=_PAGE)
            )
            yield [(place.decode(), bytes(wrapped)) for place, wrapped in page.items()]


_READ = "SELECT wrapped FROM keys WHERE place = ?"
_ADD = """
redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2])
return redis.call('HGET', KEYS[1], ARGV[1])
"""
_SWAP = """
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return 1
"""


def _page(connection: sqlite3.Connection, after: str) -> list[tuple[str, bytes]]:
    rows = connection.execute(
        "SELECT place, wrapped FROM keys WHERE place > ? ORDER BY place LIMIT ?", (after, _PAGE)
    )
    return [(str(place), bytes(wrapped)) for place, wrapped in rows]
