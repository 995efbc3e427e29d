"""The composition root: the one module that knows which adapter stands behind which port.

Lifetimes are one exit stack, so what was opened last is closed first: the server drains, what exchanges left
behind is finished, accepted turns are learned, and then journal, store and model close.
"""

from __future__ import annotations

import asyncio
import fcntl
import random
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.resources import files
from pathlib import Path

from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR, CollectorRegistry

from memory_extproc import __version__
from memory_extproc.app.api import ApiParts, memory_api
from memory_extproc.app.commanding import make_commands, read_by, unsaid
from memory_extproc.app.compressing import make_compression
from memory_extproc.app.coordinating import open_coordination, open_journal, open_link
from memory_extproc.app.erasing import AsRecalled, open_erasing, open_forgetter, take_part
from memory_extproc.app.identifying import open_identities
from memory_extproc.app.learning import make_budget, make_extraction
from memory_extproc.app.live import Applies, Live
from memory_extproc.app.models import open_embedder, open_reranks
from memory_extproc.app.options import (
    api_options,
    learn_limits,
    milvus_options,
    partition_limits,
    piece_limits,
    profile_limits,
    server_options,
    wire_options,
)
from memory_extproc.app.recalling import make_recaller, open_canary
from memory_extproc.app.reloading import Reloading, Source
from memory_extproc.app.retaining import make_consolidator, make_reflector, make_retention, open_accesses
from memory_extproc.app.screening import Door, open_door, putting_aside
from memory_extproc.app.sealing import open_keys, renewed_keys, sealed_coordination, sealed_journal, sealed_store
from memory_extproc.app.topics import make_summing, open_topics
from memory_extproc.app.tracing import caller_tag, open_traces
from memory_extproc.app.transferring import make_transfers
from memory_extproc.app.wiring import Wire
from memory_extproc.erasure.forgetter import Erasable, Forgetter
from memory_extproc.errors import ConfigurationError
from memory_extproc.learn.learner import Learner
from memory_extproc.learn.reconcile import Reconciler
from memory_extproc.learn.remember import judge
from memory_extproc.learn.sessions import SessionLimits, Sessions
from memory_extproc.observe.certificates import watch_certificate
from memory_extproc.observe.endpoint import OperationsEndpoint
from memory_extproc.observe.log import configure, logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Now
from memory_extproc.recall.canary import Canary
from memory_extproc.recall.profile import Profiles
from memory_extproc.recall.recaller import Recaller
from memory_extproc.retention.noticing import Noticing
from memory_extproc.settings import Settings
from memory_extproc.store.milvus import MilvusStore
from memory_extproc.store.opener import Opener, OpenerLimits
from memory_extproc.store.partition import Partitions
from memory_extproc.wire.background import Background
from memory_extproc.wire.held import HeldBytes
from memory_extproc.wire.processor import SERVICE
from memory_extproc.wire.readiness import Readiness
from memory_extproc.wire.replays import Replays
from memory_extproc.wire.server import GrpcServer

log = logger(__name__)

