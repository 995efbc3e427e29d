"""The import: memories from a file are validated and become the owner's.

Unknown ids are not accepted as sent: rows are stored by id, so a chosen id could overwrite another owner's row. A
new id is derived from the owner and the sent id. A repeated import gives the same ids and finds the memories
unchanged."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import msgspec

from memory_extproc.errors import PermanentError, TransientError
from memory_extproc.model import (
    Consent,
    Embedded,
    ImportProblem,
    ImportReport,
    JournalState,
    Memory,
    MemoryState,
    Owner,
    Provenance,
    Source,
    Trust,
    digest,
    least_trusted,
    trust_of,
    with_trust,
)
from memory_extproc.portability.records import (
    COUNTED,
    ID,
    MemoryRecord,
    RefusedError,
    memory_of,
    read_record,
    record_of,
)
from memory_extproc.ports import (
    ConsentRegistry,
    Coordination,
    EmbeddingModel,
    Exported,
    Journal,
    MemoryStore,
    MemoryWriter,
    Now,
    TombstoneReader,
)
from memory_extproc.safety.policy import MASK_SECRETS, StorageRules

T = TypeVar("T")
_MOST_PROBLEMS: Final = 1000
_DEEPEST: Final = 8  # levels of metadata
_MOST_SOURCES: Final = 100  # that a summary of ours names
_GIVEN_BY_US = frozenset({"user_id", "tenant_id", "last_accessed_at"})  # assigned by us when the API shows a memory
# Fields that may differ between equal memories: times and counters.
_BESIDE_THE_POINT = {"id": "", "updated_at": None, "created_at": None, "access_count": 0}


class RejectReason(StrEnum):
    """Why a memory was rejected. Part of the API, so values are never renamed."""

    CONFLICT = "conflict"
    FORGOTTEN = "forgotten"
    BAD_FIELD = "bad_field"
    TOO_LARGE = "too_large"
    NO_CONSENT = "no_consent"
    DELETED = "deleted"


_NAME_BYTES = 256  # of a project, a session and an origin
_METADATA_BYTES = 16 * 1024  # as JSON in ASCII


@dataclass(frozen=True, slots=True)
class _Taken:
    index: int
    record: MemoryRecord


@dataclass(frozen=True, slots=True)
class _Change:
    taken: _Taken
    memory: Memory
    there: Memory | None  # the memory to be replaced


@dataclass(slots=True)
class _Counted:
    added: int = 0
    same: int = 0
    replaced: int = 0
    conflicting: int = 0
    refused: int = 0
    problems: list[ImportProblem] = field(default_factory=list)


class Importer:
    """Imports through the owner's partition, so that the next recall finds the memories."""

    BATCH = 32  # memories looked up, embedded and stored together
    WAITS: tuple[float, ...] = (0.1, 0.5, 1.0, 2.0, 4.0)  # seconds before each further attempt at the store

    def __init__(
        self,
        keeps: MemoryWriter,
        embeds: EmbeddingModel,
        coordination: Coordination,
        content_bytes: int,
        *,
        now: Now,
        consent: ConsentRegistry | None = None,
        forgotten: TombstoneReader | None = None,
        rules: Callable[[], StorageRules] = lambda: MASK_SECRETS,
    ) -> None:
        """*content_bytes*: of a memory; a longer one is refused, not cut. *rules*: which texts may be stored."""
        self.rules = rules
        self.keeps, self.embeds, self.coordination = keeps, embeds, coordination
        self.content_bytes, self.now, self.consent, self.forgotten = content_bytes, now, consent, forgotten

    def begin(self, owner: Owner, *, replace: bool = False, dry_run: bool = False) -> Import:
        return Import(self, owner, replacing=replace, dry_run=dry_run)


