"""Tombstones: keyed hashes of forgotten data, read from the ledger once and cached in process."""

from __future__ import annotations

import hashlib
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Self

import msgspec

from memory_extproc.errors import TransientError
from memory_extproc.model import (
    Conditions,
    Embedded,
    Erased,
    Exchanged,
    ForgetReceipt,
    ForgetScope,
    ForgetState,
    LedgerJob,
    Memory,
    MemoryHeads,
    MemoryType,
    Message,
    Owner,
    Role,
    Scope,
    SearchResult,
    Source,
    Turn,
    Vector,
    message_ids,
)
from memory_extproc.ports import Ledger, MemoryStore, Replicas
from memory_extproc.text.words import words_hash

_KNOWN = 4096  # owners whose marks are held


class TombstoneIndex:
    """Implements ports.TombstoneReader.

    The cache is valid only while our lease runs, because another replica may have accepted a forget."""

    def __init__(self, ledger: Ledger, replicas: Replicas, *, key: bytes = b"") -> None:
        """*key*: for the hashes, instead of the ledger's own."""
        self._ledger = ledger
        self._replicas = replicas
        self._blind: KeyedHasher | None = KeyedHasher(key) if key else None
        self._known: OrderedDict[Owner, Tombstones] = OrderedDict()
        self._subjects: dict[str, Owner] = {}
        self._generation = 0
        self.found: Callable[[Owner], None] = _nothing  # called with an owner for whom more data must be erased

    async def blind(self) -> KeyedHasher:
        if self._blind is None:
            self._blind = KeyedHasher(await self._ledger.key())
        return self._blind

    async def of(self, owner: Owner) -> Tombstones:
        """The tombstones of *owner*. TransientError if they are unavailable."""
        if not self._replicas.holds():
            raise TransientError("what was forgotten elsewhere is not known: no lease")
        known = self._known.get(owner)
        if known is not None:
            self._known.move_to_end(owner)
            return known
        blind, generation = await self.blind(), self._generation
        subject = blind.subject(owner)
        marks = await self._read(owner)
        if generation == self._generation:  # else an invalidation arrived during the read
            self._known[owner] = marks
            self._subjects[subject] = owner
            if len(self._known) > _KNOWN:
                gone, _ = self._known.popitem(last=False)
                self._subjects.pop(blind.subject(gone), None)
        return marks

    async def _read(self, owner: Owner) -> Tombstones:
        blind = await self.blind()
        noted = await self._ledger.marks(blind.subject(owner))
        cuts = tuple(msgspec.json.decode(cut, type=ScopeTombstone) for cut in noted.cuts)
        return Tombstones(blind, cuts, noted.items, noted.shut)

    def renew(self, subject: str) -> Owner | None:
        """Invalidate the cache of *subject*, and return its owner if known here."""
        self._generation += 1
        owner = self._subjects.pop(subject, None)
        if owner is not None:
            self._known.pop(owner, None)
        return owner

    def renew_all(self) -> None:
        self._generation += 1
        self._known.clear()
        self._subjects.clear()

    async def check(self, owner: Owner) -> None:
        if (await self.of(owner)).shut:
            raise TransientError("a forget is under way")

    async def filter_rows(self, owner: Owner, rows: Sequence[Embedded]) -> Sequence[Embedded]:
        marks = await self.of(owner)
        if marks.shut:
            raise TransientError("a forget is under way")
        if not marks:
            return rows
        if await self._trace(owner, [marks.missing_items(row.memory) for row in rows]):
            marks = await self.of(owner)
        return [row for row in rows if not marks.covers(row.memory)]

    async def learnable(self, exchanged: Exchanged, turn: Turn) -> tuple[Exchanged, Turn] | None:
        marks = await self.of(turn.owner)
        if not marks:
            return exchanged, turn
        if marks.covers_turn(turn):
            await self._trace(turn.owner, [marks.untraced_turn(turn)])
            return None
        history = tuple(message for message in exchanged.history if not marks.covers_words(turn.owner, message))
        if len(history) == len(exchanged.history):
            return exchanged, turn
        return replace(exchanged, history=history), replace(turn, answered="")

    async def filter_turns(self, turns: Sequence[Turn]) -> Sequence[Turn]:
        if not turns:
            return turns
        marks = await self.of(turns[0].owner)
        if marks.shut:
            raise TransientError("a forget is under way")
        gone = {turn.id for turn in await self.select_forgotten(turns)} if marks else ()
        return [turn for turn in turns if turn.id not in gone]

    async def select_forgotten(self, turns: Sequence[Turn]) -> Sequence[Turn]:
        """The forgotten turns among *turns*, all of the same owner; a retry of them is recognised from here on."""
        marks = await self.of(turns[0].owner) if turns else None
        gone = [turn for turn in turns if marks is not None and marks.covers_turn(turn)]
        if marks is not None and gone:
            await self._trace(gone[0].owner, [marks.untraced_turn(turn) for turn in gone])
        return gone

    async def recognise(self, owner: Owner, unstored: Sequence[Memory]) -> Sequence[str]:
        """Ids of forgotten memories among *unstored*, which only this process has.

        Their turns become forgotten too. Reads the ledger, because it is called before a lease is renewed."""
        if not unstored:
            return ()
        marks = await self._read(owner)
        if await self._trace(owner, [marks.missing_items(memory) for memory in unstored]):
            marks = await self._read(owner)
        return [memory.id for memory in unstored if marks.covers(memory)]

    async def note(self, owner: Owner, items: Iterable[bytes], at: float) -> None:
        """Add the *items* that are new, forgotten *at*, durably."""
        known = (await self._read(owner)).items
        if fresh := sorted(item for item in items if item not in known):
            await self._add(owner, fresh, at)

    async def note_turns(self, turns: Sequence[Turn]) -> None:
        owner, blind = turns[0].owner, await self.blind()
        items = [blind.item(TombstoneKind.TURN, owner, turn.id) for turn in turns]
        await self.note(owner, items, max(turn.at.timestamp() for turn in turns))

    async def _trace(self, owner: Owner, found: Iterable[Mapping[bytes, float]]) -> bool:
        """Add items for *owner*, durably; returns whether there were any."""
        items = {item: at for some in found for item, at in some.items()}
        if not items:
            return False
        await self._add(owner, sorted(items), max(items.values()))
        self.found(owner)
        return True

    async def _add(self, owner: Owner, items: Sequence[bytes], at: float) -> None:
        subject = (await self.blind()).subject(owner)
        done = Job(
            id=uuid.uuid4().hex,
            subject=subject,
            name="again",
            at=datetime.fromtimestamp(at, UTC),
            state=ForgetState.COMPLETE,
        )
        await self._ledger.write(done.to_ledger(), items=items, at=at)
        self.renew(subject)


