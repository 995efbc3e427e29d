"""Retention as configured."""

from __future__ import annotations

import random
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from prometheus_client import CollectorRegistry

from memory_extproc import __version__
from memory_extproc.app.coordinating import open_coordination, open_link
from memory_extproc.app.erasing import open_erasing
from memory_extproc.app.models import open_embedder
from memory_extproc.app.options import milvus_options, partition_limits
from memory_extproc.app.sealing import open_keys, sealed_coordination, sealed_store
from memory_extproc.learn.same import about, agree, saying
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Coordination, Embeds, KeepsInOrder, ListsOwners, MemoryStore, Now
from memory_extproc.retention.accesses import Accesses, AccessLimits
from memory_extproc.retention.duplicates import DuplicateRules
from memory_extproc.retention.histories import HistoryRules
from memory_extproc.retention.job import JobLimits, RetentionJob
from memory_extproc.retention.keeper import Keeper, KeeperRules, Wording
from memory_extproc.retention.rules import RetentionRules
from memory_extproc.settings import Settings
from memory_extproc.store.milvus import MilvusStore
from memory_extproc.store.partition import Partitions


def keeper_rules(settings: Settings) -> KeeperRules:
    given = settings.retention
    return KeeperRules(
        retention=RetentionRules(
            weight=given.weight,
            half_life=given.half_life,
            max_memories=given.max_memories,
            prune_share=given.prune_share,
            protect=given.protect,
            grace=given.grace,
            history=given.history,
            ttl=given.ttl.given(),
            refresh_on_access=given.refresh_on_access,
        ),
        duplicates=DuplicateRules(distance=given.duplicates.distance, same_words=given.duplicates.same_words)
        if given.duplicates.enabled
        else None,
        histories=HistoryRules(above=given.consolidate.above, most=given.consolidate.earlier),
    )


async def open_accesses(settings: Settings, rows: KeepsInOrder, stack: AsyncExitStack, *, now: Now) -> Accesses:
    limits = AccessLimits(interval=settings.retention.access_interval)
    return await stack.enter_async_context(Accesses(rows, limits, now=now, chance=random.random))


def make_retention(
    settings: Settings,
    lists: ListsOwners,
    store: MemoryStore,
    partitions: Partitions,
    embedder: Embeds,
    coordination: Coordination,
    metrics: Metrics,
    *,
    now: Now,
) -> RetentionJob:
    """*store*: as the partitions see it, without what was forgotten. *lists*: the one behind it."""
    wording = Wording(says=saying, about=about, agree=agree)
    keeper = Keeper(store, partitions, partitions, embedder, keeper_rules(settings), wording, now=now)
    return RetentionJob(
        lists,
        keeper,
        coordination,
        JobLimits(every=settings.retention.every),
        metrics,
        holder=uuid.uuid4().hex,
        now=now,
        chance=random.random,
    )


@asynccontextmanager
async def retaining(settings: Settings, data: Path, *, now: Now) -> AsyncIterator[RetentionJob]:
    """The job alone, without a sidecar around it: what it changes shows in running ones. *data* is held where that
    is needed. It asks the ledger of forgets as a sidecar does, and as a reader needs no lease of its own."""
    metrics = Metrics(CollectorRegistry(), __version__)
    async with AsyncExitStack() as stack:
        embedder = await open_embedder(settings, metrics, stack)
        link = await open_link(settings, metrics, stack)
        keys = await open_keys(settings, data, link, stack)
        coordination = sealed_coordination(await open_coordination(settings, data, link, now, stack), keys)
        store = MilvusStore(milvus_options(settings, data, embedder.fingerprint), metrics, now=now)
        stack.push_async_callback(store.close)
        await store.open()
        erasing = await open_erasing(settings, data, link, stack)
        hiding = erasing.hiding(sealed_store(settings, store, keys))
        limits = replace(partition_limits(settings), bytes=_SMALL, patience=timedelta())
        partitions = await stack.enter_async_context(
            Partitions(hiding, coordination, limits, metrics, now=now, forgotten=erasing.forgotten)
        )
        yield make_retention(settings, store, hiding, partitions, embedder, coordination, metrics, now=now)


_SMALL = 1 << 20  # bytes of memories held: it reads everybody's once
