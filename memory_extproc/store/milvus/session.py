"""An open Milvus connection, and the single way to call it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Self, TypeVar

from memory_extproc.errors import MemoryExtprocError, NotReadyError
from memory_extproc.observe.log import logger
from memory_extproc.store.milvus.calls import Calls
from memory_extproc.store.milvus.client import AsyncMilvusClient
from memory_extproc.store.milvus.connect import Capabilities
from memory_extproc.store.milvus.lite import EmbeddedLite
from memory_extproc.store.milvus.options import MilvusOptions, Place, Placement

T = TypeVar("T")
STRONG, BOUNDED = "Strong", "Bounded"  # Milvus' consistency levels for reads


@dataclass(frozen=True, slots=True)
class Opened:
    """Calls have a time limit, are counted, and are serialized where the server needs that."""

    client: AsyncMilvusClient
    capabilities: Capabilities
    placement: Placement
    loading: Loading
    flusher: Flusher | None  # None: the server makes things durable by itself
    gates: defaultdict[str, Gate]  # by collection
    calls: Calls
    options: MilvusOptions
    lite: EmbeddedLite | None = None  # in this process

    async def call(self, operation: str, call: Callable[[float], Awaitable[T]]) -> T:
        """*call* is given the seconds that it has. Where a collection is not loaded, that is begun."""
        try:
            return await self.calls.run(operation, self.options.timeout, call)
        except NotReadyError:
            self.loading.begin()
            raise

    async def query(
        self, operation: str, place: Place, filter_: str, fields: Sequence[str], level: str, most: int | None = None
    ) -> Sequence[Mapping[str, Any]]:
        """Rows of *place*, by *filter_*, as Milvus gives them; any *most* of them."""

        async def query(limit: float) -> Any:
            if self.lite is not None:
                rows = await asyncio.to_thread(self.lite.read, place, filter_, fields, most)
                if rows is not None:
                    return rows
            return await self.client.query(
                place.collection,
                filter=filter_,
                output_fields=list(fields),
                partition_names=place.partitions,
                consistency_level=level,
                strict_float32=True,  # vectors as arrays, not as lists of Python floats
                timeout=limit,
                **({} if most is None else {"limit": most}),
            )

        async with self.reading(place):
            found: Sequence[Mapping[str, Any]] = await self.call(operation, query)
        return found

    async def search(self, operation: str, place: Place, **asked: Any) -> Sequence[Mapping[str, Any]]:
        """Hits of a search, best first. *asked* goes to the client."""

        async def search(limit: float) -> Any:
            return await self.client.search(
                place.collection,
                partition_names=place.partitions,
                consistency_level=BOUNDED,
                timeout=limit,
                **asked,
            )

        async with self.reading(place):
            hits: Sequence[Mapping[str, Any]] = (await self.call(operation, search))[0]
        return hits

    @asynccontextmanager
    async def writing(self, place: Place) -> AsyncIterator[None]:
        """Serialize writers where the server needs that."""
        if self.capabilities.one_writer:
            async with self.gates[place.collection].writing():
                yield
        else:
            yield

    @asynccontextmanager
    async def reading(self, place: Place) -> AsyncIterator[None]:
        if self.capabilities.one_writer:
            async with self.gates[place.collection].reading():
                yield
        else:
            yield

    def wrote(self, place: Place, count: int) -> None:
        """*count* rows of *place* were written or deleted."""
        if self.flusher is not None:
            self.flusher.wrote(place.collection, count)


# After a restart a server answers only once its collections were loaded again.

log = logger(__name__)
_ONCE = timedelta(seconds=10)  # then it is asked for anew: a server that restarted meanwhile forgot that it was


class Loading:
    """Asked for once, in the background; until it is done every call says not ready."""

    def __init__(
        self, client: AsyncMilvusClient, options: MilvusOptions, calls: Calls, aliases: Sequence[str]
    ) -> None:
        self._client = client
        self._options = options
        self._calls = calls
        self._aliases = aliases
        self._task: asyncio.Task[None] | None = None
        self._ended = False

    def begin(self) -> None:
        if not self._ended and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._load_all(), name="load collections")

    async def wait(self, limit: timedelta) -> None:
        """Until the collections are loaded, or no longer than *limit*: then queries say by themselves which are."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=limit.total_seconds())

    async def end(self) -> None:
        """For good: a call that is still on its way when the store is closed begins nothing."""
        self._ended = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _load_all(self) -> None:
        for alias in self._aliases:
            try:
                await self._calls.run("load", min(self._options.open_timeout, _ONCE), partial(self._load, alias))
            except MemoryExtprocError as error:
                log.warning("store.load_failed", kind=type(error).__name__)
                return

    async def _load(self, alias: str, limit: float) -> None:
        await self._client.load_collection(alias, timeout=limit)


# Has Lite flush early: a search turns every row that is not flushed into Python objects.


class Flusher:
    """Flushes a collection after so many rows, or when nothing was written for a while. Enter it to start."""

    def __init__(
        self, client: AsyncMilvusClient, options: MilvusOptions, calls: Calls, gates: Mapping[str, Gate]
    ) -> None:
        self._client = client
        self._options = options
        self._calls = calls
        self._gates = gates
        self._waiting: dict[str, int] = {}  # rows by collection
        self._wrote = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="flush Milvus Lite")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def wrote(self, collection: str, count: int) -> None:
        self._waiting[collection] = self._waiting.get(collection, 0) + count
        self._wrote.set()

    async def flush(self, collections: Sequence[str]) -> None:
        """A failed flush is retried after the next write: the rows are on disk in any case."""
        for one in collections:
            self._waiting.pop(one, None)
            try:
                async with self._gates[one].writing():
                    await self._calls.run("flush", self._options.open_timeout, partial(self._flush, one))
            except MemoryExtprocError as error:
                log.warning("store.flush_failed", kind=type(error).__name__)

    async def _flush(self, collection: str, limit: float) -> None:
        await self._client.flush(collection, timeout=limit)

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._options.flush_idle.total_seconds()):
                    await self._wrote.wait()
            except TimeoutError:
                await self.flush(list(self._waiting))
            self._wrote.clear()
            await self.flush([one for one, rows in self._waiting.items() if rows >= self._options.flush_rows])


# Many readers or one writer of a collection, for Milvus Lite. With two writers Lite loses acknowledged rows, and a
# read during a flush shows deleted rows again.


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
