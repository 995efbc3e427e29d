"""The composition root of the tools: the sidecar's own parts, as configured, without Envoy around them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry

from memory_extproc import __version__
from memory_extproc.app import (
    hold_lite,
    make_extraction,
    make_recaller,
    milvus_options,
    open_embedder,
    open_keys,
    open_link,
    open_reranks,
    piece_limits,
    sealed_store,
)
from memory_extproc.app.context import Live, recall_limits
from memory_extproc.app.maintenance import make_summing, make_topics
from memory_extproc.app.read_path import open_matcher
from memory_extproc.app.write_path import Extraction
from memory_extproc.concurrency import utc_now
from memory_extproc.evaluation.runner import Bench
from memory_extproc.learn.extract.extractor import FactExtractor, Fallback
from memory_extproc.learn.extract.llm_client import Budget
from memory_extproc.learn.messages import judge
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Coordination, EmbeddingModel, MemoryWriter, Now
from memory_extproc.recall.fusion import Weights
from memory_extproc.recall.recaller import Recaller
from memory_extproc.settings import Settings
from memory_extproc.settings.paths import ModelTokens
from memory_extproc.store.loader import PartitionLimits
from memory_extproc.store.milvus.store import MilvusStore
from memory_extproc.store.partition import Partitions
from memory_extproc.testing.adapters import InMemoryCoordination
from memory_extproc.topics.tracker import TopicTracker


@asynccontextmanager
async def embedder_of(settings: Settings) -> AsyncIterator[EmbeddingModel]:
    """The configured embedder alone."""
    async with AsyncExitStack() as stack:
        yield await open_embedder(settings, Metrics(CollectorRegistry(), __version__), stack)


@asynccontextmanager
async def bench(settings: Settings, *, topics: bool = False, unbounded: bool = False) -> AsyncIterator[Bench]:
    """The configured embedder, extractor and recaller over memories in process, with the deadline, caches and
    limits of a sidecar. *unbounded*: without a deadline, so that no figure depends on the load of the machine.
    *topics*: with summaries."""
    metrics = Metrics(CollectorRegistry(), __version__)
    async with AsyncExitStack() as stack:
        embedder = await open_embedder(settings, metrics, stack)
        reranks = await open_reranks(settings, metrics, stack)
        matcher = await open_matcher(settings, embedder, metrics, stack, UNHURRIED)

        configured = _without_deadline(settings) if unbounded else settings

        def recaller(
            finds: Partitions, embedder: EmbeddingModel, now: Now, *, weights: Weights | None = None
        ) -> Recaller:
            return make_recaller(
                configured,
                finds,
                embedder,
                metrics,
                stack,
                now=now,
                weights=weights,
                reranks=reranks,
                reads=finds,
                selects=finds,
                waits=UNHURRIED / 2 if unbounded else timedelta(),
                matcher=matcher,
            )

        budget = Budget(ModelTokens(caller_hour=None, caller_day=None), now=utc_now)
        summaries, _ = make_summing(settings, budget, embedder, metrics, stack, now=utc_now)

        def following(keeps: MemoryWriter, coordination: Coordination, now: Now) -> TopicTracker:
            return make_topics(Live(settings), summaries, keeps, embedder, coordination, metrics, now=now)

        yield Bench(
            embedder=embedder,
            extractor=_at_once(make_extraction(settings, metrics, stack, budget)),
            judged=partial(judge, limits=piece_limits(settings, embedder)),
            metrics=metrics,
            recaller=recaller,
            partition=PartitionLimits(bytes=settings.recall.partition_bytes),
            topics=following if topics else None,
            deadline=None if unbounded else recall_limits(settings).deadline,
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
    metrics = Metrics(CollectorRegistry(), __version__)
    async with AsyncExitStack() as stack:
        data = _absolute(settings.data_dir)
        hold_lite(settings, data, stack)
        embedder = await open_embedder(settings, metrics, stack)
        store = MilvusStore(milvus_options(settings, data, embedder.fingerprint), metrics, now=utc_now)
        stack.push_async_callback(store.close)
        await store.open()
        # It reads once, so versions of other replicas do not matter.
        limits = PartitionLimits(bytes=settings.recall.partition_bytes, patience=READ_WITHIN)
        coordination = InMemoryCoordination(utc_now)
        link = await open_link(settings, metrics, stack)
        kept = sealed_store(settings, store, await open_keys(settings, data, link, stack), metrics)
        partitions = await stack.enter_async_context(Partitions(kept, coordination, limits, metrics, now=utc_now))
        reranks = await open_reranks(settings, metrics, stack)
        matcher = await open_matcher(settings, embedder, metrics, stack, UNHURRIED)
        yield make_recaller(
            settings,
            partitions,
            embedder,
            metrics,
            stack,
            now=utc_now,
            reranks=reranks,
            reads=partitions,
            selects=partitions,
            waits=READ_WITHIN,
            matcher=matcher,
        )


def _without_deadline(settings: Settings) -> Settings:
    """Give every step ample time: on a busy machine, timeouts would switch to fallbacks (words alone, no
    reranking), and the figures would describe the machine."""
    return settings.model_copy(update={"recall": settings.recall.model_copy(update={"deadline": UNHURRIED})})


def _absolute(directory: str) -> Path:
    return Path(directory).absolute()
