"""Store, journal and coordination wrappers that encrypt user text.

Vectors, ids, times and kinds stay in plain form, because rows are searched by them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeVar

from memory_extproc.encryption.keys import (
    KeyDestroyedError,
    context_of,
    is_sealed,
    seal,
    seal_text,
    sealable,
    unseal,
    unseal_text,
)
from memory_extproc.errors import PermanentError, TransientError
from memory_extproc.model import (
    Conditions,
    DataKey,
    Embedded,
    Hit,
    JournalState,
    Memory,
    MemoryHeads,
    Owner,
    Provenance,
    Scope,
    SearchResult,
    Turn,
    TurnOutcome,
    Vector,
)
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Coordination, Journal, JournalEntry, KeyStore, MemoryStore

log = logger(__name__)
T = TypeVar("T")
_TRIES = 4
_PAGE = 500  # rows read at once for what only their sealed parts say


class EncryptedStore:
    """A MemoryStore that encrypts the rows of another with keys per owner.

    Rows from before encryption are read as they are and sealed on their next write. *content_bytes*: the other
    store's limit for a content, of which about three quarters remain."""

    def __init__(self, store: MemoryStore, keys: KeyStore, metrics: Metrics, *, content_bytes: int) -> None:
        self._store, self._keys, self._metrics = store, keys, metrics
        self._room = sealable(content_bytes)
        # Unchanged:
        self.open, self.close, self.count = store.open, store.close, store.count
        self.delete, self.delete_owner = store.delete, store.delete_owner

    @property
    def lags(self) -> bool:
        return self._store.lags

    @property
    def finds_words(self) -> bool:
        return False  # an index of sealed words would find nothing

    async def put(self, owner: Owner, rows: Sequence[Embedded]) -> None:
        if any(row.memory.owner != owner for row in rows):
            raise PermanentError("a memory of another owner")
        key = await self._keys.of(owner)
        for _ in range(_TRIES):
            await self._store.put(owner, [Embedded(self._seal(key, row.memory), row.vector) for row in rows])
            # A forget may have destroyed the key in the meantime; later data must stay readable.
            latest = await self._keys.of(owner)
            if latest == key:
                return
            key = latest
        raise TransientError("a data key that others keep destroying")

    async def get(self, owner: Owner, ids: Sequence[str]) -> Sequence[Memory]:
        return await self._unseal(owner, await self._store.get(owner, ids), _memory)

    async def fetch(self, owner: Owner, ids: Sequence[str]) -> Sequence[Embedded]:
        return await self._unseal(owner, await self._store.fetch(owner, ids), _unseal_embedded)

    async def nearest(self, owner: Owner, to: Vector, limit: int, scope: Scope) -> SearchResult:
        searched = await self._store.nearest(owner, to, limit, scope)
        return replace(searched, found=tuple(await self._unseal(owner, searched.found, _unseal_hit)))

    async def search_text(
        self,
        owner: Owner,  # noqa: ARG002 - the port's
        text: str,  # noqa: ARG002
        limit: int,  # noqa: ARG002
        scope: Scope,  # noqa: ARG002
    ) -> Sequence[Embedded]:
        return []

    async def pages(self, owner: Owner, size: int, *, fresh: bool) -> AsyncIterator[Sequence[Embedded]]:
        async for page in self._store.pages(owner, size, fresh=fresh):
            yield await self._unseal(owner, page, _unseal_embedded)

    async def heads(self, owner: Owner, chosen: Conditions) -> MemoryHeads:
        heads = await self._store.heads(owner, replace(chosen, rating=None))
        if chosen.rating is None:
            return heads
        rated = set[str]()
        for start in range(0, len(heads), _PAGE):
            page = await self.get(owner, heads.ids[start : start + _PAGE].tolist())
            rated |= {memory.id for memory in page if memory.provenance.rating is chosen.rating}
        return heads.only(rated)

    def _seal(self, key: DataKey, memory: Memory) -> Memory:
        content = memory.content.encode("utf-8", "replace")[: self._room].decode("utf-8", "ignore")
        try:
            metadata = json.dumps(memory.provenance.encode(), separators=(",", ":"), allow_nan=False)
        except (TypeError, ValueError):
            raise PermanentError("metadata that is not JSON") from None
        return replace(
            memory,
            content=seal_text(key, _row_context(memory, "content"), content),
            provenance=Provenance(sealed=seal_text(key, _row_context(memory, "metadata"), metadata)),
        )

    async def _unseal(
        self, owner: Owner, sealed: Sequence[T], opened: Callable[[T, Callable[[Memory], Memory]], T]
    ) -> list[T]:
        """Unseal the readable rows; rows sealed with a destroyed key are dropped."""
        if not sealed:
            return []
        key = await self._keys.find(owner)

        def unseal_one(memory: Memory) -> Memory:
            return _unsealed_row(key, memory)

        return list(self._readable(sealed, lambda one: opened(one, unseal_one)))

    def _readable(self, sealed: Iterable[T], opened: Callable[[T], T]) -> Iterable[T]:
        away = damaged = 0
        for one in sealed:
            try:
                yield opened(one)
            except KeyDestroyedError:
                away += 1
            except PermanentError:
                damaged += 1
        if away or damaged:
            log.warning("store.rows_sealed", key_gone=away, damaged=damaged)
            self._metrics.unreadable("key_gone", away)
            self._metrics.unreadable("damaged", damaged)