class TombstoneFilteringStore:
    """A MemoryStore that hides forgotten rows of the store behind it.

    Such rows come from a restored backup, or from a replica that wrote during the forget."""

    def __init__(self, store: MemoryStore, forgotten: TombstoneIndex) -> None:
        self._store = store
        self._forgotten = forgotten
        self.found: Callable[[Owner], None] = _nothing  # called with an owner of hidden rows
        # Unchanged:
        self.open, self.close = store.open, store.close
        self.delete, self.delete_owner = store.delete, store.delete_owner

    @property
    def lags(self) -> bool:
        return self._store.lags

    @property
    def finds_words(self) -> bool:
        return self._store.finds_words

    async def put(self, owner: Owner, rows: Sequence[Embedded]) -> None:
        if wanted := await self._forgotten.filter_rows(owner, rows):
            await self._store.put(owner, wanted)

    async def get(self, owner: Owner, ids: Sequence[str]) -> Sequence[Memory]:
        marks = await self._open_to(owner)
        return [memory for memory in await self._store.get(owner, ids) if not marks.covers(memory)]

    async def fetch(self, owner: Owner, ids: Sequence[str]) -> Sequence[Embedded]:
        marks = await self._open_to(owner)
        return [row for row in await self._store.fetch(owner, ids) if not marks.covers(row.memory)]

    async def nearest(self, owner: Owner, to: Vector, limit: int, scope: Scope) -> SearchResult:
        marks = await self._open_to(owner)
        searched = await self._store.nearest(owner, to, limit, scope)
        if not marks:
            return searched
        return replace(searched, found=tuple(one for one in searched.found if not marks.covers(one.memory)))

    async def search_text(self, owner: Owner, text: str, limit: int, scope: Scope) -> Sequence[Embedded]:
        marks = await self._open_to(owner)
        found = await self._store.search_text(owner, text, limit, scope)
        return [row for row in found if not marks.covers(row.memory)]

    async def pages(self, owner: Owner, size: int, *, fresh: bool) -> AsyncIterator[Sequence[Embedded]]:
        marks = await self._open_to(owner)
        async for page in self._store.pages(owner, size, fresh=fresh):
            left = [row for row in page if not marks.covers(row.memory)] if marks else page
            if len(left) < len(page) and (fresh or not self.lags):
                self.found(owner)
            yield left

    async def heads(self, owner: Owner, chosen: Conditions) -> MemoryHeads:
        await self._open_to(owner)
        return await self._store.heads(owner, chosen)

    async def count(self, owner: Owner) -> int:
        await self._forgotten.check(owner)
        return await self._store.count(owner)

    async def _open_to(self, owner: Owner) -> Tombstones:
        marks = await self._forgotten.of(owner)
        if marks.shut:
            raise TransientError("a forget is under way")
        return marks