class Import:
    """An import in progress. Holds at most a batch."""

    def __init__(self, parts: Importer, owner: Owner, *, replacing: bool, dry_run: bool) -> None:
        self._parts, self._owner = parts, owner
        self._replacing, self._dry_run = replacing, dry_run
        self._waiting: dict[str, _Taken] = {}  # by future id
        self._counted = _Counted()
        self._index = 0
        self._epoch: int | None = None

    async def take(self, fields: Mapping[str, Any]) -> None:
        index, self._index = self._index, self._index + 1
        sent = fields.get("id")
        shown = sent if isinstance(sent, str) else ""
        try:
            record = read_record({name: value for name, value in fields.items() if name not in _GIVEN_BY_US})
        except RefusedError as error:
            self._refuse(index, shown, RejectReason.BAD_FIELD, str(error))
            return
        rules = self._parts.rules()
        if why := rules.refusal(rules.apply(record.content)):
            self._refuse(index, shown, RejectReason.BAD_FIELD, f"content: {why}")
            return
        if fault := next(_faults(record, self._parts.content_bytes), None):
            self._refuse(index, shown, *fault)
            return
        key = record.id or _id_of_words(self._owner, record)
        if key in self._waiting or len(self._waiting) >= self._parts.BATCH:
            await self._store_batch()
        self._waiting[key] = _Taken(index, record)

    async def finish(self) -> ImportReport:
        await self._store_batch()
        counted = self._counted
        return ImportReport(
            added=counted.added,
            same=counted.same,
            replaced=counted.replaced,
            conflicting=counted.conflicting,
            refused=counted.refused,
            problems=tuple(counted.problems),
        )

    async def _store_batch(self) -> None:
        """Look up, decide, embed and store the buffered memories."""
        waiting, self._waiting = self._waiting, {}
        if not waiting:
            return
        if self._epoch is None:
            self._epoch = await self._parts.coordination.epoch(self._owner)
        if await self._without_consent():
            for taken in waiting.values():
                self._refuse(
                    taken.index, taken.record.id, RejectReason.NO_CONSENT, "nothing new may be kept of this user"
                )
            return
        known = await self._find_known(waiting)
        changes = []
        for key, taken in waiting.items():
            memory = self._adopt(key, taken.record, known)
            there = known.get(memory.id)
            if there is None:
                changes.append(_Change(taken, memory, None))
            elif _says_the_same(there, memory):
                self._counted.same += 1
            elif self._replacing and there.state is not MemoryState.QUARANTINED:
                changes.append(_Change(taken, memory, there))
            else:
                self._refuse(
                    taken.index, taken.record.id, RejectReason.CONFLICT, "it is there with another content"
                )
        if changes:
            await self._apply_changes(changes)

    async def _find_known(self, waiting: Mapping[str, _Taken]) -> dict[str, Memory]:
        """The owner's memories by id, for all ids involved."""
        sent = {
            id_
            for key, taken in waiting.items()
            for id_ in (key, taken.record.superseded_by, *_sources(taken.record))
            if id_
        }
        ids = [*sent, *(_id_of_sent(self._owner, id_) for id_ in sent)]
        found = await self._retry_briefly(lambda: self._parts.keeps.get(self._owner, ids))
        return {memory.id: memory for memory in found}

    def _adopt(self, key: str, record: MemoryRecord, known: Mapping[str, Memory]) -> Memory:
        def ours(id_: str) -> str:
            return id_ if not id_ or id_ in known else _id_of_sent(self._owner, id_)

        memory = memory_of(
            record, self._owner, ours(key) if record.id else key, self._parts.now(), self._parts.rules()
        )
        provenance = memory.provenance
        if sources := _sources(record):
            # A forget of a source finds the summary by these ids.
            provenance = provenance.replace(sources=tuple(ours(id_) for id_ in sources))
        memory = replace(memory, superseded_by=ours(record.superseded_by), provenance=provenance)
        # A file can say anything of itself: it may lower its class, and never raise it.
        stated = Trust.IMPORT if record.trust is None else record.trust
        return with_trust(memory, least_trusted((trust_of(memory), stated, Trust.IMPORT)))

    async def _apply_changes(self, changes: Sequence[_Change]) -> None:
        vectors = await self._parts.embeds.embed([change.memory.content for change in changes])
        model = self._parts.embeds.fingerprint
        rows = [
            Embedded(replace(change.memory, embed_model=model), vector)
            for change, vector in zip(changes, vectors, strict=True)
        ]
        # It may be forgotten under the id as sent, or under the derived id.
        as_sent = [
            Embedded(replace(row.memory, id=change.taken.record.id), row.vector)
            for change, row in zip(changes, rows, strict=True)
            if change.taken.record.id
        ]
        allowed = await self._retry_briefly(lambda: self._filter_forgotten([*rows, *as_sent]))
        admitted = {row.memory.id for row in allowed}
        kept = []
        for change, row in zip(changes, rows, strict=True):
            if not {row.memory.id, change.taken.record.id or row.memory.id} <= admitted:
                self._refuse(change.taken.index, change.taken.record.id, RejectReason.FORGOTTEN, "it was forgotten")
            else:
                kept.append((change, row))
        if not self._dry_run:
            replaced = [change.there for change, _ in kept if change.there]
            # Rows are stored by id: a repetition has no effect.
            await self._retry_briefly(lambda: self._put([row for _, row in kept], replaced))
        self._counted.added += sum(change.there is None for change, _ in kept)
        self._counted.replaced += sum(change.there is not None for change, _ in kept)

    async def _filter_forgotten(self, rows: Sequence[Embedded]) -> Sequence[Embedded]:
        """The rows that no forget covers; none after a forget since the import began, which may cover them."""
        if await self._parts.coordination.epoch(self._owner) != self._epoch:
            return ()
        return rows if self._parts.forgotten is None else await self._parts.forgotten.filter_rows(self._owner, rows)

    async def _put(self, rows: Sequence[Embedded], replaced: Sequence[Memory]) -> None:
        """Store the replaced versions first: a failure in between loses nothing."""
        if replaced:
            now = self._parts.now().replace(microsecond=0)
            vectors = await self._parts.embeds.embed([memory.content for memory in replaced])
            versions = [Embedded(_version(one, now), vector) for one, vector in zip(replaced, vectors, strict=True)]
            await self._parts.keeps.put(self._owner, versions)
        if rows:
            await self._parts.keeps.put(self._owner, rows)

    async def _retry_briefly(self, work: Callable[[], Awaitable[T]]) -> T:
        """Retry transient errors briefly: a busy store must not end an import of thousands, an unreachable store
        must."""
        for wait in self._parts.WAITS:
            try:
                return await work()
            except TransientError:
                await asyncio.sleep(wait)
        return await work()

    async def _without_consent(self) -> bool:
        consent = self._parts.consent
        return consent is not None and await consent.read_consent(self._owner) is not Consent.ON

    def _refuse(self, index: int, sent: str, reason: RejectReason, message: str) -> None:
        if reason is RejectReason.CONFLICT:
            self._counted.conflicting += 1
        else:
            self._counted.refused += 1
        if len(self._counted.problems) < _MOST_PROBLEMS:
            self._counted.problems.append(ImportProblem(index, sent, reason.value, message))


