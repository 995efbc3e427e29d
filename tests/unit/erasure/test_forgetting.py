"""The memories that a forget deletes and leaves, and its report."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta

import pytest

from memory_extproc.erasure.forgetter import Forgetter
from memory_extproc.erasure.steps import cascade, compute_cascade
from memory_extproc.errors import PermanentError
from memory_extproc.model import Embedded, ForgetScope, ForgetState, MemoryState, MemoryType, Owner
from memory_extproc.testing.adapters import InMemoryStore
from tests.support.builders import ANN, BOB, MONDAY, OTHER_ANN, a_memory, a_turn
from tests.unit.erasure.forgetting import EVERYTHING, World, complete


async def test_a_user_is_forgotten_and_nobody_else(world: World, forgetter: Forgetter) -> None:
    for owner in (ANN, BOB, OTHER_ANN):
        await world.put(a_memory("likes tea", owner), a_memory("is 41", owner, state=MemoryState.SUPERSEDED))
    receipt = await forgetter.forget(ANN, EVERYTHING)
    assert receipt.state is not ForgetState.ACCEPTED
    assert not await world.findable("likes tea")
    receipt = await complete(forgetter, receipt)
    assert receipt.memories == 2
    assert receipt.scope == "user"
    assert {one.store: (one.done, one.done_at) for one in receipt.stores} == dict.fromkeys(
        ("files", "journal", "memories", "records"), (True, world.now)
    )
    assert await world.contents(ANN) == set()
    assert await world.contents(BOB) == await world.contents(OTHER_ANN) == {"likes tea", "is 41"}


class Damaged(InMemoryStore):
    """A store of which some rows cannot be read any more."""

    async def pages(self, owner: Owner, size: int, *, fresh: bool) -> AsyncIterator[Sequence[Embedded]]:
        async for page in super().pages(owner, size, fresh=fresh):
            yield [row for row in page if "damaged" not in row.memory.content]


@pytest.mark.parametrize("readable", [(), ("likes tea",)])
async def test_what_cannot_be_read_goes_with_everything(readable: tuple[str, ...]) -> None:
    world = World(shared_store=Damaged(32, now=lambda: MONDAY))
    async with world.partitions, world.forgetter() as forgetter:
        await world.put(*(a_memory(words) for words in ("damaged", *readable)), a_memory("damaged, too", BOB))
        await complete(forgetter, await forgetter.forget(ANN, EVERYTHING))
    assert await world.store.count(ANN) == 0
    assert await world.store.count(BOB) == 1


async def test_while_it_is_worked_out_what_goes_of_many_memories_others_are_served() -> None:
    rows = [a_memory(f"lived in town {number}") for number in range(600)]
    scope, now = ForgetScope(ids=(rows[0].id,)), rows[0].created_at.timestamp()
    served = asyncio.Event()
    # Runs at the next pause, if there is one.
    asyncio.get_running_loop().call_soon(served.set)
    found = await compute_cascade(rows, scope, now, now)
    assert served.is_set()
    assert found == cascade(rows, scope, now, now)
    assert found.named == {rows[0].id}


@pytest.mark.parametrize(
    ("scope", "left"),
    [
        (ForgetScope(project="work"), {"at home", "long ago"}),
        (ForgetScope(session="s1"), {"at work", "long ago"}),
        (ForgetScope(types=frozenset({MemoryType.PROCEDURAL})), {"at home", "long ago"}),
        (ForgetScope(project="work", session="s1"), {"at home", "at work", "long ago"}),
    ],
)
async def test_each_condition_narrows(
    world: World, forgetter: Forgetter, scope: ForgetScope, left: set[str]
) -> None:
    await world.put(
        a_memory("at home", session="s1"),
        a_memory("at work", project="work", session="s2", type=MemoryType.PROCEDURAL),
        a_memory("long ago", created_at=world.now - timedelta(days=400)),
    )
    await complete(forgetter, await forgetter.forget(ANN, scope))
    assert await world.contents() == left


async def test_what_is_older_than_a_time_goes(world: World, forgetter: Forgetter) -> None:
    await world.put(a_memory("old", created_at=world.now - timedelta(days=2)), a_memory("new"))
    await complete(forgetter, await forgetter.forget(ANN, ForgetScope(before=world.now - timedelta(days=1))))
    assert await world.contents() == {"new"}


async def test_what_is_dated_behind_the_present_is_forgotten_with_the_rest(
    world: World, forgetter: Forgetter
) -> None:
    """A clock was set back since, or a file told a wrong time."""
    rows = [
        a_memory("is 41", created_at=world.now + timedelta(days=30)),
        a_memory("likes tea", metadata={"said": 1e18}),
    ]
    await world.put(*rows)
    waits = a_turn("I moved to Lisbon.", at=world.now + timedelta(days=30))
    await world.journal.append(waits)
    await complete(forgetter, await forgetter.forget(ANN, EVERYTHING))
    assert await world.contents() == set()
    assert [entry async for entry in world.journal.of_owner(ANN)] == []
    await world.put(*rows)  # out of a backup
    assert not [one async for page in world.partitions.rows(ANN) for one in page]


async def test_a_query_alone_forgets_nothing(world: World, forgetter: Forgetter) -> None:
    with pytest.raises(PermanentError):
        await forgetter.forget(ANN, ForgetScope(query="tea"))


async def test_forgets_are_counted_by_scope(world: World, forgetter: Forgetter) -> None:
    await forgetter.forget(ANN, ForgetScope(session="s", project="p"))
    assert world.sample("forgets_total", scope="project+session", outcome="accepted") == 1