def _nothing(_owner: Owner) -> None:
    """Default callback: ignore."""


# Tombstone data: keyed hashes that recognise forgotten data without revealing it. Pure functions.
#
# A *cut* covers everything of a scope asked up to a moment, pending turns included. An *item* names a single thing:
# a memory, a turn, a position in a conversation, words.

RETRIED = timedelta(minutes=2)  # an opening sent once more within it is a retry, later it is said anew
_BYTES = 16


class TombstoneKind(StrEnum):
    """The kind of an item."""

    MEMORY = "memory"
    TURN = "turn"  # with everything derived from it
    MESSAGES = "messages"  # of a turn, whose other facts stay
    HEARD = "heard"  # a position in a conversation: a message resent there is not new
    SAID = "said"  # the caller's words in a history


class ScopeTombstone(msgspec.Struct, frozen=True, array_like=True):
    """Everything asked up to *at*, narrowed by the fields that are not empty."""

    at: float
    project: bytes = b""
    session: bytes = b""
    types: tuple[str, ...] = ()
    before: float | None = None


@dataclass(frozen=True, slots=True)
class KeyedHasher:
    """Hashes with a key of this installation, so that the hashes reveal neither owners nor contents."""

    key: bytes = field(repr=False)

    def hash(self, *parts: str) -> bytes:
        hashed = hashlib.blake2b(key=self.key[:64], digest_size=_BYTES)
        for part in parts:
            encoded = part.encode("utf-8", "surrogatepass")
            hashed.update(len(encoded).to_bytes(8, "big"))
            hashed.update(encoded)
        return hashed.digest()

    def subject(self, owner: Owner) -> str:
        """The owner's hash: 64 hex digits."""
        return hashlib.blake2b(owner.key.encode(), key=self.key[:64], digest_size=32, person=b"subject").hexdigest()

    def item(self, kind: TombstoneKind, owner: Owner, name: str) -> bytes:
        return self.hash("item", kind.value, owner.key, name)

    def make_cut(self, owner: Owner, scope: ForgetScope, at: datetime) -> ScopeTombstone | None:
        """The cut for *scope*; None for a scope of named memories, which pending turns cannot match."""
        if scope.ids or scope.query:
            return None
        return ScopeTombstone(
            at.timestamp(),
            self._of("project", owner, scope.project),
            self._of("session", owner, scope.session),
            tuple(sorted(kind.value for kind in scope.types)),
            None if scope.before is None else scope.before.timestamp(),
        )

    def _of(self, what: str, owner: Owner, name: str) -> bytes:
        return self.hash(what, owner.key, name) if name else b""

    def cuts_off(
        self,
        cut: ScopeTombstone,
        owner: Owner,
        project: str,
        session: str,
        types: Sequence[MemoryType],
        moment: float,
    ) -> bool:
        return (
            moment <= cut.at
            and (cut.before is None or moment < cut.before)
            and (not cut.project or cut.project == self._of("project", owner, project))
            and (not cut.session or cut.session == self._of("session", owner, session))
            and (not cut.types or any(kind.value in cut.types for kind in types))
        )


