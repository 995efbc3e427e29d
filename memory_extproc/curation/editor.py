"""Memories written by users through the memory API: storing and correcting.

A stored text supersedes contradicting memories and confirms equal memories, like a fact from a chat. A corrected
memory keeps its id; its previous content is kept as a superseded row."""

from __future__ import annotations

import asyncio
import heapq
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from operator import itemgetter
from typing import Any, NamedTuple, Protocol
from weakref import WeakValueDictionary

import msgspec
import numpy as np

from memory_extproc.errors import MemoryExtprocError, TransientError
from memory_extproc.model import (
    Conditions,
    Embedded,
    Hit,
    JournalState,
    Memory,
    MemoryHead,
    MemoryHeads,
    MemoryState,
    MemoryType,
    Owner,
    Provenance,
    Rating,
    Scope,
    Source,
    Trust,
    digest,
    trust_of,
    with_trust,
)
from memory_extproc.ports import EmbeddingModel, HeadLister, Journal, MemoryLister, MemoryWriter, Now
from memory_extproc.safety.policy import MASK_SECRETS
from memory_extproc.text.words import fold

# Metadata keys that only the product may set.
RESERVED = frozenset(
    {
        "turn", "piece", "whole", "heard", "ordinal", "said", "revision", "confirmations", "version", "confidence",
        "sources", "drawn_from", "beside", "replaces", "corrects", "also", "ends",
        "retired", "retired_at", "retired_from", "unretired", "derived", "merged", "made", "past", "accessed",
        "trust", "rating",
    }
)  # fmt: skip
_NEIGHBOURS = 32  # candidates compared with a text
_ATTEMPTS = 3  # at a correction, while others write the same row
_FACTS = frozenset({MemoryType.SEMANTIC, MemoryType.PROCEDURAL, MemoryType.REFLECTIVE})


class OnDuplicate(StrEnum):
    """The action on a duplicate."""

    UPDATE = "update"
    KEEP_BOTH = "keep_both"
    REJECT = "reject"


class StoreDecision(StrEnum):
    """The result for a text. Part of the API, so values are never renamed."""

    ADDED = "added"
    CONFIRMED = "confirmed"
    REPLACED = "replaced"


_NO_TEXT = frozenset({"project", "type"})


class Standing(StrEnum):
    """The relation of an existing memory to a new text."""

    OTHER = "other"  # it speaks of something else
    SAME = "same"  # it says the same
    CHANGED = "changed"  # it says something else of the same


@dataclass(frozen=True, slots=True)
class Meaning:
    """The interpretation of a text as subject, attribute and value, which lets later facts supersede it."""

    subject: str = field(default="", repr=False)
    attribute: str = field(default="", repr=False)
    value: str = field(default="", repr=False)
    exclusive: bool = False  # only a single value can hold at a time

    def __bool__(self) -> bool:
        return bool(self.subject and self.attribute and self.value)


class MemoryInterpreter(Protocol):
    """The write path's interpretation of facts."""

    async def meaning(self, owner: Owner, content: str) -> Meaning:
        """The meaning of *content*; false if it is not understood."""

    def standing(self, content: str, meaning: Meaning, found: Hit) -> Standing: ...


class TextReader(Protocol):
    """Learns from a text that a caller stores, as from a message of a chat."""

    async def learn(self, memory: Memory) -> Sequence[str]:
        """Extract the facts in *memory* and return their ids. Idempotent."""


class DuplicateError(MemoryExtprocError):
    """An equal memory exists, and the caller asked to reject duplicates."""

    def __init__(self, memory_id: str) -> None:
        super().__init__("the same is remembered already")
        self.memory_id = memory_id


class StaleError(MemoryExtprocError):
    """The memory was changed since the caller read it."""

    def __init__(self, current: Memory, proposed: Memory) -> None:
        super().__init__("the memory was changed meanwhile")
        self.current, self.proposed = current, proposed


class AmbiguousIdError(MemoryExtprocError):
    """The id prefix matches several of the owner's memories."""


