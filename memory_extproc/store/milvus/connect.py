"""Open the store, and call it: detect the server's capabilities, create or check the collections.

A collection's alias is created last, so a collection without an alias was never in use: it is completed, or
recreated if it does not fit. Every step can be repeated, also by two replicas at once."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Self, TypeVar

import numpy as np

from memory_extproc.concurrency import Backoff, locate_error, wait_for_event
from memory_extproc.errors import MemoryExtprocError, NotReadyError, PermanentError, TransientError
from memory_extproc.observe.log import logger
from memory_extproc.ports import MemoryStore
from memory_extproc.store.milvus import schema
from memory_extproc.store.milvus.calls import Calls
from memory_extproc.store.milvus.client import AsyncMilvusClient, DataType
from memory_extproc.store.milvus.lite import EmbeddedLite
from memory_extproc.store.milvus.options import Layout, MilvusOptions
from memory_extproc.store.milvus.rows import VECTOR, WORDS, OwnerPlace, Placement, bucket, quote

log = logger(__name__)
T = TypeVar("T")
_LOOKS, _BETWEEN_LOOKS = 40, 0.05  # number and seconds; waiting for a collection that another replica creates
_CANARY = "canary \u017e \U0001f424"  # beyond ASCII, so that its encoding is part of the hash


class Opening:
    def __init__(self, client: AsyncMilvusClient, options: MilvusOptions, calls: Calls) -> None:
        self._client = client
        self._options = options
        self._calls = calls

    async def capabilities(self) -> Capabilities:
        version = await self._calls.run(
            "open", self._options.section.timeout, lambda limit: self._client.get_server_version(timeout=limit)
        )
        return Capabilities.of(version)

    async def place(self, capabilities: Capabilities) -> Placement:
        """The placement of rows, with every collection ready. PermanentError names both sides of a mismatch."""
        options = self._options
        alias, physical = options.section.collection, schema.physical_name(options)
        layout = options.chosen_layout
        shards = 1
        other = f"{alias}_s00" if layout is Layout.SINGLE else alias
        if await self.describe(other) is not None:
            raise PermanentError(
                f"the configuration has the layout {layout.value!r}, the store the other ({other!r})"
            )
        if layout is Layout.SHARDED:
            if not capabilities.lite:
                raise PermanentError("the layout 'sharded' is for Milvus Lite; a server prunes by partition key")
            first = await self.describe(f"{alias}_s00")
            shards = schema.shards_of(first) if first is not None else options.section.shards
        placement = Placement(alias, physical, layout, shards, pruning=False)
        ready = [await self._prepare(*names, shards, capabilities) for names in placement.collections()]
        # A collection that was made without words has none, and serves as it did.
        words = options.full_text and capabilities.full_text and all(map(schema.has_words, ready))
        pruning = capabilities.bucket_pruning and await self._bucket_is_known()
        log.info("store.placed", collections=len(placement.collections()), full_text=words)
        return Placement(alias, physical, layout, shards, pruning, words)

    async def _prepare(
        self, alias: str, physical: str, shards: int, capabilities: Capabilities
    ) -> Mapping[str, Any]:
        """The collection behind *alias*, created as *physical* if missing."""
        described = await self.describe(alias)
        if described is not None and described["collection_name"] == alias:
            raise PermanentError(f"{alias!r} is a collection that was not made by memory-extproc")
        if described is None:
            if self._options.as_it_is:
                raise PermanentError(f"there is no collection {alias!r}")
            await self.index(await self.make(physical, shards, capabilities), capabilities)
            await self._create(alias, lambda limit: self._client.create_alias(physical, alias, timeout=limit))
            # Another replica may have created it meanwhile, perhaps with an older version.
            described = await self.describe(alias)
        if described is None:
            raise PermanentError(f"the alias {alias!r} is not there after it was made")
        schema.check(described, self._options)
        await self.index(described, capabilities)
        return described

    async def make(self, physical: str, shards: int, capabilities: Capabilities) -> Mapping[str, Any]:
        """A collection that no alias leads to yet, as it is by then."""
        half_made = await self.describe(physical)
        if half_made is not None:
            try:
                schema.check(half_made, self._options)
            except PermanentError:
                await self._drop_if_empty(physical)
            else:
                return half_made
        options = self._options
        made = schema.schema(options, words=options.full_text and capabilities.full_text)
        more: dict[str, Any] = {"properties": schema.properties(options, shards)}
        if options.chosen_layout is Layout.SINGLE:
            more["num_partitions"] = schema.PARTITIONS
        await self._create(
            physical, lambda limit: self._client.create_collection(physical, schema=made, timeout=limit, **more)
        )
        # A server silently drops unknown properties.
        described = await self.describe(physical)
        if described is None:
            raise PermanentError(f"the collection {physical!r} is not there after it was made")
        schema.check(described, options)
        return described

    async def _create(self, name: str, call: Callable[[float], Awaitable[object]]) -> None:
        """No fault if another replica has made *name* in the meantime; servers differ in how they say so."""
        try:
            await self._step(call)
        except MemoryExtprocError:
            if not await self._appears(name):
                raise

    async def _appears(self, name: str) -> bool:
        """A collection in creation is refused to others a moment before it is listed."""
        for _ in range(_LOOKS):
            if await self.describe(name) is not None:
                return True
            await asyncio.sleep(_BETWEEN_LOOKS)
        return False

    async def _drop_if_empty(self, physical: str) -> None:
        stats = await self._step(lambda limit: self._client.get_collection_stats(physical, timeout=limit))
        if int(stats.get("row_count", 0)):
            raise PermanentError(f"the collection {physical!r} holds rows and does not fit the configuration")
        log.warning("store.half_made_dropped")
        await self._step(lambda limit: self._client.drop_collection(physical, timeout=limit))

    async def index(self, described: Mapping[str, Any], capabilities: Capabilities) -> None:
        """Where the other side does not search every row anyway. Loading is not waited for."""
        if capabilities.exact_only:
            return
        physical, words = described["collection_name"], schema.has_words(described)
        indexed = set(await self._step(lambda limit: self._client.list_indexes(physical, timeout=limit)))
        if not indexed - {WORDS}:
            parameters = self._client.prepare_index_params()
            parameters.add_index(
                VECTOR, index_type="HNSW", metric_type="COSINE", params={"M": 16, "efConstruction": 200}
            )
            await self._step(lambda limit: self._client.create_index(physical, parameters, timeout=limit))
        if words and WORDS not in indexed:
            parameters = self._client.prepare_index_params()
            parameters.add_index(
                WORDS, index_type="SPARSE_INVERTED_INDEX", index_name=WORDS, metric_type="BM25", params={}
            )
            await self._step(lambda limit: self._client.create_index(physical, parameters, timeout=limit))

    async def describe(self, name: str) -> Mapping[str, Any] | None:
        """None if there is no such collection or alias."""
        found = await self._step(lambda limit: self._client.has_collection(name, timeout=limit))
        if not found:
            return None
        described: Mapping[str, Any] = await self._step(
            lambda limit: self._client.describe_collection(name, timeout=limit)
        )
        return described

    async def _bucket_is_known(self) -> bool:
        """Whether Lite puts a row where we would look for it, asked with a row in a collection of its own. If not
        (its internals changed) reads name no bucket: slower, and as right."""
        name = f"{schema.physical_name(self._options)}_canary"
        made = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        made.add_field("id", DataType.VARCHAR, is_primary=True, max_length=64)
        made.add_field("user_id", DataType.VARCHAR, is_partition_key=True, max_length=64)
        made.add_field(VECTOR, DataType.FLOAT_VECTOR, dim=2)
        row = {"id": "canary", "user_id": _CANARY, VECTOR: np.array([1.0, 0.0], dtype=np.float32)}
        try:
            if await self.describe(name) is not None:
                await self._step(lambda limit: self._client.drop_collection(name, timeout=limit))
            await self._step(lambda limit: self._client.create_collection(name, schema=made, timeout=limit))
            await self._step(lambda limit: self._client.upsert(name, [row], timeout=limit))
            found = await self._step(
                lambda limit: self._client.query(
                    name,
                    filter=f"user_id == {quote(_CANARY)}",
                    output_fields=["id"],
                    partition_names=[bucket(_CANARY)],
                    timeout=limit,
                )
            )
            await self._step(lambda limit: self._client.drop_collection(name, timeout=limit))
        except MemoryExtprocError as error:
            log.warning("store.bucket_unknown", kind=type(error).__name__)
            return False
        if not found:
            log.warning("store.bucket_unknown", kind="moved")
        return bool(found)

    async def _step(self, call: Callable[[float], Awaitable[T]]) -> T:
        return await self._calls.run("open", self._options.open_timeout, call)


# Capabilities of the server, by its version. Trying is no option: Milvus accepts unknown features and drops them
# silently, or crashes.

_LITE = re.compile(r"milvus_lite-(\d+)\.(\d+)\.(\d+)")
_SERVER = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?")
_OLDEST_SERVER = (2, 3, 0)
_OLDEST_LITE = (3, 0, 0)


@dataclass(frozen=True, slots=True)
class Capabilities:
    lite: bool  # Milvus Lite, in this process or as `milvus-lite server`
    version: tuple[int, int, int]

    @classmethod
    def of(cls, version: str) -> Self:
        """Parse the result of get_server_version. A server from PyPI calls itself v2.3.5-lite, so the word alone
        proves nothing. PermanentError for versions that are too old or unreadable."""
        for lite, pattern, oldest in ((True, _LITE, _OLDEST_LITE), (False, _SERVER, _OLDEST_SERVER)):
            match = pattern.match(version)
            if match is not None:
                major, minor, patch = (int(part or 0) for part in match.groups())
                if (major, minor, patch) < oldest:
                    raise PermanentError(f"Milvus {version!r} is older than {'.'.join(map(str, oldest))}")
                return cls(lite=lite, version=(major, minor, patch))
        raise PermanentError(f"a Milvus of the unknown version {version!r}")

    @property
    def exact_only(self) -> bool:
        """Lite's approximate indexes lose most of a filtered search's hits."""
        return self.lite

    @property
    def one_writer(self) -> bool:
        """Lite loses acknowledged rows when a collection has two writers at once."""
        return self.lite

    @property
    def lags(self) -> bool:
        """Reads miss fresh writes unless they ask for strong consistency. Lite's are always strong."""
        return not self.lite

    @property
    def bucket_pruning(self) -> bool:
        """Reads may name the partition of a partition key's value; a server refuses that and prunes itself."""
        return self.lite

    @property
    def full_text(self) -> bool:
        """New collections may have an index of words that fills itself. Older servers drop it silently."""
        return self.version >= ((3, 2, 0) if self.lite else (2, 5, 0))

    @property
    def upsert(self) -> bool:
        """Servers before 2.3.10 compute the partition of an upserted row from another field than the partition
        key (milvus-io/milvus#30607), and a filtered read never finds it; they need delete and insert."""
        return self.lite or self.version >= (2, 3, 10)


