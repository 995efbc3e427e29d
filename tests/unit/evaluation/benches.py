"""A bench of canned models."""

from __future__ import annotations

from datetime import timedelta

from prometheus_client import CollectorRegistry

from memory_extproc.evaluation.datasets import Dataset
from memory_extproc.evaluation.runner import Bench
from memory_extproc.evaluation.training import Gathered, gather, learn_all
from memory_extproc.learn.extract.extractor import FactExtractor
from memory_extproc.learn.messages import judge
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import EmbeddingModel, MemorySearcher, Now
from memory_extproc.recall.fusion import Weights
from memory_extproc.recall.recaller import Recaller
from memory_extproc.store.loader import PartitionLimits
from memory_extproc.testing.models import CannedEmbedder
from tests.support.recallers import a_recaller
from tests.support.sidecar import request_settings


def a_bench(extractor: FactExtractor | None = None) -> Bench:
    metrics = Metrics(CollectorRegistry(), "test")

    def recaller(
        finds: MemorySearcher, embedder: EmbeddingModel, now: Now, *, weights: Weights | None = None
    ) -> Recaller:
        limits = request_settings(deadline=timedelta(seconds=10))
        return a_recaller(finds, embedder, limits, metrics, now, weights=weights)

    return Bench(
        embedder=CannedEmbedder(64),
        extractor=extractor,
        judged=judge,
        metrics=metrics,
        recaller=recaller,
        partition=PartitionLimits(),
    )


async def gather_from(dataset: Dataset, *, dense: bool = True) -> list[Gathered]:
    """What is gathered of *dataset*, learn_all for it."""
    bench = a_bench()
    async with learn_all(dataset, bench) as stage:
        return await gather(stage, bench, dense=dense)
