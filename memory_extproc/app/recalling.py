"""The read path as configured."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry

from memory_extproc.app.frame import Frame
from memory_extproc.app.keeping import Kept
from memory_extproc.app.live import Live
from memory_extproc.app.models import completions_for, open_reranks
from memory_extproc.app.options import recall_limits
from memory_extproc.errors import ConfigurationError
from memory_extproc.language.persons import about_caller, compile_patterns
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.observe.tracing import NO_TRACES, Traces
from memory_extproc.ports import Embeds, FindsMemories, Learns, MemoryStore, Now, ReadsMemories, ReadsWords, Reranks
from memory_extproc.recall.canary import Canary, CanaryLimits
from memory_extproc.recall.close_reading import CloseReader, CloseReadingLimits
from memory_extproc.recall.fusion import Fusion
from memory_extproc.recall.gate import AboutCaller
from memory_extproc.recall.ongoing import Ongoing
from memory_extproc.recall.query import Rewrite, Rewriter
from memory_extproc.recall.recaller import Recaller
from memory_extproc.recall.rerank import Reranker, RerankLimits
from memory_extproc.recall.threads import ThreadLimits, Threads
from memory_extproc.recall.weights import WeightsError, packaged_weights, read_weights
from memory_extproc.settings import Settings
from memory_extproc.settings.memory import ModelRole
from memory_extproc.store.partition import Partitions

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Reading:
    recaller: Recaller
    canary: Canary | None  # None: it is switched off


async def open_reading(frame: Frame, kept: Kept, learns: Learns) -> Reading:
    """The read path of a sidecar, with what watches over it."""
    settings, metrics, stack, now = frame.settings, frame.metrics, frame.stack, frame.now
    recaller = make_recaller(
        settings,
        kept.partitions,
        kept.embedder,
        metrics,
        stack,
        now=now,
        reranks=await open_reranks(settings, metrics, stack, frame.live),
        learns=learns,
        reads=kept.partitions,
        live=frame.live,
        traces=frame.traces,
    )
    canary = await open_canary(frame.live, kept.partitions, kept.shown, kept.embedder, metrics, stack, now=now)
    return Reading(recaller, canary)


def make_recaller(
    settings: Settings,
    finds: FindsMemories,
    embedder: Embeds,
    metrics: Metrics,
    stack: AsyncExitStack,
    *,
    now: Now,
    reranks: Reranks | None = None,
    learns: Learns | None = None,
    reads: ReadsMemories | None = None,
    live: Live | None = None,
    waits: timedelta = timedelta(),
    traces: Traces = NO_TRACES,
) -> Recaller:
    """The read path as configured; the tools that measure and explain it use the same one. *waits*: for words of
    memories that are not at hand, where nobody waits for the answer."""
    metrics.recall_deadline.set(settings.deadline.total_seconds())
    fusion = _fusion(settings, embedder.fingerprint)
    reranker = None if reranks is None else Reranker(reranks, rerank_limits(settings), metrics=metrics)
    threads = None if reads is None else Threads(reads, thread_limits(settings))
    if live is not None:
        live.follow(partial(_use, reranker, threads))
    return Recaller(
        finds,
        embedder,
        recall_limits(settings),
        fusion=fusion,
        now=now,
        metrics=metrics,
        about_caller=about_caller_of(settings),
        learns=learns,
        rewriter=_rewriter(settings, metrics, stack, live),
        reranker=reranker,
        close_reader=_close_reader(embedder, fusion, waits, metrics),
        threads=threads,
        ongoing=None if reads is None else Ongoing(reads),
        traces=traces,
    )


def _use(reranker: Reranker | None, threads: Threads | None, new: Settings) -> None:
    if reranker is not None:
        reranker.use(rerank_limits(new))
    if threads is not None:
        threads.use(thread_limits(new))


def rerank_limits(settings: Settings) -> RerankLimits:
    recall = settings.recall
    return RerankLimits(first=recall.rerank_candidates, by_text=recall.rerank == "cross_encoder")


def thread_limits(settings: Settings) -> ThreadLimits:
    return ThreadLimits(min_relevance=settings.recall.threads.min_relevance, max=settings.recall.threads.max)


async def open_canary(
    live: Live,
    partitions: Partitions,
    store: MemoryStore,
    embedder: Embeds,
    metrics: Metrics,
    stack: AsyncExitStack,
    *,
    now: Now,
) -> Canary | None:
    """Asks with the read path as configured but for language models, which would cost; its recalls are in the
    metrics of nobody."""
    settings = live.settings
    if settings.telemetry.canary == "off":
        return None
    alone = settings.model_copy(update={"external_models": ()})
    unseen = Metrics(CollectorRegistry(), "")
    recaller = make_recaller(alone, partitions, embedder, unseen, stack, now=now)
    limits = _canary_limits(settings, settings.telemetry.canary)
    canary = Canary(recaller, partitions, store, embedder, limits, metrics, now=now)

    def use(new: Settings) -> None:
        recaller.use(recall_limits(new), about_caller_of(new))
        canary.use(_canary_limits(new, limits.every))

    live.follow(use)
    return await stack.enter_async_context(canary)


def _canary_limits(settings: Settings, every: timedelta) -> CanaryLimits:
    memory = settings.memory
    return CanaryLimits(
        every=every, limit=memory.default_retrieval_limit, threshold=memory.default_similarity_threshold
    )


def _close_reader(embedder: Embeds, fusion: Fusion, waits: timedelta, metrics: Metrics) -> CloseReader | None:
    if not fusion.reads_closely or not isinstance(embedder, ReadsWords) or not embedder.reads_words:
        return None
    return CloseReader(embedder, CloseReadingLimits(waits=waits), metrics)


def _fusion(settings: Settings, fingerprint: str) -> Fusion:
    try:
        if settings.recall.weights:
            return Fusion(read_weights(Path(settings.recall.weights), fingerprint), fingerprint)
        fusion = Fusion(packaged_weights(), fingerprint)
    except WeightsError as error:
        raise ConfigurationError([f"recall.weights: {error}"]) from error
    if not fusion.fitted:
        log.warning("recall.weights_not_fitted", embedding_model=fingerprint)
    return fusion


def about_caller_of(settings: Settings) -> AboutCaller:
    if not settings.recall.about_caller:
        return about_caller
    return partial(about_caller, patterns=compile_patterns(settings.recall.about_caller))


def _rewriter(settings: Settings, metrics: Metrics, stack: AsyncExitStack, live: Live | None) -> Rewriter | None:
    model = settings.model_for(ModelRole.MEMORY_REWRITE)
    if model is None or not settings.recall.rewrites:
        return None
    completions = completions_for(model, ModelRole.MEMORY_REWRITE, metrics, stack, live)
    recall = settings.recall
    return Rewriter(completions, Rewrite(recall.query_rewrite), hyde=recall.hyde, take_apart=recall.split_questions)
