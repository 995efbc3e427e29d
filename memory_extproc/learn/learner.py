"""The write path in the background: an accepted turn is stored, then learned from.

`Intake` puts an exchange into the journal and adds its turn here. The turn passes two stages, each a function of
`LearnStages`; `Learner` runs them for one owner at a time:

1. `store_messages`: judge, embed and store the messages of a turn, and obey its chat commands. Where writes are
   gathered, `show_messages` makes them visible to the next request before.
2. `extract_facts`: extract facts from the turns of a session, and reconcile them with the stored memories.

Queues hold turn ids only; the words are read from the journal when a turn is due, so a forget that erases the
journal also cancels queued work. For that, a forget first writes its tombstones, advances the epoch, erases the
journal, and then deletes stored rows. Each stage reads the epoch first and checks it before it writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Protocol

from memory_extproc.errors import MemoryExtprocError, PermanentError, TransientError
from memory_extproc.learn.extract.extractor import Fact, FactFinder
from memory_extproc.learn.messages import (
    Decisions,
    JudgedMessage,
    MessagePreparer,
    find_corrected,
    find_forgotten,
    list_outdated,
    memories_of,
)
from memory_extproc.learn.queue import (
    Failures,
    JournalPoller,
    OwnerQueues,
    QueuePolicy,
    SessionBatcher,
    Trigger,
    WriteBehind,
)
from memory_extproc.learn.sessions import RESPONSE, Placed
from memory_extproc.model import TEXT_KINDS, Caller, Embedded, JournalState, Owner, Turn
from memory_extproc.observe.log import NO_TRACES, Traces, following, logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Coordination, Journal, JournalEntry, MemoryWriter, Now, TombstoneReader
from memory_extproc.settings import CurrentSettings

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


class ForgetGuard:
    """Drops exchanges and turns that their owner has forgotten: before a turn goes into the journal, once it is
    there, whenever it is read from it, and before memories are written. Without *forgotten* it only notices an
    epoch that advances meanwhile."""

    def __init__(
        self, journal: Journal, coordination: Coordination, forgotten: TombstoneReader | None = None
    ) -> None:
        self._journal, self._coordination, self._forgotten = journal, coordination, forgotten

    async def epoch(self, owner: Owner) -> int:
        return await self._coordination.epoch(owner)

    async def check_epoch(self, owner: Owner, epoch: int) -> None:
        """TransientError if *owner* was forgotten since; turns still in the journal are newer than the forget."""
        if await self._coordination.epoch(owner) != epoch:
            raise TransientError("the owner was forgotten while we worked")

    async def filter_placed(self, placed: Placed) -> Placed | None:
        """The storable part of *placed*, or None. While the tombstones are unreadable it is kept: the journal is
        not recalled, and turns are filtered again before they are learned."""
        if self._forgotten is None:
            return placed
        try:
            kept = await self._forgotten.learnable(placed.exchanged, placed.turn)
        except TransientError as error:
            log.warning("learn.not_sifted", error=type(error).__name__)
            return placed
        return None if kept is None else replace(placed, exchanged=kept[0], turn=kept[1])

    async def withdraw_forgotten(self, turn: Turn) -> bool:
        """Take *turn* out of the journal again if it was forgotten while it went there. Returns whether it was."""
        if self._forgotten is None:
            return False
        try:
            gone = not await self._forgotten.filter_turns([turn])
        except TransientError:
            return False  # the forget that is under way will look into the journal
        if gone:
            await self._journal.erase(turn.owner, [turn.id])
            await self._coordination.delete_records(turn.owner, [RESPONSE])
        return gone

    async def read_turns(self, owner: Owner, turn_ids: Sequence[str]) -> Sequence[JournalEntry]:
        """The journal's entries of *turn_ids* that may be learned; the others leave the journal."""
        entries = await self._journal.get(owner, turn_ids)
        if self._forgotten is None or not entries:
            return entries
        left = {turn.id for turn in await self._forgotten.filter_turns([entry.turn for entry in entries])}
        if gone := [entry.turn.id for entry in entries if entry.turn.id not in left]:
            await self._journal.erase(owner, gone)
        return [entry for entry in entries if entry.turn.id in left]

    async def withdraw_earlier(self, turn: Turn, is_meant: Callable[[str], bool]) -> None:
        """*turn* asks for a forget of texts for which *is_meant*. Earlier turns that wait for their facts to be
        extracted, and speak of it, wait no longer: their messages are stored, and the caller erases those."""
        waiting = [
            entry
            async for entry in self._journal.of_owner(turn.owner)
            if entry.turn.id != turn.id
            and entry.turn.at <= turn.at
            and is_meant(f"{entry.turn.asked}\n{entry.turn.answered}")
        ]
        # Learned they stay for a while, so that a retry of theirs is known.
        await self._journal.mark_learned([entry for entry in waiting if entry.state is JournalState.STORED])
        unlearned = {JournalState.WAITING, JournalState.DEAD}
        if unstored := [entry.turn for entry in waiting if entry.state in unlearned]:
            if self._forgotten is not None:  # a replica may put its copies back (RestorableJournal)
                await self._forgotten.note_turns(unstored)
            await self._journal.erase(turn.owner, [one.id for one in unstored])
        # Requests in progress, here and at other replicas, have recalled blocks that no record names yet.
        await self._coordination.advance_epoch(turn.owner)
        await self._coordination.delete_records(turn.owner, TEXT_KINDS)


