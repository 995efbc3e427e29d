"""Retention as configured."""

from __future__ import annotations

import random
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry

from memory_extproc import __version__
from memory_extproc.app.coordinating import open_coordination, open_link
from memory_extproc.app.erasing import LEDGER
from memory_extproc.app.learning import budget_limits
from memory_extproc.app.live import Live
from memory_extproc.app.models import completions_for, open_embedder
from memory_extproc.app.options import milvus_options, partition_limits
from memory_extproc.app.sealing import open_keys, sealed_coordination, sealed_store
from memory_extproc.app.topics import make_summing
from memory_extproc.coordination.ledger_sqlite import SqliteLedger
from memory_extproc.coordination.replicas import SoleReplica
from memory_extproc.erasure.forgotten import Forgotten, HidingStore
from memory_extproc.errors import ConfigurationError
from memory_extproc.learn.budget import Budget
from memory_extproc.learn.llm_consolidator import LlmConsolidator
from memory_extproc.learn.llm_reflector import LlmReflector
from memory_extproc.learn.same import about, agree, saying
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Coordination, Embeds, KeepsInOrder, ListsOwners, MemoryStore, Now
from memory_extproc.redis_link import RedisLink
from memory_extproc.retention.accesses import Accesses, AccessLimits
from memory_extproc.retention.duplicates import DuplicateRules
from memory_extproc.retention.histories import HistoryRules
from memory_extproc.retention.job import JobLimits, RetentionJob
from memory_extproc.retention.keeper import Keeper, KeeperRules, Rebuilds, Wording
from memory_extproc.retention.reembedding import Pace, Reembedding, Says
from memory_extproc.retention.reflections import ReflectionLimits, Reflections, Reflects
from memory_extproc.retention.rules import RetentionRules
from memory_extproc.retention.subjects import Consolidates, SubjectRules, Subjects
from memory_extproc.retention.themes import ThemeRules
from memory_extproc.sealing.keys import WrappedKeys
from memory_extproc.settings import Settings
from memory_extproc.settings.memory import ModelRole
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
        page=partition_limits(settings).page,
    )


def make_reflector(
    settings: Settings,
    metrics: Metrics,
    stack: AsyncExitStack,
    budget: Budget | None,
    live: Live | None = None,
    *,
    always: bool = False,
) -> Reflects | None:
    """None where it is not switched on, unless *always*, or where there is no model."""
    model = settings.model_for(ModelRole.MEMORY_EXTRACTION)
    if not (settings.retention.reflect.enabled or always) or model is None or budget is None:
        return None
    return LlmReflector(completions_for(model, ModelRole.MEMORY_EXTRACTION, metrics, stack, live), budget)


async def open_accesses(live: Live, rows: KeepsInOrder, stack: AsyncExitStack, *, now: Now) -> Accesses:
    accesses = Accesses(rows, access_limits(live.settings), now=now, chance=random.random)
    live.follow(lambda new: accesses.use(access_limits(new)))
    return await stack.enter_async_context(accesses)


def access_limits(settings: Settings) -> AccessLimits:
    return AccessLimits(interval=settings.retention.access_interval)


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
    rebuilds: Rebuilds,
    reflects: Reflects | None = None,
    consolidates: Consolidates | None = None,
    live: Live | None = None,
) -> RetentionJob:
    """*store*: as the partitions see it, without what was forgotten. *lists*: the one behind it."""
    wording = Wording(says=saying, about=about, agree=agree)
    limits = reflection_limits(settings)
    reflections = (
        Reflections(reflects, partitions, embedder, coordination, limits, about, now=now) if reflects else None
    )
    subjects = (
        Subjects(consolidates, partitions, embedder, subject_rules(settings), about, now=now)
        if consolidates
        else None
    )
    keeper = Keeper(
        store,
        partitions,
        partitions,
        embedder,
        keeper_rules(settings),
        wording,
        now=now,
        reflections=reflections,
        rebuilds=rebuilds,
        subjects=subjects,
    )
    job = RetentionJob(
        lists,
        keeper,
        coordination,
        job_limits(settings),
        metrics,
        holder=uuid.uuid4().hex,
        now=now,
        chance=random.random,
    )

    if live is not None:
        live.follow(partial(_use, keeper, job, reflections, subjects))
    return job


def _use(
    keeper: Keeper, job: RetentionJob, reflections: Reflections | None, subjects: Subjects | None, new: Settings
) -> None:
    keeper.use(keeper_rules(new))
    job.use(job_limits(new))
    if reflections is not None:
        reflections.use(reflection_limits(new))
    if subjects is not None:
        subjects.use(subject_rules(new))


def job_limits(settings: Settings) -> JobLimits:
    return JobLimits(every=settings.retention.every)


def subject_rules(settings: Settings) -> SubjectRules:
    return SubjectRules(above=settings.retention.consolidate.subject)


def make_consolidator(
    settings: Settings, metrics: Metrics, stack: AsyncExitStack, budget: Budget | None, live: Live | None = None
) -> Consolidates | None:
    """None where there is no model."""
    model = settings.model_for(ModelRole.MEMORY_EXTRACTION)
    if model is None or budget is None:
        return None
    return LlmConsolidator(completions_for(model, ModelRole.MEMORY_EXTRACTION, metrics, stack, live), budget)


def reflection_limits(settings: Settings) -> ReflectionLimits:
    given = settings.retention.reflect
    return ReflectionLimits(themes=ThemeRules(above=given.above, grown=given.grown, most=given.themes))


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
    """*data* is held where that is needed. The ledger of forgets is asked as by a sidecar: nothing comes back.
    *reflecting*: a model draws conclusions whether or not that is switched on; ConfigurationError without one."""
    metrics = Metrics(CollectorRegistry(), __version__)
    async with AsyncExitStack() as stack:
        embedder = await open_embedder(settings, metrics, stack)
        link = await open_link(settings, metrics, stack)
        keys = await open_keys(settings, data, link, stack)
        coordination = sealed_coordination(await open_coordination(settings, data, link, now, stack), keys)
        store = MilvusStore(milvus_options(settings, data, embedder.fingerprint), metrics, now=now)
        stack.push_async_callback(store.close)
        await store.open()
        forgotten = await _read_forgotten(settings, data, link, stack)
        unsealed = sealed_store(settings, store, keys)
        hiding = HidingStore(unsealed, forgotten)
        limits = replace(partition_limits(settings), bytes=_SMALL, patience=timedelta())
        partitions = await stack.enter_async_context(
            Partitions(hiding, coordination, limits, metrics, now=now, forgotten=forgotten)
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


async def _read_forgotten(
    settings: Settings, data: Path, link: RedisLink | None, stack: AsyncExitStack
) -> Forgotten:
    """A command is no replica that serves: it needs no lease."""
    key = settings.privacy.key or b""
    if link is None:
        path = Path(settings.forget.ledger) if settings.forget.ledger else data / LEDGER
        return Forgotten(await stack.enter_async_context(SqliteLedger(path)), SoleReplica(), key=key)
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
            kept = sealed_store(settings, lists, tended.keys)
        partitions = tended.partitions
        yield (
            Reembedding(lists, tended.shown, partitions, partitions, tended.embedder, Pace(), says=says),
            kept,
        )


_SMALL = 1 << 20  # bytes of memories held: a command reads everybody's once
