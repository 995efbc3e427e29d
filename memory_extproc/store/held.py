"""One owner's memories in process: a growing matrix of vectors, searched exactly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

import numpy as np
import numpy.typing as npt

from memory_extproc.model import Embedded, Found, Matrix, Memory, MemoryState, MemoryType, Scope, Source, Vector

_FIRST_CAPACITY = 16
# What a Memory with its times, ids and index entry takes in CPython beyond its content and metadata.
_ROW_OVERHEAD = 1_200
# Two float32 dot products of unit vectors that differ by less than this may be one number summed in
# another order, since BLAS sums a row differently at the end of a block.
_ROUNDING = 1e-5
_TYPE_CODES = {kind: code for code, kind in enumerate(MemoryType)}


def order(found: Iterable[Found]) -> list[Found]:
    """Best first; equal cosines newest first, then by id, so that no order of arrival shows."""
    return sorted(found, key=lambda one: (-one.cosine, -one.memory.created_at.timestamp(), one.memory.id))


def cosines(vectors: npt.NDArray[np.float32], to: Vector) -> npt.NDArray[np.float64]:
    """One per row, in [-1, 1]; the same for the same row wherever it stands."""
    products = vectors.astype(np.float64) * to.astype(np.float64)
    summed: npt.NDArray[np.float64] = np.clip(products.sum(axis=1), -1.0, 1.0)
    return summed


def memory_bytes(memory: Memory) -> int:
    """About what holding *memory* takes, without its vector."""
    words = len(memory.content) + sum(len(str(value)) + 64 for value in memory.metadata.values())
    return words + _ROW_OVERHEAD


class Held:
    """Every row of one owner, in any state. Not safe across threads; one event loop owns it."""

    def __init__(self) -> None:
        self._memories: list[Memory] = []
        self._at: dict[str, int] = {}
        self._projects: dict[str, int] = {}
        self._words = 0  # bytes beyond the arrays
        self._vectors: Matrix = np.zeros((0, 0), dtype=np.float32)
        self._expires = np.zeros(0, dtype=np.float64)
        self._types = np.zeros(0, dtype=np.int8)
        self._project = np.zeros(0, dtype=np.int32)

    def __len__(self) -> int:
        return len(self._memories)

    def __iter__(self) -> Iterator[Embedded]:
        for memory, vector in zip(self._memories, self._vectors, strict=False):
            yield Embedded(memory, vector.copy())

    @property
    def size(self) -> int:
        """Bytes held, spare capacity included."""
        return int(self._vectors.nbytes) + self._words

    def get(self, id: str) -> Embedded | None:  # noqa: A002 - the word of the port
        at = self._at.get(id)
        return None if at is None else Embedded(self._memories[at], self._vectors[at].copy())

    def put(self, row: Embedded) -> None:
        """Adds *row*, or takes it in place of the one with its id."""
        memory = row.memory
        at = self._at.get(memory.id)
        if at is None:
            at = len(self._memories)
            if at == len(self._vectors):
                self._allocate(max(_FIRST_CAPACITY, at * 2), len(row.vector))
            self._memories.append(memory)
            self._at[memory.id] = at
        else:
            self._words -= memory_bytes(self._memories[at])
            self._memories[at] = memory
        self._words += memory_bytes(memory)
        self._vectors[at] = row.vector
        self._describe(at, memory)

    def remove(self, id: str) -> None:  # noqa: A002
        """The last row takes its place; an unknown id is left alone."""
        at = self._at.pop(id, None)
        if at is None:
            return
        self._words -= memory_bytes(self._memories[at])
        last = self._memories.pop()
        if at == len(self._memories):
            return
        self._memories[at] = last
        self._at[last.id] = at
        self._vectors[at] = self._vectors[len(self._memories)]
        self._describe(at, last)

    def nearest(self, to: Vector, limit: int, scope: Scope, now: datetime) -> list[Found]:
        """At most *limit* recallable ones within *scope*, best first; time linear in the rows."""
        count = len(self._memories)
        if not count or limit <= 0:
            return []
        allowed = self._allowed(count, scope, now)
        scores = self._vectors[:count] @ to
        scores[~allowed] = -np.inf
        wanted = min(limit, int(np.count_nonzero(allowed)))
        if not wanted:
            return []
        worst = np.partition(scores, count - wanted)[count - wanted]
        near = np.flatnonzero(scores >= worst - _ROUNDING)
        exact = cosines(self._vectors[near], to)
        found = (Found(self._memories[at], float(cosine)) for at, cosine in zip(near, exact, strict=True))
        return order(found)[:limit]

    def _allowed(self, count: int, scope: Scope, now: datetime) -> npt.NDArray[np.bool_]:
        allowed: npt.NDArray[np.bool_] = self._expires[:count] > now.timestamp()
        if len(scope.types) < len(MemoryType):
            allowed &= np.isin(self._types[:count], [_TYPE_CODES[kind] for kind in scope.types])
        if scope.project:
            allowed &= self._project[:count] == self._projects.get(scope.project, -1)
        return allowed

    def _describe(self, at: int, memory: Memory) -> None:
        # What the mask of a search is made of. A row that may never be recalled has expired for ever.
        may_be_recalled = memory.state is MemoryState.ACTIVE and memory.source is not Source.QUESTION
        ends = np.inf if memory.expires_at is None else memory.expires_at.timestamp()
        self._expires[at] = ends if may_be_recalled else -np.inf
        self._types[at] = _TYPE_CODES[memory.type]
        self._project[at] = self._projects.setdefault(memory.project, len(self._projects))

    def _allocate(self, capacity: int, dimension: int) -> None:
        count = len(self._memories)
        vectors = np.zeros((capacity, dimension), dtype=np.float32)
        expires = np.zeros(capacity, dtype=np.float64)
        types = np.zeros(capacity, dtype=np.int8)
        project = np.zeros(capacity, dtype=np.int32)
        if count:
            vectors[:count] = self._vectors[:count]
            expires[:count] = self._expires[:count]
            types[:count] = self._types[:count]
            project[:count] = self._project[:count]
        self._vectors, self._expires, self._types, self._project = vectors, expires, types, project


def nearest_of(rows: Sequence[Embedded], to: Vector, limit: int, scope: Scope, now: datetime) -> list[Found]:
    """As Held.nearest over rows that are not held together; for the few of an overlay."""
    chosen = [row for row in rows if scope.holds(row.memory) and row.memory.recallable(now)]
    if not chosen:
        return []
    exact = cosines(np.stack([row.vector for row in chosen]), to)
    return order(Found(row.memory, float(cosine)) for row, cosine in zip(chosen, exact, strict=True))[:limit]
