"""How many requests are worked on at a time, and how long they queue before that: the load that admission sees."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from enum import Enum

from memory_extproc.concurrency import LARGE, Clock, RateLimits, TokenBuckets


class Room(Enum):
    """The work for which there is room."""

    RECALL = "recall"
    LEARN = "learn"  # the request gets no memory, and is learned from
    NONE = "none"


class LoadLimit:
    """An adaptive limit of requests with recall at a time, after Envoy's adaptive concurrency filter.

    It compares the times that requests take, queues included, with times of requests alone. It falls while they
    take `TOLERATED` times as long because the event loop is busy (`LAG`), and have done so for `BURST` without a
    pause: neither a burst nor a busy machine alone lowers it. Else it rises: by 1 while requests are refused,
    quicker while none is, up to `FIRST`. `WAITING` further requests wait for their turn, the others are refused:
    gRPC accepts a stream in two rounds of the event loop, so each recall that runs makes all streams wait. A large
    body counts as several requests, so under load it is refused before small ones. A few of the refused requests
    are still read, to be learned from (`LEARNED`)."""

    FIRST, LEAST = 64, 4  # with WAITING: eight requests at once are no overload, however slow they are
    WAITING = 4
    TOLERATED = 2.5
    RECOVERS = 1.25  # times the limit in each window, once no request is refused
    LEARNED = RateLimits(per_second=10, burst=60)
    WINDOW = 20  # requests between two changes of the limit
    BURST = 1.0  # seconds; requests that are slow for a shorter time are no overload
    ALONE = 50  # latest times of requests that ran alone
    AT_ONCE = 0.001  # seconds; a longer wait is for its turn
    LAG = 0.004  # seconds that a callback waits for the event loop on average
    COMES_WITHIN = 0.05  # seconds from a request's headers to its body; a slower client's request is not waited for

    def __init__(
        self,
        most: int = 64,
        clock: Clock = time.perf_counter,
        soon: Callable[[Callable[[], object]], object] | None = None,
    ) -> None:
        """*most*: the limit's upper bound. *soon*: runs a callback in the next round of the event loop."""
        self._most, self._clock, self._soon = most, clock, soon
        self._limit = float(min(self.FIRST, most))
        self._running = 0  # requests, a large request counted as several; so are the next two
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._queued = 0
        self._coming: deque[float] = deque()  # times of admission of requests whose bodies are not here yet
        self._begun = 0
        self._slow_since: float | None = None  # requests have been slow since then, without a pause
        self._refused_at = -math.inf
        self._was_full = False
        self._times: list[float] = []
        self._alone: deque[float] = deque(maxlen=self.ALONE)
        self._lag = 0.0  # seconds, of this window together
        self._queued_before = 0.0  # seconds that streams waited before us lately, on average
        self._learned = TokenBuckets(self.LEARNED, clock, 1)

    def reconfigure(self, most: int) -> None:
        """Change the upper bound."""
        self._most = most
        self._limit = max(min(self._limit, most), min(self.LEAST, most))

    @property
    def limit(self) -> float:
        return self._limit

    def is_busy(self) -> bool:
        """Whether requests need the time that background work would take."""
        return self._running >= self._limit or self._clock() - self._refused_at < self.COMES_WITHIN

    def room_for(self, size: int, waited: float = 0.0, *, late: bool = False) -> Room:
        """The room for a request of *size* bytes whose headers are here after *waited* seconds in queues. *late*:
        too long for a recall."""
        self._queued_before += (waited - self._queued_before) / 32
        if late:
            return self._refuse()
        now = self._clock()
        while self._coming and now - self._coming[0] > self.COMES_WITHIN:
            self._coming.popleft()
        if not self._has_room(_cost(size), len(self._coming)):
            return self._refuse()
        self._coming.append(now)
        return Room.RECALL

    @asynccontextmanager
    async def work(self, size: int) -> AsyncIterator[Room]:
        """Wait for the turn of a request of *size* bytes that is whole, and note the time that it takes."""
        if self._coming:
            self._coming.popleft()
        cost = _cost(size)
        if not self._has_room(cost, 0):
            yield self._refuse()
            return
        came = self._clock()
        await self._take_turn(cost)
        alone, began = self._running == cost, self._clock()
        self._begun += 1
        number = self._begun
        (self._soon or asyncio.get_running_loop().call_soon)(lambda: self._note_lag(began))
        try:
            yield Room.RECALL
        finally:
            self._release(cost)
            took = self._clock() - came
            if alone and number == self._begun and began - came < self.AT_ONCE:
                self._alone.append(took)
            self._times.append(took)
            if len(self._times) >= self.WINDOW:
                self._adapt()

    def _has_room(self, cost: int, coming: int) -> bool:
        used = self._running + self._queued + coming
        return used + cost <= self._limit + self.WAITING or not used

    def _refuse(self) -> Room:
        self._was_full, self._refused_at = True, self._clock()
        return Room.LEARN if self._learned.take("") is None else Room.NONE

    async def _take_turn(self, cost: int) -> None:
        if not self._waiting and self._fits(cost):
            self._running += cost
            return
        place = cost, asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        self._queued += cost
        try:
            await place[1]
        except asyncio.CancelledError:
            if place in self._waiting:
                self._waiting.remove(place)
                self._queued -= cost
            elif not place[1].cancelled():  # its turn had come
                self._release(cost)
            raise

    def _fits(self, cost: int) -> bool:
        return not self._running or self._running + cost <= self._limit

    def _release(self, cost: int) -> None:
        self._running -= cost
        if not (self._running or self._waiting):
            self._slow_since = None
        while self._waiting and self._fits(self._waiting[0][0]):
            cost, place = self._waiting.popleft()
            self._queued -= cost
            if not place.done():
                self._running += cost
                place.set_result(None)

    def _note_lag(self, since: float) -> None:
        self._lag += self._clock() - since

    def _adapt(self) -> None:
        slow, lag = _slow(self._times) + self._queued_before, self._lag / len(self._times) + self._queued_before
        now, full = self._clock(), self._was_full
        usual = _slow(self._alone or [min(self._times)])
        self._times, self._lag, self._was_full = [], 0.0, False
        share = self.TOLERATED * usual / slow
        since, self._slow_since = self._slow_since, None
        if share < 1 and lag > self.LAG:
            self._slow_since = now if since is None else since
            if now - self._slow_since < self.BURST:
                return
            self._limit = max(min(self.LEAST, self._most), self._limit * max(0.5, (1 + share) / 2))
        elif share >= 1 and full:
            self._limit = min(self._most, self._limit + 1)
        elif share >= 1 and self._limit < self.FIRST:
            self._limit = min(self._most, self.FIRST, self._limit * self.RECOVERS)


