"""Two processes before one store: each sees what the other writes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest

from memory_extproc.errors import TransientError
from memory_extproc.model import Owner
from memory_extproc.testing.adapters import InMemoryCoordination
from tests.support.builders import ANN, BOB
from tests.unit.store.partitions import AT_ONCE, a_row, a_setting, said, search, until, up_to_date


class Mute(InMemoryCoordination):
    """Coordination that cannot be reached while it is down."""

    down = False

    async def version(self, owner: Owner) -> int:
        if self.down:
            raise TransientError("no word")
        return await super().version(owner)

    async def bump(self, owner: Owner, changed: Sequence[str] | None = None) -> int:
        if self.down:
            raise TransientError("no word")
        return await super().bump(owner, changed)


@pytest.mark.parametrize("lags", [False, True])
async def test_two_processes_see_each_others_writes(lags: bool) -> None:
    setting = a_setting(lags=lags)
    async with setting.process() as one, setting.process() as other:
        assert await said(one) == await said(other) == []
        await until(lambda: not one.filling and not other.filling, "both are filled")
        first = a_row("said to one")
        await one.put(ANN, [first])
        assert [found.memory.content for found in (await up_to_date(other)).found] == ["said to one"]
        await other.put(ANN, [a_row("said to the other", angle=0.3)])
        await other.delete(ANN, [first.memory.id])
        assert [found.memory.content for found in (await up_to_date(one)).found] == ["said to the other"]
        assert await said(other) == ["said to the other"]


async def test_our_own_writes_do_not_make_our_partition_outdated() -> None:
    setting = a_setting()
    async with setting.process() as partitions:
        await search(partitions)
        fills = setting.store.weather.calls.count("pages")
        for n in range(5):
            await partitions.put(ANN, [a_row(f"{n}")])
            assert (await search(partitions)).path == "hybrid"
        assert setting.store.weather.calls.count("pages") == fills


async def test_an_outdated_partition_answers_from_the_store_until_it_is_filled_again() -> None:
    setting = a_setting()
    async with setting.process(patience=AT_ONCE) as one, setting.process() as other:
        await search(one)
        await until(lambda: not one.filling, "filled")
        setting.store.weather.hold("fetch")
        await other.put(ANN, [a_row("by the other")])
        searched = await search(one)
        assert [one_.memory.content for one_ in searched.found] == ["by the other"]
        assert searched.path == "store"
        assert searched.total is None


async def test_an_outdated_partition_is_read_anew_for_the_one_who_asks_where_that_is_quick() -> None:
    setting = a_setting()
    async with setting.process() as one, setting.process() as other:
        await search(one)
        await other.put(ANN, [a_row("by the other")])
        searched = await search(one)
        assert [found.memory.content for found in searched.found] == ["by the other"]
        assert searched.path == "hybrid"


@pytest.mark.parametrize("lags", [False, True])
async def test_only_what_another_replica_wrote_is_read_anew(lags: bool) -> None:
    setting = a_setting(lags=lags)
    async with setting.process() as one, setting.process() as other:
        await one.put(ANN, [a_row(f"memory {n}", angle=n / 10) for n in range(20)])
        await up_to_date(one)
        asked = len(setting.store.weather.calls)
        await other.put(ANN, [a_row("by the other"), a_row("memory 3", angle=0.3, access_count=7)])
        await other.delete(ANN, [a_row("memory 5").memory.id])
        found = {each.memory.content: each.memory for each in (await up_to_date(one)).found}
        calls = setting.store.weather.calls[asked:]
        assert "by the other" in found
        assert found["memory 3"].access_count == 7
        assert "memory 5" not in found
        assert "pages" not in calls
        assert "fetch" in calls


async def test_a_write_that_could_not_be_told_of_is_read_by_the_others_after_the_next() -> None:
    setting = a_setting()
    setting.coordination = coordination = Mute(setting.clock)
    async with setting.process() as one, setting.process() as other:
        await search(one)
        await search(other)
        coordination.down = True
        with pytest.raises(TransientError):
            await other.put(ANN, [a_row("said while nobody heard")])
        coordination.down = False
        await other.put(ANN, [a_row("said aloud", angle=0.3)])
        assert set(await said(one)) == {"said while nobody heard", "said aloud"}


async def test_nobody_waits_for_a_lagging_store_to_be_read_afresh() -> None:
    setting = a_setting(lags=True)
    async with setting.process(patience=timedelta(days=1)) as one, setting.process() as other:
        await up_to_date(one)
        setting.store.weather.hold("pages")
        await other.put(ANN, [a_row("by the other")])
        asked = asyncio.create_task(search(one))
        await until(asked.done, "it is answered while the store is read")
        assert asked.result().path == "store"


async def test_recall_goes_on_with_what_is_held_when_coordination_is_down() -> None:
    setting = a_setting()
    coordination = Mute(setting.clock)
    setting.coordination = coordination
    async with setting.process() as partitions:
        await partitions.put(ANN, [a_row("held")])
        await search(partitions)
        coordination.down = True
        assert await said(partitions) == ["held"]
        await setting.store.put(BOB, [a_row("Bob's", BOB)])
        assert await said(partitions, BOB) == ["Bob's"], "through the store"
