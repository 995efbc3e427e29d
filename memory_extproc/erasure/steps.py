"""The steps of a forget. Each ends with an entry in the ledger and is idempotent.

The cascade finds the named memories, their derivatives, and messages that repeat them:

- A message goes with its whole turn: both sides, their pieces, and the extracted facts. The same holds for a
  message that was corrected since, because the facts still state its original words.
- A fact goes with its older versions and the messages of their turns; other facts of these turns stay, unless they
  state the same. For a fact named by id or query, all memories that repeat its words go too. So do repetitions of a
  named message, except phrases that people and assistants use at every turn.
- A memory derived from a forgotten memory (listed in `provenance.sources`) goes; its other sources stay and become
  active again. A memory drawn from several turns goes with any of them, and takes none of the others along. A fact
  that keeps details of facts that it replaced goes with each of them.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import inf
from typing import ParamSpec, Protocol, TypeVar

import msgspec

from memory_extproc.erasure.tombstones import (
    NEVER,
    NOTHING_FOUND,
    WAITING_TURNS,
    Job,
    KeyedHasher,
    TombstoneIndex,
    TombstoneKind,
    is_message,
    items_of_message,
    items_of_turn,
    moment_of,
    was_message,
)
from memory_extproc.errors import PermanentError
from memory_extproc.model import (
    TEXT_KINDS,
    ForgetScope,
    ForgetState,
    JournalState,
    Memory,
    Owner,
    Role,
    Turn,
    WaitingPlace,
)
from memory_extproc.observe.log import logger
from memory_extproc.ports import Coordination, Journal, KeyStore, Ledger, MemoryStore, Now, Replicas, StorePurger
from memory_extproc.text.words import normal, stems, word_set

log = logger(__name__)
P = ParamSpec("P")
R = TypeVar("R")
_PAGE = 500
_MANY = 500  # memories that are worked on beside the event loop: of fewer, that takes some milliseconds
_UNLEARNED = frozenset({JournalState.WAITING, JournalState.STORED, JournalState.DEAD})
_NOT_PURGED = "the server purges deleted rows by compaction, garbage collection and the retention of its log"


class ExclusivePartition(Protocol):
    """An owner's partition with all other writers excluded."""

    @property
    def list_unstored(self) -> Callable[[], Sequence[Memory]]: ...
    @property
    def delete(self) -> Callable[[Sequence[str]], Awaitable[None]]: ...
    @property
    def delete_all(self) -> Callable[[], Awaitable[None]]: ...


class ForgettablePartitions(Protocol):
    """The part of the partitions that a forget uses."""

    def alone(self, owner: Owner) -> AbstractAsyncContextManager[ExclusivePartition]: ...
    def drop(self, owner: Owner) -> None: ...
    def list_unstored(self, owner: Owner) -> Sequence[Memory]: ...


class PendingMemorySource(Protocol):
    """Predicts the memories of waiting turns, with their future ids."""

    @property
    def complete(self) -> bool:
        """Whether `foresee_facts` predicts every fact."""

    async def foresee_messages(self, turns: Sequence[Turn]) -> Sequence[Memory]: ...

    async def foresee_facts(self, turns: Sequence[Turn]) -> Sequence[Memory]: ...


@dataclass(frozen=True, slots=True)
class Waiting:
    """Turns accepted before a forget and not learned yet.

    *places*: where they are unreachable; *turns*: ids of turns in the journal whose facts cannot all be predicted.
    """

    places: tuple[WaitingPlace, ...] = ()
    turns: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Known:
    """All memories of an owner; *coming* are predicted and not stored yet."""

    rows: Mapping[str, Memory]
    coming: Mapping[str, Memory]
    turns: Sequence[Turn]
    missing: frozenset[str]  # requested ids that do not exist


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasable:
    """All parts that hold user data."""

    store: MemoryStore  # the store itself, not the tombstone filter
    partitions: ForgettablePartitions
    journal: Journal
    coordination: Coordination
    replicas: Replicas
    purges: StorePurger
    caches: Sequence[Callable[[Owner], None]] = ()  # of this process; each drops its entries of an owner
    keys: KeyStore | None = None
    foresees: PendingMemorySource | None = None
    # Discards an owner's exchanges asked before a time that wait in this process for a place in the journal.
    discard_waiting: Callable[[Owner, datetime], int] = lambda _owner, _until: 0


