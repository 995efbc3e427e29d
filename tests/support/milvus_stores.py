"""The stores the contract suites run over, one per module: on a server, making a collection takes seconds."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from memory_extproc.model import Embedded, Owner, Vector
from memory_extproc.observe.metrics import Metrics
from memory_extproc.settings.memory import Milvus
from memory_extproc.store.milvus.options import MilvusOptions
from memory_extproc.store.milvus.store import MilvusStore
from tests.support.builders import MONDAY, a_memory
from tests.support.milvus_server import Process, lite_server, milvus_server

DIMENSION = 8
_NUMBERS = itertools.count()


def on_monday() -> datetime:
    return MONDAY


def metrics() -> Metrics:
    return Metrics(CollectorRegistry(), "test")


def options(path: Path, address: str = "") -> MilvusOptions:
    """A collection of its own; time limits that a busy machine keeps."""
    return MilvusOptions(
        section=Milvus(
            collection=f"memories_{next(_NUMBERS)}",
            dimension=DIMENSION,
            address=address,
            timeout=timedelta(seconds=10),
            shards=3,
        ),
        fingerprint="all-MiniLM-L6-v2/int8",
        path=path / "milvus.db",
    )


def changed(chosen: MilvusOptions, **changes: Any) -> MilvusOptions:
    """*chosen* with other values, those of its section too."""
    section = {name: changes.pop(name) for name in list(changes) if name in Milvus.model_fields}
    return replace(chosen, section=chosen.section.model_copy(update=section), **changes)


@asynccontextmanager
async def opened(chosen: MilvusOptions) -> AsyncIterator[MilvusStore]:
    store = MilvusStore(chosen, metrics(), now=on_monday)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture(scope="session")
def milvus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A real Milvus 2.3.5."""
    with milvus_server(tmp_path_factory.mktemp("milvus")) as server:
        yield server


@pytest.fixture(scope="session")
def milvus_lite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A `milvus-lite server`."""
    with lite_server(tmp_path_factory.mktemp("lite-server")) as server:
        yield server


def pointing(*parts: float) -> Vector:
    """A unit vector that begins with *parts*; one number more gives it the length 1."""
    vector = np.zeros(DIMENSION, dtype=np.float64)
    vector[: len(parts)] = parts
    vector[-1] = np.sqrt(max(0.0, 1.0 - float(np.square(vector).sum())))
    return (vector / np.linalg.norm(vector)).astype(np.float32)


def a_row(content: str, owner: Owner, vector: Vector | None = None, **changes: Any) -> Embedded:
    memory = a_memory(content, owner, **changes)
    return Embedded(memory, pointing(1.0) if vector is None else vector)


def somebody() -> tuple[Owner, Owner, Owner]:
    """Ann, her neighbour Bob, and another tenant's Ann; new people each time."""
    number = next(_NUMBERS)
    stamp = f"{number}-{datetime.now(UTC).timestamp()}"
    return Owner("acme", f"ann-{stamp}"), Owner("acme", f"bob-{stamp}"), Owner("globex", f"ann-{stamp}")
