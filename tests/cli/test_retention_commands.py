"""Operators' commands on everybody's memories, over the real store and the real model."""

from __future__ import annotations

import asyncio
import fcntl
import json
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner, Result

from memory_extproc.app import LOCK, milvus_options, open_embedder
from memory_extproc.app.context import make_context
from memory_extproc.cli.root import app
from memory_extproc.concurrency import utc_now
from memory_extproc.model import Embedded, Memory, MemoryState, Owner
from memory_extproc.observe.metrics import Metrics
from memory_extproc.settings import load
from memory_extproc.store.milvus.store import MilvusStore
from tests.support.builders import a_memory
from tests.support.models import int8_model_dir

__all__ = ["int8_model_dir"]
ANN, BOB = Owner("acme", "ann"), Owner("acme", "bob")
OLD = utc_now().replace(microsecond=0) - timedelta(days=400)


class Place:
    def __init__(self, scratch: Path, models: Path) -> None:
        self.config, self.data = scratch / "config.yaml", scratch / "data"
        self.memory = {"embedding": {"models_dir": str(models)}, "milvus": {"shards": 1}}
        self.configure()

    def configure(self, **more: Any) -> None:
        self.config.write_text(yaml.safe_dump({"data_dir": str(self.data), "memory": self.memory, **more}))

    async def _with_store(self, rows: tuple[Memory, ...], owner: Owner, model: str) -> list[Memory]:
        settings, metrics = load(self.config, {}), Metrics(CollectorRegistry(), "test")
        self.data.mkdir(exist_ok=True)
        async with AsyncExitStack() as stack:
            embedder = await open_embedder(make_context(settings, stack))
            options = milvus_options(settings, self.data, model or embedder.fingerprint)
            store = MilvusStore(options, metrics, now=utc_now)
            stack.push_async_callback(store.close)
            await store.open()
            for row in rows:
                [vector] = await embedder.embed([row.content])
                given = np.roll(vector, 1) if model else vector
                await store.put(row.owner, [Embedded(replace(row, embed_model=options.fingerprint), given)])
            return [row.memory async for page in store.pages(owner, 100, fresh=True) for row in page]

    def put(self, *rows: Memory, model: str = "") -> None:
        asyncio.run(self._with_store(rows, ANN, model))

    def rows(self, owner: Owner = ANN) -> dict[str, Memory]:
        return {memory.content: memory for memory in asyncio.run(self._with_store((), owner, ""))}

    def run(self, *words: str) -> Result:
        return CliRunner().invoke(app, [*words, "--config", str(self.config)])

    def json(self, *words: str) -> Any:
        return json.loads(self.run(*words, "--json").stdout)


@pytest.fixture
def place(tmp_path: Path, int8_model_dir: Path) -> Place:
    return Place(tmp_path, int8_model_dir.parent)


def test_a_dry_run_says_what_a_run_does_and_who_has_too_many_loses_the_least(place: Place) -> None:
    place.configure(retention={"max_memories": 2, "prune_share": 0})
    worth = {"Has a cat.": 0.2, "Lives in Paris.": 0.9, "Allergic to nuts.": 0.8}
    place.put(*(a_memory(words, ANN, importance=much) for words, much in worth.items()))
    place.put(
        a_memory("Bob's own.", BOB, expires_at=OLD),
        a_memory("Long gone.", BOB, state=MemoryState.DELETED, updated_at=OLD),
    )
    foreseen = place.json("retention", "run", "--dry-run")
    assert (foreseen["callers"], foreseen["retired"], foreseen["erased"]) == (2, {"cap": 1, "expired": 1}, 1)
    assert all(row.state is MemoryState.ACTIVE for row in place.rows().values())
    shown = place.run("retention", "run", "--user", "ann", "--tenant", "acme")
    assert shown.exit_code == 0, shown.output
    assert "retired: cap" in shown.output
    assert {words for words, row in place.rows().items() if row.state is MemoryState.DELETED} == {"Has a cat."}
    assert place.json("retention", "run") == {**foreseen, "dry_run": False, "retired": {"expired": 1}}
    assert place.rows(BOB).keys() == {"Bob's own."}


def test_the_embedding_model_is_changed_by_taking_its_memories_over(place: Place) -> None:
    """The new model's collection has a name of its own; the old one serves until the last sidecar has left it."""
    place.put(a_memory("Lives in Paris.", ANN), a_memory("Bob's own.", BOB), model="another-model/fp32")
    refused = place.run("store", "check")
    assert refused.exit_code != 0
    place.memory = {**place.memory, "milvus": {"shards": 1, "collection": "second"}}
    place.configure()
    taken = place.json("store", "reembed", "--from", "agentic_memory")
    assert (taken["callers"], taken["memories"], taken["embedded"]) == (2, 2, 2)
    again = place.json("store", "reembed", "--from", "agentic_memory")
    assert again["embedded"] == 0
    checked = place.run("store", "check")
    assert checked.exit_code == 0, checked.output
    assert place.rows().keys() == {"Lives in Paris."}
    assert place.run("store", "reembed", "--from", "nowhere").exit_code != 0


def test_a_store_that_is_whole_is_said_to_be_and_its_file_can_be_compacted(place: Place) -> None:
    place.put(a_memory("Lives in Paris.", ANN))
    assert place.run("store", "check").exit_code == 0
    assert place.json("store", "reembed")["embedded"] == 0
    assert place.json("store", "compact") == {"compacted": True}
    assert place.rows().keys() == {"Lives in Paris."}


def test_beside_a_running_sidecar_on_a_file_the_commands_say_what_to_do(place: Place) -> None:
    place.put(a_memory("Lives in Paris.", ANN))
    with (place.data / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in (("retention", "run"), ("store", "check"), ("store", "reembed"), ("store", "compact")):
            shown = place.run(*command)
            assert shown.exit_code != 0
            assert "stop it first" in shown.output
