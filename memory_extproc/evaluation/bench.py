"""The composition root of the tools: the sidecar's own parts, as configured, without Envoy around them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial

from memory_extproc.app import (
    hold_lite,
    make_extraction,
    make_recaller,
    open_embedder,
    open_keys,
    open_link,
    open_reranks,
    piece_limits,
    sealed_store,
)
from memory_extproc.app.context import Live, make_context
from memory_extproc.app.maintenance import make_summing, make_topics
from memory_extproc.app.read_path import open_matcher
from memory_extproc.app.storage import open_milvus
from memory_extproc.app.write_path import Extraction
from memory_extproc.concurrency import utc_now
from memory_extproc.evaluation.runner import Bench
from memory_extproc.learn.extract.extractor import FactExtractor, Fallback
from memory_extproc.learn.extract.llm_client import Budget
from memory_extproc.learn.messages import judge
from memory_extproc.ports import Coordination, EmbeddingModel, MemoryWriter, Now
from memory_extproc.recall.fusion import Weights
from memory_extproc.recall.recaller import Recaller
from memory_extproc.settings import Settings
from memory_extproc.settings.paths import ModelTokens
from memory_extproc.store.loader import PartitionLimits
from memory_extproc.store.partition import Partitions
from memory_extproc.testing.adapters import InMemoryCoordination
from memory_extproc.topics.tracker import TopicTracker


@asynccontextmanager
async def embedder_of(settings: Settings) -> AsyncIterator[EmbeddingModel]:
    """The configured embedder alone."""
    async with AsyncExitStack() as stack:
        yield await open_embedder(make_context(settings, stack))


@asynccontextmanager
async def bench(settings: Settings, *, topics: bool = False, unbounded: bool = False) -> AsyncIterator[Bench]:
    """The configured embedder, extractor and recaller over memories in process, with the deadline, caches and
    limits of a sidecar. *unbounded*: without a deadline, so that no figure depends on the load of the machine.
    *topics*: with summaries."""
    async with AsyncExitStack() as stack:
        budget = Budget(lambda: ModelTokens(caller_hour=None, caller_day=None), now=utc_now)
        context = replace(make_context(settings, stack), budget=budget)
        embedder = await open_embedder(context)
        reranks = await open_reranks(context)
        matcher = await open_matcher(context, embedder, UNHURRIED)
        live = Live(_without_deadline(settings)) if unbounded else context.live

        def recaller(
            finds: Partitions, embedder: EmbeddingModel, now: Now, *, weights: Weights | None = None
        ) -> Recaller:
            return make_recaller(
                replace(context, live=live, now=now),
                finds,
                embedder,
                weights=weights,
                reranks=reranks,
                waits=UNHURRIED / 2 if unbounded else timedelta(),
                matcher=matcher,
            )

        summaries, _ = make_summing(context, embedder)

        def following(keeps: MemoryWriter, coordination: Coordination, now: Now) -> TopicTracker:
            return make_topics(replace(context, now=now), summaries, keeps, embedder, coordination)

        yield Bench(
            embedder=embedder,
            extractor=_at_once(make_extraction(context)),
            judged=partial(judge, limits=piece_limits(settings, embedder)),
            metrics=context.metrics,
            recaller=recaller,
            partition=PartitionLimits(bytes=settings.recall.partition_bytes),
            topics=following if topics else None,
            deadline=None if unbounded else settings.deadline,
        )


def _at_once(extraction: Extraction) -> FactExtractor | None:
    """An evaluation never retries: if the model is unavailable, rules extract."""
    if extraction.extractor is None or extraction.fallback is None:
        return extraction.extractor
    return Fallback(extraction.extractor, extraction.fallback, waits=False)


UNHURRIED = timedelta(minutes=1)  # per question
READ_WITHIN = timedelta(seconds=30)  # to read an owner's memories from the store; nothing waits behind it


@asynccontextmanager
async def open_recaller(settings: Settings) -> AsyncIterator[Recaller]:
    """The read path over the configured store. ConfigurationError while a sidecar holds the Lite file, which
    allows a single process. Beside a sidecar with a Milvus server it only reads."""
    async with AsyncExitStack() as stack:
        hold_lite(settings, stack)
        context = make_context(settings, stack)
        embedder = await open_embedder(context)
        store = await open_milvus(context, embedder)
        keys = await open_keys(context, await open_link(context))
        # It reads once, so versions of other replicas do not matter.
        partitions = await stack.enter_async_context(
            Partitions(
                sealed_store(settings, store, keys, context.metrics),
                InMemoryCoordination(utc_now),
                PartitionLimits(bytes=settings.recall.partition_bytes, patience=READ_WITHIN),
                context.metrics,
                now=utc_now,
            )
        )
        yield make_recaller(
            context,
            partitions,
            embedder,
            reranks=await open_reranks(context),
            waits=READ_WITHIN,
            matcher=await open_matcher(context, embedder, UNHURRIED),
        )


def _without_deadline(settings: Settings) -> Settings:
    """Give every step ample time: on a busy machine, timeouts would switch to fallbacks (words alone, no
    reranking), and the figures would describe the machine."""
    return settings.model_copy(update={"recall": settings.recall.model_copy(update={"deadline": UNHURRIED})})
