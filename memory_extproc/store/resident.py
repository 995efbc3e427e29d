"""An owner's memories in process: a growing matrix of vectors, searched exactly, and a full-text index."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter

import msgspec
import numpy as np
import numpy.typing as npt

from memory_extproc.index.entries import Facets, select_among, spells
from memory_extproc.index.features import CandidateSelection, Rows, Table, select_candidates
from memory_extproc.index.owner_index import OwnerIndex, Worded
from memory_extproc.model import (
    Candidates,
    Embedded,
    Hit,
    Matrix,
    Memory,
    MemoryState,
    MemoryType,
    Scope,
    SearchQuery,
    Selected,
    Selection,
    Source,
    Vector,
)

_FIRST_CAPACITY = 16
# Bytes in CPython of a Memory with its provenance, times, ids and index entry, beyond their texts.
_ROW_OVERHEAD = 1_700
# Two float32 dot products of unit vectors that differ by less than this may be equal, since BLAS sums a row
# differently at the end of a block.
_ROUNDING = 1e-5
_SOURCE_CODES = {source: code for code, source in enumerate(Source)}
_TYPE_CODES = {kind: code for code, kind in enumerate(MemoryType)}
_NEVER = -np.inf


def order(found: Iterable[Hit]) -> list[Hit]:
    """Best first; equal cosines newest first, then by id, so that no order of arrival shows."""
    return sorted(found, key=lambda one: (-one.cosine, -one.memory.created_at.timestamp(), one.memory.id))


def cosines(vectors: npt.NDArray[np.float32], to: Vector) -> npt.NDArray[np.float64]:
    """Cosine per row, in [-1, 1]; a row's value does not depend on its position."""
    products = vectors.astype(np.float64) * to.astype(np.float64)
    summed: npt.NDArray[np.float64] = np.clip(products.sum(axis=1), -1.0, 1.0)
    return summed


def memory_bytes(memory: Memory) -> int:
    """Approximate bytes of *memory* in process, without its vector. Its text is also kept folded."""
    words = 2 * len(memory.content) + len(msgspec.json.encode(memory.provenance))
    return words + _ROW_OVERHEAD


@dataclass(frozen=True, slots=True, eq=False)
class LexicalScan:
    """Matches of a question's words, computed while its vector is on its way."""

    worded: Worded
    allowed: npt.NDArray[np.bool_]  # by place: rows in scope
    within: npt.NDArray[np.int64]  # positions of messages in scope
    table: Table


