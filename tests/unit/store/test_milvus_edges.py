"""The parts of the Milvus adapter that need no Milvus."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from milvus_lite.search.filter import parse_expr
from prometheus_client import CollectorRegistry
from pydantic import SecretStr
from pymilvus import MilvusException, exceptions
from structlog.testing import capture_logs

from memory_extproc.concurrency import Breaker, BreakerLimits
from memory_extproc.errors import NotReadyError, PermanentError, TransientError, UnknownFaultError
from memory_extproc.model import Embedded, MemoryHeads, MemoryType, Owner, Scope, Source
from memory_extproc.observe.metrics import Metrics
from memory_extproc.settings.memory import Milvus, MilvusTls
from memory_extproc.store.milvus import rows
from memory_extproc.store.milvus.calls import BY_KIND, Calls, StoreFault, as_error, fault_of
from memory_extproc.store.milvus.client import channel_options
from memory_extproc.store.milvus.connect import Capabilities, Gate
from memory_extproc.store.milvus.options import Layout, MilvusOptions
from memory_extproc.store.milvus.rows import Placement, fit
from memory_extproc.store.milvus.schema import check, schema
from memory_extproc.store.resident import ResidentRows
from tests.support.builders import ANN, MONDAY, OTHER_ANN, a_memory
from tests.support.milvus_stores import changed


# --- versions -----------------------------------------------------------------------------------------
def test_a_server_that_calls_itself_lite_is_still_a_server() -> None:
    server = Capabilities.of("v2.3.5-lite")
    assert not server.lite
    assert not server.upsert, "before 2.3.10 upserted rows get lost to a filter"
    assert server.lags
    assert not server.bucket_pruning
    lite = Capabilities.of("milvus_lite-3.2.2")
    assert lite.lite
    assert lite.upsert
    assert lite.exact_only
    assert lite.one_writer
    assert not lite.lags


@pytest.mark.parametrize(
    ("version", "upsert"), [("v2.3.9", False), ("2.3.10", True), ("v2.4-rc", True), ("v2.6.1-gpu", True)]
)
def test_upserting_is_trusted_from_the_version_that_mended_it(version: str, upsert: bool) -> None:
    assert Capabilities.of(version).upsert is upsert


@pytest.mark.parametrize("version", ["", "lite", "v1.1.1", "v2.2.16", "milvus_lite-2.5.1", "unknown-2.4.0"])
def test_a_version_that_is_too_old_or_none_is_named_and_refused(version: str) -> None:
    with pytest.raises(PermanentError, match=f"{version!r}"):
        Capabilities.of(version)


# --- errors -------------------------------------------------------------------------------------------
def test_a_kind_of_error_that_is_not_sorted_is_transient() -> None:
    kinds: set[type[MilvusException]] = {
        kind
        for _, kind in inspect.getmembers(exceptions, inspect.isclass)
        if issubclass(kind, MilvusException) and kind.__module__ == exceptions.__name__
    }
    assert set(BY_KIND) < kinds
    assert {fault_of(kind(1, "said")) for kind in kinds if kind not in BY_KIND} == {StoreFault.UNKNOWN}


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (TimeoutError(), StoreFault.TIMEOUT),
        (ConnectionRefusedError(), StoreFault.DOWN),
        (MilvusException(1, "[search] Retry timeout: 0.5s"), StoreFault.TIMEOUT),
        (MilvusException(2, "Fail connecting to server"), StoreFault.DOWN),
        (MilvusException(grpc.StatusCode.UNAVAILABLE, "Retry run out"), StoreFault.DOWN),
        (MilvusException(100, "collection not found"), StoreFault.MISSING),
        (MilvusException(101, "collection not loaded"), StoreFault.NOT_LOADED),
        (MilvusException(503, "channel not available"), StoreFault.NOT_READY),
        (MilvusException(8, "rate limit exceeded"), StoreFault.NOT_READY),
        (MilvusException(65535, "no available shard delegator found"), StoreFault.NOT_READY),
        (MilvusException(1, "[Errno 28] No space left on device"), StoreFault.NOT_READY),
        (MilvusException(1, "[Errno 30] Read-only file system"), StoreFault.NOT_READY),
        (MilvusException(1, "[Errno 1] Operation not permitted"), StoreFault.NOT_READY),
        (MilvusException(1, "[Errno 17] File exists: 'memories'"), StoreFault.NOT_READY),
        (MilvusException(65535, "cannot parse expression"), StoreFault.UNKNOWN),
        (MilvusException(65535, "find no available rootcoord, check rootcoord state"), StoreFault.NOT_READY),
        (MilvusException(65535, "rpc error: code = Unavailable desc = error reading"), StoreFault.NOT_READY),
        *((MilvusException(code, "said"), StoreFault.UNKNOWN) for code in (5, 6, 10, 27, 2000, 4711)),
        *((MilvusException(code, "said"), StoreFault.NOT_READY) for code in (500, 502, 600, 1000, 1302)),
        *((MilvusException(code, "said"), StoreFault.DENIED) for code in (1400, 1401, 1800)),
        (MilvusException(1100, "invalid parameter"), StoreFault.REFUSED),
        (exceptions.DataNotMatchException(1, "wrong type"), StoreFault.REFUSED),
        (exceptions.ConnectError(0, "gone"), StoreFault.DOWN),
        (grpc.RpcError(), StoreFault.DOWN),
        (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates"), StoreFault.REFUSED),
        (ValueError("Cannot invoke RPC on closed channel!"), StoreFault.UNKNOWN),
        (RuntimeError("of a kind that nobody knows"), StoreFault.UNKNOWN),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_error_is_sorted_by_what_can_be_done_about_it(error: Exception, fault: StoreFault) -> None:
    assert fault_of(error) is fault
    kind = {
        StoreFault.TIMEOUT: TransientError,
        StoreFault.DOWN: TransientError,
        StoreFault.NOT_LOADED: NotReadyError,
        StoreFault.NOT_READY: NotReadyError,
        StoreFault.MISSING: NotReadyError,
        StoreFault.DENIED: TransientError,
        StoreFault.UNKNOWN: UnknownFaultError,
        StoreFault.REFUSED: PermanentError,
    }[fault]
    assert type(as_error(error, "nearest")) is kind


def test_a_bare_grpc_error_is_sorted_by_its_status() -> None:
    def failed(status: grpc.StatusCode) -> grpc.aio.AioRpcError:
        return grpc.aio.AioRpcError(status, grpc.aio.Metadata(), grpc.aio.Metadata(), "said", "by the server")

    assert fault_of(failed(grpc.StatusCode.DEADLINE_EXCEEDED)) is StoreFault.TIMEOUT
    assert fault_of(failed(grpc.StatusCode.UNAVAILABLE)) is StoreFault.DOWN
    assert fault_of(failed(grpc.StatusCode.UNAUTHENTICATED)) is StoreFault.DENIED
    assert fault_of(failed(grpc.StatusCode.UNIMPLEMENTED)) is StoreFault.UNKNOWN, (
        "a gateway's answer to a lost route"
    )
    assert fault_of(failed(grpc.StatusCode.INTERNAL)) is StoreFault.UNKNOWN
    wrapped = MilvusException(message="Unexpected error")
    wrapped.__cause__ = failed(grpc.StatusCode.UNAVAILABLE)
    assert fault_of(wrapped) is StoreFault.DOWN


def test_an_error_of_ours_does_not_repeat_what_milvus_said() -> None:
    said = 'cannot parse expression: user_id == "ann@example.org"'
    assert "ann" not in str(as_error(MilvusException(1100, said), "nearest"))


# --- the breaker --------------------------------------------------------------------------------------
class Seconds:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def broken(clock: Seconds) -> Breaker:
    breaker = Breaker(BreakerLimits(3, timedelta(seconds=1)), clock)
    for _ in range(3):
        breaker.admit()
        breaker.count_failure()
    return breaker


def test_after_three_failures_in_a_row_nobody_waits() -> None:
    breaker = broken(Seconds())
    assert not breaker.is_closed
    with pytest.raises(TransientError):
        breaker.admit()


def test_a_success_in_between_starts_the_count_again() -> None:
    breaker = Breaker(BreakerLimits(3, timedelta(seconds=1)), Seconds())
    for _ in range(5):
        breaker.count_failure()
        breaker.count_failure()
        breaker.count_success()
    breaker.admit()


def test_after_the_pause_one_call_probes_and_decides() -> None:
    clock = Seconds()
    breaker = broken(clock)
    clock.now = 1.0
    breaker.admit()
    with pytest.raises(TransientError):
        breaker.admit()
    breaker.count_failure()
    with pytest.raises(TransientError):
        breaker.admit()
    clock.now = 2.0
    breaker.admit()
    breaker.count_success()
    assert breaker.is_closed
    breaker.admit()


def test_a_probe_that_was_cancelled_lets_the_next_one_probe() -> None:
    clock = Seconds()
    breaker = broken(clock)
    clock.now = 1.0
    breaker.admit()
    breaker.count_undecided()
    breaker.admit()


async def test_a_call_is_bounded_measured_and_sorted() -> None:
    registry = CollectorRegistry()
    calls = Calls(
        Breaker(BreakerLimits(3, timedelta(seconds=1)), Seconds()),
        Metrics(registry, "test"),
        Seconds(),
    )

    async def never(_: float) -> None:
        await asyncio.Event().wait()

    async def not_loaded(_: float) -> None:
        raise MilvusException(101, "not loaded")

    async def answer(_: float) -> str:
        return "answer"

    def count(outcome: str) -> float | None:
        labels = {"operation": "nearest", "outcome": outcome}
        return registry.get_sample_value("memory_extproc_store_operations_seconds_count", labels)

    assert await calls.run("nearest", timedelta(seconds=1), answer) == "answer"
    assert registry.get_sample_value("memory_extproc_store_up") == 1
    for _ in range(5):
        with pytest.raises(NotReadyError, match="not_loaded"):
            await calls.run("nearest", timedelta(seconds=1), not_loaded)
    assert registry.get_sample_value("memory_extproc_store_up") == 0
    running = asyncio.create_task(calls.run("nearest", timedelta(seconds=9), never))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    for _ in range(3):
        with pytest.raises(TransientError, match="timeout"):
            await calls.run("nearest", timedelta(milliseconds=1), never)
    with pytest.raises(TransientError, match="a moment ago"):
        await calls.run("nearest", timedelta(seconds=1), answer)
    outcomes = ("ok", "not_loaded", "cancelled", "timeout", "refused_by_breaker")
    assert [count(outcome) for outcome in outcomes] == [1, 5, 1, 3, 1]


@pytest.mark.parametrize(
    "error", [MilvusException(1100, "refused"), MilvusException(5, "unknown"), MilvusException(2, "down")], ids=str
)
async def test_the_store_is_not_up_while_writes_fail_though_reads_are_answered(error: Exception) -> None:
    registry, clock = CollectorRegistry(), Seconds()
    calls = Calls(
        Breaker(BreakerLimits(3, timedelta(seconds=1)), clock),
        Metrics(registry, "test"),
        clock,
    )

    async def fail(_: float) -> None:
        raise error

    async def answer(_: float) -> str:
        return "answer"

    def up() -> float | None:
        return registry.get_sample_value("memory_extproc_store_up")

    await calls.run("nearest", timedelta(seconds=1), answer)
    assert (up(), calls.failing_for) == (1, timedelta())
    with pytest.raises((PermanentError, TransientError)):
        await calls.run("put", timedelta(seconds=1), fail)
    for _ in range(3):
        clock.now += 1
        await calls.run("nearest", timedelta(seconds=1), answer)
        assert up() == 0
    assert calls.failing_for == timedelta(seconds=3)
    await calls.run("delete", timedelta(seconds=1), answer)
    assert (up(), calls.failing_for) == (1, timedelta())


async def test_a_store_that_takes_writes_and_has_not_loaded_what_is_read_is_not_up() -> None:
    registry, clock = CollectorRegistry(), Seconds()
    calls = Calls(
        Breaker(BreakerLimits(3, timedelta(seconds=1)), clock),
        Metrics(registry, "test"),
        clock,
    )

    async def not_loaded(_: float) -> None:
        raise MilvusException(101, "not loaded")

    async def answer(_: float) -> str:
        return "answer"

    def up() -> float | None:
        return registry.get_sample_value("memory_extproc_store_up")

    with capture_logs() as logs:
        for _ in range(5):
            with pytest.raises(NotReadyError):
                await calls.run("nearest", timedelta(seconds=1), not_loaded)
            await calls.run("put", timedelta(seconds=1), answer)
            assert up() == 0
            clock.now += 1
        assert calls.failing_for == timedelta(seconds=5)
        await calls.run("nearest", timedelta(seconds=1), answer)
    assert up() == 1
    assert [line["event"] for line in logs] == ["store.down", "store.up"], "said once each"


async def test_the_steps_of_opening_do_not_make_a_store_up_that_is_not_open() -> None:
    registry = CollectorRegistry()
    calls = Calls(
        Breaker(BreakerLimits(3, timedelta(seconds=1)), Seconds()),
        Metrics(registry, "test"),
        Seconds(),
    )

    async def answer(_: float) -> str:
        return "answer"

    calls.mark_closed()
    await calls.run("open", timedelta(seconds=1), answer)
    assert registry.get_sample_value("memory_extproc_store_up") == 0
    calls.mark_opened()
    assert registry.get_sample_value("memory_extproc_store_up") == 1


# --- one writer ---------------------------------------------------------------------------------------
async def test_readers_go_together_and_a_writer_alone() -> None:
    gate = Gate()
    inside: list[str] = []
    most: list[int] = []

    async def read() -> None:
        async with gate.reading():
            inside.append("reader")
            assert "writer" not in inside
            most.append(len(inside))
            await asyncio.sleep(0)
            inside.remove("reader")

    async def write() -> None:
        async with gate.writing():
            assert not inside
            inside.append("writer")
            await asyncio.sleep(0)
            inside.remove("writer")

    await asyncio.gather(*(read() for _ in range(5)), write(), *(read() for _ in range(5)), write(), write())
    assert max(most) > 1


async def test_a_reader_that_fails_leaves_the_gate() -> None:
    gate = Gate()
    with pytest.raises(PermanentError):
        async with gate.reading():
            raise PermanentError("no")
    async with gate.writing():
        pass


# --- rows and filters ---------------------------------------------------------------------------------
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_quoted_text_is_one_literal_that_means_the_text(text: str) -> None:
    # Lite's own parser; a server's takes the same escapes (contract suite).
    parsed = parse_expr(f"user_id == {rows.quote(text)}")
    assert parsed.right.value == text


def test_every_filter_holds_user_and_tenant() -> None:
    filter_ = rows.recallable_filter(ANN, Scope("hawaii", frozenset({MemoryType.SEMANTIC})), MONDAY)
    for part in (
        'user_id == "ann"',
        'tenant_id == "acme"',
        'project_id == "hawaii"',
        'memory_type in ["semantic"]',
    ):
        assert part in filter_
    parse_expr(filter_)


def test_a_row_with_words_of_a_later_version_is_named_and_not_guessed_at() -> None:
    row = rows.to_row(Embedded(a_memory("said"), np.zeros(4, dtype=np.float32)))
    assert rows.to_memory(row) == a_memory("said")
    for change in ({"source": "telepathy"}, {"metadata": "{"}, {"created_at": None}):
        with pytest.raises(PermanentError, match="a row that is no memory"):
            rows.to_memory({**row, **change})
    with pytest.raises(PermanentError, match="a row that is no memory"):
        rows.to_memory({})


def test_one_row_that_cannot_be_read_hides_none_of_the_others() -> None:
    good = rows.to_row(Embedded(a_memory("said"), np.zeros(4, dtype=np.float32)))
    told: list[str] = []
    found = rows.readable([{**good, "role": "oracle"}, good, {}], rows.to_memory, told.append)
    assert found == [a_memory("said")]
    assert told == ["no_memory", "no_memory"]


@given(st.text(), st.integers(0, 40))
def test_cut_content_is_a_beginning_in_whole_characters(content: str, most: int) -> None:
    row = Embedded(a_memory(content), np.zeros(4, dtype=np.float32))
    kept = fit(row, most).memory.content
    assert len(kept.encode()) <= most
    assert content.encode("utf-8", "replace").startswith(kept.encode())
    if len(content.encode("utf-8", "replace")) <= most:
        assert kept == content.encode("utf-8", "replace").decode()
    else:
        assert len(kept.encode()) > most - 4


# --- where rows go ------------------------------------------------------------------------------------
def test_a_tenant_is_part_of_the_shard() -> None:
    placement = Placement("m", "m_v1_8", Layout.SHARDED, 64, pruning=True)
    assert len(placement.collections()) == 64
    same_user = {placement.of(Owner(f"tenant {n}", "ann")).collection for n in range(200)}
    assert len(same_user) > 40
    assert placement.of(ANN) == placement.of(Owner("acme", "ann"))
    assert placement.of(ANN).partitions == placement.of(OTHER_ANN).partitions, "the bucket is the user's alone"


@pytest.mark.parametrize(
    ("address", "tls", "uri", "layout"),
    [
        ("", False, "", Layout.SHARDED),
        ("milvus:19530", False, "http://milvus:19530", Layout.SINGLE),
        ("milvus:19530", True, "https://milvus:19530", Layout.SINGLE),
        ("https://milvus", False, "https://milvus", Layout.SINGLE),
        ("unix:/run/milvus.sock", False, "unix:/run/milvus.sock", Layout.SINGLE),
    ],
)
def test_an_address_decides_on_transport_and_layout(address: str, tls: bool, uri: str, layout: Layout) -> None:
    options = changed(MilvusOptions(section=Milvus(), fingerprint="f"), address=address, tls=MilvusTls(enabled=tls))
    assert options.uri == uri
    assert options.chosen_layout is layout
    assert changed(options, layout="single").chosen_layout is Layout.SINGLE
    assert "a-password" not in repr(changed(options, password=SecretStr("a-password")))


def test_a_schema_uses_nothing_that_an_old_server_drops_or_dies_of() -> None:
    fields = schema(
        MilvusOptions(section=Milvus(collection="m", dimension=8), fingerprint="f"), words=False
    ).to_dict()["fields"]
    names = [field["name"] for field in fields]
    assert names == [*rows.SCALARS, rows.VECTOR]
    assert {field["type"].name for field in fields} <= {"VARCHAR", "INT64", "DOUBLE", "FLOAT_VECTOR"}
    assert not any(field.get("nullable") for field in fields)


def test_a_collection_without_our_properties_is_not_ours() -> None:
    options = MilvusOptions(section=Milvus(collection="m", dimension=8), fingerprint="f")
    for described in ({}, {"collection_name": "m", "properties": {"memory_extproc.shards": "0"}}):
        with pytest.raises(PermanentError, match="not made by memory-extproc"):
            check(cast("dict[str, object]", described), options)


# --- rows held ----------------------------------------------------------------------------------------
@given(st.lists(st.tuples(st.sampled_from(["put", "question", "remove"]), st.integers(0, 60)), max_size=150))
def test_held_rows_are_those_that_were_put_and_not_removed(steps: list[tuple[str, int]]) -> None:
    held = ResidentRows()
    expected: dict[str, Embedded] = {}
    for step, (kind, n) in enumerate(steps):
        source = Source.QUESTION if kind == "question" else Source.RULES
        memory = replace(a_memory(f"{n}", access_count=step), source=source)
        if kind == "remove":
            held.remove(memory.id)
            expected.pop(memory.id, None)
        else:
            row = Embedded(memory, np.eye(4, dtype=np.float32)[n % 4])
            held.put(row)
            expected[memory.id] = row
    assert {row.memory.id: row.memory for row in held} == {id_: row.memory for id_, row in expected.items()}
    assert all(np.array_equal(row.vector, expected[row.memory.id].vector) for row in held)
    found = held.nearest(np.eye(4, dtype=np.float32)[0], 100, Scope(), MONDAY)
    assert {one.memory.id for one in found} == {
        id_ for id_, row in expected.items() if row.memory.source is not Source.QUESTION
    }
    assert all(one.cosine == float(expected[one.memory.id].vector[0]) for one in found)
    for memory_id in list(expected):
        held.remove(memory_id)
    assert len(held) == 0
    assert held.size < 100_000


def test_only_a_server_is_pinged_for_a_lite_file_would_hang_up_over_it() -> None:
    assert channel_options("unix:/tmp/milvus.sock")["grpc.keepalive_time_ms"] > 24 * 3600 * 1000
    assert channel_options("http://milvus:19530") == {}


async def test_a_call_whose_channel_is_closed_is_to_be_tried_again_and_ends_nobody() -> None:
    registry = CollectorRegistry()
    calls = Calls(
        Breaker(BreakerLimits(3, timedelta(seconds=1)), Seconds()),
        Metrics(registry, "test"),
        Seconds(),
    )
    under_way: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def call(limit: float) -> str:
        # As gRPC does with the calls of a channel that is closed.
        asyncio.get_running_loop().call_soon(under_way.cancel)
        return await asyncio.wait_for(under_way, limit)

    with pytest.raises(TransientError, match="down"):
        await calls.run("put", timedelta(seconds=30), call)
    told = {"operation": "put", "outcome": "down"}
    assert registry.get_sample_value("memory_extproc_store_operations_seconds_count", told) == 1


@pytest.mark.parametrize("answer", ["an answer", "an error"])
async def test_who_is_told_to_end_as_the_answer_comes_ends(answer: str) -> None:
    calls = Calls(
        Breaker(BreakerLimits(3, timedelta(seconds=1)), Seconds()),
        Metrics(CollectorRegistry(), "test"),
        Seconds(),
    )
    coming: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    asked = asyncio.Event()

    async def call(limit: float) -> str:
        asked.set()
        return await asyncio.wait_for(coming, limit)  # as pymilvus does

    task = asyncio.create_task(calls.run("search", timedelta(seconds=30), call))
    await asked.wait()
    if answer == "an answer":
        coming.set_result(answer)
    else:
        coming.set_exception(MilvusException(message=answer))
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()


@pytest.mark.parametrize("broken", [{"memory_type": "of a later version"}, {"memory_type": None}])
def test_a_row_that_cannot_be_read_hides_no_other_from_a_list(broken: dict[str, Any]) -> None:
    row = rows.to_row(Embedded(a_memory("said"), np.zeros(4, dtype=np.float32)))
    columns = [[row[name], {**row, **broken}[name]] for name in rows.HEAD]
    heads, unknown = MemoryHeads.of_columns(*columns)
    assert (list(heads), unknown) == ([a_memory("said").head], 1)
