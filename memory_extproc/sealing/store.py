"""A store whose rows hold what people said only as it was sealed. Vectors, ids, times and kinds stay as they are:
they are what rows are found by."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from memory_extproc.errors import GiveUpError, TryLaterError
from memory_extproc.model import DataKey, Embedded, Found, Memory, Owner, Scope, Searched, Vector
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Keys, MemoryStore
from memory_extproc.sealing.box import (
    SealedAwayError,
    context_of,
    seal_text,
    sealable,
    unseal_text,
)

log = logger(__name__)
T = TypeVar("T")
_MARK = "sealed"  # the one key of a sealed row's metadata; behind it, sealed, what they were
_TRIES = 4


class SealedStore:
    """A MemoryStore over another, with keys by owner. Rows from before it was sealed are read as they are and
    sealed when they are next written. *content_bytes*: what the other keeps of a content,
    about three quarters of which are left for what is sealed."""

    def __init__(self, store: MemoryStore, keys: Keys, metrics: Metrics, *, content_bytes: int) -> None:
        self._store, self._keys, self._metrics = store, keys, metrics
        self._room = sealable(content_bytes)

    @property
    def lags(self) -> bool:
        return self._store.lags

    @property
    def finds_words(self) -> bool:
        return False  # an index of sealed words would find nothing

    async def open(self) -> None:
        await self._store.open()

    async def close(self) -> None:
        await self._store.close()

    async def put(self, owner: Owner, rows: Sequence[Embedded]) -> None:
        if any(row.memory.owner != owner for row in rows):
            raise GiveUpError("a memory of another owner")
        key = await self._keys.of(owner)
        for _ in range(_TRIES):
            await self._store.put(owner, [Embedded(self._sealed(key, row.memory), row.vector) for row in rows])
            # A forget may have destroyed the key meanwhile, and what came after it is to stay readable.
            latest = await self._keys.of(owner)
            if latest == key:
                return
            key = latest
        raise TryLaterError("a data key that others keep destroying")

    async def get(self, owner: Owner, ids: Sequence[str]) -> Sequence[Memory]:
        return await self._opened(owner, await self._store.get(owner, ids), _memory)

    async def fetch(self, owner: Owner, ids: Sequence[str]) -> Sequence[Embedded]:
        return await self._opened(owner, await self._store.fetch(owner, ids), _embedded)

    async def nearest(self, owner: Owner, to: Vector, limit: int, scope: Scope) -> Searched:
        searched = await self._store.nearest(owner, to, limit, scope)
        return replace(searched, found=tuple(await self._opened(owner, searched.found, _found)))

    async def worded(
        self,
        owner: Owner,  # noqa: ARG002 - the port's
        text: str,  # noqa: ARG002
        limit: int,  # noqa: ARG002
        scope: Scope,  # noqa: ARG002
    ) -> Sequence[Embedded]:
        return []

    async def pages(self, owner: Owner, size: int, *, fresh: bool) -> AsyncIterator[Sequence[Embedded]]:
        async for page in self._store.pages(owner, size, fresh=fresh):
            yield await self._opened(owner, page, _embedded)

    async def delete(self, owner: Owner, ids: Sequence[str]) -> None:
        await self._store.delete(owner, ids)

    async def delete_owner(self, owner: Owner) -> None:
        await self._store.delete_owner(owner)

    async def count(self, owner: Owner) -> int:
        return await self._store.count(owner)

    def _sealed(self, key: DataKey, memory: Memory) -> Memory:
        content = memory.content.encode("utf-8", "replace")[: self._room].decode("utf-8", "ignore")
        try:
            metadata = json.dumps(dict(memory.metadata), separators=(",", ":"), allow_nan=False)
        except (TypeError, ValueError):
            raise GiveUpError("metadata that is not JSON") from None
        return replace(
            memory,
            content=seal_text(key, _context(memory, "content"), content),
            metadata={_MARK: seal_text(key, _context(memory, "metadata"), metadata)},
        )

    async def _opened(
        self, owner: Owner, sealed: Sequence[T], opened: Callable[[T, Callable[[Memory], Memory]], T]
    ) -> list[T]:
        """Those of *sealed* that can be read: what was sealed with a key that is gone is gone."""
        if not sealed:
            return []
        key = await self._keys.find(owner)

        def unsealed(memory: Memory) -> Memory:
            return _unsealed(key, memory)

        return list(self._readable(sealed, lambda one: opened(one, unsealed)))

    def _readable(self, sealed: Iterable[T], opened: Callable[[T], T]) -> Iterable[T]:
        away = damaged = 0
        for one in sealed:
            try:
                yield opened(one)
            except SealedAwayError:
                away += 1
            except GiveUpError:
                damaged += 1
        if away or damaged:
            log.warning("store.rows_sealed", key_gone=away, damaged=damaged)
            self._metrics.unreadable("key_gone", away)
            self._metrics.unreadable("damaged", damaged)


def _unsealed(key: DataKey | None, memory: Memory) -> Memory:
    if tuple(memory.metadata) != (_MARK,):
        return memory  # from before texts were sealed
    metadata: Any = json.loads(unseal_text(key, _context(memory, "metadata"), memory.metadata[_MARK]))
    content = unseal_text(key, _context(memory, "content"), memory.content)
    return replace(memory, content=content, metadata=metadata)


def _context(memory: Memory, what: str) -> bytes:
    return context_of(what, memory.owner.key, memory.id)


def _memory(one: Memory, unsealed: Callable[[Memory], Memory]) -> Memory:
    return unsealed(one)


def _embedded(one: Embedded, unsealed: Callable[[Memory], Memory]) -> Embedded:
    return Embedded(unsealed(one.memory), one.vector)


def _found(one: Found, unsealed: Callable[[Memory], Memory]) -> Found:
    return Found(unsealed(one.memory), one.cosine)
