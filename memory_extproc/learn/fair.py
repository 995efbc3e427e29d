"""Places for so many at once, given to waiting tenants in turn."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FairSlots:
    """Like a semaphore, but whoever frees a place gives it to the tenant that has waited longest since its last
    turn: one with a thousand waiting callers delays another's by one place and not by a thousand."""

    def __init__(self, count: int) -> None:
        """*count*: places, above 0."""
        self._count = count
        self._free = count  # below 0 while more are taken than there are places: their number was lowered
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # next in turn first

    def use(self, count: int) -> None:
        """Another number of places, above 0. Who holds one keeps it."""
        self._free += count - self._count
        self._count = count
        self._hand_out()

    @asynccontextmanager
    async def taken(self, tenant: str) -> AsyncIterator[None]:
        await self._take(tenant)
        try:
            yield
        finally:
            self._give()

    async def _take(self, tenant: str) -> None:
        if self._free > 0 and not self._waiting:
            self._free -= 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._give()  # it was ours already
            raise

    def _give(self) -> None:
        self._free += 1
        self._hand_out()

    def _hand_out(self) -> None:
        while self._free > 0 and self._waiting:
            tenant, places = self._waiting.popitem(last=False)
            place = places.popleft()
            if places:
                self._waiting[tenant] = places  # behind the others
            if not place.done():
                place.set_result(None)
                self._free -= 1
