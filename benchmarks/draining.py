"""Part (g): how fast turns get into a journal, and a backlog out of it."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

from benchmarks.figures import Drain
from benchmarks.learning import BATCH, CALLERS, exchange, rig, write_settings
from memory_extproc.coordination.redis_client import RedisLink
from memory_extproc.journal.redis import JournalSharing, RedisJournal
from memory_extproc.journal.sqlite import SqliteJournal
from memory_extproc.learn.sessions import Sessions
from memory_extproc.ports import Journal
from memory_extproc.testing.adapters import InMemoryCoordination
from tests.support.redis import start_redis, stop_redis

FILE, REDIS = "SQLite", "Redis, appendonly"


def _now() -> datetime:
    return datetime.now(UTC)


async def _fill(journal: Journal, turns: int) -> float:
    """Seconds to journal so many turns, all at once."""
    sessions = Sessions(InMemoryCoordination(_now), new_session=lambda: uuid4().hex)
    placed = [(await sessions.place(exchange(number))).turn for number in range(turns)]
    began = time.perf_counter()
    await asyncio.gather(*(journal.append(turn) for turn in placed))
    return time.perf_counter() - began


@asynccontextmanager
async def _file(data: Path) -> AsyncIterator[Journal]:
    async with SqliteJournal(data / "journal.db", now=_now) as journal:
        yield journal


@asynccontextmanager
async def _redis(url: str, prefix: str) -> AsyncIterator[Journal]:
    async with (
        RedisLink(url, timedelta(seconds=30)) as link,
        # No grace: what an earlier process left is taken up as soon as we look.
        RedisJournal(link, now=_now, prefix=prefix, sharing=JournalSharing(grace=timedelta())) as journal,
    ):
        yield journal


async def drain(scratch: Path, *, quick: bool) -> dict[str, Drain]:
    turns = CALLERS * BATCH * (1 if quick else 12)
    settings = write_settings(scratch, learn={"extractor": "rules"})
    measured: dict[str, Drain] = {}
    for name in (FILE, REDIS):
        data = scratch / f"drain-{len(measured)}"
        await asyncio.to_thread(data.mkdir)
        if name == FILE:
            async with _file(data) as journal:
                filled = await _fill(journal, turns)
            async with _file(data) as journal, rig(settings, data, journal) as opened:
                took = await opened.learn(range(0))
        elif shutil.which("redis-server") is None:
            continue
        else:
            server = await asyncio.to_thread(start_redis, data, lasting=True)
            try:
                async with _redis(server.url, "bench") as journal:
                    filled = await _fill(journal, turns)
                    async with rig(settings, data, journal) as opened:
                        took = await opened.learn(range(0))
            finally:
                stop_redis(server)
        measured[name] = Drain(turns=turns, journalled=turns / filled, drained=turns / took)
    return measured
