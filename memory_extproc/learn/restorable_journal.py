"""A shared journal whose turns outlive it: a Redis that was wiped, or went back to an older state.

A turn that the journal took is copied to this replica's data directory until its messages are stored, because
until then no other place need have it. The copies are files of the same form as the intake log, so they survive
`kill -9`. When the journal is found to have lost its data, the turns are appended again with the same ids: a turn
that the journal still knows is not learned twice. Forget marks apply to them as to all turns in the journal."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Self

import msgspec

from memory_extproc.concurrency import contain_faults
from memory_extproc.errors import MemoryExtprocError, PermanentError
from memory_extproc.learn.intake_log import IntakeLog, LogKind, LogRecord
from memory_extproc.model import JournalState, Owner, Turn, TurnOutcome, digest
from memory_extproc.observe.log import logger
from memory_extproc.ports import Journal, JournalEntry

log = logger(__name__)

UNSTORED = "unstored"  # the directory, in the data directory
_LOOK = 1.0  # seconds between two looks at the journal
_REVIEW = 5.0  # seconds after which a copy is looked for in the journal: others may have stored its turn
_REVIEWED_AT_ONCE = 50
_RETURNED_AT_ONCE = 5_000


@dataclass(frozen=True, slots=True)
class _Copy:
    record: LogRecord
    answer: str  # digest: the turn may be replaced by one with another answer
    reviewed: float  # by the clock


class RestorableJournal:
    """Implements ports.Journal over *journal*, which several replicas share. Call `load` before anything else.
    Leaving drops the copies, because the journal has their turns, unless it may have lost them.

    *confirm* raises MemoryExtprocError unless the journal still has all that it was given before the call. A turn
    beyond the limits of *copies* has no copy, and is lost with the journal."""

    def __init__(
        self,
        journal: Journal,
        copies: IntakeLog,
        confirm: Callable[[], Awaitable[object]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._journal, self._copies, self._confirm, self._clock = journal, copies, confirm, clock
        self._kept: dict[str, _Copy] = {}  # by turn id, in the order of the next review
        self._lacking: dict[str, None] = {}  # turns that the journal may lack since a loss, the next one first
        self._losses = 0
        self._returned: defaultdict[Owner, list[str]] = defaultdict(list)  # put back, not given as arrivals yet
        self._looked = float("-inf")
        # Unchanged:
        self.pending, self.get, self.holds, self.end = journal.pending, journal.get, journal.holds, journal.end
        self.mark_learned, self.mark_failed = journal.mark_learned, journal.mark_failed
        self.erase_learned, self.depth = journal.erase_learned, journal.depth
        self.dead, self.retry = journal.dead, journal.retry

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            if self._kept:
                await self._confirm()
        except MemoryExtprocError:
            self.note_loss()
        self._discard([turn_id for turn_id in self._kept if turn_id not in self._lacking])

    def load(self) -> None:
        """Take up the copies that an earlier process left."""
        for record in self._copies.take_left(LogKind.TURN):
            if (turn := self._read(record)) is not None:
                self._keep(turn, record)

    def oldest_lacking(self) -> datetime | None:
        """The time of the oldest turn that the journal may lack: a forget must wait for it."""
        return min((self._kept[one].record.at for one in self._lacking if one in self._kept), default=None)

    def note_loss(self) -> None:
        """The journal may lack every turn that is not stored."""
        self._losses += 1
        ordered = sorted(self._kept, key=lambda one: self._kept[one].record.number)
        self._lacking = dict.fromkeys(ordered)

    def review_soon(self, is_meant: Callable[[Owner], bool]) -> None:
        """Review the copies of the owners for whom *is_meant* before all others: a forget may have erased them."""
        owners = {owner for owner in {copy.record.owner for copy in self._kept.values()} if is_meant(owner)}
        if owners:
            theirs = {one: copy for one, copy in self._kept.items() if copy.record.owner in owners}
            others = {one: copy for one, copy in self._kept.items() if one not in theirs}
            self._kept = {one: replace(copy, reviewed=float("-inf")) for one, copy in theirs.items()} | others

    async def put_back(self) -> None:
        """Append turns that the journal may lack, some thousands of them. A fault leaves the rest for later."""
        returned, losses = 0, self._losses
        for turn_id in list(islice(self._lacking, _RETURNED_AT_ONCE)):
            try:
                stored = await self._put_back(turn_id)
            except MemoryExtprocError as error:
                log.warning("journal.not_put_back", error=type(error).__name__)
                if turn_id in self._lacking:  # behind the others, which may have no fault
                    self._lacking[turn_id] = self._lacking.pop(turn_id)
                break
            if stored is TurnOutcome.JOURNAL_FULL or losses != self._losses:
                break
            self._lacking.pop(turn_id, None)
            returned += stored is TurnOutcome.JOURNALLED
        if returned:
            log.warning("journal.put_back", turns=returned)

    async def _put_back(self, turn_id: str) -> TurnOutcome | None:
        """None: there is nothing to put back."""
        copy = self._kept.get(turn_id)
        turn = None if copy is None else self._read(copy.record)
        if copy is None or turn is None:
            return None
        there = await self._journal.get(turn.owner, [turn_id])
        if self._kept.get(turn_id) is not copy:
            return None  # erased, or answered once more meanwhile
        if any(entry.turn.at > turn.at for entry in there):  # another replica has a later answer
            self._discard([turn_id])
            return None
        stored = await self._journal.append(turn)
        if stored is not TurnOutcome.JOURNAL_FULL:
            self._returned[turn.owner].append(turn_id)
        return stored

    async def append(self, turn: Turn) -> TurnOutcome:
        losses = self._losses
        stored = await self._journal.append(turn)
        if stored is TurnOutcome.JOURNALLED:
            body = msgspec.json.encode(turn)
            self._keep(turn, self._copies.append(LogKind.TURN, turn.owner, turn.at, body))
            if losses != self._losses and turn.id in self._kept:  # it may have been journalled before the loss
                self._lacking[turn.id] = None
        return stored

    async def mark_stored(self, entries: Sequence[JournalEntry]) -> None:
        await self._journal.mark_stored(entries)
        turns = [entry.turn for entry in entries if entry.turn.id in self._kept]
        self._discard([one.id for one in turns if self._kept[one.id].answer == digest(one.answered)])

    async def erase_owner(self, owner: Owner) -> int:
        self._discard([one for one, copy in self._kept.items() if copy.record.owner == owner])
        return await self._journal.erase_owner(owner)

    async def erase(self, owner: Owner, turn_ids: Sequence[str]) -> int:
        self._discard([one for one in turn_ids if one in self._kept and self._kept[one].record.owner == owner])
        return await self._journal.erase(owner, turn_ids)

    async def of_owner(self, owner: Owner) -> AsyncIterator[JournalEntry]:
        async for entry in self._journal.of_owner(owner):
            yield entry

    async def arrivals(self, limit: int) -> Sequence[JournalEntry]:
        if self._clock() - self._looked >= _LOOK:
            self._looked = self._clock()
            await contain_faults(self._look)
        while self._returned:
            owner, ids = self._returned.popitem()
            try:
                entries = await self._journal.get(owner, ids)
            except MemoryExtprocError:
                self._returned[owner] += ids
                raise
            if entries:  # else they were forgotten or learned before
                return entries
        return await self._journal.arrivals(limit)

    async def _look(self) -> None:
        await self._copies.tend()
        self.load()
        with suppress(MemoryExtprocError):  # the copies stay
            if self._kept:
                await self._confirm()
            if self._lacking:
                await self.put_back()
            await self._review()

    async def _review(self) -> None:
        """Drop copies of turns that another replica stored, or that left the journal otherwise."""
        now, losses = self._clock(), self._losses
        first = islice(self._kept.items(), _REVIEWED_AT_ONCE)
        due = {turn_id: copy for turn_id, copy in first if now - copy.reviewed >= _REVIEW}
        waiting: set[str] = set()
        for owner in {copy.record.owner for copy in due.values()}:
            theirs = [turn_id for turn_id, copy in due.items() if copy.record.owner == owner]
            there = await self._journal.get(owner, theirs)
            waiting.update(entry.turn.id for entry in there if not entry.stored)
            if len(there) < len(theirs):  # some may lie in a journal of this replica until the shared one has them
                entries = self._journal.of_owner(owner)
                waiting.update([entry.turn.id async for entry in entries if entry.state is JournalState.WAITING])
        if due.keys() - waiting:
            await self._confirm()  # else they may be absent because the journal lost them
        if losses != self._losses:
            return
        for turn_id, copy in due.items():
            if self._kept.get(turn_id) is not copy:
                continue  # another answer came meanwhile
            if turn_id in waiting:
                self._kept[turn_id] = replace(self._kept.pop(turn_id), reviewed=now)
            else:
                self._discard([turn_id])

    def _read(self, record: LogRecord) -> Turn | None:
        try:
            return msgspec.json.decode(self._copies.read(record), type=Turn)
        except (PermanentError, msgspec.MsgspecError) as error:
            log.error("journal.failed", error=type(error).__name__)  # noqa: TRY400 - the text may quote a user
            self._copies.discard(record)
            return None

    def _keep(self, turn: Turn, record: LogRecord | None) -> None:
        self._discard([turn.id])
        if record is not None:
            self._kept[turn.id] = _Copy(record, digest(turn.answered), self._clock())

    def _discard(self, turn_ids: Iterable[str]) -> None:
        for turn_id in turn_ids:
            self._lacking.pop(turn_id, None)
            if (copy := self._kept.pop(turn_id, None)) is not None:
                self._copies.discard(copy.record)
