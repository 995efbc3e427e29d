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
_FAULTS = (MemoryExtprocError, OSError, RuntimeError)


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
        try:
            # All of them in one go: requests wait for each turn that a thread takes.
            looked = await asyncio.to_thread(self._looked)
        except RuntimeError as error:  # no thread is to be had
            _not_put_back(error)
            return
        for alias, harm in looked:
            if isinstance(harm, Exception):
                _not_put_back(harm)
                continue
            try:
                await self._put_back(alias, harm)
            except _FAULTS as error:
                _not_put_back(error)

    def _looked(self) -> Sequence[tuple[str, Harm | Exception]]:
        """The collections that something has happened to, or that cannot be looked at. On a thread."""
        found: list[tuple[str, Harm | Exception]] = []
        for alias in self._aliases:
            try:
                harm = self._lite.harm(alias)
            except _FAULTS as error:
                found.append((alias, error))
            else:
                if harm is not None:
                    found.append((alias, harm))
        return found

    async def _put_back(self, alias: str, harm: Harm) -> None:
        aside = await asyncio.to_thread(self._lite.set_aside, alias) if harm is Harm.REPLACED else ""
        await self._rewriting.rewrite(alias, self._gates[alias])
        _LOG.error("file.put_back", file="milvus.db", why=harm.value, aside=aside)
        self._metrics.put_back(harm.value)


def _not_put_back(error: Exception) -> None:
    """Nothing is written meanwhile: turns wait in the journal."""
    _LOG.warning("store.not_put_back", kind=type(error).__name__)
