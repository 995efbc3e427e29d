"""Retention as configured."""

from __future__ import annotations

import random
import uuid
from datetime import timedelta

from memory_extproc.app.context import AppContext, partition_limits, text_bytes
from memory_extproc.app.models import completions_for
from memory_extproc.app.storage import Stores
from memory_extproc.concurrency import steady_now, steady_seconds
from memory_extproc.learn.extract.llm_client import LlmPrompt, strict_schema
from memory_extproc.learn.extract.llm_extractor import LlmConsolidator, LlmReflector
from memory_extproc.learn.wording import about, agree, saying
from memory_extproc.ports import ConditionalWriter, Coordination, EmbeddingModel, MemoryWriter
from memory_extproc.retention.passes import RetentionPass, SummaryRebuilder, Wording
from memory_extproc.retention.reflection import (
    Reflections,
    SubjectConsolidator,
    Subjects,
    ThemeReflector,
)
from memory_extproc.retention.rules import OwnerRows
from memory_extproc.retention.scheduler import Clocks, RetentionJob
from memory_extproc.retention.usage import Accesses
from memory_extproc.safety.prompt_injection import suspicion
from memory_extproc.settings.memory import ModelRole
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
from memory_extproc.topics.tracker import TopicDecider, TopicTracker
from memory_extproc.topics.writer import Closing, Rebuilding

_WORDING = Wording(says=saying, about=about, agree=agree)


def make_reflector(context: AppContext, *, always: bool = False) -> ThemeReflector | None:
    """The reflector; None if disabled, unless *always*, or without a model."""
    if not (context.settings.retention.reflect.enabled or always):
        return None
    completions = completions_for(context, ModelRole.MEMORY_EXTRACTION)
    return None if completions is None else LlmReflector(completions, context.budget)


def make_consolidator(context: AppContext) -> SubjectConsolidator | None:
    """The consolidator; None without a model."""
    completions = completions_for(context, ModelRole.MEMORY_EXTRACTION)
    return None if completions is None else LlmConsolidator(completions, context.budget)


async def open_accesses(context: AppContext, rows: ConditionalWriter) -> Accesses:
    live = context.live

    def interval() -> timedelta:
        return live.settings.retention.access_interval

    return await context.stack.enter_async_context(Accesses(rows, interval, now=context.now, rng=random.random))


def make_retention(
    context: AppContext, kept: Stores, rebuilds: SummaryRebuilder, reflects: ThemeReflector | None
) -> RetentionJob:
    live, partitions, embedder, now = context.live, kept.partitions, kept.embedder, context.now
    reflections = subjects = None
    if reflects is not None:
        reflections = Reflections(
            reflects,
            partitions,
            embedder,
            kept.coordination,
            lambda: live.settings.retention.reflect,
            about,
            now=now,
        )
    if (consolidates := make_consolidator(context)) is not None:
        subjects = Subjects(
            consolidates, partitions, embedder, lambda: live.settings.retention.consolidate.subject, about, now=now
        )
    keeper = RetentionPass(
        OwnerRows(kept.shown, partitions, partition_limits(live.settings).page), embedder,
        lambda: live.settings.retention, _WORDING, now=now,
        reflections=reflections, rebuilds=rebuilds, subjects=subjects,
    )  # fmt: skip
    job = RetentionJob(
        kept.store,
        keeper,
        kept.coordination,
        lambda: live.settings.retention.every,
        context.metrics,
        holder=uuid.uuid4().hex,
        now=now,
        rng=random.random,
        clocks=Clocks(now, steady_seconds),
    )
    live.subscribe(lambda _: job.reschedule())
    return job


# Topics and summaries as configured.


def make_summing(context: AppContext, embedder: EmbeddingModel) -> tuple[Summaries, Rebuilding]:
    """Build summarisation and rebuilding. Also with topics disabled: earlier summaries may exist."""
    summaries = Summaries(context.metrics, prompts=_prompts(context), trusted=lambda text: suspicion(text) is None)
    most = text_bytes(context.settings)
    rebuilding = Rebuilding(summaries, embedder, now=context.now, least=LEAST_MESSAGES, content_bytes=most)
    return summaries, rebuilding


def make_topics(
    context: AppContext,
    summaries: Summaries,
    keeps: MemoryWriter,
    embedder: EmbeddingModel,
    coordination: Coordination,
) -> TopicTracker:
    """Build the topics part, to be entered whether or not it is enabled."""
    live, now = context.live, context.now
    sayings = Sayings(keeps)
    closing = Closing(
        keeps,
        sayings,
        summaries,
        embedder,
        now=now,
        least=LEAST_MESSAGES,
        content_bytes=text_bytes(live.settings),
    )
    return TopicTracker(
        TopicDecider(sayings, summaries, embedder, live, context.metrics),
        closing,
        coordination,
        live,
        context.metrics,
        now=now,
        monotonic_now=steady_now,
        holder=uuid.uuid4().hex,
    )


def _prompts(context: AppContext) -> Prompts | None:
    if context.settings.topics.model == "off":
        return None
    decides = completions_for(context, ModelRole.MEMORY_TOPICS)
    sums = completions_for(context, ModelRole.MEMORY_SUMMARY)
    if decides is None or sums is None:
        return None
    budget = context.budget
    return Prompts(
        shift=LlmPrompt(decides, SHIFT, strict_schema(Same), budget, words=prompt(SHIFT)),
        topic=LlmPrompt(sums, TOPIC, strict_schema(NamedSummary), budget, words=prompt(TOPIC)),
        session=LlmPrompt(sums, SESSION, strict_schema(Summed), budget, words=prompt(SESSION)),
    )
