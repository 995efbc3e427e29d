"""Facts that were replaced are found by questions about their time, and by no others."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest

from memory_extproc.model import Embedded, Memory, MemoryState, Period, Scope, SearchQuery
from memory_extproc.store.resident import ResidentRows
from memory_extproc.testing.models import CannedEmbedder
from tests.support.builders import a_memory, later

DAYS = 100
EMBEDDER = CannedEmbedder(64)
OLD = a_memory("User's budget for the Hawaii trip is $10,000", valid_from=later(), created_at=later())
NEW = a_memory("User's Hawaii budget is $12,000", valid_from=later(days=30), created_at=later(days=30))
GONE = replace(OLD, state=MemoryState.SUPERSEDED, superseded_by=NEW.id, valid_to=later(days=30))
TEA = a_memory("User likes tea")


async def found(
    as_of: Period | None, *, project: str = "", rows: tuple[Memory, ...] = (GONE, NEW, TEA)
) -> set[str]:
    held = ResidentRows()
    for row in rows:
        held.put(Embedded(row, await EMBEDDER.embed_query(row.content)))
    text = "What was my budget for the Hawaii trip?"
    sought = SearchQuery(text, await EMBEDDER.embed_query(text))
    candidates = held.candidates(sought, 10, Scope(as_of=as_of, project=project), later(days=DAYS))
    assert len(candidates.features) == len(candidates.memories)
    assert all(memory.state is MemoryState.ACTIVE for memory in candidates.memories)
    return {memory.id for memory in candidates.memories}


def between(first: datetime, until: datetime) -> Period:
    return Period(first, until)


async def test_now_only_the_current_value_is_found() -> None:
    assert await found(None) == {NEW.id, TEA.id}


@pytest.mark.parametrize(
    ("first", "until", "expected"),
    [
        (10, 20, {GONE.id, TEA.id}),  # only the older held, the newer came later
        (20, 40, {GONE.id, NEW.id, TEA.id}),  # both did
        (40, 50, {NEW.id, TEA.id}),
        (30, 31, {NEW.id, TEA.id}),  # replaced on the first day of it
        (-20, -10, {NEW.id, TEA.id}),  # neither held, so what is known is given
    ],
)
async def test_a_question_about_then_finds_what_held_then(first: int, until: int, expected: set[str]) -> None:
    assert await found(between(later(days=first), later(days=until))) == expected


@pytest.mark.parametrize(
    "hidden",
    [
        replace(GONE, state=MemoryState.DELETED),
        replace(GONE, state=MemoryState.QUARANTINED),
        replace(GONE, expires_at=later(days=50)),
    ],
)
async def test_what_was_forgotten_put_aside_or_expired_is_history_for_nobody(hidden: Memory) -> None:
    then = between(later(days=10), later(days=20))
    assert hidden.id not in await found(then, rows=(hidden, NEW, TEA))


async def test_history_stays_within_its_project() -> None:
    then = between(later(days=10), later(days=20))
    assert await found(then, project="work") == set()
    assert await found(then, project="work", rows=(replace(GONE, project="work"),)) == {GONE.id}
