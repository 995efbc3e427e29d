"""Vectors of what was embedded lately, the least recently used out first."""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from memory_extproc.model import Vector


class QueryCache:
    """At most *bound* vectors, by digest of their text, so that no one's words are kept.

    One for all owners: the vector depends on the text alone, so it tells a caller nothing that the text does not.
    """

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._vectors: OrderedDict[bytes, Vector] = OrderedDict()

    def __len__(self) -> int:
        return len(self._vectors)

    def find(self, text: str) -> Vector | None:
        key = _key(text)
        vector = self._vectors.get(key)
        if vector is not None:
            self._vectors.move_to_end(key)
        return vector

    def keep(self, text: str, vector: Vector) -> Vector:
        """*vector*, read-only from here on because several callers may hold it."""
        vector.flags.writeable = False
        if self._bound:
            key = _key(text)
            self._vectors[key] = vector
            self._vectors.move_to_end(key)
            if len(self._vectors) > self._bound:
                self._vectors.popitem(last=False)
        return vector


def _key(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
