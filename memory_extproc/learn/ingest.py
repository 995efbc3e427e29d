"""Intake of the write path: an exchange from its last message until it is in the journal."""

from __future__ import annotations

import asyncio
import json
from bisect import bisect_left, insort
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Self

import msgspec

from memory_extproc.concurrency import contain_faults, wait_for_event
from memory_extproc.errors import MemoryExtprocError, PermanentError, TransientError
from memory_extproc.learn.intake_log import IntakeLog, LogKind, LogRecord
from memory_extproc.learn.learner import ForgetGuard, Learner
from memory_extproc.learn.screening import TurnScreener, Unscreened
from memory_extproc.learn.sessions import Placed, Sessions
from memory_extproc.model import Caller, Exchanged, Owner, Turn, TurnOutcome
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Journal, TurnReceipts
from memory_extproc.settings import CurrentSettings

log = logger(__name__)
_GONE_WRONG = {TurnOutcome.JOURNAL_FULL, TurnOutcome.JOURNAL_FAILED, TurnOutcome.PROCESS_LIMIT}
_WAITS = {TurnOutcome.UNDECIDED, TurnOutcome.JOURNAL_LATE}
_TAKEN = {TurnOutcome.JOURNALLED, TurnOutcome.DUPLICATE}
_LARGE = 200_000  # characters; a longer exchange is encrypted off the event loop
_OWNERS_AT_ONCE = 8  # whose waiting exchanges are decided at a time


@dataclass(eq=False, slots=True)
class _Logged:
    """An exchange in the intake log. *waited*: it was deferred and waits for a decision."""

    record: LogRecord
    waited: bool = False
    failures: int = 0  # that another attempt will hardly mend