LOCK = "lock"


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
        data = hold_data_directory(settings, stack)
        traces = await open_traces(settings, stack)
        embedder = await open_embedder(settings, metrics, stack, live)
        link = await open_link(settings, metrics, stack, live)
        keys = await open_keys(settings, data, link, stack)
        coordination = sealed_coordination(await open_coordination(settings, data, link, now, stack), keys)
        store = MilvusStore(milvus_options(settings, data, embedder.fingerprint), metrics, now=now)
        await stack.enter_async_context(Opener(store, OpenerLimits(), chance=random.random))
        erasing = await open_erasing(settings, data, link, stack)
        kept = sealed_store(settings, store, keys)
        hiding = erasing.hiding(kept)
        partitions = await stack.enter_async_context(
            Partitions(
                hiding, coordination, partition_limits(settings), metrics, now=now, forgotten=erasing.forgotten
            )
        )
        await take_part(erasing, partitions, stack)
        plain_journal, writable = await open_journal(settings, data, link, now, stack)
        journal = sealed_journal(plain_journal, keys)
        door = await open_door(settings, data, link, coordination, metrics, stack, live, now=now)
        sessions = Sessions(coordination, SessionLimits(), new_session=lambda: uuid.uuid4().hex)
        budget = make_budget(settings, now, live)
        extraction = make_extraction(settings, metrics, stack, budget, live)
        summaries, rebuilds = make_summing(settings, budget, embedder, metrics, stack, live, now=now)
        topics = await open_topics(
            settings, summaries, partitions, embedder, coordination, metrics, stack, live, now=now
        )
        retention = make_retention(
            settings,
            store,
            hiding,
            partitions,
            embedder,
            coordination,
            metrics,
            now=now,
            rebuilds=rebuilds,
            reflects=make_reflector(settings, metrics, stack, extraction.budget, live),
            consolidates=make_consolidator(settings, metrics, stack, extraction.budget, live),
            live=live,
        )
        noticing = Noticing(partitions, retention.soon)
        learner = await stack.enter_async_context(
            Learner(
                journal,
                sessions,
                noticing,
                embedder,
                coordination,
                learn_limits(settings),
                metrics,
                extractor=read_by(live, extraction.extractor),
                stand_in=read_by(live, extraction.stand_in),
                reconciler=Reconciler(noticing, embedder, metrics, judges=extraction.judges),
                now=now,
                chance=random.random,
                judged=unsaid(live, putting_aside(live, partial(judge, limits=piece_limits(settings, embedder)))),
                commands=make_commands(
                    live, noticing, embedder, journal, coordination, metrics, stack, extraction, now=now
                ),
                screens=door.screening,
                forgotten=erasing.forgotten,
                traces=traces,
                topics=topics,
            )
        )
        live.follow(partial(_use, partitions, learner))
        reranks = await open_reranks(settings, metrics, stack, live)
        recaller = make_recaller(
            settings,
            partitions,
            embedder,
            metrics,
            stack,
            now=now,
            reranks=reranks,
            learns=learner,
            reads=partitions,
            live=live,
            traces=traces,
        )
        canary = await open_canary(live, partitions, hiding, embedder, metrics, stack, now=now)
        background = await stack.enter_async_context(Background(metrics, grace=settings.shutdown.flush))
        replays = Replays(wire_options(settings), coordination, background=background, metrics=metrics, now=now)
        forgetter = await open_forgetter(
            settings,
            erasing,
            Erasable(
                store=kept,
                partitions=partitions,
                journal=journal,
                coordination=coordination,
                keys=renewed_keys(keys, kept, journal),
                purges=store,
                caches=(replays.forget, retention.soon, *((topics.forget,) if topics else ())),
            ),
            metrics,
            stack,
            now=now,
            seeks=_as_recalled(recaller, live),
        )
        hiding.found = forgetter.sweep
        wire = Wire(
            identifies=await open_identities(live, stack),
            recalls=recaller,
            accesses=await open_accesses(live, partitions, stack, now=now),
            replays=replays,
            sessions=sessions,
            door=door,
            learns=learner,
            gets=partitions,
            held=HeldBytes(settings.limits.process_bytes, metrics),
            background=background,
            metrics=metrics,
            traces=traces,
            tag=caller_tag(settings),
            profiles=Profiles(partitions, profile_limits(settings), now=now, learns=learner),
            compression=make_compression(
                settings, coordination, extraction, door, background, metrics, stack, live, now=now
            ),
            now=now,
        )
        server = GrpcServer(server_options(settings), [SERVICE], wire.processor(live).register)
        transfers = make_transfers(
            settings,
            hiding,
            journal,
            partitions,
            embedder,
            coordination,
            now=now,
            consent=door.consent,
            forgotten=erasing.forgotten,
        )
        parts = ApiParts(
            partitions=partitions,
            noticing=noticing,
            embedder=embedder,
            coordination=coordination,
            journal=journal,
            learns=learner,
            explains=recaller,
            consent=door.consent,
            forgets=forgetter,
            operations=transfers.operations,
            live=live,
            metrics=metrics,
            now=now,
        )
        api = await stack.enter_async_context(memory_api(settings, data, parts))
        readiness = Readiness(writable, partial(_tell, (server, api)))
        _watch_certificates(settings, metrics)
        host, _, port = settings.listen.http.rpartition(":")
        endpoint = await stack.enter_async_context(
            OperationsEndpoint(
                host.strip("[]"), int(port), metrics.registry, lambda: readiness.reason, documents=_documents()
            )
        )
        for part in (retention, api, server, readiness):
            await stack.enter_async_context(part)
        reloading = await _reloading(live, source, metrics, stack)
        yield Sidecar(
            ext_proc=server.address,
            api=api.address,
            http=f"{host}:{endpoint.port}",
            metrics=metrics,
            partitions=partitions,
            door=door,
            forgets=forgetter,
            live=live,
            reloading=reloading,
            canary=canary,
        )
        log.info("sidecar.stopping")


def _use(partitions: Partitions, learner: Learner, new: Settings) -> None:
    partitions.use(partition_limits(new))
    learner.use(learn_limits(new))


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


def hold_data_directory(settings: Settings, stack: AsyncExitStack) -> Path:
    """The data directory, made readable by its owner alone and held by this process alone."""
    directory = Path(settings.data_dir).absolute()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = stack.enter_context((directory / LOCK).open("w"))
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigurationError(
            [f"data_dir: another sidecar is using {directory}; give each one its own"]
        ) from error
    except OSError as error:
        raise ConfigurationError([f"data_dir: {directory} cannot be used: {error.strerror}"]) from error
    return directory
