"""The promises of the adapter to Milvus beyond the port: opening, faults, and the rows that survive them."""

from __future__ import annotations

import asyncio
import os
import resource
import stat
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
import structlog.testing
from prometheus_client import CollectorRegistry

from memory_extproc.errors import NotReadyError, PermanentError, TransientError
from memory_extproc.model import Owner, Scope
from memory_extproc.observe.metrics import Metrics
from memory_extproc.store.milvus.client import AsyncMilvusClient, DataType, MilvusException, connect
from memory_extproc.store.milvus.options import MilvusOptions
from memory_extproc.store.milvus.schema import physical_name
from memory_extproc.store.milvus.store import MilvusStore
from tests.support.builders import ANN, BOB
from tests.support.copying import copied_at_once
from tests.support.milvus_server import Process, lite_server, milvus_server
from tests.support.milvus_stores import (
    a_row,
    changed,
    metrics,
    milvus,
    on_monday,
    opened,
    options,
    pointing,
    somebody,
)
from tests.support.waiting import until

__all__ = ["milvus"]

ROOT = Path(__file__).resolve().parents[2]
T = TypeVar("T")


PATIENCE_OF_THE_CLIENT = 9.0  # seconds; pymilvus by itself waits for ten


def quick(path: Path, address: str) -> MilvusOptions:
    """Short limits, for a server that does not answer."""
    short = timedelta(milliseconds=400)
    return changed(options(path, address), timeout=short, breaker_pause=timedelta(milliseconds=100))


@asynccontextmanager
async def measured(chosen: MilvusOptions) -> AsyncIterator[tuple[MilvusStore, CollectorRegistry]]:
    registry = CollectorRegistry()
    store = MilvusStore(chosen, Metrics(registry, "test"), now=on_monday)
    try:
        yield store, registry
    finally:
        await store.close()


async def insisted(
    call: Callable[[], Awaitable[T]], seconds: float = 30, answers: tuple[type[TransientError], ...] = ()
) -> T:
    """The store's first answer; calls that fail are repeated, because limits are short and the machine may be busy.

    Errors among *answers* count as answers.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return await call()
        except TransientError as error:
            if isinstance(error, answers) or time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.05)


# --- an index of words ---------------------------------------------------------------------------------
async def test_collections_made_without_an_index_of_words_serve_as_they_did(tmp_path: Path) -> None:
    chosen = options(tmp_path)
    async with opened(changed(chosen, full_text=False)) as store:
        assert not store.finds_words
        await store.put(ANN, [a_row("Ann likes tea", ANN)])
    async with opened(chosen) as store:
        assert not store.finds_words
        await store.put(ANN, [a_row("Ann likes oolong", ANN)])
        assert list(await store.search_text(ANN, "oolong tea", 10, Scope())) == []
        assert await store.count(ANN) == len((await store.nearest(ANN, pointing(1.0), 10, Scope())).found) == 2


async def test_an_index_of_words_is_found_again_and_may_be_left_alone(tmp_path: Path) -> None:
    chosen = options(tmp_path)
    async with opened(chosen) as store:
        assert store.finds_words
        await store.put(ANN, [a_row("Ann likes tea", ANN)])
    for full_text in (True, False):
        async with opened(changed(chosen, full_text=full_text)) as store:
            assert store.finds_words is full_text
            assert len(await store.search_text(ANN, "tea", 10, Scope())) == full_text
            await store.put(ANN, [a_row("Ann has a dog", ANN)])


# --- a Lite file --------------------------------------------------------------------------------------
async def test_a_lite_file_keeps_its_rows_over_a_restart_in_one_process(tmp_path: Path) -> None:
    chosen = options(tmp_path)
    for turn in range(3):
        async with opened(chosen) as store:
            assert await store.count(ANN) == turn
            await store.put(ANN, [a_row(f"{turn}", ANN)])


async def test_a_lite_file_keeps_the_number_of_shards_it_was_made_with(tmp_path: Path) -> None:
    people = [owner for _ in range(10) for owner in somebody()]
    chosen = options(tmp_path)
    async with opened(chosen) as store:
        for owner in people:
            await store.put(owner, [a_row("said", owner)])
    async with opened(changed(chosen, shards=7)) as store:
        assert [await store.count(owner) for owner in people] == [1] * len(people)


async def test_counting_an_owners_rows_in_a_lite_file_and_listing_owners_makes_nothing_of_vectors(
    tmp_path: Path,
) -> None:
    """Lite itself makes an object of every number of the vector of every row, for a count all of them at once."""
    chosen = changed(options(tmp_path), dimension=1_000, flush_rows=10_000)
    async with opened(chosen) as store:
        direction = np.full(chosen.section.dimension, chosen.section.dimension**-0.5, dtype=np.float32)
        await store.put(ANN, [a_row(f"{number}", ANN, direction) for number in range(300)])
        await flushed(chosen, store)
        tracemalloc.start()
        try:
            assert await store.count(ANN) == 300
            assert [owner async for page in store.owners() for owner in page] == [ANN]
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 300 * chosen.section.dimension * sys.getsizeof(1.0) / 3


@contextmanager
def no_room() -> Iterator[None]:
    """No file of this process grows any more, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with structlog.testing.capture_logs():  # which go to a file, too
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def flushed(chosen: MilvusOptions, store: MilvusStore) -> None:
    client = connect(chosen, store.address)
    try:
        for collection in await client.list_collections():
            await client.flush(collection)
    finally:
        await client.close()