class NotActiveError(MemoryExtprocError):
    """The memory is superseded, forgotten or quarantined, and cannot be corrected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMemory:
    """A text to remember. *metadata* may hold subject, attribute and value."""

    content: str = field(repr=False)
    type: MemoryType = MemoryType.SEMANTIC
    project: str = ""
    session: str = field(default="", repr=False)
    importance: float | None = None
    expires_at: datetime | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict, repr=False)
    on_duplicate: OnDuplicate = OnDuplicate.UPDATE


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """New values by field name: content, type, project, importance, expires_at, metadata."""

    values: Mapping[str, Any] = field(repr=False)
    etag: str = ""  # of the memory as the caller read it; empty: not checked

    @property
    def content(self) -> str | None:
        return self.values.get("content")


class MemoryEditor:
    """Stores and corrects an owner's memories."""

    def __init__(
        self,
        keeps: MemoryWriter,
        lists: MemoryLister,
        embedder: EmbeddingModel,
        understands: MemoryInterpreter,
        *,
        now: Now,
        masks: Callable[[str], str] = MASK_SECRETS.apply,
    ) -> None:
        """*masks*: takes out of a text what is not stored."""
        self._masks = masks
        self._keeps, self._lists, self._embedder = keeps, lists, embedder
        self._understands = understands
        self._now = now
        # Serialises an owner's writes in this process: two equal texts at once become a single memory.
        self._turns: WeakValueDictionary[Owner, asyncio.Lock] = WeakValueDictionary()

    async def store(self, owner: Owner, told: NewMemory, key: str) -> tuple[Memory, StoreDecision]:
        """The memory as it is now. *key* names the attempt: once more with the same key changes nothing.
        DuplicateError where that is what the caller wants. Secrets are masked, here and below."""
        told = replace(told, content=self._masks(told.content), metadata=_mask_texts(told.metadata, self._masks))
        meaning = _given_meaning(told.metadata) or await self._understands.meaning(owner, told.content)
        row = self._row(owner, told, meaning, key)
        there = await self._keeps.get(owner, [row.id])
        if there:
            return there[0], StoreDecision.ADDED  # an earlier attempt stored it
        vector = (await self._embedder.embed([row.content]))[0]
        async with self._turn(owner):
            decision = StoreDecision.ADDED
            older: Sequence[Memory] = ()
            if told.on_duplicate is not OnDuplicate.KEEP_BOTH:
                scope = Scope(types=_FACTS if row.type in _FACTS else frozenset({row.type}))
                found = (await self._keeps.nearest(owner, vector, _NEIGHBOURS, scope)).found
                same, older = self._sorted_out(row, meaning, found)
                if same is not None and told.on_duplicate is OnDuplicate.REJECT:
                    raise DuplicateError(same.id)
                if same is not None and (confirmed := await self._confirm(owner, same, told)) is not None:
                    return confirmed, StoreDecision.CONFIRMED
                decision = StoreDecision.REPLACED if older else StoreDecision.ADDED
            await self._keeps.put(owner, [Embedded(row, vector)])
            # After the put: a crash between the two leaves both, never neither.
            for old in older:
                await self._keeps.supersede(owner, old.id, row.id, row.created_at)
            return row, decision

    async def correct(self, owner: Owner, memory_id: str, correction: Correction) -> Memory | None:
        """Correct a memory and return it; None if it does not exist.

        NotActiveError for history, TransientError under concurrent changes, StaleError for an outdated etag."""
        async with self._turn(owner):
            for _ in range(_ATTEMPTS):
                there = await self._keeps.get(owner, [memory_id])
                if not there or there[0].state is MemoryState.DELETED:
                    return None
                if there[0].state is not MemoryState.ACTIVE:
                    raise NotActiveError("only an active memory can be corrected")
                corrected = await self._correct(there[0], correction)
                if correction.etag and correction.etag != etag_of(there[0]):
                    raise StaleError(there[0], corrected)
                if corrected == there[0]:
                    return corrected
                told, others = await self._told_sources(corrected)
                if others and corrected.content != there[0].content:
                    corrected = replace(corrected, provenance=_made_of(corrected.provenance, told))
                if await self._replace(owner, there[0], corrected):
                    await self._part(owner, corrected, others)
                    return corrected
        raise TransientError("the memory keeps changing")

    async def _told_sources(self, memory: Memory) -> tuple[list[str], list[str]]:
        """Split the sources of a derived memory into those with values still in its text, and the others.

        A forget of a former source must not take the memory along."""
        named = memory.provenance.sources
        if not memory.provenance.derived or not named:
            return [], []
        rows = await self._keeps.get(memory.owner, named)
        content = memory.content.casefold()
        told = {row.id for row in rows if (row.provenance.value or row.content).casefold() in content}
        return [one for one in named if one in told], [one for one in named if one not in told]

    async def _part(self, owner: Owner, corrected: Memory, others: Sequence[str]) -> None:
        """Detach *others*, which were merged into *corrected*.

        Otherwise a forget of *corrected* would make their outdated content active again."""

        def part(row: Embedded) -> Sequence[Embedded]:
            if row.memory.provenance.merged != corrected.id:
                return ()
            return [Embedded(replace(row.memory, provenance=row.memory.provenance.replace(merged="")), row.vector)]

        for one in others:
            await self._lists.change(owner, one, part)

    async def rate(self, owner: Owner, memory_id: str, rating: Rating) -> Memory | None:
        """The memory as it is now; None where there is none. NotActiveError for history."""
        rated: Memory | None = None

        def rate(row: Embedded) -> Sequence[Embedded]:
            nonlocal rated
            memory = row.memory
            if memory.state is not MemoryState.ACTIVE:
                raise NotActiveError("only an active memory can be rated")
            rated = replace(memory, provenance=memory.provenance.replace(rating=rating))
            return [Embedded(rated, row.vector)]

        await self._lists.change(owner, memory_id, rate)
        return rated

    async def restore(self, owner: Owner, memory_id: str) -> Memory | None:
        """Undo a soft deletion and return the memory; None if it does not exist or was erased."""
        restored: Memory | None = None
        now = self._now().replace(microsecond=0)

        def bring_back(row: Embedded) -> Sequence[Embedded]:
            nonlocal restored
            memory = row.memory
            if memory.state is not MemoryState.DELETED:
                restored = memory
                return ()
            history = memory.provenance.retired_from == MemoryState.SUPERSEDED.value
            restored = replace(
                memory,
                state=MemoryState.SUPERSEDED if history else MemoryState.ACTIVE,
                updated_at=max(now, memory.updated_at),
                provenance=memory.provenance.replace(
                    retired="", retired_at=None, retired_from="", unretired=now.timestamp()
                ),
            )
            return [Embedded(restored, row.vector)]

        await self._lists.change(owner, memory_id, bring_back)
        return restored

    def _sorted_out(
        self, row: Memory, meaning: Meaning, found: Sequence[Hit]
    ) -> tuple[Memory | None, Sequence[Memory]]:
        """The equal memory, if it is the newest about the attribute; else the memories that *row* supersedes."""
        standing: dict[Standing, list[Memory]] = {each: [] for each in Standing}
        for one in found:
            if one.memory.project == row.project and one.memory.id != row.id:
                standing[self._understands.standing(row.content, meaning, one)].append(one.memory)
        spoken = [*standing[Standing.SAME], *standing[Standing.CHANGED]]
        newest = max(spoken, key=lambda memory: (memory.valid_from or memory.created_at, memory.id), default=None)
        if newest in standing[Standing.SAME]:
            return newest, ()
        return None, sorted(spoken, key=lambda memory: memory.id)

    async def _confirm(self, owner: Owner, same: Memory, told: NewMemory) -> Memory | None:
        """Confirm *same*; None if it is gone."""
        now = self._now().replace(microsecond=0)
        confirmed: Memory | None = None

        def confirm(row: Embedded) -> Sequence[Embedded]:
            nonlocal confirmed
            memory = row.memory
            known = memory.provenance.without_doubt().with_fields(told.metadata)
            confirmed = changed = replace(
                memory,
                updated_at=max(now, memory.updated_at),
                importance=memory.importance if told.importance is None else told.importance,
                expires_at=told.expires_at or memory.expires_at,
                provenance=known.replace(confirmations=known.confirmations + 1),
            )
            if not trust_of(memory).covers(Trust.CONFIRMED):
                confirmed = changed = with_trust(changed, Trust.CONFIRMED)
            return [Embedded(changed, row.vector)]

        await self._lists.change(owner, same.id, confirm)
        return confirmed

    async def _correct(self, memory: Memory, correction: Correction) -> Memory:
        now = self._now().replace(microsecond=0)
        values = _mask_texts(correction.values, self._masks)
        known = memory.provenance
        if (own := values.pop("metadata", None)) is not None:
            kept = {name: value for name, value in known.encode().items() if name in RESERVED}
            known = Provenance.decode({**own, **kept})
        changed = replace(memory, **values, provenance=known)
        if changed == memory:
            return memory
        if changed.content != memory.content:
            meaning = await self._understands.meaning(memory.owner, changed.content)
            if own is None:
                known = known.replace(**_meaning_of_correction(meaning, memory, changed.content))
            changed = replace(
                changed,
                source=Source.API,
                valid_from=now,
                embed_model=self._embedder.fingerprint,
                # The rating was of the old words. *said*: later than anything that was made of its old words, also
                # within this second.
                provenance=known.replace(rating=Rating.NONE, said=self._now().timestamp()),
            )
            # A correction leaves the class: only saying the same again confirms it.
            changed = with_trust(changed, trust_of(memory))
        revised = changed.provenance.replace(revision=(known.revision or 1) + 1)
        return replace(changed, provenance=revised, updated_at=max(now, memory.updated_at))

    async def _replace(self, owner: Owner, before: Memory, after: Memory) -> bool:
        """Replace the row; False if it has changed since it was read."""
        anew = before.content != after.content
        vector = (await self._embedder.embed([after.content]))[0] if anew else None
        moved = False

        def exchange(row: Embedded) -> Sequence[Embedded]:
            nonlocal moved
            moved = row.memory != before
            if moved:
                return ()
            version = replace(
                before,
                id=digest("version", owner.key, before.id, str(after.provenance.revision)),
                state=MemoryState.SUPERSEDED,
                superseded_by=before.id,
                valid_to=after.updated_at,
            )
            return [Embedded(version, row.vector), Embedded(after, row.vector if vector is None else vector)]

        return await self._lists.change(owner, before.id, exchange) and not moved

    def _row(self, owner: Owner, told: NewMemory, meaning: Meaning, key: str) -> Memory:
        now = self._now()
        whole = now.replace(microsecond=0)
        understood = Provenance().replace(**_fields_of(meaning) if meaning else {})
        return Memory(
            id=digest("api", owner.key, key),
            owner=owner,
            type=told.type,
            content=told.content,
            source=Source.API,
            created_at=whole,
            updated_at=whole,
            valid_from=whole,
            expires_at=told.expires_at,
            project=told.project,
            session=told.session,
            importance=0.5 if told.importance is None else told.importance,
            embed_model=self._embedder.fingerprint,
            provenance=understood.with_fields(told.metadata).replace(said=round(now.timestamp(), 3)),
        )

    def _turn(self, owner: Owner) -> asyncio.Lock:
        lock = self._turns.get(owner)
        if lock is None:
            lock = self._turns[owner] = asyncio.Lock()
        return lock


