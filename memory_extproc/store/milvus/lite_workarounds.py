"""Reads of Milvus Lite that make no more of its rows than what is asked for.

Lite itself makes a Python object of every number of the vector of every row that matches, also to count them or to
tell their ids: 15 kB and 0.2 ms each, all of them at once for a count."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any

_COUNT = "count(*)"


def narrow_reader(database: Any) -> Any:
    """A servicer of Lite's of which only Query is to be asked."""
    from milvus_lite.adapter.grpc.servicer import MilvusServicer  # noqa: PLC0415 - a server is reached without it

    class NarrowReader(MilvusServicer):  # type: ignore[misc]  # it has no types
        def _get_collection(self, request: Any, context: Any) -> Any:
            collection = super()._get_collection(request, context)
            return NarrowCollection(collection, counting=_COUNT in request.output_fields)

    return NarrowReader(database)


class NarrowCollection:
    """What Lite's Query asks of *collection*, one of Lite's. *counting*: only the number of rows counts."""

    def __init__(self, collection: Any, *, counting: bool) -> None:
        self._collection = collection
        self._counting = counting

    def __getattr__(self, name: str) -> Any:
        return getattr(self._collection, name)

    def query(
        self,
        expr: str | None = None,
        output_fields: Sequence[str] | None = None,
        partition_names: Sequence[str] | None = None,
        limit: int | None = None,
        offset: int = 0,
        timezone: str | None = None,
        order_by_pk: bool = False,  # noqa: FBT001, FBT002 - as Lite calls it
    ) -> list[dict[str, Any]]:
        """As Lite's own, which is asked where whole rows are wanted, or the order of their ids is."""
        collection = self._collection
        fields = self._fields(output_fields)
        if not expr or fields is None or order_by_pk:
            found: list[dict[str, Any]] = collection.query(
                expr, output_fields, partition_names, limit, offset, timezone, order_by_pk
            )
            return found
        collection._require_loaded()  # noqa: SLF001
        filter_ = collection._compile_filter(expr, timezone=timezone)  # noqa: SLF001
        end = None if limit is None else offset + limit
        rows: list[dict[str, Any]] = []
        for table, places in _matching(collection, filter_, partition_names):
            rows += _read_rows(table, places if end is None else places[: end - len(rows)], fields)
            if end is not None and len(rows) >= end:
                break
        return rows[offset:]

    def _fields(self, asked: Sequence[str] | None) -> list[str] | None:
        """Those to make; None where they are not only ones of the schema without a vector."""
        if self._counting:
            return []
        collection = self._collection
        known = {field.name for field in collection.schema.fields} - {collection._vector_name}  # noqa: SLF001
        if asked is None or not known.issuperset(asked):
            return None
        return list(dict.fromkeys((*asked, collection.pk_field)))


def _matching(collection: Any, filter_: Any, partitions: Sequence[str] | None) -> Iterator[tuple[Any, list[int]]]:
    """Tables, and which of their rows match and stand: the newest of their id, and not deleted since."""
    from milvus_lite.search.filter import evaluate_mask  # noqa: PLC0415

    # Before the segments: what a flush moves in between is then in both, not in neither.
    memtable = collection._memtable  # noqa: SLF001
    ids, seqs, _, _, table = memtable.to_search_snapshot(None, partitions, include_table=True)
    deleted = {id_: entry[0] for id_, entry in memtable.delete_index_snapshot().items()}
    all_segments, deltas = collection._read_snapshot()  # noqa: SLF001
    segments = [one for one in all_segments if one.num_rows and (not partitions or one.partition in partitions)]
    written = dict(zip(ids, seqs.tolist(), strict=True))

    def stands(id_: str, seq: int) -> bool:
        if deltas.is_deleted(id_, seq) or deleted.get(id_, -1) > seq:
            return False
        places = ((one, one.pk_to_row.get(id_)) for one in segments)
        return all(place is None or one.seqs[place] <= seq for one, place in places)

    if ids:
        mask = evaluate_mask(filter_, table)
        yield table, [place for place in mask.nonzero()[0].tolist() if stands(ids[place], written[ids[place]])]
    for one in segments:
        mask = evaluate_mask(filter_, one.table)
        yield (
            one.table,
            [
                place
                for place in mask.nonzero()[0].tolist()
                if one.pks[place] not in written and stands(one.pks[place], int(one.seqs[place]))
            ],
        )


def _read_rows(table: Any, places: list[int], fields: Sequence[str]) -> list[dict[str, Any]]:
    if not (fields and places):
        return [{} for _ in places]
    made: list[dict[str, Any]] = table.select(list(fields)).take(places).to_pylist()
    return made


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


# pandas for who imports it and hardly ever needs it: loaded when it is first used.
#
# pymilvus imports it for data frames, and pyarrow for its conversions; nobody here makes any. It takes a quarter
# of a second and 40 MiB.

_TYPES = "pandas.api.types"
_QUESTIONS = ("infer_dtype", "is_array_like", "is_float", "is_list_like", "is_scalar")


class _KindOfFrame(type):
    """Without pandas nothing is a data frame."""

    def __instancecheck__(cls, instance: object) -> bool:
        pandas = sys.modules.get("pandas")
        return pandas is not None and isinstance(instance, pandas.DataFrame)


class _DataFrame(metaclass=_KindOfFrame):
    """Stands for pandas.DataFrame in annotations and where it is asked whether something is one."""


def _asked_later(question: str) -> Callable[..., Any]:
    def ask(*args: Any, **named: Any) -> Any:
        return getattr(importlib.import_module(_TYPES), question)(*args, **named)

    return ask


@contextmanager
def pandas_later() -> Iterator[None]:
    """What imports pandas inside gets something that stands for it; what does so afterwards, pandas itself. Where
    it is loaded already nothing changes."""
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
    """Pyarrow looks once whether there is pandas, with the first array that it makes, and loads it then. What it is
    asked to convert to pandas later it converts all the same."""
    if "pandas" in sys.modules:
        return
    absent = _Absent()
    sys.meta_path.insert(0, absent)
    try:
        importlib.import_module("pyarrow").array([0])
    finally:
        sys.meta_path.remove(absent)