def _unsealed_row(key: DataKey | None, memory: Memory) -> Memory:
    sealed = memory.provenance.sealed
    if not sealed or memory.provenance != Provenance(sealed=sealed):
        return memory  # from before texts were sealed
    metadata = json.loads(unseal_text(key, _row_context(memory, "metadata"), sealed))
    content = unseal_text(key, _row_context(memory, "content"), memory.content)
    return replace(memory, content=content, provenance=Provenance.decode(metadata))


def _row_context(memory: Memory, what: str) -> bytes:
    return context_of(what, memory.owner.key, memory.id)


def _memory(one: Memory, unsealed: Callable[[Memory], Memory]) -> Memory:
    return unsealed(one)


def _unseal_embedded(one: Embedded, unsealed: Callable[[Memory], Memory]) -> Embedded:
    return Embedded(unsealed(one.memory), one.vector)


def _unseal_hit(one: Hit, unsealed: Callable[[Memory], Memory]) -> Hit:
    return Hit(unsealed(one.memory), one.cosine)


# The encrypted journal.

_ENTRY_MARK = "sealed:"  # prefix of each sealed text of a turn; older texts have none
_UNREADABLE = "sealed_away"  # why a turn whose key is gone became a dead letter


@dataclass(frozen=True, slots=True)
class OpenedEntry:
    """A JournalEntry with its turn unsealed. *sealed*: the stored entry."""

    turn: Turn
    sealed: JournalEntry
    place: str
    state: JournalState
    stored: bool
    replaced: bool
    attempts: int


class EncryptedJournal:
    """A Journal that encrypts the turns of another with keys per owner. Older turns are read as they are."""

    def __init__(self, journal: Journal, keys: KeyStore) -> None:
        self._journal, self._keys = journal, keys
        # Unchanged:
        self.erase, self.erase_owner, self.erase_learned = journal.erase, journal.erase_owner, journal.erase_learned
        self.depth, self.dead, self.retry = journal.depth, journal.dead, journal.retry
        self.holds, self.end = journal.holds, journal.end

    async def append(self, turn: Turn) -> TurnOutcome:
        key = await self._keys.of(turn.owner)
        for _ in range(_TRIES):
            stored = await self._journal.append(_encrypt_turn(key, turn))
            # A forget may have destroyed the key in the meantime; later data must stay readable.
            latest = await self._keys.of(turn.owner)
            if latest == key:
                return stored
            key = latest
        raise TransientError("a data key that others keep destroying")

    async def pending(self, limit: int, *, after: str = "") -> Sequence[JournalEntry]:
        while entries := await self._journal.pending(limit, after=after):
            if opened := await self._unseal(entries, given_up=True):
                return opened
            after = entries[-1].place
        return []

    async def get(self, owner: Owner, ids: Sequence[str]) -> Sequence[JournalEntry]:
        return await self._unseal(await self._journal.get(owner, ids), given_up=True)

    async def mark_stored(self, entries: Sequence[JournalEntry]) -> None:
        await self._journal.mark_stored([_inner(entry) for entry in entries])

    async def mark_learned(self, entries: Sequence[JournalEntry]) -> None:
        await self._journal.mark_learned([_inner(entry) for entry in entries])

    async def mark_failed(self, entry: JournalEntry, reason: str, *, dead: bool) -> None:
        await self._journal.mark_failed(_inner(entry), reason, dead=dead)

    async def of_owner(self, owner: Owner) -> AsyncIterator[JournalEntry]:
        async for entry in self._journal.of_owner(owner):
            for opened in await self._unseal([entry], given_up=False):
                yield opened

    async def arrivals(self, limit: int) -> Sequence[JournalEntry]:
        while entries := await self._journal.arrivals(limit):
            if opened := await self._unseal(entries, given_up=True):
                return opened
        return []

    async def _unseal(self, entries: Sequence[JournalEntry], *, given_up: bool) -> list[JournalEntry]:
        """Unseal the readable entries. *given_up*: unreadable entries become dead letters, so that they do not
        block."""
        opened: list[JournalEntry] = []
        for entry in entries:
            key = await self._keys.find(entry.turn.owner)
            try:
                turn = _unsealed_entry(key, entry.turn)
            except PermanentError as error:
                log.warning("journal.entry_sealed", kind=type(error).__name__)
                if given_up:
                    await self._journal.mark_failed(entry, _UNREADABLE, dead=True)
            else:
                opened.append(
                    OpenedEntry(turn, entry, entry.place, entry.state, entry.stored, entry.replaced, entry.attempts)
                )
        return opened


