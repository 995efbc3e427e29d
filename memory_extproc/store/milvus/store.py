"""The MemoryStore over Milvus, a server or a Lite file in this process; `rows` has the two layouts."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from datetime import datetime, timedelta
from typing import Any, TypeVar

import numpy as np

from memory_extproc.concurrency import Breaker, BreakerLimits, contain_faults
from memory_extproc.errors import MemoryExtprocError, PermanentError
from memory_extproc.model import (
    Conditions,
    Embedded,
    Hit,
    Memory,
    MemoryHeads,
    MemoryType,
    Owner,
    Scope,
    SearchResult,
    Source,
    Vector,
    digest,
)
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Now
from memory_extproc.store.milvus import rows
from memory_extproc.store.milvus.calls import Calls
from memory_extproc.store.milvus.client import AsyncMilvusClient, DataType, connect
from memory_extproc.store.milvus.connect import BOUNDED, STRONG, Flusher, Gate, Loading, Opened, Opening
from memory_extproc.store.milvus.lite import EmbeddedLite
from memory_extproc.store.milvus.lite_compaction import LiteCompaction
from memory_extproc.store.milvus.options import MilvusOptions
from memory_extproc.store.milvus.rows import (
    OwnerPlace,
    check_owner,
    check_rows,
    check_vector,
    fit,
    is_id,
    owners_in,
    searchable,
)

_BATCH = 500  # rows per message: below 64 MiB with every field full, and quick enough for the time limit
_LITE_BATCH = 100  # readers of a Lite collection wait for its writer
# Pages of a server's rows read at once: each waits for a tick of its clock. As few as do not open the breaker.
_PAGES_AHEAD = 2
_MOST_HITS = 16_384  # a server finds at most
_LEAST_EF = 64
_MORE_FOR_ORIGINS = 4  # times as many are asked for where origins narrow, which only we can tell
_ALL = (*rows.SCALARS, rows.VECTOR)
_OWNED = ("id", "tenant_id", "user_id")
_PROBE = Owner.of_canary()  # has the row that tells whether writes work

T = TypeVar("T")


class MilvusStore:
    """A MemoryStore. `open` may be called repeatedly; close it at the end. An event loop owns it."""

    def __init__(self, options: MilvusOptions, metrics: Metrics, *, now: Now) -> None:
        self._options = options
        self._metrics = metrics
        self._now = now
        limits = BreakerLimits(options.breaker_failures, options.breaker_pause)
        breaker = Breaker(limits, time.monotonic, "the store did not answer a moment ago")
        self._calls = Calls(breaker, metrics, time.monotonic)
        self._calls.mark_closed()
        self._opening = asyncio.Lock()
        self._opened: Opened | None = None
        self._resources = AsyncExitStack()
        self._address = options.uri
        self._gates: defaultdict[str, Gate] = defaultdict(Gate)  # by collection, for Lite

    @property
    def lags(self) -> bool:
        return self._opened is None or self._opened.capabilities.lags

    @property
    def finds_words(self) -> bool:
        return self._opened is not None and self._opened.placement.words

    @property
    def address(self) -> str:
        """Where Milvus is reached; for a Lite file a socket of our own, once open."""
        return self._address

    @property
    def failing_for(self) -> timedelta:
        """How long the store has not been open, or has failed writes or reads; zero while it works."""
        return self._calls.failing_for

    async def open(self) -> None:
        async with self._opening:
            if self._opened is not None:
                return
            async with AsyncExitStack() as undo:
                lite = None if self._options.uri else await self._started_lite(undo)
                uri = self._options.uri if lite is None else lite.address
                self._address = uri
                client = connect(self._options, uri)
                undo.push_async_callback(client.close)
                opening = Opening(client, self._options, self._calls)
                capabilities = await opening.capabilities()
                placement = await opening.place(capabilities)
                flusher: Flusher | None = None
                if capabilities.one_writer:
                    if lite is not None:
                        await LiteCompaction(client, self._options, self._calls).tidy(placement.aliases)
                    flusher = await undo.enter_async_context(
                        Flusher(client, self._options, self._calls, self._gates)
                    )
                    # Rows that a crash left; and Lite's collections share a thread from their first flush on.
                    await flusher.flush(placement.aliases)
                loading = Loading(client, self._options, self._calls, placement.aliases)
                undo.push_async_callback(loading.end)
                if not capabilities.exact_only:
                    # A loading server may answer queries from its loaded part, so wait until it is done.
                    loading.begin()
                    await loading.wait(self._options.section.timeout)
                self._opened = Opened(
                    client, capabilities, placement, loading, flusher, self._gates, self._calls, self._options, lite
                )
                self._resources = undo.pop_all()
            self._calls.mark_opened()
            probing = asyncio.create_task(self._probe(), name="store probe")
            self._resources.push_async_callback(_cancel, probing)

    async def close(self) -> None:
        async with self._opening:
            self._opened = None
            self._calls.mark_closed()
            await self._resources.aclose()

    async def _started_lite(self, undo: AsyncExitStack) -> EmbeddedLite:
        lite = EmbeddedLite(self._options.path)
        undo.push_async_callback(asyncio.to_thread, lite.stop)
        await asyncio.to_thread(lite.start)
        return lite

    async def _probe(self) -> None:
        """While the store is down: there may be no traffic that would notice its return."""
        while True:
            await asyncio.sleep(self._options.probe_every.total_seconds())
            if not self._calls.up:
                await contain_faults(self._probe_quietly)

    async def _probe_quietly(self) -> None:
        with suppress(MemoryExtprocError):
            await self.probe()

    async def probe(self) -> None:
        """Read, write and delete a row, raising the errors that traffic would meet now."""
        row = _probe_row(self._options, self._now())
        await self.get(_PROBE, [row.memory.id])
        await self.put(_PROBE, [row])
        opened = self._ready()
        await self._delete(opened, "delete", opened.placement.of(_PROBE), rows.ids_filter([row.memory.id]))

    async def put(self, owner: Owner, rows_: Sequence[Embedded]) -> None:
        check_rows(owner, rows_, self._options.section.dimension)
        # Upserting an id twice in a message is undefined; the last row counts.
        latest = {row.memory.id: rows.to_row(fit(row, self._options.content_bytes)) for row in rows_}
        ready = list(latest.values())
        opened = self._ready()
        place = opened.placement.of(owner)
        batch = _LITE_BATCH if opened.capabilities.lite else _BATCH
        for start in range(0, len(ready), batch):
            together = ready[start : start + batch]
            async with opened.writing(place):
                await self._put_batch(opened, place, together)
            opened.note_written(place, len(together))

    async def _put_batch(self, opened: Opened, place: OwnerPlace, batch: list[dict[str, Any]]) -> None:
        client = opened.client
        if opened.capabilities.upsert:
            await opened.call("put", lambda limit: client.upsert(place.collection, batch, timeout=limit))
            return
        # Deleted by key alone: an id never moves between owners, and this needs no look at the rows.
        ids = rows.ids_filter(row["id"] for row in batch)
        await opened.call("put", lambda limit: client.delete(place.collection, filter=ids, timeout=limit))
        await opened.call("put", lambda limit: client.insert(place.collection, batch, timeout=limit))

    async def delete(self, owner: Owner, ids: Sequence[str]) -> None:
        check_owner(owner)
        wanted = [one for one in dict.fromkeys(ids) if is_id(one)]
        opened = self._ready()
        place = opened.placement.of(owner)
        for start in range(0, len(wanted), _BATCH):
            filter_ = await self._filter_to_delete(opened, owner, wanted[start : start + _BATCH])
            if filter_:
                await self._delete(opened, "delete", place, filter_)
        opened.note_written(place, len(wanted))

    async def _filter_to_delete(self, opened: Opened, owner: Owner, ids: list[str]) -> str:
        """Empty where there is nothing to delete."""
        if not opened.capabilities.lite:
            return f"{rows.owner_filter(owner)} and {rows.ids_filter(ids)}"
        # Lite would scan the collection for that; it finds rows by their ids alone at once.
        ours = await self._by_ids("delete", owner, ids, ["user_id", "tenant_id"], STRONG)
        return rows.ids_filter(row["id"] for row in ours) if ours else ""

    async def _delete(self, opened: Opened, operation: str, place: OwnerPlace, filter_: str) -> None:
        async with opened.writing(place):
            await opened.call(
                operation, lambda limit: opened.client.delete(place.collection, filter=filter_, timeout=limit)
            )

    async def delete_owner(self, owner: Owner) -> None:
        check_owner(owner)
        opened = self._ready()
        place = opened.placement.of(owner)
        listed = await opened.query("delete_owner", place, rows.owner_filter(owner), ["id"], STRONG)
        ids = [row["id"] for row in listed]
        if self._options.uri and all(map(is_id, ids)):
            # By ids: if we are held up here, the owner may have new rows by then.
            for start in range(0, len(ids), _BATCH):
                filter_ = f"{rows.owner_filter(owner)} and {rows.ids_filter(ids[start : start + _BATCH])}"
                await self._delete(opened, "delete_owner", place, filter_)
        elif ids:
            await self._delete(opened, "delete_owner", place, rows.owner_filter(owner))
        opened.note_written(place, self._options.flush_rows)

    async def purge(self, owner: Owner) -> bool:
        """Implements ports.StorePurger. A Lite file is rewritten where the owner's rows were; a server is asked to
        compact, which it does in its own time. PermanentError for Lite behind an address: it never frees a row,
        and others may write to it while we would rewrite it."""
        check_owner(owner)
        opened = self._ready()
        place = opened.placement.of(owner)
        return await self._let_go(opened, place.collection)

    async def compact(self) -> bool:
        """As purge, for every collection."""
        opened = self._ready()
        done = [await self._let_go(opened, alias) for alias in opened.placement.aliases]
        return all(done)

    def meta(self) -> MetaCollection | None:
        """The collection for copies of shared state; None in a Lite file of this process."""
        return (
            MetaCollection(self._ready, f"{self._options.section.collection}_meta") if self._options.uri else None
        )

    async def _let_go(self, opened: Opened, alias: str) -> bool:
        client, options = opened.client, self._options
        if not opened.capabilities.lite:
            await opened.call("flush", lambda limit: client.flush(alias, timeout=limit))
            await opened.call("compact", lambda limit: client.compact(alias, timeout=limit))
            return False
        if options.uri:
            raise PermanentError("a Milvus Lite server never purges what was deleted")
        await LiteCompaction(client, options, self._calls).rewrite(alias, self._gates[alias])
        return True

    async def get(self, owner: Owner, ids: Sequence[str]) -> Sequence[Memory]:
        return self._readable(await self._by_ids("get", owner, ids, rows.SCALARS, STRONG), rows.to_memory)

    async def fetch(self, owner: Owner, ids: Sequence[str]) -> Sequence[Embedded]:
        return self._readable(await self._by_ids("fetch", owner, ids, _ALL, STRONG), rows.to_embedded)

    async def nearest(self, owner: Owner, to: Vector, limit: int, scope: Scope) -> SearchResult:
        check_owner(owner)
        check_vector(to, self._options.section.dimension)
        opened = self._ready()
        wanted = limit * _MORE_FOR_ORIGINS if scope.origins else limit
        most = max(1, min(wanted, _MOST_HITS))
        parameters: dict[str, Any] = {"metric_type": "COSINE"}
        if not opened.capabilities.exact_only:
            parameters["params"] = {"ef": max(_LEAST_EF, most)}
        hits = await opened.search(
            "nearest",
            opened.placement.of(owner),
            data=[np.asarray(to, dtype=np.float32)],
            anns_field=rows.VECTOR,
            filter=rows.recallable_filter(owner, scope, self._now()),
            limit=most,
            output_fields=list(rows.SCALARS),
            search_params=parameters,
        )
        found = self._readable(hits, _read_hit)
        held = (one for one in found if one.memory.owner == owner and scope.comes_from(one.memory.origin))
        ours = tuple(held)[: max(0, limit)]
        return SearchResult(found=ours, total=None, path="store")

    async def search_text(self, owner: Owner, text: str, limit: int, scope: Scope) -> Sequence[Embedded]:
        check_owner(owner)
        opened = self._ready()
        asked = searchable(text)
        if not (opened.placement.words and asked and limit > 0):
            return []
        hits = await opened.search(
            "worded",
            opened.placement.of(owner),
            data=[asked],
            anns_field=rows.WORDS,
            filter=rows.recallable_filter(owner, scope, self._now()),
            limit=min(limit * (_MORE_FOR_ORIGINS if scope.origins else 1), _MOST_HITS),
            output_fields=list(_ALL),
            search_params={"metric_type": "BM25"},
        )
        found = self._readable(hits, lambda hit: rows.to_embedded(hit["entity"]))
        held = (one for one in found if one.memory.owner == owner and scope.comes_from(one.memory.origin))
        return list(held)[:limit]

    async def pages(self, owner: Owner, size: int, *, fresh: bool) -> AsyncIterator[Sequence[Embedded]]:
        async for page in self._pages(owner, size, STRONG if fresh else BOUNDED):
            yield self._readable(page, rows.to_embedded)

    async def heads(self, owner: Owner, chosen: Conditions) -> MemoryHeads:
        check_owner(owner)
        opened = self._ready()
        place = opened.placement.of(owner)
        filter_ = rows.conditions_filter(owner, chosen)
        if chosen.rating is not None and opened.capabilities.lite:
            filter_ += f" and metadata like {rows.quote(f'%{rows.rating_text(chosen.rating)}%')}"
        found = await opened.columns("heads", place, filter_, rows.HEAD, STRONG)
        heads, unknown = await asyncio.to_thread(MemoryHeads.of_columns, *found)  # they may be 60,000
        for _ in range(unknown):
            rows.report_unreadable(self._metrics.unreadable)
        if chosen.rating is None or opened.capabilities.lite:
            return heads
        # Servers before Milvus 2.4 find a text at the start of a field only.
        wanted, rated = rows.rating_text(chosen.rating), set[str]()
        for start in range(0, len(heads), _BATCH):
            ids = heads.ids[start : start + _BATCH].tolist()
            listed = await self._by_ids("heads", owner, ids, (*_OWNED, "metadata"), STRONG)
            rated.update(row["id"] for row in listed if wanted in row["metadata"])
        return heads.only(rated)

    def as_they_rest(self, owner: Owner, size: int) -> AsyncIterator[Sequence[Mapping[str, Any]]]:
        """Every row of *owner* in Milvus, unreadable rows included."""
        return self._pages(owner, size, STRONG)

    def _readable(self, found: Iterable[Mapping[str, Any]], read: Callable[[Mapping[str, Any]], T]) -> list[T]:
        return rows.readable(found, read, self._metrics.unreadable)

    async def _pages(self, owner: Owner, size: int, level: str) -> AsyncIterator[Sequence[Mapping[str, Any]]]:
        check_owner(owner)
        opened = self._ready()
        # All ids first, then the rows by them: a server's pages are cut by offset, which shifts under writes,
        # or by an iterator, for which the client drops the consistency level. An id takes 70 bytes.
        listed = await opened.query("pages", opened.placement.of(owner), rows.owner_filter(owner), ["id"], level)
        ids = sorted(row["id"] for row in listed)
        most = 1 if opened.capabilities.lite else _PAGES_AHEAD
        ahead = deque[asyncio.Task[list[Mapping[str, Any]]]]()
        try:
            for start in range(0, len(ids), size):
                page = self._by_ids("page", owner, ids[start : start + size], _ALL, level)
                ahead.append(asyncio.create_task(page, name="page of rows"))
                if len(ahead) == most:
                    yield await ahead.popleft()
            while ahead:
                yield await ahead.popleft()
        finally:
            for task in ahead:
                task.cancel()
            await asyncio.gather(*ahead, return_exceptions=True)

    async def count(self, owner: Owner) -> int:
        check_owner(owner)
        opened = self._ready()
        result = await opened.query(
            "count", opened.placement.of(owner), rows.owner_filter(owner), ["count(*)"], STRONG
        )
        return int(result[0]["count(*)"])

    async def owners(self) -> AsyncIterator[Sequence[Owner]]:
        """Implements ports.OwnerLister."""
        opened = self._ready()

        async def query(
            place: OwnerPlace, filter_: str, fields: Sequence[str], limit: int
        ) -> Sequence[Mapping[str, Any]]:
            return await opened.query("owners", place, filter_, fields, STRONG, limit)

        async for found in owners_in(opened.placement.aliases, query):
            yield found

    async def _by_ids(
        self, operation: str, owner: Owner, ids: Sequence[str], fields: Sequence[str], level: str
    ) -> list[Mapping[str, Any]]:
        """Rows of *owner* among *ids*; *fields* include the owner's two."""
        check_owner(owner)
        opened = self._ready()
        place = opened.placement.of(owner)
        wanted = [one for one in dict.fromkeys(ids) if is_id(one)]
        found: list[Mapping[str, Any]] = []
        for start in range(0, len(wanted), _BATCH):
            some = wanted[start : start + _BATCH]
            filter_ = rows.ids_filter(some)
            if not opened.capabilities.lite:  # lets a server prune; would make Lite scan
                filter_ = f"{rows.owner_filter(owner)} and {filter_}"
            found.extend(await opened.query(operation, place, filter_, fields, level, ids=some))
        return [row for row in found if (row["tenant_id"], row["user_id"]) == (owner.tenant, owner.user)]

    def _ready(self) -> Opened:
        if self._opened is None:
            raise self._calls.not_open()
        return self._opened


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _probe_row(options: MilvusOptions, now: datetime) -> Embedded:
    """The same row each time, so a crash leaves at most a single row."""
    memory = Memory(
        id=digest("store probe"),
        owner=_PROBE,
        type=MemoryType.EPISODIC,
        content="probe",
        source=Source.QUESTION,  # which recall never returns
        created_at=now,
        updated_at=now,
        embed_model=options.fingerprint,
    )
    vector = np.zeros(options.section.dimension, dtype=np.float32)
    vector[0] = 1.0
    return Embedded(memory, vector)


