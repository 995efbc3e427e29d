"""Milvus Lite in this process, behind a Unix socket that only our own user can open.

pymilvus would start it on a TCP port of the loopback, where any local user could read all memories, because it has
no passwords.

Its files keep the bytes of deleted rows for ever unless a collection is compacted: it is copied, without them, to
its twin; the alias, which all callers use, moves to the twin in one step, and the old collection is dropped with
its files. A twin without an alias comes from a crash before or after that step, and is removed when the store is
opened.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import tempfile
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent import futures
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar
from weakref import WeakKeyDictionary

import grpc

from memory_extproc.coordination.sqlite_file import FileId, Harm, file_id
from memory_extproc.errors import PermanentError, TransientError
from memory_extproc.observe.log import logger
from memory_extproc.store.milvus import rows, schema
from memory_extproc.store.milvus.calls import Calls
from memory_extproc.store.milvus.client import AsyncMilvusClient
from memory_extproc.store.milvus.connect import Gate
from memory_extproc.store.milvus.lite_workarounds import LiteReader, arrow_without_pandas, share_upkeep
from memory_extproc.store.milvus.options import MilvusOptions
from memory_extproc.store.milvus.rows import OwnerPlace, shares

log = logger(__name__)
# Rows that are not flushed are turned into Python lists by every search. Read when milvus_lite is imported.
_MEMTABLE_VARIABLE = "MILVUS_LITE_MEMTABLE_MEMORY_LIMIT_BYTES"
_MEMTABLE_BYTES = 2 * 1024 * 1024
# Arrow's own allocator does not return memory: 55 MiB after 10,000 rows. Read when pyarrow is imported.
_ARROW_POOL_VARIABLE, _ARROW_POOL = "ARROW_DEFAULT_MEMORY_POOL", "system"
_MOST_MESSAGE_BYTES = 256 * 1024 * 1024
_SCHEMA_FILE = "schema.json"  # of a collection; written in one step, after everything but the data
_THREADS = 8
_GRACE_SECONDS = 2.0
_FROM_THE_SYSTEM = "[Errno "  # prefix of an OSError's message
_UNEXPECTED = 1  # the code that Lite gives it


class EmbeddedLite:
    """start and stop block for file and thread work: call them off the event loop."""

    def __init__(self, path: Path) -> None:
        self.address = ""  # once it is started
        self._path = path
        self._directory: str | None = None
        self._server: grpc.Server | None = None
        self._database: Any = None
        self._upkeep: futures.ThreadPoolExecutor | None = None

    def start(self) -> str:
        """The address. TransientError while another process has the file, PermanentError if it cannot be read."""
        os.environ.setdefault(_MEMTABLE_VARIABLE, str(_MEMTABLE_BYTES))
        os.environ.setdefault(_ARROW_POOL_VARIABLE, _ARROW_POOL)
        # Late, so that the variables are set and a sidecar with a server never pays for it.
        try:
            arrow_without_pandas()
            from milvus_lite.db import MilvusLite  # noqa: PLC0415
            from milvus_lite.exceptions import DataDirLockedError, MilvusLiteError  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise PermanentError(
                "Milvus Lite is not installed here, as in the slim image: set memory.milvus.address to a Milvus "
                "server, or use the full image"
            ) from error
        from pymilvus.grpc_gen import milvus_pb2_grpc  # noqa: PLC0415

        # It logs failed calls with their filter, which names the caller.
        logging.getLogger("milvus_lite.adapter").setLevel(logging.CRITICAL + 1)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._database = MilvusLite(str(self._path))
            _clear_unfinished(self._path)
        except DataDirLockedError:
            raise TransientError(f"another process has the Milvus Lite file {self._path}") from None
        except (MilvusLiteError, OSError, ValueError) as error:
            raise PermanentError(f"the Milvus Lite file {self._path} cannot be opened: {error}") from error
        try:
            self._directory = tempfile.mkdtemp(prefix="memory-extproc-")  # mode 0700
        except OSError as error:
            raise TransientError(f"there is no place for the socket of Milvus Lite: {error.strerror}") from error
        self._server = grpc.server(
            futures.ThreadPoolExecutor(_THREADS, thread_name_prefix="milvus-lite"),
            options=[
                ("grpc.max_receive_message_length", _MOST_MESSAGE_BYTES),
                ("grpc.max_send_message_length", _MOST_MESSAGE_BYTES),
            ],
        )
        self._upkeep = futures.ThreadPoolExecutor(1, thread_name_prefix="milvus-lite-upkeep")
        servicer = _one_writer(self._database, self._upkeep)
        milvus_pb2_grpc.add_MilvusServiceServicer_to_server(servicer, self._server)
        self.address = f"unix:{self._directory}/milvus.sock"
        self._server.add_insecure_port(self.address)
        self._server.start()
        return self.address

    def read(
        self,
        place: OwnerPlace,
        filter_: str,
        fields: Sequence[str],
        most: int | None,
        ids: Sequence[str] | None = None,
    ) -> list[dict[str, Any]] | None:
        """Rows of *place* from Lite's own tables; None where the server has to be asked, which knows why."""
        try:
            return LiteReader(self._database).read(place.collection, filter_, fields, place.partitions, most, ids)
        except Exception as error:  # noqa: BLE001 - of any kind: the server refuses with the same code
            log.warning("store.direct_read_failed", error=type(error).__name__)
            return None

    def stop(self) -> None:
        """Flushes and lets go of the file. May be called again."""
        if self._server is not None:
            self._server.stop(_GRACE_SECONDS).wait()
            self._server = None
        if self._database is not None:
            self._database.close()
            self._database = None
        if self._upkeep is not None:
            self._upkeep.shutdown()
            self._upkeep = None
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None