async def test_a_disk_without_room_for_a_while_costs_no_row_that_a_lite_file_has_taken(tmp_path: Path) -> None:
    """Not by a write of a row that failed, not by one of what was flushed, and not by a crash afterwards."""
    chosen = changed(options(tmp_path), flush_idle=timedelta(hours=1))
    copied = changed(chosen, path=tmp_path / "as a crash left it" / chosen.path.name)
    async with measured(chosen) as (store, registry):
        await store.open()
        for number in range(3):
            await store.put(ANN, [a_row(f"before {number}", ANN)])
        with no_room():
            with pytest.raises(MilvusException):
                await flushed(chosen, store)
            assert await store.count(ANN) == 3
            # Not for ever, and so no turn is given up for it.
            with pytest.raises(NotReadyError):
                await store.put(ANN, [a_row("meanwhile", ANN)])
            assert registry.get_sample_value("memory_extproc_store_up") == 0
        for number in range(2):
            await store.put(ANN, [a_row(f"after {number}", ANN)])
        assert await store.count(ANN) == 5
        copying = partial(asyncio.to_thread, copied_at_once, chosen.path, copied.path)
        await until(copying, "nothing moves while it is copied")
        await flushed(chosen, store)
        assert len((await store.nearest(ANN, pointing(1.0), 10, Scope())).found) == 5
    for one in (chosen, copied):
        async with opened(one) as store:
            assert await store.count(ANN) == 5


async def test_a_lite_file_is_reached_by_nobody_but_us(tmp_path: Path) -> None:
    async with opened(options(tmp_path)) as store:
        directory = Path(store.address.removeprefix("unix:")).parent
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        await store.close()
        assert not directory.exists()


_WRITER = """
import asyncio, sys
from pathlib import Path
from tests.support.milvus_stores import *
from tests.support.builders import ANN
async def main():
    async with opened(changed(options(Path(sys.argv[1])), collection="memories")) as store:
        for n in range(10_000):
            await store.put(ANN, [a_row(f"{n}", ANN)])
            print(n, flush=True)
asyncio.run(main())
"""