class Intake:
    """Implements ports.TurnLearner. Screens an exchange, places it in a session, appends it to the journal and
    gives the turn to *learner*. The caller waits for `journal_wait` at most. The exchange is in the intake log from
    before the first await until it is journalled or rejected, so it survives a cancelled caller and a killed
    process. Exchanges that cannot be decided or journalled now wait there, in order per owner.

    Entering resumes the work left in log and journal. Leaving finishes accepted turns, with extraction, within
    `shutdown.flush`; the rest stays in the journal."""

    def __init__(
        self,
        learner: Learner,
        journal: Journal,
        sessions: Sessions,
        guard: ForgetGuard,
        current: CurrentSettings,
        metrics: Metrics,
        *,
        screens: TurnScreener | None = None,  # None: every message is kept
        intake_log: IntakeLog | None = None,  # None: an accepted exchange can be lost until it is in the journal
        receipts: TurnReceipts | None = None,
    ) -> None:
        self._learner, self._journal, self._sessions, self._guard = learner, journal, sessions, guard
        self._current, self._metrics = current, metrics
        self._screens: TurnScreener = screens or Unscreened()
        self._log, self._receipts = intake_log, receipts
        self._under_way: dict[asyncio.Task[TurnOutcome], Exchanged] = {}
        self._bytes = 0  # of their texts
        metrics.accepting_bytes.set_function(lambda: self._bytes)
        self._waiting: dict[Owner, list[_Logged]] = {}  # the oldest first
        self._count = 0  # of them
        self._settling = False  # nothing is decided until all that is asked for that has answered for a while
        self._answering_since: float | None = None
        self._background: list[asyncio.Task[None]] = []
        self._closing = asyncio.Event()  # set: new exchanges wait for the next start
        self._told = TurnOutcome.JOURNALLED

    async def __aenter__(self) -> Self:
        self._learner.start()
        self._background = [
            asyncio.create_task(self._catch_up(), name="intake"),
            asyncio.create_task(self._tend(), name="intake log"),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing.set()
        try:
            async with asyncio.timeout(self._current.settings.shutdown.flush.total_seconds()):
                if self._under_way:  # in the end all that was accepted is in the journal, waits or has failed
                    await asyncio.wait(self._under_way)
                await asyncio.gather(*self._background)
                await self._learner.finish()
        except TimeoutError:
            log.warning("learn.drain_cut_short")
        finally:
            tasks = [*self._background, *self._under_way]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._waiting:
                log.warning("turns.left_undecided", turns=self._count)
            await self._learner.stop()

    async def wait_visible(self, caller: Caller) -> None:
        await self._learner.wait_visible(caller)

    async def end_session(self, caller: Caller) -> None:
        await self._learner.end_session(caller)

    async def accept(self, exchanged: Exchanged) -> TurnOutcome:
        """As ports.TurnLearner."""
        owner = exchanged.caller.owner
        refused = self._screens.refuses(exchanged)
        if not refused and not self._screens.has_room(owner):
            if exchanged.ends_session:
                await self._learner.end_session(exchanged.caller)
            return TurnOutcome.OVER_QUOTA
        logged = None if refused else await self._append_to_log(exchanged)
        crowded = not self._has_room(exchanged)
        if logged is not None and (self._closing.is_set() or self._settling or crowded or owner in self._waiting):
            self._put_off(logged, TurnOutcome.JOURNAL_LATE)
            return TurnOutcome.UNDECIDED if self._settling else TurnOutcome.JOURNAL_LATE
        if self._closing.is_set():
            return self._tell(TurnOutcome.JOURNAL_FAILED)
        if crowded:
            return self._tell(TurnOutcome.PROCESS_LIMIT)
        # A separate task: Envoy may cancel the caller, and the turn is kept all the same.
        task = asyncio.create_task(self._attempt(exchanged, logged), name="journal append")
        self._under_way[task] = exchanged
        self._bytes += exchanged.text_bytes
        self._learner.pending.add(owner, task)
        task.add_done_callback(lambda done: self._taken_in(owner, done))
        await asyncio.wait({task}, timeout=self._current.settings.learn.journal.wait.total_seconds())
        if task.done():
            return self._outcome(task)
        task.add_done_callback(self._came_late)
        return TurnOutcome.JOURNAL_LATE

    def _has_room(self, exchanged: Exchanged) -> bool:
        """Whether *exchanged* may be worked on beside those under way. One alone always may."""
        most_bytes = self._current.settings.limits.process_bytes // 4
        fits = not self._under_way or self._bytes + exchanged.text_bytes <= most_bytes
        return fits and len(self._under_way) < self._learner.policy.accepting

    def oldest_waiting(self, owner: Owner | None = None) -> datetime | None:
        """Time of the oldest accepted exchange that is not in the journal yet, for *owner* or for all."""
        mine = (one for one in self._under_way.values() if owner is None or one.caller.owner == owner)
        logged = None if self._log is None else self._log.oldest(owner)
        return min((*(one.at for one in mine), *(() if logged is None else (logged,))), default=None)

    def erase(self, owner: Owner, until: datetime) -> int:
        """Discard the waiting exchanges of *owner* that were asked by *until*. Returns their number. The tombstones
        filter an exchange that is in progress."""
        gone = [] if self._log is None else [one for one in self._log.of_owner(owner) if one.at <= until]
        for record in gone:
            self._discard(record)
        return len(gone)

    async def _tend(self) -> None:
        """Looks after the log's files."""
        look = self._learner.policy.look.total_seconds()
        while self._log is not None and not await wait_for_event(self._closing, look):
            await contain_faults(self._log.tend)

    async def _catch_up(self) -> None:
        """Decide waiting exchanges once that is possible, and a last time when it closes."""
        ended = False
        while self._log is not None:
            for record in self._log.take_left(LogKind.TURN):
                self._put_off(_Logged(record), TurnOutcome.UNDECIDED)
            await contain_faults(self._look)
            if ended:
                return
            ended = await wait_for_event(self._closing, self._learner.policy.look.total_seconds())

    async def _look(self) -> None:
        if self._settling:
            now = asyncio.get_running_loop().time()
            if self._waiting and not await self._screens.can_tell():
                self._answering_since = None
                return
            if self._answering_since is None:
                self._answering_since = now
            if self._waiting and now - self._answering_since < self._learner.policy.settle.total_seconds():
                return
            self._settling, self._answering_since = False, None
        await self._decide_waiting()

    async def _decide_waiting(self) -> None:
        ahead = iter(list(self._waiting))
        while owners := list(islice(ahead, _OWNERS_AT_ONCE)):
            if self._settling or not any(await asyncio.gather(*map(self._decide, owners))):
                return

    async def _decide(self, owner: Owner) -> bool:
        """Decide in the order of acceptance, up to the first exchange that stays undecided. Returns whether any was
        decided."""
        decided = False
        while owner in self._waiting:
            logged = self._waiting[owner][0]
            try:
                exchanged = self._read(logged.record)
            except PermanentError as error:
                log.error("journal.failed", error=type(error).__name__)  # noqa: TRY400 - the text may quote a user
                stored = TurnOutcome.JOURNAL_FAILED
                self._discard(logged.record)
            else:
                stored = await self._attempt(exchanged, logged)
                if self._receipts is not None and stored not in _WAITS | _TAKEN:
                    self._receipts.note(exchanged.caller, exchanged.request_id, stored)
            if stored in _WAITS:
                break
            decided = True
            self._tell(stored)
            self._metrics.turns.labels(stored.value).inc()
        return decided

    async def _append_to_log(self, exchanged: Exchanged) -> _Logged | None:
        """None where there is no log that takes it."""
        if self._log is None:
            return None
        whose, at = exchanged.caller.owner, exchanged.at
        if exchanged.characters > _LARGE:
            record = await self._log.append_large(LogKind.TURN, whose, at, partial(_encode, exchanged))
        else:
            record = self._log.append(LogKind.TURN, whose, at, _encode(exchanged))
        return None if record is None else _Logged(record)

    def _put_off(self, logged: _Logged, why: TurnOutcome) -> None:
        """*why* UNDECIDED: consent or incognito could not be read."""
        if not logged.record.is_live:
            return  # erased meanwhile
        if not self._waiting:
            log.warning("turns.undecided", outcome=why.value)
        if not logged.waited:
            logged.waited = True
            insort(self._waiting.setdefault(logged.record.owner, []), logged, key=_number)
            self._count += 1
        if why is TurnOutcome.UNDECIDED:
            self._settling, self._answering_since = True, None
        self._metrics.turns_undecided.set(self._count)

    def _read(self, record: LogRecord) -> Exchanged:
        """PermanentError where it cannot be read, or is of another version's form."""
        try:
            body = b"" if self._log is None else self._log.read(record)
            return msgspec.convert(json.loads(body), Exchanged)
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            raise PermanentError(f"a logged exchange of another form ({type(error).__name__})") from None

    def _discard(self, record: LogRecord) -> None:
        if self._log is not None:
            self._log.discard(record)
        waiting = self._waiting.get(record.owner, [])
        at = bisect_left(waiting, record.number, key=_number)
        if at == len(waiting) or waiting[at].record is not record:
            return  # it did not wait
        del waiting[at]
        self._count -= 1
        if not waiting:
            del self._waiting[record.owner]
        if not self._waiting:
            log.info("turns.decided")
        self._metrics.turns_undecided.set(self._count)

    async def _attempt(self, exchanged: Exchanged, logged: _Logged | None) -> TurnOutcome:
        try:
            stored = await self._take_in(exchanged, logged)
        except TransientError as error:
            stored = self._end_failure(error, logged)
        except Exception as error:  # noqa: BLE001 - a fault of one exchange must not end the others
            if logged is not None:
                logged.failures += 1
            stored = self._end_failure(error, logged)
        if logged is None or self._log is None:
            if stored is TurnOutcome.UNDECIDED:
                full = self._log is not None and self._log.is_full
                return TurnOutcome.JOURNAL_FULL if full else TurnOutcome.JOURNAL_FAILED
            return stored
        if stored in _WAITS:
            self._put_off(logged, stored)
            await self._log.sync()
        else:
            self._discard(logged.record)
        return stored

    def _end_failure(self, error: Exception, logged: _Logged | None) -> TurnOutcome:
        if logged is None or not logged.waited:
            log.error("journal.failed", error=type(error).__name__)
        if logged is None or logged.failures >= self._current.settings.learn.max_attempts:
            return TurnOutcome.JOURNAL_FAILED
        return TurnOutcome.JOURNAL_LATE

    async def _take_in(self, exchanged: Exchanged, logged: _Logged | None) -> TurnOutcome:
        waited = logged is not None and logged.waited
        screened = await self._screens.screen(exchanged, waited=waited)
        if screened is TurnOutcome.UNDECIDED:
            return screened
        if isinstance(screened, TurnOutcome):
            if exchanged.ends_session:
                await self._learner.end_session(exchanged.caller)
            return screened
        try:
            place = await self._sessions.place(screened.whole, screened.kept, apart=logged is None)
        except TransientError:
            return TurnOutcome.UNDECIDED
        placed = await self._guard.filter_placed(place)
        if placed is None:
            return TurnOutcome.FORGOTTEN
        turn = replace(placed.turn, last=exchanged.ends_session)
        stored = await self._append(turn, placed)
        if self._receipts is not None:
            self._receipts.note(exchanged.caller, exchanged.request_id, stored, turn.id)
        # An attempt that failed after the append has not announced the turn.
        if stored is TurnOutcome.JOURNALLED or (stored is TurnOutcome.DUPLICATE and waited):
            self._learner.enqueue(turn)
        elif exchanged.ends_session and stored is not TurnOutcome.FORGOTTEN:
            await self._learner.end_session(Caller(turn.owner, session=turn.session))
        return stored

    async def _append(self, turn: Turn, placed: Placed) -> TurnOutcome:
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
        return TurnOutcome.FORGOTTEN if await self._guard.withdraw_forgotten(turn) else stored

    def _taken_in(self, owner: Owner, task: asyncio.Task[TurnOutcome]) -> None:
        self._bytes -= self._under_way.pop(task).text_bytes
        self._learner.pending.remove(owner, [task])

    def _came_late(self, task: asyncio.Task[TurnOutcome]) -> None:
        """Log a failure after the caller was given JOURNAL_LATE."""
        stored = self._outcome(task)
        if stored in _GONE_WRONG:
            self._metrics.turns.labels(stored.value).inc()

    def _outcome(self, task: asyncio.Task[TurnOutcome]) -> TurnOutcome:
        failed = task.cancelled() or task.exception() is not None
        return self._tell(TurnOutcome.JOURNAL_FAILED if failed else task.result())

    def _tell(self, stored: TurnOutcome) -> TurnOutcome:
        """Logs when it begins to go wrong and when it is well again; the metric counts each."""
        if stored in _GONE_WRONG and stored is not self._told:
            log.error("journal.refuses", outcome=stored.value)
            self._told = stored
        elif stored is TurnOutcome.JOURNALLED and self._told in _GONE_WRONG:
            log.info("journal.accepts")
            self._told = stored
        return stored


def _number(logged: _Logged) -> int:
    return logged.record.number


def _encode(exchanged: Exchanged) -> bytes:
    try:
        return msgspec.json.encode(exchanged)
    except UnicodeEncodeError:  # lone surrogates, which JSON can escape and UTF-8 cannot hold
        return json.dumps(msgspec.to_builtins(exchanged)).encode()
