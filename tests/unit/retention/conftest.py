"""A desk for each test."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from memory_extproc.observe.metrics import Metrics
from memory_extproc.store.loader import PartitionLimits
from memory_extproc.store.partition import Partitions
from memory_extproc.testing.adapters import InMemoryCoordination, InMemoryStore
from memory_extproc.testing.models import CannedEmbedder
from tests.support.builders import Clock, later
from tests.unit.retention.keeping import Desk


@pytest.fixture
def desk() -> Desk:
    clock = Clock(later(days=40))
    embedder = CannedEmbedder()
    store, coordination = InMemoryStore(embedder.dimension, now=clock), InMemoryCoordination(clock)
    metrics = Metrics(CollectorRegistry(), "test")
    partitions = Partitions(store, coordination, PartitionLimits(), metrics, now=clock)
    return Desk(clock, store, coordination, partitions, embedder, metrics)
