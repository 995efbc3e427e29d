"""A real Redis of a test's own that loses its data, and replicas on it."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prometheus_client import CollectorRegistry

from memory_extproc.app.context import AppContext, make_context
from memory_extproc.app.coordination import ErasureParts, open_erasing, open_link
from memory_extproc.coordination.redis_client import RedisLink
from memory_extproc.coordination.replicas import RedisReplicas
from memory_extproc.model import LedgerJob, Owner
from memory_extproc.observe.metrics import Metrics
from memory_extproc.settings import Settings, load
from tests.support.in_memory import InMemoryMirror
from tests.support.ports import free_port
from tests.support.redis import RedisServer, start_redis, stop_redis
from tests.support.waiting import until


@dataclass
class Replica:
    """What of a sidecar knows of forgets and consent, on a data directory."""

    data: Path
    settings: Settings
    shared: InMemoryMirror | None
    metrics: Metrics = field(default_factory=lambda: Metrics(CollectorRegistry(), "test"))
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    link: RedisLink = field(init=False)
    erasing: ErasureParts = field(init=False)

    async def open(self) -> AppContext:
        context = make_context(self.settings, self.stack, self.metrics, data=self.data)
        link = await open_link(context)
        assert link is not None
        self.link = link
        self.erasing = await open_erasing(context, link, shared=self.shared, wraps=None)
        return context

    async def start(self) -> None:
        await self.open()
        assert self.erasing.fleet is not None
        await self.stack.enter_async_context(self.erasing.fleet.recovery)
        await self.stack.enter_async_context(self.erasing.replicas)  # type: ignore[arg-type]

    async def stop(self) -> None:
        await self.stack.aclose()
        self.stack = AsyncExitStack()
        self.metrics = Metrics(CollectorRegistry(), "test")

    async def again(self) -> None:
        await self.stop()
        await self.start()

    async def renew(self) -> None:
        assert isinstance(self.erasing.replicas, RedisReplicas)
        await self.erasing.replicas.renew()

    async def try_again(self) -> None:
        """What the recovery does once a second."""
        assert self.erasing.fleet is not None
        await self.erasing.fleet.recovery._try()

    @property
    def serves(self) -> bool:
        return self.erasing.replicas.holds()

    async def subject(self, owner: Owner) -> str:
        return (await self.erasing.forgotten.blind()).subject(owner)

    async def forget(self, owner: Owner, number: int = 1, *, done: bool = True) -> None:
        job = LedgerJob(f"{number:032x}", await self.subject(owner), b"{}", shut=not done, open=not done)
        await self.erasing.ledger.write(job, cut=b'[%d.0,"","",[],null]' % number, items=[b"i" * 16], at=number)

    async def knows(self, owner: Owner) -> bool:
        """TransientError while it cannot be known."""
        return bool(await self.erasing.forgotten.of(owner))

    def consent(self) -> Any:
        assert self.erasing.fleet is not None
        return self.erasing.fleet.consent

    def sample(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"memory_extproc_{name}", labels) or 0.0


@dataclass
class Place:
    """A Redis of the test's own, and replicas on it."""

    scratch: Path
    stack: AsyncExitStack
    server: RedisServer
    shared: InMemoryMirror | None = field(default_factory=InMemoryMirror)
    prefix: str = field(default_factory=lambda: uuid4().hex)

    async def replica(self, name: str) -> Replica:
        data = self.scratch / name
        data.mkdir()
        config = self.scratch / f"{name}.yaml"
        url = f'{{"url": "{self.server.url}", "prefix": "{self.prefix}", "timeout": "200ms", "lease": "1s"}}'
        config.write_text(f'{{"data_dir": "{data}", "coordination": {url}}}')
        made = Replica(data, load(config, {}), self.shared)
        await made.start()
        self.stack.push_async_callback(made.stop)
        return made

    async def wipe(self, replica: Replica) -> None:
        await replica.link.client.flushall()

    def exchange(self, *, keeping: Path | None = None) -> None:
        """Another server on the same port, with what *keeping* holds or with nothing."""
        stop_redis(self.server)
        directory = self.scratch / uuid4().hex
        if keeping is None:
            directory.mkdir()
        else:
            shutil.copytree(keeping, directory)
        self.server = start_redis(directory, lasting=True, port=self.server.port)

    @property
    def files(self) -> Path:
        return self.server.directory


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    directory = tmp_path / "redis"
    directory.mkdir()
    async with AsyncExitStack() as stack:
        made = Place(tmp_path, stack, start_redis(directory, lasting=True, port=free_port()))
        try:
            yield made
            await stack.aclose()
        finally:
            stop_redis(made.server)


async def serving(*replicas: Replica) -> None:
    await until(lambda: all(one.serves for one in replicas), "they serve", seconds=60)
