"""The write path: a completed exchange is journalled at once and learned in the background.

Step 1, at once: embed the messages of a turn and put them into the owner's partition. Step 2, later and per
session: extract facts and reconcile them with the stored memories. Queues hold turn ids only; the words are read
from the journal when a turn is due, so a forget that erases the journal also cancels queued work. For that, a
forget first writes its tombstones, advances the epoch, erases the journal, and then deletes stored rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Protocol, Self

from memory_extproc.errors import MemoryExtprocError, PermanentError, TransientError
from memory_extproc.learn.extract.extractor import Fact, FactExtractor, Finding
from memory_extproc.learn.ingest import Intake, LearnLimits, PendingWrites, TombstoneFilter
from memory_extproc.learn.intake_log import IntakeLog
from memory_extproc.learn.messages import Judges, Messages, judge
from memory_extproc.learn.queue import (
    Evidence,
    JournalPoller,
    JournalPollerLimits,
    OwnerQueues,
    Revival,
    SessionBatcher,
    Trigger,
    WriteBehind,
)
from memory_extproc.learn.screening import TurnScreener, Unscreened
from memory_extproc.learn.sessions import Sessions
from memory_extproc.model import Caller, Exchanged, Owner, Turn, TurnOutcome
from memory_extproc.observe.log import NO_TRACES, Traces, following, logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import (
    Chance,
    Coordination,
    EmbeddingModel,
    Journal,
    JournalEntry,
    MemoryWriter,
    Now,
    TombstoneReader,
    TurnReceipts,
)

log = logger(__name__)


class FactReconciler(Protocol):
    """Reconciles facts with the owner's stored memories."""

    async def apply(self, owner: Owner, facts: Sequence[Fact], turns: Sequence[Turn]) -> object:
        """Repeating it changes nothing more."""