def _clear_unfinished(path: Path) -> None:
    """Remove directories of collections that a crash left without a schema, during creation or removal: Lite
    ignores them, but refuses to create a collection of that name. Needs exclusive use of the file."""
    for collections in (path / "collections", *path.glob("databases/*/collections")):
        for directory in collections.glob("*/"):
            if not (directory / _SCHEMA_FILE).exists():
                shutil.rmtree(directory)


def _one_writer(database: Any, upkeep: futures.Executor) -> Any:
    """Lite's servicer with one writer at a time per collection: with two, Lite loses acknowledged rows. The lock is
    here as well, because a write continues after its caller stopped waiting."""
    from milvus_lite.adapter.grpc.servicer import MilvusServicer  # noqa: PLC0415
    from pymilvus.grpc_gen import milvus_pb2  # noqa: PLC0415

    files = LiteFiles(database)

    class OneWriter(MilvusServicer):  # type: ignore[misc]  # it has no types
        def __init__(self) -> None:
            super().__init__(database)
            self._making = threading.Lock()
            self._writing: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

        def _lock(self, name: str) -> threading.Lock:
            # An alias and its collection share a lock.
            with self._making:
                return self._writing[database.get_collection(name).name if database.has_collection(name) else name]

        def _write(self, name: str, write: Callable[[], Any], answers: type = milvus_pb2.MutationResult) -> Any:
            try:
                with self._lock(name):
                    share_upkeep(database, name, upkeep)
                    return _write_checked(database, files, name, write) or answers(status=_refusal(errno.ENOENT))
            except OSError as error:  # from lookups before the write; Lite reports errors of the write itself
                return answers(status=_refusal(error.errno))

        def CreateCollection(self, request: Any, context: Any) -> Any:  # noqa: N802
            answer = super().CreateCollection(request, context)
            with self._lock(request.collection_name):
                share_upkeep(database, request.collection_name, upkeep)  # making its index has work for a thread
            return answer

        def Insert(self, request: Any, context: Any) -> Any:  # noqa: N802
            return self._write(request.collection_name, partial(super().Insert, request, context))

        def Upsert(self, request: Any, context: Any) -> Any:  # noqa: N802
            return self._write(request.collection_name, partial(super().Upsert, request, context))

        def Delete(self, request: Any, context: Any) -> Any:  # noqa: N802
            return self._write(request.collection_name, partial(super().Delete, request, context))

        def Flush(self, request: Any, context: Any) -> Any:  # noqa: N802
            name = request.collection_names[0] if request.collection_names else ""
            return self._write(name, partial(super().Flush, request, context), milvus_pb2.FlushResponse)

    return OneWriter()