def _read_hit(hit: Mapping[str, Any]) -> Hit:
    return Hit(rows.to_memory(hit["entity"]), max(-1.0, min(1.0, hit["distance"])))


# The collection `NAME_meta` beside a server's memories: copies of the shared state that Redis must not lose.

_BODY_BYTES = 60_000  # in one row: a server's VARCHAR takes 65,535
_ID_BYTES = 200
_META_BATCH = 100  # rows in one message


class MetaCollection:
    """Implements ports.Mirror. *ready* gives the open store, or raises. A long record stands in several rows."""

    def __init__(self, ready: Callable[[], Opened], name: str) -> None:
        self._ready, self._place = ready, OwnerPlace(name, None)
        self._found_by: Opened | None = None  # the collection is there and loaded

    async def put(self, records: Mapping[str, bytes]) -> None:
        opened = self._ready()
        await self._find(opened, make=True)
        name, client = self._place.collection, opened.client
        made = [row for id_, body in records.items() for row in _rows(id_, body)]
        for start in range(0, len(made), _META_BATCH):
            batch = made[start : start + _META_BATCH]
            ids = rows.ids_filter(row["id"] for row in batch)
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
            if len(page) >= _META_BATCH:
                yield await self._read(opened, page)
                page = []
        if page:
            yield await self._read(opened, page)

    async def _read(self, opened: Opened, ids: list[str]) -> Mapping[str, bytes]:
        found = await opened.query("meta", self._place, rows.ids_filter(ids), ["id", "body"], STRONG)
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
