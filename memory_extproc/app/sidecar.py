"""The composition root: constructs every adapter behind its port.

Lifetimes are an exit stack in reverse order: the server drains, background work completes, accepted turns are
learned, and then journal, store and model close."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Self

from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR, CollectorRegistry

from memory_extproc import __version__
from memory_extproc.app.api import memory_api
from memory_extproc.app.context import (
    AppContext,
    Applies,
    Live,
    api_options,
    make_context,
    open_traces,
    server_options,
)
from memory_extproc.app.coordination import open_forgetter
from memory_extproc.app.read_path import ReadPath, ReadPathParts, open_exchange_parts, open_read_path
from memory_extproc.app.storage import DataDirectory, OpenFiles, Storage, open_storage, renewed_keys, watched_files
from memory_extproc.app.write_path import Door, WritePath, open_write_path
from memory_extproc.concurrency import Background, HelperProcess, utc_now
from memory_extproc.console.server import ConsoleServer
from memory_extproc.erasure.forgetter import Forgetter
from memory_extproc.erasure.steps import Erasable
from memory_extproc.errors import ConfigurationError
from memory_extproc.extproc.processor import SERVICE, register_ending
from memory_extproc.extproc.server import GrpcServer, Readiness
from memory_extproc.observe.http import OperationsEndpoint, watch_certificate
from memory_extproc.observe.log import configure, logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import (
    Now,
)
from memory_extproc.recall.canary import Canary
from memory_extproc.recall.recaller import Recaller
from memory_extproc.request.decisions import DecisionLog
from memory_extproc.request.replay import BlockReplay
from memory_extproc.settings import Settings, load
from memory_extproc.settings.loading import secret_files
from memory_extproc.store.partition import Partitions
from memory_extproc.text.lazy_re import compile_all

log = logger(__name__)
# Bounds of the tasks that write decisions.
RECORDS_GRACE, RECORDS_AT_ONCE = timedelta(seconds=1), 1_000


@dataclass(frozen=True, slots=True)
class Sidecar:
    """The addresses of a running sidecar."""

    ext_proc: str  # the address with the port in use, here and below
    api: str
    console: str  # "" if the default address was taken
    http: str
    metrics: Metrics
    partitions: Partitions
    door: Door
    forgets: Forgetter
    canary: Canary | None
    live: Live
    reloading: ConfigurationReloader | None  # None: the source of the configuration is unknown


@asynccontextmanager
async def sidecar(
    settings: Settings, *, now: Now = utc_now, source: ConfigurationSource | None = None
) -> AsyncIterator[Sidecar]:
    """Run the whole sidecar while entered. Raises only faults that an operator can fix.

    *source*: the origin of *settings*, watched and reloaded."""
    for notice in settings.notices():
        log.warning("configuration.notice", notice=notice)
    async with AsyncExitStack() as stack:
        data = stack.enter_context(DataDirectory(settings)).path
        helper = HelperProcess()
        stack.callback(helper.close)
        context = replace(
            make_context(settings, stack, Metrics(_registry(), __version__), now=now, data=data),
            traces=await open_traces(settings, stack),
            helper=helper,
            probes=True,
        )
        live, metrics = context.live, context.metrics
        metrics.recall_limit.set_function(lambda: context.load.limit)
        kept = await open_storage(context)
        noting = await stack.enter_async_context(Background(metrics, grace=RECORDS_GRACE, most=RECORDS_AT_ONCE))
        decisions = DecisionLog(kept.coordination, live, background=noting, now=now)
        writing = await open_write_path(context, kept, decisions)
        reading = await open_read_path(context, kept, writing.intake)
        background = await stack.enter_async_context(Background(metrics, grace=settings.shutdown.flush))
        replays = BlockReplay(live, kept.coordination, background=background, metrics=metrics, now=now)
        forgetter = await _open_forgetter(context, kept, writing, reading.recaller, replays)
        wire = await open_exchange_parts(context, kept, writing, reading.recaller, replays, background, decisions)
        serving = await _open_serving(context, kept, writing, reading, wire, forgetter)
        reloading = await _reloading(live, source, metrics, stack)
        background.start(asyncio.to_thread(compile_all))
        yield Sidecar(
            ext_proc=serving.ext_proc.address,
            api=serving.api.address,
            console=serving.console,
            http=serving.http,
            metrics=metrics,
            partitions=kept.partitions,
            door=writing.door,
            forgets=forgetter,
            live=live,
            reloading=reloading,
            canary=reading.canary,
        )
        log.info("sidecar.stopping")


async def _open_forgetter(
    context: AppContext, kept: Storage, writing: WritePath, recaller: Recaller, replays: BlockReplay
) -> Forgetter:
    """Open the forgetter with every part that stores user text."""
    topics = writing.topics
    holders = Erasable(
        store=kept.unsealed,
        partitions=kept.partitions,
        journal=kept.journal,
        coordination=kept.coordination,
        replicas=kept.erasing.replicas,
        foresees=writing.foresees,
        discard_waiting=writing.intake.erase,
        keys=renewed_keys(kept.keys, kept.unsealed, kept.journal),
        purges=kept.store,
        caches=(replays.forget, writing.retention.request_pass, *((topics.forget,) if topics else ())),
    )
    forgetter = await open_forgetter(context, kept.erasing, holders, recaller)
    kept.shown.found = forgetter.sweep
    return forgetter


@dataclass(frozen=True, slots=True)
class _Serving:
    ext_proc: GrpcServer
    api: GrpcServer
    console: str  # address, here and below
    http: str


async def _open_serving(
    context: AppContext,
    kept: Storage,
    writing: WritePath,
    reading: ReadPath,
    wire: ReadPathParts,
    forgetter: Forgetter,
) -> _Serving:
    """Open the ports, last, so that they close first."""
    settings, metrics, stack = context.settings, context.metrics, context.stack
    registers = register_ending if settings.role == "learn" else wire.processor().register
    server = GrpcServer(server_options(settings), [SERVICE], registers)
    servers = await stack.enter_async_context(
        memory_api(context, kept, writing, reading, wire.decisions, forgetter)
    )
    api = servers.grpc
    in_use = OpenFiles(watched_files(settings, context.data), metrics)
    readiness = Readiness(in_use.checked_with(kept.writable), partial(_tell, (server, api)))
    _watch_certificates(settings, metrics)
    host, _, port = settings.listen.http.rpartition(":")
    endpoint = await stack.enter_async_context(
        OperationsEndpoint(
            host.strip("[]"),
            int(port),
            metrics.registry,
            lambda: readiness.reason,
            documents=_documents(),
            states=lambda: (f"calibration: {reading.matcher.match.calibration}",),
            stall=settings.health.stall,
        )
    )
    for part in (writing.retention, api):
        await stack.enter_async_context(part)
    console = await _open_console(settings, servers.console, stack)
    await stack.enter_async_context(server)
    await stack.enter_async_context(readiness)
    return _Serving(server, api, console, f"{host}:{endpoint.port}")


async def _open_console(settings: Settings, server: ConsoleServer, stack: AsyncExitStack) -> str:
    """Open the console and return its address.

    Without a configured address, an occupied default port (as beside another sidecar) disables the console."""
    try:
        return (await stack.enter_async_context(server)).address
    except ConfigurationError as error:
        if "console" in settings.listen.model_fields_set:
            raise
        log.warning("console.unavailable", fault=error.faults[0])
        return ""


async def _tell(servers: Sequence[GrpcServer], ready: bool) -> None:  # noqa: FBT001 - as Readiness calls it
    await asyncio.gather(*(server.set_ready(ready=ready) for server in servers))


def _watch_certificates(settings: Settings, metrics: Metrics) -> None:
    ports = {"ext_proc": server_options(settings).tls, "api": api_options(settings).tls}
    for port, tls in ports.items():
        if tls is not None:
            watch_certificate(metrics, port, tls.cert)


async def _reloading(
    live: Live, source: ConfigurationSource | None, metrics: Metrics, stack: AsyncExitStack
) -> ConfigurationReloader | None:
    live.subscribe(_logs_as(live.settings))
    if source is None:
        return None
    return await stack.enter_async_context(ConfigurationReloader(live, source, metrics))


def _logs_as(settings: Settings) -> Applies:
    """Reconfigure logging only on a change: a program that embeds a sidecar has its own logging."""
    current = settings.telemetry

    def apply(new: Settings) -> None:
        nonlocal current
        if new.telemetry != current:
            current = new.telemetry
            configure(current.log_level, current.log_format)

    return apply


def _documents() -> dict[str, bytes]:
    """Documents served by the HTTP port: the OpenAPI description of the memory API."""
    return {"/openapi.json": files("memory_extproc.api.gen").joinpath("openapi.json").read_bytes()}


def _registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    for collector in (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR):
        registry.register(collector)
    return registry


# Configuration reload without a restart; changes that need a restart are logged.

# yields whenever a file in the directories may have changed
Changes = Callable[[Sequence[Path]], AsyncGenerator[object]]


@dataclass(frozen=True, slots=True)
class ConfigurationSource:
    """The origin of the configuration."""

    path: Path
    environ: Mapping[str, str]  # as of the start: a process does not see later changes

    def load(self) -> Settings:
        """Load the settings. ConfigurationError with all faults.

        An empty file is a fault: it would mean all defaults, and editors create it while they write."""
        if not _contents(self.path).strip():
            raise ConfigurationError([f"{self.path}: is empty"])
        return load(self.path, self.environ)


async def changes_in(directories: Sequence[Path]) -> AsyncGenerator[object]:
    """Watch directories, because files are often replaced by name, in Kubernetes through a symlink."""
    from watchfiles import awatch  # noqa: PLC0415 - only where a configuration is watched

    async for _ in awatch(*directories, recursive=False, watch_filter=None):
        yield None


class ConfigurationReloader:
    """Reloads the configuration when a file changes or on request; a faulty configuration changes nothing.

    Entering watches the directories of the file and of secret files. Where that fails (a file system without
    notifications, or the limit reached), `ask` still works."""

    def __init__(
        self, live: Live, source: ConfigurationSource, metrics: Metrics, *, changes: Changes = changes_in
    ) -> None:
        self._live, self._source, self._metrics = live, source, metrics
        self._changes = changes
        self._asked = asyncio.Event()
        self._watched: Settings = live.settings  # as last read, applied or not
        self._seen = ""
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._seen = self._digest()
        self._tasks = [
            asyncio.create_task(self._follow(), name="configuration"),
            asyncio.create_task(self._watch(), name="configuration files"),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def ask(self) -> None:
        """Request a reload, whether or not a file has changed. Call it on the event loop."""
        self._asked.set()

    async def _follow(self) -> None:
        while True:
            await self._asked.wait()
            self._asked.clear()
            await self._reload()

    async def _watch(self) -> None:
        while True:
            directories = self._directories()
            try:
                async with aclosing(self._changes(directories)) as changes:
                    async for _ in changes:
                        if await asyncio.to_thread(self._digest) != self._seen:
                            self._asked.set()
                        if self._directories() != directories:
                            break
                    else:
                        return
            except OSError as error:
                log.warning("configuration.unwatched", kind=type(error).__name__)
                return

    async def _reload(self) -> None:
        before = await asyncio.to_thread(self._digest)
        try:
            wanted = await asyncio.to_thread(self._source.load)
            change = self._live.merge(wanted)
        except ConfigurationError as error:
            self._report_refusal(error.faults)
        else:
            self._watched = wanted
            self._metrics.reload_failed.set(0)
            self._metrics.restart_needed.set(len(change.waiting))
            if change.waiting and change.waiting != self._live.waiting:
                log.warning("configuration.needs_restart", keys=list(change.waiting))
            if change:
                known = self._live.settings.notices()
                self._live.reconfigure(change)
                for notice in change.settings.notices():
                    if notice not in known:
                        log.warning("configuration.notice", notice=notice)
                log.info("configuration.reloaded", keys=list(change.changed))
            else:
                self._live.waiting = change.waiting
                log.info("configuration.unchanged")
            self._metrics.reloads.labels("applied" if change else "unchanged").inc()
        self._seen = before
        # Changed during the read: the content may be incomplete.
        if await asyncio.to_thread(self._digest) != before:
            self._asked.set()

    def _report_refusal(self, faults: Iterable[str]) -> None:
        self._metrics.reload_failed.set(1)
        self._metrics.reloads.labels("refused").inc()
        for fault in faults:
            log.error("configuration.refused", fault=fault)

    def _files(self) -> list[Path]:
        return [self._source.path, *secret_files(self._live.settings), *secret_files(self._watched)]

    def _directories(self) -> list[Path]:
        """The directories of files and symlinks: a link's target may be replaced like the link."""
        parents = {parent for file in self._files() for parent in (file.parent, file.resolve().parent)}
        return sorted(parent for parent in parents if parent.is_dir())

    def _digest(self) -> str:
        """The digest of all configuration files; other files in these directories do not count."""
        digest = hashlib.sha256()
        for file in dict.fromkeys(self._files()):
            contents = _contents(file)
            digest.update(f"{file}\0{len(contents)}\0".encode() + contents)
        return digest.hexdigest()


def _contents(path: Path) -> bytes:
    """The contents; empty if unreadable: loading the configuration reports the reason."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