class ResidentRows:
    """Every row of an owner, in any state. Not safe across threads; one event loop owns it.

    A row keeps its place until it is removed or replaced; empty places are compacted when there are many."""

    def __init__(self) -> None:
        self._memories: list[Memory | None] = []
        self._folded: list[str] = []  # their texts for `_spelling`, which would else fold each anew for a question
        self._at: dict[str, int] = {}
        self._projects: dict[str, int] = {}
        self._origins: dict[str, int] = {}
        self._words = 0  # bytes beyond the arrays and the index
        self.quarantined = 0  # how many rows are
        self._index = OwnerIndex()
        self._facets = Facets()
        self._vectors: Matrix = np.zeros((0, 0), dtype=np.float32)
        self._expires = np.zeros(0, dtype=np.float64)
        self._types = np.zeros(0, dtype=np.int8)
        self._sources = np.zeros(0, dtype=np.int8)
        self._project = np.zeros(0, dtype=np.int32)
        self._origin = np.zeros(0, dtype=np.int32)

    def __len__(self) -> int:
        return len(self._at)

    def __iter__(self) -> Iterator[Embedded]:
        for memory, vector in zip(self._memories, self._vectors, strict=False):
            if memory is not None:
                yield Embedded(memory, vector.copy())

    def memories(self) -> list[Memory]:
        """All of them without their vectors, as of now."""
        return [memory for memory in self._memories if memory is not None]

    @property
    def size(self) -> int:
        """Bytes held, spare capacity included."""
        return int(self._vectors.nbytes) + self._words + self._index.size + self._facets.size

    def get(self, id: str) -> Embedded | None:  # noqa: A002 - the word of the port
        at = self._at.get(id)
        memory = None if at is None else self._memories[at]
        return None if memory is None else Embedded(memory, self._vectors[at].copy())

    def put(self, row: Embedded) -> None:
        """Add *row*, or replace the row with its id. Costs about 0.2 ms for a message of a chat."""
        self.remove(row.memory.id)
        at = len(self._memories)
        if at == len(self._vectors):
            self._allocate(max(_FIRST_CAPACITY, at * 2), len(row.vector))
        memory = row.memory
        self._memories.append(memory)
        self._folded.append(memory.content.casefold())
        self._at[memory.id] = at
        self._index.add(memory)
        self._facets.add(at, memory)
        self._words += memory_bytes(memory)
        self.quarantined += memory.state is MemoryState.QUARANTINED
        self._vectors[at] = row.vector
        # Inputs of a search's mask. A row that may never be recalled counts as expired.
        may_be_recalled = memory.state is MemoryState.ACTIVE and memory.source is not Source.QUESTION
        ends = np.inf if memory.expires_at is None else memory.expires_at.timestamp()
        self._expires[at] = ends if may_be_recalled else _NEVER
        self._types[at] = _TYPE_CODES[memory.type]
        self._sources[at] = _SOURCE_CODES[memory.source]
        self._project[at] = self._projects.setdefault(memory.project, len(self._projects))
        self._origin[at] = self._origins.setdefault(memory.origin, len(self._origins))

    def remove(self, id: str) -> None:  # noqa: A002
        """An unknown id is left alone."""
        at = self._at.pop(id, None)
        memory = None if at is None else self._memories[at]
        if at is None or memory is None:
            return
        self._words -= memory_bytes(memory)
        self.quarantined -= memory.state is MemoryState.QUARANTINED
        self._memories[at], self._folded[at] = None, ""
        self._expires[at] = _NEVER
        self._index.drop(at)
        self._facets.drop(at)
        if self._index.needs_rebuild:
            self._close_ranks()

    def nearest(self, to: Vector, limit: int, scope: Scope, now: datetime) -> list[Hit]:
        """At most *limit* recallable rows within *scope*, best first; time linear in the rows."""
        count = len(self._memories)
        if not count or limit <= 0:
            return []
        allowed = self._mask_scope(count, scope, now)
        scores = self._vectors[:count] @ to
        scores[~allowed] = -np.inf
        wanted = min(limit, int(np.count_nonzero(allowed)))
        if not wanted:
            return []
        worst = np.partition(scores, count - wanted)[count - wanted]
        near = np.flatnonzero(scores >= worst - _ROUNDING)
        exact = cosines(self._vectors[near], to)
        found = (Hit(self._memory(at), cosine) for at, cosine in zip(near.tolist(), exact.tolist(), strict=True))
        return order(found)[:limit]

    def select(self, wanted: Selection, scope: Scope, now: datetime) -> list[Selected]:
        """As ports.MemorySelector. A pass over arrays, and over the chosen rows."""
        count = len(self._memories)
        if wanted.reads is not None:
            self._facets.read_vectors(wanted.reads, self._vectors[:count])
        chosen = self._facets.select(wanted, count) if count else np.zeros(0, dtype=np.bool_)
        if wanted.spelled:
            chosen[self._spelling(wanted.spelled)] = True
        holding = self._select_places(chosen & self._mask_scope(count, scope, now), wanted)
        if scope.as_of is not None:
            holding = as_it_was(holding, self._select_places(chosen, wanted), scope, now)
        return newest(holding, wanted.most)

    def _spelling(self, names: frozenset[str]) -> list[int]:
        """The places of the memories with one of *names* in any case: a glance at every text."""
        near = {at for name in names for at, folded in enumerate(self._folded) if name in folded}
        return [at for at in near if spells(self._memory(at).content, names)]

    def _select_places(self, chosen: npt.NDArray[np.bool_], wanted: Selection) -> list[Selected]:
        places = np.flatnonzero(chosen)
        by_place = zip(places.tolist(), *self._facets.masks(places, wanted), strict=True)
        found = ((self._memories[at], tells, alike) for at, tells, alike in by_place)
        return [Selected(memory, tells, alike) for memory, tells, alike in found if memory is not None]

    def glance(self, text: str, scope: Scope, now: datetime) -> LexicalScan:
        """Match words against recallable rows within *scope*; the larger part of a candidate search."""
        worded = self._index.scan_words(text, now.date())
        allowed = self._mask_scope(len(self._memories), scope, now)
        within = worded.among(allowed)
        return LexicalScan(worded, allowed, within, Table.of(worded.by_name, within))

    def candidates(
        self, sought: SearchQuery, limit: int, scope: Scope, now: datetime, glance: LexicalScan | None = None
    ) -> Candidates:
        """At most *limit* recallable rows within *scope*, with features; time linear in the rows. *glance*: an
        earlier scan with the same words, scope and time. It is used unless rows changed since."""
        if glance is None or not self._index.stands(glance.worded):
            glance = self.glance(sought.text, scope, now)
        count = len(self._memories)
        dense = None if sought.vector is None or not count else self._vectors[:count] @ sought.vector
        table = glance.table.beside(Table.of(glance.worded.beside(dense), glance.within))
        worded, within, allowed = glance.worded, glance.within, glance.allowed

        def places(rows: Rows) -> Rows:
            return worded.best_pieces(within[rows], dense, allowed)

        likely = select_candidates(table, places, limit, lambda at: _newest_first(self._memory(at)))
        memories = tuple(map(self._memory, likely.places.tolist()))
        found = candidates_of(likely, memories, len(self), "lexical" if sought.vector is None else "hybrid")
        return found if scope.as_of is None else self._with_the_past(found, sought, limit, scope, now)

    def _with_the_past(
        self, now_holding: Candidates, sought: SearchQuery, limit: int, scope: Scope, now: datetime
    ) -> Candidates:
        """*now_holding* with the memories that held in the period of *scope* and were replaced later, shown as
        valid with their end time, and without their later successors. Linear in the rows, and needed for few
        questions."""
        period = scope.as_of
        past = [
            (at, memory)
            for at, memory in enumerate(self._memories)
            if memory is not None and period is not None and scope.holds(memory) and memory.held_in(period, now)
        ]
        if not past or period is None or sought.vector is None:
            return now_holding
        scores = cosines(self._vectors[[at for at, _ in past]], sought.vector)
        there = {memory.id for memory in (*now_holding.memories, *(memory for _, memory in past))}
        were = order(
            Hit(replace(memory, state=MemoryState.ACTIVE), cosine)
            for (_, memory), cosine in zip(past, scores.tolist(), strict=True)
            if memory.provenance.merged not in there
        )[:limit]
        beside = candidates_among(were, sought, limit, now)
        successors = {one.memory.superseded_by for one in were}
        kept = [
            at
            for at, memory in enumerate(now_holding.memories)
            if memory.id not in successors or (memory.valid_from or memory.created_at) < period.until
        ]
        return replace(
            now_holding,
            memories=(*(now_holding.memories[at] for at in kept), *beside.memories),
            features=np.concatenate([now_holding.features[kept], beside.features]),
            searched=now_holding.searched + beside.searched,
        )

    def _memory(self, at: int) -> Memory:
        memory = self._memories[at]
        if memory is None:
            raise LookupError("a place that was left")
        return memory

    def _mask_scope(self, count: int, scope: Scope, now: datetime) -> npt.NDArray[np.bool_]:
        allowed: npt.NDArray[np.bool_] = self._expires[:count] > now.timestamp()
        if len(scope.types) < len(MemoryType):
            allowed &= np.isin(self._types[:count], [_TYPE_CODES[kind] for kind in scope.types])
        if len(scope.sources) < len(Source):
            allowed &= np.isin(self._sources[:count], [_SOURCE_CODES[source] for source in scope.sources])
        if scope.project:
            allowed &= self._project[:count] == self._projects.get(scope.project, -1)
        if scope.origins:
            wanted = [code for origin, code in self._origins.items() if scope.comes_from(origin)]
            allowed &= np.isin(self._origin[:count], wanted)
        return allowed

    def _close_ranks(self) -> None:
        """Move all rows to consecutive places."""
        kept = list(self._at.values())
        self._memories = [self._memories[at] for at in kept]
        self._folded = [self._folded[at] for at in kept]
        self._at = {id_: at for at, id_ in enumerate(self._at)}
        self._index.keep(kept)
        self._facets.keep(kept)
        self._allocate(max(_FIRST_CAPACITY, len(kept)), self._vectors.shape[1], kept)

    def _allocate(self, capacity: int, dimension: int, kept: Sequence[int] | None = None) -> None:
        """Allocate *capacity* rows and copy the rows at *kept*, by default all."""
        old = np.arange(len(self._vectors)) if kept is None else np.asarray(kept, dtype=np.int64)
        count = len(old)
        vectors = np.zeros((capacity, dimension), dtype=np.float32)
        expires = np.zeros(capacity, dtype=np.float64)
        types = np.zeros(capacity, dtype=np.int8)
        sources = np.zeros(capacity, dtype=np.int8)
        project = np.zeros(capacity, dtype=np.int32)
        origin = np.zeros(capacity, dtype=np.int32)
        if count:
            vectors[:count] = self._vectors[old]
            expires[:count] = self._expires[old]
            types[:count] = self._types[old]
            sources[:count] = self._sources[old]
            project[:count] = self._project[old]
            origin[:count] = self._origin[old]
        self._vectors, self._expires, self._types = vectors, expires, types
        self._project, self._origin, self._sources = project, origin, sources


