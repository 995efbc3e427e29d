"""Reading many memories without holding up what else runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta

from memory_extproc.index.entry import entry_of
from memory_extproc.model import Embedded, Memory, Owner
from memory_extproc.ports import MemoryStore
from memory_extproc.store.held import Held
from memory_extproc.store.owned import Owned

# Characters read at a time: about 5 ms, for which other streams wait.
_READ_AT_A_TIME = 10_000
_LEAST_READ = 500  # what reading a memory costs beside its characters, in characters
_SHOWN_AT_A_TIME = 500  # memories of what is held in process


def few_at_a_time(rows: Sequence[Embedded]) -> Iterator[Sequence[Embedded]]:
    """*rows* in slices that take about equally long to read."""
    start, cost = 0, 0
    for end, row in enumerate(rows, 1):
        cost += len(row.memory.content) + _LEAST_READ
        if cost >= _READ_AT_A_TIME or end == len(rows):
            yield rows[start:end]
            start, cost = end, 0


async def read_ahead(memories: Sequence[Memory]) -> None:
    """Reads the words of *memories* with others' requests in between, so that adding them then costs little."""
    cost = 0
    for memory in memories:
        entry_of(memory)
        cost += len(memory.content) + _LEAST_READ
        if cost >= _READ_AT_A_TIME:
            cost = 0
            await asyncio.sleep(0)


async def held_rows(owned: Owned, held: Held) -> AsyncIterator[Sequence[Memory]]:
    """What is held in process, as it was when this began, without what was deleted since."""
    memories, generation = held.memories(), owned.generation
    for start in range(0, len(memories), _SHOWN_AT_A_TIME):
        if owned.generation != generation:
            return
        yield [one for one in memories[start : start + _SHOWN_AT_A_TIME] if not owned.deleted(one.id)]
        await asyncio.sleep(0)


async def stored_rows(
    store: MemoryStore, owner: Owner, owned: Owned, page: int, now: datetime, settle: timedelta
) -> AsyncIterator[Sequence[Memory]]:
    """What the store has of *owner*, each row once, with our own writes laid over it."""
    generation, given = owned.generation, set[str]()
    # Taken now: once the store has settled, what is laid over it may go while we read.
    laid = {row.memory.id: row.memory for row in owned.live_writes()}
    if not owned.hides_store(now, settle):
        async with aclosing(_pages(store, owner, page)) as pages:
            async for rows in pages:
                if owned.generation != generation:
                    return
                kept = [
                    row.memory for row in rows if row.memory.id not in owned.overlay and row.memory.id not in laid
                ]
                given.update(memory.id for memory in kept)
                yield kept
    if owned.generation == generation:
        laid.update((row.memory.id, row.memory) for row in owned.live_writes())
        yield [memory for id_, memory in laid.items() if id_ not in given and not owned.deleted(id_)]


async def _pages(store: MemoryStore, owner: Owner, size: int) -> AsyncGenerator[Sequence[Embedded]]:
    async for rows in store.pages(owner, size, fresh=True):
        yield rows
