"""Keeps trying to open the store, so that the sidecar can start and serve without it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from memory_extproc.errors import GiveUpError, MemoryExtprocError
from memory_extproc.observe.log import logger
from memory_extproc.ports import Chance, MemoryStore

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class OpenerLimits:
    patience: timedelta = timedelta(seconds=2)  # a start waits this long for a store that is nearly there
    first: timedelta = timedelta(milliseconds=250)  # before the second attempt; doubles, and is spread by chance
    longest: timedelta = timedelta(seconds=10)
    refused: timedelta = timedelta(seconds=30)  # after a store that does not fit: an operator must mend it


class Opener:
    """Opens *store* while entered, as often as it takes; leaving closes it."""

    def __init__(self, store: MemoryStore, limits: OpenerLimits, *, chance: Chance, at: str) -> None:
        """*at*: where the store is, as the log may tell it."""
        self._store, self._limits, self._chance, self._at = store, limits, chance, at
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._keep_trying(), name="store opener")
        await asyncio.wait([self._task], timeout=self._limits.patience.total_seconds())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._store.close()

    async def _keep_trying(self) -> None:
        attempt = 0
        while True:
            try:
                await self._store.open()
            except GiveUpError as error:
                pause = self._limits.refused
                log.error(  # noqa: TRY400
                    "store.refused", at=self._at, detail=str(error), again_in_s=pause.total_seconds()
                )
            except MemoryExtprocError as error:
                pause = min(self._limits.longest, self._limits.first * 2**attempt)
                attempt = min(attempt + 1, 16)
                log.warning("store.not_open", at=self._at, detail=str(error), again_in_s=pause.total_seconds())
            else:
                log.info("store.open")
                return
            await asyncio.sleep(pause.total_seconds() * (0.5 + self._chance() / 2))