@contextmanager
def a_writer(path: Path) -> Iterator[Iterator[bytes]]:
    """Another process with the file under *path*, printing what was acknowledged; killed at the end."""
    command = [sys.executable, "-c", _WRITER, str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        try:
            yield (line for line in writer.stdout if line.strip().isdigit())
        finally:
            writer.kill()


async def test_rows_acknowledged_before_a_kill_are_there_after_it(tmp_path: Path) -> None:
    acknowledged = -1
    with a_writer(tmp_path) as printed:
        for line in printed:
            acknowledged = int(line)
            if acknowledged == 300:  # beyond a flush
                break
    async with opened(changed(options(tmp_path), collection="memories")) as store:
        kept = {row.memory.content async for page in store.pages(ANN, 100, fresh=True) for row in page}
    assert {f"{n}" for n in range(acknowledged + 1)} <= kept


async def test_a_lite_file_of_another_process_can_be_opened_later(tmp_path: Path) -> None:
    async with measured(changed(options(tmp_path), collection="memories")) as (store, _):
        with a_writer(tmp_path) as printed:
            next(printed)
            with pytest.raises(TransientError, match="another process"):
                await store.open()
            with pytest.raises(NotReadyError):
                await store.count(ANN)
        await store.open()
        assert await store.count(ANN) >= 1


async def test_a_collection_that_a_kill_left_half_made_is_made_anew(tmp_path: Path) -> None:
    """Lite writes a schema beside and renames it; killed in between, it would refuse the name for ever."""
    chosen = options(tmp_path)
    async with opened(chosen) as store:
        await store.put(ANN, [a_row("kept", ANN)])
    [one, *_] = sorted((tmp_path / "milvus.db" / "collections").iterdir())
    whole = {path.name for path in one.parent.iterdir()}
    for name in whole:
        half = one.parent / f"{name}_twin"
        half.mkdir()
        (half / "schema.json.tmp").write_text("{}")
    async with opened(chosen) as store:
        assert {path.name for path in one.parent.iterdir()} == whole
        assert await store.purge(ANN), "the files are rewritten into the twin"
        assert await store.count(ANN) == 1


def files_below(path: Path, pattern: str = "*.*") -> list[Path]:
    return sorted(one for one in path.rglob("*") if one.is_file() and one.match(pattern))


def damage(path: Path, how: str) -> None:
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: 0 if how == "empty" else -5])


@pytest.mark.parametrize("how", ["gone", "empty", "cut"])
@pytest.mark.parametrize("which", ["schema.json", "manifest.json", "data/*.parquet", "delta/*.parquet"])
async def test_a_lite_file_that_lacks_a_part_is_refused_and_none_of_its_files_is_removed(
    tmp_path: Path, which: str, how: str
) -> None:
    chosen = changed(options(tmp_path), shards=1, flush_rows=2)
    async with opened(chosen) as store:
        rows = [a_row(f"row {number}", ANN) for number in range(4)]
        for row in rows:
            await store.put(ANN, [row])
        await store.delete(ANN, [rows[0].memory.id])
    path = files_below(tmp_path, which)[0]
    whole = path.read_bytes()
    damage(path, how)
    left = files_below(tmp_path)
    async with measured(chosen) as (store, _):
        with pytest.raises(PermanentError, match=path.name):
            await store.open()
        assert files_below(tmp_path) == left
        path.write_bytes(whole)
        await store.open()
        found = [row.memory.content async for page in store.pages(ANN, 10, fresh=True) for row in page]
        assert sorted(found) == ["row 1", "row 2", "row 3"]


async def test_a_lite_file_that_cannot_be_made_is_a_fault_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "milvus.db").write_text("not a directory")
    async with measured(options(tmp_path)) as (store, _):
        with pytest.raises(PermanentError, match=r"milvus\.db"):
            await store.open()


async def test_rows_are_flushed_when_there_are_enough_and_when_nothing_comes(tmp_path: Path) -> None:
    chosen = changed(options(tmp_path), flush_rows=5, flush_idle=timedelta(milliseconds=50))

    def flushed() -> int:
        return len(list(tmp_path.rglob("*.parquet")))

    async def until_more_than(before: int) -> int:
        deadline = time.monotonic() + 20
        while flushed() <= before:
            assert time.monotonic() < deadline, "nothing was flushed"
            await asyncio.sleep(0.01)
        return flushed()

    async with opened(chosen) as store:
        before = flushed()
        await store.put(ANN, [a_row(f"{n}", ANN) for n in range(5)])
        after = await until_more_than(before)
        await store.put(BOB, [a_row("alone", BOB)])
        await until_more_than(after)


