"""Fills and writes at the same time: neither undoes the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta

import pytest

from memory_extproc.model import Embedded, Owner, Scope, SearchResult, Vector
from memory_extproc.testing.adapters import InMemoryStore
from tests.support.builders import ANN, BOB
from tests.unit.store.partitions import AT_ONCE, DIMENSION, a_row, a_setting, said, search, until


@pytest.mark.parametrize("lags", [False, True])
async def test_what_is_written_and_deleted_while_a_fill_runs_is_not_undone_by_it(lags: bool) -> None:
    setting = a_setting(lags=lags)
    old, gone = a_row("old", angle=0.2), a_row("gone", angle=0.1)
    await setting.store.put(ANN, [old, gone])
    setting.store.settle()
    held_up = setting.store.weather.hold("page")
    async with setting.process(patience=AT_ONCE, page=1) as partitions:
        await search(partitions)
        await until(lambda: "page" in setting.store.weather.calls, "the first page is read")
        setting.store.weather.lagging = lags
        await partitions.delete(ANN, [gone.memory.id])
        await partitions.put(ANN, [a_row("new")])
        assert await said(partitions) == ["new", "old"]
        held_up.set()
        await until(lambda: not partitions.filling, "the fill is done")
        searched = await search(partitions)
        assert searched.path == "hybrid"
        assert [one.memory.content for one in searched.found] == ["new", "old"]


async def test_what_was_forgotten_while_a_fill_ran_does_not_come_back() -> None:
    setting = a_setting()
    await setting.store.put(ANN, [a_row("one"), a_row("two")])
    held_up = setting.store.weather.hold("page")
    async with setting.process(patience=AT_ONCE, page=1) as partitions:
        await search(partitions)
        await until(lambda: "page" in setting.store.weather.calls, "the first page is read")
        await partitions.delete_owner(ANN)
        held_up.set()
        await until(lambda: not partitions.filling, "the fill is done")
        searched = await search(partitions)
        assert searched.found == ()
        assert await setting.store.count(ANN) == 0


async def test_what_was_forgotten_is_hidden_while_a_lagging_store_still_shows_it() -> None:
    setting = a_setting(lags=True)
    await setting.store.put(ANN, [a_row("old")])
    setting.store.settle()
    setting.store.weather.lagging = True
    other = setting.process()
    async with setting.process(patience=AT_ONCE) as partitions, other:
        await partitions.delete_owner(ANN)
        assert await said(partitions) == []
        setting.store.weather.hold("pages")
        await other.put(ANN, [a_row("new", angle=0.5)])
        assert await said(partitions) == [], "outdated, and the store's own search would show what is forgotten"


async def test_a_cold_owner_of_a_lagging_store_is_looked_at_again_freshly() -> None:
    setting = a_setting(lags=True)
    await setting.store.put(ANN, [a_row("settled", angle=0.5)])
    setting.store.settle()
    setting.store.weather.lagging = True
    await setting.store.put(ANN, [a_row("by another replica a moment ago")])
    async with setting.process() as partitions:
        assert await said(partitions) == ["settled"]
        await until(lambda: not partitions.filling, "the fresh read is done")
        assert await said(partitions) == ["by another replica a moment ago", "settled"]


class UnfinishedIndex(InMemoryStore):
    """As Milvus while it builds the index of new rows: a search by vector finds few of an owner's."""

    asked: asyncio.Event

    async def nearest(self, owner: Owner, to: Vector, limit: int, scope: Scope) -> SearchResult:
        self.asked.set()
        return SearchResult(found=(), total=None, path="store")


async def test_a_cold_owners_first_question_is_answered_from_all_rows_while_the_stores_index_shows_few() -> None:
    setting = a_setting()
    store = setting.store = UnfinishedIndex(DIMENSION, now=setting.clock)
    await store.put(ANN, [a_row("one"), a_row("two", angle=0.1)])
    store.asked = store.weather.hold("pages")  # the fill goes on once the store was searched
    async with setting.process(patience=timedelta(milliseconds=200)) as partitions:
        assert await said(partitions) == ["one", "two"]
        assert store.weather.calls.count("pages") == 1


class SlowClock(InMemoryStore):
    """As a server: a read that shows everything waits for the next tick of its clock, here for ever."""

    async def pages(self, owner: Owner, size: int, *, fresh: bool) -> AsyncIterator[Sequence[Embedded]]:
        if fresh:
            await asyncio.Event().wait()
        async for page in super().pages(owner, size, fresh=fresh):
            yield page


async def test_a_cold_owner_does_not_wait_for_the_fresh_reads_of_others() -> None:
    setting = a_setting(lags=True)
    store = setting.store = SlowClock(DIMENSION, now=setting.clock, lags=True)
    await store.put(ANN, [a_row("one")])
    store.settle()
    async with setting.process(patience=timedelta(seconds=2), fills=1) as partitions:
        assert (await search(partitions, BOB)).path == "hybrid"
        assert (await search(partitions, ANN)).path == "hybrid"