class Eraser:
    """The steps. On TransientError or PermanentError the step must be repeated from its beginning."""

    def __init__(
        self,
        ledger: Ledger,
        forgotten: TombstoneIndex,
        holders: Erasable,
        *,
        server_purge: timedelta,
        now: Now,
    ) -> None:
        """*server_purge*: the longest time until a server purges deleted rows from its files."""
        self._ledger, self._forgotten, self._holders = ledger, forgotten, holders
        self._server_purge, self._now = server_purge, now

    async def rows(self, owner: Owner) -> AsyncIterator[Memory]:
        async for page in self._holders.store.pages(owner, _PAGE, fresh=True):
            for row in page:
                yield row.memory

    async def collect_items(self, owner: Owner, scope: ForgetScope, until: float) -> set[bytes]:
        """The items of *scope* known without a store: requested ids, and memories held only in this process."""
        blind = await self._forgotten.blind()
        asked = {*scope.ids, *scope.listed} - {""} if scope.by_id_alone else set()
        items = {blind.item(TombstoneKind.MEMORY, owner, one) for one in asked}
        unstored = self._holders.partitions.list_unstored(owner)
        return items | cascade(unstored, scope, until, self._now().timestamp()).items(blind)

    async def find_waiting(self, job: Job) -> Waiting:
        """Turns that keep *job* from being clean after all reachable data is erased."""
        places = await self._holders.replicas.waiting(_owner(job))
        places = [one for one in places if one.since is None or one.since <= job.at]
        foresees = self._holders.foresees
        turns = set[str]()
        if _scope(job).ids and (foresees is None or not foresees.complete):
            entries = self._holders.journal.of_owner(_owner(job))
            turns = {
                entry.turn.id async for entry in entries if entry.state in _UNLEARNED and entry.turn.at <= job.at
            }
        return Waiting(tuple(places), frozenset(turns))

    async def clean(self, job: Job, waiting: Waiting) -> Job:
        """Steps 2 and 3 of a forget (forgetter.py): recall cannot find the data from here on.

        Returns the job as clean, or with the turns it waits for, which may have arrived since the last call."""
        owner, holders = _owner(job), self._holders
        self._forgotten.renew(job.subject)
        self._drop(owner)
        await holders.coordination.advance_epoch(owner)
        await self._holders.replicas.tell(job.subject)
        self._forgotten.renew(job.subject)  # replicas have added items that only they knew
        async with holders.partitions.alone(owner) as alone:
            known = await self._gather(job, alone)
            taken = await compute_cascade(
                [*known.rows.values(), *known.coming.values()], _scope(job), job.until, self._now().timestamp()
            )
            job, left = await self._erase(job, known, taken, alone)
        job = await self._records_gone(job)
        # An unknown id may belong to a turn still waiting to be learned.
        turns = waiting.turns & left if job.steps["memories"].note else frozenset()
        job = self._settle(job, waiting.places, len(turns))
        await self._ledger.write(job.to_ledger())
        self._drop(owner)
        self._forgotten.renew(job.subject)
        if job.state is ForgetState.CLEAN:
            log.info("forget.clean", scope=job.name, memories=job.steps["memories"].removed)
        else:
            log.warning("forget.waits_for_turns", scope=job.name, places=len(waiting.places), turns=len(turns))
        return job

    def _settle(self, job: Job, places: Sequence[WaitingPlace], turns: int) -> Job:
        notes = [f"in the journal: {turns}"] if turns else []
        if places:
            names = ", ".join(f"{one.name}{'' if one.live else ' (no replica runs on it)'}" for one in places)
            notes.append(f"in data directories: {len(places)} ({names})")
        if notes:
            return job.pends(WAITING_TURNS, f"turns accepted before it wait to be learned; {'; '.join(notes)}")
        if WAITING_TURNS in job.steps:
            job = job.mark_done(WAITING_TURNS, self._now())
        return msgspec.structs.replace(job, state=ForgetState.CLEAN, clean_at=self._now())

    async def _gather(self, job: Job, alone: ExclusivePartition) -> _Known:
        owner, scope, foresees = _owner(job), _scope(job), self._holders.foresees
        rows = {memory.id: memory async for memory in self.rows(owner)}
        rows |= {memory.id: memory for memory in alone.list_unstored()}
        entries = [entry async for entry in self._holders.journal.of_owner(owner)]
        unlearned = [entry.turn for entry in entries if entry.state in _UNLEARNED]
        coming: dict[str, Memory] = {}
        if foresees is not None and not scope.everything:
            coming = {one.id: one for one in await foresees.foresee_messages(unlearned) if one.id not in rows}
        missing = {*scope.ids} - {""} - rows.keys() - coming.keys()
        if missing and foresees is not None:
            coming |= {one.id: one for one in await foresees.foresee_facts(unlearned) if one.id in missing}
        missing -= coming.keys()
        return _Known(rows, coming, [entry.turn for entry in entries], frozenset(missing))

    async def _erase(
        self, job: Job, known: _Known, taken: Cascade, alone: ExclusivePartition
    ) -> tuple[Job, frozenset[str]]:
        """Erase the data and return the ids of the turns left.

        Hashes are written first, so that a crash in between cannot undo the erasure."""
        owner, scope, journal, rows = _owner(job), _scope(job), self._holders.journal, known.rows
        late = job.waits_for_turns  # others read and write meanwhile, and their new data must stay
        blind = await self._forgotten.blind()
        items = await _run_off_loop(len(taken.memories), taken.items, blind)
        await self._add_items(job, items | await self.collect_items(owner, scope, job.until))
        if taken.misdated:
            named = {blind.item(TombstoneKind.MEMORY, owner, one) for one in taken.misdated}
            await self._add_items(job, named, max(taken.misdated.values()))
        marks = await self._forgotten.of(owner)
        now = self._now().timestamp()

        def is_forgotten(turn: Turn) -> bool:
            at = turn.at.timestamp()  # behind the present: a clock was set back
            with_others = turn.id in taken.turns | taken.quoted and (at <= job.until or at > now)
            return with_others or (scope.everything and not late and at > now) or marks.covers_turn(turn)

        # A turn costs as much as ten memories: every possible piece of it is looked up.
        turns = await _run_off_loop(
            10 * len(known.turns), lambda: [turn for turn in known.turns if is_forgotten(turn)]
        )
        job = _note_missing(job, known, anything=bool(turns or taken.memories))
        await self._add_items(job, set().union(*(items_of_turn(blind, turn) for turn in turns)))
        if turns:
            job = job.add_removed("journal", await journal.erase(owner, [turn.id for turn in turns]))
        if scope.everything:
            job = job.add_removed("journal", self._holders.discard_waiting(owner, job.at))
        # After a crash in here part of the data, and with it the links to the rest, is gone; the tombstones cover
        # the rest.
        ids = (taken.memories.keys() & rows.keys()) | {one for one, memory in rows.items() if marks.covers(memory)}
        # Unreadable rows are in no listing: they are erased with the others, even if there are no others.
        unread = not rows and scope.everything and await self._holders.store.count(owner) > 0
        if not late and (unread or (ids and len(ids) == len(rows))):
            await alone.delete_all()
        elif ids:
            await alone.delete(sorted(ids))
        if scope.everything and not late and self._holders.keys is not None:
            await self._holders.keys.destroy(owner)
        job = job.add_removed("memories", len(ids)).mark_done("journal", self._now())
        left = frozenset(turn.id for turn in known.turns) - {turn.id for turn in turns}
        return job.pends("files", "deleted rows are being purged from the store's files"), left

    async def _add_items(self, job: Job, items: set[bytes], at: float | None = None) -> None:
        await self._ledger.write(job.to_ledger(), items=sorted(items), at=job.until if at is None else at)
        self._forgotten.renew(job.subject)

    async def _records_gone(self, job: Job) -> Job:
        """Erase the records that contain user text: injected blocks and texts kept with response ids.

        Positions of conversations are hashes, and are erased only with everything."""
        kinds = None if _scope(job).everything and not job.waits_for_turns else TEXT_KINDS
        await self._holders.coordination.delete_records(_owner(job), kinds)
        return job.mark_done("records", self._now())

    async def verify_gone(self, job: Job) -> Job:
        late, turns = await self.erased_again(_owner(job))
        # A turn on its way into the journal may have recorded its words after the first search.
        await self._holders.coordination.delete_records(_owner(job), TEXT_KINDS)
        job = job.add_removed("memories", late).add_removed("journal", turns)
        job = job.mark_done("memories", self._now(), note=job.steps["memories"].note)
        await self._ledger.write(job.to_ledger())
        return job

    async def erased_again(self, owner: Owner) -> tuple[int, int]:
        """Erase data that arrived late, from another replica's pending write or a restored file.

        Rows of a forget that is only accepted are among them: it finds nothing of them afterwards, so all that goes
        with them is erased and noted here. Returns the numbers of memories and turns."""
        holders = self._holders
        marks = await self._forgotten.of(owner)
        async with holders.partitions.alone(owner) as alone:
            rows = [memory async for memory in self.rows(owner)] if marks else []
            late = {memory.id for memory in rows if marks.covers(memory)}
            if late:
                cut = {memory.id: at for memory in rows if (at := marks.cut_at(memory)) != NEVER}
                named = [memory for memory in rows if memory.id in cut]
                at = max(cut.values(), default=NEVER)
                taken = await _run_off_loop(len(rows), cascade_of, rows, named, at)
                await self._forgotten.note(owner, taken.items(marks.blind), at)
                gone = late | taken.memories.keys()
                late = gone | derived_from(gone, rows).keys()
                await alone.delete(sorted(late))
            entries = holders.journal.of_owner(owner)
            turns = [
                entry.turn.id async for entry in entries if await self._forgotten.select_forgotten([entry.turn])
            ]
            if turns:
                await holders.journal.erase(owner, turns)
        return len(late), len(turns)

    async def purge(self, job: Job) -> Job:
        if await self._holders.purges.purge(_owner(job)):
            return job.mark_done("files", self._now())
        if job.steps["files"].pending_until is None:
            job = job.pends("files", _NOT_PURGED, self._now() + self._server_purge)
            await self._ledger.write(job.to_ledger())
        return job

    async def complete(self, job: Job) -> Job:
        now = self._now()
        job = msgspec.structs.replace(job.mark_done("files", now), state=ForgetState.COMPLETE, completed_at=now)
        await self._ledger.write(job.to_ledger())
        log.info("forget.complete", scope=job.name)
        return job

    def _drop(self, owner: Owner) -> None:
        self._holders.partitions.drop(owner)
        for drop in self._holders.caches:
            drop(owner)


