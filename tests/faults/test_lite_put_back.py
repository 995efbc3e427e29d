"""Files of Milvus Lite that are taken away or exchanged while it is open: it has every row in its memory."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import structlog.testing
from prometheus_client import CollectorRegistry

from memory_extproc.errors import NotReadyError
from memory_extproc.model import Embedded
from memory_extproc.observe.metrics import Metrics
from memory_extproc.store.milvus import MilvusStore
from memory_extproc.store.options import MilvusOptions
from tests.builders import ANN, BOB, MONDAY, a_memory
from tests.fixtures.copying import copied_at_once
from tests.fixtures.waiting import until

VECTOR = np.array([1.0, 0.0], dtype=np.float32)
Opened = tuple[MilvusStore, CollectorRegistry]
SOON = timedelta(milliseconds=20)
COLLECTION = Path("collections") / "c_v2_2_s00"


def row(words: str, owner: object = ANN) -> Embedded:
    return Embedded(a_memory(words, owner), VECTOR)  # type: ignore[arg-type]


@asynccontextmanager
async def opened(path: Path, every: timedelta = timedelta(seconds=30)) -> AsyncIterator[Opened]:
    registry = CollectorRegistry()
    options = MilvusOptions(path=path, collection="c", fingerprint="f", dimension=2, shards=1, files_every=every)
    store = MilvusStore(options, Metrics(registry, "0"), now=lambda: MONDAY)
    await store.open()
    try:
        yield store, registry
    finally:
        await store.close()


async def words_at(path: Path) -> set[str]:
    """What a later start finds."""
    async with opened(path) as (store, _):
        found: set[str] = set()
        for owner in (ANN, BOB):
            async for page in store.pages(owner, 10, fresh=True):
                found.update(one.memory.content for one in page)
        return found


def _deleted(path: Path, directory: Path) -> None:
    """At once, however often it is looked."""
    with tempfile.TemporaryDirectory(dir=path.parents[1]) as trash:
        directory.rename(Path(trash) / "gone")


def _all_deleted(path: Path) -> None:
    _deleted(path, path)


def _data_directory_deleted(path: Path) -> None:
    _deleted(path, path.parent)


def _collection_deleted(path: Path) -> None:
    _deleted(path, path / COLLECTION)


def _log_deleted(path: Path) -> None:
    _deleted(path, path / COLLECTION / "wal")


def _moved_away(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))


def _exchanged(path: Path) -> None:
    copy = path.with_name("copy")
    assert any(copied_at_once(path, copy) for _ in range(100)), "something moves all the time"
    path.rename(path.with_name("old"))
    copy.rename(path)


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (_all_deleted, "gone"),
        (_data_directory_deleted, "gone"),
        (_collection_deleted, "gone"),
        (_moved_away, "gone"),
        (_log_deleted, "log_gone"),
        (_exchanged, "replaced"),
    ],
)
async def test_rows_from_before_and_after_are_there_at_the_next_start(
    tmp_path: Path, harm: Callable[[Path], None], why: str
) -> None:
    path = tmp_path / "data" / "milvus.db"
    async with opened(path) as (store, _):
        await store.put(ANN, [row("in a segment")])
    async with opened(path, SOON) as (store, registry):
        await store.put(BOB, [row("in the log", BOB)])
        harm(path)
        assert await store.count(BOB) == 1  # reads go on

        def put_back() -> bool:
            return registry.get_sample_value("memory_extproc_files_put_back_total", {"why": why}) == 1

        await until(put_back, "its files are back")
        await store.put(ANN, [row("taken again")])
    assert await words_at(path) == {"in a segment", "in the log", "taken again"}


async def test_files_deleted_in_the_last_moment_are_there_at_the_next_start(tmp_path: Path) -> None:
    path = tmp_path / "milvus.db"
    async with opened(path) as (store, _):
        await store.put(ANN, [row("kept")])
        shutil.rmtree(path)
        with pytest.raises(NotReadyError):  # whoever was told otherwise would not come again
            await store.put(ANN, [row("refused for now")])
    assert await words_at(path) == {"kept"}


async def test_what_somebody_put_there_is_kept_aside(tmp_path: Path) -> None:
    path = tmp_path / "milvus.db"
    with structlog.testing.capture_logs() as entries:
        async with opened(path) as (store, _):
            await store.put(ANN, [row("ours")])
            (path / COLLECTION).rename(tmp_path / "old")
            shutil.copytree(tmp_path / "old", path / COLLECTION)
            (path / COLLECTION / "theirs").write_text("x")
    (told,) = [entry for entry in entries if entry["event"] == "file.put_back"]
    assert (told["why"], told["aside"]) == ("replaced", "milvus.db.aside-1")
    assert (tmp_path / "milvus.db.aside-1" / COLLECTION.name / "theirs").exists()
    assert await words_at(path) == {"ours"}


async def test_where_there_is_no_room_for_them_it_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "milvus.db"
    with structlog.testing.capture_logs() as entries:
        async with opened(path, SOON) as (store, _):
            await store.put(ANN, [row("kept")])
            shutil.rmtree(path)
            path.write_text("in the way")
            await until(lambda: any(entry["event"] == "store.not_put_back" for entry in entries), "it is tried")
            path.unlink()
    assert await words_at(path) == {"kept"}
