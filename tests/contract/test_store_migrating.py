"""Collections of an older schema become ones of the present schema: no memory is lost, none is there twice, whoever
writes meanwhile and wherever the migration dies."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from memory_extproc.errors import GiveUpError, TryLaterError
from memory_extproc.model import Memory, Owner, Scope
from memory_extproc.store import schema
from memory_extproc.store.breaker import Breaker
from memory_extproc.store.calls import Calls
from memory_extproc.store.client import AsyncMilvusClient, connect
from memory_extproc.store.lite import EmbeddedLite
from memory_extproc.store.migrating import How, Migrated, Migrating, State
from memory_extproc.store.milvus import MilvusStore
from memory_extproc.store.opening import Opening
from memory_extproc.store.options import MilvusOptions
from memory_extproc.store.rows import to_memory
from tests.builders import ANN, BOB
from tests.fixtures import older_store
from tests.fixtures.milvus_server import Process
from tests.fixtures.milvus_stores import a_row, metrics, milvus, milvus_lite, options, pointing

__all__ = ["milvus", "milvus_lite"]
T = TypeVar("T")
PEOPLE = [ANN, BOB, *(Owner("acme", f"user-{n}") for n in range(4))]


def utc_now() -> datetime:
    return datetime.now(UTC)


async def nobody(_owner: Owner, _ids: Sequence[str]) -> set[str]:
    return set()


async def unbothered() -> None:
    """Nothing keeps the runner from going on."""


async def no_pause(_seconds: float) -> None:
    await asyncio.sleep(0)


def silent(_what: str, _done: int, _whole: int) -> None:
    """Nobody looks."""


@asynccontextmanager
async def talking_to(chosen: MilvusOptions) -> AsyncIterator[AsyncMilvusClient]:
    """A client of nobody's; a Lite file is let go of at the end."""
    lite = None if chosen.uri else EmbeddedLite(chosen.path)
    client = connect(chosen, chosen.uri if lite is None else await asyncio.to_thread(lite.start))
    try:
        yield client
    finally:
        await client.close()
        if lite is not None:
            await asyncio.to_thread(lite.stop)


@asynccontextmanager
async def opened(chosen: MilvusOptions) -> AsyncIterator[MilvusStore]:
    store = MilvusStore(chosen, metrics(), now=utc_now)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def migrate(store: MilvusStore, leaves_out: Any = nobody, pauses: Any = no_pause) -> Sequence[Migrated]:
    return await store.migrating(leaves_out, silent, pauses=pauses).run(unbothered)


async def said(store: MilvusStore, owner: Owner) -> Counter[str]:
    return Counter([row.memory.content async for page in store.pages(owner, 50, fresh=True) for row in page])


@dataclass(frozen=True, slots=True)
class Place:
    chosen: MilvusOptions

    async def fill(self, rows: int = 3) -> dict[Owner, Counter[str]]:
        """An older version's collections with *rows* of each; what they said."""
        async with talking_to(self.chosen) as client:
            await older_store.make(client, self.chosen)
        async with opened(self.chosen) as store:
            for owner in PEOPLE:
                for number in range(rows):
                    await store.put(owner, [a_row(f"{owner.user} likes tea number {number}.", owner)])
            return {owner: await said(store, owner) for owner in PEOPLE}

    async def collections(self) -> list[str]:
        """Those of ours, without what only a start makes for a moment."""
        async with talking_to(self.chosen) as client:
            return sorted(one for one in await client.list_collections() if one.startswith(self.chosen.collection))