@dataclass(frozen=True, slots=True)
class Tombstones:
    """All tombstones of an owner. *shut*: a forget is in progress, so reads and writes are blocked."""

    blind: KeyedHasher
    cuts: tuple[ScopeTombstone, ...] = ()
    items: Mapping[bytes, float] = field(default_factory=dict)  # hash to the time of the forget
    shut: bool = False

    def __bool__(self) -> bool:
        return bool(self.cuts or self.items)

    def covers(self, memory: Memory) -> bool:
        """Whether *memory* was forgotten, comes from an earlier turn within a cut, or has a forgotten source."""
        if self.cut_at(memory) != NEVER:
            return True
        if not self.items:
            return False
        owner, moment = memory.owner, moment_of(memory)
        # Earlier values that it lists are facts, whose ids never return: the time of its own value does not matter.
        if any(
            self._when(TombstoneKind.MEMORY, owner, earlier) != NEVER for earlier in memory.provenance.past or ()
        ):
            return True
        named = [
            (TombstoneKind.MEMORY, memory.id),
            *((TombstoneKind.MEMORY, source) for source in memory.provenance.sources),
        ]
        if turn := memory.provenance.turn:
            named += [
                (kind, turn)
                for kind in (
                    (TombstoneKind.TURN, TombstoneKind.MESSAGES) if is_message(memory) else (TombstoneKind.TURN,)
                )
            ]
        drawn_from = memory.provenance.drawn_from
        named += [(TombstoneKind.TURN, turn) for turn in drawn_from]
        if memory.provenance.turn in drawn_from:
            named += [(TombstoneKind.MESSAGES, turn) for turn in drawn_from]
        elif drawn_from:  # it keeps details of the facts that it replaced
            named += [(TombstoneKind.MEMORY, replaced) for replaced in memory.provenance.replaces]
        return any(moment <= self._when(kind, owner, name) for kind, name in named)

    def cut_at(self, memory: Memory) -> float:
        """The time of the latest cut that covers *memory*; minus infinity if there is none."""
        owner, moment = memory.owner, moment_of(memory)
        return max(
            (
                cut.at
                for cut in self.cuts
                if self.blind.cuts_off(cut, owner, memory.project, memory.session, (memory.type,), moment)
            ),
            default=NEVER,
        )

    def covers_turn(self, turn: Turn) -> bool:
        """Whether *turn* was forgotten before it was learned, or repeats a forgotten turn."""
        if self.forgotten_at(turn) != NEVER:
            return True
        when = self._when(TombstoneKind.HEARD, turn.owner, turn.heard) if self.items and turn.heard else NEVER
        if turn.resumes:
            return when != NEVER
        return turn.at.timestamp() - when < RETRIED.total_seconds()

    def forgotten_at(self, turn: Turn) -> float:
        """When *turn* was forgotten, in seconds since 1970; minus infinity if it was not.

        It may be within a cut, named itself, or named by a memory of its messages."""
        owner, moment = turn.owner, turn.at.timestamp()
        found = [
            cut.at
            for cut in self.cuts
            if self.blind.cuts_off(cut, owner, turn.project, turn.session, (MemoryType.EPISODIC,), moment)
        ]
        if self.items and not found:
            found = [self._when(kind, owner, turn.id) for kind in (TombstoneKind.TURN, TombstoneKind.MESSAGES)]
            found += [self._when(TombstoneKind.MEMORY, owner, one) for one in message_ids(turn, any_answer=False)]
        return max((when for when in found if moment <= when), default=NEVER)

    def untraced_turn(self, turn: Turn) -> dict[bytes, float]:
        """Items, with times, that will recognise a retry of the forgotten *turn*.

        They are missing here because the turn was unreachable at the time of the forget."""
        when = self.forgotten_at(turn)
        known = self.blind.item(TombstoneKind.HEARD, turn.owner, turn.heard) if turn.heard else None
        if when == NEVER or known in self.items or self._when(TombstoneKind.TURN, turn.owner, turn.id) != NEVER:
            return {}
        return dict.fromkeys(items_of_turn(self.blind, turn), when)

    def missing_items(self, memory: Memory) -> dict[bytes, float]:
        """Items, with times, that recognise what goes with *memory*, and are missing because it was unknown.

        They name its turn if it was forgotten by id, and itself if it is within a cut: memories may be derived from
        it."""
        owner, turn = memory.owner, memory.provenance.turn
        if (cut := self.cut_at(memory)) != NEVER:
            item = self.blind.item(TombstoneKind.MEMORY, owner, memory.id)
            return {} if item in self.items else {item: cut}
        when = self._when(TombstoneKind.MEMORY, owner, memory.id)
        if not turn or turn in memory.provenance.drawn_from or moment_of(memory) > when:
            return {}
        if any(self._when(kind, owner, turn) != NEVER for kind in (TombstoneKind.TURN, TombstoneKind.MESSAGES)):
            return {}
        kind = TombstoneKind.TURN if was_message(memory) else TombstoneKind.MESSAGES
        return dict.fromkeys({self.blind.item(kind, owner, turn), *items_of_message(self.blind, memory)}, when)

    def covers_words(self, owner: Owner, message: Message) -> bool:
        """Whether *message* of a history is a forgotten message of the caller."""
        if not self.items or message.role is not Role.USER:
            return False
        return self.blind.item(TombstoneKind.SAID, owner, words_hash(message.text)) in self.items

    def _when(self, kind: TombstoneKind, owner: Owner, name: str) -> float:
        return self.items.get(self.blind.item(kind, owner, name), NEVER)


