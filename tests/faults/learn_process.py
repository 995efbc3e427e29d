"""A process that accepts turns and learns them, to be killed by a test:
learn_process.py DIRECTORY TURNS POINT [REDIS PREFIX]

Prints the number of each turn that was journalled. At POINT it kills itself: a step's name and how often it came
there, `put-3` before the third put and `stored-3` after it. The steps, before and after: append appended, put
stored, mark marked (as stored), extract extracted, apply applied, close closed (marked as learned). At `none` it
drains and ends; with a REDIS, whose journal others may share, once nothing is left in it to be learned.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from prometheus_client import CollectorRegistry

from memory_extproc.concurrency import utc_now
from memory_extproc.coordination.redis import RedisCoordination
from memory_extproc.coordination.redis_client import RedisLink
from memory_extproc.coordination.sqlite import SqliteCoordination
from memory_extproc.errors import PermanentError
from memory_extproc.journal.redis import JournalSharing, RedisJournal
from memory_extproc.journal.sqlite import SqliteJournal
from memory_extproc.learn.extract.extractor import Fact
from memory_extproc.learn.queue import QueuePolicy
from memory_extproc.learn.sessions import Sessions
from memory_extproc.model import (
    Caller,
    Embedded,
    Exchanged,
    Memory,
    Message,
    Owner,
    Role,
    Scope,
    SearchResult,
    Turn,
    TurnOutcome,
    Vector,
)
from memory_extproc.observe.log import configure
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Coordination, JournalEntry
from memory_extproc.testing.models import CannedEmbedder
from tests.support.builders import ANN, BOB
from tests.support.learner import LearnSettings, make_intake
from tests.support.waiting import until
from tests.unit.learn.learning import ListingExtractor


class Killer:
    def __init__(self, point: str) -> None:
        self._point = point
        self._passed: Counter[str] = Counter()

    def at(self, name: str) -> None:
        self._passed[name] += 1
        if self._point == f"{name}-{self._passed[name]}":
            os.kill(os.getpid(), signal.SIGKILL)


class KilledJournal:
    """A journal, and the steps around it."""

    def __init__(self, journal: SqliteJournal | RedisJournal, killer: Killer) -> None:
        self._journal, self._killer = journal, killer
        self.pending, self.get, self.depth = journal.pending, journal.get, journal.depth
        self.arrivals, self.holds, self.end = journal.arrivals, journal.holds, journal.end
        self.mark_failed, self.erase_learned = journal.mark_failed, journal.erase_learned
        self.erase_owner, self.erase, self.of_owner = journal.erase_owner, journal.erase, journal.of_owner
        self.dead, self.retry = journal.dead, journal.retry

    async def append(self, turn: Turn) -> TurnOutcome:
        self._killer.at("append")
        stored = await self._journal.append(turn)
        self._killer.at("appended")
        return stored

    async def mark_stored(self, entries: Sequence[JournalEntry]) -> None:
        self._killer.at("mark")
        await self._journal.mark_stored(entries)
        self._killer.at("marked")

    async def mark_learned(self, entries: Sequence[JournalEntry]) -> None:
        self._killer.at("close")
        await self._journal.mark_learned(entries)
        self._killer.at("closed")


class KilledExtractor(ListingExtractor):
    def __init__(self, killer: Killer) -> None:
        super().__init__()
        self._killer = killer

    async def extract(self, turns: Sequence[Turn], **more: Any) -> list[Fact]:
        self._killer.at("extract")
        facts = await super().extract(turns, **more)
        self._killer.at("extracted")
        return facts


def made(path: Path) -> sqlite3.Connection:
    """The store's file. Two processes that begin with it at once would be in each other's way (SQLite turns to a
    write-ahead log alone, and waits for nobody there), so it is made before them."""
    file = sqlite3.connect(path, isolation_level=None)
    file.execute("PRAGMA journal_mode = WAL")
    # Nobody cuts the power here; waiting for a busy disk on the event loop would cost us our leases.
    file.execute("PRAGMA synchronous = OFF")
    file.execute("CREATE TABLE IF NOT EXISTS rows (id TEXT PRIMARY KEY, owner, session, seq, content)")
    file.execute("CREATE TABLE IF NOT EXISTS facts (turn TEXT PRIMARY KEY, owner, content)")
    return file


class FileStore:
    """MemoryWriter, ListingReconciler's place taken too: rows and facts in a SQLite file, by id."""

    def __init__(self, path: Path, killer: Killer) -> None:
        self._file = made(path)
        self._killer = killer
        self._shown: dict[str, Embedded] = {}

    async def put(
        self, owner: Owner, rows: Sequence[Embedded], *, shown: Callable[[], None] = lambda: None
    ) -> None:
        self._killer.at("put")
        await asyncio.sleep(0)
        for row in (row.memory for row in rows):
            values = (row.id, owner.key, row.session, row.seq, row.content)
            self._file.execute("INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?, ?)", values)
        self._killer.at("stored")

    async def show(self, owner: Owner, rows: Sequence[Embedded]) -> None:
        self._killer.at("show")
        await asyncio.sleep(0)
        self._shown |= {row.memory.id: row for row in rows}
        self._killer.at("shown")

    async def store_shown(self, owner: Owner, ids: Sequence[str]) -> bool:
        await self.put(owner, [self._shown[one] for one in ids])
        return True

    async def apply(self, owner: Owner, facts: Sequence[Fact], turns: Sequence[Turn]) -> None:
        self._killer.at("apply")
        for fact in facts:
            values = (fact.turn_id, owner.key, fact.content)
            self._file.execute("INSERT OR REPLACE INTO facts VALUES (?, ?, ?)", values)
        self._killer.at("applied")

    async def nearest(self, owner: Owner, to: Vector, limit: int, scope: Scope) -> SearchResult:
        return SearchResult((), None, "store")

    async def get(self, owner: Owner, ids: Sequence[str]) -> Sequence[Memory]:
        return []

    async def supersede(self, owner: Owner, old: str, by: str, at: datetime) -> None:
        raise PermanentError("not here")

    async def confirm(
        self,
        owner: Owner,
        id: str,  # noqa: A002 - the port's word
        at: datetime,
        *,
        turn: str = "",
        beside: Sequence[str] = (),
        trusted: bool = False,
    ) -> None:
        raise PermanentError("not here")

    async def delete(self, owner: Owner, ids: Sequence[str]) -> None:
        raise PermanentError("not here")


