"""The collection `NAME_meta` beside a server's memories: copies of what Redis must not lose."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import numpy as np

from memory_extproc.errors import PermanentError
from memory_extproc.store.milvus import rows
from memory_extproc.store.milvus.client import AsyncMilvusClient, DataType
from memory_extproc.store.milvus.connect import STRONG, Opened
from memory_extproc.store.milvus.rows import Place

_BODY_BYTES = 60_000  # in one row: a server's VARCHAR takes 65,535
_ID_BYTES = 200
_BATCH = 100  # rows in one message


class MetaCollection:
    """Implements ports.Mirror. *ready* gives the open store, or raises. A long record stands in several rows."""

    def __init__(self, ready: Callable[[], Opened], name: str) -> None:
        self._ready, self._place = ready, Place(name, None)
        self._found_by: Opened | None = None  # the collection is there and loaded

    async def put(self, records: Mapping[str, bytes]) -> None:
        opened = self._ready()
        await self._find(opened, make=True)
        name, client = self._place.collection, opened.client
        made = [row for id_, body in records.items() for row in _rows(id_, body)]
        for start in range(0, len(made), _BATCH):
            batch = made[start : start + _BATCH]
            ids = rows.with_ids(row["id"] for row in batch)
            async with opened.writing(self._place):
                if not opened.capabilities.upsert:
                    await opened.call("meta", lambda limit, ids=ids: client.delete(name, filter=ids, timeout=limit))  # type: ignore[misc]
                    await opened.call("meta", lambda limit, b=batch: client.insert(name, b, timeout=limit))  # type: ignore[misc]
                else:
                    await opened.call("meta", lambda limit, b=batch: client.upsert(name, b, timeout=limit))  # type: ignore[misc]

    async def all(self) -> AsyncIterator[Mapping[str, bytes]]:
        opened = self._ready()
        if not await self._find(opened, make=False):
            return
        listed = await opened.query("meta", self._place, 'id != ""', ["id"], STRONG)
        # The parts of a record stand together, and never in two pages.
        parts = defaultdict[str, list[str]](list)
        for row in listed:
            parts[row["id"].rpartition("#")[0]].append(row["id"])
        page: list[str] = []
        for ids in parts.values():
            page += ids
            if len(page) >= _BATCH:
                yield await self._read(opened, page)
                page = []
        if page:
            yield await self._read(opened, page)

    async def _read(self, opened: Opened, ids: list[str]) -> Mapping[str, bytes]:
        found = await opened.query("meta", self._place, rows.with_ids(ids), ["id", "body"], STRONG)
        bodies = {row["id"]: str(row["body"]) for row in found}
        records: dict[str, bytes] = {}
        for first in [one for one in bodies if one.endswith("#0")]:
            id_, count = first[:-2], int(bodies[first].partition("|")[0])
            whole = [bodies.get(f"{id_}#{n}", "").partition("|")[2] for n in range(count)]
            records[id_] = "".join(whole).encode()
        return records

    async def _find(self, opened: Opened, *, make: bool) -> bool:
        """False where there is none, and none is to be made."""
        if self._found_by is opened:
            return True
        name, client, limit = self._place.collection, opened.client, opened.options.open_timeout
        calls = opened.calls
        if not await calls.run("meta", limit, lambda seconds: client.has_collection(name, timeout=seconds)):
            if not make:
                return False
            try:
                await calls.run(
                    "meta", limit, lambda s: client.create_collection(name, schema=_schema(), timeout=s)
                )
            except PermanentError:  # another replica was quicker, unless it is not there now
                if not await calls.run("meta", limit, lambda s: client.has_collection(name, timeout=s)):
                    raise
        if not opened.capabilities.exact_only:
            if not await calls.run("meta", limit, lambda s: client.list_indexes(name, timeout=s)):
                index = client.prepare_index_params()
                index.add_index(rows.VECTOR, index_type="FLAT", metric_type="COSINE", params={})
                await calls.run("meta", limit, lambda s: client.create_index(name, index, timeout=s))
            await calls.run("meta", limit, lambda s: client.load_collection(name, timeout=s))
        self._found_by = opened
        return True


def _schema() -> Any:
    """A server has no collection without a vector."""
    made = AsyncMilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
    made.add_field("id", DataType.VARCHAR, is_primary=True, max_length=_ID_BYTES)
    made.add_field("body", DataType.VARCHAR, max_length=65_535)
    made.add_field(rows.VECTOR, DataType.FLOAT_VECTOR, dim=2)
    return made


def _rows(id_: str, body: bytes) -> Iterator[dict[str, Any]]:
    """Bodies are JSON without characters beyond ASCII, so bytes and characters are the same."""
    text = body.decode("ascii")
    starts = range(0, len(text) or 1, _BODY_BYTES)
    for number, start in enumerate(starts):
        yield {
            "id": f"{id_}#{number}",
            "body": f"{len(starts)}|{text[start : start + _BODY_BYTES]}",
            rows.VECTOR: np.array([1.0, 0.0], dtype=np.float32),
        }
