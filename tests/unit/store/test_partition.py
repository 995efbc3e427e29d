"""The promises of an owner's partition to recall and to learning, whatever its store does meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from memory_extproc.errors import PermanentError, TransientError
from memory_extproc.model import Embedded, MemoryState, MemoryType, Scope, SearchResult, Source
from tests.support.builders import ANN, BOB, MONDAY, OTHER_ANN
from tests.unit.store.partitions import AT_ONCE, a_row, a_setting, said, search, until


async def test_a_cold_owner_is_filled_and_answered_from_the_partition() -> None:
    setting = a_setting()
    await setting.store.put(ANN, [a_row("near", angle=0.1), a_row("far", angle=1.0)])
    await setting.store.put(BOB, [a_row("Bob's", BOB)])
    async with setting.process() as partitions:
        searched = await search(partitions)
        assert [one.memory.content for one in searched.found] == ["near", "far"]
        assert searched.path == "hybrid"
        assert searched.total == 2
        calls = len(setting.store.weather.calls)
        await search(partitions)
        assert len(setting.store.weather.calls) == calls, "a filled partition asks the store for nothing"


async def test_an_owner_without_memories_is_known_to_have_none() -> None:
    setting = a_setting()
    await setting.store.put(BOB, [a_row("Bob's", BOB)])
    async with setting.process() as partitions:
        searched = await search(partitions)
    assert searched == SearchResult(found=(), total=0, path="hybrid")


@pytest.mark.parametrize("lags", [False, True])
async def test_a_write_is_seen_by_the_very_next_search_whatever_the_store_shows(lags: bool) -> None:
    setting = a_setting(lags=lags)
    setting.store.weather.lagging = lags
    setting.store.weather.hold("pages")  # the partition never gets filled
    async with setting.process(patience=AT_ONCE) as partitions:
        await partitions.put(ANN, [a_row("said just now")])
        assert await said(partitions) == ["said just now"]
        assert await said(partitions, BOB) == []
        assert await said(partitions, OTHER_ANN) == []
        await partitions.delete(ANN, [a_row("said just now").memory.id])
        assert await said(partitions) == []


async def test_a_write_is_seen_while_the_store_is_still_taking_it() -> None:
    setting = a_setting()
    async with setting.process() as partitions:
        await search(partitions)
        taking = setting.store.weather.hold("put")
        putting = asyncio.create_task(partitions.put(ANN, [a_row("on its way")]))
        await until(lambda: setting.store.weather.calls[-1] == "put", "the store is asked")
        assert await said(partitions) == ["on its way"]
        taking.set()
        await putting


@pytest.mark.parametrize("warm", [False, True])
async def test_what_a_store_that_is_down_did_not_take_stays_visible_and_can_be_put_again(warm: bool) -> None:
    setting = a_setting()
    async with setting.process(patience=AT_ONCE) as partitions:
        if warm:
            await search(partitions)
        setting.store.weather.down = True
        with pytest.raises(TransientError):
            await partitions.put(ANN, [a_row("not stored yet")])
        assert await said(partitions) == ["not stored yet"]
        setting.store.weather.down = False
        setting.clock.now += timedelta(minutes=1)
        await partitions.put(ANN, [a_row("not stored yet")])
        assert await setting.store.count(ANN) == 1
        assert await said(partitions) == ["not stored yet"]


async def test_what_the_store_refuses_is_not_shown() -> None:
    setting = a_setting()
    async with setting.process() as partitions:
        await partitions.put(ANN, [a_row("good")])
        await search(partitions)
        setting.store.weather.refuse = "no room in the schema"
        with pytest.raises(PermanentError, match="no room"):
            await partitions.put(ANN, [a_row("refused")])
        setting.store.weather.refuse = ""
        assert await said(partitions) == ["good"]


async def test_a_store_that_is_down_does_not_stop_a_filled_partition() -> None:
    setting = a_setting()
    await setting.store.put(ANN, [a_row("held")])
    async with setting.process() as partitions:
        await search(partitions)
        setting.store.weather.down = True
        assert await said(partitions) == ["held"]
        with pytest.raises(TransientError):
            await search(partitions, BOB)


async def test_a_failed_fill_is_tried_again_later_and_not_at_every_request() -> None:
    setting = a_setting()
    setting.store.weather.down = True
    async with setting.process() as partitions:
        for _ in range(5):
            with pytest.raises(TransientError):
                await search(partitions)
        assert setting.store.weather.calls.count("pages") == 1
        setting.store.weather.down = False
        setting.clock.now += timedelta(seconds=2)
        assert (await search(partitions)).path == "hybrid"


@pytest.mark.parametrize(
    "hidden",
    [
        a_row("superseded", state=MemoryState.SUPERSEDED),
        a_row("quarantined", state=MemoryState.QUARANTINED),
        a_row("deleted", state=MemoryState.DELETED),
        a_row("a question?", source=Source.QUESTION),
        a_row("expired", expires_at=MONDAY),
    ],
    ids=lambda row: row.memory.content,
)
@pytest.mark.parametrize("filled", [True, False])
async def test_what_is_not_recallable_is_never_found_but_counted_and_kept(hidden: Embedded, filled: bool) -> None:
    setting = a_setting()
    if not filled:
        setting.store.weather.hold("pages")
    async with setting.process(patience=timedelta(seconds=5) if filled else AT_ONCE) as partitions:
        await partitions.put(ANN, [hidden, a_row("shown", angle=1.0)])
        searched = await search(partitions, limit=1)
        assert [one.memory.content for one in searched.found] == ["shown"]
        assert searched.total == (2 if filled else None)
        assert list(await partitions.get(ANN, [hidden.memory.id])) == [hidden.memory]
        quarantined = int(hidden.memory.state is MemoryState.QUARANTINED)
        assert partitions.count_held(ANN) == ((2, quarantined) if filled else None)
        await partitions.put(ANN, [replace(hidden, memory=replace(hidden.memory, state=MemoryState.ACTIVE))])
        assert partitions.count_held(ANN) == ((2, 0) if filled else None), "released, it is in quarantine no longer"


async def test_a_memory_expires_while_it_is_held() -> None:
    setting = a_setting()
    async with setting.process() as partitions:
        await partitions.put(ANN, [a_row("until noon", expires_at=MONDAY + timedelta(hours=3))])
        assert await said(partitions) == ["until noon"]
        setting.clock.now += timedelta(hours=3)
        assert await said(partitions) == []


async def test_a_scope_narrows_a_held_partition() -> None:
    setting = a_setting()
    async with setting.process() as partitions:
        await partitions.put(
            ANN,
            [
                a_row("fact of hawaii", project="hawaii"),
                a_row("step of hawaii", project="hawaii", type=MemoryType.PROCEDURAL),
                a_row("fact of nothing"),
            ],
        )
        for scope, expected in (
            (Scope("hawaii"), {"fact of hawaii", "step of hawaii"}),
            (Scope(types=frozenset({MemoryType.SEMANTIC})), {"fact of hawaii", "fact of nothing"}),
            (Scope("nowhere"), set()),
            (Scope(types=frozenset()), set()),
        ):
            found = (await search(partitions, scope=scope)).found
            assert {one.memory.content for one in found} == expected
        assert (await search(partitions, limit=0)).found == ()


async def test_superseding_keeps_both_rows_and_shows_the_newer() -> None:
    setting = a_setting()
    async with setting.process() as partitions:
        old, new = a_row("lives in Prague"), a_row("lives in Brno")
        await partitions.put(ANN, [old, new])
        at = MONDAY + timedelta(days=1)
        await partitions.supersede(ANN, old.memory.id, new.memory.id, at)
        assert await said(partitions) == ["lives in Brno"]
        (kept,) = await setting.store.get(ANN, [old.memory.id])
        assert (kept.state, kept.superseded_by, kept.valid_to) == (MemoryState.SUPERSEDED, new.memory.id, at)
        assert await setting.store.count(ANN) == 2
        await partitions.supersede(BOB, new.memory.id, old.memory.id, at)
        assert await said(partitions) == ["lives in Brno"], "Bob cannot supersede what is Ann's"


async def test_confirming_counts_and_refreshes_and_never_goes_back_in_time() -> None:
    setting = a_setting()
    async with setting.process() as partitions:
        row = a_row("likes tea", metadata={"subject": "tea"})
        await partitions.put(ANN, [row])
        later, before = MONDAY + timedelta(days=2), MONDAY - timedelta(days=2)
        await partitions.confirm(ANN, row.memory.id, later)
        await partitions.confirm(ANN, row.memory.id, before)
        await partitions.confirm(BOB, row.memory.id, later)
        await partitions.confirm(ANN, "unknown", later)
        (kept,) = await setting.store.get(ANN, [row.memory.id])
        assert kept.updated_at == later
        assert kept.provenance.encode() == {"subject": "tea", "confirmations": 2}


async def test_two_confirmations_at_the_same_time_both_count() -> None:
    setting = a_setting()
    async with setting.process() as partitions:
        row = a_row("likes tea")
        await partitions.put(ANN, [row])
        await asyncio.gather(*(partitions.confirm(ANN, row.memory.id, MONDAY) for _ in range(5)))
        (kept,) = await partitions.get(ANN, [row.memory.id])
        assert kept.provenance.confirmations == 5


async def test_a_row_of_another_owner_is_refused() -> None:
    setting = a_setting()
    async with setting.process() as partitions:
        for stranger in (BOB, OTHER_ANN):
            with pytest.raises(PermanentError, match="another owner"):
                await partitions.put(ANN, [a_row("not Ann's", stranger)])
            assert await said(partitions, stranger) == []
        assert await said(partitions) == []
