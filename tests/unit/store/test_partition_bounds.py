"""How much of how many owners is held, and who goes first."""

from __future__ import annotations

import asyncio

import pytest

from memory_extproc.errors import TransientError
from memory_extproc.model import Conditions, Owner
from tests.support.builders import ANN
from tests.unit.store.partitions import AT_ONCE, a_row, a_setting, said, search, until


async def test_the_least_recently_used_owner_goes_first_and_comes_back_when_needed() -> None:
    setting = a_setting()
    people = [Owner("acme", f"person {n}") for n in range(30)]
    for owner in people:
        await setting.store.put(owner, [a_row(f"{n}", owner) for n in range(20)])
    async with setting.process(bytes=200_000) as partitions:
        for owner in people:
            await search(partitions, owner)
        await until(lambda: not partitions.filling, "all are filled")
        assert partitions.size <= 200_000
        setting.store.weather.calls.clear()
        await search(partitions, people[-1])
        assert setting.store.weather.calls == []
        assert len((await search(partitions, people[0])).found) == 10
        assert "pages" in setting.store.weather.calls


async def test_what_is_not_stored_yet_is_never_let_go() -> None:
    setting = a_setting()
    async with setting.process(bytes=50_000, patience=AT_ONCE) as partitions:
        setting.store.weather.down = True
        with pytest.raises(TransientError):
            await partitions.put(ANN, [a_row("precious")])
        setting.store.weather.down = False
        for n in range(40):
            owner = Owner("acme", f"person {n}")
            await partitions.put(owner, [a_row(f"{m}", owner) for m in range(20)])
            await search(partitions, owner)
            await until(lambda: not partitions.filling, "filled")
        assert await said(partitions) == ["precious"]


async def test_an_owner_too_large_to_hold_is_served_by_the_store_with_our_writes_over_it() -> None:
    setting = a_setting()
    await setting.store.put(ANN, [a_row(f"{n}", angle=0.5) for n in range(300)])
    async with setting.process(bytes=100_000) as partitions:
        for _ in range(3):
            searched = await search(partitions)
            assert searched.path == "store"
            assert len(searched.found) == 10
        assert setting.store.weather.calls.count("pages") == 1
        await partitions.put(ANN, [a_row("new")])
        assert (await said(partitions))[0] == "new"
        assert partitions.size < 100_000


async def test_the_lists_of_an_owner_too_large_to_hold_read_the_store_one_at_a_time() -> None:
    setting = a_setting()
    bob = Owner("acme", "bob")
    await setting.store.put(ANN, [a_row(f"{n}", angle=0.5) for n in range(300)])
    await setting.store.put(bob, [a_row("bob's", bob)])
    async with setting.process(bytes=100_000) as partitions:
        await search(partitions)  # too large from here on
        calls = setting.store.weather.calls
        gate = setting.store.weather.hold("heads")
        lists = [asyncio.create_task(partitions.heads(ANN, Conditions())) for _ in range(8)]
        await until(lambda: "heads" in calls, "a list reads")
        lists.append(asyncio.create_task(partitions.heads(bob, Conditions())))
        await until(lambda: calls.count("heads") > 1, "bob's list reads")
        assert calls.count("heads") == 2, "one of Ann's eight, and bob's"
        gate.set()
        found = await asyncio.gather(*lists)
        assert [len(heads) for heads in found if heads is not None] == [300] * 8 + [1]


async def test_owners_who_only_asked_leave_nothing_behind() -> None:
    setting = a_setting()
    async with setting.process(fills=1, patience=AT_ONCE) as partitions:
        setting.store.weather.hold("pages")
        for n in range(100):
            await search(partitions, Owner("acme", f"person {n}"))
        assert partitions.filling <= 16
        before = partitions.size
    assert partitions.filling == 0
    assert before < 16 * 2_000


async def test_what_is_dropped_of_an_owner_counts_no_longer_while_a_write_of_theirs_waits_for_the_store() -> None:
    setting = a_setting()
    await setting.store.put(ANN, [a_row(f"{n}") for n in range(50)])
    async with setting.process() as partitions:
        await search(partitions)
        setting.store.weather.down = True
        with pytest.raises(TransientError):
            await partitions.put(ANN, [a_row("waits")])
        before = partitions.size
        partitions.drop(ANN)
        assert 0 < partitions.size < before / 10


async def test_leaving_ends_the_fills_that_run() -> None:
    setting = a_setting()
    setting.store.weather.hold("pages")
    async with setting.process(patience=AT_ONCE) as partitions:
        await search(partitions)
        assert partitions.filling == 1
    assert partitions.filling == 0
