"""Which collection an owner's rows are in, and how to narrow a read to them."""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass

from memory_extproc.model import Owner
from memory_extproc.store.options import Layout

_BUCKETS = 16  # partitions that Lite makes for a partition key, whatever number it is asked for


def bucket(user: str) -> str:
    """The partition that Lite 3.2 puts a partition key's value into (milvus_lite/engine/collection.py)."""
    hashed = hashlib.md5(user.encode(), usedforsecurity=False)
    return f"_pk_{int(hashed.hexdigest(), 16) % _BUCKETS}"


@dataclass(frozen=True, slots=True)
class Place:
    collection: str  # an alias
    partitions: list[str] | None  # to read; None leaves it to the server


@dataclass(frozen=True, slots=True)
class Placement:
    alias: str
    physical: str
    layout: Layout
    shards: int
    pruning: bool  # whether reads name the bucket; verified at opening
    words: bool = False  # whether every collection has an index of words

    def collections(self) -> list[tuple[str, str]]:
        """(alias, physical name) of each."""
        if self.layout is Layout.SINGLE:
            return [(self.alias, self.physical)]
        return [(f"{self.alias}_s{n:02}", f"{self.physical}_s{n:02}") for n in range(self.shards)]

    @property
    def aliases(self) -> list[str]:
        return [alias for alias, _ in self.collections()]

    def of(self, owner: Owner) -> Place:
        partitions = [bucket(owner.user)] if self.pruning else None
        if self.layout is Layout.SINGLE:
            return Place(self.alias, partitions)
        shard = zlib.crc32(owner.key.encode()) % self.shards
        return Place(f"{self.alias}_s{shard:02}", partitions)
