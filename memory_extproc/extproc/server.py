"""The gRPC server that Envoy speaks to: addresses, TLS, health, reflection, and how it comes to its end."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from memory_extproc.concurrency import contain_faults
from memory_extproc.errors import ConfigurationError, MemoryExtprocError
from memory_extproc.extproc.http2 import PlaintextServer
from memory_extproc.observe.log import logger

log = logger(__name__)

LIVENESS = "liveness"
READINESS = "readiness"
Server = grpc.aio.Server | PlaintextServer
Registers = Callable[[Any], None]  # adds a servicer to the server, of either kind


@dataclass(frozen=True, slots=True)
class ServerTls:
    """Files in PEM; read again when they change, so that certificates rotate without a restart."""

    cert: Path
    key: Path
    client_ca: Path | None = None  # set: a client must show a certificate that it signed


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    address: str  # host:port, port 0 for a free one, or unix:/path
    also: str = ""  # a second address
    tls: ServerTls | None = None
    drain_wait: timedelta = timedelta(seconds=5)  # from NOT_SERVING until Envoy has noticed it
    grace: timedelta = timedelta(seconds=60)  # for open streams to end after that
    channel: tuple[tuple[str, int], ...] = ()  # gRPC channel arguments
    light: bool = True  # without TLS, by `PlaintextServer`


class GrpcServer:
    """Serves within `async with`; leaving drains. Services are not ready before `set_ready(True)`."""

    def __init__(self, options: ServerOptions, services: Sequence[str], registers: Registers) -> None:
        """*services*: full names of the services that *registers* adds, for health and reflection."""
        self._options, self._services, self._registers = options, tuple(services), registers
        self._health = _Health()
        self._server = _make_server(options)
        self._draining = False
        self.port = 0  # the port in use while serving; 0 for a Unix socket

    @property
    def address(self) -> str:
        """The address with the port in use."""
        if self._options.address.startswith("unix:"):
            return self._options.address
        return f"{self._options.address.rpartition(':')[0]}:{self.port}"

    async def __aenter__(self) -> Self:
        self._registers(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (*self._services, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(
            reflection.aio.ReflectionServicer(names),  # type: ignore[attr-defined]  # set where asyncio is
            self._server,
        )
        self.port = self._bind()
        self._health.set(LIVENESS, health_pb2.HealthCheckResponse.SERVING)
        await self.set_ready(ready=False)
        await self._server.start()
        log.info("server.listening", address=self.address)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.drain()

    async def set_ready(self, *, ready: bool) -> None:
        """Set the health of "", readiness and the services; without effect while draining."""
        if self._draining:
            return
        self._say(health_pb2.HealthCheckResponse.SERVING if ready else _NOT_SERVING)

    async def drain(self) -> None:
        """Report NOT_SERVING, wait for Envoy to stop sending, then reject new streams and let open streams end.
        Liveness stays SERVING, so that a draining process is not killed."""
        if self._draining:
            return
        self._draining = True
        log.info("server.draining")
        self._say(_NOT_SERVING)
        await asyncio.sleep(self._options.drain_wait.total_seconds())
        self._health.close()
        await self._server.stop(self._options.grace.total_seconds())
        log.info("server.stopped")

    def _say(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for name in ("", READINESS, *self._services):
            self._health.set(name, status)

    def _bind(self) -> int:
        options, tls = self._options, self._options.tls
        try:
            credentials = None if tls is None else _credentials(tls)
        except OSError as error:
            raise ConfigurationError(
                [f"listen: the certificate for {options.address} cannot be used: {error.strerror or error}"]
            ) from error
        ports = [self._listen_on(address, credentials) for address in (options.address, options.also) if address]
        return ports[0]

    def _listen_on(self, address: str, credentials: grpc.ServerCredentials | None) -> int:
        try:
            if credentials is None or isinstance(self._server, PlaintextServer):
                return int(self._server.add_insecure_port(address))
            return int(self._server.add_secure_port(address, credentials))
        except (RuntimeError, OSError) as error:
            remedy = "set listen.ext_proc or listen.api (MEMORY_EXTPROC__LISTEN__EXT_PROC, …__API)"
            raise ConfigurationError(
                [f"listen: cannot listen on {address}: it is in use, or no address of this machine; {remedy}"]
            ) from error


_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class _Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # of a package without types
    """grpc.health.v1.Health. The library's own keeps a lock while it writes to a client that watches: one that
    reads nothing would stop every change of a status, and so the drain."""

    def __init__(self) -> None:
        self._statuses: dict[str, health_pb2.HealthCheckResponse.ServingStatus] = {"": _NOT_SERVING}
        self._changed, self._is_closed = asyncio.Event(), False

    def set(self, service: str, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        self._statuses[service] = status
        self._tell()

    def close(self) -> None:
        """End the calls that watch, which else would last as long as the drain may."""
        self._is_closed = True
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> Any:  # noqa: N802
        if request.service not in self._statuses:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        return health_pb2.HealthCheckResponse(status=self._statuses[request.service])

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Any) -> None:  # noqa: N802
        written = None
        while not self._is_closed:
            changed = self._changed
            status = self._statuses.get(request.service, health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
            if status != written:
                await context.write(health_pb2.HealthCheckResponse(status=status))
                written = status
            await changed.wait()


def _make_server(options: ServerOptions) -> Server:
    if options.tls is not None or not options.light:
        return grpc.aio.server(options=list(options.channel))
    limits = dict(options.channel)
    return PlaintextServer(
        longest=limits.get("grpc.max_receive_message_length", 4 << 20),
        streams=limits.get("grpc.max_concurrent_streams", 2**31 - 1),
    )


def _credentials(tls: ServerTls) -> grpc.ServerCredentials:
    files = _Rotating(tls)
    return grpc.dynamic_ssl_server_credentials(
        files.current(), files.latest, require_client_authentication=tls.client_ca is not None
    )


class _Rotating:
    """Rereads changed certificate files. gRPC calls it at every handshake, from its own thread."""

    def __init__(self, tls: ServerTls) -> None:
        self._tls = tls
        self._files = tuple(path for path in (tls.cert, tls.key, tls.client_ca) if path is not None)
        self._seen = self._stamps()
        self._read = self.current()

    def current(self) -> grpc.ServerCertificateConfiguration:
        """Read the files. OSError if they are unreadable or do not match: gRPC would only log it."""
        tried = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self._tls.client_ca)
        tried.load_cert_chain(self._tls.cert, self._tls.key, password=lambda: "")  # without it: a prompt
        key, cert = self._tls.key.read_bytes(), self._tls.cert.read_bytes()
        authority = self._tls.client_ca.read_bytes() if self._tls.client_ca else None
        return grpc.ssl_server_certificate_configuration([(key, cert)], root_certificates=authority)

    def latest(self) -> grpc.ServerCertificateConfiguration:
        """The newest readable configuration; during an incomplete rotation the previous configuration."""
        try:
            stamps = self._stamps()
            if stamps != self._seen:
                self._seen = stamps  # logged once: an incomplete rotation changes again
                self._read = self.current()
                log.info("tls.rotated")
        except OSError as error:
            log.warning("tls.unreadable", kind=type(error).__name__)
        return self._read

    def _stamps(self) -> tuple[tuple[int, int], ...]:
        return tuple((stat.st_mtime_ns, stat.st_ino) for stat in (path.stat() for path in self._files))


# Readiness: whether Envoy should send requests, for gRPC health and /readyz.
#
# It depends on the parts that every request needs: the model is loaded before the server starts, and the journal
# is checked periodically. The memory store is not checked: without it requests pass unenriched, which is better
# than no sidecar at all.

Check = Callable[[], Awaitable[object]]  # raises a MemoryExtprocError if a part is unavailable
Tell = Callable[[bool], Awaitable[None]]


class Readiness:
    """Runs *check* every *interval* while entered and reports changes to *tell*. Not ready before the first run."""

    def __init__(self, check: Check, tell: Tell, interval: timedelta = timedelta(seconds=2)) -> None:
        self._check, self._tell, self._interval = check, tell, interval
        self._reason = "starting"
        self._task: asyncio.Task[None] | None = None

    @property
    def reason(self) -> str:
        """The reason for not being ready; empty when ready."""
        return self._reason

    async def __aenter__(self) -> Self:
        await self._ask()
        self._task = asyncio.create_task(self._keep_asking(), name="readiness")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reason = "stopping"
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _keep_asking(self) -> None:
        while True:
            await asyncio.sleep(self._interval.total_seconds())
            await contain_faults(self._ask)

    async def _ask(self) -> None:
        before = self._reason
        try:
            await self._check()
            self._reason = ""
        except MemoryExtprocError as error:
            self._reason = str(error)
        if before == self._reason:
            return
        if self._reason:
            log.warning("readiness.changed", ready=False, reason=self._reason)
        else:
            log.info("readiness.changed", ready=True)
        if bool(before) != bool(self._reason):
            await self._tell(not self._reason)
