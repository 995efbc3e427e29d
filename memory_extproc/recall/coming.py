"""The vectors of a question's texts, on their way while other things are done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Self

from memory_extproc.model import Vector

Vectors = Sequence[Vector | None]


class Coming:
    """One embedding, for as long as it is entered; leaving it ends what still runs."""

    def __init__(self, embedding: Coroutine[Any, Any, Vectors], clock: Callable[[], float]) -> None:
        self._embedding, self._clock = embedding, clock
        self._task: asyncio.Task[Vectors]
        self.there = 0.0  # when it was done, by *clock*

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._embedded(), name="embedding")
        # Tasks begin when the loop comes to them: before what is done meanwhile, and not behind it.
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})

    async def at(self, place: int) -> Vector | None:
        """Of the text at *place*. Who no longer waits for it takes it from nobody else."""
        vectors = self._task.result() if self._task.done() else await asyncio.shield(self._task)
        return vectors[place]

    async def _embedded(self) -> Vectors:
        try:
            return await self._embedding
        finally:
            self.there = self._clock()
