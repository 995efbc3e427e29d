"""Milvus Lite in this process, behind a Unix socket that only our own user can open.

pymilvus would start it on a TCP port of the loopback, where any local user could read all memories, because it has
no passwords.

Its own reads make a Python object of every number of the vector of every matching row, also to count or list ids:
15 kB and 0.2 ms per row, all at once for a count. `LiteReader` reads rows from its tables instead.
"""

from __future__ import annotations

import errno
import importlib
import json
import logging
import os
import shutil
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import suppress
from functools import partial
from importlib.abc import MetaPathFinder
from itertools import combinations
from pathlib import Path
from typing import IO, Any, TypeVar, cast
from weakref import WeakKeyDictionary

import grpc
import numpy as np
import numpy.typing as npt

from memory_extproc.coordination.sqlite_file import FileId, Harm, file_id
from memory_extproc.errors import PermanentError, TransientError
from memory_extproc.observe.log import logger
from memory_extproc.store.milvus.rows import OwnerPlace

log = logger(__name__)
T = TypeVar("T")
Places = npt.NDArray[np.int64]  # of rows in a table of Arrow
# Rows that are not flushed are turned into Python lists by every search. Read when milvus_lite is imported.
_MEMTABLE_VARIABLE = "MILVUS_LITE_MEMTABLE_MEMORY_LIMIT_BYTES"
_MEMTABLE_BYTES = 2 * 1024 * 1024
# Arrow's own allocator does not return memory: 55 MiB after 10,000 rows. Read when pyarrow is imported.
_ARROW_POOL_VARIABLE, _ARROW_POOL = "ARROW_DEFAULT_MEMORY_POOL", "system"
_MOST_MESSAGE_BYTES = 256 * 1024 * 1024
_SCHEMA_FILE = "schema.json"  # of a collection; written in one step, after everything but the data
_PARQUET = b"PAR1"  # at both ends of such a file
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
            _refuse_damaged(self._path)
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
        read = LiteReader(self._database).read
        return _read_directly(lambda: read(place.collection, filter_, fields, place.partitions, most, ids))

    def read_columns(self, place: OwnerPlace, filter_: str, fields: Sequence[str]) -> list[npt.NDArray[Any]] | None:
        """As read, an array for each of *fields*."""
        read = LiteReader(self._database).read_columns
        return _read_directly(lambda: read(place.collection, filter_, fields, place.partitions))

    def stop(self) -> None:
        """Flushes and lets go of the file. May be called again."""
        if self._server is not None:
            self._server.stop(_GRACE_SECONDS).wait()
            self._server = None
        if self._database is not None:
            for one in list(self._database._collections.values()):  # noqa: SLF001
                if file_id(one.data_dir) is None:  # else closing would make a part of it again
                    _take_out(self._database, one)
                    with suppress(OSError):
                        one._wal.close_and_delete()  # noqa: SLF001
            self._database.close()
            self._database = None
        if self._upkeep is not None:
            self._upkeep.shutdown()
            self._upkeep = None
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None


def _read_directly(read: Callable[[], T]) -> T | None:
    try:
        return read()
    except Exception as error:  # noqa: BLE001 - of any kind: the server refuses with the same code
        log.warning("store.direct_read_failed", error=type(error).__name__)
        return None


def _refuse_damaged(path: Path) -> None:
    """PermanentError if a file of a collection in use is missing or damaged. Lite would go on without the rows in
    it, or with rows that were deleted, and remove the files that an older list does not name."""
    file = path
    try:
        for file in _files_in_use(path):
            _check_ends(file)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise PermanentError(
            f"the Milvus Lite file {path} is damaged: {file.relative_to(path)} is "
            f"{'missing' if isinstance(error, FileNotFoundError) else 'not readable'}. Restore a backup or a copy "
            "of the directory, or move it aside to begin without memories"
        ) from error


def _files_in_use(path: Path) -> Iterator[Path]:
    """Each file is parsed after its caller has checked it. Without collections that no alias leads to: a crash may
    have left them half removed."""
    aliases = path / "aliases.json"
    if not aliases.exists():
        return
    yield aliases
    for name in json.loads(aliases.read_bytes()).values():
        directory = path / "collections" / name
        if not directory.exists():
            continue  # somebody removed all of it, and it begins anew
        yield directory / _SCHEMA_FILE
        manifest = directory / "manifest.json"
        if manifest.exists() or manifest.with_name("manifest.json.prev").exists():  # else nothing was flushed yet
            yield manifest
            for partition, listed in json.loads(manifest.read_bytes())["partitions"].items():
                for one in (*listed["data_files"], *listed["delta_files"]):
                    yield directory / "partitions" / partition / one