NEVER = float("-inf")


def moment_of(memory: Memory) -> float:
    """When it was said, in seconds since 1970."""
    said = memory.provenance.said
    return memory.created_at.timestamp() if said is None else said


def is_message(memory: Memory) -> bool:
    """Whether it is a verbatim message or a piece of a message."""
    return memory.source in {Source.VERBATIM, Source.QUESTION}


def was_message(memory: Memory) -> bool:
    """Whether it is a message, or was before a correction, which keeps its role."""
    return is_message(memory) or (memory.source is Source.API and memory.role is not Role.NONE)


def items_of_message(blind: KeyedHasher, memory: Memory) -> set[bytes]:
    """Items that recognise the caller's message when the client resends it."""
    if not was_message(memory) or memory.role is not Role.USER:
        return set()
    words = memory.provenance.whole or words_hash(memory.content)
    found = {blind.item(TombstoneKind.SAID, memory.owner, words)}
    if memory.provenance.heard:
        found.add(blind.item(TombstoneKind.HEARD, memory.owner, memory.provenance.heard))
    return found


def items_of_turn(blind: KeyedHasher, turn: Turn) -> set[bytes]:
    """Items that recognise a journal turn when it is retried."""
    found = {
        blind.item(TombstoneKind.TURN, turn.owner, turn.id),
        blind.item(TombstoneKind.SAID, turn.owner, words_hash(turn.asked)),
    }
    if turn.heard:
        found.add(blind.item(TombstoneKind.HEARD, turn.owner, turn.heard))
    return found