def candidates_of(
    likely: CandidateSelection, memories: tuple[Memory, ...], total: int | None, path: str
) -> Candidates:
    return Candidates(
        memories=memories,
        names=likely.names,
        features=likely.features,
        centre=likely.centre,
        spread=likely.spread,
        searched=likely.searched,
        total=total,
        path=path,
    )


def candidates_among(found: Sequence[Hit], sought: SearchQuery, limit: int, now: datetime) -> Candidates:
    """As Held.candidates over the hits of a store's search. The context of a memory is limited to these hits."""
    index = OwnerIndex()
    for one in found:
        index.add(one.memory)
    dense = None if sought.vector is None else np.asarray([one.cosine for one in found])
    seen = index.rate(sought.text, dense, now.date())
    table = Table.of(seen.by_name, np.arange(len(seen.places)))
    likely = select_candidates(table, seen.places.__getitem__, limit, lambda at: _newest_first(found[at].memory))
    return candidates_of(likely, tuple(found[at].memory for at in likely.places.tolist()), None, "store")


_ID, _CREATED_AT = attrgetter("memory.id"), attrgetter("memory.created_at")


def _newest_first(memory: Memory) -> tuple[float, str]:
    return -memory.created_at.timestamp(), memory.id


def nearest_of(rows: Sequence[Embedded], to: Vector, limit: int, scope: Scope, now: datetime) -> list[Hit]:
    """As Held.nearest over rows that are not held together; for the few of an overlay."""
    chosen = [row for row in rows if scope.holds(row.memory) and row.memory.recallable(now)]
    if not chosen:
        return []
    exact = cosines(np.stack([row.vector for row in chosen]), to)
    return order(Hit(row.memory, float(cosine)) for row, cosine in zip(chosen, exact, strict=True))[:limit]