def _cost(size: int) -> int:
    return 1 + size // LARGE


def _slow(times: Collection[float]) -> float:
    """The 90th percentile."""
    return sorted(times)[len(times) * 9 // 10]


class ArrivalQueue:
    """How long requests queue between Envoy and this process, by Envoy's time of their arrival.

    The two clocks may differ, so a delay is the time by which a request took longer than the quickest request.
    Every ten seconds that measure moves half the way to the quickest of them, in case a clock was set.
    """

    WINDOW = 10.0  # seconds
    # So many late requests within a second of one another make a queue; a single one is a busy machine.
    IN_A_ROW = 8

    def __init__(self, late_after: timedelta, now: Callable[[], float] = time.time) -> None:
        self._late_after, self._now = late_after.total_seconds(), now
        self._quickest = math.inf  # seconds, clock difference included
        self._of_window, self._window_ends = math.inf, 0.0
        self._late, self._last = 0, 0.0
        self.waited = 0.0  # seconds, of the latest request, in a queue or not

    def delay(self, arrived: object) -> timedelta:
        """The delay of a request that *arrived* then (RFC 3339) by a queue; zero without a queue, or if unknown."""
        now, self.waited = self._now(), 0.0
        try:
            took = now - datetime.fromisoformat(str(arrived)).timestamp()
        except ValueError:
            return timedelta()
        if now >= self._window_ends:
            if self._of_window < math.inf:
                self._quickest += (self._of_window - self._quickest) / 2
            self._of_window, self._window_ends = math.inf, now + self.WINDOW
        self._of_window = min(self._of_window, took)
        self._quickest = min(self._quickest, took)
        waited = self.waited = took - self._quickest
        in_a_row = waited > self._late_after and now - self._last < 1
        self._late, self._last = (self._late + 1 if in_a_row else 0), now
        return timedelta(seconds=waited) if self._late >= self.IN_A_ROW else timedelta()
