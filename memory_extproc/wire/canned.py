"""Both paths as the wire sees them, in memory: for tests, and for measuring the wire alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from memory_extproc.model import Caller, Exchanged, Outcome, Recalled, Stored, Wish

Before = Callable[[], Awaitable[None]]


class CannedRecalls:
    """Implements ports.Recalls with one answer. Keeps the wishes it was given."""

    def __init__(self, recalled: Recalled | None = None, before: Before | None = None) -> None:
        """*before* is awaited in each recall: a place for slowness and faults."""
        self.recalled = recalled or Recalled(outcome=Outcome.EMPTY)
        self.before = before
        self.wishes: list[Wish] = []

    async def recall(self, wish: Wish) -> Recalled:
        self.wishes.append(wish)
        if self.before is not None:
            await self.before()
        return self.recalled


class RecordedTurns:
    """Implements ports.Learns by remembering what it was given."""

    def __init__(self, stored: Stored = Stored.JOURNALLED, before: Before | None = None) -> None:
        self.stored = stored
        self.before = before
        self.settling: Before | None = None  # what waiting for turns under way waits for; None: there are none
        self.exchanged: list[Exchanged] = []
        self.ended: list[Caller] = []
        self._arrived = asyncio.Condition()

    async def accept(self, exchanged: Exchanged) -> Stored:
        if self.before is not None:
            await self.before()
        self.exchanged.append(exchanged)
        async with self._arrived:
            self._arrived.notify_all()
        return self.stored

    async def settled(self, caller: Caller) -> None:  # noqa: ARG002 - the port's
        if self.settling is not None:
            await self.settling()

    async def end_session(self, caller: Caller) -> None:
        self.ended.append(caller)

    async def wait_for(self, count: int) -> None:
        """Returns once *count* exchanges were accepted."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.exchanged) >= count)
