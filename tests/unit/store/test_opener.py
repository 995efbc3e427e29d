"""A replica is not ready before its embedded store is open, unless only an operator can open it."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from memory_extproc.concurrency import Backoff
from memory_extproc.errors import MemoryExtprocError, PermanentError, TransientError
from memory_extproc.store.milvus.connect import Opener
from memory_extproc.testing.adapters import InMemoryStore
from tests.support.builders import MONDAY


class EagerOpener(Opener):
    PATIENCE = REFUSED = timedelta(0)
    BACKOFF = Backoff(timedelta(0), timedelta(0))


class SlowStore(InMemoryStore):
    """Opens, or fails with *fault*, when it is let."""

    def __init__(self, fault: MemoryExtprocError | None = None) -> None:
        super().__init__(8, now=lambda: MONDAY)
        self.let, self.tried, self.fault = asyncio.Event(), asyncio.Event(), fault

    async def open(self) -> None:
        await self.let.wait()
        fault, self.fault = self.fault, None
        self.let.clear()
        self.tried.set()
        if fault is not None:
            raise fault


async def test_the_store_is_waited_for_until_it_is_open() -> None:
    store = SlowStore(TransientError("locked"))
    opener = EagerOpener(store, at="here")
    async with opener:
        for _ in range(2):  # the first attempt fails
            with pytest.raises(TransientError, match="being opened"):
                await opener.check_settled()
            store.tried.clear()
            store.let.set()
            await store.tried.wait()
        await asyncio.sleep(0)
        await opener.check_settled()


async def test_a_store_that_was_refused_is_not_waited_for() -> None:
    store = SlowStore(PermanentError("another dimension"))
    opener = EagerOpener(store, at="here")
    async with opener:
        store.let.set()
        await store.tried.wait()
        await asyncio.sleep(0)
        await opener.check_settled()
