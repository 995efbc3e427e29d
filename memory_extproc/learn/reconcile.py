"""What becomes of a fact beside the facts that are there: new, the same again, or newer than one of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from memory_extproc.errors import GiveUpError
from memory_extproc.learn.extract import Fact
from memory_extproc.learn.remember import provenance
from memory_extproc.learn.same import about, repeats, saying
from memory_extproc.model import (
    Embedded,
    Found,
    Memory,
    MemoryState,
    MemoryType,
    Owner,
    Role,
    Scope,
    Turn,
    Vector,
    digest,
)
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Embeds, KeepsMemories

ALIKE = 0.9  # cosine; from here on the same subject and attribute are taken to be the same fact
_NEIGHBOURS = 32  # facts asked of the store for one fact
_FACTS = Scope(types=frozenset({MemoryType.SEMANTIC, MemoryType.PROCEDURAL}))


@dataclass(frozen=True, slots=True)
class Add:
    """It is new."""


@dataclass(frozen=True, slots=True)
class Confirm:
    """*id* says the same already."""

    id: str


@dataclass(frozen=True, slots=True)
class Replace:
    """It is the newer value of what *ids* say: they are kept, and no longer recalled."""

    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outdate:
    """*by* has a newer value already: it is kept as history, as superseded."""

    by: str
    since: datetime


Change = Add | Confirm | Replace | Outdate


class Likeness(StrEnum):
    """How an existing fact stands to the one in hand."""

    OTHER = "other"  # it speaks of something else
    SAME = "same"  # it says the same
    CHANGED = "changed"  # it says something else of the same


# (does the newest of those that speak of the same say the same?, is the fact in hand the newer?)
VERDICTS: Mapping[tuple[Likeness, bool], type[Add | Confirm | Replace | Outdate]] = {
    (Likeness.OTHER, True): Add,
    (Likeness.OTHER, False): Add,
    (Likeness.SAME, True): Confirm,
    (Likeness.SAME, False): Confirm,
    (Likeness.CHANGED, True): Replace,
    (Likeness.CHANGED, False): Outdate,
}


class Decision(StrEnum):
    """The label of reconcile_total, so a value is never renamed."""

    ADDED = "added"
    CONFIRMED = "confirmed"
    REPLACED = "replaced"
    OUTDATED = "outdated"
    KNOWN = "known"  # stored by an earlier attempt at the same turn


_DECISIONS: Mapping[type[Change], Decision] = {
    Add: Decision.ADDED,
    Confirm: Decision.CONFIRMED,
    Replace: Decision.REPLACED,
    Outdate: Decision.OUTDATED,
}


def likeness(fact: Fact, found: Found) -> Likeness:
    """A high cosine alone makes nothing the same: a flight on May 3 and one on May 8 are 0.96 alike. Below
    it, only facts of which one can hold at a time, and those that say the very same, are the same."""
    there = found.memory
    named = there.metadata
    if saying(fact.content) == saying(there.content):
        return Likeness.SAME
    if not {"subject", "attribute", "value"} <= named.keys():
        return Likeness.OTHER
    if about(fact.subject) != about(str(named["subject"])) or about(fact.attribute) != about(
        str(named["attribute"])
    ):
        return Likeness.OTHER
    if saying(fact.value) == saying(str(named["value"])):
        return Likeness.SAME
    return Likeness.CHANGED if fact.exclusive or found.cosine >= ALIKE else Likeness.OTHER


def reconcile_fact(fact: Fact, row: Memory, existing: Iterable[Found], injected: Sequence[str] = ()) -> Change:
    """What *fact*, which would be stored as *row*, is beside *existing*, in whichever order they come.

    Episodic memories, other projects and *row* itself are passed over. What only repeats a memory we
    *injected* is never new.
    """
    others = [one for one in existing if _comparable(one.memory, row)]
    alike = {one.memory.id: likeness(fact, one) for one in others}
    same_thing = [one.memory for one in others if alike[one.memory.id] is not Likeness.OTHER]
    newest = max(same_thing, key=_age, default=None)
    if newest is None:
        known = [
            one for one in others if one.memory.content in injected and repeats(fact.content, one.memory.content)
        ]
        best = max(known, key=lambda one: (one.cosine, one.memory.id), default=None)
        return Add() if best is None else Confirm(best.memory.id)
    verdict = VERDICTS[alike[newest.id], _age(row) >= _age(newest)]
    if verdict is Confirm:
        return Confirm(newest.id)
    if verdict is Outdate:
        return Outdate(by=newest.id, since=newest.valid_from or newest.created_at)
    return Replace(tuple(sorted(memory.id for memory in same_thing)))


def _comparable(there: Memory, row: Memory) -> bool:
    return (
        there.id != row.id
        and there.type in _FACTS.types
        and there.project == row.project
        and there.owner == row.owner
    )


def _age(memory: Memory) -> tuple[float, int, int, str]:
    """Sorts by when it was said: the moment, the place in the session, the place in the message. Rows keep
    whole seconds, in which two chats can contradict one another, so the moment stands in the metadata."""
    ordinal = memory.metadata.get("ordinal", 0)
    whole = (memory.valid_from or memory.created_at).timestamp()
    moment = memory.metadata.get("said", whole)
    said = float(moment) if isinstance(moment, int | float) else whole
    return said, memory.seq, ordinal if isinstance(ordinal, int) else 0, memory.id


def row_of(fact: Fact, turn: Turn, ordinal: int, embed_model: str) -> Memory:
    """The memory of *fact*, the *ordinal*-th of *turn*. The same fact of the same turn has the same id."""
    said = turn.at.replace(microsecond=0)
    keys = [*sorted(about(fact.subject)), "", *sorted(about(fact.attribute)), "", *saying(fact.value)]
    return Memory(
        id=digest("fact", turn.owner.key, turn.id, *keys),
        owner=turn.owner,
        type=fact.type,
        content=fact.content,
        source=fact.source,
        created_at=said,
        # not the time of writing: a confirmation by a later turn must be newer than it, and be told from it
        updated_at=said,
        valid_from=said,
        project=turn.project,
        session=turn.session,
        seq=turn.seq,
        role=Role.NONE,
        origin=provenance(turn.origin),
        importance=fact.importance,
        embed_model=embed_model,
        metadata={
            "subject": fact.subject,
            "attribute": fact.attribute,
            "value": fact.value,
            "version": fact.version,
            "confidence": round(fact.confidence, 3),
            "turn": turn.id,
            "ordinal": ordinal,
            "said": round(turn.at.timestamp(), 3),
        },
    )


class Reconciler:
    """Applies facts to an owner's memories, one after the other. Repeating it after a crash at any point
    comes to the same memories as having done it once."""

    def __init__(self, keeps: KeepsMemories, embedder: Embeds, metrics: Metrics) -> None:
        self._keeps = keeps
        self._embedder = embedder
        self._metrics = metrics

    async def apply(self, owner: Owner, facts: Sequence[Fact], turns: Sequence[Turn]) -> Counter[Decision]:
        """How many facts became what. *facts* are *owner*'s, of *turns*, oldest first. GiveUpError for a
        fact of none of them; what store and embedder raise passes, and the whole may be tried again."""
        if not facts:
            return Counter()
        by_id = {turn.id: turn for turn in turns if turn.owner == owner}
        ordinals: Counter[str] = Counter()
        rows: list[Memory] = []
        for fact in facts:
            if fact.turn_id not in by_id:
                raise GiveUpError("a fact of a turn that was not given")
            rows.append(row_of(fact, by_id[fact.turn_id], ordinals[fact.turn_id], self._embedder.fingerprint))
            ordinals[fact.turn_id] += 1
        vectors = await self._embedder.embed([fact.content for fact in facts])
        decisions: Counter[Decision] = Counter()
        for fact, row, vector in zip(facts, rows, vectors, strict=True):
            decision = await self._apply(fact, row, vector, by_id[fact.turn_id].injected)
            decisions[decision] += 1
            self._metrics.reconcile.labels(decision).inc()
        return decisions

    async def _apply(self, fact: Fact, row: Memory, vector: Vector, injected: Sequence[str]) -> Decision:
        owner = row.owner
        there = await self._keeps.get(owner, [row.id])
        if there and there[0].state is not MemoryState.ACTIVE:
            return Decision.KNOWN  # superseded, deleted or put aside since: never brought back
        searched = await self._keeps.nearest(owner, vector, _NEIGHBOURS, _FACTS)
        change = reconcile_fact(fact, row, searched.found, injected)
        match change:
            case Confirm(id=confirmed):
                return await self._confirm(owner, confirmed, row, searched.found)
            case Outdate(by=newer, since=since):
                if there:
                    await self._keeps.supersede(owner, row.id, newer, since)
                else:
                    await self._keeps.put(owner, [Embedded(_outdated(row, newer, since), vector)])
            case Add() | Replace():
                if not there:
                    await self._keeps.put(owner, [Embedded(row, vector)])
        if isinstance(change, Replace):
            # After the put: a crash between the two leaves both, and the next attempt ends here.
            for old in change.ids:
                await self._keeps.supersede(owner, old, row.id, row.created_at)
        return Decision.KNOWN if there and isinstance(change, Add) else _DECISIONS[type(change)]

    async def _confirm(self, owner: Owner, confirmed: str, row: Memory, found: Iterable[Found]) -> Decision:
        already = any(one.memory.id == confirmed and one.memory.updated_at >= row.created_at for one in found)
        if already:
            return Decision.KNOWN
        await self._keeps.confirm(owner, confirmed, row.created_at)
        return Decision.CONFIRMED


def _outdated(row: Memory, by: str, since: datetime) -> Memory:
    return replace(row, state=MemoryState.SUPERSEDED, superseded_by=by, valid_to=since)
