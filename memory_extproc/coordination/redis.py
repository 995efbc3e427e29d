"""Coordination in Redis, for several replicas. Needs Redis 6 or newer with `maxmemory-policy noeviction`.

Versions and epochs must not be evicted: a forgotten epoch would let a write from before a forget through.
All keys of one owner carry the same hash tag and so lie on one node of a cluster.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from datetime import timedelta
from typing import Any, Self

from memory_extproc.coordination.record_kinds import check_registered
from memory_extproc.model import Owner
from memory_extproc.redis_link import LinkLimits, RedisLink

_GLANCE = timedelta(milliseconds=60)  # a request waits so long for the version of what is known
# An owner's record keys stand in a sorted set with their expiry, so that they can be found and deleted.
# The server's own clock is used throughout: replicas may disagree about the time. KEYS: record, index.
_SWAP = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
if ARGV[1] ~= 'put' then
  local there = redis.call('GET', KEYS[1])
  if ARGV[1] == 'absent' and there then return 0 end
  if ARGV[1] == 'same' and there ~= ARGV[2] then return 0 end
end
local ttl = tonumber(ARGV[4])
redis.call('SET', KEYS[1], ARGV[3], 'PX', ttl)
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
redis.call('ZADD', KEYS[2], now + ttl, KEYS[1])
if redis.call('PTTL', KEYS[2]) < ttl then redis.call('PEXPIRE', KEYS[2], ttl) end
return 1
"""
# KEYS: index. ARGV: beginnings of the keys that go; none: all of them. In slices, because unpack has a limit of
# some thousands.
_DELETE = """
local keys = redis.call('ZRANGE', KEYS[1], 0, -1)
if #ARGV > 0 then
  local chosen = {}
  for _, key in ipairs(keys) do
    for _, start in ipairs(ARGV) do
      if string.sub(key, 1, #start) == start then chosen[#chosen + 1] = key end
    end
  end
  keys = chosen
end
for first = 1, #keys, 500 do
  local last = math.min(first + 499, #keys)
  redis.call('DEL', unpack(keys, first, last))
  redis.call('ZREM', KEYS[1], unpack(keys, first, last))
end
return #keys
"""
# KEYS: lease. ARGV: holder, milliseconds.
_ACQUIRE = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
_RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return 1
"""


def _milliseconds(ttl: timedelta) -> int:
    return max(1, int(ttl.total_seconds() * 1000))


class RedisCoordination:
    """At *server*: an address, for a link of its own, or a link that others use too, which keeps its own limits.
    Use within `async with`."""

    def __init__(
        self,
        server: str | RedisLink,
        *,
        prefix: str = "memory-extproc",
        timeout: timedelta = timedelta(milliseconds=500),
        password: str | None = None,
    ) -> None:
        self._own = isinstance(server, str)
        self._link = (
            RedisLink(server, LinkLimits(timeout), password=password) if isinstance(server, str) else server
        )
        self._prefix = prefix
        self._client = self._link.client
        self._swap = self._client.register_script(_SWAP)
        self._delete = self._client.register_script(_DELETE)
        self._acquire = self._client.register_script(_ACQUIRE)
        self._release = self._client.register_script(_RELEASE)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._own:
            await self._link.__aexit__()

    async def open(self) -> None:
        """Asks the server whether it is there and takes us; raises what is wrong."""
        await self._link.open()

    async def version(self, owner: Owner) -> int:
        call = self._client.get(self._key(owner, "version"))
        return int(await self._link.bounded(call, within=_GLANCE) or 0)

    async def bump(self, owner: Owner) -> int:
        return int(await self._bounded(self._client.incr(self._key(owner, "version"))))

    async def epoch(self, owner: Owner) -> int:
        return int(await self._bounded(self._client.get(self._key(owner, "epoch"))) or 0)

    async def advance_epoch(self, owner: Owner) -> int:
        return int(await self._bounded(self._client.incr(self._key(owner, "epoch"))))

    async def get_record(self, kind: str, owner: Owner, key: str) -> bytes | None:
        value = await self._bounded(self._client.get(self._record(kind, owner, key)))
        return None if value is None else bytes(value)

    async def put_record(self, kind: str, owner: Owner, key: str, value: bytes, ttl: timedelta) -> None:
        await self._swapped(kind, owner, key, ("put", b"", value, _milliseconds(ttl)))

    async def replace_record(
        self, kind: str, owner: Owner, key: str, old: bytes | None, new: bytes, ttl: timedelta
    ) -> bool:
        expected = ("absent", b"") if old is None else ("same", old)
        return await self._swapped(kind, owner, key, (*expected, new, _milliseconds(ttl)))

    async def delete_records(self, owner: Owner, kinds: Sequence[str] | None = None) -> None:
        if kinds is not None and not kinds:
            return
        starts = [self._record(kind, owner, "") for kind in kinds or ()]
        await self._bounded(self._delete(keys=[self._key(owner, "records")], args=starts))

    async def acquire(self, name: str, holder: str, ttl: timedelta) -> bool:
        lease = f"{self._prefix}:lease:{name}"
        return bool(await self._bounded(self._acquire(keys=[lease], args=[holder, _milliseconds(ttl)])))

    async def release(self, name: str, holder: str) -> None:
        await self._bounded(self._release(keys=[f"{self._prefix}:lease:{name}"], args=[holder]))

    async def _swapped(self, kind: str, owner: Owner, key: str, args: Sequence[str | bytes | int]) -> bool:
        keys = [self._record(kind, owner, key), self._key(owner, "records")]
        return bool(await self._bounded(self._swap(keys=keys, args=args)))

    async def _bounded(self, call: Awaitable[Any]) -> Any:
        return await self._link.bounded(call)

    def _key(self, owner: Owner, what: str) -> str:
        return f"{self._prefix}:{{{owner.key}}}:{what}"

    def _record(self, kind: str, owner: Owner, key: str) -> str:
        check_registered([kind])
        # The kind's length goes first, so that no two pairs of kind and key share a name.
        return self._key(owner, f"record:{len(kind)}:{kind}:{key}")