def etag_of(memory: Memory) -> str:
    """A tag that changes with every correction, but not with access counts or confirmations."""
    own = {name: value for name, value in memory.provenance.encode().items() if name not in RESERVED}
    parts = (memory.content, memory.type, memory.project, memory.importance, memory.expires_at, memory.state, own)
    return digest("etag", json.dumps(parts, sort_keys=True, default=str))[:16]


def _made_of(known: Provenance, sources: Sequence[str]) -> Provenance:
    """*known*, limited to the given *sources*."""
    if not sources:
        return known.replace(derived="", sources=(), past=None, made=None)
    return known.replace(sources=tuple(sources), past=tuple(one for one in known.past or () if one in sources))


def _mask_texts(values: Mapping[str, Any], masks: Callable[[str], str]) -> dict[str, Any]:
    """*values* with their texts masked, those of a mapping among them included."""
    masked: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            masked[name] = _mask_texts(value, masks)
        else:
            masked[name] = masks(value) if isinstance(value, str) and name not in _NO_TEXT else value
    return masked


def _given_meaning(metadata: Mapping[str, Any]) -> Meaning:
    subject, attribute, value = (metadata.get(name) for name in ("subject", "attribute", "value"))
    if isinstance(subject, str) and isinstance(attribute, str) and isinstance(value, str):
        return Meaning(subject, attribute, value)
    return Meaning()


