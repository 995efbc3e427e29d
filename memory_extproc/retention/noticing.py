"""Hearing of memories that no longer say what they said, wherever that is decided."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from typing import Protocol

from memory_extproc.model import Embedded, Memory, MemoryState, Owner, Scope, Searched, Vector
from memory_extproc.ports import Change, KeepsMemories, ListsMemories


class Partition(KeepsMemories, ListsMemories, Protocol):
    """Both sides of an owner's memories."""


class Noticing:
    """KeepsMemories and ListsMemories around others. *tell* hears the owner after a memory of theirs was replaced,
    deleted or got other words: what was made of it may not hold any more."""

    def __init__(self, within: Partition, tell: Callable[[Owner], None]) -> None:
        self._within, self._tell = within, tell

    # --- what changes no word that was there ---------------------------------------------------------
    async def put(
        self, owner: Owner, rows: Sequence[Embedded], *, shown: Callable[[], None] = lambda: None
    ) -> None:
        await self._within.put(owner, rows, shown=shown)

    async def nearest(self, owner: Owner, to: Vector, limit: int, scope: Scope) -> Searched:
        return await self._within.nearest(owner, to, limit, scope)

    async def get(self, owner: Owner, ids: Sequence[str]) -> Sequence[Memory]:
        return await self._within.get(owner, ids)

    def rows(self, owner: Owner) -> AsyncIterator[Sequence[Memory]]:
        return self._within.rows(owner)

    async def confirm(
        self,
        owner: Owner,
        id: str,  # noqa: A002 - the word of the port
        at: datetime,
        *,
        turn: str = "",
        beside: Sequence[str] = (),
    ) -> None:
        await self._within.confirm(owner, id, at, turn=turn, beside=beside)

    # --- what may ------------------------------------------------------------------------------------
    async def supersede(self, owner: Owner, old: str, by: str, at: datetime) -> None:
        await self._within.supersede(owner, old, by, at)
        self._tell(owner)

    async def delete(self, owner: Owner, ids: Sequence[str]) -> None:
        await self._within.delete(owner, ids)
        if ids:
            self._tell(owner)

    async def change(self, owner: Owner, id: str, change: Change) -> bool:  # noqa: A002 - the word of the port
        noticed = False

        def changed(row: Embedded) -> Sequence[Embedded]:
            nonlocal noticed
            rows = change(row)
            noticed = any(_says_otherwise(row.memory, new.memory) for new in rows)
            return rows

        there = await self._within.change(owner, id, changed)
        if noticed:
            self._tell(owner)
        return there


def _says_otherwise(before: Memory, after: Memory) -> bool:
    same = after.id == before.id and before.state is MemoryState.ACTIVE
    return same and (after.state is not MemoryState.ACTIVE or after.content != before.content)