class PendingWrites:
    """Writes that are not visible yet. Callers wait for those of their earlier messages. One event loop owns it."""

    def __init__(self) -> None:
        self.hurry: Callable[[Owner], object] = lambda _: None  # called with an owner who waits
        self._things: dict[Owner, set[object]] = {}
        self._waiting: dict[Owner, list[asyncio.Future[None]]] = {}

    def add(self, owner: Owner, thing: object) -> None:
        self._things.setdefault(owner, set()).add(thing)
        if not all(waiter.done() for waiter in self._waiting.get(owner, ())):
            self.hurry(owner)

    def remove(self, owner: Owner, things: Iterable[object]) -> None:
        """Remove *things*; with the last write of *owner*, its waiting callers continue."""
        left = self._things.get(owner)
        if left is None:
            return
        left.difference_update(things)
        if not left:
            self._release(owner)

    async def wait_visible(self, owner: Owner) -> None:
        """Returns once there is nothing of *owner*'s; at once where there is nothing now."""
        if owner not in self._things:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, []).append(waiter)
        self.hurry(owner)
        await waiter

    def release_all(self) -> None:
        """Release all callers, with writes pending or not."""
        for owner in list(self._waiting):
            self._release(owner)

    def _release(self, owner: Owner) -> None:
        self._things.pop(owner, None)
        for waiter in self._waiting.pop(owner, ()):
            if not waiter.done():
                waiter.set_result(None)


