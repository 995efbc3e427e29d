"""Who has said something that cannot be found yet, and who waits until it can."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from memory_extproc.model import Owner


class Unsettled:
    """One event loop owns it."""

    def __init__(self) -> None:
        self._things: dict[Owner, set[object]] = {}
        self._waiting: dict[Owner, list[asyncio.Future[None]]] = {}

    def add(self, owner: Owner, thing: object) -> None:
        self._things.setdefault(owner, set()).add(thing)

    def remove(self, owner: Owner, things: Iterable[object]) -> None:
        """With the last of *owner*'s everybody who waits for them goes on."""
        left = self._things.get(owner)
        if left is None:
            return
        left.difference_update(things)
        if not left:
            self._release(owner)

    async def gone(self, owner: Owner) -> None:
        """Returns once there is nothing of *owner*'s; at once where there is nothing now."""
        if owner not in self._things:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, []).append(waiter)
        await waiter

    def release_all(self) -> None:
        """Nobody waits any longer, whatever is left."""
        for owner in list(self._waiting):
            self._release(owner)

    def _release(self, owner: Owner) -> None:
        self._things.pop(owner, None)
        for waiter in self._waiting.pop(owner, ()):
            if not waiter.done():
                waiter.set_result(None)
