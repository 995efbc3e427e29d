"""A process that accepts turns and learns them, to be killed by a test: learn_process.py DIRECTORY TURNS POINT

Prints the number of each turn that was journalled. At POINT (`put-3`: before the third put, `stored-3`: after
it, `apply-1`, `applied-1`: around the first reconciliation) it kills itself; at `none` it drains and ends.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

from prometheus_client import CollectorRegistry

from memory_extproc.coordination.sqlite import SqliteCoordination
from memory_extproc.errors import GiveUpError
from memory_extproc.inference.canned import CannedEmbedder
from memory_extproc.learn.extract import Fact
from memory_extproc.learn.journal import SqliteJournal
from memory_extproc.learn.learner import Learner, LearnLimits
from memory_extproc.learn.sessions import SessionLimits, Sessions
from memory_extproc.model import (
    Caller,
    Embedded,
    Exchanged,
    Memory,
    Message,
    Owner,
    Role,
    Scope,
    Searched,
    Stored,
    Turn,
    Vector,
)
from memory_extproc.observe.log import configure
from memory_extproc.observe.metrics import Metrics
from tests.builders import ANN, BOB
from tests.unit.learn.learning import ListingExtractor


class Killer:
    def __init__(self, point: str) -> None:
        self._point = point
        self._passed: Counter[str] = Counter()

    def at(self, name: str) -> None:
        self._passed[name] += 1
        if self._point == f"{name}-{self._passed[name]}":
            os.kill(os.getpid(), signal.SIGKILL)


class FileStore:
    """KeepsMemories, ListingReconciler's place taken too: rows and facts in a SQLite file, by id."""

    def __init__(self, path: Path, killer: Killer) -> None:
        self._file = sqlite3.connect(path, isolation_level=None)
        self._file.execute("PRAGMA journal_mode = WAL")
        self._file.execute("CREATE TABLE IF NOT EXISTS rows (id TEXT PRIMARY KEY, owner, session, seq, content)")
        self._file.execute("CREATE TABLE IF NOT EXISTS facts (turn TEXT PRIMARY KEY, owner, content)")
        self._killer = killer

    async def put(
        self, owner: Owner, rows: Sequence[Embedded], *, shown: Callable[[], None] = lambda: None
    ) -> None:
        self._killer.at("put")
        await asyncio.sleep(0)
        for row in (row.memory for row in rows):
            values = (row.id, owner.key, row.session, row.seq, row.content)
            self._file.execute("INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?, ?)", values)
        self._killer.at("stored")

    async def apply(self, owner: Owner, facts: Sequence[Fact], turns: Sequence[Turn]) -> None:
        self._killer.at("apply")
        for fact in facts:
            values = (fact.turn_id, owner.key, fact.content)
            self._file.execute("INSERT OR REPLACE INTO facts VALUES (?, ?, ?)", values)
        self._killer.at("applied")

    async def nearest(self, owner: Owner, to: Vector, limit: int, scope: Scope) -> Searched:
        return Searched((), None, "store")

    async def get(self, owner: Owner, ids: Sequence[str]) -> Sequence[Memory]:
        return []

    async def supersede(self, owner: Owner, old: str, by: str, at: datetime) -> None:
        raise GiveUpError("not here")

    async def confirm(
        self,
        owner: Owner,
        id: str,  # noqa: A002 - the port's word
        at: datetime,
        *,
        turn: str = "",
        beside: Sequence[str] = (),
    ) -> None:
        raise GiveUpError("not here")

    async def delete(self, owner: Owner, ids: Sequence[str]) -> None:
        raise GiveUpError("not here")


def utc_now() -> datetime:
    return datetime.now(UTC)


def the_exchange(n: int) -> Exchanged:
    caller = Caller(BOB if n % 3 == 0 else ANN, session=f"session {n % 4}")
    # With history, so that the turn is known again when it is said again.
    history = (Message(Role.USER, f"Opening {n}"), Message(Role.ASSISTANT, "Go on."))
    return Exchanged(caller=caller, history=history, asked=f"I own {n} red bicycles.", answered="", at=utc_now())


async def run(directory: Path, turns: int, point: str) -> None:
    killer = Killer(point)
    store = FileStore(directory / "store.sqlite", killer)
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    async with (
        SqliteCoordination(directory / "coordination.sqlite", now=utc_now) as coordination,
        SqliteJournal(directory / "journal.sqlite", now=utc_now) as journal,
        Learner(
            journal,
            Sessions(coordination, SessionLimits(), new_session=lambda: uuid4().hex),
            store,
            CannedEmbedder(16),
            coordination,
            LearnLimits(batch=3, journal_wait=timedelta(seconds=10)),
            Metrics(CollectorRegistry(), "test"),
            extractor=ListingExtractor(),
            reconciler=store,
            now=utc_now,
            chance=random.random,
        ) as learner,
    ):
        for n in range(turns):
            if told.is_set():
                break
            if await learner.accept(the_exchange(n)) is Stored.JOURNALLED:
                print(n, flush=True)  # noqa: T201 - what the test reads


if __name__ == "__main__":
    configure("warning", "json")
    asyncio.run(run(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