# Keeps trying to open the store, so that the sidecar can start and serve without it.


class Opener:
    """Opens *store* while entered, as often as it takes; leaving closes it."""

    PATIENCE = timedelta(seconds=2)  # a start waits this long for a store that is nearly there
    BACKOFF = Backoff(timedelta(milliseconds=250), timedelta(seconds=10))
    REFUSED = timedelta(seconds=30)  # after a store that does not fit: an operator must mend it

    def __init__(self, store: MemoryStore, *, at: str) -> None:
        """*at*: where the store is, as the log may tell it."""
        self._store, self._at = store, at
        self._task: asyncio.Task[None] | None = None
        self._is_opening = True

    async def check_settled(self) -> None:
        """TransientError until the store is open or has been refused, which only an operator can mend."""
        if self._is_opening:
            raise TransientError("the embedded store is being opened")

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._keep_trying(), name="store opener")
        await asyncio.wait([self._task], timeout=self.PATIENCE.total_seconds())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._store.close()

    async def _keep_trying(self) -> None:
        failures = 0
        while True:
            try:
                await self._store.open()
            except PermanentError as error:
                self._is_opening = False
                pause = self.REFUSED.total_seconds()
                log.error("store.refused", at=self._at, detail=str(error), again_in_s=pause)  # noqa: TRY400
            except Exception as error:  # noqa: BLE001 - were this loop to end, the store would never be open
                failures += 1
                pause = self.BACKOFF.seconds(failures)
                why = str(error) if isinstance(error, MemoryExtprocError) else locate_error(error)
                log.warning("store.not_open", at=self._at, detail=why, again_in_s=round(pause, 2))
            else:
                self._is_opening = False
                log.info("store.open")
                return
            await asyncio.sleep(pause)


