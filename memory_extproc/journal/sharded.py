"""The journal in a Redis Cluster: 16 shards by owner, each under a hash tag of its own, so that all masters share
the work and no script touches two slots.

Each shard is a whole RedisJournal, with its own leases, places and dead letters. Older versions keep the whole
journal under a single tag. A cluster that has such a journal keeps it, so that replicas of both versions can run
side by side, until `memory-extproc learn spread`. A new cluster gets shards from its first replica, and older
versions then refuse it by the schema of its keys."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Final, Self, TypeVar
from uuid import uuid4

from memory_extproc.coordination.redis_client import RedisLink
from memory_extproc.errors import PermanentError
from memory_extproc.journal.redis import JournalSharing, RedisJournal, Shard
from memory_extproc.journal.sqlite import Depth, JournalRow
from memory_extproc.model import DeadLetter, Owner, Turn, TurnOutcome
from memory_extproc.observe.log import logger
from memory_extproc.ports import JournalEntry, Now

log = logger(__name__)
T = TypeVar("T")

SHARDS: Final = 16  # never changed for a journal that holds turns: an owner's shard follows from it
_MOVED_AT_ONCE = 100
_SHARDED_FROM = 2  # the schema of keys from which a program knows shards

# KEYS: the mark that this journal is sharded, and two keys that a journal under a single tag has from its first
# turn or lease on. ARGV: whether it is to be sharded in any case. Returns whether it is.
_CHOOSE: Final = """
if redis.call('EXISTS', KEYS[1]) == 1 then return 1 end
if ARGV[1] ~= '1' and redis.call('EXISTS', KEYS[2], KEYS[3]) > 0 then return 0 end
redis.call('SET', KEYS[1], 1)
return 1
"""


class ShardedJournal:
    """Implements ports.Journal over *link* to a cluster. Use within `async with`; leaving releases the parts.

    *max_turns* bounds unlearned turns approximately: appends of other replicas to other shards count from the next
    look at the depth on. *max_dead* bounds the dead letters of a shard."""

    def __init__(
        self,
        link: RedisLink,
        *,
        now: Now,
        prefix: str = "memory-extproc",
        max_turns: int = 100_000,
        max_dead: int = 1_000,
        sharing: JournalSharing = JournalSharing(),  # noqa: B008
        clock: Callable[[], float] = time.monotonic,
        store_failing_for: Callable[[], timedelta] = timedelta,
    ) -> None:
        self._link, self._sharing, self._clock = link, sharing, clock
        self._choose_script = link.client.register_script(_CHOOSE)
        self._keys = [f"{prefix}:{{journal}}:{name}" for name in ("shards", "seq", "tokens")]
        self._sharded = False
        self._chosen: float | None = None  # when we last asked, by *clock*
        self._drained = False  # nothing waits under the single tag
        self._logged = 0  # all parts, as last logged
        self._gave_up = False
        holder = uuid4().hex

        def make(tag: str) -> RedisJournal:
            return RedisJournal(
                link,
                now=now,
                prefix=prefix,
                max_turns=max_turns,
                max_dead=max_dead,
                sharing=sharing,
                clock=clock,
                store_failing_for=store_failing_for,
                shard=Shard(tag, holder, lambda: sum(one.turns for one in self._all) - self._by_tag[tag].turns),
            )

        self._by_tag = {tag: make(tag) for tag in ["journal", *(f"journal:{number}" for number in range(SHARDS))]}
        self._all = list(self._by_tag.values())
        self._single, *self._shards = self._all

    @property
    def parts_held(self) -> int:
        return sum(one.parts_held for one in self._all)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(one.__aexit__() for one in self._all))

    async def check(self) -> None:
        """Raise the error that would prevent a write now, to any shard."""
        await self._ask(lambda one: one.check())

    async def append(self, turn: Turn) -> TurnOutcome:
        return await (await self._of(turn.owner)).append(turn)

    async def pending(self, limit: int, *, after: str = "") -> Sequence[JournalRow]:
        pages = await self._ask(lambda one: one.pending(limit, after=after))
        return sorted((entry for page in pages for entry in page), key=lambda entry: int(entry.place))[:limit]

    async def get(self, owner: Owner, ids: Sequence[str]) -> Sequence[JournalRow]:
        return await (await self._of(owner)).get(owner, ids)

    async def mark_stored(self, entries: Sequence[JournalEntry]) -> None:
        await self._mark(entries, lambda one, some: one.mark_stored(some))

    async def mark_learned(self, entries: Sequence[JournalEntry]) -> None:
        await self._mark(entries, lambda one, some: one.mark_learned(some))

    async def _mark(
        self,
        entries: Sequence[JournalEntry],
        mark: Callable[[RedisJournal, Sequence[JournalEntry]], Awaitable[None]],
    ) -> None:
        by_shard: defaultdict[RedisJournal, list[JournalEntry]] = defaultdict(list)
        for entry in entries:
            by_shard[await self._of(entry.turn.owner)].append(entry)
        await asyncio.gather(*(mark(one, some) for one, some in by_shard.items()))

    async def mark_failed(self, entry: JournalEntry, reason: str, *, dead: bool) -> None:
        await (await self._of(entry.turn.owner)).mark_failed(entry, reason, dead=dead)

    async def erase_learned(self, before: datetime) -> int:
        return sum(await self._ask(lambda one: one.erase_learned(before)))

    async def erase_owner(self, owner: Owner) -> int:
        return sum([await one.erase_owner(owner) for one in await self._both(owner)])

    async def erase(self, owner: Owner, turn_ids: Sequence[str]) -> int:
        return sum([await one.erase(owner, turn_ids) for one in await self._both(owner)])

    async def of_owner(self, owner: Owner) -> AsyncIterator[JournalRow]:
        for one in await self._both(owner):
            async for entry in one.of_owner(owner):
                yield entry

    async def end(self, owner: Owner, session: str) -> None:
        for one in await self._both(owner):
            await one.end(owner, session)

    async def depth(self) -> Depth:
        found = await self._ask(lambda one: one.depth())
        oldest = min((one.oldest for one in found if one.oldest is not None), default=None)
        return Depth(sum(one.turns for one in found), sum(one.dead for one in found), oldest)

    async def dead(self, limit: int, *, after: str = "") -> Sequence[DeadLetter]:
        pages = await self._ask(lambda one: one.dead(limit, after=after))
        return sorted((letter for page in pages for letter in page), key=lambda letter: int(letter.place))[:limit]

    async def retry(self, turn_ids: Sequence[str]) -> int:
        count = sum(await self._ask(lambda one: one.retry(turn_ids)))
        if self._sharded:
            await self._drain()
        return count

    async def arrivals(self, limit: int) -> Sequence[JournalRow]:
        await self._choose()
        await self._single.warn_if_volatile()
        if self._sharded and not self._drained:
            await self._drain()
        shards = self._shards if self._sharded else [self._single]
        share = -(-limit // len(shards))
        found = await asyncio.gather(*(one.arrivals(share) for one in shards), return_exceptions=True)
        self._report_parts(gave_up=any(one.gave_up for one in shards))
        # A shard gives its arrivals once, so the fault of another must not cost them: it comes again.
        arrived = [entry for page in found if not isinstance(page, BaseException) for entry in page]
        for page in found:
            if isinstance(page, BaseException) and not arrived:
                raise page
        return arrived

    def _report_parts(self, *, gave_up: bool) -> None:
        held = self.parts_held
        if gave_up and not self._gave_up:
            log.warning("journal.parts_given_up", held=self._logged)
        if held != self._logged:
            log.info("journal.parts", held=held)
        self._logged, self._gave_up = held, gave_up

    def holds(self, owner: Owner) -> bool:
        return self._at(owner).holds(owner)

    async def shares(self) -> Sequence[int]:
        """The number of parts of each live replica, in ascending order: 64 of each shard."""
        by_shard = await self._ask(lambda one: one.shares_by_holder())
        return sorted(sum(by_shard, Counter()).values())

    async def spread(self) -> int:
        """Shard a journal that lies under a single tag, and move its waiting turns; returns their number.

        For a command, while no replica runs. Dead letters of before move when they are retried."""
        if self._sharded or await self._choose():
            raise PermanentError("the journal lies under 16 hash tags already")
        waiting = (await self._single.depth()).turns
        await self._choose(anyway=True)
        await self._drain()
        return waiting

    async def _choose(self, *, anyway: bool = False) -> bool:
        """Learn whether the journal is sharded, at most each third of a lease. A replica that has seen it sharded
        says so again to a cluster that lost the mark."""
        due = self._sharing.lease.total_seconds() / 3
        if self._chosen is None or self._clock() - self._chosen >= due or anyway:
            asked = self._clock()
            choose = self._choose_script(keys=self._keys, args=[int(self._sharded or anyway)])
            if await self._link.limit_time(choose) and not self._sharded:
                await self._link.require_schema(_SHARDED_FROM)
                self._sharded = True
            self._chosen = asked
        return self._sharded

    async def _drain(self) -> None:
        """Move waiting turns from under the single tag, left by `spread` or by an older version that ran meanwhile.

        Each turn arrives at the holder of its part."""
        while entries := await self._single.pending(_MOVED_AT_ONCE):
            for entry in entries:
                outcome, _ = await self._at(entry.turn.owner).put(entry.turn)
                if outcome is TurnOutcome.JOURNAL_FULL:
                    return
                await self._single.erase(entry.turn.owner, [entry.turn.id])
        self._drained = True

    async def _ask(self, call: Callable[[RedisJournal], Awaitable[T]]) -> list[T]:
        """Ask the journal under the single tag, and all shards if there are any."""
        await self._choose()
        return await asyncio.gather(*map(call, self._all if self._sharded else [self._single]))

    async def _both(self, owner: Owner) -> Sequence[RedisJournal]:
        """Everywhere a turn of *owner* can be."""
        there = await self._of(owner)
        return [there] if there is self._single else [self._single, there]

    async def _of(self, owner: Owner) -> RedisJournal:
        await self._choose()
        return self._at(owner)

    def _at(self, owner: Owner) -> RedisJournal:
        # The part within the shard follows from other digits.
        return self._shards[int(owner.key[8:16], 16) % SHARDS] if self._sharded else self._single