class LearnStages:
    """The two stages of learning. Leaves it to the caller when they run, and what follows from a failure."""

    def __init__(
        self,
        journal: Journal,
        memories: MemoryWriter,
        guard: ForgetGuard,
        messages: MessagePreparer,
        facts: FactFinder | None,  # None: no facts are extracted
        reconciler: FactReconciler,
        commands: CommandApplier | None = None,  # None: chat commands are ignored
        *,
        rows: int = 256,  # memories in one call of the store: a turn can have more than a hundred
    ) -> None:
        self.pending = PendingWrites()
        self.facts = facts
        self.commands: CommandApplier = commands or NoCommands()
        self._journal, self._memories, self._guard = journal, memories, guard
        self._messages, self._reconciler, self._rows = messages, reconciler, rows

    async def show_messages(self, owner: Owner, turn_ids: Sequence[str]) -> bool:
        """Show messages before they are stored, so that they can be stored together. Visible in this process alone.
        Returns whether the turns are shown. Turns that forget memories, or take the place of others, are not."""
        epoch = await self._guard.epoch(owner)
        fresh = [entry for entry in await self._guard.read_turns(owner, turn_ids) if not entry.stored]
        commands = self.commands
        if any(entry.replaced or commands.is_doubtful(entry.turn) or commands.of(entry.turn) for entry in fresh):
            return False
        decisions = await self._messages.judge(fresh)
        rows = await self._messages.embed(decisions)
        await self._guard.check_epoch(owner, epoch)
        if rows:
            await self._memories.show(owner, rows)
        self._messages.note_shown(fresh, decisions)
        self.pending.remove(owner, turn_ids)
        return True

    async def store_messages(
        self, owner: Owner, turn_ids: Sequence[str]
    ) -> tuple[Sequence[JournalEntry], list[JudgedMessage]]:
        """Stage 1. Returns the turns, and the decisions on the messages of new turns. Callers wait for the first
        attempt at most, and only until the partition shows the rows, which is before the store has them."""
        try:
            epoch = await self._guard.epoch(owner)
            entries = await self._guard.read_turns(owner, turn_ids)
            fresh = [entry for entry in entries if not entry.stored]
            commanding = [entry.turn for entry in fresh if self.commands.of(entry.turn)]

            shown = await self._store_shown(owner, epoch, fresh)
            others = [entry for entry in fresh if entry.turn.id not in shown]
            decisions = await self._messages.judge(others)
            corrected = await find_corrected(self._memories, owner, others, decisions)
            rows = await self._messages.embed(decisions, but=corrected)
            await self._guard.check_epoch(owner, epoch)
            # A turn with a forget stays pending until the forget is done.
            await self._put(owner, rows, visible=() if commanding else turn_ids)
            if outdated := list_outdated(others, decisions) - corrected:
                await self._memories.delete(owner, sorted(outdated))

            await self.commands.apply(commanding)
            if commanding and self.facts:
                self.facts.forget(owner)
            await self._journal.mark_stored(fresh)
        finally:
            self._messages.drop_shown(turn_ids)  # a retry reads their words again
            self.pending.remove(owner, turn_ids)
        return entries, [one for theirs in (shown | decisions).values() for one in theirs]

    async def _store_shown(self, owner: Owner, epoch: int, entries: Sequence[JournalEntry]) -> Decisions:
        """Store messages of *entries* that were shown, with corrections made since. Returns the decisions on them:
        none where they are too many for a call, or no longer shown."""
        shown = self._messages.find_shown(entries)
        ids = [memory.id for memory in memories_of(shown)]
        if not ids or len(ids) > self._rows:
            return {}
        await self._guard.check_epoch(owner, epoch)
        return shown if await self._memories.store_shown(owner, ids) else {}

    async def _put(self, owner: Owner, rows: Sequence[Embedded], visible: Sequence[str]) -> None:
        """Store *rows*. Callers who wait for the turns *visible* go on when the last row can be found."""
        for start in range(0, len(rows), self._rows):
            last = start + self._rows >= len(rows)
            shown = partial(self.pending.remove, owner, visible if last else ())
            await self._memories.put(owner, rows[start : start + self._rows], shown=shown)

    async def extract_facts(self, owner: Owner, turn_ids: Sequence[str]) -> bool:
        """Stage 2. Returns whether it found facts."""
        epoch = await self._guard.epoch(owner)
        entries = await self._guard.read_turns(owner, turn_ids)
        if not entries or self.facts is None or not self._journal.holds(owner):
            if self.facts is not None:
                self.facts.stop_waiting(turn_ids)
            return False
        turns = sorted((entry.turn for entry in entries), key=lambda turn: (turn.at, turn.seq))

        facts, final = await self.facts.find(owner, turns, epoch)
        await self._guard.check_epoch(owner, epoch)
        if facts:  # a chat command may have forgotten some of the turns meanwhile
            there = {entry.turn.id for entry in await self._journal.get(owner, turn_ids)}
            stated = {fact.turn_id for fact in facts}
            there -= await find_forgotten(self._memories, owner, [turn for turn in turns if turn.id in stated])
            facts = [fact for fact in facts if fact.turn_id in there]
        await self._reconciler.apply(owner, facts, turns)
        if not final:
            self.facts.wait_for_extractor(turns)
            raise TransientError("the stand-in served; the extractor is still to come")

        forgetting = await self.commands.decide([turn for turn in turns if self.commands.is_doubtful(turn)])
        await self._journal.mark_learned(entries)
        if forgetting:
            self.facts.forget(owner)
        self.facts.mark_learned(owner, turns, epoch, unshown=forgetting)
        return bool(facts)