def _refusal(number: int | None) -> Any:
    from pymilvus.grpc_gen import common_pb2  # noqa: PLC0415

    return common_pb2.Status(code=_UNEXPECTED, reason=f"{_FROM_THE_SYSTEM}{number}]")


def _write_checked(database: Any, files: LiteFiles, name: str, write: Callable[[], Any]) -> Any:
    """Lite's answer; None if the written rows are in no file that the next start reads."""
    if files.harm(name) is not None:  # a flush would lose the rows that are in no file any more
        return None
    before = database.get_collection(name)._wal if database.has_collection(name) else None  # noqa: SLF001
    answer = write()
    if answer.status.reason.startswith(_FROM_THE_SYSTEM):
        _take_up_again(database, name, before)
    return answer if files.harm(name) is None else None


def _take_up_again(database: Any, name: str, before: Any) -> None:
    """Reload a collection from its files after a failed write (usually a full disk). *before*: its log at the time
    of the call.

    Lite would continue without the rows of a failed flush, and the next flush would delete the log that still holds
    them; rows written after half a record are unreadable after a crash. The existing logs hold every acknowledged
    row, and a new log is begun."""
    if not database.has_collection(name):
        return  # the files are gone: there is nothing to read
    left = database.get_collection(name)
    database._collections = {key: one for key, one in database._collections.items() if one is not left}  # noqa: SLF001
    left._bg_closed = True  # noqa: SLF001  stop its merges, which would run beside its successor's
    left._bg_executor.shutdown(wait=True)  # noqa: SLF001
    for log in {before, left._wal} - {None}:  # noqa: SLF001
        for sink in (log._data_sink, log._delta_sink):  # noqa: SLF001
            if sink is not None:
                _let_go(sink)
    with suppress(OSError):  # without room for an index the collection stays unloaded, and callers get an error
        database.get_collection(name).load()


def _let_go(log: IO[bytes]) -> None:
    with suppress(OSError):  # retries the failed write
        log.close()
    path = Path(log.name)
    # Each attempt on a full disk would leave an empty log.
    if path.exists() and not path.stat().st_size:
        path.unlink()


# Check that the files of Milvus Lite's collections are still in place. Lite holds all rows in memory and keeps
# answering without its files, but rows acknowledged then are lost at the next start.


class LiteFiles:
    """Checks the files of *database*, a MilvusLite that only this process has open. A check takes some ten
    microseconds."""

    def __init__(self, database: Any) -> None:
        self._database = database
        # By collection, not by name: a recreated collection has another directory.
        self._stood: WeakKeyDictionary[Any, FileId] = WeakKeyDictionary()

    def harm(self, name: str) -> Harm | None:
        """The damage to the collection behind *name*, which may be an alias; None if there is none, or no file is
        open."""
        collection = self._find_collection(name)
        if collection is None:
            return None
        mark = file_id(collection.data_dir)
        if mark is None:
            return Harm.GONE
        if self._stood.setdefault(collection, mark) != mark:
            return Harm.REPLACED
        log = collection._wal  # noqa: SLF001
        for sink in (log._data_sink, log._delta_sink):  # noqa: SLF001
            # A log closed just now is complete: its rows are in other files.
            with suppress(ValueError):
                if sink is not None and file_id(sink.name) != file_id(sink.fileno()):
                    return Harm.LOG_GONE
        return None

    def _find_collection(self, name: str) -> Any:
        target = self._database._aliases("default").get(name, name)  # noqa: SLF001
        return self._database._collections.get(("default", target))  # noqa: SLF001


# --- compaction --------------------------------------------------------------------------------------


T = TypeVar("T")
_TWIN = "_twin"
_BATCH = 100  # rows copied at a time: reads of the collection run in between
_ALL = [*rows.SCALARS, rows.VECTOR]


def twin(physical: str) -> str:
    """The other name of a collection."""
    return physical.removesuffix(_TWIN) if physical.endswith(_TWIN) else physical + _TWIN


class Rewriting:
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
                found = await self._query(old, rows.with_ids(ids[start : start + _BATCH]), _ALL)
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
