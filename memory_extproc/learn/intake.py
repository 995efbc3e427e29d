"""What is handed to the write path, until it is in the journal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from memory_extproc.errors import MemoryExtprocError
from memory_extproc.learn.limits import LearnLimits
from memory_extproc.learn.screening import Screens
from memory_extproc.learn.sessions import RESPONSE, Sessions
from memory_extproc.learn.settling import Unsettled
from memory_extproc.learn.sifting import Sifting
from memory_extproc.model import Caller, Exchanged, Owner, Stored, Turn
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Coordination, Journal

log = logger(__name__)
_GONE_WRONG = {Stored.JOURNAL_FULL, Stored.JOURNAL_FAILED, Stored.PROCESS_LIMIT}


class Intake:
    """Screens an exchange, finds its place in a session and appends it to the journal. Who hands it in waits for
    that for `journal_wait` at most; the exchange is kept all the same, also where who handed it in is cancelled.
    """

    def __init__(
        self,
        journal: Journal,
        sessions: Sessions,
        coordination: Coordination,
        limits: LearnLimits,
        metrics: Metrics,
        *,
        screens: Screens,
        sifting: Sifting,
        unsettled: Unsettled,
        journalled: Callable[[Turn], None],
        ends: Callable[[Caller], Awaitable[None]],
    ) -> None:
        """*journalled* is told each turn that the journal has taken as new; *ends* that a session has ended with an
        exchange of which no such turn came."""
        self._journal = journal
        self._sessions = sessions
        self._coordination = coordination
        self._limits = limits
        self._metrics = metrics
        self._screens = screens
        self._sifting = sifting
        self._unsettled = unsettled
        self._journalled = journalled
        self._ends = ends
        self._under_way: set[asyncio.Task[Stored]] = set()
        self._closed = False
        self._told = Stored.JOURNALLED

    def use(self, limits: LearnLimits) -> None:
        self._limits = limits

    async def accept(self, exchanged: Exchanged) -> Stored:
        """As ports.Learns."""
        if self._closed:
            return self._tell(Stored.JOURNAL_FAILED)
        if len(self._under_way) >= self._limits.accepting:
            return self._tell(Stored.PROCESS_LIMIT)
        # A task of our own: whoever called may be cancelled by Envoy, the turn is kept all the same.
        task = asyncio.create_task(self._take_in(exchanged), name="journal append")
        owner = exchanged.caller.owner
        self._under_way.add(task)
        self._unsettled.add(owner, task)
        task.add_done_callback(lambda done: self._taken_in(owner, done))
        await asyncio.wait({task}, timeout=self._limits.journal_wait.total_seconds())
        if task.done():
            return self._outcome(task)
        task.add_done_callback(self._came_late)
        return Stored.JOURNAL_LATE

    def close(self) -> None:
        """From now on nothing is accepted."""
        self._closed = True

    async def finish(self) -> None:
        """Returns when all that was accepted is in the journal or has failed."""
        if self._under_way:
            await asyncio.wait(self._under_way)

    async def stop(self) -> None:
        """Ends what is under way where it stands."""
        tasks = list(self._under_way)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _take_in(self, exchanged: Exchanged) -> Stored:
        screened = await self._screens.screened(exchanged)
        if isinstance(screened, Stored):
            if exchanged.ends_session:
                await self._ends(exchanged.caller)
            return screened
        placed = await self._sifting.placed(await self._sessions.place(screened.whole, screened.kept))
        if placed is None:
            return Stored.FORGOTTEN
        turn = replace(placed.turn, last=exchanged.ends_session)
        stored, noted = await asyncio.gather(
            self._journal.append(turn), self._sessions.note(placed), return_exceptions=True
        )
        if isinstance(noted, MemoryExtprocError):
            # The turn is safe; its successor may begin a session of its own.
            log.warning("session.not_noted", error=type(noted).__name__)
        elif isinstance(noted, BaseException):
            raise noted
        if isinstance(stored, BaseException):
            raise stored
        if await self._sifting.withdrawn(turn):
            await self._coordination.delete_records(turn.owner, [RESPONSE])
            return Stored.FORGOTTEN
        if stored is Stored.JOURNALLED:
            self._journalled(turn)
        elif exchanged.ends_session:
            await self._ends(Caller(turn.owner, session=turn.session))
        return stored

    def _taken_in(self, owner: Owner, task: asyncio.Task[Stored]) -> None:
        self._under_way.discard(task)
        self._unsettled.remove(owner, [task])
        if not task.cancelled() and (error := task.exception()):
            log.error("journal.failed", error=type(error).__name__)

    def _came_late(self, task: asyncio.Task[Stored]) -> None:
        """Whoever handed the turn in was told JOURNAL_LATE: what went wrong after that is told here."""
        stored = self._outcome(task)
        if stored in _GONE_WRONG:
            self._metrics.turns.labels(stored.value).inc()

    def _outcome(self, task: asyncio.Task[Stored]) -> Stored:
        failed = task.cancelled() or task.exception() is not None
        return self._tell(Stored.JOURNAL_FAILED if failed else task.result())

    def _tell(self, stored: Stored) -> Stored:
        """Logs when it begins to go wrong and when it is well again; the metric counts each."""
        if stored in _GONE_WRONG and stored is not self._told:
            log.error("journal.refuses", outcome=stored.value)
            self._told = stored
        elif stored is Stored.JOURNALLED and self._told in _GONE_WRONG:
            log.info("journal.accepts")
            self._told = stored
        return stored