# The open connection, and the single way to call it.

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
            return await self.calls.run(operation, self.options.section.timeout, call)
        except NotReadyError:
            self.loading.begin()
            raise

    async def query(
        self,
        operation: str,
        place: OwnerPlace,
        filter_: str,
        fields: Sequence[str],
        level: str,
        most: int | None = None,
        ids: Sequence[str] | None = None,
    ) -> Sequence[Mapping[str, Any]]:
        """Rows of *place*, by *filter_*, as Milvus gives them; any *most* of them. *ids*: all that *filter_* asks
        for in Lite."""

        async def query(limit: float) -> Any:
            if self.lite is not None:
                rows = await asyncio.to_thread(self.lite.read, place, filter_, fields, most, ids)
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

    async def columns(
        self, operation: str, place: OwnerPlace, filter_: str, fields: Sequence[str], level: str
    ) -> Sequence[Any]:
        """As query, by column, which takes a fifth of the time of rows in Lite."""
        if (lite := self.lite) is not None:
            async with self.reading(place):
                found = await self.call(
                    operation, lambda _: asyncio.to_thread(lite.read_columns, place, filter_, fields)
                )
            if found is not None:
                return found
        listed = await self.query(operation, place, filter_, fields, level)
        return await asyncio.to_thread(lambda: [[row[name] for row in listed] for name in fields])

    async def search(self, operation: str, place: OwnerPlace, **asked: Any) -> Sequence[Mapping[str, Any]]:
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
    async def writing(self, place: OwnerPlace) -> AsyncIterator[None]:
        """Serialize writers where the server needs that."""
        if self.capabilities.one_writer:
            async with self.gates[place.collection].writing():
                yield
        else:
            yield

    @asynccontextmanager
    async def reading(self, place: OwnerPlace) -> AsyncIterator[None]:
        if self.capabilities.one_writer:
            async with self.gates[place.collection].reading():
                yield
        else:
            yield

    def note_written(self, place: OwnerPlace, count: int) -> None:
        """*count* rows of *place* were written or deleted."""
        if self.flusher is not None:
            self.flusher.note_written(place.collection, count)


# After a restart a server answers only once its collections were loaded again.

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

    def note_written(self, collection: str, count: int) -> None:
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
            if not await wait_for_event(self._wrote, self._options.flush_idle.total_seconds()):
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
