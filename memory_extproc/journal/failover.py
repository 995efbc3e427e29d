"""A shared journal with a local spare for outages.

A turn reported as journalled is on disk here even while Redis is unreachable. The spare's turns move to the shared
journal once it answers, and are processed only from there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from memory_extproc.errors import MemoryExtprocError, TransientError
from memory_extproc.journal.sqlite import Depth
from memory_extproc.model import Owner, Turn, TurnOutcome
from memory_extproc.observe.log import logger
from memory_extproc.ports import Journal, JournalDepth, JournalEntry

# Moving turns between journals: from the spare, or from another sidecar's file.


@dataclass(slots=True)
class Moved:
    """The result of a move."""

    turns: list[Turn]  # newly added to the target
    known: int = 0  # already in the target
    full: bool = False  # the target is full: the rest stays in the source


async def move(
    entries: Sequence[JournalEntry], source: Journal, target: Journal, moved: Moved | None = None
) -> Moved:
    """Move turns to *target*. Each is stored there before it leaves *source*, so none is lost and a repetition is
    recognised.

    *moved* is extended, and stays valid if the move fails. Turns forgotten in the meantime are filtered when they
    are learned."""
    moved = moved or Moved([])
    for turn in (entry.turn for entry in entries):
        stored = await target.append(turn)
        if stored is TurnOutcome.JOURNAL_FULL:
            moved.full = True
            break
        if stored is TurnOutcome.DUPLICATE:
            moved.known += 1
        else:
            moved.turns.append(turn)
        await source.erase(turn.owner, [turn.id])
    return moved


log = logger(__name__)
_MOVED_AT_ONCE = 50


class FailoverJournal:
    """Implements ports.Journal: *shared*, or *spare* while appends to *shared* raise TransientError."""

    def __init__(self, shared: Journal, spare: Journal) -> None:
        self.shared, self.spare = shared, spare
        self._put_aside = False  # since the last move
        self._looked = False  # whether an earlier process's spare was checked
        self._moved = Moved([])  # and not given yet
        # Of the shared journal alone:
        self.pending, self.get, self.holds = shared.pending, shared.get, shared.holds
        self.mark_stored, self.mark_learned = shared.mark_stored, shared.mark_learned
        self.mark_failed, self.erase_learned = shared.mark_failed, shared.erase_learned
        self.dead, self.retry = shared.dead, shared.retry

    async def append(self, turn: Turn) -> TurnOutcome:
        try:
            return await self.shared.append(turn)
        except TransientError as error:
            log.warning("journal.put_aside", error=type(error).__name__)
            self._put_aside = True
            return await self.spare.append(turn)

    async def arrivals(self, limit: int) -> Sequence[JournalEntry]:
        try:
            moved = await self._move()
        except TransientError as error:
            # The turns stay here. Where only a replica is missing, the shared journal goes on without it.
            log.info("journal.not_moved", error=type(error).__name__)
            moved = ()
        return moved or await self.shared.arrivals(limit)

    async def _move(self) -> Sequence[JournalEntry]:
        """Move the spare's turns to the shared journal and return them as arrivals.

        Usually no replica has stored their messages while the shared journal was unreachable."""
        if self._moved.turns:  # *shared* failed during the move, and does not return these as arrivals
            return await self._give_moved()
        if self._looked and not self._put_aside:
            return ()
        try:
            entries = await self.spare.pending(_MOVED_AT_ONCE)
        except MemoryExtprocError as error:  # other replicas' turns must not wait for our disk
            log.warning("journal.spare_unreadable", error=type(error).__name__)
            return ()
        self._looked = True
        if not entries:
            self._put_aside = False
            return ()
        self._put_aside = True
        await move(entries, self.spare, self.shared, self._moved)
        log.info("journal.moved", turns=len(self._moved.turns))
        return await self._give_moved()

    async def _give_moved(self) -> Sequence[JournalEntry]:
        entries: list[JournalEntry] = []
        for owner in dict.fromkeys(turn.owner for turn in self._moved.turns):
            ids = [turn.id for turn in self._moved.turns if turn.owner == owner]
            entries += await self.shared.get(owner, ids)
        self._moved = Moved([])
        return entries

    async def erase_owner(self, owner: Owner) -> int:
        return await self.spare.erase_owner(owner) + await self.shared.erase_owner(owner)

    async def erase(self, owner: Owner, turn_ids: Sequence[str]) -> int:
        return await self.spare.erase(owner, turn_ids) + await self.shared.erase(owner, turn_ids)

    async def of_owner(self, owner: Owner) -> AsyncIterator[JournalEntry]:
        async for entry in self.spare.of_owner(owner):
            yield entry
        async for entry in self.shared.of_owner(owner):
            yield entry

    async def depth(self) -> JournalDepth:
        """The depth of both, or of the reachable journal."""
        both = await asyncio.gather(self.shared.depth(), self.spare.depth(), return_exceptions=True)
        told = [depth for depth in both if not isinstance(depth, BaseException)]
        for fault in both:
            if isinstance(fault, BaseException) and not (told and isinstance(fault, MemoryExtprocError)):
                raise fault
        oldest = min((depth.oldest for depth in told if depth.oldest is not None), default=None)
        return Depth(sum(depth.turns for depth in told), sum(depth.dead for depth in told), oldest)

    async def end(self, owner: Owner, session: str) -> None:
        if self._put_aside:
            await self.spare.end(owner, session)
        await self.shared.end(owner, session)


Check = Callable[[], Awaitable[None]]  # raises the error that would prevent a write


def either_writable(shared: Check, spare: Check) -> Check:
    """Combine checks: raises only if neither journal is writable."""

    async def check() -> None:
        try:
            await shared()
        except MemoryExtprocError:
            await spare()

    return check
