"""The promises about load: recalls that are accepted stay quick, and the other requests pass at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from itertools import pairwise

import pytest

from memory_extproc.concurrency import LARGE, Pace
from memory_extproc.model import Outcome
from memory_extproc.request.admission import Admission, Admitted, Declined, LoadLimit, Room
from memory_extproc.request.identity import Identity
from memory_extproc.settings.identity import IdentitySection
from tests.support.sidecar import request_settings
from tests.unit.request.test_admission import a_request

ALONE = 0.01  # seconds
ROOM = LoadLimit.FIRST + LoadLimit.WAITING


class Load:
    """A limit with a clock of its own. `lag`: for how long a callback waits for the event loop."""

    def __init__(self, most: int = 64, lag: float = 0.0) -> None:
        self.now, self.lag, self.most = 100.0, lag, most
        self.limit = LoadLimit(lambda: self.most, lambda: self.now, self._soon)

    def _soon(self, work: Callable[[], object]) -> None:
        before, self.now = self.now, self.now + self.lag
        work()
        self.now = before

    async def take(self, seconds: float, at_once: int = 1, size: int = 0) -> list[Room]:
        """Requests that begin together and end together, so many *seconds* later."""
        async with AsyncExitStack() as stack:
            rooms = [await stack.enter_async_context(self.limit.work(size)) for _ in range(at_once)]
            self.now += seconds
        return rooms

    async def run(self, seconds: Sequence[float]) -> float:
        """The limit after so many rounds, each of as many requests as always have room, without a pause."""
        async with self.limit.work(0):
            for took in seconds:
                await self.take(took, LoadLimit.LEAST - 1)
        return self.limit.limit

    async def known(self) -> Load:
        for _ in range(LoadLimit.ALONE):
            await self.take(ALONE)
        return self


async def test_the_limit_falls_while_requests_are_slow_because_the_loop_is_busy_and_recovers_after() -> None:
    load = await Load(lag=0.02).known()
    assert load.limit.limit == LoadLimit.FIRST
    assert await load.run([4 * ALONE] * 200) == LoadLimit.LEAST
    for _ in range(20 * LoadLimit.WINDOW):
        await load.take(ALONE)
    assert load.limit.limit >= LoadLimit.FIRST


async def test_a_slow_store_is_no_load() -> None:
    load = await Load(lag=0.0).known()
    assert await load.run([4 * ALONE] * 200) == LoadLimit.FIRST


async def test_the_limit_grows_up_to_the_operators_while_requests_are_refused_and_none_is_slow() -> None:
    load = await Load(most=20).known()
    for _ in range(200):
        load.now += 1
        for _ in range(100):
            load.limit.room_for(0)
        load.now += 1
        await load.take(ALONE, 2)
    assert load.limit.limit == 20
    load.most = 2
    assert load.limit.limit == 2


async def test_streams_that_wait_before_us_lower_the_limit() -> None:
    load = await Load().known()
    async with load.limit.work(0):
        for _ in range(200):
            load.limit.room_for(0, waited=10 * ALONE)
            load.now += 1
            await load.take(ALONE, LoadLimit.LEAST - 1)
    assert load.limit.limit == LoadLimit.LEAST


async def test_bursts_are_served_one_after_another_also_on_a_busy_machine() -> None:
    load = await Load(lag=0.02).known()
    for _ in range(50):
        burst = [load.limit.room_for(0, waited=20 * ALONE) for _ in range(40)]
        assert burst == [Room.RECALL] * 40
        assert await load.take(20 * ALONE, 40) == [Room.RECALL] * 40
        load.now += 1


async def test_eight_clients_one_after_another_are_never_refused_however_slow_the_machine() -> None:
    load = await Load(lag=1.0).known()
    for _ in range(50):
        for _ in range(8):
            assert load.limit.room_for(0, waited=50 * ALONE) is Room.RECALL
        assert await load.take(50 * ALONE, LoadLimit.LEAST) == [Room.RECALL] * LoadLimit.LEAST
        load.now += 1


async def test_beyond_the_limit_a_few_wait_in_order_and_the_others_are_refused() -> None:
    load, order = Load(most=1), list[int]()
    over = asyncio.Event()

    async def request(number: int) -> Room:
        async with load.limit.work(0) as room:
            if room is Room.RECALL:
                order.append(number)
                await over.wait()
            return room

    tasks = [asyncio.create_task(request(number)) for number in range(8)]
    await asyncio.sleep(0)
    tasks[2].cancel()
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(request(8)))  # in the place of the one that went away
    await asyncio.sleep(0)
    assert order == [0]
    over.set()
    rooms = await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [0, 1, 3, 4, 8]
    assert [room is Room.LEARN for room in rooms] == [number in {5, 6, 7} for number in range(9)]


async def test_a_request_that_is_cancelled_when_its_turn_has_come_gives_it_to_the_next() -> None:
    load = Load(most=1)

    async def request() -> Room:
        async with load.limit.work(0) as room:
            return room

    async with load.limit.work(0):
        waiting = [asyncio.create_task(request()) for _ in range(2)]
        await asyncio.sleep(0)
    waiting[0].cancel()
    assert await waiting[1] is Room.RECALL
    assert await load.take(ALONE) == [Room.RECALL]


async def test_large_requests_are_refused_before_small_ones_and_one_alone_never_is() -> None:
    load = Load()
    assert load.limit.room_for(100 * LARGE) is Room.RECALL
    load.now += 1
    async with load.limit.work(0), load.limit.work(0):
        assert load.limit.room_for(ROOM * LARGE) is not Room.RECALL
        assert load.limit.room_for(LARGE - 1) is Room.RECALL


async def test_a_client_that_never_sends_its_body_takes_no_room_for_long() -> None:
    load = Load()
    rooms = [load.limit.room_for(0) for _ in range(1_000)]
    assert rooms.count(Room.RECALL) == ROOM
    load.now += 0.1
    assert load.limit.room_for(0) is Room.RECALL


def test_some_of_the_refused_are_learned_from_and_those_beyond_are_not_read() -> None:
    load = Load()

    def refused(count: int) -> int:
        return [load.limit.room_for(0, late=True) for _ in range(count)].count(Room.LEARN)

    assert refused(1_000) == LoadLimit.LEARNED.burst
    load.now += 1
    assert refused(1_000) == LoadLimit.LEARNED.per_second


@pytest.mark.parametrize(("store", "admitted"), [("default", LoadLimit.LEARNED.burst), ("skip", 0)])
async def test_a_refused_request_is_read_only_if_it_may_be_learned_from(store: str, admitted: int) -> None:
    load = Load()
    admission = Admission(request_settings(), Identity(IdentitySection()), load.limit)
    for _ in range(ROOM):
        admission.admit(a_request())
    found = [admission.admit(a_request(x_memory_store=store)) for _ in range(300)]
    assert sum(isinstance(one, Admitted) and one.late for one in found) == admitted
    assert found.count(Declined(Outcome.OVERLOADED, "chat_completions")) == 300 - admitted


class Work:
    """Background work of a clock's seconds each, beside requests that need the processor for so many looks."""

    def __init__(self, busy_for: int) -> None:
        self.now, self.busy_for = 100.0, busy_for
        self.pace = Pace(self._is_busy, lambda: self.now)
        self.began: list[float] = []

    def _is_busy(self) -> bool:
        self.now, self.busy_for = self.now + 0.01, self.busy_for - 1
        return self.busy_for > 0

    async def do(self, seconds: float, times: int) -> list[float]:
        """Seconds between one beginning and the next."""
        for _ in range(times):
            async with self.pace.turn():
                self.began.append(self.now)
                self.now += seconds
        return [after - before for before, after in pairwise(self.began)]


async def test_while_requests_need_the_processor_learning_has_a_fifth_of_it_and_is_put_off_for_no_longer() -> None:
    assert min(await Work(busy_for=1_000).do(0.01, 5)) >= 5 * 0.01
    slow = await Work(busy_for=1_000).do(10.0, 3)
    assert max(slow) < 10 + Pace.LONGEST, "work that waits for a language model takes none of the processor's time"
    assert max(await Work(busy_for=0).do(0.01, 5)) <= 0.02 + 1e-9