class Learner:
    """Runs the stages for the turns in the journal. From `start` it resumes the work left there; `finish` works off
    accepted turns, with extraction; `stop` ends all work, and the rest stays in the journal."""

    def __init__(
        self,
        stages: LearnStages,
        journal: Journal,
        policy: QueuePolicy,
        current: CurrentSettings,
        metrics: Metrics,
        *,
        now: Now,
        topics: TopicFollower | None = None,
        store_works: Callable[[], bool] = lambda: True,  # whether writes to the store succeed now
        traces: Traces = NO_TRACES,
    ) -> None:
        self.policy = policy
        self._stages, self._journal, self._current = stages, journal, current
        self._metrics, self._topics, self._traces = metrics, topics, traces
        self._failures = Failures(journal, current, store_works)
        self._show_queue, self._store_queue, self._extract_queue = self._make_queues()
        self.pending.hurry = self._hurry
        self._write_behind = WriteBehind(self._enqueue_store, period=policy.gather, most=policy.gathered)
        self._batches = SessionBatcher(self._extract_queue.add, metrics, current, batches=policy.batches)
        if topics is not None:
            topics.shifted = partial(self._batches.flush, trigger=Trigger.TOPIC)
        self._poller = JournalPoller(journal, self._failures, policy, current, metrics, now)
        self._unstored: dict[Owner, dict[str, str]] = {}  # turn id → session, for turns before the end of stage 1
        self._ending: set[str] = set()  # ids of these turns that end their session
        self._background: list[asyncio.Task[None]] = []
        self._closing = asyncio.Event()

    def _make_queues(self) -> tuple[OwnerQueues[str], OwnerQueues[str], OwnerQueues[tuple[str, ...]]]:
        """Queues of the stages: by turn id, and by the turn ids of a part of a session."""
        policy, trace_step = self.policy, self._traces.trace_step
        show = OwnerQueues[str](
            "show", self._show_messages, self._store_unshown, policy,
            at_once=lambda: policy.remembering, together=policy.together,
        )  # fmt: skip
        store = OwnerQueues[str](
            "remember", trace_step("learn.remember", self._store_messages), self._fail_to_store, policy,
            at_once=lambda: policy.remembering, together=policy.together,
        )  # fmt: skip
        extract = OwnerQueues[tuple[str, ...]](
            "extract", trace_step("learn.extract", self._extract_facts), self._fail_to_extract, policy,
            at_once=lambda: self._current.settings.learn.concurrency, together=1,
        )  # fmt: skip
        return show, store, extract

    def start(self) -> None:
        self._background = [
            asyncio.create_task(self._poller.arrivals(self._take_arrivals, self._closing), name="journal take-up"),
            asyncio.create_task(self._poller.look_after(self._closing), name="journal sweep"),
        ]

    async def finish(self) -> None:
        self._closing.set()
        await asyncio.gather(*self._background)
        await self._show_queue.finish()
        self._write_behind.flush()
        await self._store_queue.finish()
        self._batches.flush_all()
        await self._extract_queue.finish()
        await self._poller.measure()

    async def stop(self) -> None:
        self._batches.close()
        self._write_behind.close()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._show_queue.stop()
        await self._store_queue.stop()
        await self._extract_queue.stop()
        self.pending.release_all()

    @property
    def pending(self) -> PendingWrites:
        """Turns that cannot be searched yet."""
        return self._stages.pending

    async def wait_visible(self, caller: Caller) -> None:
        await self.pending.wait_visible(caller.owner)

    def _hurry(self, owner: Owner) -> None:
        """Show the turns of *owner*, who asks, before those of others: under load learning is put off."""
        if not self._show_queue.hurry(owner):
            self._store_queue.hurry(owner)

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

    def enqueue(self, turn: Turn, *, arrived: bool = False) -> None:
        """*arrived*: another process may have stored it, and a person corrected it, so it is not shown first."""
        self._traces.keep(turn.id)
        self._unstored.setdefault(turn.owner, {})[turn.id] = turn.session
        first = self._show_queue if self.policy.gather and not arrived else self._store_queue
        if first.add(turn.owner, turn.id):
            self.pending.add(turn.owner, turn.id)

    def _enqueue_store(self, owner: Owner, turn_id: str) -> None:
        if not self._store_queue.add(owner, turn_id):
            self.pending.remove(owner, [turn_id])

    async def _take_arrivals(self, arrived: Sequence[JournalEntry]) -> None:
        """Resume entries that this process did not append, each at its stage."""
        await self._hand_on([entry for entry in arrived if entry.stored])
        for entry in arrived:
            if not entry.stored:
                self.enqueue(entry.turn, arrived=True)

    async def _show_messages(self, owner: Owner, turn_ids: Sequence[str]) -> None:
        """A turn that cannot be shown is stored at once."""
        shown = False
        with following(None), suppress(MemoryExtprocError):  # storing meets the error again and handles it
            shown = self._store_queue.has_room and await self._stages.show_messages(owner, turn_ids)
        self._write_behind.add(owner, turn_ids, at_once=not shown)

    async def _store_unshown(self, owner: Owner, turn_id: str, _: Exception) -> bool:
        self._write_behind.add(owner, [turn_id], at_once=True)
        return True

    async def _store_messages(self, owner: Owner, turn_ids: Sequence[str]) -> None:
        entries, done = await self._stages.store_messages(owner, turn_ids)
        self._failures.storing.succeed(turn_ids, proves=any(one.memory is not None for one in done))
        for one in done:
            self._metrics.remembered.labels(one.role.value, one.decision.value).inc()
        await self._hand_on(entries)
        self._drop_unstored(owner, turn_ids)

    async def _hand_on(self, entries: Sequence[JournalEntry]) -> None:
        """Pass stored turns to stage 2. The lease holder of the owner extracts facts; a turn handed on without a
        local holder is taken by another replica."""
        ours = [entry for entry in entries if self._journal.holds(entry.turn.owner)]
        await self._note_topics([entry.turn for entry in ours])
        ending = frozenset(self._ending)
        # From here on, the end of the session need not wait for these turns.
        for entry in entries:
            self._drop_unstored(entry.turn.owner, [entry.turn.id])
        if self._stages.facts is None:
            await self._journal.mark_learned(ours)
            return
        for turn in (entry.turn for entry in ours):
            self._batches.add(turn.owner, turn.session, turn.id, last=turn.last or turn.id in ending)
            if self._stages.commands.is_doubtful(turn):
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
        done = await self._failures.count(owner, self._failures.storing, [turn_id], error)
        if done:
            self._drop_unstored(owner, [turn_id])
        return done

    async def _extract_facts(self, owner: Owner, batches: Sequence[tuple[str, ...]]) -> None:
        for turn_ids in batches:
            found = await self._stages.extract_facts(owner, turn_ids)
            self._failures.extracting.succeed(turn_ids, proves=found)

    async def _fail_to_extract(self, owner: Owner, turn_ids: tuple[str, ...], error: Exception) -> bool:
        if len(turn_ids) > 1:  # one turn is at fault: try each alone
            for turn_id in turn_ids:
                self._extract_queue.add(owner, (turn_id,))
            return True
        return await self._failures.count(owner, self._failures.extracting, turn_ids, error)
