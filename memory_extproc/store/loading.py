"""After a restart a server answers only once its collections were loaded again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from functools import partial

from memory_extproc.errors import MemoryExtprocError
from memory_extproc.observe import log
from memory_extproc.store.calls import Calls
from memory_extproc.store.client import AsyncMilvusClient
from memory_extproc.store.options import MilvusOptions

_LOG = log.logger(__name__)
_ONCE = timedelta(seconds=10)  # then it is asked for anew: a server that restarted meanwhile forgot that it was


class Loading:
    """Asked for once, in the background; until it is done every call says not ready."""

    def __init__(
        self, client: AsyncMilvusClient, options: MilvusOptions, calls: Calls, aliases: Sequence[str]
    ) -> None:
        self._client = client
        self._options = options
        self._calls = calls
        self._aliases = aliases
        self._task: asyncio.Task[None] | None = None
        self._ended = False

    def begin(self) -> None:
        if not self._ended and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._load_all(), name="load collections")

    async def wait(self, limit: timedelta) -> None:
        """Until the collections are loaded, or no longer than *limit*: then queries say by themselves which are."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=limit.total_seconds())

    async def end(self) -> None:
        """For good: a call that is still on its way when the store is closed begins nothing."""
        self._ended = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _load_all(self) -> None:
        for alias in self._aliases:
            try:
                await self._calls.run("load", min(self._options.open_timeout, _ONCE), partial(self._load, alias))
            except MemoryExtprocError as error:
                _LOG.warning("store.load_failed", kind=type(error).__name__)
                return

    async def _load(self, alias: str, limit: float) -> None:
        await self._client.load_collection(alias, timeout=limit)