def newest(found: Iterable[Selected], most: int) -> list[Selected]:
    return sorted(sorted(found, key=_ID), key=_CREATED_AT, reverse=True)[:most]


def as_it_was(
    holding: Iterable[Selected], wanted: Iterable[Selected], scope: Scope, now: datetime
) -> list[Selected]:
    """*holding* without memories that came to hold after the period of *scope*, and with the superseded memories
    in *wanted* that held in it."""
    period = scope.as_of
    if period is None:
        return list(holding)
    past = [one for one in wanted if scope.holds(one.memory) and one.memory.held_in(period, now)]
    kept = [one for one in holding if (one.memory.valid_from or one.memory.created_at) < period.until]
    there = {one.memory.id for one in (*kept, *past)}  # one of these repeats what was merged into it
    return [*kept, *(_as_active(one) for one in past if one.memory.provenance.merged not in there)]


def _as_active(one: Selected) -> Selected:
    return msgspec.structs.replace(one, memory=replace(one.memory, state=MemoryState.ACTIVE))


def select_stored(memories: Iterable[Memory], wanted: Selection, scope: Scope, now: datetime) -> list[Selected]:
    """As `ResidentRows.select` over rows that are not held together."""
    chosen = select_among(memories, wanted)
    found = [one for one in chosen if scope.holds(one.memory) and one.memory.recallable(now)]
    return newest(as_it_was(found, chosen, scope, now), wanted.most)
