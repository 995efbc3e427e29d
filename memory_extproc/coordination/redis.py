"""Coordination in Redis, for several replicas. Needs Redis 6 or newer with `maxmemory-policy noeviction`.

Versions and epochs must not be evicted: a forgotten epoch would let a write from before a forget through.
All keys of one owner carry the same hash tag and so lie on one node of a cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from datetime import timedelta
from typing import Any, Self

from redis import asyncio as aioredis
from redis import exceptions as faults
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from memory_extproc.errors import GiveUpError, MemoryExtprocError, NotReadyError, TryLaterError
from memory_extproc.model import Owner

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
# KEYS: index. In slices, because unpack has a limit of some thousands.
_DELETE = """
local keys = redis.call('ZRANGE', KEYS[1], 0, -1)
for first = 1, #keys, 500 do
  redis.call('DEL', unpack(keys, first, math.min(first + 499, #keys)))
end
redis.call('DEL', KEYS[1])
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

_NOT_READY = (faults.BusyLoadingError, faults.ClusterDownError, faults.TryAgainError)
_REFUSED = (
    faults.AuthenticationError,
    faults.AuthorizationError,
    faults.NoPermissionError,
    faults.AuthenticationWrongNumberOfArgsError,
)
_PASSING = (
    faults.ConnectionError,
    faults.TimeoutError,
    faults.OutOfMemoryError,
    faults.ReadOnlyError,
    faults.AskError,
    faults.NoScriptError,
    faults.WatchError,
    faults.InvalidResponse,
    OSError,
    TimeoutError,
)


def translated(error: Exception) -> MemoryExtprocError:
    """Our kind of error for the client library's. Its text may repeat what was sent, so ours does not."""
    kind = type(error).__name__
    if isinstance(error, _NOT_READY):
        return NotReadyError(f"Redis is not ready ({kind})")
    if isinstance(error, _REFUSED):
        # An operator mends that, and then the same call works: no turn is given up for it.
        return TryLaterError(f"Redis refuses our credentials ({kind})")
    if isinstance(error, _PASSING):
        return TryLaterError(f"Redis does not answer as it should ({kind})")
    return GiveUpError(f"Redis refuses the command ({kind})")


def _milliseconds(ttl: timedelta) -> int:
    return max(1, int(ttl.total_seconds() * 1000))


class RedisCoordination:
    """*timeout* bounds every call, connecting included. Use within `async with`; nothing is asked of the
    server until the first call, so it may come up later than we do."""

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "memory-extproc",
        timeout: timedelta = timedelta(milliseconds=500),
        connections: int = 64,
        password: str | None = None,
    ) -> None:
        self._timeout = timeout.total_seconds()
        self._prefix = prefix
        # A pool that waits for a free connection: a burst of calls is not a fault.
        pool = aioredis.BlockingConnectionPool.from_url(
            url,
            timeout=self._timeout,
            max_connections=connections,
            socket_timeout=self._timeout,
            socket_connect_timeout=self._timeout,
            retry=Retry(NoBackoff(), 1),  # one more try, on a new connection, when a kept one was cut
            protocol=2,
            **({"password": password} if password else {}),  # given apart from the URL, which gets printed
        )
        self._client = aioredis.Redis.from_pool(pool)
        self._swap = self._client.register_script(_SWAP)
        self._delete = self._client.register_script(_DELETE)
        self._acquire = self._client.register_script(_ACQUIRE)
        self._release = self._client.register_script(_RELEASE)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def open(self) -> None:
        """Asks the server whether it is there and takes us; raises what is wrong."""
        await self._bounded(self._client.ping())

    async def version(self, owner: Owner) -> int:
        return int(await self._bounded(self._client.get(self._key(owner, "version"))) or 0)

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

    async def delete_records(self, owner: Owner) -> None:
        await self._bounded(self._delete(keys=[self._key(owner, "records")]))

    async def acquire(self, name: str, holder: str, ttl: timedelta) -> bool:
        lease = f"{self._prefix}:lease:{name}"
        return bool(await self._bounded(self._acquire(keys=[lease], args=[holder, _milliseconds(ttl)])))

    async def release(self, name: str, holder: str) -> None:
        await self._bounded(self._release(keys=[f"{self._prefix}:lease:{name}"], args=[holder]))

    async def asked(self, *command: str | bytes | int) -> Any:
        """The server's reply to one command, for records of other kinds that share our connections and bounds."""
        return await self._bounded(self._client.execute_command(*command))  # type: ignore[no-untyped-call]

    async def _swapped(self, kind: str, owner: Owner, key: str, args: Sequence[str | bytes | int]) -> bool:
        keys = [self._record(kind, owner, key), self._key(owner, "records")]
        return bool(await self._bounded(self._swap(keys=keys, args=args)))

    async def _bounded(self, call: Awaitable[Any]) -> Any:
        try:
            async with asyncio.timeout(self._timeout):
                return await call
        except (faults.RedisError, faults.RedisClusterException, OSError, TimeoutError) as error:
            raise translated(error) from error

    def _key(self, owner: Owner, what: str) -> str:
        return f"{self._prefix}:{{{owner.key}}}:{what}"

    def _record(self, kind: str, owner: Owner, key: str) -> str:
        # The kind's length goes first, so that no two pairs of kind and key share a name.
        return self._key(owner, f"record:{len(kind)}:{kind}:{key}")
