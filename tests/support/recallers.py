"""Recallers with only the parts that a test is about."""

from __future__ import annotations

import time
from collections.abc import Callable

from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import EmbeddingModel, MemoryReader, MemorySearcher, MemorySelector, Now, TurnLearner
from memory_extproc.recall.fusion import Fusion, Weights, packaged_weights
from memory_extproc.recall.query import QuestionGate, QuestionReader, Rewriter, StageTimer
from memory_extproc.recall.rank import ranking_stages
from memory_extproc.recall.recaller import QuestionSearch, Recaller
from memory_extproc.recall.rerank import Reranker
from memory_extproc.settings import CurrentSettings, Settings


def a_recaller(
    searcher: MemorySearcher,
    embedder: EmbeddingModel,
    settings: Settings,
    metrics: Metrics,
    now: Now,
    *,
    weights: Weights | None = None,
    learner: TurnLearner | None = None,
    rewriter: Rewriter | None = None,
    reranker: Reranker | None = None,
    selects: MemorySelector | None = None,
    reads: MemoryReader | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Recaller:
    """*reads*: for the messages of topics. *selects*: for lookups."""
    current = CurrentSettings(settings)
    search = QuestionSearch(
        searcher,
        embedder,
        Fusion(weights or packaged_weights(), embedder.fingerprint),
        QuestionReader(selects),
        metrics,
        learner=learner,
        rewriter=rewriter,
        reranker=reranker,
    )
    return Recaller(
        QuestionGate(metrics),
        search,
        ranking_stages(reads, current),
        current,
        now=now,
        metrics=metrics,
        timer=StageTimer(metrics, clock=clock),
    )
