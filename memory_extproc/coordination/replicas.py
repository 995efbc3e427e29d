"""Replica membership for forgets: leases, invalidation messages, and the register of data directories.

A replica may serve cached data only while its lease runs. With every renewal it first applies the invalidation
messages, then reports the last message read. A forget is therefore complete once every replica has reported it, or
its lease has expired and it serves nothing. Messages are numbered within an era, which ends when Redis loses its
data: a replica of an earlier era may have missed messages, and drops everything cached before it gets a lease."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Self

from memory_extproc.concurrency import contain_faults
from memory_extproc.coordination import read_lua
from memory_extproc.errors import MemoryExtprocError, TransientError
from memory_extproc.model import Owner, WaitingPlace
from memory_extproc.observe.log import logger

if TYPE_CHECKING:
    from memory_extproc.coordination.redis_client import RedisLink

log = logger(__name__)

_NOTHING, _UNKNOWN = "-", "?"  # in the place of a time: since when turns wait

OldestWaiting = Callable[[], datetime | None]


def nothing_waits() -> datetime | None:
    """For a replica without a journal of its own."""
    return None


class RedisReplicas:
    """Membership among several replicas. Enter it to hold a lease.

    `heard` is called with each subject forgotten by any replica, this replica included (empty: any subject). Once
    it returns, no cached data of that subject is served. `oldest_waiting` returns the time of the oldest turn
    waiting in our data directory."""

    def __init__(
        self,
        link: RedisLink,
        holder: str,
        *,
        prefix: str,
        lease: timedelta,
        directory: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """*directory*: the name of our data directory, stable across restarts; defaults to *holder*."""
        self._link, self._holder, self._directory = link, holder, directory or holder
        self._lease = lease
        self.oldest_waiting: OldestWaiting = nothing_waits
        self.whole: Callable[[], bool] = lambda: True  # whether Redis has all that it was given
        self.watch: Callable[[], Awaitable[None]] = _nothing  # looks whether it has, with each renewal
        self.register: dict[str, tuple[str, str, bool]] = {}  # holder → directory, entry, lives; as last seen
        self.heard: Callable[[str], Awaitable[None]] = _by_nobody
        self._clock = clock
        # A common hash tag: the scripts use these keys together.
        base = f"{prefix}:{{forgets}}"
        self._counter, self._news = f"{base}:counter", f"{base}:news"
        self._era_key = f"{base}:era"
        self._leases, self._expiries = f"{base}:leases", f"{base}:expiries"
        self._entries = f"{base}:directories"
        self._tell = link.client.register_script(read_lua("tell_replicas"))
        self._begin = link.client.register_script(read_lua("begin_replica"))
        self._renew = link.client.register_script(read_lua("renew_replica"))
        self._behind = link.client.register_script(read_lua("count_behind"))
        self._leave = link.client.register_script(read_lua("leave_replicas"))
        self._read_register = link.client.register_script(read_lua("read_register"))
        self._read, self._era = 0, b""  # the last message that we applied; no era: none of them yet
        self._anew = False  # what is cached may be from before messages that are gone
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
            keys = [self._leases, self._expiries, self._entries]
            args = [self._holder, self._directory, _since(self.oldest_waiting)]
            await self._link.limit_time(self._leave(keys=keys, args=args))
        except MemoryExtprocError as error:
            log.info("lease.not_given_back", error=type(error).__name__)  # it runs out by itself

    def holds(self) -> bool:
        return self._clock() < self._until and self.whole()

    async def tell(self, subject: str) -> None:
        told = await self._announce(subject)
        pause = self._lease.total_seconds() / 50
        while behind := await self._count_behind(*told):
            if behind < 0:  # Redis lost the message, so no replica will ever report it
                told = await self._announce(subject)
            await asyncio.sleep(pause)

    async def _announce(self, subject: str) -> tuple[int, bytes]:
        keys = [self._counter, self._news, self._era_key]
        number, era = await self._link.limit_time(self._tell(keys=keys, args=[subject, secrets.token_hex(8)]))
        await self._try_to_renew()
        return int(number), era

    async def _count_behind(self, number: int, era: bytes) -> int:
        keys = [self._leases, self._expiries, self._counter, self._era_key]
        return int(await self._link.limit_time(self._behind(keys=keys, args=[number, era])))

    def begin_anew(self) -> None:
        """Serve no cached data until the next renewal has dropped it: messages may be gone."""
        self._era, self._anew, self._until = b"", True, float("-inf")

    async def waiting(self, owner: Owner | None = None) -> Sequence[WaitingPlace]:  # noqa: ARG002
        places = []
        for holder, (name, entry, lives) in (await self._look_up()).items():
            since, ended, _ = entry.split("|", 2)
            if holder == self._holder:
                since = _since(self.oldest_waiting)
            elif not lives and ended == "serves":
                since = _UNKNOWN  # turns it accepted after its last report are unknown
            if since != _NOTHING:
                places.append(WaitingPlace(name, _moment(since), live=lives))
        return sorted(places, key=lambda place: place.name)

    async def strike(self, name: str) -> bool:
        """Remove the lost directory *name* from the register. False if there is no dead replica with that name."""
        found = await self._look_up()
        gone = [holder for holder, (directory, _, lives) in found.items() if not lives and directory == name]
        if gone:
            await self._link.limit_time(self._link.client.hdel(self._entries, *gone))
        return bool(gone)

    async def put_back(self, register: Mapping[str, tuple[str, str, bool]]) -> None:
        """Restore entries into a Redis that lost its register.

        Active replicas renew theirs; the others are dead."""
        for holder, (_, entry, _) in register.items():
            await self._link.limit_time(self._link.client.hsetnx(self._entries, holder, entry))

    @property
    def dead_directories(self) -> int:
        return len({directory for directory, _, lives in self.register.values() if not lives})

    async def _look_up(self) -> dict[str, tuple[str, str, bool]]:
        found = await self._link.limit_time(self._read_register(keys=[self._expiries, self._entries]))
        entries = [(holder.decode(), entry.decode(), bool(lives)) for holder, entry, lives in found]
        self.register = {holder: (entry.split("|", 2)[2], entry, lives) for holder, entry, lives in entries}
        return self.register

    async def renew(self) -> None:
        """Apply the messages, then renew the lease. May be called at any time; raises Redis errors."""
        asked = self._clock()
        await self.watch()
        if not await self._report():
            self.begin_anew()
            if not await self._report():
                raise TransientError("Redis lost the messages of this replica")
        await self._look_up()
        # Measured from before the call: the server's lease ends later than ours, never earlier.
        self._until = asked + self._lease.total_seconds()

    async def _report(self) -> bool:
        """Apply the messages and report the last one. False if messages are gone."""
        if not self._era:
            keys, era = [self._counter, self._era_key], secrets.token_hex(8)
            number, self._era = await self._link.limit_time(self._begin(keys=keys, args=[era]))
            self._read = int(number)
        if self._anew:  # after the number was read: a later message is among the next
            await self.heard("")
            self._anew = False
        fresh = await self._link.limit_time(
            self._link.client.zrangebyscore(self._news, f"({self._read}", "+inf", withscores=True)
        )
        # A subject with several messages is heard once: after an outage of Redis there are many of few subjects.
        for subject in dict.fromkeys(member.decode().partition(":")[2] for member, _ in fresh):
            await self.heard(subject)
        self._read = max(self._read, *(int(number) for _, number in fresh), 0)
        ttl = int(self._lease.total_seconds() * 1000)
        keys = [self._counter, self._leases, self._expiries, self._entries, self._era_key]
        since = _since(self.oldest_waiting)
        args: list[str | bytes | int] = [self._holder, ttl, self._read, self._directory, since, self._era]
        return bool(await self._link.limit_time(self._renew(keys=keys, args=args)))

    async def _try_to_renew(self) -> None:
        try:
            await self.renew()
        except MemoryExtprocError as error:
            log.warning("lease.not_renewed", error=type(error).__name__)

    async def _keep_renewing(self) -> None:
        while True:
            await asyncio.sleep(self._lease.total_seconds() / 5)
            await contain_faults(self._try_to_renew)


async def _nothing() -> None:
    """Default of `watch`: no check."""


async def _by_nobody(_subject: str) -> None:
    """Default of `heard`: no cached data."""


def _since(oldest: OldestWaiting) -> str:
    """Encode for the register."""
    try:
        moment = oldest()
    except MemoryExtprocError:
        return _UNKNOWN
    return _NOTHING if moment is None else repr(moment.timestamp())


def _moment(since: str) -> datetime | None:
    return None if since == _UNKNOWN else datetime.fromtimestamp(float(since), UTC)
