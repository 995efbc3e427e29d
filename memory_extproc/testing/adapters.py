"""In-memory adapters for tests and demonstrations: store, journal, coordination and ledger.

Each passes the contract suite of its port. `Weather` makes the store fail as a real store does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from memory_extproc.coordination.sqlite import check_registered
from memory_extproc.errors import PermanentError, TransientError
from memory_extproc.journal.sqlite import Depth, JournalRow, TurnStage
from memory_extproc.model import (
    Conditions,
    DeadLetter,
    Embedded,
    JournalState,
    LedgerJob,
    LedgerMarks,
    Memory,
    MemoryHeads,
    Owner,
    Scope,
    SearchResult,
    Turn,
    TurnOutcome,
    Vector,
)
from memory_extproc.ports import Changes, JournalEntry, Now
from memory_extproc.store.milvus.options import CONTENT_BYTES
from memory_extproc.store.milvus.rows import check_owner, check_rows, check_vector, fit, searchable
from memory_extproc.store.resident import nearest_of


@dataclass(slots=True)
class Weather:
    """Faults of a store. Change it while the store is in use."""

    down: bool = False  # every call raises TransientError
    lagging: bool = False  # reads that are not fresh miss writes made since `settle`
    refuse: str = ""  # every call raises PermanentError with this text
    calls: list[str] = field(default_factory=list)  # the operations asked for, in order
    _gates: dict[str, asyncio.Event] = field(default_factory=dict)

    def hold(self, operation: str) -> asyncio.Event:
        """Calls of *operation* wait until the returned event is set."""
        return self._gates.setdefault(operation, asyncio.Event())

    async def pass_through(self, operation: str) -> None:
        self.calls.append(operation)
        if operation in self._gates:
            await self._gates[operation].wait()
        if self.down:
            raise TransientError("the store is down")
        if self.refuse:
            raise PermanentError(self.refuse)


class InMemoryStore:
    """A MemoryStore in a dictionary. A test changes *weather* to make it fail."""

    def __init__(
        self,
        dimension: int,
        *,
        now: Now,
        weather: Weather | None = None,
        lags: bool = False,
        finds_words: bool = False,
    ) -> None:
        self.weather = weather or Weather()
        self._dimension = dimension
        self._now = now
        self._lags = lags
        self._finds_words = finds_words
        self._rows: dict[Owner, dict[str, Embedded]] = {}
        self._settled: dict[Owner, dict[str, Embedded]] = {}

    @property
    def lags(self) -> bool:
        return self._lags

    @property
    def finds_words(self) -> bool:
        return self._finds_words

    def settle(self) -> None:
        """Make all writes so far visible to every read."""
        self._settled = {owner: dict(rows) for owner, rows in self._rows.items()}

    async def open(self) -> None:
        await self.weather.pass_through("open")

    async def close(self) -> None:
        return

    async def put(self, owner: Owner, rows: Sequence[Embedded]) -> None:
        check_rows(owner, rows, self._dimension)
        await self.weather.pass_through("put")
        self._rows.setdefault(owner, {}).update((row.memory.id, fit(row, CONTENT_BYTES)) for row in rows)

    async def get(self, owner: Owner, ids: Sequence[str]) -> Sequence[Memory]:
        check_owner(owner)
        await self.weather.pass_through("get")
        return [row.memory for row in self._choose(owner, ids)]

    async def fetch(self, owner: Owner, ids: Sequence[str]) -> Sequence[Embedded]:
        check_owner(owner)
        await self.weather.pass_through("fetch")
        return self._choose(owner, ids)

    async def nearest(self, owner: Owner, to: Vector, limit: int, scope: Scope) -> SearchResult:
        check_vector(to, self._dimension)
        check_owner(owner)
        await self.weather.pass_through("nearest")
        rows = self._visible(owner, fresh=False)
        found = nearest_of(rows, to, limit, scope, self._now())
        return SearchResult(found=tuple(found), total=None, path="store")

    async def search_text(self, owner: Owner, text: str, limit: int, scope: Scope) -> Sequence[Embedded]:
        check_owner(owner)
        await self.weather.pass_through("worded")
        asked = set(searchable(text).split())
        if not self._finds_words or limit <= 0:
            return []
        now = self._now()
        shared = {
            row.memory.id: (len(asked & set(searchable(row.memory.content).split())), row)
            for row in self._visible(owner, fresh=False)
            if scope.holds(row.memory) and row.memory.recallable(now)
        }
        ordered = sorted(shared.items(), key=lambda one: (-one[1][0], one[0]))
        return [row for _, (count, row) in ordered if count][:limit]

    async def pages(self, owner: Owner, size: int, *, fresh: bool) -> AsyncIterator[Sequence[Embedded]]:
        check_owner(owner)
        await self.weather.pass_through("pages")
        rows = self._visible(owner, fresh=fresh)
        for start in range(0, len(rows), size):
            if start:
                await self.weather.pass_through("page")
            yield rows[start : start + size]

    async def heads(self, owner: Owner, chosen: Conditions) -> MemoryHeads:
        check_owner(owner)
        await self.weather.pass_through("heads")
        return MemoryHeads.of(
            row.memory.head for row in self._visible(owner, fresh=True) if chosen.holds(row.memory)
        )

    async def owners(self) -> AsyncIterator[Sequence[Owner]]:
        await self.weather.pass_through("owners")
        yield [owner for owner, rows in self._rows.items() if rows]

    async def delete(self, owner: Owner, ids: Sequence[str]) -> None:
        check_owner(owner)
        await self.weather.pass_through("delete")
        held = self._rows.get(owner, {})
        for one in ids:
            held.pop(one, None)

    async def delete_owner(self, owner: Owner) -> None:
        check_owner(owner)
        await self.weather.pass_through("delete_owner")
        self._rows.pop(owner, None)

    async def count(self, owner: Owner) -> int:
        check_owner(owner)
        await self.weather.pass_through("count")
        return len(self._rows.get(owner, {}))

    def _choose(self, owner: Owner, ids: Sequence[str]) -> list[Embedded]:
        held = self._rows.get(owner, {})
        return [held[one] for one in dict.fromkeys(ids) if one in held]

    def _visible(self, owner: Owner, *, fresh: bool) -> list[Embedded]:
        rows = self._settled if self.weather.lagging and not fresh else self._rows
        return list(rows.get(owner, {}).values())


# The journal.


@dataclass(slots=True)
class _Row:
    entry: JournalRow
    stage: TurnStage
    ended: datetime
    reason: str = ""


class InMemoryJournal:
    """As SqliteJournal, bounds included. Every call raises *fault* if it is set."""

    def __init__(self, *, now: Now, max_turns: int = 100_000, max_dead: int = 1_000) -> None:
        self._now = now
        self._max_turns = max_turns
        self._max_dead = max_dead
        self._rows: dict[str, _Row] = {}  # by turn id, in the order of their places
        self._last_place = 0
        self._given = 0  # the place up to which arrivals were given
        self._own: set[str] = set()  # places that append made
        self.fault: Exception | None = None

    def reopen(self) -> None:
        """As if another process took it up: everything not learned yet arrives."""
        self._given, self._own = 0, set()

    async def append(self, turn: Turn) -> TurnOutcome:
        self._check()
        there = self._rows.get(turn.id)
        if there and there.entry.turn.answered == turn.answered and there.stage is not TurnStage.DEAD:
            return TurnOutcome.DUPLICATE
        if (there is None or there.stage >= TurnStage.LEARNED) and len(self._pending()) >= self._max_turns:
            return TurnOutcome.JOURNAL_FULL
        self._own.add(self._put(turn, replaced=there is not None))
        return TurnOutcome.JOURNALLED

    def _put(self, turn: Turn, *, replaced: bool) -> str:
        """At a new place at the end."""
        self._rows.pop(turn.id, None)
        self._last_place += 1
        entry = JournalRow(turn, f"{self._last_place}", replaced=replaced)
        self._rows[turn.id] = _Row(entry, TurnStage.WAITING, turn.at)
        return entry.place

    async def pending(self, limit: int, *, after: str = "") -> Sequence[JournalRow]:
        self._check()
        return [entry for entry in self._pending() if int(entry.place) > int(after or 0)][:limit]

    async def get(self, owner: Owner, ids: Sequence[str]) -> Sequence[JournalRow]:
        self._check()
        return [entry for entry in self._pending() if entry.turn.owner == owner and entry.turn.id in set(ids)]

    async def mark_stored(self, entries: Sequence[JournalEntry]) -> None:
        for row in self._current(entries):
            row.stage = TurnStage.STORED
            row.entry = replace(row.entry, state=JournalState.STORED, attempts=0)

    async def mark_learned(self, entries: Sequence[JournalEntry]) -> None:
        for row in self._current(entries):
            row.stage, row.ended = TurnStage.LEARNED, self._now()

    async def mark_failed(self, entry: JournalEntry, reason: str, *, dead: bool) -> None:
        for row in self._current([entry]):
            row.entry = replace(row.entry, attempts=row.entry.attempts + 1)
            row.reason, row.ended = reason, self._now()
            row.stage = TurnStage.DEAD if dead else row.stage
        letters = [id_ for id_, row in self._rows.items() if row.stage is TurnStage.DEAD]
        for id_ in letters[: max(0, len(letters) - self._max_dead)]:
            del self._rows[id_]

    async def erase_learned(self, before: datetime) -> int:
        self._check()
        return self._erase(
            [i for i, row in self._rows.items() if row.stage is TurnStage.LEARNED and row.ended < before]
        )

    async def erase_owner(self, owner: Owner) -> int:
        self._check()
        return self._erase([i for i, row in self._rows.items() if row.entry.turn.owner == owner])

    async def depth(self) -> Depth:
        self._check()
        pending = self._pending()
        dead = sum(row.stage is TurnStage.DEAD for row in self._rows.values())
        return Depth(len(pending), dead, pending[0].turn.at if pending else None)

    async def of_owner(self, owner: Owner) -> AsyncIterator[JournalRow]:
        self._check()
        for row in [row for row in self._rows.values() if row.entry.turn.owner == owner]:
            yield replace(row.entry, state=row.stage.state)

    async def erase(self, owner: Owner, turn_ids: Sequence[str]) -> int:
        self._check()
        rows = {id_: self._rows[id_] for id_ in turn_ids if id_ in self._rows}
        return self._erase([id_ for id_, row in rows.items() if row.entry.turn.owner == owner])

    async def dead(self, limit: int, *, after: str = "") -> Sequence[DeadLetter]:
        self._check()
        rows = [row for row in self._rows.values() if row.stage is TurnStage.DEAD]
        return [_letter(row) for row in rows if int(row.entry.place) > int(after or 0)][:limit]

    async def retry(self, turn_ids: Sequence[str]) -> int:
        self._check()
        wanted = set(turn_ids)
        rows = [row for id_, row in self._rows.items() if id_ in wanted and row.stage is TurnStage.DEAD]
        for row in rows:
            self._put(row.entry.turn, replaced=row.entry.replaced)
        return len(rows)

    async def arrivals(self, limit: int) -> Sequence[JournalRow]:
        self._check()
        arrived = [
            entry for entry in self._pending() if int(entry.place) > self._given and entry.place not in self._own
        ][:limit]
        if arrived:
            self._given = int(arrived[-1].place)
        return arrived

    def holds(self, owner: Owner) -> bool:  # noqa: ARG002 - one replica: every owner's turns
        return True

    async def end(self, owner: Owner, session: str) -> None:
        self._check()
        for row in [row for row in self._rows.values() if row.stage < TurnStage.LEARNED]:
            turn = row.entry.turn
            if turn.owner == owner and session in {"", turn.session}:
                row.entry = replace(row.entry, turn=replace(turn, last=True))

    def _check(self) -> None:
        if self.fault is not None:
            raise self.fault

    def _pending(self) -> list[JournalRow]:
        return [row.entry for row in self._rows.values() if row.stage < TurnStage.LEARNED]

    def _current(self, entries: Sequence[JournalEntry]) -> list[_Row]:
        self._check()
        rows = [(self._rows.get(entry.turn.id), entry.place) for entry in entries]
        return [row for row, place in rows if row and row.stage < TurnStage.LEARNED and row.entry.place == place]

    def _erase(self, ids: Sequence[str]) -> int:
        for id_ in ids:
            del self._rows[id_]
        return len(ids)


def _letter(row: _Row) -> DeadLetter:
    turn = row.entry.turn
    return DeadLetter(
        turn_id=turn.id,
        place=row.entry.place,
        owner=turn.owner.key,
        reason=row.reason,
        attempts=row.entry.attempts,
        asked_at=turn.at,
        failed_at=row.ended,
    )


# Coordination.

_RecordKey = tuple[str, Owner, str]


class InMemoryCoordination:
    """Users of one object see each other's writes, as replicas do that share it. Expired records and leases go when
    they are touched. A test may read and damage *records*."""

    def __init__(self, now: Now) -> None:
        self._now = now
        self._versions: dict[Owner, int] = {}
        self._changes: dict[Owner, dict[int, Sequence[str] | None]] = {}
        self._epochs: dict[Owner, int] = {}
        self.records: dict[_RecordKey, tuple[bytes, datetime]] = {}
        self._leases: dict[str, tuple[str, datetime]] = {}

    async def version(self, owner: Owner) -> int:
        return self._versions.get(owner, 0)

    async def bump(self, owner: Owner, changed: Sequence[str] | None = None) -> int:
        version = self._versions[owner] = self._versions.get(owner, 0) + 1
        self._changes.setdefault(owner, {})[version] = changed
        return version

    async def changes(self, owner: Owner, since: int) -> Changes | None:
        version = self._versions.get(owner, 0)
        made = self._changes.get(owner, {})
        written = [made.get(number) for number in range(since + 1, version + 1)]
        if not written or None in written:
            return None
        return Changes(version, frozenset(one for ids in written for one in ids or ()))

    async def epoch(self, owner: Owner) -> int:
        return self._epochs.get(owner, 0)

    async def advance_epoch(self, owner: Owner) -> int:
        self._epochs[owner] = self._epochs.get(owner, 0) + 1
        return self._epochs[owner]

    async def get_record(self, kind: str, owner: Owner, key: str) -> bytes | None:
        check_registered([kind])
        return self._live((kind, owner, key))

    async def find_records(self, kind: str, owner: Owner, keys: Sequence[str]) -> Mapping[str, bytes]:
        found = {key: await self.get_record(kind, owner, key) for key in keys}
        return {key: value for key, value in found.items() if value is not None}

    async def put_record(self, kind: str, owner: Owner, key: str, value: bytes, ttl: timedelta) -> None:
        check_registered([kind])
        self.records[kind, owner, key] = (value, self._now() + ttl)

    async def replace_record(
        self, kind: str, owner: Owner, key: str, old: bytes | None, new: bytes, ttl: timedelta
    ) -> bool:
        check_registered([kind])
        # No await between look and write: within one event loop this is the swap.
        if self._live((kind, owner, key)) != old:
            return False
        self.records[kind, owner, key] = (new, self._now() + ttl)
        return True

    async def delete_records(self, owner: Owner, kinds: Sequence[str] | None = None) -> None:
        check_registered(kinds or ())
        for key in [key for key in self.records if key[1] == owner and (kinds is None or key[0] in kinds)]:
            del self.records[key]

    async def acquire(self, name: str, holder: str, ttl: timedelta) -> bool:
        held, now = self._leases.get(name), self._now()
        if held is not None and held[0] != holder and now < held[1]:
            self._leases[name] = (held[0], min(held[1], now + ttl))  # the clock may have been set back
            return False
        self._leases[name] = (holder, now + ttl)
        return True

    async def release(self, name: str, holder: str) -> None:
        held = self._leases.get(name)
        if held is not None and held[0] == holder:
            del self._leases[name]

    def _live(self, key: _RecordKey) -> bytes | None:
        record = self.records.get(key)
        if record is None:
            return None
        value, expires = record
        if self._now() < expires:
            return value
        del self.records[key]
        return None


# The ledger of forgets.


class InMemoryLedger:
    """Users of one object are replicas that share it. Every call raises *fault* if it is set. A test may read
    *jobs*."""

    def __init__(self) -> None:
        self.fault: Exception | None = None
        self.jobs: dict[str, LedgerJob] = {}
        self._cuts: dict[str, list[bytes]] = {}
        self._items: dict[str, dict[bytes, float]] = {}

    async def key(self) -> bytes:
        self._check()
        return b"a key that holds for one process"[:32]

    async def write(
        self, job: LedgerJob, *, cut: bytes | None = None, items: Sequence[bytes] = (), at: float = 0.0
    ) -> None:
        self._check()
        self.jobs[job.id] = job
        cuts = self._cuts.setdefault(job.subject, [])
        if cut is not None and cut not in cuts:
            cuts.append(cut)
        known = self._items.setdefault(job.subject, {})
        known.update({item: max(at, known.get(item, at)) for item in items})

    async def job(self, job_id: str) -> LedgerJob | None:
        self._check()
        return self.jobs.get(job_id)

    async def list_unfinished(self) -> Sequence[LedgerJob]:
        self._check()
        return [job for job in self.jobs.values() if job.open]

    async def marks(self, subject: str) -> LedgerMarks:
        self._check()
        shut = any(job.shut for job in self.jobs.values() if job.subject == subject)
        return LedgerMarks(tuple(self._cuts.get(subject, ())), dict(self._items.get(subject, {})), shut)

    def _check(self) -> None:
        if self.fault is not None:
            raise self.fault
