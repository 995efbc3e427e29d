"""Has Lite flush early: a search turns every row that is not flushed into Python objects."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Self

from memory_extproc.errors import MemoryExtprocError
from memory_extproc.observe import log
from memory_extproc.store.calls import Calls
from memory_extproc.store.client import AsyncMilvusClient
from memory_extproc.store.gate import Gate
from memory_extproc.store.options import MilvusOptions

_LOG = log.logger(__name__)


class Flusher:
    """Flushes a collection after so many rows, or when nothing was written for a while. Enter it to start."""

    def __init__(
        self,
        client: AsyncMilvusClient,
        options: MilvusOptions,
        calls: Calls,
        gates: Mapping[str, Gate],
    ) -> None:
        self._client = client
        self._options = options
        self._calls = calls
        self._gates = gates
        self._waiting: dict[str, int] = {}  # rows by collection
        self._wrote = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="flush Milvus Lite")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def wrote(self, collection: str, count: int) -> None:
        self._waiting[collection] = self._waiting.get(collection, 0) + count
        self._wrote.set()

    async def flush(self, collections: Sequence[str]) -> None:
        """What cannot be flushed now is tried again after the next write: it is on disk in any case."""
        for one in collections:
            self._waiting.pop(one, None)
            try:
                async with self._gates[one].writing():
                    await self._calls.run("flush", self._options.open_timeout, partial(self._flush, one))
            except MemoryExtprocError as error:
                _LOG.warning("store.flush_failed", kind=type(error).__name__)

    async def _flush(self, collection: str, limit: float) -> None:
        await self._client.flush(collection, timeout=limit)

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._options.flush_idle.total_seconds()):
                    await self._wrote.wait()
            except TimeoutError:
                await self.flush(list(self._waiting))
            self._wrote.clear()
            await self.flush([one for one, rows in self._waiting.items() if rows >= self._options.flush_rows])
