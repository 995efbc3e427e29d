"""Retention as configured."""

from __future__ import annotations

import random
import uuid
from contextlib import AsyncExitStack
from functools import partial

from memory_extproc.app.context import Live, partition_limits
from memory_extproc.app.models import completions_for
from memory_extproc.concurrency import steady_now, steady_seconds
from memory_extproc.encryption.keys import sealable
from memory_extproc.learn.conflicts import about, agree, saying
from memory_extproc.learn.extract.llm_client import Budget, LlmPrompt, strict_schema
from memory_extproc.learn.extract.llm_notes import LlmConsolidator, LlmReflector
from memory_extproc.learn.messages import format_origin
from memory_extproc.model import message_id_of
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import (
    ConditionalWriter,
    Coordination,
    EmbeddingModel,
    MemoryStore,
    MemoryWriter,
    Now,
    OwnerLister,
)
from memory_extproc.retention.merge import DuplicateRules, HistoryRules
from memory_extproc.retention.passes import RetentionPass, RetentionPassRules, SummaryRebuilder, Wording
from memory_extproc.retention.reflection import (
    ReflectionLimits,
    Reflections,
    SubjectConsolidator,
    SubjectRules,
    Subjects,
    ThemeReflector,
    ThemeRules,
)
from memory_extproc.retention.rules import RetentionRules
from memory_extproc.retention.scheduler import Clocks, JobLimits, RetentionJob
from memory_extproc.retention.usage import Accesses, AccessLimits
from memory_extproc.safety.prompt_injection import suspicion
from memory_extproc.settings import Settings
from memory_extproc.settings.memory import ModelRole
from memory_extproc.store.partition import Partitions
from memory_extproc.topics.boundaries import ShiftLimits
from memory_extproc.topics.state import Sayings
from memory_extproc.topics.summarizer import (
    SESSION,
    SHIFT,
    TOPIC,
    NamedSummary,
    Prompts,
    Same,
    Summaries,
    Summed,
    prompt,
)
from memory_extproc.topics.tracker import TopicLimits, TopicTracker
from memory_extproc.topics.writer import Closing, Rebuilding

_WORDING = Wording(says=saying, about=about, agree=agree)


