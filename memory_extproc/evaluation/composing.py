"""The composition root of the tools: the sidecar's own parts, as configured, without Envoy around them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from prometheus_client import CollectorRegistry

from memory_extproc import __version__
from memory_extproc.app import make_extractor, make_recaller, open_embedder
from memory_extproc.evaluation.running import Bench
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Embeds, FindsMemories, Now
from memory_extproc.recall.recaller import Recaller
from memory_extproc.settings import Settings
from memory_extproc.store.partition import PartitionLimits


@asynccontextmanager
async def bench(settings: Settings) -> AsyncIterator[Bench]:
    """The configured embedder, extractor and recaller, for memories held in process alone."""
    metrics = Metrics(CollectorRegistry(), __version__)
    async with AsyncExitStack() as stack:
        embedder = await open_embedder(settings, metrics, stack)

        def recaller(finds: FindsMemories, queries: Embeds, now: Now) -> Recaller:
            return make_recaller(settings, finds, queries, metrics, stack, now=now)

        yield Bench(
            embedder=embedder,
            extractor=make_extractor(settings, metrics, stack),
            metrics=metrics,
            recaller=recaller,
            partition=PartitionLimits(bytes=settings.recall.partition_bytes),
        )
