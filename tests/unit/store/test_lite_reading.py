"""Milvus Lite read without making of its rows what nobody asked for: the same rows, in less memory."""

from __future__ import annotations

import tempfile
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from milvus_lite.db import MilvusLite
from milvus_lite.schema.types import CollectionSchema, DataType, FieldSchema

from memory_extproc.store.milvus.lite import LiteReader
from memory_extproc.store.milvus.rows import bucket

DIMENSION = 256
NAME = "memories"
PEOPLE = ("ann", "bob", "cyd")
FILTERS = (
    'id >= "" and id < "~"',
    'id >= "2" and id < "5"',
    'user_id == "ann"',
    'user_id == "bob" and text == "new"',
    'text != "new"',
    'user_id == "nobody"',
    'id in ["1", "4", "7", "99"]',
)


@contextmanager
def a_collection() -> Iterator[tuple[Any, LiteReader]]:
    with tempfile.TemporaryDirectory() as directory:
        database = MilvusLite(str(Path(directory) / "milvus.db"))
        try:
            collection = database.create_collection(
                NAME,
                CollectionSchema(
                    [
                        FieldSchema("id", DataType.VARCHAR, is_primary=True, max_length=64),
                        FieldSchema("user_id", DataType.VARCHAR, max_length=64, is_partition_key=True),
                        FieldSchema("text", DataType.VARCHAR, max_length=64),
                        FieldSchema("importance", DataType.FLOAT),
                        FieldSchema("embedding", DataType.FLOAT_VECTOR, dim=DIMENSION),
                    ]
                ),
            )
            yield collection, LiteReader(database)
        finally:
            database.close()


def a_row(number: int, text: str = "old") -> dict[str, Any]:
    user = PEOPLE[number % len(PEOPLE)]
    vector = np.full(DIMENSION, number / 7, dtype=np.float32).tolist()
    return {"id": str(number), "user_id": user, "text": text, "importance": number / 10, "embedding": vector}


NUMBERS = st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("upsert old"), NUMBERS),
        st.tuples(st.just("upsert new"), NUMBERS),
        st.tuples(st.just("delete"), NUMBERS),
        st.tuples(st.just("flush"), st.just([])),
    ),
    max_size=9,
)


def play(collection: Any, steps: list[tuple[str, list[int]]]) -> None:
    for step, numbers in steps:
        if step == "flush":
            collection.flush()
        elif step == "delete":
            collection.delete([str(number) for number in numbers])
        else:
            collection.upsert([a_row(number, step.removeprefix("upsert ")) for number in numbers])


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By id, with each vector as a list of numbers."""
    listed = [row | ({"embedding": list(row["embedding"])} if "embedding" in row else {}) for row in rows]
    return sorted(listed, key=lambda row: str(row["id"]))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS)
def test_what_was_written_replaced_deleted_and_flushed_reads_as_lite_itself_reads_it(
    steps: list[tuple[str, list[int]]],
) -> None:
    with a_collection() as (collection, reader):
        play(collection, steps)
        for filter_ in FILTERS:
            for partitions in (None, [bucket("ann")]):
                for fields in (["id", "user_id", "importance"], ["id", "text", "embedding"]):
                    expected = in_order(collection.query(filter_, fields, partitions))
                    assert in_order(reader.read(NAME, filter_, fields[1:], partitions)) == expected
                columns = reader.read_columns(NAME, filter_, ["id", "user_id", "text"], partitions)
                listed = sorted(
                    (row["id"], row["user_id"], row["text"])
                    for row in reader.read(NAME, filter_, ["user_id", "text"], partitions)
                )
                assert sorted(zip(*(column.tolist() for column in columns), strict=True)) == listed
                assert reader.read(NAME, filter_, ["count(*)"], partitions) == [{"count(*)": len(expected)}]
                for limit in (1, 3, 50):
                    some = [row["id"] for row in reader.read(NAME, filter_, ["id"], partitions, limit)]
                    assert len(set(some)) == len(some) == min(limit, len(expected))
                    assert set(some) <= {row["id"] for row in expected}
        asked = [str(number) for number in range(9, -1, -2)]
        filter_ = "id in [" + ", ".join(f'"{one}"' for one in asked) + "]"
        expected = in_order(collection.query(filter_, ["id", "text"], None))
        assert in_order(reader.read(NAME, filter_, ["text"], None)) == expected
        assert in_order(reader.read(NAME, filter_, ["text"], None, ids=asked)) == expected


@pytest.mark.parametrize("flushed", [True, False])
def test_counting_and_listing_rows_makes_nothing_of_their_vectors(*, flushed: bool) -> None:
    """Lite itself: 8 kB a row of this dimension, and for a count of all rows at once."""
    with a_collection() as (collection, reader):
        collection.insert([a_row(number) for number in range(400)])
        if flushed:
            collection.flush()
        reader.read(NAME, FILTERS[0], ["count(*)"], None)  # what is read once and kept is no matter of rows
        tracemalloc.start()
        try:
            assert reader.read(NAME, FILTERS[0], ["count(*)"], None) == [{"count(*)": 400}]
            assert len(reader.read(NAME, FILTERS[0], ["id", "user_id"], None)) == 400
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 400 * 2_000


def test_a_row_that_is_kept_does_not_keep_the_vectors_of_the_others() -> None:
    with a_collection() as (collection, reader):
        collection.insert([a_row(number) for number in range(10)])
        assert all(
            row["embedding"].base is None for row in reader.read(NAME, FILTERS[0], ["id", "embedding"], None)
        )
