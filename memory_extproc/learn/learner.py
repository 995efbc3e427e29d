"""The write path in the background: an accepted turn is stored, then learned from.

Intake puts an exchange into the journal at once. From there a turn passes two stages, each a function of `Learner`
that a queue runs for one owner at a time:

1. `_store_messages`: judge, embed and store the messages of a turn, and obey its chat commands. Where writes are
   gathered, `_show_messages` makes them visible to the next request before.
2. `_extract_facts`: extract facts from the turns of a session, and reconcile them with the stored memories.

Queues hold turn ids only; the words are read from the journal when a turn is due, so a forget that erases the
journal also cancels queued work. For that, a forget first writes its tombstones, advances the epoch, erases the
journal, and then deletes stored rows. Each stage reads the epoch first and checks it before it writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol, Self

from memory_extproc.concurrency import HELPER_THREAD, HelperThread, Pace
from memory_extproc.errors import MemoryExtprocError, PermanentError, TransientError
from memory_extproc.learn.extract.extractor import Fact, FactExtractor, FactFinder
from memory_extproc.learn.ingest import Intake, PendingWrites, TombstoneFilter
from memory_extproc.learn.intake_log import IntakeLog
from memory_extproc.learn.messages import (
    Decisions,
    Judges,
    MessagePreparer,
    find_corrected,
    judge,
    list_outdated,
    memories_of,
)
from memory_extproc.learn.queue import (
    Evidence,
    JournalPoller,
    LearnLimits,
    OwnerQueues,
    Revival,
    SessionBatcher,
    Trigger,
    WriteBehind,
)
from memory_extproc.learn.screening import TurnScreener, Unscreened
from memory_extproc.learn.sessions import Sessions
from memory_extproc.model import Caller, Embedded, Exchanged, Owner, Turn, TurnOutcome
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


class TopicFollower(Protocol):
    """Groups turns into topics, in the background."""

    shifted: Callable[[Owner, str], object]  # called with the session whose topic has changed

    async def note(self, owner: Owner, turns: Sequence[Turn], last: frozenset[str]) -> None:
        """Durable when it returns; *last* are the turns that end their session."""

    async def end(self, owner: Owner, session: str, *, but: frozenset[str]) -> None:
        """End *session*, or with an empty name all sessions of *owner*, except *but*, which have turns pending."""


class CommandApplier(Protocol):
    """Applies remember and forget commands of a chat."""

    def of(self, turn: Turn) -> Sequence[object]:
        """Commands in *turn*; cheap."""

    async def apply(self, turns: Sequence[Turn]) -> None:
        """Repeating it changes nothing more."""

    def is_doubtful(self, turn: Turn) -> bool:
        """Whether *turn* may hold a command that only a model can tell. It must not wait for the end of its
        session, because it may ask for a forget; cheap."""

    async def decide(self, turns: Sequence[Turn]) -> frozenset[str]:
        """Apply the commands of doubtful turns. Returns the ids of turns that ask for a forget. TransientError
        while the classifier is unavailable; a repetition changes nothing more."""


class NoCommands:
    """Chat commands are switched off."""

    def of(self, _turn: Turn) -> Sequence[object]:
        return ()

    async def apply(self, turns: Sequence[Turn]) -> None:
        """Do nothing: no turn has a command."""

    def is_doubtful(self, _turn: Turn) -> bool:
        return False

    async def decide(self, _turns: Sequence[Turn]) -> frozenset[str]:
        return frozenset()


class Learner:
    """Implements ports.TurnLearner. Entering resumes the work left in the journal. Leaving finishes accepted turns,
    with extraction, within *grace*; the rest stays in the journal. Exchanges that are not in the journal yet are in
    `intake`."""

    def __init__(
        self,
        journal: Journal,
        sessions: Sessions,
        memories: MemoryWriter,
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
        helper: HelperThread = HELPER_THREAD,
        pace: Pace | None = None,  # None: learning never gives way to requests
    ) -> None:
        self._pace = pace or Pace()
        self._journal = journal
        self._memories = memories
        self._coordination = coordination
        self._limits = limits
        self._metrics = metrics
        self._reconciler = reconciler
        self._commands = commands or NoCommands()
        self._traces = traces
        self._pending = PendingWrites()
        self._store_evidence, self._extract_evidence = Evidence(store_works), Evidence(store_works)
        revival = Revival(journal, (self._store_evidence, self._extract_evidence), store_works)
        self._tombstones = TombstoneFilter(forgotten, journal)
        self._messages = MessagePreparer(embedder, judged, now=now, helper=helper)
        self._facts: FactFinder | None = None
        if extractor is not None:
            self._facts = FactFinder(
                extractor, fallback, patience=limits.patience, most=limits.stood_in_for, now=now
            )
        self.intake = Intake(
            journal, sessions, coordination, limits, metrics,
            screens=screens or Unscreened(), tombstones=self._tombstones, pending=self._pending,
            journalled=self._enqueue, ends=self.end_session, intake_log=intake_log,
            receipts=receipts,
        )  # fmt: skip
        self._show_queue, self._store_queue, self._extract_queue = self._make_queues(rng)
        self._write_behind = WriteBehind(self._enqueue_store, period=limits.gather, most=limits.gathered)
        self._batches = SessionBatcher(self._extract_queue.add, metrics, batch=limits.batch, idle=limits.idle)
        self._topics = topics
        if topics is not None:
            topics.shifted = partial(self._batches.flush, trigger=Trigger.TOPIC)
        self._poller = JournalPoller(
            journal, self._take_arrivals, limits, metrics, revive=revival.revive, now=now, rng=rng
        )
        self._unstored: dict[Owner, dict[str, str]] = {}  # turn id → session, for turns before the end of stage 1
        self._ending: set[str] = set()  # ids of these turns that end their session
        self._background: list[asyncio.Task[None]] = []
        self._closing = asyncio.Event()

    def _make_queues(self, rng: Chance) -> tuple[OwnerQueues[str], OwnerQueues[str], OwnerQueues[tuple[str, ...]]]:
        """Queues of the stages: by turn id, and by the turn ids of a part of a session."""
        limits, trace_step = self._limits, self._traces.trace_step
        queues = partial(OwnerQueues, in_vain=limits.overlaid, backoff=limits.backoff, rng=rng, pace=self._pace)
        show: OwnerQueues[str] = queues(
            "show", self._show_messages, self._store_unshown,
            at_once=limits.remembering, together=limits.together,
        )  # fmt: skip
        store: OwnerQueues[str] = queues(
            "remember", trace_step("learn.remember", self._store_messages), self._fail_to_store,
            at_once=limits.remembering, together=limits.together,
        )  # fmt: skip
        extract: OwnerQueues[tuple[str, ...]] = queues(
            "extract", trace_step("learn.extract", self._extract_batches), self._fail_to_extract,
            at_once=limits.extracting, together=1,
        )  # fmt: skip
        return show, store, extract

    def reconfigure(self, limits: LearnLimits) -> None:
        """From now on: a change of the configuration. How many owners' messages are stored at a time stays."""
        self._limits = limits
        self.intake.reconfigure(limits)
        if self._facts is not None:
            self._facts.reconfigure(limits.patience)
        self._batches.reconfigure(batch=limits.batch, idle=limits.idle)
        self._extract_queue.reconfigure(at_once=limits.extracting)
        self._poller.reconfigure(limits)

    async def __aenter__(self) -> Self:
        self._background = [
            asyncio.create_task(self._poller.arrivals(self._closing), name="journal take-up"),
            asyncio.create_task(self._poller.look_after(self._closing), name="journal sweep"),
            asyncio.create_task(self.intake.catch_up(self._closing), name="intake"),
            asyncio.create_task(self.intake.tend(self._closing), name="intake log"),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing.set()
        self.intake.close()
        try:
            async with asyncio.timeout(self._limits.grace.total_seconds()):
                await self.intake.finish()
                await asyncio.gather(*self._background)
                await self._show_queue.finish()
                self._write_behind.flush()
                await self._store_queue.finish()
                self._batches.flush_all()
                await self._extract_queue.finish()
                await self._poller.measure()
        except TimeoutError:
            log.warning("learn.drain_cut_short")
        finally:
            self._batches.close()
            self._write_behind.close()
            for task in self._background:
                task.cancel()
            await asyncio.gather(*self._background, return_exceptions=True)
            await self.intake.stop()
            await self._show_queue.stop()
            await self._store_queue.stop()
            await self._extract_queue.stop()
            self._pending.release_all()

    async def accept(self, exchanged: Exchanged) -> TurnOutcome:
        return await self.intake.accept(exchanged)

    async def wait_visible(self, caller: Caller) -> None:
        if not self._pace.is_busy():  # else learning is put off, and waiting for it takes longer than is worth
            await self._pending.wait_visible(caller.owner)

    async def end_session(self, caller: Caller) -> None:
        """Facts of this session, or of all the caller's when none is named, are extracted as soon as the
        messages accepted so far are stored."""
        try:  # another replica or a later process may extract from them
            await self._journal.end(caller.owner, caller.session)
        except MemoryExtprocError as error:
            log.warning("session.end_not_noted", error=type(error).__name__)
        unstored = self._unstored.get(caller.owner, {})
        last_of = {session: turn_id for turn_id, session in unstored.items() if caller.session in {"", session}}
        self._ending.update(last_of.values())
        for session in self._batches.sessions(caller.owner):
            if caller.session in {"", session} and session not in last_of:
                self._batches.flush(caller.owner, session)
        await self._end_topics(caller.owner, caller.session, but=frozenset(last_of))

    def _enqueue(self, turn: Turn, *, arrived: bool = False) -> None:
        """*arrived*: another process may have stored it, and a person corrected it, so it is not shown first."""
        self._traces.keep(turn.id)
        self._unstored.setdefault(turn.owner, {})[turn.id] = turn.session
        first = self._show_queue if self._limits.gather and not arrived else self._store_queue
        if first.add(turn.owner, turn.id):
            self._pending.add(turn.owner, turn.id)

    def _enqueue_store(self, owner: Owner, turn_id: str) -> None:
        if not self._store_queue.add(owner, turn_id):
            self._pending.remove(owner, [turn_id])

    async def _take_arrivals(self, arrived: Sequence[JournalEntry]) -> None:
        """Resume entries that this process did not append, each at its stage."""
        await self._hand_on([entry for entry in arrived if entry.stored])
        for entry in arrived:
            if not entry.stored:
                self._enqueue(entry.turn, arrived=True)

    # Stage 1: store the messages of turns.

    async def _show_messages(self, owner: Owner, turn_ids: Sequence[str]) -> None:
        """Show messages before they are stored, so that they can be stored together. Visible in this process alone;
        a turn that cannot be shown is stored at once."""
        shown = False
        with following(None), suppress(MemoryExtprocError):  # storing meets the error again and handles it
            shown = self._store_queue.has_room and await self._show(owner, turn_ids)
        self._write_behind.add(owner, turn_ids, at_once=not shown)

    async def _show(self, owner: Owner, turn_ids: Sequence[str]) -> bool:
        """Whether the turns are shown. Turns that forget memories, or take the place of others, are not."""
        epoch = await self._coordination.epoch(owner)
        fresh = [entry for entry in await self._read_turns(owner, turn_ids) if not entry.stored]
        commands = self._commands
        if any(entry.replaced or commands.is_doubtful(entry.turn) or commands.of(entry.turn) for entry in fresh):
            return False
        decisions = await self._messages.judge(fresh)
        rows = await self._messages.embed(decisions)
        await self._check_epoch(owner, epoch)
        if rows:
            await self._memories.show(owner, rows)
        self._messages.note_shown(fresh, decisions)
        self._pending.remove(owner, turn_ids)
        return True

    async def _store_unshown(self, owner: Owner, turn_id: str, _: Exception) -> bool:
        self._write_behind.add(owner, [turn_id], at_once=True)
        return True

    async def _store_messages(self, owner: Owner, turn_ids: Sequence[str]) -> None:
        """Stage 1. Callers wait for the first attempt at most, and only until the partition shows the rows, which
        is before the store has them."""
        try:
            epoch = await self._coordination.epoch(owner)
            entries = await self._read_turns(owner, turn_ids)
            fresh = [entry for entry in entries if not entry.stored]
            commanding = [entry.turn for entry in fresh if self._commands.of(entry.turn)]

            shown = await self._store_shown(owner, epoch, fresh)
            others = [entry for entry in fresh if entry.turn.id not in shown]
            decisions = await self._messages.judge(others)
            corrected = await find_corrected(self._memories, owner, others, decisions)
            rows = await self._messages.embed(decisions, but=corrected)
            await self._check_epoch(owner, epoch)
            # A turn with a forget stays pending until the forget is done.
            await self._put(owner, rows, visible=() if commanding else turn_ids)
            if outdated := list_outdated(others, decisions) - corrected:
                await self._memories.delete(owner, sorted(outdated))

            await self._commands.apply(commanding)
            if commanding and self._facts:
                self._facts.forget(owner)
            await self._journal.mark_stored(fresh)
        finally:
            self._messages.drop_shown(turn_ids)  # a retry reads their words again
            self._pending.remove(owner, turn_ids)
        done = [one for theirs in (shown | decisions).values() for one in theirs]
        self._store_evidence.succeed(turn_ids, proves=any(one.memory is not None for one in done))
        for one in done:
            self._metrics.remembered.labels(one.role.value, one.decision.value).inc()
        await self._hand_on(entries)
        self._drop_unstored(owner, turn_ids)

    async def _store_shown(self, owner: Owner, epoch: int, entries: Sequence[JournalEntry]) -> Decisions:
        """Store messages of *entries* that were shown, with corrections made since. Returns the decisions on them:
        none where they are too many for a call, or no longer shown."""
        shown = self._messages.find_shown(entries)
        ids = [memory.id for memory in memories_of(shown)]
        if not ids or len(ids) > self._limits.rows:
            return {}
        await self._check_epoch(owner, epoch)
        return shown if await self._memories.store_shown(owner, ids) else {}

    async def _put(self, owner: Owner, rows: Sequence[Embedded], visible: Sequence[str]) -> None:
        """Store *rows*. Callers who wait for the turns *visible* go on when the last row can be found."""
        most = self._limits.rows
        for start in range(0, len(rows), most):
            last = start + most >= len(rows)
            shown = partial(self._pending.remove, owner, visible if last else ())
            await self._memories.put(owner, rows[start : start + most], shown=shown)

    async def _hand_on(self, entries: Sequence[JournalEntry]) -> None:
        """Pass stored turns to stage 2. The lease holder of the owner extracts facts; a turn handed on without a
        local holder is taken by another replica."""
        ours = [entry for entry in entries if self._journal.holds(entry.turn.owner)]
        await self._note_topics([entry.turn for entry in ours])
        ending = frozenset(self._ending)
        # From here on, the end of the session need not wait for these turns.
        for entry in entries:
            self._drop_unstored(entry.turn.owner, [entry.turn.id])
        if self._facts is None:
            await self._journal.mark_learned(ours)
            return
        for turn in (entry.turn for entry in ours):
            self._batches.add(turn.owner, turn.session, turn.id, last=turn.last or turn.id in ending)
            if self._commands.is_doubtful(turn):
                self._batches.flush(turn.owner, turn.session, Trigger.COMMAND)

    async def _note_topics(self, turns: Sequence[Turn]) -> None:
        """Pass turns to the topic follower, with the ends of their sessions, also an end that arrived meanwhile.
        Before the turns can be marked learned, so that a crash in between loses none of them. TransientError where
        they cannot be written down now."""
        if self._topics is None:
            return
        ending = frozenset(self._ending)
        by_owner: dict[Owner, list[Turn]] = {}
        for turn in turns:
            by_owner.setdefault(turn.owner, []).append(turn)
        for owner, theirs in by_owner.items():
            try:
                await self._topics.note(owner, theirs, ending)
            except PermanentError as error:  # facts are extracted all the same
                log.warning("topics.not_noted", error=type(error).__name__)
        while late := [turn for turn in turns if turn.id in self._ending - ending]:
            ending |= {turn.id for turn in late}
            for turn in late:
                await self._end_topics(turn.owner, turn.session)

    async def _end_topics(self, owner: Owner, session: str, but: frozenset[str] = frozenset()) -> None:
        """*but*: sessions whose last turn is on its way, and ends them when it is noted."""
        if self._topics is None:
            return
        try:
            await self._topics.end(owner, session, but=but)
        except MemoryExtprocError as error:  # it ends by itself when it has been silent for long enough
            log.warning("topics.not_ended", error=type(error).__name__)

    def _drop_unstored(self, owner: Owner, turn_ids: Sequence[str]) -> None:
        unstored = self._unstored.get(owner, {})
        for turn_id in turn_ids:
            unstored.pop(turn_id, None)
            self._ending.discard(turn_id)
        if not unstored:
            self._unstored.pop(owner, None)

    async def _fail_to_store(self, owner: Owner, turn_id: str, error: Exception) -> bool:
        done = await self._count_failure(owner, self._store_evidence, [turn_id], error)
        if done:
            self._drop_unstored(owner, [turn_id])
        return done

    # Stage 2: extract facts from the turns of a session, and reconcile them.

    async def _extract_batches(self, owner: Owner, batches: Sequence[tuple[str, ...]]) -> None:
        for turn_ids in batches:
            await self._extract_facts(owner, turn_ids)

    async def _extract_facts(self, owner: Owner, turn_ids: tuple[str, ...]) -> None:
        """Stage 2."""
        epoch = await self._coordination.epoch(owner)
        entries = await self._read_turns(owner, turn_ids)
        if not entries or self._facts is None or not self._journal.holds(owner):
            if self._facts is not None:
                self._facts.stop_waiting(turn_ids)
            self._extract_evidence.succeed(turn_ids, proves=False)
            return
        turns = sorted((entry.turn for entry in entries), key=lambda turn: (turn.at, turn.seq))

        facts, final = await self._facts.find(owner, turns, epoch)
        await self._check_epoch(owner, epoch)
        if facts:  # a chat command may have forgotten some of the turns meanwhile
            there = {entry.turn.id for entry in await self._journal.get(owner, turn_ids)}
            facts = [fact for fact in facts if fact.turn_id in there]
        await self._reconciler.apply(owner, facts, turns)
        if not final:
            self._facts.wait_for_extractor(turns)
            raise TransientError("the stand-in served; the extractor is still to come")

        forgetting = await self._commands.decide([turn for turn in turns if self._commands.is_doubtful(turn)])
        await self._journal.mark_learned(entries)
        self._extract_evidence.succeed(turn_ids, proves=bool(facts))
        if forgetting:
            self._facts.forget(owner)
        self._facts.mark_learned(owner, turns, epoch, unshown=forgetting)

    async def _fail_to_extract(self, owner: Owner, turn_ids: tuple[str, ...], error: Exception) -> bool:
        if len(turn_ids) > 1:  # one turn is at fault: try each alone
            for turn_id in turn_ids:
                self._extract_queue.add(owner, (turn_id,))
            return True
        return await self._count_failure(owner, self._extract_evidence, turn_ids, error)

    # Both stages.

    async def _read_turns(self, owner: Owner, turn_ids: Sequence[str]) -> Sequence[JournalEntry]:
        """The journal's entries of *turn_ids* that were not forgotten."""
        return await self._tombstones.filter_entries(owner, await self._journal.get(owner, turn_ids))

    async def _check_epoch(self, owner: Owner, epoch: int) -> None:
        """TransientError if *owner* was forgotten since; turns still in the journal are newer than the forget."""
        if await self._coordination.epoch(owner) != epoch:
            raise TransientError("the owner was forgotten while we worked")

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