def _fields_of(meaning: Meaning) -> dict[str, str]:
    return {"subject": meaning.subject, "attribute": meaning.attribute, "value": meaning.value}


def _meaning_of_correction(meaning: Meaning, before: Memory, content: str) -> dict[str, str]:
    """The meaning of a corrected fact. If the new words are not understood, subject and attribute stay."""
    if meaning:
        return _fields_of(meaning)
    return {"value": content} if before.provenance.value else {}


# The catalogue: pages of memories, a memory with its history, counts.

MOST_HISTORY = 100
_MOST_REPLACED = 1_000  # rows read one by one; of more, all memories are scanned
_REPLACED = frozenset({MemoryState.SUPERSEDED, MemoryState.DELETED})
_PREFIX = re.compile(r"[0-9a-f]{8,63}")  # of an id
_ROW_BYTES = 400  # of a row's fields beside content, metadata and vector
_AGES = {"day": 1, "week": 7, "month": 30, "year": 365}  # days
_AGE_SECONDS = [days * 86_400 for days in _AGES.values()]
_GROUP = 1 << 40  # seconds: further apart than any two memories
_SAMPLE = 500  # memories that tell how large all are
_PAGE = 500
_EVERY = Conditions(states=frozenset(MemoryState))
_WRONG = Conditions(rating=Rating.WRONG)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter(Conditions):
    """Conditions of a list, with words of the content."""

    words: tuple[str, ...] = field(default=(), repr=False)  # folded; all of them stand in the content

    def holds(self, memory: Memory) -> bool:
        return Conditions.holds(self, memory) and (not self.words or self._says(memory))

    def _says(self, memory: Memory) -> bool:
        content = fold(memory.content)
        return all(word in content for word in self.words)


