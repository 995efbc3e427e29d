"""A user's memories in the store, read from its files while the sidecar is stopped."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from prometheus_client import CollectorRegistry

from memory_extproc.app import milvus_options
from memory_extproc.inference.model_files import Precision, find_directory, verify
from memory_extproc.model import Owner
from memory_extproc.observe.metrics import Metrics
from memory_extproc.settings import load
from memory_extproc.store.milvus.store import MilvusStore


async def remembered(config: Path, user: str) -> list[tuple[str, str]]:
    """(kind, text) of each memory, facts first, oldest first."""
    settings = load(config, {})
    embedding = settings.memory.embedding
    model = find_directory(Path(embedding.models_dir), embedding.model, Precision(embedding.precision))
    manifest = verify(model)
    options = milvus_options(settings, Path(settings.data_dir), manifest.fingerprint)
    store = MilvusStore(options, Metrics(CollectorRegistry(), "demo"), now=lambda: datetime.now(UTC))
    await store.open()
    try:
        pages = [page async for page in store.pages(Owner("", user), 256, fresh=True)]
    finally:
        await store.close()
    memories = [row.memory for page in pages for row in page]
    memories.sort(key=lambda memory: (memory.role.value != "none", memory.session, memory.seq, memory.id))
    return [(f"{memory.type.value}, {memory.source.value}", memory.content) for memory in memories]
