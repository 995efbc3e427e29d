"""One Envoy with a listener for each way to the upstream, alike in everything but the ext_proc filter."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.lines import ChildFailedError, end, tail
from memory_extproc.extproc.observer import HANDED

ENVOY = Path(os.environ.get("MEMORY_EXTPROC_ENVOY", ".tools/envoy/envoy/_bin/envoy"))
REQUEST_BYTES = 4 * 2**20  # limits.request_body
STARTS_WITHIN = 30.0  # seconds
TWO_FILTERS = "two filters"  # the way over two filters of ours
IN_PIECES = "full duplex"  # the way on which Envoy hands both bodies over in pieces and keeps no copy
Servers = int | tuple[int, ...] | None
_TYPES = "type.googleapis.com/envoy.extensions"


def free_ports(count: int) -> list[int]:
    """All different: they are held until the last one is found."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def _cluster(name: str, *ports: int, http2: bool) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "circuit_breakers": {"thresholds": [{"max_requests": 10_000, "max_connections": 10_000}]},
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _address(port)}} for port in ports]}],
        },
    }
    if http2:
        made["typed_extension_protocol_options"] = {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": f"{_TYPES}.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {"http2_protocol_options": {}},
            }
        }
    return made


def _ext_proc(cluster: str) -> dict[str, Any]:
    """As `memory-extproc envoy-config` has it, but failing closed: a fault here must not look like speed."""
    return {
        "name": "memory",
        "typed_config": {
            "@type": f"{_TYPES}.filters.http.ext_proc.v3.ExternalProcessor",
            "grpc_service": {"envoy_grpc": {"cluster_name": cluster}},
            "failure_mode_allow": False,
            "message_timeout": "5s",
            "request_attributes": ["request.time"],
            "processing_mode": {
                "request_header_mode": "SEND",
                "response_header_mode": "SEND",
                "request_body_mode": "BUFFERED",
                "response_body_mode": "STREAMED",
                "request_trailer_mode": "SKIP",
                "response_trailer_mode": "SKIP",
            },
        },
    }


def _two(cluster: str) -> list[dict[str, Any]]:
    """As with `envoy.two_filters`: one watches, the other changes the request and sees no body of an answer."""
    watching, changing = _ext_proc(cluster), _ext_proc(cluster)
    config = watching["typed_config"]
    watching["name"] = "memory_observer"
    config |= {"observability_mode": True, "deferred_close_timeout": "1s"}
    config["processing_mode"] |= {"request_body_mode": "STREAMED", "response_trailer_mode": "SEND"}
    config["metadata_options"] = {"forwarding_namespaces": {"untyped": [HANDED]}}
    changing["typed_config"]["processing_mode"]["response_body_mode"] = "NONE"
    changing["typed_config"]["metadata_options"] = {"receiving_namespaces": {"untyped": [HANDED]}}
    return [watching, changing]


def _in_pieces(cluster: str) -> dict[str, Any]:
    made = _ext_proc(cluster)
    bodies = dict.fromkeys(("request_body_mode", "response_body_mode"), "FULL_DUPLEX_STREAMED")
    trailers = dict.fromkeys(("request_trailer_mode", "response_trailer_mode"), "SEND")
    made["typed_config"]["processing_mode"] |= bodies | trailers
    return made


def _filters(way: str, cluster: str | None) -> list[dict[str, Any]]:
    if cluster is None:
        return []
    if way == IN_PIECES:
        return [_in_pieces(cluster)]
    return _two(cluster) if way == TWO_FILTERS else [_ext_proc(cluster)]


def _listener(name: str, port: int, ext_proc: str | None) -> dict[str, Any]:
    router = {
        "name": "envoy.filters.http.router",
        "typed_config": {"@type": f"{_TYPES}.filters.http.router.v3.Router"},
    }
    route = {"match": {"prefix": "/"}, "route": {"cluster": "upstream", "timeout": "0s"}}
    manager = {
        "@type": f"{_TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": name,
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [*_filters(name, ext_proc), router],
    }
    filters = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    return {
        "name": name,
        "address": _address(port),
        "per_connection_buffer_limit_bytes": 2 * REQUEST_BYTES,
        "filter_chains": [{"filters": filters}],
    }


def bootstrap(upstream: int, ways: Mapping[str, Servers], ports: Mapping[str, int], admin: int) -> dict[str, Any]:
    """*ways*: the port of each way's ext_proc server or of several alike, None for the plain route; *ports*: of its
    listener."""
    servers = {name: (at,) if isinstance(at, int) else at for name, at in ways.items() if at is not None}
    return {
        "admin": {"address": _address(admin)},
        "static_resources": {
            "listeners": [_listener(name, ports[name], name if name in servers else None) for name in ways],
            "clusters": [
                _cluster("upstream", upstream, http2=False),
                *(_cluster(name, *at, http2=True) for name, at in servers.items()),
            ],
        },
    }


@contextlib.asynccontextmanager
async def gateway(
    upstream: int, ways: Mapping[str, Servers], scratch: Path, *, fails_open: bool = False
) -> AsyncIterator[Mapping[str, int]]:
    """The port of each way's listener, while entered. *fails_open*: as in production, which hides faults."""
    admin, *front = free_ports(len(ways) + 1)
    ports = dict(zip(ways, front, strict=True))
    config, log = scratch / f"envoy-{admin}.json", scratch / f"envoy-{admin}.log"
    written = json.dumps(bootstrap(upstream, ways, ports, admin))
    if fails_open:
        written = written.replace('"failure_mode_allow": false', '"failure_mode_allow": true')
    config.write_text(written)
    options = ["--concurrency", "1", "--disable-hot-restart", "-l", "warning"]
    with log.open("ab") as out:
        process = await asyncio.create_subprocess_exec(
            *(str(ENVOY), "-c", str(config), *options), stdout=out, stderr=out
        )
    try:
        await answering(f"http://127.0.0.1:{admin}/ready", process, log)
        yield ports
    finally:
        await end(process, ask=signal.SIGTERM)


async def answering(url: str, process: asyncio.subprocess.Process, log: Path) -> float:
    """Waits until *url* answers 200; the time.monotonic() at which it did. ChildFailedError if it never does."""
    reason: object = "not asked yet"
    try:
        async with asyncio.timeout(STARTS_WITHIN), aiohttp.ClientSession() as session:
            while process.returncode is None:
                try:
                    async with session.get(url) as answer:
                        if answer.status == 200:
                            return time.monotonic()
                        reason = answer.status
                except aiohttp.ClientError as error:
                    reason = error
                await asyncio.sleep(0.005)
        reason = f"ended with {process.returncode}"
    except TimeoutError:
        pass
    raise ChildFailedError(f"{url} never answered 200: {reason}\n{tail(log)}")
