"""Destroying an owner's key without losing what is to stay: what was said after the forget, while it went on."""

from __future__ import annotations

from memory_extproc.model import DataKey, Embedded, JournalState, Owner, Turn
from memory_extproc.observe.log import logger
from memory_extproc.ports import Journal, Keys, MemoryStore

log = logger(__name__)
_PAGE = 100
_TO_COME = frozenset({JournalState.WAITING, JournalState.STORED})


class RenewedKeys:
    """Implements ports.Keys over *keys*. *store* and *journal* are the sealed ones. Destroy once what was forgotten
    is deleted: what is there then is read, and sealed anew with another key. Nothing else may write for the owner
    to the store meanwhile; turns may arrive."""

    def __init__(self, keys: Keys, store: MemoryStore, journal: Journal) -> None:
        self._keys, self._store, self._journal = keys, store, journal

    async def of(self, owner: Owner) -> DataKey:
        return await self._keys.of(owner)

    async def find(self, owner: Owner) -> DataKey | None:
        return await self._keys.find(owner)

    async def destroy(self, owner: Owner) -> bool:
        rows: list[Embedded] = []
        async for page in self._store.pages(owner, _PAGE, fresh=True):
            rows += page
        turns: list[Turn] = [entry.turn async for entry in self._journal.of_owner(owner) if entry.state in _TO_COME]
        destroyed = await self._keys.destroy(owner)
        if rows:
            await self._store.put(owner, rows)
        for turn in turns:
            await self._journal.append(turn)
        if rows or turns:
            log.info("keys.sealed_anew", memories=len(rows), turns=len(turns))
        return destroyed