def the_exchange(n: int) -> Exchanged:
    caller = Caller(BOB if n % 3 == 0 else ANN, session=f"session {n % 4}")
    # With history, so that the turn is known again when it is said again.
    history = (Message(Role.USER, f"Opening {n}"), Message(Role.ASSISTANT, "Go on."))
    return Exchanged(caller=caller, history=history, asked=f"I own {n} red bicycles.", answered="", at=utc_now())


async def opened(
    stack: AsyncExitStack, directory: Path, redis: Sequence[str]
) -> tuple[SqliteJournal | RedisJournal, Coordination]:
    """Both in files of one process, or in a Redis that others share, as a sidecar has them."""
    if not redis:
        return (
            await stack.enter_async_context(SqliteJournal(directory / "journal.sqlite", now=utc_now)),
            await stack.enter_async_context(SqliteCoordination(directory / "coordination.sqlite", now=utc_now)),
        )
    url, prefix = redis
    # Plenty of time: where a turn belongs is not known without an answer, and it would be told of twice.
    link = await stack.enter_async_context(RedisLink(url, timedelta(seconds=30)))
    # Long enough that a busy machine does not pass the work to and fro; a dead process is waited for so long.
    sharing = JournalSharing(lease=timedelta(seconds=1), grace=timedelta(seconds=1))
    return (
        await stack.enter_async_context(RedisJournal(link, now=utc_now, prefix=prefix, sharing=sharing)),
        RedisCoordination(link, prefix=prefix),
    )


async def _empty(journal: SqliteJournal | RedisJournal) -> bool:
    return (await journal.depth()).turns == 0


async def run(directory: Path, turns: int, point: str, *redis: str) -> None:
    killer = Killer(point)
    store = FileStore(directory / "store.sqlite", killer)
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    async with AsyncExitStack() as stack:
        journal, coordination = await opened(stack, directory, redis)
        learner = await stack.enter_async_context(
            make_intake(
                KilledJournal(journal, killer),
                Sessions(coordination, new_session=lambda: uuid4().hex),
                store,
                CannedEmbedder(16),
                coordination,
                LearnSettings(
                    batch=3,
                    gather=timedelta(milliseconds=20),
                    idle=timedelta(milliseconds=50),
                    look=timedelta(milliseconds=50),
                    journal_wait=timedelta(seconds=10),
                ),
                Metrics(CollectorRegistry(), "test"),
                extractor=KilledExtractor(killer),
                reconciler=store,
                now=utc_now,
                policy=QueuePolicy(),
            )
        )
        for n in range(turns):
            if told.is_set():
                break
            if await learner.accept(the_exchange(n)) is TurnOutcome.JOURNALLED:
                print(n, flush=True)  # noqa: T201 - what the test reads
        if redis:
            await until(lambda: _empty(journal), "nothing is left to be learned", seconds=120)


if __name__ == "__main__":
    configure("warning", "json")
    asyncio.run(run(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]))
