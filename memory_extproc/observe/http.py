"""The HTTP port for operators: /metrics, /healthz, /readyz, and documents."""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
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

log = logger(__name__)

_CONNECTIONS = 256  # at a time; enough for Prometheus, the kubelet and a few people
STALL = timedelta(seconds=10)

NotReady = Callable[[], str]  # why the sidecar is not ready; empty when it is. Called from another thread


class OperationsEndpoint(AbstractAsyncContextManager["OperationsEndpoint"]):
    """Serves /healthz, /readyz, /metrics and *documents* (JSON by path) on *host*:*port* while entered.

    With *port* 0 the system chooses a free port, which `port` holds afterwards. Entering raises ConfigurationError
    if the port is in use. It runs on its own thread, so that probes are answered while the event loop is busy.
    /healthz answers 503 when the event loop on which the endpoint was entered has not run for *stall*. /readyz
    answers 503 then too, and while *not_ready* gives a reason; the body has the lines of *states* as well. Neither
    depends on the store: without it requests pass unenriched. Metrics are collected on that event loop. Beyond
    *connections* the oldest connection is closed: a client that never finishes its request would hold it for ever.
    """

    def __init__(
        self,
        host: str,
        port: int,
        registry: CollectorRegistry,
        not_ready: NotReady,
        documents: Mapping[str, bytes] | None = None,
        *,
        states: Callable[[], tuple[str, ...]] = tuple,
        connections: int = _CONNECTIONS,
        stall: timedelta = STALL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._states = states
        self._connections, self._stall, self._clock = connections, stall, clock
        self._host, self.port, self._registry, self._not_ready = host, port, registry, not_ready
        self._documents = documents or {}
        self._runner: web.AppRunner
        self._watched: asyncio.AbstractEventLoop  # the loop whose heartbeat is checked
        self._own: asyncio.AbstractEventLoop  # the loop that answers
        self._beat = clock()
        self._beating: asyncio.Task[None] | None = None
        self._leaves: asyncio.Event
        self._thread: threading.Thread

    async def __aenter__(self) -> Self:
        self._watched = asyncio.get_running_loop()
        self._beat = self._clock()
        listens: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(listens,), name="operations", daemon=True)
        self._thread.start()
        await asyncio.wrap_future(listens)
        self._beating = asyncio.create_task(self._beats(), name="heartbeat")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._beating is not None:
            self._beating.cancel()
        self._own.call_soon_threadsafe(self._leaves.set)
        await asyncio.to_thread(self._thread.join)

    async def _beats(self) -> None:
        while True:
            self._beat = self._clock()
            await asyncio.sleep(self._stall.total_seconds() / 10)

    def _run(self, listens: Future[None]) -> None:
        try:
            asyncio.run(self._serve(listens))
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            if listens.done():
                log.error("operations.failed", kind=type(error).__name__)  # noqa: TRY400 - as everywhere here
            else:
                listens.set_exception(error)

    async def _serve(self, listens: Future[None]) -> None:
        self._own, self._leaves = asyncio.get_running_loop(), asyncio.Event()
        application = web.Application()
        application.router.add_get("/metrics", self._metrics)
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/readyz", self._readyz)
        for path, body in self._documents.items():
            application.router.add_get(path, _answering(body))
        self._runner = web.AppRunner(application, access_log=None, handle_signals=False)
        await self._runner.setup()
        try:
            try:
                listening = await self._own.create_server(self._make_connection, self._host, self.port)
            except OSError as error:
                said = os.strerror(error.errno) if error.errno else "no such address"
                raise ConfigurationError(
                    [f"listen.http: cannot listen on {self._host}:{self.port}: {said.lower()}"]
                ) from error
            self.port = listening.sockets[0].getsockname()[1]
            listens.set_result(None)
            await self._leaves.wait()
            listening.close()
        finally:
            await self._runner.cleanup()

    def _make_connection(self) -> asyncio.Protocol:
        server = cast("web.Server", self._runner.server)  # it is there from setup to cleanup
        open_ones = [one for one in server.connections if one.transport is not None]
        # Several, if several connections arrived at once: a connection counts only after this call.
        for oldest in open_ones[: max(0, len(open_ones) - self._connections + 1)]:
            oldest.force_close()
        return server()

    async def _metrics(self, request: web.Request) -> web.Response:
        """OpenMetrics for clients that accept it, such as Prometheus: the plain format has no exemplars."""
        accepts = _accepts_openmetrics(request.headers.get("accept", ""))
        # On the loop that writes the metrics, so that no gauge changes during the read.
        collecting = asyncio.run_coroutine_threadsafe(self._collect(openmetrics_too=accepts), self._watched)
        body = await asyncio.wrap_future(collecting)
        kind = openmetrics.CONTENT_TYPE_LATEST if accepts else CONTENT_TYPE_PLAIN_1_0_0
        return web.Response(body=body, headers={"content-type": kind})

    async def _collect(self, *, openmetrics_too: bool) -> bytes:
        if openmetrics_too:
            return openmetrics.generate_latest(self._registry)  # type: ignore[no-untyped-call, no-any-return]
        return generate_latest(self._registry)

    def _stall_reason(self) -> str:
        silent = timedelta(seconds=self._clock() - self._beat)
        if silent <= self._stall:
            return ""
        return f"the event loop has not run for {silent.total_seconds():.0f} s (health.stall)"

    async def _healthz(self, _: web.Request) -> web.Response:
        reason = self._stall_reason()
        return web.Response(text=f"{reason or 'ok'}\n", status=503 if reason else 200)

    async def _readyz(self, _: web.Request) -> web.Response:
        reason = self._stall_reason() or self._not_ready()
        lines = (reason or "ready", *self._states())
        return web.Response(text="".join(f"{line}\n" for line in lines), status=503 if reason else 200)


def _accepts_openmetrics(accept: str) -> bool:
    return any(each.partition(";")[0].strip() == "application/openmetrics-text" for each in accept.split(","))


def _answering(body: bytes) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type="application/json")

    return answer


# Expiry of the certificates in use, as a metric.


class CertificateExpiry:
    """Checks *cert* (PEM: the leaf and its chain) at each scrape of the metrics, and reads it again after a change,
    as the server does at a handshake."""

    def __init__(self, cert: Path) -> None:
        self._cert = cert
        self._seen: tuple[int, int] | None = None
        self._ends = math.nan

    def ends(self) -> float:
        """The earliest expiry in the file, in seconds since 1970. While a changed file is unreadable, the expiry of
        the former file, which the server still uses; NaN if the file was never readable."""
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
    """*port*: `ext_proc` or `api`."""
    expiry = CertificateExpiry(cert)
    metrics.certificate_expiry.labels(port).set_function(partial(CertificateExpiry.ends, expiry))