class Order(StrEnum):
    """The order of pages. Part of the API, so values are never renamed."""

    NEWEST = "newest"
    FACTS = "facts"  # messages of chats come after all else; each group the newest first


class Cursor(NamedTuple):
    """The end of a page: a memory's position by group, newest first, then by id."""

    group: int
    newest_first: int  # seconds since 1970, negative
    id: str


def place_of(memory: Memory, order: Order = Order.NEWEST) -> Cursor:
    head = memory.head
    return Cursor(int(order is Order.FACTS and head.type not in _FACTS), -head.created, head.id)


_cursor_of = itemgetter(0)


def _first(heads: MemoryHeads, most: int, after: Cursor | None, order: Order) -> list[str]:
    """The ids of the first *most* heads behind *after*, in order."""
    groups = np.zeros(len(heads), dtype=np.int64) if order is Order.NEWEST else ~heads.of_types(_FACTS)
    places = groups * _GROUP - heads.created
    behind = np.arange(len(heads))
    if after is not None:
        end = after.group * _GROUP + after.newest_first
        beside = [at for at in np.flatnonzero(places == end).tolist() if heads.ids[at] > after.id]
        behind = np.concatenate([np.flatnonzero(places > end), np.array(beside, dtype=np.int64)])
    if len(behind) > most:
        last = np.partition(places[behind], most - 1)[most - 1]
        behind = behind[places[behind] <= last]
    found = zip(places[behind].tolist(), heads.ids[behind].tolist(), strict=True)
    return [id_ for _, id_ in sorted(found)[:most]]