def _sources(record: MemoryRecord) -> tuple[str, ...]:
    """Ids of the source memories of a summary."""
    named = Provenance.decode(record.metadata).sources if record.source is Source.SUMMARY else ()
    return named[:_MOST_SOURCES]


def _id_of_sent(owner: Owner, sent: str) -> str:
    return digest("import", owner.key, sent)


def _id_of_words(owner: Owner, record: MemoryRecord) -> str:
    return digest("import", owner.key, "", record.type.value, record.project_id, record.content)


def _version(memory: Memory, now: datetime) -> Memory:
    """The previous content of *memory*, as a superseded version under an id of its own."""
    seconds = str(int(memory.updated_at.timestamp()))
    return replace(
        memory,
        id=digest("version", memory.owner.key, memory.id, seconds, memory.content),
        state=MemoryState.SUPERSEDED,
        superseded_by=memory.id,
        valid_to=memory.valid_to or now,
    )


def _says_the_same(there: Memory, brought: Memory) -> bool:
    """Whether both are equal except for counters and times."""
    one, other = (_without_counts(record_of(memory)) for memory in (there, brought))
    return one == other


def _without_counts(record: MemoryRecord) -> MemoryRecord:
    metadata = {name: value for name, value in record.metadata.items() if name not in {COUNTED, "trust"}}
    return msgspec.structs.replace(record, metadata=metadata, **_BESIDE_THE_POINT)


