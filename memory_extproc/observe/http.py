"""The HTTP port for operators: /metrics, /healthz, /readyz, and documents."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, cast

from aiohttp import web
from cryptography import x509
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_1_0_0
from prometheus_client.openmetrics import exposition as openmetrics

from memory_extproc.errors import ConfigurationError
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics

_CONNECTIONS = 256  # at a time; Prometheus, a kubelet and a few people need some of them

NotReady = Callable[[], str]  # why the sidecar is not ready; empty when it is


class OperationsEndpoint(AbstractAsyncContextManager["OperationsEndpoint"]):
    """Serves on *host*:*port* while entered; *port* 0 takes a free one, told by `port` afterwards.

    /healthz answers 200 as long as the process can answer at all. /readyz answers 503 with the reason while
    *not_ready* gives one. Neither asks for the store: without it requests go on unenriched. *documents* are JSON,
    by path. Entering it raises ConfigurationError where that port cannot be had. Of more than *connections* the
    oldest is closed: one that never finishes its request would stay for ever, and the process has only so many.
    """

    def __init__(
        self,
        host: str,
        port: int,
        registry: CollectorRegistry,
        not_ready: NotReady,
        documents: Mapping[str, bytes] | None = None,
        *,
        connections: int = _CONNECTIONS,
    ) -> None:
        self._connections = connections
        self._host, self.port, self._registry, self._not_ready = host, port, registry, not_ready
        application = web.Application()
        application.router.add_get("/metrics", self._metrics)
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/readyz", self._readyz)
        for path, body in (documents or {}).items():
            application.router.add_get(path, _answering(body))
        self._runner = web.AppRunner(application, access_log=None, handle_signals=False)
        self._listening: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        try:
            loop = asyncio.get_running_loop()
            self._listening = await loop.create_server(self._connected, self._host, self.port)
        except OSError as error:
            await self._runner.cleanup()
            said = os.strerror(error.errno) if error.errno else "no such address"
            raise ConfigurationError(
                [f"listen.http: cannot listen on {self._host}:{self.port}: {said.lower()}"]
            ) from error
        self.port = self._listening.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._listening is not None:
            self._listening.close()
        await self._runner.cleanup()

    def _connected(self) -> asyncio.Protocol:
        server = cast("web.Server", self._runner.server)  # it is there from setup to cleanup
        open_ones = [one for one in server.connections if one.transport is not None]
        # More than one where several came at once: each counts from when it is made, which is later than this.
        for oldest in open_ones[: max(0, len(open_ones) - self._connections + 1)]:
            oldest.force_close()
        return server()

    async def _metrics(self, request: web.Request) -> web.Response:
        """OpenMetrics to who accepts it (Prometheus does): only that can hold exemplars."""
        if _accepts_openmetrics(request.headers.get("accept", "")):
            return web.Response(
                body=openmetrics.generate_latest(self._registry),  # type: ignore[no-untyped-call]
                headers={"content-type": openmetrics.CONTENT_TYPE_LATEST},
            )
        body = generate_latest(self._registry)
        return web.Response(body=body, headers={"content-type": CONTENT_TYPE_PLAIN_1_0_0})

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        reason = self._not_ready()
        return web.Response(text=f"{reason or 'ready'}\n", status=503 if reason else 200)


def _accepts_openmetrics(accept: str) -> bool:
    return any(each.partition(";")[0].strip() == "application/openmetrics-text" for each in accept.split(","))


def _answering(body: bytes) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type="application/json")

    return answer


# --- certificates ------------------------------------------------------------------------------------
# When the certificates in use end, as a metric.

log = logger(__name__)


class CertificateExpiry:
    """Looks at *cert* (PEM, the leaf with what signed it) whenever the metrics are asked for, and reads it again
    when it has changed: as the server does at a handshake."""

    def __init__(self, cert: Path) -> None:
        self._cert = cert
        self._seen: tuple[int, int] | None = None
        self._ends = math.nan

    def ends(self) -> float:
        """The end of whatever in the file ends first, in seconds since 1970. While a changed file cannot be read,
        that of the one before, which the server uses too; NaN when none ever could."""
        try:
            stat = self._cert.stat()
            stamp = (stat.st_mtime_ns, stat.st_ino)
            if stamp != self._seen:
                chain = x509.load_pem_x509_certificates(self._cert.read_bytes())
                self._ends = min(each.not_valid_after_utc.timestamp() for each in chain)
                self._seen = stamp
        except (OSError, ValueError) as error:
            log.warning("tls.unreadable", kind=type(error).__name__)
        return self._ends


def watch_certificate(metrics: Metrics, port: str, cert: Path) -> None:
    """*port*: whose it is, `ext_proc` or `api`."""
    expiry = CertificateExpiry(cert)
    metrics.certificate_expiry.labels(port).set_function(partial(CertificateExpiry.ends, expiry))
