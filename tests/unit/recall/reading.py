"""Memories that can be read by their ids."""

from __future__ import annotations

from collections.abc import Sequence

from memory_extproc.model import Memory, Owner


class Reads:
    """Memories by id; *failing* is raised while set."""

    def __init__(self, *memories: Memory) -> None:
        self.memories = memories
        self.failing: Exception | None = None

    async def get(self, owner: Owner, ids: Sequence[str]) -> Sequence[Memory]:
        if self.failing:
            raise self.failing
        return [memory for memory in self.memories if memory.owner == owner and memory.id in ids]
