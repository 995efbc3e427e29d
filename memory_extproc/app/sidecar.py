"""The composition root: the one module that knows which adapter stands behind which port.

Lifetimes are one exit stack, so what was opened last is closed first: the server drains, what exchanges left
behind is finished, accepted turns are learned, and then journal, store and model close.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.resources import files

from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR, CollectorRegistry

from memory_extproc import __version__
from memory_extproc.app.api import ApiParts, memory_api
from memory_extproc.app.erasing import AsRecalled, open_forgetter
from memory_extproc.app.frame import Frame
from memory_extproc.app.holding import DataDirectory, FilesInUse, watched_files
from memory_extproc.app.keeping import Kept, open_kept
from memory_extproc.app.live import Applies, Live
from memory_extproc.app.options import (
    api_options,
    server_options,
    wire_options,
)
from memory_extproc.app.recalling import open_reading
from memory_extproc.app.reloading import Reloading, Source
from memory_extproc.app.screening import Door
from memory_extproc.app.sealing import renewed_keys
from memory_extproc.app.tracing import open_traces
from memory_extproc.app.transferring import make_transfers
from memory_extproc.app.wiring import Wire, open_wire
from memory_extproc.app.writing import Writing, open_writing
from memory_extproc.erasure.eraser import Erasable
from memory_extproc.erasure.forgetter import Forgetter
from memory_extproc.observe.certificates import watch_certificate
from memory_extproc.observe.endpoint import OperationsEndpoint
from memory_extproc.observe.log import configure, logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Now
from memory_extproc.recall.canary import Canary
from memory_extproc.recall.recaller import Recaller
from memory_extproc.settings import Settings
from memory_extproc.store.partition import Partitions
from memory_extproc.wire.background import Background
from memory_extproc.wire.processor import SERVICE
from memory_extproc.wire.readiness import Readiness
from memory_extproc.wire.replays import Replays
from memory_extproc.wire.server import GrpcServer

log = logger(__name__)


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Sidecar:
    """What runs, and where."""

    ext_proc: str  # the address with the port in use, here and below
    api: str
    http: str
    metrics: Metrics
    partitions: Partitions
    door: Door
    forgets: Forgetter
    canary: Canary | None
    live: Live
    reloading: Reloading | None  # None: nobody said where the configuration came from


@asynccontextmanager
async def sidecar(
    settings: Settings, *, now: Now = utc_now, source: Source | None = None
) -> AsyncIterator[Sidecar]:
    """The whole sidecar, serving while entered. Raises only what an operator can mend before it serves. *source*:
    where *settings* came from, to be watched and read again."""
    live = Live(settings)
    metrics = Metrics(_registry(), __version__)
    for notice in settings.notices():
        log.warning("configuration.notice", notice=notice)
    async with AsyncExitStack() as stack:
        data = stack.enter_context(DataDirectory(settings)).path
        traces = await open_traces(settings, stack)
        frame = Frame(live=live, data=data, metrics=metrics, traces=traces, stack=stack, now=now)
        kept = await open_kept(frame)
        writing = await open_writing(frame, kept)
        reading = await open_reading(frame, kept, writing.learner)
        background = await stack.enter_async_context(Background(metrics, grace=settings.shutdown.flush))
        replays = Replays(
            wire_options(settings), kept.coordination, background=background, metrics=metrics, now=now
        )
        forgetter = await _open_forgetter(frame, kept, writing, reading.recaller, replays)
        wire = await open_wire(frame, kept, writing, reading.recaller, replays, background)
        serving = await _open_serving(frame, kept, writing, reading.recaller, wire, forgetter)
        reloading = await _reloading(live, source, metrics, stack)
        yield Sidecar(
            ext_proc=serving.ext_proc.address,
            api=serving.api.address,
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
    frame: Frame, kept: Kept, writing: Writing, recaller: Recaller, replays: Replays
) -> Forgetter:
    """Everything that holds a person's words stands in here."""
    topics = writing.topics
    forgetter = await open_forgetter(
        frame.settings,
        kept.erasing,
        Erasable(
            store=kept.unsealed,
            partitions=kept.partitions,
            journal=kept.journal,
            coordination=kept.coordination,
            foresees=writing.foresees,
            keys=renewed_keys(kept.keys, kept.unsealed, kept.journal),
            purges=kept.store,
            caches=(replays.forget, writing.retention.soon, *((topics.forget,) if topics else ())),
        ),
        frame.metrics,
        frame.stack,
        now=frame.now,
        seeks=_as_recalled(recaller, frame.live),
    )
    kept.shown.found = forgetter.sweep
    return forgetter


