"""Group callers' turns into topics, and store summaries of topics and sessions, in the background.

Pending work is in one record per owner, so another process can continue it; an abandoned session is finished when
its owner returns. Ids derive from turns, so a repetition changes nothing. A lease lets one process at a time work
for an owner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Self

from cachetools import LRUCache

from memory_extproc.concurrency import Backoff, wait_for_event
from memory_extproc.errors import MemoryExtprocError, PermanentError, TransientError
from memory_extproc.model import Owner, Turn, format_origin
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Coordination, EmbeddingModel, Now, Steady
from memory_extproc.settings import CurrentSettings
from memory_extproc.topics import state
from memory_extproc.topics.state import (
    MOST_TURNS,
    Decided,
    DecidingMeasure,
    EmbeddedTurn,
    OpenSessions,
    OpenTopic,
    SaidTurn,
    Sayings,
    Thread,
    TopicTurn,
    TurnWords,
    decide,
    embed_turns,
)
from memory_extproc.topics.summarizer import Summaries
from memory_extproc.topics.writer import Checks, Closing

log = logger(__name__)
_SWAPS = 16  # tries of a compare-and-swap that others keep winning
_BEFORE = 3  # turns of the open topic that a model is shown
_RENEWALS = 3  # of a lease while it lasts

_TOPICS_HELD = 1_000


class TopicDecider:
    """Decides which turns begin a new topic. Holds the vectors of the topics that are open here."""

    def __init__(
        self,
        sayings: Sayings,
        summaries: Summaries,
        embedder: EmbeddingModel,
        current: CurrentSettings,
        metrics: Metrics,
    ) -> None:
        self._sayings, self._summaries, self._embedder = sayings, summaries, embedder
        self._current, self._metrics = current, metrics
        self._held: LRUCache[tuple[Owner, str], tuple[bytes, OpenTopic]] = LRUCache(_TOPICS_HELD)

    async def read(self, owner: Owner, turns: Sequence[SaidTurn]) -> list[tuple[TurnWords, EmbeddedTurn | None]]:
        """The stored words of *turns*, and their vectors where the user said something."""
        said = await self._sayings.of(owner, turns)
        return list(zip(said, await self._embed(said), strict=True))

    async def decide(
        self, owner: Owner, thread: Thread, topic: OpenTopic, said: TurnWords, heard: EmbeddedTurn | None
    ) -> Decided:
        section = self._current.settings.topics
        if thread.size + len(said.text) > section.characters or len(thread.open) >= MOST_TURNS:
            decided = Decided(shift=bool(thread.open), stage=DecidingMeasure.FULL)
        else:
            decided = decide(topic, heard, section)
        if decided.doubtful and self._summaries.asks_models:
            before = await self._sayings.of(owner, thread.open[-_BEFORE:])
            same = await self._summaries.same(owner, [one for one in before if one.messages], said)
            if same is not None:
                decided = Decided(shift=not same, stage=DecidingMeasure.MODEL)
        self._metrics.topic_checks.labels(decided.stage.value, "shift" if decided.shift else "same").inc()
        return decided

    async def _embed(self, said: Sequence[TurnWords]) -> list[EmbeddedTurn | None]:
        there = [one for one in said if one.asked]
        embedded = await embed_turns(self._embedder, [(one.beginnings[0], one.beginnings[-1]) for one in there])
        found = {one.turn.id: turn for one, turn in zip(there, embedded, strict=True)}
        return [found.get(one.turn.id) for one in said]

    async def open_topic(self, owner: Owner, thread: Thread) -> OpenTopic:
        """The open topic from memory, or rebuilt from stored messages after an eviction or a change of process."""
        held = self._held.get((owner, thread.session))
        if held is not None and thread.open and held[0] == thread.open[-1].id:
            return held[1]
        topic = OpenTopic()
        for one, heard in await self.read(owner, thread.open):
            topic.add(heard, one.messages)
        return topic

    def hold(self, owner: Owner, thread: Thread, topic: OpenTopic) -> None:
        if thread.open:
            self._held[owner, thread.session] = (thread.open[-1].id, topic)

    def drop(self, owner: Owner, session: str) -> None:
        self._held.pop((owner, session), None)

    def forget(self, owner: Owner) -> None:
        for key in [key for key in self._held if key[0] == owner]:
            del self._held[key]


class TopicTracker:
    """Entering begins the work; leaving ends every session that goes on here, within `shutdown.flush`."""

    SESSIONS = 16  # open sessions per owner; beyond it the least recently used session ends
    TOPICS = 40  # topics in one summary of a session
    OWNERS = 10_000  # with work to be done, in this process
    AT_ONCE = 2  # of them worked for at a time
    KEEP = timedelta(days=30)  # how long a session is known
    LEASE = timedelta(minutes=3)
    BACKOFF = Backoff(timedelta(seconds=1))  # between attempts at an owner's work
    LOOK = timedelta(seconds=1)  # between two looks for sessions that fell silent

    def __init__(
        self,
        decider: TopicDecider,
        closing: Closing,
        coordination: Coordination,
        current: CurrentSettings,
        metrics: Metrics,
        *,
        now: Now,
        monotonic_now: Steady | None = None,
        holder: str,
    ) -> None:
        self._decider, self._closing, self._coordination = decider, closing, coordination
        self._metrics, self._current, self._now, self._holder = metrics, current, now, holder
        self.shifted: Callable[[Owner, str], object] = _nobody  # called with the session whose topic has changed
        self._monotonic_now = monotonic_now or now
        self._silences = Silences(now, self._monotonic_now)
        self._wanted: set[Owner] = set()
        self._tasks: dict[Owner, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(self.AT_ONCE)
        self._leaving = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._looking = asyncio.create_task(self._look(), name="topics")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._leaving.set()
        try:
            async with asyncio.timeout(self._current.settings.shutdown.flush.total_seconds()):
                for owner in self._silences.owners:
                    await self._end_quietly(owner)
                await self.quiet()
        except TimeoutError:
            log.warning("topics.drain_cut_short")
        finally:
            tasks = [*self._tasks.values(), *([self._looking] if self._looking else [])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def note(self, owner: Owner, turns: Sequence[Turn], last: frozenset[str] = frozenset()) -> None:
        """Record *turns*; they are durable on return and processed later. *last*: ids of turns that end their
        session. A repetition changes nothing."""
        now = self._now()
        handed = [
            TopicTurn(
                turn.session,
                turn.project,
                format_origin(turn.origin),
                SaidTurn(bytes.fromhex(turn.id), turn.seq, turn.at.timestamp()),
                turn.last or turn.id in last,
            )
            for turn in turns
        ]
        if not handed:
            return
        await self._change(owner, lambda known: state.add_turns(known, handed, now.timestamp(), self.SESSIONS))
        for turn in turns:
            self._silences.note_seen(owner, turn.session, now.timestamp())
        self._nudge(owner)

    async def end(self, owner: Owner, session: str, *, but: frozenset[str] = frozenset()) -> None:
        """End *session*, or with an empty name all of *owner*'s, except *but*, which has turns pending."""
        await self._change(owner, lambda known: state.end_session(known, session, but))
        self._nudge(owner)

    def forget(self, owner: Owner) -> None:
        """Drop the open topics of *owner* that are held in process."""
        self._decider.forget(owner)

    async def quiet(self) -> None:
        """Returns when nothing is left to be done at once."""
        while self._tasks:
            await asyncio.wait(self._tasks.values())

    def look(self) -> None:
        """Has sessions that fell silent finished."""
        for owner in self._silences.longer_than(self._current.settings.topics.idle):
            self._nudge(owner)

    async def _look(self) -> None:
        while not await wait_for_event(self._leaving, self.LOOK.total_seconds()):
            self.look()

    async def _end_quietly(self, owner: Owner) -> None:
        try:
            await self.end(owner, "")
        except MemoryExtprocError as error:
            log.warning("topics.not_ended", error=type(error).__name__)

    def _nudge(self, owner: Owner) -> None:
        if owner not in self._wanted and len(self._wanted) >= self.OWNERS:
            return  # it stands in the record, and is done when the owner says something again
        self._wanted.add(owner)
        if owner not in self._tasks:
            task = self._tasks[owner] = asyncio.create_task(self._run(owner), name="topics of an owner")
            task.add_done_callback(lambda done: self._ran(owner, done))

    def _ran(self, owner: Owner, task: asyncio.Task[None]) -> None:
        del self._tasks[owner]
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            # A bug: the work waits until the owner's next turn.
            log.error("topics.failed", error=type(error).__name__)
            self._wanted.discard(owner)
            self._silences.drop(owner)
        elif owner in self._wanted:
            self._nudge(owner)

    async def _run(self, owner: Owner) -> None:
        failures = 0
        while owner in self._wanted:
            self._wanted.discard(owner)
            try:
                async with self._slots:
                    await self._work(owner)
            except MemoryExtprocError as error:
                failures += 1
                log.warning("topics.waits", error=type(error).__name__, failures=failures)
                if self._leaving.is_set() or isinstance(error, PermanentError):
                    self._silences.drop(owner)
                    return
                self._wanted.add(owner)
                await wait_for_event(self._leaving, self.BACKOFF.seconds(failures))
            else:
                failures = 0

    async def _work(self, owner: Owner) -> None:
        lease = f"topics:{owner.key}"
        if not await self._coordination.acquire(lease, self._holder, self.LEASE):
            raise TransientError("another process follows this owner's topics")
        try:
            known = await self._threads(owner)
            renewed = self._monotonic_now()
            for session in [thread.session for thread in known.sessions if self._waits_for_us(owner, thread)]:
                if self._monotonic_now() - renewed >= self.LEASE / _RENEWALS:  # each costs a commit
                    await self._coordination.acquire(lease, self._holder, self.LEASE)
                    renewed = self._monotonic_now()
                await self._follow(owner, session)
        finally:
            await self._coordination.release(lease, self._holder)
        self._silences.go_on(owner, (await self._threads(owner)).sessions)

    async def _follow(self, owner: Owner, session: str) -> None:
        epoch = await self._coordination.epoch(owner)

        async def checks() -> None:
            if await self._coordination.epoch(owner) != epoch:
                raise TransientError("the owner was forgotten while we worked")

        thread = await self._gather(owner, session)
        if thread is None:
            return
        # Written together where that costs no summary if we end in between: each write is a commit.
        unwritten: list[Callable[[Thread], Thread]] = []
        if over := self._is_over(owner, thread):
            unwritten.append(state.closed_topic)
            thread = state.closed_topic(thread)
        for group in thread.closing:
            if len(unwritten) > 1:
                thread = await self._replace(owner, session, partial(_apply, unwritten))
                unwritten = []
            written = await self._closing.topic(owner, thread, group, checks)
            self._metrics.topics.labels("written" if written else "small").inc()
            unwritten.append(partial(state.summed_up, group=group))
            thread = state.summed_up(thread, group)
        if over or self._is_full(thread):
            await self._finish(owner, thread, unwritten, checks)
        elif unwritten:
            await self._replace(owner, session, partial(_apply, unwritten))

    async def _finish(
        self, owner: Owner, thread: Thread, unwritten: Sequence[Callable[[Thread], Thread]], checks: Checks
    ) -> None:
        """*unwritten*: changes of *thread* that the record does not have yet."""
        before = state.earlier(await self._threads(owner), thread.session)
        summary = await self._closing.session(owner, thread, before, checks) if thread.closed else ""
        summed = len(thread.closed)

        def drop_finished(known: OpenSessions) -> OpenSessions:
            there = known.of(thread.session)
            known = known if there is None else known.beside(_apply(unwritten, there))
            return state.drop_summed(known, thread.session, summed, summary)

        await self._change(owner, drop_finished)
        self._decider.drop(owner, thread.session)

    def _waits_for_us(self, owner: Owner, thread: Thread) -> bool:
        return bool(thread.fresh or thread.closing) or self._is_over(owner, thread) or self._is_full(thread)

    def _is_full(self, thread: Thread) -> bool:
        return len(thread.closed) >= self.TOPICS

    def _is_over(self, owner: Owner, thread: Thread) -> bool:
        silent = self._silences.of(owner, thread) >= self._current.settings.topics.idle
        return (thread.ended or silent) and not thread.fresh

    async def _gather(self, owner: Owner, session: str) -> Thread | None:
        """The session with every fresh turn in its topic; None where there is none any more."""
        thread = (await self._threads(owner)).of(session)
        if thread is None or not thread.fresh:
            return thread
        fresh = sorted(thread.fresh, key=lambda turn: (turn.seq, turn.at))
        read = await self._decider.read(owner, fresh)
        topic = await self._decider.open_topic(owner, thread)
        for one, vectors in read:
            decided = await self._decider.decide(owner, thread, topic, one, vectors)
            shift = decided.shift
            if shift or not thread.open:
                self._metrics.topics.labels("opened").inc()
            joined = partial(state.gather_turn, turn=one.turn, size=len(one.text), shift=shift)
            thread = await self._replace(owner, session, joined)
            topic = OpenTopic() if shift else topic
            topic.add(vectors, one.messages)
            self._decider.hold(owner, thread, topic)
            if shift:
                self.shifted(owner, session)
        return thread

    async def _threads(self, owner: Owner) -> OpenSessions:
        return state.read(await self._coordination.get_record(state.KIND, owner, ""))

    async def _change(self, owner: Owner, change: Callable[[OpenSessions], OpenSessions]) -> OpenSessions:
        for _ in range(_SWAPS):
            raw = await self._coordination.get_record(state.KIND, owner, "")
            known = state.read(raw)
            changed = change(known)
            if changed == known:
                return known
            if await self._coordination.replace_record(
                state.KIND, owner, "", raw, state.encode_threads(changed), self.KEEP
            ):
                return changed
        raise TransientError("a record of topics that others keep changing")

    async def _replace(self, owner: Owner, session: str, change: Callable[[Thread], Thread]) -> Thread:
        def change_thread(known: OpenSessions) -> OpenSessions:
            thread = known.of(session)
            return known if thread is None else known.beside(change(thread))

        thread = (await self._change(owner, change_thread)).of(session)
        if thread is None:
            raise TransientError("the session was forgotten while we worked")
        return thread


