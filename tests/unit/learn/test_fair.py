"""No tenant's crowd keeps another waiting."""

from __future__ import annotations

import asyncio

import pytest

from memory_extproc.learn.queue import FairSemaphore


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_tenant_with_many_waiting_delays_another_by_one_place_only() -> None:
    slots, order = FairSemaphore(lambda: 1), []
    gate = asyncio.Event()

    async def work(tenant: str, number: int) -> None:
        async with slots.acquire(tenant):
            await gate.wait()
            order.append(f"{tenant}{number}")

    tasks = [asyncio.create_task(work("crowd", n)) for n in range(5)]
    await settle()
    tasks += [asyncio.create_task(work("small", n)) for n in range(2)]
    await settle()
    gate.set()
    await asyncio.gather(*tasks)
    assert order == ["crowd0", "crowd1", "small0", "crowd2", "small1", "crowd3", "crowd4"]


async def test_no_more_than_there_are_places_are_in_at_once() -> None:
    slots, inside, most = FairSemaphore(lambda: 3), 0, 0

    async def work(tenant: str) -> None:
        nonlocal inside, most
        async with slots.acquire(tenant):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    await asyncio.gather(*(work(str(n % 4)) for n in range(40)))
    assert (inside, most) == (0, 3)


@pytest.mark.parametrize("when", ["waiting", "given"])
async def test_who_gives_up_loses_no_place(when: str) -> None:
    slots = FairSemaphore(lambda: 1)
    inside = slots.acquire("a")
    await inside.__aenter__()

    async def work() -> str:
        async with slots.acquire("b"):
            return "done"

    gone, patient = asyncio.create_task(work()), asyncio.create_task(work())
    await settle()
    if when == "given":
        await inside.__aexit__(None, None, None)
        gone.cancel()
    else:
        gone.cancel()
        await settle()
        await inside.__aexit__(None, None, None)
    assert await patient == "done"
    assert gone.cancelled()
    async with slots.acquire("c"):
        pass


async def test_a_fault_inside_gives_the_place_back() -> None:
    slots = FairSemaphore(lambda: 1)
    with pytest.raises(ValueError, match="inside"):
        async with slots.acquire("a"):
            raise ValueError("inside")
    async with slots.acquire("b"):
        pass


async def test_another_number_of_places_counts_when_the_next_comes_and_who_is_in_stays_in() -> None:
    places = 1
    slots, gate, inside = FairSemaphore(lambda: places), asyncio.Event(), 0

    async def work() -> None:
        nonlocal inside
        async with slots.acquire("a"):
            inside += 1
            await gate.wait()
            inside -= 1

    tasks = [asyncio.create_task(work()) for _ in range(5)]
    await settle()
    assert inside == 1
    places = 3
    tasks.append(asyncio.create_task(work()))
    await settle()
    assert inside == 3
    places = 1
    tasks.append(asyncio.create_task(work()))
    await settle()
    assert inside == 3
    gate.set()
    await asyncio.gather(*tasks)
    async with slots.acquire("b"):
        waiting = asyncio.create_task(work())
        await settle()
        assert not waiting.done(), "one place, as was said last"
    await waiting
