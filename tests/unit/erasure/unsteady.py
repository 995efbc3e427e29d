"""A process that can die at any await, over durable things that can fail at any call; its seed tells a run."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random
from typing import Any

from memory_extproc.errors import TransientError


class Fate:
    """What one process meets: how long each call takes, which fail, and when it dies (None: never)."""

    def __init__(self, dice: Random, *, failures: float, dies_after: int | None) -> None:
        self._dice, self._failures, self._left = dice, failures, dies_after
        self.dead = asyncio.Event()

    async def step(self) -> None:
        """Other tasks run; a dead process never comes back."""
        for _ in range(self._dice.choice((0, 0, 1, 1, 2, 5))):
            await asyncio.sleep(0)
        if self._left is not None:
            self._left -= 1
            if self._left <= 0:
                self.dead.set()
        if self.dead.is_set():
            await asyncio.get_running_loop().create_future()

    def fails(self) -> bool:
        return self._dice.random() < self._failures


class Unsteady:
    """Stands for *inner*, as *fate* lets it: calls take their time, fail before or after they took effect or, while
    *away*, always, and take no effect once the process is dead."""

    def __init__(self, inner: Any, fate: Fate, *, away: Callable[[], bool] = lambda: False) -> None:
        self._inner, self._fate, self._away = inner, fate, away

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if inspect.iscoroutinefunction(found):
            return self._call(found)
        if inspect.isasyncgenfunction(found):
            return self._pages(found)
        return found

    def _call(self, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **named: Any) -> Any:
            await self._fate.step()
            if self._away() or self._fate.fails():
                raise TransientError("not before it was done")
            result = await method(*args, **named)
            await self._fate.step()
            if self._fate.fails():
                raise TransientError("only after it was done")
            return result

        return call

    def _pages(self, method: Callable[..., AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
        async def pages(*args: Any, **named: Any) -> AsyncIterator[Any]:
            await self._fate.step()
            if self._away() or self._fate.fails():
                raise TransientError("cannot be listed")
            async for page in method(*args, **named):
                yield page
                await self._fate.step()

        return pages
