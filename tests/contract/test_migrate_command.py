"""`memory-extproc store migrate`, over real stores: what it says, what it leaves out, and a kill in the middle."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner, Result

from memory_extproc.app import milvus_options, open_embedder, utc_now
from memory_extproc.cli.root import app
from memory_extproc.coordination.ledger_sqlite import SqliteLedger
from memory_extproc.coordination.sqlite import SqliteCoordination
from memory_extproc.erasure.marks import Blind, Kind
from memory_extproc.model import LedgerJob, Owner
from memory_extproc.observe.metrics import Metrics
from memory_extproc.settings import load
from memory_extproc.store.client import AsyncMilvusClient, connect
from memory_extproc.store.lite import EmbeddedLite
from memory_extproc.store.milvus import MilvusStore
from tests.builders import a_memory
from tests.fixtures import older_store
from tests.fixtures.milvus_server import Process
from tests.fixtures.milvus_stores import milvus_lite
from tests.fixtures.models import int8_model_dir

__all__ = ["int8_model_dir", "milvus_lite"]
T = TypeVar("T")
ANN, BOB = Owner("acme", "ann"), Owner("acme", "bob")


class Place:
    def __init__(self, scratch: Path, models: Path) -> None:
        self.config, self.data = scratch / "config.yaml", scratch / "data"
        self._models = models
        self.configure()

    def configure(self, address: str = "", **more: Any) -> None:
        """*address*: of a server, in a collection of this test's."""
        milvus = {"shards": 2, "collection": f"c{os.urandom(6).hex()}", **({"address": address} if address else {})}
        memory = {"embedding": {"models_dir": str(self._models)}, "milvus": milvus}
        self.config.write_text(yaml.safe_dump({"data_dir": str(self.data), "memory": memory, **more}))

    def with_store(self, use: Callable[[MilvusStore], Awaitable[T]], *, older: bool = False) -> T:
        """What *use* gives of the store, whose collections an *older* version has made."""
        return asyncio.run(self._with_store(use, older=older))

    async def _with_store(self, use: Callable[[MilvusStore], Awaitable[T]], *, older: bool) -> T:
        settings, metrics = load(self.config, {}), Metrics(CollectorRegistry(), "test")
        async with AsyncExitStack() as stack:
            embedder = await open_embedder(settings, metrics, stack)
            options = milvus_options(settings, self.data, embedder.fingerprint)
            options = replace(options, timeout=timedelta(seconds=10))
            if older:
                await _made(options)
            store = MilvusStore(options, metrics, now=utc_now)
            stack.push_async_callback(store.close)
            await store.open()
            return await use(store)

    def fill(self, rows: int = 1) -> None:
        """An older version's collections, with *rows* of Ann's and one of Bob's."""

        async def put(store: MilvusStore) -> None:
            vector = [1.0, *([0.0] * 383)]
            ours = [a_memory(f"Ann likes tea number {n}.", ANN) for n in range(rows)]
            for memory in (*ours, a_memory("Bob has a cat.", BOB)):
                await store.put(memory.owner, [_embedded(memory, vector)])

        self.with_store(put, older=True)

    def rows(self, owner: Owner = ANN) -> list[str]:
        async def read(store: MilvusStore) -> list[str]:
            return sorted([row.memory.content async for page in store.pages(owner, 99, fresh=True) for row in page])

        return self.with_store(read)

    def run(self, *words: str) -> Result:
        return CliRunner().invoke(app, ["store", "migrate", *words, "--config", str(self.config)])

    def json(self, *words: str) -> Any:
        ended = self.run(*words, "--json")
        assert ended.exit_code == 0, ended.output
        return json.loads(ended.stdout)


def _embedded(memory: Any, vector: list[float]) -> Any:
    import numpy as np  # noqa: PLC0415

    from memory_extproc.model import Embedded  # noqa: PLC0415

    return Embedded(memory, np.array(vector, dtype=np.float32))


async def _made(options: Any) -> None:
    lite = None if options.uri else EmbeddedLite(options.path)
    client: AsyncMilvusClient = connect(options, options.uri or lite.start())  # type: ignore[union-attr]
    await older_store.make(client, options)
    await client.close()
    if lite is not None:
        lite.stop()


@pytest.fixture
def place(tmp_path: Path, int8_model_dir: Path) -> Place:
    return Place(tmp_path, int8_model_dir.parent)


def test_a_dry_run_says_what_is_due_and_a_run_does_it_once(place: Place) -> None:
    place.fill()
    foreseen = place.json("--dry-run")
    assert {(one["schema"], one["to"], one["how"], one["state"]) for one in foreseen} == {(1, 2, "copy", "due")}
    assert place.json("--dry-run") == foreseen
    shown = place.run()
    assert shown.exit_code == 0, shown.output
    assert "1 → 2" in shown.output
    assert {(one["schema"], one["state"], one["copied"]) for one in place.json()} == {(2, "current", 0)}
    assert (place.rows(), place.rows(BOB)) == (["Ann likes tea number 0."], ["Bob has a cat."])


def test_what_the_ledger_says_was_forgotten_is_not_taken_along(place: Place) -> None:
    """A row of a restored backup, which nobody has erased again yet."""
    place.fill(2)

    async def forgotten() -> None:
        async with SqliteLedger(place.data / "erasure.db") as ledger:
            blind = Blind(await ledger.key())
            item = blind.item(Kind.MEMORY, ANN, a_memory("Ann likes tea number 1.", ANN).id)
            job = LedgerJob(id="j1", subject=blind.subject(ANN), body=b"{}", shut=False, open=False)
            await ledger.write(job, items=[item], at=utc_now().timestamp())

    asyncio.run(forgotten())
    assert sum(one["left_out"] for one in place.json()) == 1
    assert place.rows() == ["Ann likes tea number 0."]


def test_one_migration_runs_at_a_time(place: Place, milvus_lite: Process) -> None:
    place.configure(milvus_lite.address)
    assert place.rows() == []
    name = load(place.config, {}).memory.milvus.collection

    async def hold(holder: str, ttl: timedelta) -> None:
        async with SqliteCoordination(place.data / "coordination.db", now=utc_now) as coordination:
            assert await coordination.acquire(f"migrate:{name}", holder, ttl)

    asyncio.run(hold("another", timedelta(minutes=1)))
    refused = place.run()
    assert refused.exit_code == 1
    assert "another migration is running" in refused.output
    asyncio.run(hold("another", timedelta(microseconds=1)))
    assert place.json()[0]["state"] == "current"
    asyncio.run(hold("the next", timedelta(minutes=1)))  # let go of at the end


_KILLED = """
import os, signal, sys
from memory_extproc.store import copying
from memory_extproc.cli.root import app
write, left = copying.Copying._written, int(sys.argv.pop())
async def written(self, ids):
    global left
    done = await write(self, ids)
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    return done
copying.Copying._written = written
app()
"""


@pytest.mark.parametrize("writes", [1, 2])
def test_a_run_that_was_killed_is_gone_on_with(place: Place, writes: int) -> None:
    place.fill(3)
    words = ["store", "migrate", "--config", str(place.config), str(writes)]
    killed = subprocess.run([sys.executable, "-c", _KILLED, *words], check=False, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    assert len(place.rows()) == 3
    assert {one["to"] for one in place.json()} == {2}
    assert place.rows() == [f"Ann likes tea number {n}." for n in range(3)]
    assert place.rows(BOB) == ["Bob has a cat."]
    assert {one["state"] for one in place.json()} == {"current"}