def _apply(changes: Sequence[Callable[[Thread], Thread]], thread: Thread) -> Thread:
    for change in changes:
        thread = change(thread)
    return thread


def _nobody(_owner: Owner, _session: str) -> None:
    """Without a listener."""


# Measure the silence of sessions independently of changes of the wall clock.


class Silences:
    """Silence of the open sessions here. Records hold wall-clock times: such a time is used once, when the session
    is first seen, and later silence is measured by the monotonic clock."""

    def __init__(self, now: Now, monotonic_now: Steady) -> None:
        self._now, self._monotonic_now = now, monotonic_now
        # By session: the recorded time, and the monotonic time of reading it.
        self._heard: dict[Owner, dict[str, tuple[float, datetime]]] = {}

    @property
    def owners(self) -> Sequence[Owner]:
        """Owners with sessions that go on."""
        return list(self._heard)

    def note_seen(self, owner: Owner, session: str, at: float) -> None:
        """*at*, in seconds since 1970, is the recorded time."""
        sessions = self._heard.setdefault(owner, {})
        if session not in sessions or sessions[session][0] != at:
            ago = timedelta(seconds=max(0.0, self._now().timestamp() - at))
            sessions[session] = at, self._monotonic_now() - ago

    def go_on(self, owner: Owner, threads: Iterable[Thread]) -> None:
        """These and no others do."""
        left = {thread.session: thread.seen_at for thread in threads}
        for session, at in left.items():
            self.note_seen(owner, session, at)
        sessions = self._heard.pop(owner, {})
        if left:
            self._heard[owner] = {session: sessions[session] for session in left}

    def of(self, owner: Owner, thread: Thread) -> timedelta:
        self.note_seen(owner, thread.session, thread.seen_at)
        return self._monotonic_now() - self._heard[owner][thread.session][1]

    def longer_than(self, idle: timedelta) -> Sequence[Owner]:
        """Owners with a session that has been silent for *idle*."""
        before = self._monotonic_now() - idle
        return [
            owner for owner, sessions in self._heard.items() if any(at <= before for _, at in sessions.values())
        ]

    def drop(self, owner: Owner) -> None:
        self._heard.pop(owner, None)
