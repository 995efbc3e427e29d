"""What was said, stored: messages judged, embedded and put, and what an earlier answer left taken out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime

from memory_extproc.learn.corrected import corrected
from memory_extproc.learn.remember import Judged
from memory_extproc.model import Embedded, Owner, Turn, message_ids
from memory_extproc.ports import Embeds, JournalEntry, KeepsMemories, Now

_AT_ONCE = 4_000  # characters judged on the event loop, some milliseconds; what is more goes to a thread

Judges = Callable[[Turn, datetime], Sequence[Judged]]  # pure


class Messages:
    """Storing the same turns again changes nothing more. *rows*: handed to the store in one call at most."""

    def __init__(self, keeps: KeepsMemories, embedder: Embeds, judges: Judges, *, rows: int, now: Now) -> None:
        self._keeps, self._embedder, self._judges = keeps, embedder, judges
        self._rows, self._now = rows, now

    async def store(
        self,
        owner: Owner,
        entries: Sequence[JournalEntry],
        *,
        still_in: Callable[[], Awaitable[None]],
        shown: Callable[[], None],
    ) -> list[Judged]:
        """What became of each message of *entries*, which are *owner*'s. *still_in* raises where nothing may be
        written any more; *shown* is called once all rows can be found, which is before the store has them."""
        judged = await self._judged(entries)
        theirs = await corrected(self._keeps, owner, entries)
        everything = [one for _, all_of_it in judged for one in all_of_it]
        rows = await self._embedded(everything, theirs)
        await still_in()
        await self._put(owner, rows, shown)
        unsaid = {memory_id for entry, all_of_it in judged for memory_id in _unsaid(entry, all_of_it)} - theirs
        if unsaid:
            await self._keeps.delete(owner, sorted(unsaid))
        return everything

    async def _judged(self, entries: Sequence[JournalEntry]) -> list[tuple[JournalEntry, Sequence[Judged]]]:
        now = self._now()

        def judged() -> list[tuple[JournalEntry, Sequence[Judged]]]:
            return [(entry, self._judges(entry.turn, now)) for entry in entries]

        if sum(len(entry.turn.asked) + len(entry.turn.answered) for entry in entries) > _AT_ONCE:
            return await asyncio.to_thread(judged)
        return judged()

    async def _embedded(self, judged: Sequence[Judged], but: frozenset[str]) -> list[Embedded]:
        memories = [one.memory for one in judged if one.memory is not None and one.memory.id not in but]
        if not memories:
            return []
        vectors = await self._embedder.embed([memory.content for memory in memories])
        made_by = self._embedder.fingerprint
        return [
            Embedded(replace(memory, embed_model=made_by), vector)
            for memory, vector in zip(memories, vectors, strict=True)
        ]

    async def _put(self, owner: Owner, rows: Sequence[Embedded], shown: Callable[[], None]) -> None:
        for start in range(0, len(rows), self._rows):
            last = start + self._rows >= len(rows)
            await self._keeps.put(owner, rows[start : start + self._rows], shown=shown if last else _not_yet)


def _unsaid(entry: JournalEntry, judged: Sequence[Judged]) -> list[str]:
    """Ids of messages and pieces that an earlier answer of this turn left and that this one does not renew."""
    if not entry.replaced:
        return []
    kept = {one.memory.id for one in judged if one.memory is not None}
    return [memory_id for memory_id in message_ids(entry.turn) if memory_id not in kept]


def _not_yet() -> None:
    """Not all of it is visible yet."""
