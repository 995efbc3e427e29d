"""The data keys of owners: random, one each, kept only as the master key wrapped them."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from memory_extproc.errors import GiveUpError, TryLaterError
from memory_extproc.model import DataKey, Owner
from memory_extproc.ports import WrapsKeys
from memory_extproc.sealing.box import context_of

_SECRET_BYTES, _ID_BYTES = 32, 8
_UNWRAPPED = 4096  # keys in process, least recently used out
_PROOF = "proof"  # in the place of an owner's key: what tells a wrong master key before anybody asks


class KeyTable(Protocol):
    """Where wrapped keys rest, by Owner.key. Durable when a call returns."""

    async def get(self, place: str) -> bytes | None:
        """What is there now, whichever replica put it. Cheap: every reading and writing asks."""

    async def add(self, place: str, wrapped: bytes) -> bytes:
        """Puts *wrapped* unless something is there; returns what is there then."""

    async def swap(self, place: str, old: bytes, new: bytes) -> bool:
        """Puts *new* if *old* is still there; says whether it did."""

    async def remove(self, place: str) -> bool:
        """Says whether there was one. No trace of it is left in the files."""

    def all(self) -> AsyncIterator[Sequence[tuple[str, bytes]]]:
        """Everything, in pages."""


class WrappedKeys:
    """Implements ports.Keys. What was unwrapped is kept in process by what it was unwrapped from, and the table is
    asked each time: a key that another replica destroyed is not used any more."""

    def __init__(self, table: KeyTable, master: WrapsKeys) -> None:
        self._table, self.master = table, master
        self._unwrapped: OrderedDict[str, tuple[bytes, DataKey]] = OrderedDict()  # by place, with what it came from

    async def begun(self) -> bool:
        """Whether the table was ever used with a master key."""
        return await self._table.get(_PROOF) is not None

    async def check(self) -> None:
        """Whether the master key is one that the table's keys were wrapped with. GiveUpError names what to do."""
        wrapped = await self._table.get(_PROOF)
        if wrapped is None:
            wrapped = await self._table.add(_PROOF, await self.master.wrap(_PROOF.encode(), _context(_PROOF)))
        await self.master.unwrap(wrapped, _context(_PROOF))

    async def of(self, owner: Owner) -> DataKey:
        place = owner.key
        wrapped = await self._there(place)
        if wrapped is None:
            fresh = secrets.token_bytes(_ID_BYTES + _SECRET_BYTES)
            wrapped = await self._table.add(place, await self.master.wrap(fresh, _context(place)))
        return await self._unwrap(place, wrapped)

    async def find(self, owner: Owner) -> DataKey | None:
        wrapped = await self._there(owner.key)
        return None if wrapped is None else await self._unwrap(owner.key, wrapped)

    async def destroy(self, owner: Owner) -> bool:
        place = owner.key
        removed = await self._table.remove(place)
        self._unwrapped.pop(place, None)
        return removed

    async def rotate(self) -> tuple[int, int]:
        """Wraps every key anew with the current master key: (wrapped anew, wrapped with it before). What was
        destroyed meanwhile stays destroyed."""
        current = self.master.name
        anew = before = 0
        async for page in self._table.all():
            for place, wrapped in page:
                if self.master_of(wrapped) == current:
                    before += 1
                    continue
                plain = await self.master.unwrap(wrapped, _context(place))
                anew += await self._table.swap(place, wrapped, await self.master.wrap(plain, _context(place)))
        return anew, before

    async def masters(self) -> dict[str, int]:
        """How many keys each master key has wrapped, by its name."""
        counted: dict[str, int] = {}
        async for page in self._table.all():
            for _, wrapped in page:
                name = self.master_of(wrapped)
                counted[name] = counted.get(name, 0) + 1
        return counted

    @staticmethod
    def master_of(wrapped: bytes) -> str:
        """The name of the master key that made *wrapped*."""
        return wrapped[:8].hex()

    async def _there(self, place: str) -> bytes | None:
        try:
            return await self._table.get(place)
        except TryLaterError:
            # Nobody can have destroyed it without the table either: turns are kept, and memories recalled.
            known = self._unwrapped.get(place)
            if known is None:
                raise
            return known[0]

    async def _unwrap(self, place: str, wrapped: bytes) -> DataKey:
        known = self._unwrapped.get(place)
        if known is not None and known[0] == wrapped:
            self._unwrapped.move_to_end(place)
            return known[1]
        plain = await self.master.unwrap(wrapped, _context(place))
        if len(plain) != _ID_BYTES + _SECRET_BYTES:
            raise GiveUpError("a data key of another length than ours have")
        key = DataKey(plain[:_ID_BYTES], plain[_ID_BYTES:])
        self._unwrapped[place] = (wrapped, key)
        self._unwrapped.move_to_end(place)
        if len(self._unwrapped) > _UNWRAPPED:
            self._unwrapped.popitem(last=False)
        return key


def _context(place: str) -> bytes:
    return context_of("data key", place)