# Jobs: a forget in progress as stored in the ledger, and its receipt.

# The rounding error of a time in a memory's provenance.
_ROUNDING = timedelta(milliseconds=1)
WAITING_TURNS = "waiting_turns"  # step: turns accepted before the forget that could not be searched yet
NOTHING_FOUND = "nothing was found of what was asked for"


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The progress in a single store."""

    removed: int = 0
    done_at: datetime | None = None
    pending_until: datetime | None = None
    note: str = ""


class Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A forget in progress.

    *owner* and *scope* are erased on completion; then only the hash identifies the owner."""

    id: str
    subject: str
    name: str  # of the scope
    at: datetime
    state: ForgetState = ForgetState.ACCEPTED
    owner: Owner | None = None
    scope: ForgetScope | None = None
    clean_at: datetime | None = None
    completed_at: datetime | None = None
    steps: Mapping[str, Step] = {}

    @classmethod
    def read(cls, kept: LedgerJob) -> Self:
        return msgspec.json.decode(kept.body, type=cls)

    @property
    def until(self) -> float:
        """Data asked up to this time is erased; seconds since 1970."""
        return (self.at + _ROUNDING).timestamp()

    @property
    def waits_for_turns(self) -> bool:
        """Whether only unreachable turns keep the job from being clean."""
        step = self.steps.get(WAITING_TURNS)
        return self.state is ForgetState.ACCEPTED and step is not None and step.done_at is None

    def to_ledger(self) -> LedgerJob:
        complete = self.state is ForgetState.COMPLETE
        body = msgspec.structs.replace(self, owner=None, scope=None) if complete else self
        return LedgerJob(
            self.id,
            self.subject,
            msgspec.json.encode(body),
            shut=self.state is ForgetState.ACCEPTED and not self.waits_for_turns,
            open=not complete,
        )

    def add_removed(self, store: str, count: int) -> Job:
        """Add *count* erased entries of *store*."""
        step = self.steps.get(store, Step())
        return self._with(store, msgspec.structs.replace(step, removed=step.removed + count))

    def mark_done(self, store: str, at: datetime, *, note: str = "") -> Job:
        step = self.steps.get(store, Step())
        if step.done_at is not None:
            return self
        return self._with(store, msgspec.structs.replace(step, done_at=at, pending_until=None, note=note))

    def pends(self, store: str, note: str, until: datetime | None = None) -> Job:
        step = self.steps.get(store, Step())
        return self._with(store, msgspec.structs.replace(step, done_at=None, pending_until=until, note=note))

    def _with(self, store: str, step: Step) -> Job:
        return msgspec.structs.replace(self, steps={**self.steps, store: step})

    def receipt(self) -> ForgetReceipt:
        return ForgetReceipt(
            id=self.id,
            state=self.state,
            scope=self.name,
            subject=self.subject,
            accepted_at=self.at.astimezone(UTC),
            clean_at=self.clean_at,
            completed_at=self.completed_at,
            memories=self.steps.get("memories", Step()).removed,
            stores=tuple(
                Erased(
                    store=store,
                    done=step.done_at is not None,
                    removed=step.removed,
                    done_at=step.done_at,
                    pending_until=step.pending_until,
                    note=step.note,
                )
                for store, step in sorted(self.steps.items())
            ),
        )


def without_words(scope: ForgetScope, ids: tuple[str, ...]) -> ForgetScope:
    """*scope* for storage: the ids found by a query replace its words."""
    return replace(scope, query="", ids=ids) if scope.query else scope