@dataclass(frozen=True, slots=True)
class _Serving:
    ext_proc: GrpcServer
    api: GrpcServer
    http: str  # address


async def _open_serving(
    frame: Frame,
    kept: Kept,
    writing: Writing,
    recaller: Recaller,
    wire: Wire,
    forgetter: Forgetter,
) -> _Serving:
    """The ports, opened last and so closed first."""
    settings, metrics, stack = frame.settings, frame.metrics, frame.stack
    server = GrpcServer(server_options(settings), [SERVICE], wire.processor(frame.live).register)
    parts = _api_parts(frame, kept, writing, recaller, forgetter)
    api = await stack.enter_async_context(memory_api(settings, frame.data, parts))
    in_use = FilesInUse(watched_files(settings, frame.data), metrics)
    readiness = Readiness(in_use.checked_with(kept.writable), partial(_tell, (server, api)))
    _watch_certificates(settings, metrics)
    host, _, port = settings.listen.http.rpartition(":")
    endpoint = await stack.enter_async_context(
        OperationsEndpoint(
            host.strip("[]"), int(port), metrics.registry, lambda: readiness.reason, documents=_documents()
        )
    )
    for part in (writing.retention, api, server, readiness):
        await stack.enter_async_context(part)
    return _Serving(server, api, f"{host}:{endpoint.port}")


def _api_parts(frame: Frame, kept: Kept, writing: Writing, recaller: Recaller, forgetter: Forgetter) -> ApiParts:
    consent = writing.door.consent
    transfers = make_transfers(
        frame.settings,
        kept.shown,
        kept.journal,
        kept.partitions,
        kept.embedder,
        kept.coordination,
        now=frame.now,
        consent=consent,
        forgotten=kept.erasing.forgotten,
    )
    return ApiParts(
        partitions=kept.partitions,
        noticing=writing.noticing,
        embedder=kept.embedder,
        coordination=kept.coordination,
        journal=kept.journal,
        learns=writing.learner,
        explains=recaller,
        consent=consent,
        forgets=forgetter,
        operations=transfers.operations,
        live=frame.live,
        metrics=frame.metrics,
        now=frame.now,
    )


async def _tell(servers: Sequence[GrpcServer], ready: bool) -> None:  # noqa: FBT001 - as Readiness calls it
    await asyncio.gather(*(server.set_ready(ready=ready) for server in servers))


def _watch_certificates(settings: Settings, metrics: Metrics) -> None:
    ports = {"ext_proc": server_options(settings).tls, "api": api_options(settings).tls}
    for port, tls in ports.items():
        if tls is not None:
            watch_certificate(metrics, port, tls.cert)


def _as_recalled(recaller: Recaller, live: Live) -> AsRecalled:
    seeks = AsRecalled(recaller, live.settings.memory.default_similarity_threshold)
    live.follow(lambda new: seeks.use(new.memory.default_similarity_threshold))
    return seeks


async def _reloading(
    live: Live, source: Source | None, metrics: Metrics, stack: AsyncExitStack
) -> Reloading | None:
    live.follow(_logs_as(live.settings))
    if source is None:
        return None
    return await stack.enter_async_context(Reloading(live, source, metrics))


def _logs_as(settings: Settings) -> Applies:
    """Only where it changed: how a program that holds a sidecar logs is its own affair."""
    current = settings.telemetry

    def apply(new: Settings) -> None:
        nonlocal current
        if new.telemetry != current:
            current = new.telemetry
            configure(current.log_level, current.log_format)

    return apply


def _documents() -> dict[str, bytes]:
    """What the HTTP port shows beside its own: how the memory API is spoken to over HTTP."""
    return {"/openapi.json": files("memory_extproc.api.gen").joinpath("openapi.json").read_bytes()}


def _registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    for collector in (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR):
        registry.register(collector)
    return registry