@pytest.fixture(params=["file", "server"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "file":
        return Place(replace(options(tmp_path), shards=2))
    server: Process = request.getfixturevalue("milvus_lite")
    return Place(options(tmp_path, server.address))


# --- what becomes of them ------------------------------------------------------------------------------
async def test_an_older_collection_is_served_as_it_is_and_says_what_is_due(place: Place) -> None:
    before = await place.fill()
    async with opened(place.chosen) as store:
        assert not store.finds_words
        plan = await store.migrating(nobody, silent).plan()
        assert {(one.schema, one.to, one.how, one.state) for one in plan} == {(1, 2, How.COPY, State.DUE)}
        assert {one.due for one in plan} == {("the schema's version", "an index of words")}
        assert sum(one.rows for one in plan) == sum(map(Counter.total, before.values()))
        assert {owner: await said(store, owner) for owner in PEOPLE} == before
    assert all("_v1_" in one for one in await place.collections()), "a plan changes nothing"


async def test_every_memory_is_there_once_afterwards_and_is_found_by_its_words(place: Place) -> None:
    before = await place.fill()
    async with opened(place.chosen) as store:
        vectors = {row.memory.id: row.vector async for page in store.pages(ANN, 9, fresh=True) for row in page}
        report = await migrate(store)
        assert {one.state for one in report} == {State.DONE}
        assert sum(one.copied for one in report) == sum(map(Counter.total, before.values()))
        assert {owner: await said(store, owner) for owner in PEOPLE} == before
        async for page in store.pages(ANN, 9, fresh=True):
            assert all(np.array_equal(row.vector, vectors[row.memory.id]) for row in page)
    async with opened(place.chosen) as store:
        assert store.finds_words
        assert len(await store.worded(BOB, "tea", 10, Scope())) == 3
        assert len((await store.nearest(BOB, pointing(1.0), 10, Scope())).found) == 3
        again = await migrate(store)
    assert {(one.state, one.due, one.copied) for one in again} == {(State.CURRENT, (), 0)}
    assert all("_v2_" in one for one in await place.collections()), "nothing of the old ones is left"


async def test_a_new_collection_has_nothing_due(place: Place) -> None:
    async with opened(place.chosen) as store:
        assert {one.state for one in await store.migrating(nobody, silent).plan()} == {State.CURRENT}


async def test_without_an_index_of_words_to_come_the_version_is_said_in_place(place: Place) -> None:
    before = await place.fill()
    plain = Place(replace(place.chosen, full_text=False))
    async with opened(plain.chosen) as store:
        assert {(one.how, one.state) for one in await migrate(store)} == {(How.IN_PLACE, State.DONE)}
        assert {(one.schema, one.state) for one in await migrate(store)} == {(2, State.CURRENT)}
        assert {owner: await said(store, owner) for owner in PEOPLE} == before
    async with opened(place.chosen) as store:  # words are wanted later
        assert {(one.schema, one.how) for one in await migrate(store)} == {(2, How.COPY)}
        assert {owner: await said(store, owner) for owner in PEOPLE} == before


async def test_what_was_forgotten_is_not_taken_along(place: Place) -> None:
    before = await place.fill()

    async def anns(owner: Owner, ids: Sequence[str]) -> set[str]:
        return set(ids) if owner == ANN else set()

    async with opened(place.chosen) as store:
        report = await migrate(store, anns)
        assert sum(one.left_out for one in report) == 3
        assert await said(store, ANN) == Counter()
        assert await said(store, BOB) == before[BOB]


async def test_a_row_that_this_version_cannot_read_is_taken_along(place: Place) -> None:
    await place.fill(1)
    vector = pointing(1.0)
    strange = {**older_store.ROW, "memory_type": "a kind of later", "embedding": vector, "user_id": BOB.user}
    async with talking_to(place.chosen) as client:
        alias = next(alias for alias, _ in older_store.names(place.chosen))
        await client.upsert(alias, [strange])
    async with opened(place.chosen) as store:
        await migrate(store)
    async with talking_to(place.chosen) as client:
        found = await client.query(alias, filter=f'id in ["{strange["id"]}"]', output_fields=["memory_type"])
    assert [row["memory_type"] for row in found] == ["a kind of later"]


async def test_a_row_as_the_first_version_wrote_it_is_a_memory() -> None:
    memory = to_memory(older_store.ROW)
    assert isinstance(memory, Memory)
    assert (memory.owner, memory.content, memory.expires_at) == (Owner("acme", "ann"), "Ann likes tea.", None)
    assert memory.metadata == {"said": 1767607200.25, "turn": "t1"}


async def test_a_server_that_knows_no_words_is_told_the_version_in_place(tmp_path: Path, milvus: Process) -> None:
    place = Place(options(tmp_path, milvus.address))
    before = await place.fill(1)
    async with opened(place.chosen) as sidecar, opened(place.chosen) as store:
        assert [(one.schema, one.how, one.state) for one in await migrate(store)] == [(1, How.IN_PLACE, State.DONE)]
        await sidecar.put(ANN, [a_row("Ann has a dog.", ANN)])
        assert [(one.schema, one.state) for one in await migrate(store)] == [(2, State.CURRENT)]
        assert await said(store, ANN) == before[ANN] + Counter(["Ann has a dog."])


# --- newer ones ----------------------------------------------------------------------------------------
async def _stamped(place: Place, version: int, readable_from: int) -> None:
    async with opened(place.chosen) as store:
        await store.put(ANN, [a_row("Ann likes tea.", ANN)])
    said = {"memory_extproc.schema": str(version), "memory_extproc.readable_from": str(readable_from)}
    async with talking_to(place.chosen) as client:
        for one in await client.list_collections():
            if one.startswith(place.chosen.collection):
                await client.alter_collection_properties(one, said)


async def test_a_newer_schema_that_names_a_later_reader_is_refused_with_both_numbers(place: Place) -> None:
    await _stamped(place, 4, 3)
    with pytest.raises(GiveUpError, match=r"schema 4 of a newer memory-extproc; this one knows .* 2, and 3"):
        async with opened(place.chosen):
            pass


async def test_a_newer_schema_that_this_version_may_use_is_used_and_left_as_it_is(place: Place) -> None:
    await _stamped(place, 3, 2)
    async with opened(place.chosen) as store:
        await store.put(ANN, [a_row("Ann likes oolong.", ANN)])
        assert len(await said(store, ANN)) == 2
        assert {(one.schema, one.to, one.state) for one in await migrate(store)} == {(3, 3, State.CURRENT)}
    async with opened(place.chosen) as store:
        assert len(await said(store, ANN)) == 2


# --- while sidecars run --------------------------------------------------------------------------------
@pytest.fixture
def shared(milvus_lite: Process, tmp_path: Path) -> Place:
    return Place(options(tmp_path, milvus_lite.address))


class Meanwhile:
    """Does things in the pauses that a migration makes, in which everybody hears of it."""

    def __init__(self, *steps: Callable[[], Awaitable[object]]) -> None:
        self._steps = list(steps)

    async def __call__(self, _seconds: float) -> None:
        if self._steps:
            await self._steps.pop(0)()


async def test_what_a_sidecar_writes_and_deletes_meanwhile_holds(
    shared: Place,
) -> None:
    before = await shared.fill()
    unheard = MilvusStore(shared.chosen, metrics(), now=utc_now, clock=lambda: 0.0)  # looks once, and never again
    await unheard.open()
    async with opened(shared.chosen) as sidecar, opened(shared.chosen) as store:
        rows = {row.memory.content: row.memory async for page in sidecar.pages(ANN, 9, fresh=True) for row in page}
        first, second, third = rows.values()
        copying = asyncio.Event()

        async def write() -> None:
            await unheard.put(ANN, [a_row("Ann has a dog.", ANN)])

        async def held() -> None:
            """Everything is copied by now."""
            await unheard.put(ANN, [a_row("Ann sings.", ANN)])  # who has not heard of it yet
            async with opened(shared.chosen) as other:
                for writing in (
                    other.put(BOB, [a_row("too late", BOB)]),
                    other.delete(ANN, [first.id]),
                    other.delete_owner(BOB),
                ):
                    with pytest.raises(TryLaterError):
                        await writing
                assert await said(other, BOB) == before[BOB]

        async def at_every_row(owner: Owner, _ids: Sequence[str]) -> set[str]:
            if owner == ANN and not copying.is_set():
                copying.set()
                async with opened(shared.chosen) as other:  # which has heard of the copy
                    await other.put(ANN, [a_row(first.content, ANN, project="late")])
                    await other.delete(ANN, [second.id])
            return set()

        report = await migrate(store, at_every_row, Meanwhile(write, held))
        assert copying.is_set()
        assert report[0].state is State.DONE
        known = {row.memory.content: row.memory async for page in sidecar.pages(ANN, 9, fresh=True) for row in page}
        assert set(known) == {first.content, third.content, "Ann has a dog.", "Ann sings."}
        assert known[first.content].project == "late"
        assert await said(sidecar, BOB) == before[BOB]
        # The sidecar that ran all the while goes on with the new collection.
        await sidecar.put(BOB, [a_row("Bob has a cat.", BOB)])
        await sidecar.delete(ANN, [third.id])
        assert "Bob has a cat." in await said(store, BOB)
        assert third.content not in await said(store, ANN)
    await unheard.close()


async def test_a_forget_during_the_copying_leaves_nothing_in_either_collection(shared: Place) -> None:
    await shared.fill()
    async with opened(shared.chosen) as store:
        with suppress(Died):
            await store.migrating(nobody, silent, pauses=no_pause).run(_dies_after(2))
    both = await shared.collections()
    assert [one.split("_v")[1][0] for one in both] == ["1", "2"]
    async with opened(shared.chosen) as sidecar:
        await sidecar.delete_owner(ANN)
    async with talking_to(shared.chosen) as client:
        for one in both:
            assert await client.query(one, filter=f'user_id == "{ANN.user}"', output_fields=["id"]) == []
            assert await client.query(one, filter=f'user_id == "{BOB.user}"', output_fields=["id"])


async def test_a_last_look_that_fails_lets_writers_go_on_at_once_and_changes_nothing(shared: Place) -> None:
    before = await shared.fill(1)
    held = asyncio.Event()

    async def hold() -> None:
        held.set()

    async def fails_then(_owner: Owner, _ids: Sequence[str]) -> set[str]:
        if held.is_set():
            raise TryLaterError("the ledger went away")
        return set()

    async def nothing() -> None:
        """The first pause is that before the copying."""

    async with opened(shared.chosen) as sidecar, opened(shared.chosen) as store:
        with pytest.raises(TryLaterError, match="the ledger went away"):
            await migrate(store, fails_then, Meanwhile(nothing, hold))
        await sidecar.put(ANN, [a_row("Ann has a dog.", ANN)])
        assert await said(sidecar, BOB) == before[BOB]
        assert {one.state for one in await migrate(store)} == {State.DONE}
        assert await said(sidecar, ANN) == before[ANN] + Counter(["Ann has a dog."])


async def test_a_run_that_lost_its_lease_leaves_the_hold_of_another_alone(shared: Place) -> None:
    await shared.fill(1)
    old = older_store.names(shared.chosen)[0][1]
    theirs = int((utc_now() + timedelta(hours=1)).timestamp())
    before_the_last_look = 2  # checkpoints

    async with opened(shared.chosen) as store, talking_to(shared.chosen) as client:
        lost = _dies_after(before_the_last_look)

        async def checkpoint() -> None:
            try:
                await lost()
            except Died as died:
                await client.alter_collection_properties(old, schema.held(theirs))
                raise TryLaterError("another has the lease") from died

        with pytest.raises(TryLaterError, match="another has the lease"):
            await store.migrating(nobody, silent, pauses=no_pause).run(checkpoint)
        assert schema.held_until(await client.describe_collection(old)) == theirs


async def test_who_opens_a_lite_file_next_drops_what_a_migration_that_died_had_copied(tmp_path: Path) -> None:
    """Nobody else can be at it, and what is forgotten from then on is to be in no file."""
    place = Place(replace(options(tmp_path), shards=2))
    before = await place.fill(1)
    with suppress(Died):
        async with opened(place.chosen) as store:
            await store.migrating(nobody, silent, pauses=no_pause).run(_dies_after(2))
    assert len(await place.collections()) == 3
    async with opened(place.chosen) as sidecar:
        assert {owner: await said(sidecar, owner) for owner in PEOPLE} == before
    assert [one.split("_v")[1][0] for one in await place.collections()] == ["1", "1"]


async def test_a_copy_that_is_wanted_no_more_goes(shared: Place) -> None:
    before = await shared.fill(1)
    async with opened(shared.chosen) as store:
        with suppress(Died):
            await store.migrating(nobody, silent, pauses=no_pause).run(_dies_after(2))
    assert len(await shared.collections()) == 2
    async with opened(replace(shared.chosen, full_text=False)) as store:
        assert [(one.how, one.state) for one in await migrate(store)] == [(How.IN_PLACE, State.DONE)]
        assert await said(store, ANN) == before[ANN]
    assert len(await shared.collections()) == 1


async def test_a_forget_gets_by_a_collection_that_is_named_and_gone(shared: Place) -> None:
    """Where a migration died after it dropped the old one and before it said so."""
    await shared.fill(1)
    async with opened(shared.chosen) as store:
        await migrate(store)
    (new,) = await shared.collections()
    async with talking_to(shared.chosen) as client:
        await client.alter_collection_properties(new, schema.moved_from("gone"))
    async with opened(shared.chosen) as sidecar:
        await sidecar.delete_owner(ANN)
        assert await said(sidecar, ANN) == Counter()
        await migrate(sidecar)
    async with talking_to(shared.chosen) as client:
        assert not schema.moved_from_of(await client.describe_collection(new))


async def test_writers_go_on_by_themselves_where_a_migration_died_while_it_held_them(shared: Place) -> None:
    await shared.fill(1)
    old = older_store.names(shared.chosen)[0][1]
    clock = datetime.now(UTC)
    store = MilvusStore(shared.chosen, metrics(), now=lambda: clock)
    await store.open()
    async with talking_to(shared.chosen) as client:
        await client.alter_collection_properties(old, schema.held(int(clock.timestamp()) + 30))
    with pytest.raises(TryLaterError, match="writes wait"):
        await store.put(ANN, [a_row("Ann has a dog.", ANN)])
    clock = datetime.fromtimestamp(clock.timestamp() + 31, UTC)
    await store.put(ANN, [a_row("Ann has a dog.", ANN)])
    assert "Ann has a dog." in await said(store, ANN)
    await store.close()


# --- wherever it dies ----------------------------------------------------------------------------------
class Died(BaseException):
    """The process is gone."""


def _dies_after(checkpoints: int) -> Callable[[], Awaitable[None]]:
    left = checkpoints

    async def checkpoint() -> None:
        nonlocal left
        left -= 1
        if not left:
            raise Died

    return checkpoint


class Dying(Calls):
    """The process is gone before the call number *last*: no later one is made, of what tidies up neither."""

    last = 0

    async def run(self, operation: str, limit: timedelta, call: Callable[[float], Awaitable[T]]) -> T:
        if not self.last:
            raise Died
        self.last -= 1
        return await super().run(operation, limit, call)


async def _dies_at(chosen: MilvusOptions, call: int) -> bool:
    """Whether a migration came to its own call number *call*."""

    def calls(kind: type[Calls]) -> Calls:
        return kind(Breaker(3, timedelta(seconds=1), time.monotonic), metrics(), time.monotonic)

    async with talking_to(chosen) as client:
        opening = Opening(client, chosen, calls(Calls))
        capabilities = await opening.capabilities()
        placement = await opening.place(capabilities)
        dying = calls(Dying)
        assert isinstance(dying, Dying)
        dying.last = call
        migrating = Migrating(
            client, chosen, dying, capabilities, placement, nobody, silent, now=utc_now, pauses=no_pause
        )
        try:
            await migrating.run(unbothered)
        except Died:
            return True
        return False


async def test_wherever_it_dies_everything_is_there_once_and_the_next_run_ends_what_it_began(place: Place) -> None:
    place = Place(replace(place.chosen, shards=1))
    before = await place.fill(1)
    call = 0
    while await _dies_at(place.chosen, call):
        call += 1
        async with opened(place.chosen) as sidecar:
            assert {owner: await said(sidecar, owner) for owner in PEOPLE} == before, f"after {call} calls"
            assert len((await sidecar.nearest(ANN, pointing(1.0), 10, Scope())).found) == 1
    assert call > 20
    assert len(await place.collections()) == 1
    async with opened(place.chosen) as sidecar:
        assert sidecar.finds_words
        assert {owner: await said(sidecar, owner) for owner in PEOPLE} == before
