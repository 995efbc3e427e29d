"""A Redis that would lose turns is refused at the start; the commands work on the journal that replicas share."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import structlog.testing
from redis import Redis
from typer.testing import CliRunner

from memory_extproc.app.context import make_context
from memory_extproc.app.coordination import open_journal, open_link
from memory_extproc.cli.root import app
from memory_extproc.errors import ConfigurationError
from memory_extproc.journal.sqlite import SqliteJournal
from memory_extproc.model import Turn, TurnOutcome, digest
from memory_extproc.ports import Journal
from memory_extproc.settings import Settings, load
from tests.support.builders import MONDAY, a_turn
from tests.support.ports import free_port
from tests.support.redis import RedisServer, start_redis, stop_redis

pytestmark = pytest.mark.redis


def turn(words: str) -> Turn:
    return replace(a_turn(words), id=digest(words))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    started = start_redis(tmp_path, lasting=True)
    yield started
    stop_redis(started)


class Place:
    """A configuration with its data directory."""

    def __init__(self, scratch: Path, url: str, **coordination: Any) -> None:
        self.data = scratch / "data"
        self.data.mkdir()
        self.config = scratch / "config.yaml"
        section = {"url": url, "prefix": uuid4().hex, "timeout": "3s", "lease": "9s", **coordination}
        self.config.write_text(json.dumps({"data_dir": str(self.data), "coordination": section}))

    @property
    def settings(self) -> Settings:
        return load(self.config, {})

    @asynccontextmanager
    async def journal(self) -> AsyncIterator[Journal]:
        """As the sidecar opens it."""
        async with AsyncExitStack() as stack:
            context = make_context(self.settings, stack, now=lambda: MONDAY, data=self.data)
            journal, writable, _ = await open_journal(context, await open_link(context))
            await writable()
            yield journal

    def told(self, *words: str) -> Any:
        result = CliRunner().invoke(app, ["learn", *words, "--config", str(self.config), "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("settings", "fault"),
    [({"appendonly": "no"}, "keeps nothing"), ({"maxmemory-policy": "allkeys-lru"}, "drops keys")],
)
async def test_a_redis_that_would_lose_turns_is_refused_unless_that_is_written_down(
    tmp_path: Path, server: RedisServer, settings: dict[str, str], fault: str
) -> None:
    with Redis.from_url(server.url) as operator:
        for name, value in settings.items():
            operator.config_set(name, value)
    with pytest.raises(ConfigurationError, match=f"coordination.url: this Redis {fault}.*accept_volatile"):
        async with Place(tmp_path, server.url).journal():
            pass
    scratch = tmp_path / "accepting"
    scratch.mkdir()
    with structlog.testing.capture_logs() as logs:
        async with Place(scratch, server.url, accept_volatile=True).journal() as journal:
            await journal.arrivals(1)
            assert await journal.append(turn("kept all the same")) is TurnOutcome.JOURNALLED
    assert [fault in line["fault"] for line in logs if line["event"] == "journal.volatile"] == [True]


async def test_a_redis_that_is_away_keeps_nobody_from_starting(tmp_path: Path) -> None:
    async with Place(tmp_path, f"redis://127.0.0.1:{free_port()}/0").journal() as journal:
        assert await journal.append(turn("put aside")) is TurnOutcome.JOURNALLED


def test_the_commands_work_on_the_journal_that_replicas_share(tmp_path: Path, server: RedisServer) -> None:
    place = Place(tmp_path, server.url)

    async def work() -> None:
        async with place.journal() as journal:
            for words in ("bad", "good"):
                await journal.append(turn(words))
            await journal.mark_failed((await journal.pending(1))[0], "PermanentError", dead=True)
            told = await asyncio.to_thread(place.told, "status")
            assert told == {
                "journal": "redis",
                "waiting": 1,
                "oldest_seconds": told["oldest_seconds"],
                "dead_letters": 1,
                "put_aside": 0,
                "undecided": 0,
                "parts_of_each_replica": [64],
            }
            [letter] = await asyncio.to_thread(place.told, "dead-letters")
            assert (letter["turn"], letter["reason"]) == (turn("bad").id, "PermanentError")
            assert await asyncio.to_thread(place.told, "retry", "--all") == {"retried": 1}
            assert [entry.turn.asked for entry in await journal.arrivals(10)] == ["bad"]

    asyncio.run(work())


def test_a_file_left_behind_is_adopted_by_the_journal_that_replicas_share(
    tmp_path: Path, server: RedisServer
) -> None:
    place, gone = Place(tmp_path, server.url), tmp_path / "gone"

    async def left_behind() -> None:
        async with SqliteJournal(gone / "journal.db", now=lambda: MONDAY) as journal:
            await journal.append(turn("left behind"))

    async def pending() -> list[str]:
        async with place.journal() as journal:
            return [entry.turn.asked for entry in await journal.pending(10)]

    asyncio.run(left_behind())
    assert place.told("adopt", str(gone)) == {"adopted": 1, "known": 0, "unreadable": 0, "left": 0, "undecided": 0}
    assert place.told("adopt", str(gone))["adopted"] == 0
    assert asyncio.run(pending()) == ["left behind"]