def _check_ends(file: Path) -> None:
    """OSError or ValueError unless *file* is JSON, or begins and ends as Parquet does."""
    with file.open("rb") as opened:
        if file.suffix == ".json":
            json.load(opened)
        elif opened.read(len(_PARQUET)) != _PARQUET or not (
            opened.seek(-len(_PARQUET), os.SEEK_END) and opened.read() == _PARQUET
        ):
            raise ValueError("no Parquet file")


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
    _take_out(database, left)
    for log in {before, left._wal} - {None}:  # noqa: SLF001
        for sink in (log._data_sink, log._delta_sink):  # noqa: SLF001
            if sink is not None:
                _let_go(sink)
    with suppress(OSError):  # without room for an index the collection stays unloaded, and callers get an error
        database.get_collection(name).load()


def _take_out(database: Any, collection: Any) -> None:
    """Have *database* do without *collection*, and end its merges, which would run beside its successor's."""
    database._collections = {key: one for key, one in database._collections.items() if one is not collection}  # noqa: SLF001
    collection._bg_closed = True  # noqa: SLF001
    collection._bg_executor.shutdown(wait=True)  # noqa: SLF001


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


# --- workarounds -------------------------------------------------------------------------------------


_COUNT = "count(*)"
_AT_ONCE = 1_000  # rows that Arrow makes Python objects of; the event loop waits meanwhile


class LiteReader:
    """Reads rows of an open Lite *database* as `query` of its server does."""

    def __init__(self, database: Any) -> None:
        self._database = database

    def read(
        self,
        name: str,
        filter_: str,
        fields: Sequence[str],
        partitions: Sequence[str] | None,
        most: int | None = None,
        ids: Sequence[str] | None = None,
    ) -> list[dict[str, Any]]:
        """Return *fields* and the id of at most *most* matching rows of the collection *name* in any order; vectors
        as arrays. Without a limit the only field may be `count(*)`. *ids*: the ids in *filter_*, if it has no other
        condition; Lite takes 40 µs to read an id from it."""
        collection, tables = self._find(name, filter_, partitions, ids)
        if list(fields) == [_COUNT]:
            return [{_COUNT: sum(len(places) for _, places in tables)}]
        vector = collection._vector_name  # noqa: SLF001
        fields = list(dict.fromkeys((*fields, collection.pk_field)))
        rows: list[dict[str, Any]] = []
        for table, places in tables:
            rows += _make_rows(table, places if most is None else places[: most - len(rows)], fields, vector)
        return rows

    def read_columns(
        self, name: str, filter_: str, fields: Sequence[str], partitions: Sequence[str] | None
    ) -> list[npt.NDArray[Any]]:
        """As read, without vectors."""
        _, tables = self._find(name, filter_, partitions, None)
        found = [table.select(list(fields)).take(places) for table, places in tables if len(places)]
        parts = [[table.column(field).to_numpy() for table in found] for field in fields]
        return [np.concatenate(part) if part else np.empty(0, dtype=np.object_) for part in parts]

    def _find(
        self, name: str, filter_: str, partitions: Sequence[str] | None, ids: Sequence[str] | None
    ) -> tuple[Any, Iterator[tuple[Any, Places]]]:
        from milvus_lite.adapter.grpc.servicer import MilvusServicer  # noqa: PLC0415 - a server is reached without it

        collection = self._database.get_collection(name)
        collection._require_loaded()  # noqa: SLF001
        if ids is None:
            ids = MilvusServicer._extract_pks_from_expr(filter_, collection)  # noqa: SLF001
        compiled = collection._compile_filter(filter_, timezone=None) if ids is None else None  # noqa: SLF001
        return collection, _matching(collection, partitions, compiled, ids)


