"""Rows changed only where they still are as they were read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from memory_extproc.model import Embedded, Memory, Owner
from memory_extproc.ports import KeepsInOrder
from memory_extproc.retention.reasons import ACCESSED

_AT_ONCE = 100  # rows of one write


class AsRead:
    """Writes onto *rows*. *known*: a pass's own view of them, by id."""

    def __init__(self, rows: KeepsInOrder) -> None:
        self._rows = rows

    async def change(
        self, owner: Owner, known: Mapping[str, Embedded], becoming: Mapping[str, Memory | Embedded]
    ) -> list[str]:
        """The ids of those that were still as they were read, and are changed."""
        changed: list[str] = []

        def change(row: Embedded) -> Sequence[Embedded]:
            if not as_read(row.memory, known[row.memory.id].memory):
                return ()
            changed.append(row.memory.id)
            becomes = becoming[row.memory.id]
            if isinstance(becomes, Memory):
                becomes = Embedded(becomes, row.vector)
            return [Embedded(with_accesses(becomes.memory, row.memory), becomes.vector)]

        ids = list(becoming)
        for start in range(0, len(ids), _AT_ONCE):
            await self._rows.change_all(owner, ids[start : start + _AT_ONCE], change)
        return changed

    async def erase(self, owner: Owner, known: Mapping[str, Embedded], ids: Sequence[str]) -> int:
        erased = 0
        for start in range(0, len(ids), _AT_ONCE):
            erased += await self._rows.delete_where(
                owner, ids[start : start + _AT_ONCE], lambda memory: as_read(memory, known[memory.id].memory)
            )
        return erased


def as_read(now: Memory, before: Memory) -> bool:
    """Whether nothing but its accesses changed since it was read."""
    return with_accesses(now, before) == before


def same_words(now: Memory, before: Memory) -> bool:
    """Whether it says what it said when it was read, and counts as it did."""
    return now.state is before.state and now.content == before.content


def with_accesses(memory: Memory, of: Memory) -> Memory:
    """*memory* with the accesses counted in *of*."""
    metadata = {name: value for name, value in memory.metadata.items() if name != ACCESSED}
    if ACCESSED in of.metadata:
        metadata[ACCESSED] = of.metadata[ACCESSED]
    return replace(memory, access_count=of.access_count, metadata=metadata)