def _faults(record: MemoryRecord, content_bytes: int) -> Iterator[tuple[RejectReason, str]]:
    """The reasons why *record* is invalid."""
    if record.state is MemoryState.DELETED:
        yield RejectReason.DELETED, "it says of itself that it is deleted"
    if not record.content.strip():
        yield RejectReason.BAD_FIELD, "`content` is nothing but white space"
    if _bytes(record.content) > content_bytes:
        yield RejectReason.TOO_LARGE, f"`content` has more than {content_bytes} bytes"
    for name in ("project_id", "session_id", "origin"):
        value = getattr(record, name)
        if _bytes(value) > _NAME_BYTES:
            yield RejectReason.TOO_LARGE, f"`{name}` has more than {_NAME_BYTES} bytes"
        if not value.isprintable():
            yield RejectReason.BAD_FIELD, f"`{name}` has characters that cannot be printed"
    if _depth(record.metadata) > _DEEPEST:
        yield RejectReason.BAD_FIELD, f"`metadata` is more than {_DEEPEST} levels deep"
    elif len(json.dumps(record.metadata, separators=(",", ":"))) > _METADATA_BYTES:
        yield RejectReason.TOO_LARGE, f"`metadata` has more than {_METADATA_BYTES} bytes as JSON"


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _depth(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 0
    return 1 + max((_depth(one) for one in (value.values() if isinstance(value, dict) else value)), default=0)


# The export: all data of an owner, in a stable order.

_PLACE = re.compile(rf"m\.(-?[0-9]{{1,18}})\.({ID})")
# The place of everything after the memories: it is small and changes while it is read, so it is always exported
# whole.
_REST = "rest"


class NoPlaceError(PermanentError):
    """The place to resume an export at is invalid."""


class Exporter:
    """Exports from the store, the journal and the consent records.

    The store returns rows unordered, so it is read twice: first for the order, kept as times and ids, then for the
    current memories."""

    def __init__(
        self,
        store: MemoryStore,
        journal: Journal,
        *,
        page: int = 200,
        consent: ConsentRegistry | None = None,
    ) -> None:
        """*page*: memories per read, and held at most."""
        self._store, self._journal, self._page, self._consent = store, journal, page, consent

    async def count(self, owner: Owner) -> int:
        return await self._store.count(owner)

    async def export(self, owner: Owner, *, project: str = "", after: str = "") -> AsyncIterator[Exported]:
        if after != _REST:
            async for memory in self._memories(owner, project, _read_place(after)):
                yield Exported(memory, _place_of(memory))
        async for entry in self._journal.of_owner(owner):
            # Learned turns are among the memories; the journal keeps them only to recognise retries.
            if entry.state is not JournalState.LEARNED and project in {"", entry.turn.project}:
                yield Exported(entry, _REST)
        if self._consent is not None and not project:
            for change in await self._consent.history(owner):
                yield Exported(change, _REST)

    async def _memories(self, owner: Owner, project: str, after: tuple[int, str] | None) -> AsyncIterator[Memory]:
        with Spilled() as order:
            async for page in self._store.pages(owner, self._page, fresh=True):
                order.add(_key(row.memory) for row in page if not project or row.memory.project == project)
            for keys in order.after(after, self._page):
                found = {one.id: one for one in await self._store.get(owner, [id_ for _, id_ in keys])}
                for _, id_ in keys:
                    if id_ in found:  # else it went since
                        yield found[id_]


def _key(memory: Memory) -> tuple[int, str]:
    return int(memory.created_at.timestamp()), memory.id


def _place_of(memory: Memory) -> str:
    seconds, id_ = _key(memory)
    return f"m.{seconds}.{id_}"


def _read_place(place: str) -> tuple[int, str] | None:
    """The memory before *place*; None: start at the first."""
    if not place:
        return None
    found = _PLACE.fullmatch(place)
    if found is None:
        raise NoPlaceError("no place of an export")
    return int(found[1]), found[2]


# Sorted sets of keys that may exceed the available memory.
#
# SQLite's temporary database: in memory while small, then in an unlinked file, deleted on close. It contains ids
# and times, never user text.


class Spilled:
    """Unique pairs of a number and a text, read in order."""

    def __init__(self) -> None:
        # An empty name means a private temporary database, so durability is not needed.
        self._rows = sqlite3.connect("", isolation_level=None)
        self._rows.execute("PRAGMA journal_mode = OFF")
        self._rows.execute("CREATE TABLE keys (at INTEGER, id TEXT, PRIMARY KEY (at, id)) WITHOUT ROWID")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._rows.close()

    def add(self, keys: Iterable[tuple[int, str]]) -> None:
        self._rows.executemany("INSERT OR IGNORE INTO keys VALUES (?, ?)", keys)

    def __contains__(self, key: tuple[int, str]) -> bool:
        return self._rows.execute("SELECT 1 FROM keys WHERE at = ? AND id = ?", key).fetchone() is not None

    def __len__(self) -> int:
        count: int = self._rows.execute("SELECT count(*) FROM keys").fetchone()[0]
        return count

    def after(self, key: tuple[int, str] | None, size: int) -> Iterator[list[tuple[int, str]]]:
        """Yield the pairs after *key* (None: all), in order, in lists of *size*."""
        last = key if key is not None else (-(2**63), "")
        while True:
            found = self._rows.execute(
                "SELECT at, id FROM keys WHERE (at, id) > (?, ?) ORDER BY at, id LIMIT ?", (*last, size)
            ).fetchall()
            if not found:
                return
            yield found
            last = found[-1]