@dataclass(frozen=True, slots=True)
class Page:
    memories: tuple[Memory, ...]
    total: int  # of all pages together
    more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Counts of an owner's memories; by type, source and age of the active memories only."""

    total: int
    recallable: int
    by_type: Mapping[str, int]
    by_state: Mapping[str, int]
    by_source: Mapping[str, int]
    by_age: Mapping[str, int]
    oldest: datetime | None
    newest: datetime | None
    bytes: int = 0  # about, in the store
    backlog: int = 0
    dead_letters: int = 0


class MemoryCatalog:
    """Read-only access to an owner's memories."""

    def __init__(
        self, lists: HeadLister, keeps: MemoryWriter, journal: Journal, *, vector_bytes: int, now: Now
    ) -> None:
        self._lists, self._keeps, self._journal = lists, keeps, journal
        self._vector_bytes = vector_bytes
        self._now = now

    async def page(
        self, owner: Owner, chosen: Filter, limit: int, after: Cursor | None = None, order: Order = Order.NEWEST
    ) -> Page:
        """At most *limit* memories after *after*; of an owner who is not in process only these are read."""
        heads = None if chosen.words else await self._lists.heads(owner, chosen)
        if heads is not None:
            best = await asyncio.to_thread(_first, heads, limit + 1, after, order)
            ids = best[:limit]
            found = {memory.id: memory for memory in await self._keeps.get(owner, ids)}
            page = tuple(found[one] for one in ids if one in found and chosen.holds(found[one]))
            if len(page) == len(best[:limit]):
                return Page(page, len(heads), more=len(best) > limit)
        return await self._scan(owner, chosen, limit, after, order)

    async def _scan(self, owner: Owner, chosen: Filter, limit: int, after: Cursor | None, order: Order) -> Page:
        total = 0
        best: list[tuple[Cursor, Memory]] = []
        async for rows in self._lists.rows(owner):
            fitting = [memory for memory in rows if chosen.holds(memory)]
            total += len(fitting)
            if len(best) > limit and order is Order.NEWEST:
                # Most rows of a large owner are older than the page's end: no place. Places round to seconds.
                end = datetime.fromtimestamp(-best[-1][0].newest_first - 1, UTC)
                fitting = [memory for memory in fitting if memory.created_at >= end]
            placed = [(place_of(memory, order), memory) for memory in fitting]
            behind = [one for one in placed if after is None or one[0] > after]
            best = heapq.nsmallest(limit + 1, [*best, *behind], key=_cursor_of)
        return Page(tuple(memory for _, memory in best[:limit]), total, more=len(best) > limit)

    async def get(self, owner: Owner, memory_id: str) -> Memory | None:
        found = await self._keeps.get(owner, [memory_id])
        return next((one for one in found if one.state is not MemoryState.DELETED), None)

    async def whole_id(self, owner: Owner, given: str) -> str:
        """Resolve *given*, an id or a unique prefix of *owner*'s ids. AmbiguousIdError for several matches."""
        if not _PREFIX.fullmatch(given):
            return given
        heads = await self._lists.heads(owner, Conditions(states=frozenset(MemoryState)))
        if heads is None:
            ids = [memory.id async for rows in self._lists.rows(owner) for memory in rows]
        else:
            ids = heads.ids.tolist()
        found = {one for one in ids if one.startswith(given)}
        if len(found) > 1 and given not in found:
            raise AmbiguousIdError("several memories have ids that begin so")
        return found.pop() if len(found) == 1 else given

    async def history(self, owner: Owner, memory: Memory) -> tuple[Memory, ...]:
        """The memories superseded by *memory*, transitively, newest first."""
        before: dict[str, list[Memory]] = {}
        for row in await self._find_superseded(owner):
            before.setdefault(row.superseded_by, []).append(row)
        found: dict[str, Memory] = {}
        waiting = [memory.id]
        while waiting and len(found) < MOST_HISTORY:
            for row in before.get(waiting.pop(), ()):
                if row.id not in found and row.id != memory.id:
                    found[row.id] = row
                    waiting.append(row.id)
        newest_first = sorted(
            found.values(), key=lambda row: (row.valid_to or row.updated_at, row.id), reverse=True
        )
        return tuple(newest_first[:MOST_HISTORY])

    async def _find_superseded(self, owner: Owner) -> Sequence[Memory]:
        heads = await self._lists.heads(owner, Conditions(states=_REPLACED))
        if heads is None or len(heads) > _MOST_REPLACED:
            return [row async for rows in self._lists.rows(owner) for row in rows if row.superseded_by]
        return [row for row in await self._keeps.get(owner, heads.ids.tolist()) if row.superseded_by]

    async def stats(self, owner: Owner) -> Stats:
        """From columns of the store, or the rows in process; no text is read but those of a sample."""
        now = self._now()
        heads = await self._lists.heads(owner, _EVERY)
        if heads is None:
            heads, wrong = await self._read_heads(owner)
        else:
            wrong = await self._read_wrong(owner)
        waiting, dead = await self._backlog(owner)
        stats = _count(heads, now)
        return replace(
            stats,
            recallable=stats.recallable - int(wrong.recallable(now).sum()),
            bytes=await self._bytes(owner, heads),
            backlog=waiting,
            dead_letters=dead,
        )

    async def _read_heads(self, owner: Owner) -> tuple[MemoryHeads, MemoryHeads]:
        """Read the heads of all rows, and of the rows rated wrong."""
        every: list[MemoryHead] = []
        wrong: list[MemoryHead] = []
        async for rows in self._lists.rows(owner):
            every += [row.head for row in rows]
            wrong += [row.head for row in rows if row.provenance.rating is Rating.WRONG]
        return await asyncio.to_thread(MemoryHeads.of, every), MemoryHeads.of(wrong)

    async def _read_wrong(self, owner: Owner) -> MemoryHeads:
        if (found := await self._lists.heads(owner, _WRONG)) is None:  # read into the process meanwhile
            return (await self._read_heads(owner))[1]
        wrong: list[MemoryHead] = []
        for start in range(0, len(found), _PAGE):
            rows = await self._keeps.get(owner, found.ids[start : start + _PAGE].tolist())
            wrong += [row.head for row in rows if _WRONG.holds(row)]
        return MemoryHeads.of(wrong)

    async def _bytes(self, owner: Owner, heads: MemoryHeads) -> int:
        """About, from a sample: ids are digests, so any range of them is a random choice."""
        sample = heapq.nsmallest(_SAMPLE, heads.ids.tolist())
        rows = await self._keeps.get(owner, sample) if sample else ()
        texts = sum(len(row.content.encode()) + len(msgspec.json.encode(row.provenance)) for row in rows)
        return round(len(heads) * (texts / max(1, len(rows)) + _ROW_BYTES + self._vector_bytes))

    async def _backlog(self, owner: Owner) -> tuple[int, int]:
        states = Counter([entry.state async for entry in self._journal.of_owner(owner)])
        return states[JournalState.WAITING] + states[JournalState.STORED], states[JournalState.DEAD]


def _count(heads: MemoryHeads, now: datetime) -> Stats:
    active = heads.take(heads.active())
    types, _, sources = active.counts()
    ages = np.searchsorted(_AGE_SECONDS, now.timestamp() - active.created, side="right")
    by_age = np.bincount(ages, minlength=len(_AGES) + 1).tolist()
    return Stats(
        total=len(heads),
        recallable=int(heads.recallable(now).sum()),
        by_type=types,
        by_state=heads.counts()[1],
        by_source=sources,
        by_age={name: number for name, number in zip((*_AGES, "older"), by_age, strict=True) if number},
        oldest=datetime.fromtimestamp(int(heads.created.min()), UTC) if len(heads) else None,
        newest=datetime.fromtimestamp(int(heads.created.max()), UTC) if len(heads) else None,
    )