def keeper_rules(settings: Settings) -> RetentionPassRules:
    given = settings.retention
    return RetentionPassRules(
        retention=RetentionRules(
            weight=given.weight,
            half_life=given.half_life,
            max_memories=given.max_memories,
            prune_share=given.prune_share,
            protect=given.protect,
            grace=given.grace,
            history=given.history,
            ttl=given.ttl.set_lifetimes(),
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
) -> ThemeReflector | None:
    """The reflector; None if disabled, unless *always*, or without a model."""
    model = settings.model_for(ModelRole.MEMORY_EXTRACTION)
    if not (settings.retention.reflect.enabled or always) or model is None or budget is None:
        return None
    return LlmReflector(completions_for(model, ModelRole.MEMORY_EXTRACTION, metrics, stack, live), budget)


async def open_accesses(live: Live, rows: ConditionalWriter, stack: AsyncExitStack, *, now: Now) -> Accesses:
    accesses = Accesses(rows, access_limits(live.settings), now=now, rng=random.random)
    live.subscribe(lambda new: accesses.reconfigure(access_limits(new)))
    return await stack.enter_async_context(accesses)


def access_limits(settings: Settings) -> AccessLimits:
    return AccessLimits(interval=settings.retention.access_interval)


def make_retention(
    settings: Settings,
    lists: OwnerLister,
    store: MemoryStore,
    partitions: Partitions,
    embedder: EmbeddingModel,
    coordination: Coordination,
    metrics: Metrics,
    *,
    now: Now,
    rebuilds: SummaryRebuilder,
    reflects: ThemeReflector | None = None,
    consolidates: SubjectConsolidator | None = None,
    live: Live | None = None,
) -> RetentionJob:
    """*store*: without forgotten memories, like the partitions; *lists*: the store behind it."""
    reflections = subjects = None
    if reflects is not None:
        limits = reflection_limits(settings)
        reflections = Reflections(reflects, partitions, embedder, coordination, limits, about, now=now)
    if consolidates is not None:
        subjects = Subjects(consolidates, partitions, embedder, subject_rules(settings), about, now=now)
    keeper = RetentionPass(
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
        rng=random.random,
        clocks=Clocks(now, steady_seconds),
    )
    if live is not None:
        live.subscribe(partial(_use, keeper, job, reflections, subjects))
    return job


def _use(
    keeper: RetentionPass,
    job: RetentionJob,
    reflections: Reflections | None,
    subjects: Subjects | None,
    new: Settings,
) -> None:
    keeper.reconfigure(keeper_rules(new))
    job.reconfigure(job_limits(new))
    if reflections is not None:
        reflections.reconfigure(reflection_limits(new))
    if subjects is not None:
        subjects.reconfigure(subject_rules(new))


def job_limits(settings: Settings) -> JobLimits:
    return JobLimits(every=settings.retention.every)


def subject_rules(settings: Settings) -> SubjectRules:
    return SubjectRules(above=settings.retention.consolidate.subject)


def make_consolidator(
    settings: Settings, metrics: Metrics, stack: AsyncExitStack, budget: Budget | None, live: Live | None = None
) -> SubjectConsolidator | None:
    """The consolidator; None without a model."""
    model = settings.model_for(ModelRole.MEMORY_EXTRACTION)
    if model is None or budget is None:
        return None
    return LlmConsolidator(completions_for(model, ModelRole.MEMORY_EXTRACTION, metrics, stack, live), budget)


def reflection_limits(settings: Settings) -> ReflectionLimits:
    given = settings.retention.reflect
    return ReflectionLimits(themes=ThemeRules(above=given.above, grown=given.grown, most=given.themes))


# Topics and summaries as configured.


def make_summing(
    settings: Settings,
    budget: Budget,
    embedder: EmbeddingModel,
    metrics: Metrics,
    stack: AsyncExitStack,
    live: Live | None = None,
    *,
    now: Now,
) -> tuple[Summaries, Rebuilding]:
    """Build summarisation and rebuilding. Also with topics disabled: earlier summaries may exist."""
    prompts = _prompts(settings, budget, metrics, stack, live)
    summaries = Summaries(metrics, prompts=prompts, trusted=lambda text: suspicion(text) is None)
    least, most = shift_limits(settings).least, _content_bytes(settings)
    return summaries, Rebuilding(summaries, embedder, now=now, least=least, content_bytes=most)


def _content_bytes(settings: Settings) -> int:
    content = settings.limits.content_bytes
    return sealable(content) if settings.privacy.encrypt_content else content


async def open_topics(
    settings: Settings,
    summaries: Summaries,
    keeps: MemoryWriter,
    embedder: EmbeddingModel,
    coordination: Coordination,
    metrics: Metrics,
    stack: AsyncExitStack,
    live: Live,
    *,
    now: Now,
) -> TopicTracker | None:
    if not settings.topics.enabled:
        return None
    topics = make_topics(settings, summaries, keeps, embedder, coordination, metrics, now=now)
    live.subscribe(lambda new: topics.reconfigure(topic_limits(new)))
    return await stack.enter_async_context(topics)


def make_topics(
    settings: Settings,
    summaries: Summaries,
    keeps: MemoryWriter,
    embedder: EmbeddingModel,
    coordination: Coordination,
    metrics: Metrics,
    *,
    now: Now,
) -> TopicTracker:
    """Build the topics part, to be entered whether or not it is enabled."""
    limits = topic_limits(settings)
    sayings = Sayings(keeps, message_id_of)
    closing = Closing(
        keeps,
        sayings,
        summaries,
        embedder,
        now=now,
        least=limits.shift.least,
        content_bytes=_content_bytes(settings),
    )
    return TopicTracker(
        sayings,
        closing,
        summaries,
        embedder,
        coordination,
        limits,
        metrics,
        now=now,
        monotonic_now=steady_now,
        rng=random.random,
        holder=uuid.uuid4().hex,
        format_origin=format_origin,
    )


def topic_limits(settings: Settings) -> TopicLimits:
    return TopicLimits(shift=shift_limits(settings), idle=settings.topics.idle, grace=settings.shutdown.flush)


def shift_limits(settings: Settings) -> ShiftLimits:
    topics = settings.topics
    return ShiftLimits(same=topics.same, apart=topics.apart, characters=topics.characters)


def _prompts(
    settings: Settings, budget: Budget, metrics: Metrics, stack: AsyncExitStack, live: Live | None
) -> Prompts | None:
    deciding = settings.model_for(ModelRole.MEMORY_TOPICS)
    summing = settings.model_for(ModelRole.MEMORY_SUMMARY)
    if settings.topics.model == "off" or deciding is None or summing is None:
        return None
    decides = completions_for(deciding, ModelRole.MEMORY_TOPICS, metrics, stack, live)
    sums = completions_for(summing, ModelRole.MEMORY_SUMMARY, metrics, stack, live)
    return Prompts(
        shift=LlmPrompt(decides, SHIFT, strict_schema(Same), budget, words=prompt(SHIFT)),
        topic=LlmPrompt(sums, TOPIC, strict_schema(NamedSummary), budget, words=prompt(TOPIC)),
        session=LlmPrompt(sums, SESSION, strict_schema(Summed), budget, words=prompt(SESSION)),
    )
