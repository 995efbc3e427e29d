"""Retention as configured."""

from __future__ import annotations

import random
import uuid
from contextlib import AsyncExitStack
from functools import partial

from memory_extproc.app.live import Live
from memory_extproc.app.models import completions_for
from memory_extproc.app.options import partition_limits
from memory_extproc.app.passing import steady_seconds
from memory_extproc.learn.budget import Budget
from memory_extproc.learn.llm_consolidator import LlmConsolidator
from memory_extproc.learn.llm_reflector import LlmReflector
from memory_extproc.learn.same import about, agree, saying
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Coordination, Embeds, KeepsInOrder, ListsOwners, MemoryStore, Now
from memory_extproc.retention.accesses import Accesses, AccessLimits
from memory_extproc.retention.clocks import Clocks
from memory_extproc.retention.duplicates import DuplicateRules
from memory_extproc.retention.histories import HistoryRules
from memory_extproc.retention.job import JobLimits, RetentionJob
from memory_extproc.retention.keeper import Keeper, KeeperRules, Rebuilds, Wording
from memory_extproc.retention.reflections import ReflectionLimits, Reflections, Reflects
from memory_extproc.retention.rules import RetentionRules
from memory_extproc.retention.subjects import Consolidates, SubjectRules, Subjects
from memory_extproc.retention.themes import ThemeRules
from memory_extproc.settings import Settings
from memory_extproc.settings.memory import ModelRole
from memory_extproc.store.partition import Partitions

_WORDING = Wording(says=saying, about=about, agree=agree)


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
    reflections = subjects = None
    if reflects is not None:
        limits = reflection_limits(settings)
        reflections = Reflections(reflects, partitions, embedder, coordination, limits, about, now=now)
    if consolidates is not None:
        subjects = Subjects(consolidates, partitions, embedder, subject_rules(settings), about, now=now)
    keeper = Keeper(
        store, partitions, partitions, embedder, keeper_rules(settings), _WORDING,
        now=now, reflections=reflections, rebuilds=rebuilds, subjects=subjects,
    )  # fmt: skip
    job = RetentionJob(
        lists,
        keeper,
        coordination,
        job_limits(settings),
        metrics,
        holder=uuid.uuid4().hex,
        now=now,
        chance=random.random,
        clocks=Clocks(now, steady_seconds),
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