async def test_collections_of_a_lite_file_share_a_thread_for_their_upkeep(tmp_path: Path) -> None:
    async with opened(changed(options(tmp_path), shards=16, flush_rows=1)) as store:
        for number in range(40):
            owner = Owner("acme", f"caller {number}")
            await store.put(owner, [a_row(f"{number}", owner)])
        await until(lambda: len(list(tmp_path.rglob("*.parquet"))) >= 16, "they are flushed")
        assert [thread.name for thread in threading.enumerate() if thread.name.startswith("milvus_lite")] == []


async def test_rows_that_come_one_by_one_are_flushed_together(tmp_path: Path) -> None:
    chosen = changed(options(tmp_path), flush_rows=5, flush_idle=timedelta(hours=1))
    async with measured(chosen) as (store, registry):
        await insisted(store.open)

        def flushes() -> float:
            done = {"operation": "flush", "outcome": "ok"}
            return registry.get_sample_value("memory_extproc_store_operations_seconds_count", done) or 0.0

        before = flushes()
        for number in range(10):
            await store.put(ANN, [a_row(f"{number}", ANN)])
        await until(lambda: flushes() >= before + 2, "they are flushed")
        await insisted(partial(store.count, ANN))
        assert flushes() == before + 2


# --- what does not fit --------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with lite_server(tmp_path_factory.mktemp("server")) as process:
        yield process


@pytest.mark.parametrize(
    ("change", "sides"),
    [
        ({"fingerprint": "another/fp32"}, ["all-MiniLM-L6-v2/int8", "another/fp32"]),
        ({"dimension": 16}, ["8", "16"]),
        ({"content_bytes": 1024}, ["8192", "1024"]),
        ({"layout": "sharded"}, ["sharded", "the other"]),
    ],
    ids=["model", "dimension", "content", "layout"],
)
async def test_a_collection_that_does_not_fit_is_refused_naming_both_sides(
    server: Process, tmp_path: Path, change: dict[str, object], sides: list[str]
) -> None:
    chosen = options(tmp_path, server.address)
    async with opened(chosen) as store:
        await store.put(ANN, [a_row("kept", ANN)])
    other = changed(chosen, **change)
    async with measured(other) as (store, _):
        for _ in range(2):
            with pytest.raises(PermanentError) as refused:
                await store.open()
            assert all(side in str(refused.value) for side in sides)
    async with opened(chosen) as store:
        assert await store.count(ANN) == 1


async def test_a_lite_file_made_in_shards_is_not_read_as_one_collection(tmp_path: Path) -> None:
    chosen = options(tmp_path)
    async with opened(chosen):
        pass
    async with measured(changed(chosen, layout="single")) as (store, _):
        with pytest.raises(PermanentError, match=r"'single'.*the other"):
            await store.open()
    async with opened(changed(chosen, layout="single", collection="other")) as store:
        await store.put(ANN, [a_row("said", ANN)])
        assert await store.count(ANN) == 1


async def test_somebody_elses_collection_is_left_alone(server: Process, tmp_path: Path) -> None:
    chosen = options(tmp_path, server.address)
    client = connect(chosen, server.address)
    await make_foreign(client, chosen.section.collection)
    async with measured(chosen) as (store, _):
        with pytest.raises(PermanentError, match="not made by memory-extproc"):
            await store.open()
    assert await client.has_collection(chosen.section.collection)
    await client.close()


@pytest.mark.parametrize("rows", [0, 1])
async def test_a_half_made_collection_is_made_anew_unless_it_holds_rows(
    server: Process, tmp_path: Path, rows: int
) -> None:
    chosen = options(tmp_path, server.address)
    half_made = physical_name(chosen)
    client = connect(chosen, server.address)
    await make_foreign(client, half_made, rows)
    async with measured(chosen) as (store, _):
        if rows:
            with pytest.raises(PermanentError, match="holds rows"):
                await store.open()
        else:
            await store.open()
            await store.put(ANN, [a_row("said", ANN)])
            assert await store.count(ANN) == 1
    await client.close()


