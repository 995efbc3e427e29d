"""The contents that a version leaves in its files and in Redis, frozen for later versions.

`python -m tests.support.frozen tests/frozen/VERSION REDIS_URL` writes what the present version leaves, before the
next one begins; records.json beside it is written by hand. What is there is never written again: what reads it no
more breaks an update.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from memory_extproc.coordination.consent import RedisConsent, SqliteConsent
from memory_extproc.coordination.redis import RedisCoordination, RedisLedger
from memory_extproc.coordination.redis_client import RedisLink
from memory_extproc.coordination.sqlite import SqliteCoordination, SqliteLedger
from memory_extproc.encryption.keys import KeyTable, RedisKeyTable, SqliteKeyTable
from memory_extproc.journal.redis import RedisJournal
from memory_extproc.journal.sqlite import SqliteJournal
from memory_extproc.model import Consent, ConsentChange, LedgerJob, Origin, Owner, Turn
from memory_extproc.ports import ConsentRecords, Coordination, Journal, Ledger

NOW = datetime(2026, 11, 1, tzinfo=UTC)
ANN = Owner("acme", "ann")
PREFIX = "frozen"
FILES = ("journal.db", "coordination.db", "erasure.db", "consent.db", "keys.db")
JOB = LedgerJob("1" * 32, "a" * 64, b"what is to be done", shut=True, open=True)
CHOICE = ConsentChange(Consent.RECALL_ONLY, NOW, "ann")


def a_turn(number: int) -> Turn:
    return Turn(
        id=f"{number:064}",
        owner=ANN,
        project="trips",
        session="s1",
        seq=2 * number,
        asked=f"My budget for Hawaii is ${number}.",
        answered="Noted.",
        at=NOW,
        injected=("Ann likes the sea.",),
        origin=Origin(dialect="chat_completions", model="demo"),
        heard="4f" * 32,
        resumes=True,
        speaker="ann",
    )


@dataclass(frozen=True, slots=True)
class Kept:
    """Everything that outlives a process beside memories."""

    journal: Journal
    coordination: Coordination
    ledger: Ledger
    consent: ConsentRecords
    keys: KeyTable

    async def fill(self) -> None:
        """A turn that waits, one whose messages are stored, a dead letter, and one of everything else."""
        for number in range(3):
            await self.journal.append(a_turn(number))
        entries = await self.journal.pending(10)
        await self.journal.mark_stored(entries[1:2])
        await self.journal.mark_failed(entries[2], "GiveUpError", dead=True)
        await self.coordination.bump(ANN)
        await self.coordination.advance_epoch(ANN)
        await self.coordination.put_record("head", ANN, "k1", b"a record", timedelta(days=36_500))
        await self.ledger.key()
        await self.ledger.write(JOB, cut=b"a cut", items=[b"x" * 16], at=12.5)
        await self.consent.add(ANN, CHOICE, after=None)
        await self.keys.add(ANN.key, b"a wrapped key")


@asynccontextmanager
async def in_files(directory: Path) -> AsyncIterator[Kept]:
    async with AsyncExitStack() as stack:
        yield Kept(
            await stack.enter_async_context(SqliteJournal(directory / "journal.db", now=lambda: NOW)),
            await stack.enter_async_context(SqliteCoordination(directory / "coordination.db", now=lambda: NOW)),
            await stack.enter_async_context(SqliteLedger(directory / "erasure.db")),
            await stack.enter_async_context(SqliteConsent(directory / "consent.db")),
            await stack.enter_async_context(SqliteKeyTable(directory / "keys.db")),
        )


@asynccontextmanager
async def in_redis(link: RedisLink, prefix: str = PREFIX) -> AsyncIterator[Kept]:
    async with AsyncExitStack() as stack:
        yield Kept(
            await stack.enter_async_context(RedisJournal(link, now=lambda: NOW, prefix=prefix)),
            RedisCoordination(link, prefix=prefix),
            RedisLedger(link, prefix=prefix),
            RedisConsent(link, prefix=prefix),
            RedisKeyTable(link, prefix=prefix),
        )


# --- files as text -------------------------------------------------------------------------------------
def thaw_file(frozen: Path, path: Path) -> None:
    with closing(sqlite3.connect(path)) as file:
        file.executescript(frozen.read_text(encoding="utf-8"))


def freeze_file(path: Path) -> str:
    with closing(sqlite3.connect(path)) as file:
        stamps = {name: file.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")}
        return "\n".join([*(f"PRAGMA {name} = {value};" for name, value in stamps.items()), *file.iterdump(), ""])


# --- Redis as JSON -------------------------------------------------------------------------------------
Keys = Mapping[str, tuple[str, Any]]  # key → (type, value); bytes as characters of the same number


async def freeze_redis(link: RedisLink, prefix: str = PREFIX) -> Keys:
    client: Any = link.client
    frozen = {}
    async for key in client.scan_iter(f"{prefix}:*"):
        kind = (await client.type(key)).decode()
        match kind:
            case "string":
                value: Any = _text(await client.get(key))
            case "hash":
                value = _texts(await client.hgetall(key))
            case "list":
                value = [_text(one) for one in await client.lrange(key, 0, -1)]
            case "set":
                value = sorted(_text(one) for one in await client.smembers(key))
            case "zset":
                value = {_text(name): score for name, score in await client.zrange(key, 0, -1, withscores=True)}
            case "stream":
                value = [[_text(id_), _texts(said)] for id_, said in await client.xrange(key)]
            case _:
                raise AssertionError(f"{key} is a {kind}: say here how it is frozen")
        frozen[_text(key)] = (kind, value)
    return dict(sorted(frozen.items()))


async def thaw_redis(link: RedisLink, frozen: Keys) -> None:
    client: Any = link.client
    for key, (kind, value) in frozen.items():
        match kind:
            case "string":
                await client.set(key, _bytes(value))
            case "hash":
                await client.hset(key, mapping={_bytes(name): _bytes(held) for name, held in value.items()})
            case "list":
                await client.rpush(key, *map(_bytes, value))
            case "set":
                await client.sadd(key, *map(_bytes, value))
            case "zset":
                await client.zadd(key, {_bytes(name): score for name, score in value.items()})
            case "stream":
                for id_, one in value:
                    await client.xadd(key, {_bytes(name): _bytes(held) for name, held in one.items()}, id=id_)


def _text(raw: bytes) -> str:
    return raw.decode("latin-1")


def _texts(raw: Mapping[bytes, bytes]) -> dict[str, str]:
    return {_text(name): _text(held) for name, held in raw.items()}


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")


async def _left_in_files(directory: Path) -> None:
    async with in_files(directory) as kept:
        await kept.fill()


async def _left_in_redis(url: str) -> Keys:
    async with RedisLink(url, timedelta(seconds=10), prefix=PREFIX) as link:
        async with in_redis(link) as kept:
            await kept.fill()
        return await freeze_redis(link)


def _write(directory: Path, url: str) -> None:
    directory.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        asyncio.run(_left_in_files(Path(scratch)))
        for name in FILES:
            text = freeze_file(Path(scratch, name))
            (directory / f"{name}.sql").write_text(text, encoding="utf-8")
    text = json.dumps(asyncio.run(_left_in_redis(url)), indent=1)
    (directory / "redis.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    _write(Path(sys.argv[1]), sys.argv[2])
