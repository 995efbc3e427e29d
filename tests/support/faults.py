"""The whole sidecar behind the real Envoy, with what it stands on in a test's hands: a link to Milvus that can
stall or break, endpoints that fail, and every log line kept. A test fails when a person's words are in one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self
from zlib import crc32

import numpy as np
import pytest
import structlog.testing
import yaml

from memory_extproc import app
from memory_extproc.model import Owner, Scope
from memory_extproc.settings import Settings, load
from tests.support.endpoint import Reply, StandIn
from tests.support.envoy import Answer, Envoy, Wiring
from tests.support.milvus_server import Process, lite_server
from tests.support.ports import free_port
from tests.support.whole import WholeStand

USER = "annabel.lee@example.com"
BUDGET = "My budget for the Hawaii trip is $10,000."
ASKED = "What's my budget for the Hawaii trip?"
# In what is said, answered or asked by anybody in these tests; never to be in a log line.
PRIVATE = ("annabel", "Hawaii", "10,000", "Wailea")


class Logs:
    """What was logged, by the sidecar in this process and by the libraries it uses."""

    def __init__(self, entries: Sequence[Mapping[str, Any]], caplog: pytest.LogCaptureFixture) -> None:
        self._entries, self._caplog = entries, caplog

    def of(self, event: str) -> list[Mapping[str, Any]]:
        return [entry for entry in self._entries if entry["event"] == event]

    def said(self, event: str) -> bool:
        return bool(self.of(event))

    @property
    def text(self) -> str:
        return "\n".join([*map(repr, self._entries), self._caplog.text])


class Link:
    """A TCP connection between two parties, to be slowed, stalled (nothing arrives) or cut (nobody listens)."""

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self.delay = 0.0  # seconds before each piece is passed on
        self._target = target
        self._flows = asyncio.Event()
        self._flows.set()
        self._server: asyncio.Server | None = None
        self._mending = asyncio.Lock()
        self._ends: set[asyncio.StreamWriter] = set()
        self._carriers: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.mend()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cut()

    def stall(self) -> None:
        self._flows.clear()

    async def mend(self) -> None:
        self.delay = 0.0
        self._flows.set()
        async with self._mending:  # two faults may end at once
            if self._server is None:
                self._server = await asyncio.start_server(self._joined, "127.0.0.1", self.port)

    async def cut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for carrier in list(self._carriers):
            carrier.cancel()
        await asyncio.gather(*self._carriers, return_exceptions=True)

    async def _joined(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        own = asyncio.current_task()
        assert own is not None
        self._carriers.add(own)
        ends = [writer]
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
            ends.append(far_writer)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._carry(reader, far_writer))
                group.create_task(self._carry(far_reader, writer))
        except (OSError, ExceptionGroup):
            pass  # one of the two left: the other is let go below
        except asyncio.CancelledError:
            pass  # cut; a handler that ends cancelled would be reported by asyncio
        finally:
            self._carriers.discard(own)
            for end in ends:
                end.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65_536):
            await asyncio.sleep(self.delay)
            await self._flows.wait()
            writer.write(piece)
            await writer.drain()
        raise ConnectionResetError("the sender has left")


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """*one* with *other* over it, mapping by mapping."""
    both = dict(one)
    for name, value in other.items():
        before = both.get(name)
        both[name] = merged(before, value) if isinstance(value, Mapping) and isinstance(before, Mapping) else value
    return both


class FaultStand(WholeStand):
    """A WholeStand that is quick to give up, with its log lines."""

    store_opens = False

    def __init__(self, envoy: Envoy, scratch: Path, models: Path, logs: Logs) -> None:
        super().__init__(envoy, scratch, models)
        self.logs = logs

    def change(self, **changes: Any) -> None:
        """Configuration over what was configured, as in config.yaml."""
        self.changes = merged(self.changes, changes)

    def settings(self) -> Settings:
        own = {"ext_proc": f"127.0.0.1:{self._port}"}
        return self.configured(self._scratch / "config.yaml", self._scratch / "data", listen=own)

    def configured(self, path: Path, data: Path, **changes: Any) -> Settings:
        """Settings by way of a file at *path*."""
        base: dict[str, Any] = {
            "data_dir": str(data),
            "memory": {
                "embedding": {"models_dir": str(self._models)},
                "milvus": {"shards": 1, "timeout": "300ms"},
            },
            "listen": {
                "ext_proc": "127.0.0.1:0",
                "api": "127.0.0.1:0",
                "console": "127.0.0.1:0",
                "http": "127.0.0.1:0",
            },
            "recall": {"deadline": "1s", "settle": "300ms"},
            "envoy": {"message_timeout": "2s", "health_interval": "1ms"},
            "shutdown": {"announce": "10ms", "grace": "5s", "flush": "6s"},
        }
        path.write_text(yaml.safe_dump(merged(merged(base, self.changes), changes)))
        return load(path, {})

    async def start_around(self, *sidecars: int, wiring: Wiring | None = None) -> None:
        """Upstream and Envoy, around sidecars that the test runs itself."""
        await self._stack.enter_async_context(self.upstream)
        self._stack.push_async_callback(self.envoy.stop)
        first, *others = sidecars
        wiring = replace(wiring or Wiring(), others=tuple(others))
        await self.envoy.start(wiring, sidecar=first, upstream=self.upstream.port)

    @property
    def data(self) -> Path:
        return self._scratch / "data"

    @property
    def scratch(self) -> Path:
        return self._scratch

    async def say(self, words: str, *, user: str = USER, **headers: str) -> Answer:
        return await super().say(words, user=user, **headers)

    @contextlib.asynccontextmanager
    async def another(self, name: str, **changes: Any) -> AsyncIterator[app.Sidecar]:
        """A sidecar beside the first, with data of its own."""
        settings = self.configured(self._scratch / f"{name}.yaml", self._scratch / name, **changes)
        async with app.sidecar(settings) as running:
            yield running

    async def memories(self, user: str = USER, sidecar: app.Sidecar | None = None) -> list[str]:
        """What *sidecar* knows of *user*, in words."""
        anywhere = np.full(384, 384**-0.5, dtype=np.float32)
        searched = await (sidecar or self.whole).partitions.nearest(Owner("", user), anywhere, 1000, Scope())
        return [found.memory.content for found in searched.found]

    def exchanges(self, outcome: str, dialect: str = "chat_completions") -> float:
        return self.sample("exchanges_total", dialect=dialect, outcome=outcome)

    def turns(self, outcome: str) -> float:
        return self.sample("turns_total", outcome=outcome)

    @property
    def journalled(self) -> float:
        """Turns that reached the journal: on a busy machine some of them later than an answer may wait."""
        return self.turns("journalled") + self.turns("journal_late")

    @property
    def kept(self) -> float:
        """Messages of the caller that rest in the store."""
        return self.sample("remembered_total", role="user", decision="kept")


def a_model(stand_in: StandIn, role: str = "memory_extraction", **more: Any) -> dict[str, Any]:
    """An entry of external_models."""
    host, port = stand_in.base_url.removeprefix("http://").removesuffix("/v1").split(":")
    endpoint = {"address": host, "port": int(port)}
    return {"model_role": role, "llm_endpoint": endpoint, "llm_model_name": "m", "llm_timeout_seconds": 1, **more}


def embeddings(dimension: int) -> Callable[[Mapping[str, Any]], Reply]:
    """An endpoint that gives every text a vector of its own: texts are alike when they are the same."""

    def reply(request: Mapping[str, Any]) -> Reply:
        texts = request["input"]
        vectors = [np.random.default_rng(crc32(text.encode())).normal(size=dimension).tolist() for text in texts]
        rows = [{"index": at, "embedding": vector} for at, vector in enumerate(vectors)]
        return Reply(json.dumps({"object": "list", "model": "m", "data": rows}))

    return reply


@pytest.fixture
async def faulty(
    envoy_binary: Path, int8_model_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> AsyncIterator[FaultStand]:
    envoy = Envoy(envoy_binary, tmp_path)
    with structlog.testing.capture_logs() as entries:
        logs = Logs(entries, caplog)
        try:
            async with FaultStand(envoy, tmp_path, int8_model_dir.parent, logs) as made:
                yield made
        finally:
            sys.stderr.write("\n".join([*map(repr, entries), envoy.log[-4000:]]))
    told = [word for word in PRIVATE if word in logs.text]
    assert not told, f"a person's words were logged: {told}"


@pytest.fixture(scope="session")
def milvus_lite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """One `milvus-lite server` for all tests; each takes a collection of its own."""
    with lite_server(tmp_path_factory.mktemp("milvus-lite")) as process:
        yield process


@pytest.fixture
async def link(milvus_lite: Process) -> AsyncIterator[Link]:
    """The way to that server."""
    async with Link(int(milvus_lite.address.rpartition(":")[2])) as made:
        yield made
