"""Retention as configured."""

from __future__ import annotations

import random
import uuid
from contextlib import AsyncExitStack
from datetime import timedelta

from memory_extproc.app.context import Live, partition_limits
from memory_extproc.app.models import completions_for
from memory_extproc.concurrency import steady_now, steady_seconds
from memory_extproc.encryption.keys import sealable
from memory_extproc.learn.extract.llm_client import Budget, LlmPrompt, strict_schema
from memory_extproc.learn.extract.llm_notes import LlmConsolidator, LlmReflector
from memory_extproc.learn.wording import about, agree, saying
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
from memory_extproc.retention.passes import RetentionPass, SummaryRebuilder, Wording
from memory_extproc.retention.reflection import (
    Reflections,
    SubjectConsolidator,
    Subjects,
    ThemeReflector,
)
from memory_extproc.retention.rules import OwnerRows
from memory_extproc.retention.scheduler import Clocks, JobLimits, RetentionJob
from memory_extproc.retention.usage import Accesses
from memory_extproc.safety.prompt_injection import suspicion
from memory_extproc.settings import Settings
from memory_extproc.settings.memory import ModelRole
from memory_extproc.store.partition import Partitions
from memory_extproc.topics.state import LEAST_MESSAGES, Sayings
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
from memory_extproc.topics.tracker import TopicDecider, TopicLimits, TopicTracker
from memory_extproc.topics.writer import Closing, Rebuilding

_WORDING = Wording(says=saying, about=about, agree=agree)


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
    def interval() -> timedelta:
        return live.settings.retention.access_interval

    return await stack.enter_async_context(Accesses(rows, interval, now=now, rng=random.random))


def make_retention(
    live: Live,
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
) -> RetentionJob:
    """*store*: without forgotten memories, like the partitions; *lists*: the store behind it."""
    settings = live.settings
    reflections = subjects = None
    if reflects is not None:
        reflections = Reflections(
            reflects, partitions, embedder, coordination, lambda: live.settings.retention.reflect, about, now=now
        )
    if consolidates is not None:
        subjects = Subjects(
            consolidates, partitions, embedder, lambda: live.settings.retention.consolidate.subject, about, now=now
        )
    keeper = RetentionPass(
        OwnerRows(store, partitions, partition_limits(settings).page), embedder,
        lambda: live.settings.retention, _WORDING, now=now,
        reflections=reflections, rebuilds=rebuilds, subjects=subjects,
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
    live.subscribe(lambda new: job.reconfigure(job_limits(new)))
    return job


def job_limits(settings: Settings) -> JobLimits:
    return JobLimits(every=settings.retention.every)


def make_consolidator(
    settings: Settings, metrics: Metrics, stack: AsyncExitStack, budget: Budget | None, live: Live | None = None
) -> SubjectConsolidator | None:
    """The consolidator; None without a model."""
    model = settings.model_for(ModelRole.MEMORY_EXTRACTION)
    if model is None or budget is None:
        return None
    return LlmConsolidator(completions_for(model, ModelRole.MEMORY_EXTRACTION, metrics, stack, live), budget)


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
    most = _content_bytes(settings)
    return summaries, Rebuilding(summaries, embedder, now=now, least=LEAST_MESSAGES, content_bytes=most)


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
    topics = make_topics(live, summaries, keeps, embedder, coordination, metrics, now=now)
    return await stack.enter_async_context(topics)


def make_topics(
    live: Live,
    summaries: Summaries,
    keeps: MemoryWriter,
    embedder: EmbeddingModel,
    coordination: Coordination,
    metrics: Metrics,
    *,
    now: Now,
) -> TopicTracker:
    """Build the topics part, to be entered whether or not it is enabled."""
    settings = live.settings
    sayings = Sayings(keeps)
    closing = Closing(
        keeps,
        sayings,
        summaries,
        embedder,
        now=now,
        least=LEAST_MESSAGES,
        content_bytes=_content_bytes(settings),
    )
    return TopicTracker(
        TopicDecider(sayings, summaries, embedder, live, metrics),
        closing,
        coordination,
        live,
        metrics,
        limits=TopicLimits(grace=settings.shutdown.flush),
        now=now,
        monotonic_now=steady_now,
        holder=uuid.uuid4().hex,
    )


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
