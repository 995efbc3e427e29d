"""Files of Milvus Lite that are taken away or exchanged while it is open: it has every row in its memory."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from memory_extproc.errors import NotReadyError
from memory_extproc.model import Embedded
from memory_extproc.observe.metrics import Metrics
from memory_extproc.settings.memory import Milvus
from memory_extproc.store.milvus.options import MilvusOptions
from memory_extproc.store.milvus.store import MilvusStore
from tests.support.builders import ANN, BOB, MONDAY, a_memory
from tests.support.copying import copied_at_once

VECTOR = np.array([1.0, 0.0], dtype=np.float32)
COLLECTION = Path("collections") / "c_v1_2_s00"


def row(words: str, owner: object = ANN) -> Embedded:
    return Embedded(a_memory(words, owner), VECTOR)  # type: ignore[arg-type]


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[MilvusStore]:
    options = MilvusOptions(section=Milvus(collection="c", dimension=2, shards=1), path=path, fingerprint="f")
    store = MilvusStore(options, Metrics(CollectorRegistry(), "0"), now=lambda: MONDAY)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def words_at(path: Path) -> set[str]:
    """What a later start finds."""
    async with opened(path) as store:
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
    "harm", [_all_deleted, _data_directory_deleted, _collection_deleted, _moved_away, _log_deleted, _exchanged]
)
async def test_no_row_is_acknowledged_that_the_next_start_would_not_find(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    path = tmp_path / "data" / "milvus.db"
    async with opened(path) as store:
        await store.put(ANN, [row("in a segment")])
        await store.put(BOB, [row("in the log", BOB)])
        harm(path)
        assert await store.count(BOB) == 1  # reads go on
        for _ in range(2):
            with pytest.raises(NotReadyError):  # so that the turn waits in the journal
                await store.put(ANN, [row("refused")])
    assert "refused" not in await words_at(path)
    async with opened(path) as store:
        await store.put(ANN, [row("tried again")])
    assert "tried again" in await words_at(path)


async def test_rows_are_there_again_once_the_files_were_moved_back(tmp_path: Path) -> None:
    path = tmp_path / "milvus.db"
    async with opened(path) as store:
        await store.put(ANN, [row("kept")])
        _moved_away(path)
        with pytest.raises(NotReadyError):
            await store.put(ANN, [row("tried again")])
        path.with_name("elsewhere").rename(path)
        await store.put(ANN, [row("tried again")])
    assert await words_at(path) == {"kept", "tried again"}
