"""The schema of a new collection by the server's version, and beside another replica: what is not at hand is
at least asked rightly."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from pymilvus import MilvusException

from memory_extproc.concurrency import Breaker, BreakerLimits
from memory_extproc.errors import UnknownFaultError
from memory_extproc.observe.metrics import Metrics
from memory_extproc.settings.memory import Milvus
from memory_extproc.store.milvus.calls import Calls
from memory_extproc.store.milvus.client import AsyncMilvusClient
from memory_extproc.store.milvus.connect import Capabilities, Opening
from memory_extproc.store.milvus.options import MilvusOptions


class Server:
    """Remembers what it was told, as a Milvus of *version* does: an old one drops functions silently."""

    prepare_index_params = staticmethod(AsyncMilvusClient.prepare_index_params)

    def __init__(self, version: str, indexes: tuple[str, ...] = ()) -> None:
        self.version, self.knows_words = version, Capabilities.of(version).full_text
        self.collections: dict[str, dict[str, Any]] = {}
        self.indexes = list(indexes)
        self.asked: list[dict[str, Any]] = []

    async def get_server_version(self, **_: object) -> str:
        return self.version

    async def has_collection(self, name: str, **_: object) -> bool:
        return name in self.collections

    async def create_collection(self, name: str, *, schema: Any, properties: Any, **_: object) -> None:
        told = schema.to_dict()
        self.collections[name] = {
            "collection_name": name,
            "properties": properties,
            "fields": told["fields"],
            "functions": told.get("functions", []) if self.knows_words else [],
        }

    async def describe_collection(self, name: str, **_: object) -> dict[str, Any]:
        return self.collections[name]

    async def create_alias(self, physical: str, alias: str, **_: object) -> None:
        self.collections[alias] = self.collections[physical]

    async def list_indexes(self, name: str, **_: object) -> list[str]:
        return self.indexes

    async def create_index(self, name: str, parameters: Any, **_: object) -> None:
        for one in parameters:
            self.asked.append(one.to_dict())
            self.indexes.append(one.index_name or one.field_name)


def opening(server: Server, *, full_text: bool = True) -> Opening:
    options = MilvusOptions(
        section=Milvus(collection="m", dimension=8, address="milvus:1", full_text=full_text), fingerprint="f"
    )
    breaker = Breaker(BreakerLimits(3, timedelta(seconds=1)), lambda: 0.0)
    calls = Calls(breaker, Metrics(CollectorRegistry(), "test"), lambda: 0.0)
    return Opening(server, options, calls)


@pytest.mark.parametrize(
    ("version", "full_text", "words"),
    [("v2.5.4", True, True), ("2.6.0", True, True), ("v2.5.4", False, False), ("v2.4.9", True, False)],
)
async def test_a_server_that_knows_words_gets_both_indexes(version: str, full_text: bool, words: bool) -> None:
    server = Server(version)
    opened = opening(server, full_text=full_text)
    placement = await opened.place(await opened.capabilities())
    assert placement.words is words
    wanted = {"embedding": "COSINE"} | ({"words": "BM25"} if words else {})
    assert {one["field_name"]: one["metric_type"] for one in server.asked} == wanted


async def test_an_index_that_is_missing_is_made_and_one_that_is_there_is_left() -> None:
    server = Server("v2.5.4")
    opened = opening(server)
    await opened.place(await opened.capabilities())
    server.indexes, server.asked = ["_default_idx_123"], []
    await opened.place(await opened.capabilities())
    assert [one["field_name"] for one in server.asked] == ["words"]
    server.indexes, server.asked = ["words"], []
    await opened.place(await opened.capabilities())
    assert [one["field_name"] for one in server.asked] == ["embedding"]


class BeingMade(Server):
    """Another replica makes what we ask for: we are refused at once, and see it only some looks later."""

    def __init__(self, unseen: int) -> None:
        super().__init__("v2.5.4")
        self.unseen = unseen

    async def has_collection(self, name: str, **_: object) -> bool:
        there = await super().has_collection(name)
        if there and self.unseen:
            self.unseen -= 1
            return False
        return there

    async def create_collection(self, name: str, **more: Any) -> None:
        await super().create_collection(name, **more)
        raise MilvusException(message="File exists")


async def test_what_another_replica_is_making_is_waited_for() -> None:
    server = BeingMade(unseen=3)
    opened = opening(server)
    assert (await opened.place(await opened.capabilities())).words
    assert server.unseen == 0


async def test_a_collection_that_is_refused_and_never_seen_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memory_extproc.store.milvus.connect._BETWEEN_LOOKS", 0)
    opened = opening(BeingMade(unseen=1_000))
    with pytest.raises(UnknownFaultError):
        await opened.place(await opened.capabilities())


async def test_a_function_that_a_server_dropped_is_not_relied_on() -> None:
    server = Server("v2.5.4")
    server.knows_words = False
    opened = opening(server)
    assert not (await opened.place(await opened.capabilities())).words
