"""The whole sidecar behind the Envoy configuration that `envoy-config` writes: chats, and the memory API."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from memory_extproc.envoyconfig.manifests import Shape, render
from memory_extproc.envoyconfig.options import EnvoyOptions, IdentityMode, RestRoute, Upstream
from memory_extproc.settings import Settings
from memory_extproc.settings.traffic import EnvoySection
from tests.support.envoy import Answer, Envoy, Wiring
from tests.support.ports import free_port
from tests.support.waiting import until
from tests.support.whole import WholeStand

USER, TENANT = "x-authz-user-id", "x-authz-tenant-id"


class RestStand(WholeStand):
    """Client, Envoy with our configuration, the whole sidecar and an upstream."""

    def __init__(self, envoy: Envoy, scratch: Path, models: Path) -> None:
        super().__init__(envoy, scratch, models)
        self.options = EnvoyOptions(
            sidecar="",
            upstream=Upstream("", 0, tls=False),
            listen=("127.0.0.1", 0),
            admin_port=0,
            identity=IdentityMode.TRUST,
            settings=Settings(
                envoy=EnvoySection(
                    message_timeout=timedelta(seconds=12), health_interval=timedelta(milliseconds=200)
                )
            ),
        )

    async def start(self, wiring: Wiring | None = None) -> None:
        await self._stack.enter_async_context(self.upstream)
        self._stack.push_async_callback(self.stop_sidecar)
        await self.start_sidecar()
        self._stack.push_async_callback(self.envoy.stop)
        self.envoy.front, self.envoy.admin = free_port(), free_port()
        self.options = replace(
            self.options,
            sidecar=self.whole.ext_proc,
            upstream=Upstream("127.0.0.1", self.upstream.port, tls=False),
            listen=("127.0.0.1", self.envoy.front),
            admin_port=self.envoy.admin,
            rest=RestRoute(self.whole.console, page=True),
        )
        configured = yaml.safe_load(render(self.options, Shape.BOOTSTRAP))
        listener = configured["static_resources"]["listeners"][0]
        manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        manager["http_filters"][:0] = [] if wiring is None else wiring.before_us
        await self.envoy.launch(yaml.safe_dump(configured))
        await until(lambda: self.envoy.healthy("memory_extproc"), "the sidecar is healthy")

    async def rest(self, method: str, path: str, body: Any = None, *, user: str = "ann", **headers: str) -> Rest:
        """A call of the memory API over HTTP; header names are written with _ for -."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if user:
            sent[USER] = user
        more = {} if body is None else {"json": body}
        return Rest(await self.send(method, path, headers=sent, **more))


class Rest:
    def __init__(self, answer: Answer) -> None:
        self.status, self.headers, self._body = answer.status, answer.headers, answer.body

    @property
    def text(self) -> str:
        return self._body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self._body)

    @property
    def lines(self) -> list[Any]:
        """Of a stream: JSON Lines."""
        return [json.loads(line) for line in self._body.splitlines() if line.strip()]


@pytest.fixture
async def rest(envoy_binary: Path, int8_model_dir: Path, tmp_path: Path) -> AsyncIterator[RestStand]:
    envoy = Envoy(envoy_binary, tmp_path)
    try:
        async with RestStand(envoy, tmp_path, int8_model_dir.parent) as made:
            yield made
    finally:
        sys.stderr.write(envoy.log[-4000:])