async def compute_cascade(rows: Collection[Memory], scope: ForgetScope, at: float, now: float) -> Cascade:
    """As `cascade`, without blocking other requests."""
    return await _run_off_loop(len(rows), cascade, rows, scope, at, now)


async def _run_off_loop(count: int, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run *work* on *count* memories; off the event loop if there are many, which takes seconds."""
    if count < _MANY:
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)


def _note_missing(job: Job, known: _Known, *, anything: bool) -> Job:
    """Record in the receipt which requested items do not exist.

    Only at the first execution: later, or after a crash, the data is already erased."""
    step = job.steps.get("memories")
    if step is not None:
        return job.pends("memories", "") if anything and step.note == NOTHING_FOUND else job
    if not anything:
        return job.pends("memories", NOTHING_FOUND)
    asked, missing = len(_scope(job).ids), len(known.missing)
    return job.pends(
        "memories", f"{missing} of {asked} ids were nowhere when it was carried out" if missing else ""
    )


def _owner(job: Job) -> Owner:
    if job.owner is None:
        raise PermanentError("a forget that does not say whose")
    return job.owner


def _scope(job: Job) -> ForgetScope:
    if job.scope is None:
        raise PermanentError("a forget that does not say what")
    return job.scope


# --- cascade -----------------------------------------------------------------------------------------


_LITTLE = 3  # characters; shorter words, except numbers, do not identify a text
_EMPTY = frozenset(
    {"user", "user's", "the", "and", "for", "with", "that", "this", "has", "have", "was", "are", "you"}
)


@dataclass(frozen=True, slots=True)
class Cascade:
    """The memories and turns of a forget. *turns* go whole; of *quoted* turns only the messages go."""

    memories: Mapping[str, Memory] = field(repr=False)
    turns: frozenset[str] = frozenset()
    quoted: frozenset[str] = frozenset()
    misdated: Mapping[str, float] = field(default_factory=dict)  # id to moment, of memories dated in the future
    named: frozenset[str] = frozenset()  # ids named by the scope itself

    def items(self, blind: KeyedHasher) -> set[bytes]:
        """The tombstone items of all of it."""
        found: set[bytes] = set()
        for memory in self.memories.values():
            owner = memory.owner
            found.add(blind.item(TombstoneKind.MEMORY, owner, memory.id))
            found |= items_of_message(blind, memory)
            turn = memory.provenance.turn
            if turn in self.turns:
                found.add(blind.item(TombstoneKind.TURN, owner, turn))
            elif turn in self.quoted:
                found.add(blind.item(TombstoneKind.MESSAGES, owner, turn))
        return found


def is_in_scope(scope: ForgetScope, memory: Memory, at: float, now: float = inf) -> bool:
    """Whether *scope*, as of *at*, names *memory* itself."""
    moment = _moment(memory, at, now)
    return (
        moment <= at
        and (not scope.ids or memory.id in scope.ids)
        and (not scope.project or memory.project == scope.project)
        and (not scope.types or memory.type in scope.types)
        and (not scope.session or memory.session == scope.session)
        and (scope.before is None or moment < scope.before.timestamp())
    )


def _moment(memory: Memory, at: float, now: float) -> float:
    """The time of *memory*. A time after *now* counts as *at*: a clock was set back, or a file had a wrong time."""
    moment = moment_of(memory)
    return at if moment > now else moment


def cascade(rows: Iterable[Memory], scope: ForgetScope, at: float, now: float = inf) -> Cascade:
    """Compute the memories among all *rows* of an owner that go with *scope*."""
    known = {memory.id: memory for memory in rows}
    named = [memory for memory in known.values() if is_in_scope(scope, memory, at, now)]
    return _follow(known, named, scope, at, now)


def cascade_of(rows: Iterable[Memory], named: Sequence[Memory], at: float) -> Cascade:
    """Compute the memories among all *rows* of an owner that go with those *named* by scopes up to *at*."""
    return _follow({memory.id: memory for memory in rows}, named, ForgetScope(), at, inf)


def _follow(
    known: Mapping[str, Memory], named: Sequence[Memory], scope: ForgetScope, at: float, now: float
) -> Cascade:
    growing = _Growing(known, frozenset(memory.id for memory in named))
    growing.take(named)
    if scope.ids:
        growing.take_what_carries_words()
    growing.take_alone(scope.listed)
    # As in `within`: statements made after the forget stay, even if they repeat it. Memories derived from forgotten
    # ones go, whenever they were derived.
    taken = {one: memory for one, memory in growing.taken.items() if _moment(memory, at, now) <= at}
    taken |= derived_from(taken, growing.taken.values())
    return Cascade(
        taken,
        frozenset(growing.whole),
        frozenset(growing.quoted - growing.whole),
        {one: moment_of(memory) for one, memory in taken.items() if moment_of(memory) > now},
        frozenset(memory.id for memory in named),
    )


def derived_from(sources: Collection[str], rows: Iterable[Memory]) -> dict[str, Memory]:
    """The *rows* that were derived from *sources*, directly or through each other; without the sources."""
    made_of: defaultdict[str, list[Memory]] = defaultdict(list)
    for memory in rows:
        for source in memory.provenance.sources:
            made_of[source].append(memory)
    found: dict[str, Memory] = {}
    waiting = list(sources)
    while waiting:
        for memory in made_of.get(waiting.pop(), ()):
            if memory.id not in found and memory.id not in sources:
                found[memory.id] = memory
                waiting.append(memory.id)
    return found


def drawn_together(memory: Memory) -> bool:
    """Whether *memory* was drawn from several turns at once, its own among them."""
    return memory.provenance.turn in memory.provenance.drawn_from


def sources_of_details(memory: Memory) -> Sequence[str]:
    """The facts that *memory* replaced and of which it keeps details: their turns alone are in `drawn_from`."""
    return memory.provenance.replaces if memory.provenance.drawn_from and not drawn_together(memory) else ()


class _Growing:
    def __init__(self, known: Mapping[str, Memory], named: frozenset[str]) -> None:
        self._known = known
        self._named = named
        self.taken: dict[str, Memory] = {}
        self._alone: set[str] = set()  # taken alone; if named later, their derivatives are taken too
        self.whole: set[str] = set()
        self.quoted: set[str] = set()
        self._by_turn: defaultdict[str, list[Memory]] = defaultdict(list)
        self._older: defaultdict[str, list[Memory]] = defaultdict(list)
        self._made_of: defaultdict[str, list[Memory]] = defaultdict(list)
        self._drawn_from: defaultdict[str, list[Memory]] = defaultdict(list)
        for memory in known.values():
            if turn := memory.provenance.turn:
                self._by_turn[turn].append(memory)
            if memory.superseded_by:
                self._older[memory.superseded_by].append(memory)
            for source in memory.provenance.sources:
                self._made_of[source].append(memory)
            for turn in memory.provenance.drawn_from:
                self._drawn_from[turn].append(memory)
            for replaced in sources_of_details(memory):
                self._made_of[replaced].append(memory)

    def take(self, memories: Iterable[Memory]) -> None:
        """Take *memories* and everything that follows from them."""
        waiting = list(memories)
        while waiting:
            memory = waiting.pop()
            if memory.id in self.taken and memory.id not in self._alone:
                continue
            self._alone.discard(memory.id)
            self.taken[memory.id] = memory
            waiting += self._made_of[memory.id]
            if self._for_a_turn(memory):
                continue
            waiting += self._older_than(memory)
            turn = memory.provenance.turn
            if not turn or drawn_together(memory):
                continue  # quotes none of its turns
            if was_message(memory):
                self.whole.add(turn)
                waiting += self._by_turn[turn] + self._drawn_from[turn]
            else:
                self._quote(turn, waiting)

    def _older_than(self, memory: Memory) -> list[Memory]:
        """Its older versions.

        Memories merged into it go only if it was named itself; if it goes because of another source, they stay."""
        for_a_source = self._for_a_source(memory)
        return [one for one in self._older[memory.id] if not (for_a_source and one.provenance.merged == memory.id)]

    def _for_a_source(self, memory: Memory) -> bool:
        """Whether it was not named, and goes because of a source."""
        of_taken = any(source in self.taken for source in memory.provenance.sources)
        return self._for_a_turn(memory) or (memory.id not in self._named and of_taken)

    def _for_a_turn(self, memory: Memory) -> bool:
        """Whether it was not named, and goes because of a turn or a fact that it was drawn from."""
        turns = self.whole | self.quoted if drawn_together(memory) else self.whole
        facts = any(replaced in self.taken for replaced in sources_of_details(memory))
        return memory.id not in self._named and (facts or not turns.isdisjoint(memory.provenance.drawn_from))

    def _quote(self, turn: str, waiting: list[Memory]) -> None:
        """Take the messages of *turn*, which contain the words of a forgotten fact; its other facts stay."""
        self.quoted.add(turn)
        waiting += filter(drawn_together, self._drawn_from[turn])
        for memory in self._by_turn[turn]:
            if is_message(memory):
                self.take_alone([memory.id])
                waiting += self._made_of[memory.id]

    def take_alone(self, ids: Iterable[str]) -> None:
        """Take the existing memories of *ids* without their derivatives."""
        for one in ids:
            if one in self._known and one not in self.taken:
                self.taken[one] = self._known[one]
                self._alone.add(one)

    def take_what_carries_words(self) -> None:
        words = {one: word_set(memory.content) for one, memory in self._known.items()}
        holding: defaultdict[str, set[str]] = defaultdict(set)
        for one, found in words.items():
            for word in found:
                holding[word].add(one)
        for memory in [one for one in self.taken.values() if not self._for_a_source(one)]:
            again: list[Memory] = []
            for turn in () if drawn_together(memory) else memory.provenance.also:
                self._quote(turn, again)
            self.take(again)
            if is_message(memory):
                if not self._tells(memory):
                    continue
                same = normal(memory.content).casefold()
                carrying = {
                    one
                    for one in _all_of(telling(words[memory.id]), holding)
                    if same in normal(self._known[one].content).casefold()
                }
            else:
                carrying = _carrying(memory, holding)
            waiting: list[Memory] = []
            for one in carrying - self.taken.keys():
                found_one = self._known[one]
                if is_message(found_one):
                    self._quote(found_one.provenance.turn, waiting)
                    self.take_alone([one])
                else:
                    waiting.append(found_one)
            self.take(waiting)

    def _tells(self, message: Memory) -> bool:
        """Whether a repetition of *message* repeats forgotten content.

        "Tell me more." has none. An answer taken only with its turn counts if it repeats the caller's words."""
        said = stems(message.content)
        if message.role is not Role.ASSISTANT:
            return bool(said)
        if message.id in self._named:
            return len(said) > 1
        told = (one for one in self._by_turn[message.provenance.turn] if one.role is not Role.ASSISTANT)
        return any(said & stems(one.content) for one in told)


def _carrying(fact: Memory, holding: Mapping[str, set[str]]) -> set[str]:
    """Ids of memories that repeat *fact*: all words of its value, and at least a word of its subject or attribute.

    A fact without a subject is matched by nearly all of its words."""
    value = telling(word_set(fact.provenance.value))
    about = telling(word_set(f"{fact.provenance.subject} {fact.provenance.attribute}"))
    if not value:
        return _all_of(telling(word_set(fact.content)), holding)
    with_value = _all_of(value, holding)
    if not about - value:
        return with_value
    return {one for one in with_value if any(one in holding.get(word, ()) for word in about - value)}


def _all_of(words: frozenset[str], holding: Mapping[str, set[str]]) -> set[str]:
    sets: Sequence[set[str]] = sorted((holding.get(word, set()) for word in words), key=len)
    return set.intersection(*sets) if sets else set()


def telling(words: frozenset[str]) -> frozenset[str]:
    """The words that identify a text."""
    return frozenset(
        word for word in words if word not in _EMPTY and (len(word) >= _LITTLE or any(map(str.isdigit, word)))
    )