class Learner:
    """Implements ports.TurnLearner. Entering resumes the work left in the journal. Leaving finishes accepted turns,
    with extraction, within *grace*; the rest stays in the journal."""

    def __init__(
        self,
        journal: Journal,
        sessions: Sessions,
        keeps: MemoryWriter,
        embedder: EmbeddingModel,
        coordination: Coordination,
        limits: LearnLimits,
        metrics: Metrics,
        *,
        extractor: FactExtractor | None,  # None: no facts are extracted
        fallback: FactExtractor | None = None,  # serves while *extractor* cannot be reached; the turns wait for it
        reconciler: FactReconciler,
        now: Now,
        rng: Chance,
        judged: Judges = judge,
        screens: TurnScreener | None = None,  # None: every message is kept
        forgotten: TombstoneReader | None = None,
        commands: CommandApplier | None = None,  # None: chat commands are ignored
        traces: Traces = NO_TRACES,
        topics: TopicFollower | None = None,
        store_works: Callable[[], bool] = lambda: True,  # whether writes to the store succeed now
        intake_log: IntakeLog | None = None,  # None: an accepted exchange can be lost until it is in the journal
        receipts: TurnReceipts | None = None,  # None: no receipts
    ) -> None:
        self._journal = journal
        self._coordination = coordination
        self._limits = limits
        self._metrics = metrics
        self._reconciler = reconciler
        self._traces = traces
        self._unsettled = PendingWrites()
        self._remember_evidence, self._extract_evidence = Evidence(store_works), Evidence(store_works)
        revival = Revival(journal, (self._remember_evidence, self._extract_evidence), store_works)
        self._sifting = TombstoneFilter(forgotten, journal)
        self._obeying = CommandStep(commands, journal)
        self._messages = Messages(keeps, embedder, judged, rows=limits.rows, now=now)
        self._finding = _finding(extractor, fallback, limits, now)
        self._intake = Intake(
            journal, sessions, coordination, limits, metrics,
            screens=screens or Unscreened(), sifting=self._sifting, unsettled=self._unsettled,
            journalled=self._to_remember, ends=self.end_session, intake_log=intake_log,
            receipts=receipts,
        )  # fmt: skip
        self._showing, self._remembering, self._extracting = self._lanes(rng)
        self._write_behind = WriteBehind(self._store, period=limits.gather, most=limits.gathered)
        self._gatherings = SessionBatcher(
            self._extracting.add, batch=limits.batch, idle=limits.idle, told=self._count_trigger
        )
        self._following = TopicShifts(topics, self._gatherings)
        self._take_up = JournalPoller(
            journal, self._take_arrivals, _take_up_limits(limits), metrics, revive=revival.revive, now=now, rng=rng
        )
        self._ahead: dict[Owner, dict[str, str]] = {}  # turn id → session, for turns that wait for step 1
        self._last_words: set[str] = set()  # ids of these turns that end their session
        self._background: list[asyncio.Task[None]] = []
        self._closing = asyncio.Event()

    def _lanes(self, rng: Chance) -> tuple[OwnerQueues[str], OwnerQueues[str], OwnerQueues[tuple[str, ...]]]:
        """Queues of the steps: by turn id, and by the turn ids of a part of a session."""
        limits, trace_step = self._limits, self._traces.trace_step
        lanes = partial(OwnerQueues, in_vain=limits.overlaid, backoff=limits.backoff, rng=rng)
        showing: OwnerQueues[str] = lanes(
            "show", self._show, self._not_shown,
            at_once=limits.remembering, together=limits.together,
        )  # fmt: skip
        remembering: OwnerQueues[str] = lanes(
            "remember", trace_step("learn.remember", self._remember), self._not_remembered,
            at_once=limits.remembering, together=limits.together,
        )  # fmt: skip
        extracting: OwnerQueues[tuple[str, ...]] = lanes(
            "extract", trace_step("learn.extract", self._extract), self._not_extracted,
            at_once=limits.extracting, together=1,
        )  # fmt: skip
        return showing, remembering, extracting

    def reconfigure(self, limits: LearnLimits) -> None:
        """From now on: a change of the configuration. How many owners' messages are remembered at a time stays."""
        self._limits = limits
        self._intake.reconfigure(limits)
        if self._finding is not None:
            self._finding.reconfigure(limits.patience)
        self._gatherings.reconfigure(batch=limits.batch, idle=limits.idle)
        self._extracting.reconfigure(at_once=limits.extracting)
        self._take_up.reconfigure(_take_up_limits(limits))

    async def __aenter__(self) -> Self:
        self._background = [
            asyncio.create_task(self._take_up.arrivals(self._closing), name="journal take-up"),
            asyncio.create_task(self._take_up.look_after(self._closing), name="journal sweep"),
            asyncio.create_task(self._intake.catch_up(self._closing), name="intake"),
            asyncio.create_task(self._intake.tend(self._closing), name="intake log"),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing.set()
        self._intake.close()
        try:
            async with asyncio.timeout(self._limits.grace.total_seconds()):
                await self._intake.finish()
                await asyncio.gather(*self._background)
                await self._showing.finish()
                self._write_behind.flush()
                await self._remembering.finish()
                self._gatherings.flush_all()
                await self._extracting.finish()
                await self._take_up.measure()
        except TimeoutError:
            log.warning("learn.drain_cut_short")
        finally:
            self._gatherings.close()
            self._write_behind.close()
            for task in self._background:
                task.cancel()
            await asyncio.gather(*self._background, return_exceptions=True)
            await self._intake.stop()
            await self._showing.stop()
            await self._remembering.stop()
            await self._extracting.stop()
            self._unsettled.release_all()

    async def accept(self, exchanged: Exchanged) -> TurnOutcome:
        return await self._intake.accept(exchanged)

    def oldest_waiting(self, owner: Owner | None = None) -> datetime | None:
        """Time of the oldest accepted exchange that is not in the journal yet, for *owner* or for all."""
        return self._intake.oldest_waiting(owner)

    def erase_waiting(self, owner: Owner, until: datetime) -> int:
        """Discards exchanges of *owner* that wait to be decided and were asked by *until*; says how many."""
        return self._intake.erase(owner, until)

    async def wait_visible(self, caller: Caller) -> None:
        await self._unsettled.wait_visible(caller.owner)

    async def end_session(self, caller: Caller) -> None:
        """Facts of this session, or of all the caller's when none is named, are extracted as soon as the
        messages accepted so far are stored."""
        try:  # another replica or a later process may extract from them
            await self._journal.end(caller.owner, caller.session)
        except MemoryExtprocError as error:
            log.warning("session.end_not_noted", error=type(error).__name__)
        ahead = self._ahead.get(caller.owner, {})
        last_of = {session: turn_id for turn_id, session in ahead.items() if caller.session in {"", session}}
        self._last_words.update(last_of.values())
        for session in self._gatherings.sessions(caller.owner):
            if caller.session in {"", session} and session not in last_of:
                self._gatherings.flush(caller.owner, session)
        await self._following.end(caller.owner, caller.session, but=last_of)

    def _to_remember(self, turn: Turn, *, arrived: bool = False) -> None:
        """*arrived*: another process may have stored it, and a person corrected it, so it is not shown first."""
        self._traces.keep(turn.id)
        self._ahead.setdefault(turn.owner, {})[turn.id] = turn.session
        first = self._showing if self._limits.gather and not arrived else self._remembering
        if first.add(turn.owner, turn.id):
            self._unsettled.add(turn.owner, turn.id)

    def _store(self, owner: Owner, turn_id: str) -> None:
        if not self._remembering.add(owner, turn_id):
            self._unsettled.remove(owner, [turn_id])

    def _drop_ahead(self, owner: Owner, turn_ids: Sequence[str]) -> None:
        ahead = self._ahead.get(owner, {})
        for turn_id in turn_ids:
            ahead.pop(turn_id, None)
            self._last_words.discard(turn_id)
        if not ahead:
            self._ahead.pop(owner, None)

    async def _show(self, owner: Owner, turn_ids: Sequence[str]) -> None:
        """Show messages before they are stored, so that they can be stored together. Visible in this process alone;
        a turn that cannot be shown is stored at once."""
        shown = False
        with following(None), suppress(MemoryExtprocError):  # storing meets the error again and handles it
            shown = self._remembering.has_room and await self._is_shown(owner, turn_ids)
        self._write_behind.add(owner, turn_ids, at_once=not shown)

    async def _is_shown(self, owner: Owner, turn_ids: Sequence[str]) -> bool:
        """False for turns that forget memories: these are stored at once."""
        epoch = await self._coordination.epoch(owner)
        entries = await self._sifting.entries(owner, await self._journal.get(owner, turn_ids))
        fresh = [entry for entry in entries if not entry.stored]
        if any(entry.replaced or self._obeying.is_doubtful(entry.turn) for entry in fresh):
            return False
        if self._obeying.commanding(fresh):
            return False
        await self._messages.show(owner, fresh, still_in=partial(self._still_in, epoch, owner))
        self._unsettled.remove(owner, turn_ids)
        return True

    async def _not_shown(self, owner: Owner, turn_id: str, _: Exception) -> bool:
        self._write_behind.add(owner, [turn_id], at_once=True)
        return True

    async def _remember(self, owner: Owner, turn_ids: Sequence[str]) -> None:
        # Callers wait for the first attempt at most, and only until the partition shows the rows, which is before
        # the store has them.
        try:
            epoch = await self._coordination.epoch(owner)
            entries = await self._sifting.entries(owner, await self._journal.get(owner, turn_ids))
            fresh = [entry for entry in entries if not entry.stored]
            commanding = self._obeying.commanding(fresh)
            stored = await self._messages.store(
                owner,
                fresh,
                still_in=partial(self._still_in, epoch, owner),
                # A turn with a forget stays pending until the forget is done.
                shown=partial(self._unsettled.remove, owner, () if commanding else turn_ids),
            )
            await self._obeying.apply(commanding)
            if commanding and self._finding:
                self._finding.forget(owner)
            await self._journal.mark_stored(fresh)
        finally:
            self._messages.drop_shown(turn_ids)  # a retry reads their words again
            self._unsettled.remove(owner, turn_ids)
        self._remember_evidence.succeed(turn_ids, proves=any(one.memory is not None for one in stored))
        for one in stored:
            self._metrics.remembered.labels(one.role.value, one.decision.value).inc()
        await self._hand_on(entries)
        self._drop_ahead(owner, turn_ids)

    async def _hand_on(self, entries: Sequence[JournalEntry]) -> None:
        """The lease holder of the owner extracts facts; a turn handed on without a local holder is taken by another
        replica."""
        ours = [entry for entry in entries if self._journal.holds(entry.turn.owner)]
        await self._note_topics([entry.turn for entry in ours])
        last_words = frozenset(self._last_words)
        # From here on, the end of the session need not wait for these turns.
        for entry in entries:
            self._drop_ahead(entry.turn.owner, [entry.turn.id])
        if self._finding is None:
            await self._journal.mark_learned(ours)
            return
        for turn in (entry.turn for entry in ours):
            last = turn.last or turn.id in last_words
            self._gatherings.add(turn.owner, turn.session, turn.id, last=last)
            if self._obeying.is_doubtful(turn):
                self._gatherings.flush(turn.owner, turn.session, Trigger.COMMAND)

    async def _note_topics(self, turns: Sequence[Turn]) -> None:
        """Pass turns to the topic follower, with the ends of their sessions, also an end that arrived meanwhile."""
        told = frozenset(self._last_words)
        await self._following.note(turns, told)
        while late := [turn for turn in turns if turn.id in self._last_words - told]:
            told |= {turn.id for turn in late}
            for turn in late:
                await self._following.end(turn.owner, turn.session, but=())

    async def _take_arrivals(self, arrived: Sequence[JournalEntry]) -> None:
        """Resume entries that this process did not append, each at its stage."""
        await self._hand_on([entry for entry in arrived if entry.stored])
        for entry in arrived:
            if not entry.stored:
                self._to_remember(entry.turn, arrived=True)

    async def _not_remembered(self, owner: Owner, turn_id: str, error: Exception) -> bool:
        done = await self._count_failure(owner, self._remember_evidence, [turn_id], error)
        if done:
            self._drop_ahead(owner, [turn_id])
        return done

    async def _count_failure(
        self, owner: Owner, evidence: Evidence, turn_ids: Sequence[str], error: Exception
    ) -> bool:
        """Whether all of them are done with: dead letters, or no longer in the journal."""
        entries = await self._journal.get(owner, turn_ids)
        waiting = 0
        for entry in entries:
            accused = evidence.fail(entry.turn.id, error)
            dead = accused and entry.attempts + 1 >= self._limits.attempts
            if accused:
                await self._journal.mark_failed(entry, type(error).__name__, dead=dead)
            waiting += not dead
        if not waiting:
            evidence.succeed(turn_ids, proves=False)
        return not waiting

    async def _extract(self, owner: Owner, batches: Sequence[tuple[str, ...]]) -> None:
        for turn_ids in batches:
            epoch = await self._coordination.epoch(owner)
            entries = await self._sifting.entries(owner, await self._journal.get(owner, turn_ids))
            if not entries or self._finding is None or not self._journal.holds(owner):
                if self._finding is not None:
                    self._finding.stop_waiting(turn_ids)
                self._extract_evidence.succeed(turn_ids, proves=False)
                continue
            turns = sorted((entry.turn for entry in entries), key=lambda turn: (turn.at, turn.seq))
            facts, final = await self._finding.facts(owner, turns, epoch)
            await self._still_in(epoch, owner)
            facts = await self._obeying.filter_facts(owner, facts, turn_ids)
            await self._reconciler.apply(owner, facts, turns)
            if not final:
                self._finding.waits(turns)
                raise TransientError("the stand-in served; the extractor is still to come")
            forgetting = await self._obeying.decide(turns)
            await self._journal.mark_learned(entries)
            self._extract_evidence.succeed(turn_ids, proves=bool(facts))
            if forgetting:
                self._finding.forget(owner)
            self._finding.mark_learned(owner, turns, epoch, unshown=forgetting)

    def _count_trigger(self, trigger: Trigger) -> None:
        self._metrics.extraction_triggers.labels(trigger.value).inc()

    async def _not_extracted(self, owner: Owner, turn_ids: tuple[str, ...], error: Exception) -> bool:
        if len(turn_ids) > 1:  # one turn is at fault: try each alone
            for turn_id in turn_ids:
                self._extracting.add(owner, (turn_id,))
            return True
        return await self._count_failure(owner, self._extract_evidence, turn_ids, error)

    async def _still_in(self, epoch: int, owner: Owner) -> None:
        """TransientError if *owner* was forgotten since; turns still in the journal are newer than the forget."""
        if await self._coordination.epoch(owner) != epoch:
            raise TransientError("the owner was forgotten while we worked")


def _finding(
    extractor: FactExtractor | None, fallback: FactExtractor | None, limits: LearnLimits, now: Now
) -> Finding | None:
    if extractor is None:
        return None
    return Finding(extractor, fallback, patience=limits.patience, most=limits.stood_in_for, now=now)


def _take_up_limits(limits: LearnLimits) -> JournalPollerLimits:
    return JournalPollerLimits(limits.look, limits.sweep, limits.retention, limits.backoff)


# Interface between the learner and the topic tracker.


class TopicFollower(Protocol):
    """Groups turns into topics, in the background."""

    shifted: Callable[[Owner, str], object]  # called with the session whose topic has changed

    async def note(self, owner: Owner, turns: Sequence[Turn], last: frozenset[str]) -> None:
        """Durable when it returns; *last* are the turns that end their session."""

    async def end(self, owner: Owner, session: str, *, but: frozenset[str]) -> None:
        """End *session*, or with an empty name all sessions of *owner*, except *but*, which have turns pending."""


class TopicShifts:
    """A session's turns are due for extraction when its topic has changed. Without *topics* nothing happens."""

    def __init__(self, topics: TopicFollower | None, gatherings: SessionBatcher) -> None:
        self._topics, self._gatherings = topics, gatherings
        if topics is not None:
            topics.shifted = self._flush_session

    async def note(self, turns: Iterable[Turn], last: Iterable[str]) -> None:
        """Before the turns can be marked learned, so that a crash in between loses none of them. TransientError
        where they cannot be written down now."""
        if self._topics is None:
            return
        by_owner: dict[Owner, list[Turn]] = {}
        for turn in turns:
            by_owner.setdefault(turn.owner, []).append(turn)
        for owner, theirs in by_owner.items():
            try:
                await self._topics.note(owner, theirs, frozenset(last))
            except PermanentError as error:  # facts are extracted all the same
                log.warning("topics.not_noted", error=type(error).__name__)

    async def end(self, owner: Owner, session: str, *, but: Iterable[str]) -> None:
        """*but*: sessions whose last turn is on its way, and ends them when it is noted."""
        if self._topics is None:
            return
        try:
            await self._topics.end(owner, session, but=frozenset(but))
        except MemoryExtprocError as error:  # it ends by itself when it has been silent for long enough
            log.warning("topics.not_ended", error=type(error).__name__)

    def _flush_session(self, owner: Owner, session: str) -> None:
        self._gatherings.flush(owner, session, Trigger.TOPIC)


# The learner's side of chat commands.


class CommandApplier(Protocol):
    """Applies remember and forget commands of a chat."""

    def of(self, turn: Turn) -> Sequence[object]:
        """Commands in *turn*; cheap."""

    async def apply(self, turns: Sequence[Turn]) -> None:
        """Repeating it changes nothing more."""

    def is_doubtful(self, turn: Turn) -> bool:
        """Whether *turn* may tell us more, which is found out by `decide`; cheap."""

    async def decide(self, turns: Sequence[Turn]) -> frozenset[str]:
        """Apply the commands of ambiguous turns. Returns the ids of turns that ask for a forget. TransientError
        while the classifier is unavailable; a repetition changes nothing more."""


class CommandStep:
    """Without *commands*, every method is a no-op."""

    def __init__(self, commands: CommandApplier | None, journal: Journal) -> None:
        self._commands, self._journal = commands, journal

    def commanding(self, entries: Iterable[JournalEntry]) -> list[Turn]:
        """Turns of *entries* that hold a command."""
        commands = self._commands
        return [entry.turn for entry in entries if commands and commands.of(entry.turn)]

    async def apply(self, turns: Sequence[Turn]) -> None:
        if self._commands and turns:
            await self._commands.apply(turns)

    def is_doubtful(self, turn: Turn) -> bool:
        """Whether *turn* must not wait for the end of its session, because it may ask for a forget."""
        return self._commands is not None and self._commands.is_doubtful(turn)

    async def decide(self, turns: Sequence[Turn]) -> frozenset[str]:
        """As Obeys.decide."""
        doubted = [turn for turn in turns if self.is_doubtful(turn)]
        return await self._commands.decide(doubted) if self._commands and doubted else frozenset()

    async def filter_facts(self, owner: Owner, facts: Sequence[Fact], turn_ids: Sequence[str]) -> Sequence[Fact]:
        """*facts* without facts of turns that were forgotten during extraction."""
        if self._commands is None or not facts:
            return facts
        there = {entry.turn.id for entry in await self._journal.get(owner, turn_ids)}
        return [fact for fact in facts if fact.turn_id in there]
