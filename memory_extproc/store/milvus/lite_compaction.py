"""Remove the bytes of deleted rows from Milvus Lite's files, which otherwise keep them for ever.

A collection is copied, without them, to its twin; the alias, which all callers use, moves to the twin in one step,
and the old collection is dropped with its files. A twin without an alias comes from a crash before or after that
step, and is removed when the store is opened."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from memory_extproc.errors import PermanentError
from memory_extproc.observe.log import logger
from memory_extproc.store.milvus import rows, schema
from memory_extproc.store.milvus.calls import Calls
from memory_extproc.store.milvus.client import AsyncMilvusClient
from memory_extproc.store.milvus.connect import Gate
from memory_extproc.store.milvus.options import MilvusOptions
from memory_extproc.store.milvus.rows import OwnerPlace, shares

log = logger(__name__)
T = TypeVar("T")
_TWIN = "_twin"
_BATCH = 100  # rows copied at a time: reads of the collection run in between
_ALL = [*rows.SCALARS, rows.VECTOR]


def twin(physical: str) -> str:
    """The other name of a collection."""
    return physical.removesuffix(_TWIN) if physical.endswith(_TWIN) else physical + _TWIN


class LiteCompaction:
    """Rewrites the collections of a Lite file; tidies up after a crash."""

    def __init__(self, client: AsyncMilvusClient, options: MilvusOptions, calls: Calls) -> None:
        self._client = client
        self._options = options
        self._calls = calls

    async def rewrite(self, alias: str, gate: Gate) -> None:
        """Reads go on while rows are copied, writes wait."""
        async with gate.copying():
            described = await self._describe(alias)
            old: str = described["collection_name"]
            new = twin(old)
            await self._drop(new)
            await self._make_like(described, new)
            copied = await self._copy_rows(old, new)
            await self._step(lambda limit: self._client.flush(new, timeout=limit))
            if copied != await self._count(new):
                raise PermanentError("a copy of a collection that does not hold every row of it")
            async with gate.alone():
                await self._step(lambda limit: self._client.alter_alias(new, alias, timeout=limit))
            await self._drop(old)
        log.info("store.rewritten", rows=copied)

    async def tidy(self, aliases: Sequence[str]) -> None:
        """Remove the remains of interrupted rewrites. Needs exclusive use of the file."""
        there = set(await self._step(lambda limit: self._client.list_collections(timeout=limit)))
        for alias in aliases if any(twin(name) in there for name in there) else ():
            await self._drop(twin((await self._describe(alias))["collection_name"]))

    async def _describe(self, alias: str) -> Mapping[str, Any]:
        described: Mapping[str, Any] = await self._step(
            lambda limit: self._client.describe_collection(alias, timeout=limit)
        )
        return described

    async def _put(self, name: str, batch: Sequence[Mapping[str, Any]]) -> None:
        await self._step(lambda limit: self._client.upsert(name, batch, timeout=limit))

    async def _make_like(self, described: Mapping[str, Any], name: str) -> None:
        made = schema.schema(self._options, words=schema.has_words(described))
        properties = schema.properties_of(described)
        await self._step(
            lambda limit: self._client.create_collection(name, schema=made, properties=properties, timeout=limit)
        )

    async def _copy_rows(self, old: str, new: str) -> int:
        """How many rows there are."""
        copied = 0
        async for _, listed in shares(OwnerPlace(old, None), self._ask, ["id"]):
            ids = sorted(row["id"] for row in listed)
            for start in range(0, len(ids), _BATCH):
                found = await self._query(old, rows.ids_filter(ids[start : start + _BATCH]), _ALL)
                batch = [{name: row[name] for name in _ALL} for row in found]
                await self._put(new, batch)
            copied += len(ids)
        return copied

    async def _count(self, name: str) -> int:
        counted = await self._query(name, 'id != ""', ["count(*)"])
        return int(counted[0]["count(*)"])

    async def _ask(
        self, place: OwnerPlace, filter_: str, fields: Sequence[str], limit: int
    ) -> Sequence[Mapping[str, Any]]:
        return await self._query(place.collection, filter_, fields, limit=limit)

    async def _query(
        self, name: str, filter_: str, fields: Sequence[str], **most: int
    ) -> Sequence[Mapping[str, Any]]:
        found: Sequence[Mapping[str, Any]] = await self._step(
            lambda limit: self._client.query(
                name, filter=filter_, output_fields=list(fields), strict_float32=True, timeout=limit, **most
            )
        )
        return found

    async def _drop(self, name: str) -> None:
        if await self._step(lambda limit: self._client.has_collection(name, timeout=limit)):
            await self._step(lambda limit: self._client.drop_collection(name, timeout=limit))

    async def _step(self, call: Callable[[float], Awaitable[T]]) -> T:
        return await self._calls.run("rewrite", self._options.open_timeout, call)