def _inner(entry: JournalEntry) -> JournalEntry:
    return entry.sealed if isinstance(entry, OpenedEntry) else entry


def _encrypt_turn(key: DataKey, turn: Turn) -> Turn:
    def seal_one(what: str, text: str) -> str:
        return _ENTRY_MARK + seal_text(key, _entry_context(turn, what), text)

    return replace(
        turn,
        asked=seal_one("asked", turn.asked),
        answered=seal_one("answered", turn.answered) if turn.answered else "",
        injected=tuple(seal_one(f"injected {at}", text) for at, text in enumerate(turn.injected)),
    )


def _unsealed_entry(key: DataKey | None, turn: Turn) -> Turn:
    if not turn.asked.startswith(_ENTRY_MARK):
        return turn  # from before texts were sealed

    def unseal_one(what: str, text: str) -> str:
        return unseal_text(key, _entry_context(turn, what), text.removeprefix(_ENTRY_MARK))

    return replace(
        turn,
        asked=unseal_one("asked", turn.asked),
        answered=unseal_one("answered", turn.answered) if turn.answered else "",
        injected=tuple(unseal_one(f"injected {at}", text) for at, text in enumerate(turn.injected)),
    )


def _entry_context(turn: Turn, what: str) -> bytes:
    return context_of("turn", what, turn.owner.key, turn.id)


# Encrypted coordination records: injected blocks, and texts kept with response ids.


class EncryptedCoordination:
    """A Coordination that encrypts the records of another with keys per owner.

    An unreadable record counts as absent: every record can be recomputed. Counters and leases contain no user text
    and stay in plain form."""

    def __init__(self, coordination: Coordination, keys: KeyStore) -> None:
        self._coordination, self._keys = coordination, keys
        # Unchanged:
        self.version, self.bump, self.changes = coordination.version, coordination.bump, coordination.changes
        self.epoch, self.advance_epoch = coordination.epoch, coordination.advance_epoch
        self.acquire, self.release = coordination.acquire, coordination.release
        self.delete_records = coordination.delete_records

    async def get_record(self, kind: str, owner: Owner, key: str) -> bytes | None:
        return await self._unseal(kind, owner, key, await self._coordination.get_record(kind, owner, key))

    async def find_records(self, kind: str, owner: Owner, keys: Sequence[str]) -> Mapping[str, bytes]:
        sealed = await self._coordination.find_records(kind, owner, keys)
        found = {key: await self._unseal(kind, owner, key, value) for key, value in sealed.items()}
        return {key: value for key, value in found.items() if value is not None}

    async def put_record(self, kind: str, owner: Owner, key: str, value: bytes, ttl: timedelta) -> None:
        await self._coordination.put_record(kind, owner, key, await self._seal(kind, owner, key, value), ttl)

    async def replace_record(
        self, kind: str, owner: Owner, key: str, old: bytes | None, new: bytes, ttl: timedelta
    ) -> bool:
        there = await self._coordination.get_record(kind, owner, key)
        if await self._unseal(kind, owner, key, there) != old:
            return False
        sealed = await self._seal(kind, owner, key, new)
        return await self._coordination.replace_record(kind, owner, key, there, sealed, ttl)

    async def _seal(self, kind: str, owner: Owner, key: str, value: bytes) -> bytes:
        return seal(await self._keys.of(owner), _record_context(kind, owner, key), value)

    async def _unseal(self, kind: str, owner: Owner, key: str, value: bytes | None) -> bytes | None:
        if value is None or not is_sealed(value):  # from before records were sealed
            return value
        try:
            return unseal(await self._keys.find(owner), _record_context(kind, owner, key), value)
        except PermanentError as error:
            log.info("coordination.record_sealed", kind=type(error).__name__)
            return None


def _record_context(kind: str, owner: Owner, key: str) -> bytes:
    return context_of("record", kind, owner.key, key)
