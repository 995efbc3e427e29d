"""Workarounds for Milvus Lite in this process.

Its own reads make a Python object of every number of the vector of every matching row, also to count or list ids:
15 kB and 0.2 ms per row, all at once for a count. Rows are read from its tables instead."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from itertools import combinations
from types import ModuleType
from typing import Any, cast

_COUNT = "count(*)"


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
        from milvus_lite.adapter.grpc.servicer import MilvusServicer  # noqa: PLC0415 - a server is reached without it

        collection = self._database.get_collection(name)
        collection._require_loaded()  # noqa: SLF001
        if ids is None:
            ids = MilvusServicer._extract_pks_from_expr(filter_, collection)  # noqa: SLF001
        compiled = collection._compile_filter(filter_, timezone=None) if ids is None else None  # noqa: SLF001
        tables = _matching(collection, partitions, compiled, ids)
        if list(fields) == [_COUNT]:
            return [{_COUNT: sum(len(places) for _, places in tables)}]
        vector = collection._vector_name  # noqa: SLF001
        fields = list(dict.fromkeys((*fields, collection.pk_field)))
        rows: list[dict[str, Any]] = []
        for table, places in tables:
            rows += _make_rows(table, places if most is None else places[: most - len(rows)], fields, vector)
        return rows


def _matching(
    collection: Any, partitions: Sequence[str] | None, filter_: Any, ids: Sequence[str] | None
) -> Iterator[tuple[Any, list[int]]]:
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

    def matches(table: Any, places: Mapping[str, int]) -> list[int]:
        if ids is not None:
            return [places[id_] for id_ in ids if id_ in places]
        return cast("list[int]", evaluate_mask(filter_, table).nonzero()[0].tolist())

    # Most ids have a single version. A scan of all rows looks up the versions of the other ids only.
    several: set[str] | None = None
    if ids is None:
        several = set(deltas._map) | deleted.keys()  # noqa: SLF001
        for one, other in combinations((one.pk_to_row.keys() for one in segments), 2):
            several |= one & other

    if unflushed:
        places = {id_: place for place, id_ in enumerate(unflushed)} if ids is not None else {}
        chosen = matches(table, places)
        yield table, [place for place in chosen if is_newest(unflushed[place], written[unflushed[place]])]
    for one in segments:
        chosen = matches(one.table, one.pk_to_row)
        yield (
            one.table,
            [
                place
                for place, id_ in ((place, one.pks[place]) for place in chosen)
                if id_ not in written
                and ((several is not None and id_ not in several) or is_newest(id_, int(one.seqs[place])))
            ],
        )


def _make_rows(table: Any, places: list[int], fields: Sequence[str], vector: str) -> list[dict[str, Any]]:
    if not places:
        return []
    rows: list[dict[str, Any]] = table.select([one for one in fields if one != vector]).take(places).to_pylist()
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

_TYPES = "pandas.api.types"
_QUESTIONS = ("infer_dtype", "is_array_like", "is_float", "is_list_like", "is_scalar")


class _KindOfFrame(type):
    """Without pandas nothing is a data frame."""

    def __instancecheck__(cls, instance: object) -> bool:
        pandas = sys.modules.get("pandas")
        return pandas is not None and isinstance(instance, pandas.DataFrame)


class _DataFrame(metaclass=_KindOfFrame):
    """Stands for pandas.DataFrame in annotations and isinstance checks."""


def _asked_later(question: str) -> Callable[..., Any]:
    def ask(*args: Any, **named: Any) -> Any:
        return getattr(importlib.import_module(_TYPES), question)(*args, **named)

    return ask


@contextmanager
def pandas_later() -> Iterator[None]:
    """Imports of pandas inside get a stand-in; later imports get pandas itself. No effect if pandas is loaded
    already."""
    if "pandas" in sys.modules:
        yield
        return
    modules = {name: ModuleType(name) for name in ("pandas", "pandas.api", _TYPES)}
    vars(modules["pandas"])["DataFrame"] = _DataFrame
    vars(modules[_TYPES]).update({question: _asked_later(question) for question in _QUESTIONS})
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]


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
