"""Puts the files of a Milvus Lite back that somebody took away or exchanged while it is open: it still has every
row in its memory, and a collection is rewritten from there as for a purge."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Self

from memory_extproc.errors import MemoryExtprocError
from memory_extproc.observe import log
from memory_extproc.observe.metrics import Metrics
from memory_extproc.sqlite_place import Harm
from memory_extproc.store.gate import Gate
from memory_extproc.store.lite import EmbeddedLite
from memory_extproc.store.rewriting import Rewriting

_LOG = log.logger(__name__)


class Standing:
    """Looks after the collections behind *aliases* while entered, and once more when it is left."""

    def __init__(
        self,
        lite: EmbeddedLite,
        rewriting: Rewriting,
        aliases: Sequence[str],
        gates: Mapping[str, Gate],
        metrics: Metrics,
        *,
        every: timedelta,
    ) -> None:
        self._lite = lite
        self._rewriting = rewriting
        self._aliases = aliases
        self._gates = gates
        self._metrics = metrics
        self._every = every
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._look()
        self._task = asyncio.create_task(self._run(), name="looking after Milvus Lite")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._look()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every.total_seconds())
            await self._look()

    async def _look(self) -> None:
        for alias in self._aliases:
            try:
                harm = await asyncio.to_thread(self._lite.harm, alias)
                if harm is not None:
                    await self._put_back(alias, harm)
            except (MemoryExtprocError, OSError, RuntimeError) as error:  # the last: no thread is to be had
                # Nothing is written meanwhile: turns wait in the journal.
                _LOG.warning("store.not_put_back", kind=type(error).__name__)

    async def _put_back(self, alias: str, harm: Harm) -> None:
        aside = await asyncio.to_thread(self._lite.set_aside, alias) if harm is Harm.REPLACED else ""
        await self._rewriting.rewrite(alias, self._gates[alias])
        _LOG.error("file.put_back", file="milvus.db", why=harm.value, aside=aside)
        self._metrics.put_back(harm.value)