async def make_foreign(client: AsyncMilvusClient, name: str, rows: int = 0) -> None:
    schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("key", DataType.INT64, is_primary=True)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=2)
    await client.create_collection(name, schema=schema)
    if rows:
        await client.insert(name, [{"key": n, "vector": [1.0, 0.0]} for n in range(rows)])


async def test_two_replicas_open_a_new_collection_at_once(server: Process, tmp_path: Path) -> None:
    chosen = options(tmp_path, server.address)
    async with measured(chosen) as (one, _), measured(chosen) as (other, _):
        await asyncio.gather(one.open(), other.open())
        await one.put(ANN, [a_row("said", ANN)])
        assert await other.count(ANN) == 1


# --- a server that goes away --------------------------------------------------------------------------
async def test_a_server_that_is_not_there_is_tried_again_and_opened_when_it_is(tmp_path: Path) -> None:
    with lite_server(tmp_path) as process:
        process.kill()
        async with measured(quick(tmp_path, process.address)) as (store, registry):
            for _ in range(5):
                started = time.monotonic()
                with pytest.raises(TransientError):
                    await store.open()
                assert time.monotonic() - started < PATIENCE_OF_THE_CLIENT
            assert registry.get_sample_value("memory_extproc_store_up") == 0
            process.start()
            process.wait_until("", 60)
            await insisted(store.open)
            assert await insisted(lambda: store.count(ANN)) == 0
            assert registry.get_sample_value("memory_extproc_store_up") == 1


async def test_a_stalled_server_is_waited_for_no_longer_than_the_limit_and_then_not_at_all(tmp_path: Path) -> None:
    with lite_server(tmp_path) as process:
        async with measured(quick(tmp_path, process.address)) as (store, registry):
            await insisted(store.open)
            await insisted(lambda: store.put(ANN, [a_row("kept", ANN)]))
            process.freeze()
            took = []
            for _ in range(6):
                started = time.monotonic()
                with pytest.raises(TransientError):
                    await store.nearest(ANN, pointing(1.0), 5, Scope())
                took.append(time.monotonic() - started)
            assert max(took) < PATIENCE_OF_THE_CLIENT
            assert registry.get_sample_value("memory_extproc_store_up") == 0
            for outcome in ("timeout", "refused_by_breaker"):
                ended = {"operation": "nearest", "outcome": outcome}
                assert registry.get_sample_value("memory_extproc_store_operations_seconds_count", ended), outcome
            process.thaw()
            assert await insisted(lambda: store.count(ANN)) == 1
            assert registry.get_sample_value("memory_extproc_store_up") == 1


async def test_a_killed_server_fails_fast_and_serves_again_after_its_restart(tmp_path: Path) -> None:
    with lite_server(tmp_path) as process:
        async with measured(quick(tmp_path, process.address)) as (store, _):
            await insisted(store.open)
            await insisted(lambda: store.put(ANN, [a_row("kept", ANN)]))
            process.kill()
            started = time.monotonic()
            with pytest.raises(TransientError):
                await store.put(ANN, [a_row("lost", ANN)])
            assert time.monotonic() - started < PATIENCE_OF_THE_CLIENT
            process.start()
            process.wait_until("", 60)
            assert await insisted(lambda: store.count(ANN)) == 1


