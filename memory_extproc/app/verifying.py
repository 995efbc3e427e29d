"""What a check of a forget's receipt looks through, beside a running sidecar or without."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from prometheus_client import CollectorRegistry

from memory_extproc import __version__
from memory_extproc.app.coordinating import find_journals, open_link
from memory_extproc.app.holding import hold_data_directory
from memory_extproc.app.models import open_embedder
from memory_extproc.app.options import milvus_options
from memory_extproc.app.sidecar import utc_now
from memory_extproc.app.tending import read_forgotten
from memory_extproc.erasure.verifying import Look, Proof, look_again
from memory_extproc.errors import ConfigurationError, MemoryExtprocError
from memory_extproc.model import Owner
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import MemoryStore
from memory_extproc.settings import Settings
from memory_extproc.store.milvus import MilvusStore


async def looked_again(settings: Settings, proof: Proof, owner: Owner, stack: AsyncExitStack) -> Sequence[Look]:
    """GiveUpError where the receipt is about somebody else."""
    metrics = Metrics(CollectorRegistry(), __version__)
    link = await open_link(settings, metrics, stack)
    forgotten = await read_forgotten(settings, Path(settings.data_dir), link, stack)
    store = await _store(settings, metrics, stack)
    journals = await find_journals(settings, utc_now, stack)
    return await look_again(proof, owner, forgotten, store=store, journal=journals.main)


async def _store(settings: Settings, metrics: Metrics, stack: AsyncExitStack) -> MemoryStore | None:
    """None where a running sidecar has the file, or a server cannot be reached."""
    try:
        lite = not settings.memory.milvus.address
        data = hold_data_directory(settings, stack) if lite else Path(settings.data_dir)
        embedder = await open_embedder(settings, metrics, stack)
        store = MilvusStore(milvus_options(settings, data, embedder.fingerprint), metrics, now=utc_now)
        stack.push_async_callback(store.close)
        await store.open()
    except (ConfigurationError, MemoryExtprocError):
        return None
    return store
