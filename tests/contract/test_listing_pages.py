"""Pages of a listing hold each memory once, whatever its time."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from memory_extproc.api.gen import memory_pb2 as pb
from memory_extproc.model import Embedded, Memory, MemoryState, Provenance, Rating, Source
from tests.support.builders import ANN, BOB, MONDAY, a_memory
from tests.support.memory_api import ApiStand

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIMES = {
    "the same second": [MONDAY] * 9,
    "parts of one second": [MONDAY + timedelta(milliseconds=100 * at) for at in range(9)],
    "before 1970": [EPOCH - timedelta(days=365 * at) for at in range(9)],
    "around 1970": [EPOCH + timedelta(milliseconds=500 * at) for at in range(-4, 5)],
    "mixed": [MONDAY, MONDAY, EPOCH, EPOCH, *[EPOCH - timedelta(days=1)] * 3, MONDAY, EPOCH + timedelta(1)],
}


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[ApiStand]:
    async with ApiStand(tmp_path) as made:
        yield made


@pytest.mark.parametrize("cold", [False, True], ids=["written here", "only in the store"])
@pytest.mark.parametrize("limit", [1, 2, 4])
@pytest.mark.parametrize("times", TIMES.values(), ids=TIMES)
async def test_each_memory_is_on_one_page(
    stand: ApiStand, times: list[datetime], limit: int, *, cold: bool
) -> None:
    rows = [
        a_memory(f"has {at} cats", owner, created_at=when) for owner in (ANN, BOB) for at, when in enumerate(times)
    ]
    vectors = await stand.embedder.embed([row.content for row in rows])
    for row, vector in zip(rows, vectors, strict=True):
        await (stand.store if cold else stand.partitions).put(row.owner, [Embedded(row, vector)])
    seen, token = [], ""
    for _ in range(len(times) + 1):
        listed = await stand.call("ListMemories", pb.ListMemoriesRequest(limit=limit, page_token=token), as_=ANN)
        assert listed.total == len(times)
        seen += listed.memories
        if not (token := listed.next_page_token):
            break
    assert not token
    assert sorted(one.id for one in seen) == sorted(row.id for row in rows if row.owner == ANN)
    shown = [one.created_at.ToDatetime(tzinfo=UTC) for one in seen]
    for before, after in pairwise(shown):
        assert after - before < timedelta(seconds=2), "the newest first, to the second"


async def test_a_page_of_an_owner_who_is_not_in_process_has_our_own_writes(stand: ApiStand) -> None:
    stored = [a_memory(f"has {at} cats", ANN, created_at=MONDAY - timedelta(days=at)) for at in range(4)]
    vectors = await stand.embedder.embed([row.content for row in stored])
    rows = [Embedded(row, vector) for row, vector in zip(stored, vectors, strict=True)]
    await stand.store.put(ANN, rows)
    corrected = replace(rows[0], memory=replace(stored[0], content="has a dog"))
    gone = replace(rows[1], memory=replace(stored[1], state=MemoryState.DELETED))
    await stand.partitions.show(ANN, [corrected, gone])  # not stored yet
    listed = await stand.call("ListMemories", pb.ListMemoriesRequest(limit=2), as_=ANN)
    assert ([one.content for one in listed.memories], listed.total) == (["has a dog", "has 2 cats"], 3)


async def test_the_first_page_of_an_owner_who_is_not_in_process_reads_no_other_texts(tmp_path: Path) -> None:
    async with ApiStand(tmp_path) as stand:
        rows = [a_memory(f"has {at} cats", ANN, created_at=MONDAY - timedelta(days=at)) for at in range(40)]
        vectors = await stand.embedder.embed([row.content for row in rows])
        await stand.store.put(ANN, [Embedded(row, vector) for row, vector in zip(rows, vectors, strict=True)])
        held = stand.store.weather.hold("pages")
        listed = await stand.call("ListMemories", pb.ListMemoriesRequest(limit=3), as_=ANN)
        assert ([one.content for one in listed.memories], listed.total) == (
            ["has 0 cats", "has 1 cats", "has 2 cats"],
            40,
        )
        held.set()


@pytest.mark.parametrize("cold", [False, True], ids=["written here", "only in the store"])
async def test_statistics_count_what_recall_may_give(stand: ApiStand, *, cold: bool) -> None:
    stand.time = MONDAY + timedelta(days=40)
    rows = [
        a_memory("plain", ANN),
        a_memory("new", ANN, created_at=stand.time),
        a_memory("wrong", ANN, provenance=Provenance(rating=Rating.WRONG)),
        a_memory("both", ANN, provenance=Provenance(rating=Rating.WRONG), expires_at=MONDAY),
        a_memory("says so", ANN, provenance=Provenance(extra={"told": {"rating": "wrong"}})),
        a_memory("past", ANN, expires_at=MONDAY + timedelta(days=1)),
        a_memory("asked?", ANN, source=Source.QUESTION),
        a_memory("old", ANN, state=MemoryState.SUPERSEDED),
    ]
    await _put(stand, rows, cold=cold)
    stats = await stand.call("GetStats", pb.GetStatsRequest(), as_=ANN)
    assert (stats.total, stats.recallable) == (8, 3)
    assert dict(stats.by_state) == {"active": 7, "superseded": 1}
    assert dict(stats.by_age) == {"year": 6, "day": 1}
    assert stats.oldest_at.ToDatetime(tzinfo=UTC) == MONDAY


async def test_statistics_and_pages_of_a_large_owner_ask_no_more_of_the_store_the_more_there_is(
    tmp_path: Path,
) -> None:
    calls = []
    for count in (600, 2_400):
        async with ApiStand(tmp_path / str(count)) as stand:
            await _put(stand, [a_memory(f"has {at} cats", ANN) for at in range(count)], cold=True)
            held = stand.store.weather.hold("pages")  # no row is read that is not asked for
            before = len(stand.store.weather.calls)
            stats = await stand.call("GetStats", pb.GetStatsRequest(), as_=ANN)
            assert stats.total == stats.recallable == count
            await stand.call("ListMemories", pb.ListMemoriesRequest(limit=3), as_=ANN)
            calls.append(Counter(stand.store.weather.calls[before:]))
            held.set()
    assert calls[0] == calls[1]
    assert calls[0]


async def _put(stand: ApiStand, rows: list[Memory], *, cold: bool) -> None:
    vectors = await stand.embedder.embed([row.content for row in rows])
    put = [Embedded(row, vector) for row, vector in zip(rows, vectors, strict=True)]
    await (stand.store if cold else stand.partitions).put(ANN, put)