@pytest.mark.server
async def test_a_real_server_killed_and_started_again_has_every_acknowledged_row(tmp_path: Path) -> None:
    with milvus_server(tmp_path) as process:
        chosen = changed(options(tmp_path, process.address), timeout=timedelta(seconds=3))
        async with measured(chosen) as (store, _):
            await store.open()
            ann, bob, _ = somebody()
            await store.put(ann, [a_row(f"{n}", ann) for n in range(20)])
            await store.put(bob, [a_row("Bob's", bob)])
            await store.delete_owner(bob)
            process.freeze()
            started = time.monotonic()
            with pytest.raises(TransientError):
                await store.nearest(ann, pointing(1.0), 5, Scope())
            assert time.monotonic() - started < PATIENCE_OF_THE_CLIENT
            process.thaw()
            process.kill()
            process.start()
            async with measured(chosen) as (late, registry):
                # Open while the server still loads: it takes writes by then and refuses reads as not ready.
                # On a quick machine it has loaded already; its answer is whole then.
                await insisted(late.open, seconds=60)
                with suppress(NotReadyError):
                    assert await insisted(lambda: late.count(ann), answers=(NotReadyError,)) == 20
                await insisted(lambda: late.put(bob, [a_row("Bob's again", bob)]))
                for one in (late, store):
                    assert await insisted(lambda one=one: one.count(ann), seconds=100) == 20  # type: ignore[misc]
                assert await insisted(lambda: late.count(bob)) == 1
                # Nobody writes or reads any more: the probe finds out that everything works.
                await until(lambda: registry.get_sample_value("memory_extproc_store_up") == 1, "it is up")
                assert late.failing_for == store.failing_for == timedelta()


@pytest.mark.parametrize("kind", ["lite", pytest.param("milvus", marks=pytest.mark.server)])
async def test_a_probe_writes_as_anybody_does_and_leaves_nothing(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    address = request.getfixturevalue("milvus").address if kind == "milvus" else ""
    async with opened(options(tmp_path, address)) as store:
        ann, bob, _ = somebody()
        await store.put(ann, [a_row("kept", ann)])
        for _ in range(2):
            await store.probe()
        assert await store.count(ann) == 1
        assert await store.count(Owner.of_canary()) == await store.count(bob) == 0


async def test_a_store_whose_writes_failed_is_up_again_by_itself_though_nobody_writes(tmp_path: Path) -> None:
    chosen = changed(options(tmp_path), probe_every=timedelta(milliseconds=20))
    async with measured(chosen) as (store, registry):
        await store.open()

        def up() -> float | None:
            return registry.get_sample_value("memory_extproc_store_up")

        with no_room():
            with pytest.raises(NotReadyError):
                await store.put(ANN, [a_row("meanwhile", ANN)])
            assert up() == 0
            assert await store.count(ANN) == 0, "reads are answered"
            assert up() == 0
            assert store.failing_for > timedelta()
        await until(lambda: up() == 1, "a probe was written")
        assert store.failing_for == timedelta()


# --- the client kept quiet ----------------------------------------------------------------------------
def test_importing_the_adapter_reads_no_env_file_and_keeps_the_environment(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("MILVUS_URI=http://elsewhere:1\nSTOLEN=yes\n")
    script = tmp_path / "program.py"
    script.write_text(
        "import os\nbefore = dict(os.environ)\n"
        "import memory_extproc.store.milvus.store\n"
        "assert dict(os.environ) == before, set(os.environ) ^ set(before)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


async def test_a_failed_call_prints_nothing_and_its_error_names_nobody(
    server: Process, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    chosen = options(tmp_path, server.address)
    secret = Owner("acme", "very-secret-name")
    async with opened(chosen) as store:
        client = connect(chosen, server.address)
        await client.drop_alias(chosen.section.collection)
        await client.drop_collection(physical_name(chosen))
        with pytest.raises(NotReadyError) as error:
            await store.nearest(secret, pointing(1.0), 5, Scope())
        await client.close()
    printed = capfd.readouterr()
    assert "secret" not in printed.out + printed.err + caplog.text + repr(error.value)
    assert error.value.__suppress_context__


async def test_using_a_store_before_it_is_open_says_not_ready(tmp_path: Path) -> None:
    store = MilvusStore(options(tmp_path), metrics(), now=on_monday)
    for call in (
        store.put(ANN, [a_row("said", ANN)]),
        store.get(ANN, ["x"]),
        store.nearest(ANN, pointing(1.0), 5, Scope()),
        store.delete(ANN, ["x"]),
        store.delete_owner(ANN),
        store.count(ANN),
    ):
        with pytest.raises(NotReadyError):
            await call
    await store.close()
