"""Many readers or one writer of a collection, for Milvus Lite.

With two writers Lite loses acknowledged rows, and a read while it flushes shows deleted rows again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Gate:
    """First come, first served: a waiting writer holds up the readers after it. Not reentrant."""

    def __init__(self) -> None:
        self._writers = asyncio.Lock()
        self._entrance = asyncio.Lock()
        self._readers = 0
        self._no_readers = asyncio.Event()
        self._no_readers.set()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        async with self._entrance:
            self._readers += 1
            self._no_readers.clear()
        try:
            yield
        finally:
            self._readers -= 1
            if not self._readers:
                self._no_readers.set()

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        async with self._writers, self.alone():
            yield

    @asynccontextmanager
    async def copying(self) -> AsyncIterator[None]:
        """Writers wait until the end, readers do not."""
        async with self._writers:
            yield

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Within `copying`: no reader either."""
        async with self._entrance:
            await self._no_readers.wait()
            yield
