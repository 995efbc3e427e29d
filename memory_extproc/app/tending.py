"""Everybody's memories as configured, for commands: without a sidecar around them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from memory_extproc import __version__
from memory_extproc.app.coordinating import open_coordination, open_link
from memory_extproc.app.erasing import ledger_file
from memory_extproc.app.holding import hold_lite
from memory_extproc.app.learning import budget_limits
from memory_extproc.app.models import open_embedder
from memory_extproc.app.options import milvus_options, partition_limits
from memory_extproc.app.passing import steady_now
from memory_extproc.app.retaining import make_consolidator, make_reflector, make_retention
from memory_extproc.app.sealing import open_keys, sealed_coordination, sealed_store
from memory_extproc.app.topics import make_summing
from memory_extproc.coordination.ledger_sqlite import SqliteLedger
from memory_extproc.coordination.replicas import SoleReplica
from memory_extproc.erasure.forgotten import Forgotten, HidingStore
from memory_extproc.errors import ConfigurationError
from memory_extproc.learn.budget import Budget
from memory_extproc.learn.quarantine import Quarantine
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Coordination, Embeds, MemoryStore, Now
from memory_extproc.retention.job import RetentionJob
from memory_extproc.retention.keeper import Rebuilds
from memory_extproc.retention.reembedding import Pace, Reembedding, Says
from memory_extproc.retention.reflections import Reflects
from memory_extproc.retention.subjects import Consolidates
from memory_extproc.sealing.keys import WrappedKeys
from memory_extproc.settings import Settings
from memory_extproc.store.milvus import MilvusStore
from memory_extproc.store.partition import PartitionLimits, Partitions

if TYPE_CHECKING:
    from memory_extproc.redis_link import RedisLink

_SMALL = 1 << 20  # bytes of memories held: a command reads everybody's once


@dataclass(frozen=True, slots=True)
class Tended:
    """Everybody's memories as configured, without a sidecar around them: what is changed shows in running ones."""

    store: MilvusStore
    unsealed: MemoryStore  # the same rows, with what was forgotten and is not erased yet
    shown: MemoryStore  # without that
    forgotten: Forgotten
    partitions: Partitions
    embedder: Embeds
    coordination: Coordination
    keys: WrappedKeys | None
    metrics: Metrics
    rebuilds: Rebuilds
    reflects: Reflects | None
    consolidates: Consolidates | None


@asynccontextmanager
async def tending(settings: Settings, data: Path, *, now: Now, reflecting: bool = False) -> AsyncIterator[Tended]:
    """Whoever asks holds *data*, where that is needed (`hold_lite`). Of what the ledger of forgets names nothing
    comes back, as in a sidecar. *reflecting*: a model draws conclusions whether or not that is switched on;
    ConfigurationError without one."""
    metrics = Metrics(CollectorRegistry(), __version__)
    async with AsyncExitStack() as stack:
        embedder = await open_embedder(settings, metrics, stack)
        link = await open_link(settings, metrics, stack)
        keys = await open_keys(settings, data, link, stack)
        coordination = sealed_coordination(await open_coordination(settings, data, link, now, stack), keys)
        store = MilvusStore(milvus_options(settings, data, embedder.fingerprint), metrics, now=now)
        stack.push_async_callback(store.close)
        await store.open()
        forgotten = await read_forgotten(settings, data, link, stack)
        unsealed = sealed_store(settings, store, keys, metrics)
        hiding = HidingStore(unsealed, forgotten)
        limits = replace(partition_limits(settings), bytes=_SMALL, patience=timedelta())
        partitions = await stack.enter_async_context(
            Partitions(hiding, coordination, limits, metrics, now=now, steady=steady_now, forgotten=forgotten)
        )
        budget = Budget(budget_limits(settings), now=now)
        _, rebuilds = make_summing(settings, budget, embedder, metrics, stack, now=now)
        reflects = make_reflector(settings, metrics, stack, budget, always=reflecting)
        if reflecting and reflects is None:
            raise ConfigurationError(
                ["external_models: no model of role memory_extraction is configured to reflect"]
            )
        yield Tended(
            store,
            unsealed,
            hiding,
            forgotten,
            partitions,
            embedder,
            coordination,
            keys,
            metrics,
            rebuilds,
            reflects,
            make_consolidator(settings, metrics, stack, budget),
        )


async def read_forgotten(
    settings: Settings, data: Path, link: RedisLink | None, stack: AsyncExitStack
) -> Forgotten:
    """A command is no replica that serves: it needs no lease."""
    key = settings.privacy.key or b""
    if link is None:
        ledger = await stack.enter_async_context(SqliteLedger(ledger_file(settings, data)))
        return Forgotten(ledger, SoleReplica(), key=key)
    from memory_extproc.coordination.ledger_redis import RedisLedger  # noqa: PLC0415 - Redis takes 0.2 s to import

    return Forgotten(RedisLedger(link, prefix=settings.coordination.prefix), SoleReplica(), key=key)


def job_of(settings: Settings, tended: Tended, *, now: Now) -> RetentionJob:
    return make_retention(
        settings,
        tended.store,
        tended.shown,
        tended.partitions,
        tended.embedder,
        tended.coordination,
        tended.metrics,
        now=now,
        rebuilds=tended.rebuilds,
        reflects=tended.reflects,
        consolidates=tended.consolidates,
    )


@asynccontextmanager
async def reembedding(
    settings: Settings, data: Path, tended: Tended, *, source: str = "", says: Says, now: Now
) -> AsyncIterator[tuple[Reembedding, MemoryStore | None]]:
    """With *source*, the name of another collection of the same Milvus, also that one: as it is."""
    lists: MilvusStore = tended.store
    async with AsyncExitStack() as stack:
        kept: MemoryStore | None = None
        if source:
            options = milvus_options(settings, data, tended.embedder.fingerprint)
            # A Lite file lets one in: through the socket of who has it open.
            other = replace(
                options,
                collection=source,
                address=options.address or tended.store.address,
                layout=options.chosen_layout,
                as_it_is=True,
            )
            lists = MilvusStore(other, tended.metrics, now=now)
            stack.push_async_callback(lists.close)
            await lists.open()
            kept = sealed_store(settings, lists, tended.keys, tended.metrics)
        partitions = tended.partitions
        yield (
            Reembedding(lists, tended.shown, partitions, partitions, tended.embedder, Pace(), says=says),
            kept,
        )


@asynccontextmanager
async def reviewing(settings: Settings, data: Path, *, now: Now) -> AsyncIterator[Quarantine]:
    """What was put aside, to be looked at: what is changed shows in running sidecars."""
    metrics = Metrics(CollectorRegistry(), __version__)
    async with AsyncExitStack() as stack:
        hold_lite(settings, data, stack)
        embedder = await open_embedder(settings, metrics, stack)
        store = MilvusStore(milvus_options(settings, data, embedder.fingerprint), metrics, now=now)
        stack.push_async_callback(store.close)
        await store.open()
        link = await open_link(settings, metrics, stack)
        coordination = await open_coordination(settings, data, link, now, stack)
        kept = sealed_store(settings, store, await open_keys(settings, data, link, stack), metrics)
        limits = PartitionLimits(bytes=settings.recall.partition_bytes)
        partitions = await stack.enter_async_context(Partitions(kept, coordination, limits, metrics, now=now))
        yield Quarantine(kept, partitions)
