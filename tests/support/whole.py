"""The whole sidecar in process (Milvus Lite, the real model, the real journal) behind the real Envoy."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from memory_extproc import app
from memory_extproc.concurrency import utc_now
from memory_extproc.settings import Settings, load
from tests.support.envoy import Answer, Envoy, Stand, Wiring
from tests.support.ports import free_port


class WholeStand(Stand):
    """Client, Envoy, the whole sidecar and an upstream. *changes* are configuration, as in config.yaml."""

    store_opens = True  # False: that it may not is what the tests are about

    def __init__(self, envoy: Envoy, scratch: Path, models: Path) -> None:
        super().__init__(envoy)
        self.changes: dict[str, Any] = {}
        self.now: Callable[[], datetime] = utc_now
        self.mounted: Path | None = None  # where the sidecar finds its configuration, if not where it is written
        self.whole: app.Sidecar
        self._scratch, self._models = scratch, models
        self._running = contextlib.AsyncExitStack()
        self._port = free_port()

    async def start(self, wiring: Wiring | None = None) -> None:
        await self._stack.enter_async_context(self.upstream)
        self._stack.push_async_callback(self.stop_sidecar)
        await self.start_sidecar()
        self._stack.push_async_callback(self.envoy.stop)
        await self.envoy.start(
            self.wired(wiring), sidecar=int(self.whole.ext_proc.rpartition(":")[2]), upstream=self.upstream.port
        )

    async def start_sidecar(self) -> None:
        settings = self.settings()
        source = app.ConfigurationSource(self.mounted or self.config, {})
        self.whole = await self._running.enter_async_context(app.sidecar(settings, now=self.now, source=source))
        if self.store_opens:
            await _store_opened()

    @property
    def config(self) -> Path:
        return self._scratch / "config.yaml"

    async def stop_sidecar(self) -> None:
        """Leaves as on SIGTERM: what was accepted is learned."""
        await self._running.aclose()

    async def restart(self) -> None:
        """The sidecar leaves and comes again on the same port, with the same data."""
        await self.stop_sidecar()
        await self.start_sidecar()

    def settings(self) -> Settings:
        configured: dict[str, Any] = {
            "data_dir": str(self._scratch / "data"),
            "memory": {"embedding": {"models_dir": str(self._models)}, "milvus": {"shards": 2}},
            # Envoy keeps it, so a sidecar that comes again does; an outgoing connection may have a port of chance.
            "listen": {
                "ext_proc": f"127.0.0.1:{self._port}",
                **dict.fromkeys(("api", "console", "http"), "127.0.0.1:0"),
            },
            # Only a busy machine takes so long to learn a turn: what the tests ask about was said just before.
            "recall": {"deadline": "8s", "settle": "6s"},
            "envoy": {"message_timeout": "12s", "health_interval": "1ms"},
            "shutdown": {"announce": "10ms", "grace": "5s", "flush": "20s"},
        }
        for name, value in self.changes.items():
            configured[name] = {**configured.get(name, {}), **value} if isinstance(value, dict) else value
        self.config.write_text(yaml.safe_dump(configured))
        return load(self.config, {})

    async def say(self, words: str, *, user: str = "ann", **headers: str) -> Answer:
        """One message of a new conversation."""
        return await self.chat(
            {"model": "demo", "messages": [{"role": "user", "content": words}]}, user=user, **headers
        )

    @property
    def shown(self) -> str:
        """The last user message as the model saw it."""
        return str(json.loads(self.upstream.got[-1].body)["messages"][-1]["content"])

    def sample(self, name: str, **labels: str) -> float:
        return self.whole.metrics.registry.get_sample_value(f"memory_extproc_{name}", labels) or 0.0

    @property
    def accepted(self) -> float:
        """Turns taken in: on disk in time or, on a busy machine, a little later."""
        return sum(self.sample("turns_total", outcome=outcome) for outcome in ("journalled", "journal_late"))

    async def http(self, path: str) -> tuple[int, str]:
        async with self.session.get(f"http://{self.whole.http}{path}") as answer:
            return answer.status, await answer.text()


async def _store_opened() -> None:
    """The sidecar's start waits for its store two seconds and no longer, which a busy machine does not keep."""
    opening = [task for task in asyncio.all_tasks() if task.get_name() == "store opener"]
    if opening:
        _, late = await asyncio.wait(opening, timeout=60)
        assert not late, "waited 60 s in vain until the store is open"


@pytest.fixture
async def whole(envoy_binary: Path, int8_model_dir: Path, tmp_path: Path) -> AsyncIterator[WholeStand]:
    envoy = Envoy(envoy_binary, tmp_path)
    try:
        async with WholeStand(envoy, tmp_path, int8_model_dir.parent) as made:
            yield made
    finally:
        sys.stderr.write(envoy.log[-4000:])
