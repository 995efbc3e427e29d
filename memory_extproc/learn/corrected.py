"""What a person has corrected is theirs: learning a turn anew, because its answer was, does not undo it."""

from __future__ import annotations

from collections.abc import Iterable

from memory_extproc.model import Owner, message_ids
from memory_extproc.ports import JournalEntry, KeepsMemories

REVISION = "revision"  # in a memory's metadata, from its first correction on


async def corrected(keeps: KeepsMemories, owner: Owner, entries: Iterable[JournalEntry]) -> frozenset[str]:
    """The ids of messages and pieces of *entries* that were corrected. Asks the store for turns that were replaced
    alone: of a new one nothing can have been."""
    ids = [memory_id for entry in entries if entry.replaced for memory_id in message_ids(entry.turn)]
    if not ids:
        return frozenset()
    return frozenset(memory.id for memory in await keeps.get(owner, ids) if REVISION in memory.metadata)
