"""Whether Envoy should send us requests: told to gRPC health and to /readyz.

Asked are what a request cannot do without: the model is loaded before the server starts, the journal is tried
again and again. The memory store is not asked: without it requests pass unenriched, which is better than having
no sidecar to send them to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Self

from memory_extproc.errors import MemoryExtprocError
from memory_extproc.observe.log import logger

log = logger(__name__)

Check = Callable[[], Awaitable[object]]  # raises an error of ours when what it asks for is not there
Tell = Callable[[bool], Awaitable[None]]


class Readiness:
    """Asks *check* every *interval* while entered, and tells every change. Not ready until the first answer."""

    def __init__(self, check: Check, tell: Tell, interval: timedelta = timedelta(seconds=2)) -> None:
        self._check, self._tell, self._interval = check, tell, interval
        self._reason = "starting"
        self._task: asyncio.Task[None] | None = None

    @property
    def reason(self) -> str:
        """Why not; empty when ready."""
        return self._reason

    async def __aenter__(self) -> Self:
        await self._ask()
        self._task = asyncio.create_task(self._keep_asking(), name="readiness")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reason = "stopping"
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _keep_asking(self) -> None:
        while True:
            await asyncio.sleep(self._interval.total_seconds())
            await self._ask()

    async def _ask(self) -> None:
        before = self._reason
        try:
            await self._check()
            self._reason = ""
        except MemoryExtprocError as error:
            self._reason = str(error)
        if before == self._reason:
            return
        if self._reason:
            log.warning("readiness.changed", ready=False, reason=self._reason)
        else:
            log.info("readiness.changed", ready=True)
        if bool(before) != bool(self._reason):
            await self._tell(not self._reason)