def _matching(
    collection: Any, partitions: Sequence[str] | None, filter_: Any, ids: Sequence[str] | None
) -> Iterator[tuple[Any, Places]]:
    """Yield tables with the places of their live rows that match: the newest row of each id, not deleted since.
    Rows are chosen by the compiled *filter_*, or by *ids*, which no table is searched for."""
    from milvus_lite.search.filter import evaluate_mask  # noqa: PLC0415

    # Before the segments: rows that a flush moves in between are then in both, not in neither.
    memtable = collection._memtable  # noqa: SLF001
    unflushed, seqs, _, _, table = memtable.to_search_snapshot(None, partitions, include_table=True)
    deleted = {id_: entry[0] for id_, entry in memtable.delete_index_snapshot().items()}
    all_segments, deltas = collection._read_snapshot()  # noqa: SLF001
    segments = [one for one in all_segments if one.num_rows and (not partitions or one.partition in partitions)]
    written = dict(zip(unflushed, seqs.tolist(), strict=True))

    def is_newest(id_: str, seq: int) -> bool:
        if deltas.is_deleted(id_, seq) or deleted.get(id_, -1) > seq:
            return False
        places = ((one, one.pk_to_row.get(id_)) for one in segments)
        return all(place is None or one.seqs[place] <= seq for one, place in places)

    def matches(table: Any, places: Mapping[str, int]) -> Places:
        if ids is not None:
            return np.array([places[id_] for id_ in ids if id_ in places], dtype=np.int64)
        return cast("Places", evaluate_mask(filter_, table).nonzero()[0])

    # Most ids have a single version. A scan of all rows looks up the versions of the other ids only.
    several: set[str] | None = None
    if ids is None:
        several = {*deltas._map, *deleted, *written}  # noqa: SLF001
        for one, other in combinations((one.pk_to_row.keys() for one in segments), 2):
            several |= one & other

    if unflushed:
        places = {id_: place for place, id_ in enumerate(unflushed)} if ids is not None else {}
        chosen = matches(table, places)
        yield table, _choose(chosen, lambda place: is_newest(unflushed[place], written[unflushed[place]]))
    for one in segments:
        chosen = matches(one.table, one.pk_to_row)
        yield (
            one.table,
            _newest_rows(one, chosen, several, lambda id_, seq: id_ not in written and is_newest(id_, seq)),
        )


def _choose(places: Places, stands: Callable[[int], bool]) -> Places:
    return places[np.fromiter(map(stands, places.tolist()), np.bool_, len(places))]


def _newest_rows(
    segment: Any, chosen: Places, several: set[str] | None, stands: Callable[[str, int], bool]
) -> Places:
    """The *chosen* rows of *segment* that stand. *several*: the ids that may have further versions; None: any."""

    def judge(place: int) -> bool:
        id_ = segment.pks[place]
        return (several is not None and id_ not in several) or stands(id_, int(segment.seqs[place]))

    if several is None or len(chosen) < len(several):
        return _choose(chosen, judge)
    gone = [place for id_ in several if (place := segment.pk_to_row.get(id_)) is not None and not judge(place)]
    return chosen[~np.isin(chosen, gone)] if gone else chosen


def _make_rows(table: Any, places: Places, fields: Sequence[str], vector: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    scalars = table.select([one for one in fields if one != vector])
    for start in range(0, len(places), _AT_ONCE):
        rows += scalars.take(places[start : start + _AT_ONCE]).to_pylist()
    if not rows:
        return []
    if vector in fields:
        numbers = table.column(vector).take(places).combine_chunks().values.to_numpy(zero_copy_only=False)
        for row, its in zip(rows, numbers.reshape(len(places), -1), strict=True):
            row[vector] = its.copy()  # not a view, which would keep all of them
    return rows


# Lite starts a thread for each collection, to compact segments and build indexes.


class _SharedUpkeep:
    """A collection's part of an executor that all collections share."""

    def __init__(self, executor: futures.Executor) -> None:
        self._executor = executor
        self._pending: set[futures.Future[Any]] = set()

    def submit(self, work: Callable[[], Any]) -> futures.Future[Any]:
        task = self._executor.submit(work)
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)
        return task

    def shutdown(self, wait: bool = True) -> None:  # noqa: FBT001, FBT002 - as Lite calls it
        if wait:
            futures.wait(tuple(self._pending))


def share_upkeep(database: Any, name: str, executor: futures.Executor) -> None:
    """Have the collection *name* of Lite's *database* use *executor* in place of a thread of its own."""
    collection = database.get_collection(name) if database.has_collection(name) else None
    if collection is not None and not isinstance(collection._bg_executor, _SharedUpkeep):  # noqa: SLF001
        collection._bg_executor.shutdown(wait=True)  # noqa: SLF001
        collection._bg_executor = _SharedUpkeep(executor)  # noqa: SLF001


# Load pandas on first use. pymilvus imports it for data frames, and pyarrow for its conversions; we use neither.
# The import takes a quarter of a second and 40 MiB.


class _Absent(MetaPathFinder):
    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname)


def arrow_without_pandas() -> None:
    """Pyarrow looks for pandas once, with the first array that it makes. Later conversions to pandas still work."""
    if "pandas" in sys.modules:
        return
    absent = _Absent()
    sys.meta_path.insert(0, absent)
    try:
        importlib.import_module("pyarrow").array([0])
    finally:
        sys.meta_path.remove(absent)
