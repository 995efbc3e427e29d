"""The journal in Redis, for several replicas: 64 streams by owner hash, each held by a single replica at a time.

The accepting replica stores a turn's messages at once. Only the holder of the owner's part extracts facts, in
order. If it dies or its store fails, its parts pass to other replicas with a higher fencing token, and its late
marks have no effect. Turns whose messages it had not stored arrive at the new holder after a grace period. As
durable as the server's persistence.

In a Redis Cluster: 16 shards by owner, each under a hash tag of its own, so that all masters share the work and no
script touches two slots. Each shard is a whole RedisJournal, with its own leases, places and dead letters. Older
versions keep the whole journal under a single tag. A cluster that has such a journal keeps it, so that replicas of
both versions can run side by side, until `memory-extproc learn spread`. A new cluster gets shards from its first
replica, and older versions then refuse it by the schema of its keys."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from typing import Any, Final, Self, TypeVar
from uuid import uuid4

import msgspec

from memory_extproc.coordination.redis_client import RedisLink
from memory_extproc.errors import MemoryExtprocError, PermanentError
from memory_extproc.journal.sqlite import Depth, JournalRow, TurnStage
from memory_extproc.model import DeadLetter, Owner, Turn, TurnOutcome, digest
from memory_extproc.observe.log import logger
from memory_extproc.ports import JournalEntry, Now
from memory_extproc.settings.paths import JournalSection

log = logger(__name__)

_LUA = files("memory_extproc.journal").joinpath("lua")
_AT_ONCE = 100  # turns per command: the server runs a single command at a time
_ERASED_AT_ONCE = 500
_ARRIVING = 200  # turns looked for at once
_USUAL = JournalSection()


@dataclass(frozen=True, slots=True)
class JournalSharing:
    """How replicas share the work."""

    parts: int = 64  # never changed for a journal that holds turns: an owner's part follows from it
    lease: timedelta = timedelta(seconds=10)  # a dead replica's parts pass to others after it
    # after it, any replica may store messages that the accepting replica has not
    grace: timedelta = timedelta(seconds=10)
    patience: timedelta = timedelta(seconds=10)  # with a store that does not work, until others take our parts
    learns: bool = True  # False: this replica stores its own turns' messages and takes no part


@dataclass(frozen=True, slots=True)
class Shard:
    """The place of a journal in a sharded journal; by default it stands alone."""

    tag: str = "journal"  # the hash tag of all keys, so that they lie in one slot of a cluster
    holder: str = ""  # the name of the whole journal
    elsewhere: Callable[[], int] = lambda: 0  # the unlearned turns of its other shards


@dataclass(slots=True)
class _Part:
    """A part of the journal that this replica holds."""

    token: str
    given: int = 0  # the place up to which arrivals were given


class RedisJournal:
    """Implements ports.Journal over *link*. Use within `async with`; leaving releases the parts.

    `max_turns` bounds unlearned turns of all replicas together, *max_dead* the dead letters."""

    def __init__(
        self,
        link: RedisLink,
        section: JournalSection = _USUAL,
        *,
        now: Now,
        prefix: str = "memory-extproc",
        max_dead: int = 1_000,
        sharing: JournalSharing = JournalSharing(),
        clock: Callable[[], float] = time.monotonic,
        store_failing_for: Callable[[], timedelta] = timedelta,
        shard: Shard = Shard(),
    ) -> None:
        self._store_failing_for, self._shard = store_failing_for, shard
        self.gave_up = False  # our parts, because the store does not work
        self._link, self._now, self._clock = link, now, clock
        self._prefix = f"{prefix}:{{{shard.tag}}}"
        self.turns = 0  # unlearned, as last seen
        self._section, self._max_dead, self._sharing = section, max_dead, sharing
        self._holder = shard.holder or uuid4().hex
        self._parts: dict[int, _Part] = {}
        self._renewed: float | None = None  # by *clock*
        self._renewing = asyncio.Lock()
        self._own: dict[int, int] = {}  # places that our own appends made in parts that we held → the part
        self._watched: dict[str, int] = {}  # turns that another replica is remembering → their part
        self._ready: list[str] = []  # turns that are to be given with the next arrivals
        self._scripts: dict[str, Any] = {}
        self._checked = False  # whether the server's durability was checked

    @property
    def _is_shard(self) -> bool:
        """Whether it belongs to a journal that logs for all of its shards."""
        return bool(self._shard.holder)

    @property
    def parts_held(self) -> int:
        return len(self._parts)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._parts:
            try:
                await self._hold(leaving=True)
            except MemoryExtprocError as error:  # the others take over when the lease has run out
                log.warning("journal.parts_not_given_back", error=type(error).__name__)

    async def check(self) -> None:
        """Raise the error that would prevent a write now."""
        await self._link.limit_time(self._link.client.set(f"{self._prefix}:check", 1))

    async def append(self, turn: Turn) -> TurnOutcome:
        outcome, place = await self.put(turn)
        part = self._part(turn.owner.key)
        # A turn in another's part arrives at that replica; if the part becomes ours, it arrives here.
        if part in self._parts and place > self._parts[part].given:
            self._own[place] = part
        return outcome

    async def put(self, turn: Turn) -> tuple[TurnOutcome, int]:
        """Append *turn* on nobody's behalf: it arrives like a turn of another replica. Returns its place, too."""
        part = self._part(turn.owner.key)
        values = (
            turn.id,
            turn.owner.key,
            part,
            turn.session.encode(),
            turn.at.timestamp(),
            digest(turn.answered),
            int(turn.last),
            msgspec.json.encode(turn),
            self._sharing.parts,
            self._section.max_turns - self._shard.elsewhere(),
            uuid4().hex,
        )
        append = self._register_once("append")
        stored, place, self.turns = await self._link.run_replicated(append, [self._prefix], values)
        return TurnOutcome(stored.decode()), int(place)

    async def pending(self, limit: int, *, after: str = "") -> Sequence[JournalRow]:
        places = [value for part in range(self._sharing.parts) for value in (part, int(after or 0))]
        return await self._get([row[0].decode() for row in await self._run("behind", limit, *places)])

    async def get(self, owner: Owner, ids: Sequence[str]) -> Sequence[JournalRow]:
        return [entry for entry in await self._get(ids) if entry.turn.owner == owner]

    async def _get(self, ids: Sequence[str]) -> Sequence[JournalRow]:
        entries: list[JournalRow] = []
        unreadable: list[bytes] = []
        for start in range(0, len(ids), _AT_ONCE):
            for row in await self._run("get", *ids[start : start + _AT_ONCE]):
                if int(row[2]) >= TurnStage.LEARNED:
                    continue
                if (entry := _entry(row)) is not None:
                    entries.append(entry)
                else:
                    unreadable.append(row[0])
        if unreadable:
            await self._run("unreadable", self._now().timestamp(), self._max_dead, *unreadable)
        return sorted(entries, key=lambda entry: int(entry.place))

    async def mark_stored(self, entries: Sequence[JournalEntry]) -> None:
        marks = [value for entry in entries for value in (entry.turn.id, entry.place)]
        if marks:
            await self._run("stored", self._now().timestamp(), *marks)

    async def mark_learned(self, entries: Sequence[JournalEntry]) -> None:
        await self._renew()
        marks: list[str | int] = []
        for entry in entries:
            part = self._part(entry.turn.owner.key)
            if part in self._parts:
                marks += [entry.turn.id, entry.place, part, self._parts[part].token]
        if marks:
            self.turns -= await self._run("learned", self._now().timestamp(), *marks)

    async def mark_failed(self, entry: JournalEntry, reason: str, *, dead: bool) -> None:
        await self._renew()
        part = self._part(entry.turn.owner.key)
        token = self._parts[part].token if part in self._parts else ""
        when, most = self._now().timestamp(), self._max_dead
        await self._run("failed", when, entry.turn.id, entry.place, part, token, reason[:200], int(dead), most)

    async def erase_learned(self, before: datetime) -> int:
        erased, more = 0, True
        while more:
            count = int(await self._run("erase_learned", before.timestamp(), _ERASED_AT_ONCE))
            erased, more = erased + count, count == _ERASED_AT_ONCE
        return erased

    async def erase_owner(self, owner: Owner) -> int:
        erased = 0
        while count := int(await self._run("erase", owner.key, _ERASED_AT_ONCE)):
            erased += count
        return erased

    async def erase(self, owner: Owner, turn_ids: Sequence[str]) -> int:
        erased = 0
        for start in range(0, len(turn_ids), _ERASED_AT_ONCE):
            some = turn_ids[start : start + _ERASED_AT_ONCE]
            erased += int(await self._run("erase", owner.key, 0, *some))
        return erased

    async def depth(self) -> Depth:
        self.turns, dead, oldest = await self._run("depth", self._sharing.parts)
        return Depth(self.turns, int(dead), _time(oldest) if oldest else None)

    async def of_owner(self, owner: Owner) -> AsyncIterator[JournalRow]:
        after: bytes | int = 0
        while rows := await self._run("of_owner", owner.key, after, _AT_ONCE):
            for row in rows:
                if (entry := _entry(row)) is not None:
                    yield entry
            after = rows[-1][1]

    async def dead(self, limit: int, *, after: str = "") -> Sequence[DeadLetter]:
        rows = await self._run("dead", after or 0, limit)
        return [
            DeadLetter(
                turn_id=id_.decode(),
                place=place.decode(),
                owner=owner.decode(),
                reason=reason.decode(),
                attempts=int(attempts),
                asked_at=_time(at),
                failed_at=_time(ended),
            )
            for id_, place, owner, reason, attempts, at, ended in rows
        ]

    async def retry(self, turn_ids: Sequence[str]) -> int:
        return int(await self._run("retry", *turn_ids))

    async def end(self, owner: Owner, session: str) -> None:
        await self._run("end", owner.key, session.encode(), int(self.holds(owner)))

    def holds(self, owner: Owner) -> bool:
        return not self._has_lapsed() and self._part(owner.key) in self._parts

    def _has_lapsed(self) -> bool:
        return self._renewed is None or self._clock() - self._renewed >= self._sharing.lease.total_seconds()

    async def shares(self) -> Sequence[int]:
        """The number of parts of each live replica, in ascending order."""
        return sorted((await self.shares_by_holder()).values())

    async def shares_by_holder(self) -> Counter[str]:
        return Counter({holder.decode(): int(count) for holder, count in await self._run("shares")})

    async def arrivals(self, limit: int) -> Sequence[JournalRow]:
        await self._renew()
        if not self._is_shard:
            await self.warn_if_volatile()
        await self._look_at_watched()
        parts = self._parts
        if parts:
            self._ready += [id_.decode() for id_ in await self._run("ended", *parts)]
        while not self._ready and parts:
            behind = [value for part, held in parts.items() for value in (part, held.given)]
            rows = await self._run("behind", min(limit, _ARRIVING), *behind)
            if not rows:
                break
            for row in rows:
                self._note_arrival(parts, row[0].decode(), *map(int, row[1:]))
        entries = await self._get(self._ready[:limit])
        del self._ready[:limit]
        return entries

    async def warn_if_volatile(self) -> None:
        """Log, once, that the server may lose what it is given."""
        if not self._checked:
            self._checked = True
            for fault in (await self._link.keeping()).faults:
                log.warning("journal.volatile", fault=fault)

    def _note_arrival(
        self, parts: Mapping[int, _Part], id_: str, place: int, part: int, stage: int, age: int
    ) -> None:
        parts[part].given = place
        if parts[part] is not self._parts.get(part):  # lost in the meantime: the new holder processes it
            return
        if self._own.pop(place, None) is None:
            if self._ours_to_do(stage, age):
                self._ready.append(id_)
            else:
                self._watched[id_] = part

    async def _look_at_watched(self) -> None:
        """Turns under watch become ready once they are stored or the grace period is over."""
        self._watched = {id_: part for id_, part in self._watched.items() if part in self._parts}
        ids = list(self._watched)
        for start in range(0, len(ids), _ERASED_AT_ONCE):
            some = ids[start : start + _ERASED_AT_ONCE]
            found = {row[0].decode(): row for row in await self._run("look", *some)}
            for id_ in some:
                row = found.get(id_)
                if row is not None and not self._ours_to_do(int(row[2]), int(row[3])):
                    continue
                if self._watched.pop(id_, None) is not None and row is not None:
                    self._ready.append(id_)

    def _ours_to_do(self, stage: int, age: int) -> bool:
        return stage != TurnStage.WAITING or age >= self._sharing.grace.total_seconds() * 1000

    async def _renew(self) -> None:
        """Renew leases well before they expire."""
        async with self._renewing:
            due = self._sharing.lease.total_seconds() / 3
            if self._renewed is None or self._clock() - self._renewed >= due:
                await self._hold()

    async def _hold(self, *, leaving: bool = False) -> None:
        asked = self._clock()
        milliseconds = int(self._sharing.lease.total_seconds() * 1000)
        failing_for = self._store_failing_for()
        gives_up = failing_for >= (self._sharing.patience if self._parts else timedelta(microseconds=1))
        holds_none = int(leaving or gives_up or not self._sharing.learns)
        rows = await self._run("hold", self._holder, milliseconds, self._sharing.parts, holds_none)
        if gives_up and not (self.gave_up or self._is_shard):
            log.warning("journal.parts_given_up", held=len(self._parts))
        self.gave_up = gives_up
        tokens = {int(part): token.decode() for part, token in rows}
        # Without a lease we passed turns by as another's. A part that had another holder, or none for a while,
        # starts over: all its turns arrive again.
        before = {} if self._has_lapsed() else self._parts
        self._parts = {
            part: before[part] if part in before and before[part].token == token else _Part(token)
            for part, token in tokens.items()
        }
        self._renewed = None if leaving else asked
        kept = {part for part, held in before.items() if self._parts.get(part) is held}
        self._own = {place: part for place, part in self._own.items() if part in kept}
        if (
            kept != self._parts.keys() or kept != before.keys()
        ) and not self._shard.holder:  # else the whole journal logs it
            log.info("journal.parts", held=len(self._parts))

    def _part(self, owner_key: str) -> int:
        return int(owner_key[:8], 16) % self._sharing.parts

    async def _run(self, name: str, *values: object) -> Any:
        return await self._link.limit_time(self._register_once(name)(keys=[self._prefix], args=values))

    def _register_once(self, name: str) -> Any:
        """The atomic operation *name* of `lua/`, behind the tools that all of them share."""
        if name not in self._scripts:
            script = "".join(_LUA.joinpath(f"{part}.lua").read_text() for part in ("tools", name))
            self._scripts[name] = self._link.client.register_script(script)
        return self._scripts[name]


def _entry(row: Sequence[bytes]) -> JournalRow | None:
    """Decode a row; None if it is invalid."""
    _, place, stage, replaced, attempts, last, body = row
    try:
        turn = msgspec.json.decode(body, type=Turn)
    except msgspec.MsgspecError:
        return None
    if last == b"1":
        turn = replace(turn, last=True)
    return JournalRow(turn, place.decode(), TurnStage(int(stage)).state, replaced == b"1", int(attempts))


def _time(seconds: bytes) -> datetime:
    return datetime.fromtimestamp(float(seconds), UTC)


# --- shards ------------------------------------------------------------------------------------------


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

    `max_turns` bounds unlearned turns approximately: appends of other replicas to other shards count from the next
    look at the depth on. *max_dead* bounds the dead letters of a shard."""

    def __init__(
        self,
        link: RedisLink,
        section: JournalSection = _USUAL,
        *,
        now: Now,
        prefix: str = "memory-extproc",
        max_dead: int = 1_000,
        sharing: JournalSharing = JournalSharing(),
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
                section,
                now=now,
                prefix=prefix,
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
