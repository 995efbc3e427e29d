"""An open Milvus: what there is only then, and the one way in which it is asked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from memory_extproc.errors import NotReadyError
from memory_extproc.store.calls import Calls
from memory_extproc.store.capabilities import Capabilities
from memory_extproc.store.client import AsyncMilvusClient
from memory_extproc.store.flusher import Flusher
from memory_extproc.store.gate import Gate
from memory_extproc.store.loading import Loading
from memory_extproc.store.options import MilvusOptions
from memory_extproc.store.placement import Place, Placement

T = TypeVar("T")
STRONG, BOUNDED = "Strong", "Bounded"  # how fresh what is read must be, in Milvus' words


@dataclass(frozen=True, slots=True)
class Opened:
    """Calls are bounded in time, counted, and let in one by one where the other side needs that."""

    client: AsyncMilvusClient
    capabilities: Capabilities
    placement: Placement
    loading: Loading
    flusher: Flusher | None  # None: the server makes things durable by itself
    gates: defaultdict[str, Gate]  # by collection
    calls: Calls
    options: MilvusOptions

    async def call(self, operation: str, call: Callable[[float], Awaitable[T]]) -> T:
        """*call* is given the seconds that it has. Where a collection is not loaded, that is begun."""
        try:
            return await self.calls.run(operation, self.options.timeout, call)
        except NotReadyError:
            self.loading.begin()
            raise

    async def query(
        self,
        operation: str,
        place: Place,
        filter_: str,
        fields: Sequence[str],
        level: str,
        most: int | None = None,
    ) -> Sequence[Mapping[str, Any]]:
        """Rows of *place*, by *filter_*, as Milvus gives them; any *most* of them."""

        async def query(limit: float) -> Any:
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
        """Hits of one search, best first. *asked* goes to the client."""

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
        """One writer at a time where the other side needs that."""
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
