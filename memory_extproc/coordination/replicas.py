"""Other replicas, as far as a forget concerns them: leases, and the news of what was forgotten.

A replica may serve what it holds of anybody only while its lease runs. With every renewal it first drops what
the news tell, then says how far it has read them. So whoever forgets knows when all have heard: each has said
so, or its lease has run out and it serves nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Self

from memory_extproc.errors import MemoryExtprocError
from memory_extproc.model import Owner, WaitingPlace
from memory_extproc.observe.log import logger

if TYPE_CHECKING:
    from memory_extproc.redis_link import RedisLink

log = logger(__name__)

# News stand in a sorted set by number, each for a day: a replica that missed more has lost its lease long before.
# KEYS: counter, news. ARGV: subject, seconds that news are kept. The number goes first, so that no two are one.
_TELL = """
local number = redis.call('INCR', KEYS[1])
redis.call('ZADD', KEYS[2], number, number .. ':' .. ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', number - 100000)
return number
"""
# KEYS: counter, leases (holder → how far it has read), expiries (holder → when its lease ends). ARGV: holder,
# milliseconds, how far it has read. The server's clock alone counts.
_RENEW = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
redis.call('HSET', KEYS[2], ARGV[1], ARGV[3])
redis.call('ZADD', KEYS[3], now + tonumber(ARGV[2]), ARGV[1])
return tonumber(redis.call('GET', KEYS[1]) or 0)
"""
# KEYS: leases, expiries. ARGV: number. How many replicas whose lease runs have not read so far.
_BEHIND = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now)) do
  redis.call('HDEL', KEYS[1], gone)
end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
local behind = 0
for _, holder in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
  if tonumber(redis.call('HGET', KEYS[1], holder) or 0) < tonumber(ARGV[1]) then behind = behind + 1 end
end
return behind
"""
# KEYS: leases, expiries. ARGV: holder.
_LEAVE = """
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
return 1
"""


class SoleReplica:
    """There are no others."""

    def __init__(
        self, name: str = "data", *, oldest_waiting: Callable[[Owner | None], datetime | None] = lambda _: None
    ) -> None:
        """*name*: of the data directory. *oldest_waiting*: when the oldest turn, of one owner or of anybody, was
        asked that is accepted and not in the journal yet; None: there is none."""
        self._name, self._oldest_waiting = name, oldest_waiting

    def holds(self) -> bool:
        return True

    async def waiting(self) -> Sequence[WaitingPlace]:
        oldest = self._oldest_waiting(None)
        return () if oldest is None else (WaitingPlace(self._name, oldest, live=True),)

    async def tell(self, subject: str) -> None:
        """Nobody is to be told of *subject*."""


class RedisReplicas:
    """One of several replicas. Enter it to hold a lease. `heard` is called with each subject that another replica,
    or we, had forgotten (empty: it may have been anybody); once it returns nothing of that subject is served from
    what was held."""

    def __init__(
        self,
        link: RedisLink,
        holder: str,
        *,
        prefix: str,
        lease: timedelta,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._link, self._holder = link, holder
        self._lease = lease
        self.heard: Callable[[str], Awaitable[None]] = _by_nobody
        self._clock = clock
        # One hash tag: the scripts touch these keys together.
        base = f"{prefix}:{{forgets}}"
        self._counter, self._news = f"{base}:counter", f"{base}:news"
        self._leases, self._expiries = f"{base}:leases", f"{base}:expiries"
        self._tell = link.client.register_script(_TELL)
        self._renew = link.client.register_script(_RENEW)
        self._behind = link.client.register_script(_BEHIND)
        self._leave = link.client.register_script(_LEAVE)
        self._read = (
            -1
        )  # number of the last news that we acted upon; -1: we hold nothing yet that they could concern
        self._until = float("-inf")
        self._renewing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._try_to_renew()
        self._renewing = asyncio.create_task(self._keep_renewing(), name="lease of this replica")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        self._until = float("-inf")
        try:
            await self._link.bounded(self._leave(keys=[self._leases, self._expiries], args=[self._holder]))
        except MemoryExtprocError as error:
            log.info("lease.not_given_back", error=type(error).__name__)  # it runs out by itself

    def holds(self) -> bool:
        return self._clock() < self._until

    async def waiting(self) -> Sequence[WaitingPlace]:
        return ()

    async def tell(self, subject: str) -> None:
        news = [self._counter, self._news]
        number = int(await self._link.bounded(self._tell(keys=news, args=[subject])))
        await self._try_to_renew()
        pause = self._lease.total_seconds() / 50
        while await self._are_behind(number):  # noqa: ASYNC110 - it happens in other processes
            await asyncio.sleep(pause)

    async def _are_behind(self, number: int) -> bool:
        behind = await self._link.bounded(self._behind(keys=[self._leases, self._expiries], args=[number]))
        return int(behind) > 0

    async def renew(self) -> None:
        """Acts on the news, then renews. May be called at any time; raises what Redis does."""
        asked = self._clock()
        if self._read < 0:
            self._read = int(await self._link.bounded(self._link.client.get(self._counter)) or 0)
        fresh = await self._link.bounded(
            self._link.client.zrangebyscore(self._news, f"({self._read}", "+inf", withscores=True)
        )
        for member, number in fresh:
            await self.heard(member.decode().partition(":")[2])
            self._read = max(self._read, int(number))
        ttl = int(self._lease.total_seconds() * 1000)
        keys = [self._counter, self._leases, self._expiries]
        latest = int(await self._link.bounded(self._renew(keys=keys, args=[self._holder, ttl, self._read])))
        if latest < self._read:
            await self.heard("")  # the server lost what it knew, news too: it may have been anybody
            self._read = latest
        # From before we asked: the server's lease ends later than ours, never earlier.
        self._until = asked + self._lease.total_seconds()

    async def _try_to_renew(self) -> None:
        try:
            await self.renew()
        except MemoryExtprocError as error:
            log.warning("lease.not_renewed", error=type(error).__name__)

    async def _keep_renewing(self) -> None:
        while True:
            await asyncio.sleep(self._lease.total_seconds() / 5)
            await self._try_to_renew()


async def _by_nobody(_subject: str) -> None:
    """Nothing is held that it could concern."""
