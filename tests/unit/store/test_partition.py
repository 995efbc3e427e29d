"""What an owner's partition promises to recall and to learn, whatever its store does meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from memory_extproc.coordination.transient import TransientCoordination
from memory_extproc.errors import GiveUpError, TryLaterError
from memory_extproc.model import Embedded, Memory, MemoryState, MemoryType, Owner, Scope, Searched, Source, Vector
from memory_extproc.observe.metrics import Metrics
from memory_extproc.store.partition import PartitionLimits, Partitions
from memory_extproc.store.transient import TransientStore
from tests.builders import ANN, BOB, MONDAY, OTHER_ANN, a_memory

DIMENSION = 4
EVERYTHING = Scope()
AT_ONCE = timedelta(0)  # no patience: what is answered without a fill


def pointing(angle: float) -> Vector:
    return np.array([np.cos(angle), np.sin(angle), 0, 0], dtype=np.float32)


def a_row(content: str, owner: Owner = ANN, angle: float = 0.0, **changes: object) -> Embedded:
    memory = a_memory(content, owner, **changes)
    return Embedded(memory, pointing(angle))


class Clock:
    def __init__(self) -> None:
        self.now = MONDAY

    def __call__(self) -> datetime:
        return self.now


@dataclass
class Setting:
    """One store and one coordination, with as many processes in front of them as a test wants."""

    clock: Clock
    store: TransientStore
    coordination: TransientCoordination
    registry: CollectorRegistry

    def process(self, **limits: object) -> Partitions:
        chosen = replace(PartitionLimits(patience=timedelta(seconds=5)), **limits)  # type: ignore[arg-type]
        return Partitions(
            self.store, self.coordination, chosen, Metrics(CollectorRegistry(), "test"), now=self.clock
        )


def a_setting(*, lags: bool = False, finds_words: bool = False) -> Setting:
    clock = Clock()
    store = TransientStore(DIMENSION, now=clock, lags=lags, finds_words=finds_words)
    return Setting(clock, store, TransientCoordination(clock), CollectorRegistry())


async def until(condition: Callable[[], bool], what: str) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError(f"waited in vain until {what}")


async def search(
    partitions: Partitions, owner: Owner = ANN, limit: int = 10, scope: Scope = EVERYTHING
) -> Searched:
    return await partitions.nearest(owner, pointing(0.0), limit, scope)


async def up_to_date(partitions: Partitions, owner: Owner = ANN) -> Searched:
    """The first answer of a partition that knows of every write."""
    for _ in range(10):
        searched = await search(partitions, owner)
        await until(lambda: not partitions.filling, "no fill runs")
        if searched.path == "hybrid":
            return await search(partitions, owner)
    raise AssertionError("the partition never caught up")


async def said(partitions: Partitions, owner: Owner = ANN) -> list[str]:
    return [one.memory.content for one in (await search(partitions, owner)).found]


async def test_a_cold_owner_is_filled_and_answered_from_the_partition() -> None:
    setting = a_setting()
    await setting.store.put(ANN, [a_row("near", angle=0.1), a_row("far", angle=1.0)])
    await setting.store.put(BOB, [a_row("Bob's", BOB)])
    async with setting.process() as partitions:
        searched = await search(partitions)
        assert [one.memory.content for one in searched.found] == ["near", "far"]
        assert searched.path == "hybrid"
        assert searched.total == 2
        calls = len(setting.store.weather.calls)
        await search(partitions)
        assert len(setting.store.weather.calls) == calls, "a filled partition asks the store for nothing"


async def test_an_owner_without_memories_is_known_to_have_none() -> None:
    setting = a_setting()
    await setting.store.put(BOB, [a_row("Bob's", BOB)])
    async with setting.process() as partitions:
        searched = await search(partitions)
    assert searched == Searched(found=(), total=0, path="hybrid")


@pytest.mark.parametrize("lags", [False, True])
async def test_a_write_is_seen_by_the_very_next_search_whatever_the_store_shows(lags: bool) -> None:
    setting = a_setting(lags=lags)
    setting.store.weather.lagging = lags
    setting.store.weather.hold("pages")  # the partition never gets filled
    async with setting.process(patience=AT_ONCE) as partitions:
        await partitions.put(ANN, [a_row("said just now")])
        assert await said(partitions) == ["said just now"]
        assert await said(partitions, BOB) == []
        assert await said(partitions, OTHER_ANN) == []
        await partitions.delete(ANN, [a_row("said just now").memory.id])
        assert await said(partitions) == []


async def test_a_write_is_seen_while_the_store_is_still_taking_it() -> None:
    setting = a_setting()
    async with setting.process() as partitions:
        await search(partitions)
        taking = setting.store.weather.hold("put")
        putting = asyncio.create_task(partitions.put(ANN, [a_row("on its way")]))
        await until(lambda: setting.store.weather.calls[-1] == "put", "the store is asked")
        assert await said(partitions) == ["on its way"]
        taking.set()
        await putting


@pytest.mark.parametrize("warm", [False, True])
async def test_what_a_store_that_is_down_did_not_take_stays_visible_and_can_be_put_again(warm: bool) -> None:
    setting = a_setting()
    async with setting.process(patience=AT_ONCE) as partitions:
        if warm:
            await search(partitions)
        setting.store.weather.down = True
        with pytest.raises(TryLaterError):
            await partitions.put(ANN, [a_row("not stored yet")])
        assert await said(partitions) == ["not stored yet"]
        setting.store.weather.down = False
        setting.clock.now += timedelta(minutes=1)
        await partitions.put(ANN, [a_row("not stored yet")])
        assert await setting.store.count(ANN) == 1
        assert await said(partitions) == ["not stored yet"]


async def test_what_the_store_refuses_is_not_shown() -> None:
    setting = a_setting()
    async with setting.process() as partitions:
        await partitions.put(ANN, [a_row("good")])
        await search(partitions)
        setting.store.weather.refuse = "no room in the schema"
        with pytest.raises(GiveUpError, match="no room"):
            await partitions.put(ANN, [a_row("refused")])
        setting.store.weather.refuse = ""
        assert await said(partitions) == ["good"]


async def test_a_store_that_is_down_does_not_stop_a_filled_partition() -> None:
    setting = a_setting()
    await setting.store.put(ANN, [a_row("held")])
    async with setting.process() as partitions:
        await search(partitions)
        setting.store.weather.down = True
        assert await said(partitions) == ["held"]
        with pytest.raises(TryLaterError):
            await search(partitions, BOB)


async def test_a_failed_fill_is_tried_again_later_and_not_at_every_request() -> None:
    setting = a_setting()
    setting.store.weather.down = True
    async with setting.process() as partitions:
        for _ in range(5):
            with pytest.raises(TryLaterError):
                await search(partitions)
        assert setting.store.weather.calls.count("pages") == 1
        setting.store.weather.down = False
        setting.clock.now += timedelta(seconds=2)
        assert (await search(partitions)).path == "hybrid"


@pytest.mark.parametrize(
    "hidden",
    [
        a_row("superseded", state=MemoryState.SUPERSEDED),
        a_row("quarantined", state=MemoryState.QUARANTINED),
        a_row("deleted", state=MemoryState.DELETED),
        a_row("a question?", source=Source.QUESTION),
        a_row("expired", expires_at=MONDAY),
    ],
    ids=lambda row: row.memory.content,
)
@pytest.mark.parametrize("filled", [True, False])
async def test_what_is_not_recallable_is_never_found_but_counted_and_kept(hidden: Embedded, filled: bool) -> None:
    setting = a_setting()
    if not filled:
        setting.store.weather.hold("pages")
    async with setting.process(patience=timedelta(seconds=5) if filled else AT_ONCE) as partitions:
        await partitions.put(ANN, [hidden, a_row("shown", angle=1.0)])
        searched = await search(partitions, limit=1)
        assert [one.memory.content for one in searched.found] == ["shown"]
        assert searched.total == (2 if filled else None)
        assert list(await partitions.get(ANN, [hidden.memory.id])) == [hidden.memory]


async def test_a_memory_expires_while_it_is_held() -> None:
    setting = a_setting()
    async with setting.process() as partitions:
        await partitions.put(ANN, [a_row("until noon", expires_at=MONDAY + timedelta(hours=3))])
        assert await said(partitions) == ["until noon"]
        setting.clock.now += timedelta(hours=3)
        assert await said(partitions) == []


async def test_a_scope_narrows_a_held_partition() -> None:
    setting = a_setting()
    async with setting.process() as partitions:
        await partitions.put(
            ANN,
            [
                a_row("fact of hawaii", project="hawaii"),
                a_row("step of hawaii", project="hawaii", type=MemoryType.PROCEDURAL),
                a_row("fact of nothing"),
            ],
        )
        for scope, expected in (
            (Scope("hawaii"), {"fact of hawaii", "step of hawaii"}),
            (Scope(types=frozenset({MemoryType.SEMANTIC})), {"fact of hawaii", "fact of nothing"}),
            (Scope("nowhere"), set()),
            (Scope(types=frozenset()), set()),
        ):
            found = (await search(partitions, scope=scope)).found
            assert {one.memory.content for one in found} == expected
        assert (await search(partitions, limit=0)).found == ()


async def test_superseding_keeps_both_rows_and_shows_the_newer() -> None:
    setting = a_setting()
    async with setting.process() as partitions:
        old, new = a_row("lives in Prague"), a_row("lives in Brno")
        await partitions.put(ANN, [old, new])
        at = MONDAY + timedelta(days=1)
        await partitions.supersede(ANN, old.memory.id, new.memory.id, at)
        assert await said(partitions) == ["lives in Brno"]
        (kept,) = await setting.store.get(ANN, [old.memory.id])
        assert (kept.state, kept.superseded_by, kept.valid_to) == (MemoryState.SUPERSEDED, new.memory.id, at)
        assert await setting.store.count(ANN) == 2
        await partitions.supersede(BOB, new.memory.id, old.memory.id, at)
        assert await said(partitions) == ["lives in Brno"], "Bob cannot supersede what is Ann's"


async def test_confirming_counts_and_refreshes_and_never_goes_back_in_time() -> None:
    setting = a_setting()
    async with setting.process() as partitions:
        row = a_row("likes tea", metadata={"subject": "tea"})
        await partitions.put(ANN, [row])
        later, before = MONDAY + timedelta(days=2), MONDAY - timedelta(days=2)
        await partitions.confirm(ANN, row.memory.id, later)
        await partitions.confirm(ANN, row.memory.id, before)
        await partitions.confirm(BOB, row.memory.id, later)
        await partitions.confirm(ANN, "unknown", later)
        (kept,) = await setting.store.get(ANN, [row.memory.id])
        assert kept.updated_at == later
        assert kept.metadata == {"subject": "tea", "confirmations": 2}


async def test_two_confirmations_at_the_same_time_both_count() -> None:
    setting = a_setting()
    async with setting.process() as partitions:
        row = a_row("likes tea")
        await partitions.put(ANN, [row])
        await asyncio.gather(*(partitions.confirm(ANN, row.memory.id, MONDAY) for _ in range(5)))
        (kept,) = await partitions.get(ANN, [row.memory.id])
        assert kept.metadata["confirmations"] == 5


async def test_a_row_of_another_owner_is_refused() -> None:
    setting = a_setting()
    async with setting.process() as partitions:
        for stranger in (BOB, OTHER_ANN):
            with pytest.raises(GiveUpError, match="another owner"):
                await partitions.put(ANN, [a_row("not Ann's", stranger)])
            assert await said(partitions, stranger) == []
        assert await said(partitions) == []


# --- fills and writes at the same time ----------------------------------------------------------------
@pytest.mark.parametrize("lags", [False, True])
async def test_what_is_written_and_deleted_while_a_fill_runs_is_not_undone_by_it(lags: bool) -> None:
    setting = a_setting(lags=lags)
    old, gone = a_row("old", angle=0.2), a_row("gone", angle=0.1)
    await setting.store.put(ANN, [old, gone])
    setting.store.settle()
    held_up = setting.store.weather.hold("page")
    async with setting.process(patience=AT_ONCE, page=1) as partitions:
        await search(partitions)
        await until(lambda: "page" in setting.store.weather.calls, "the first page is read")
        setting.store.weather.lagging = lags
        await partitions.delete(ANN, [gone.memory.id])
        await partitions.put(ANN, [a_row("new")])
        assert await said(partitions) == ["new", "old"]
        held_up.set()
        await until(lambda: not partitions.filling, "the fill is done")
        searched = await search(partitions)
        assert searched.path == "hybrid"
        assert [one.memory.content for one in searched.found] == ["new", "old"]


async def test_what_was_forgotten_while_a_fill_ran_does_not_come_back() -> None:
    setting = a_setting()
    await setting.store.put(ANN, [a_row("one"), a_row("two")])
    held_up = setting.store.weather.hold("page")
    async with setting.process(patience=AT_ONCE, page=1) as partitions:
        await search(partitions)
        await until(lambda: "page" in setting.store.weather.calls, "the first page is read")
        await partitions.delete_owner(ANN)
        held_up.set()
        await until(lambda: not partitions.filling, "the fill is done")
        searched = await search(partitions)
        assert searched.found == ()
        assert await setting.store.count(ANN) == 0


async def test_what_was_forgotten_is_hidden_while_a_lagging_store_still_shows_it() -> None:
    setting = a_setting(lags=True)
    await setting.store.put(ANN, [a_row("old")])
    setting.store.settle()
    setting.store.weather.lagging = True
    other = setting.process()
    async with setting.process(patience=AT_ONCE) as partitions, other:
        await partitions.delete_owner(ANN)
        assert await said(partitions) == []
        setting.store.weather.hold("pages")
        await other.put(ANN, [a_row("new", angle=0.5)])
        assert await said(partitions) == [], "outdated, and the store's own search would show what is forgotten"


async def test_a_cold_owner_of_a_lagging_store_is_looked_at_again_freshly() -> None:
    setting = a_setting(lags=True)
    await setting.store.put(ANN, [a_row("settled", angle=0.5)])
    setting.store.settle()
    setting.store.weather.lagging = True
    await setting.store.put(ANN, [a_row("by another replica a moment ago")])
    async with setting.process() as partitions:
        assert await said(partitions) == ["settled"]
        await until(lambda: not partitions.filling, "the fresh read is done")
        assert await said(partitions) == ["by another replica a moment ago", "settled"]


# --- two processes on one store -----------------------------------------------------------------------
@pytest.mark.parametrize("lags", [False, True])
async def test_two_processes_see_each_others_writes(lags: bool) -> None:
    setting = a_setting(lags=lags)
    async with setting.process() as one, setting.process() as other:
        assert await said(one) == await said(other) == []
        await until(lambda: not one.filling and not other.filling, "both are filled")
        first = a_row("said to one")
        await one.put(ANN, [first])
        assert [found.memory.content for found in (await up_to_date(other)).found] == ["said to one"]
        await other.put(ANN, [a_row("said to the other", angle=0.3)])
        await other.delete(ANN, [first.memory.id])
        assert [found.memory.content for found in (await up_to_date(one)).found] == ["said to the other"]
        assert await said(other) == ["said to the other"]


async def test_our_own_writes_do_not_make_our_partition_outdated() -> None:
    setting = a_setting()
    async with setting.process() as partitions:
        await search(partitions)
        fills = setting.store.weather.calls.count("pages")
        for n in range(5):
            await partitions.put(ANN, [a_row(f"{n}")])
            assert (await search(partitions)).path == "hybrid"
        assert setting.store.weather.calls.count("pages") == fills


async def test_an_outdated_partition_answers_from_the_store_until_it_is_filled_again() -> None:
    setting = a_setting()
    async with setting.process(patience=AT_ONCE) as one, setting.process() as other:
        await search(one)
        await until(lambda: not one.filling, "filled")
        setting.store.weather.hold("pages")
        await other.put(ANN, [a_row("by the other")])
        searched = await search(one)
        assert [one_.memory.content for one_ in searched.found] == ["by the other"]
        assert searched.path == "store"
        assert searched.total is None


async def test_an_outdated_partition_is_read_anew_for_the_one_who_asks_where_that_is_quick() -> None:
    setting = a_setting()
    async with setting.process() as one, setting.process() as other:
        await search(one)
        await other.put(ANN, [a_row("by the other")])
        searched = await search(one)
        assert [found.memory.content for found in searched.found] == ["by the other"]
        assert searched.path == "hybrid"


async def test_nobody_waits_for_a_lagging_store_to_be_read_afresh() -> None:
    setting = a_setting(lags=True)
    async with setting.process(patience=timedelta(days=1)) as one, setting.process() as other:
        await up_to_date(one)
        setting.store.weather.hold("pages")
        await other.put(ANN, [a_row("by the other")])
        asked = asyncio.create_task(search(one))
        await until(asked.done, "it is answered while the store is read")
        assert asked.result().path == "store"


class Mute(TransientCoordination):
    """Coordination that cannot be reached after the first `open_for` versions."""

    down = False

    async def version(self, owner: Owner) -> int:
        if self.down:
            raise TryLaterError("no word")
        return await super().version(owner)


async def test_recall_goes_on_with_what_is_held_when_coordination_is_down() -> None:
    setting = a_setting()
    coordination = Mute(setting.clock)
    setting.coordination = coordination
    async with setting.process() as partitions:
        await partitions.put(ANN, [a_row("held")])
        await search(partitions)
        coordination.down = True
        assert await said(partitions) == ["held"]
        await setting.store.put(BOB, [a_row("Bob's", BOB)])
        assert await said(partitions, BOB) == ["Bob's"], "through the store"


# --- bounds -------------------------------------------------------------------------------------------
async def test_the_least_recently_used_owner_goes_first_and_comes_back_when_needed() -> None:
    setting = a_setting()
    people = [Owner("acme", f"person {n}") for n in range(30)]
    for owner in people:
        await setting.store.put(owner, [a_row(f"{n}", owner) for n in range(20)])
    async with setting.process(bytes=200_000) as partitions:
        for owner in people:
            await search(partitions, owner)
        await until(lambda: not partitions.filling, "all are filled")
        assert partitions.size <= 200_000
        setting.store.weather.calls.clear()
        await search(partitions, people[-1])
        assert setting.store.weather.calls == []
        assert len((await search(partitions, people[0])).found) == 10
        assert "pages" in setting.store.weather.calls


async def test_what_is_not_stored_yet_is_never_let_go() -> None:
    setting = a_setting()
    async with setting.process(bytes=50_000, patience=AT_ONCE) as partitions:
        setting.store.weather.down = True
        with pytest.raises(TryLaterError):
            await partitions.put(ANN, [a_row("precious")])
        setting.store.weather.down = False
        for n in range(40):
            owner = Owner("acme", f"person {n}")
            await partitions.put(owner, [a_row(f"{m}", owner) for m in range(20)])
            await search(partitions, owner)
            await until(lambda: not partitions.filling, "filled")
        assert await said(partitions) == ["precious"]


async def test_an_owner_too_large_to_hold_is_served_by_the_store_with_our_writes_over_it() -> None:
    setting = a_setting()
    await setting.store.put(ANN, [a_row(f"{n}", angle=0.5) for n in range(300)])
    async with setting.process(bytes=100_000) as partitions:
        for _ in range(3):
            searched = await search(partitions)
            assert searched.path == "store"
            assert len(searched.found) == 10
        assert setting.store.weather.calls.count("pages") == 1
        await partitions.put(ANN, [a_row("new")])
        assert (await said(partitions))[0] == "new"
        assert partitions.size < 100_000


async def test_owners_who_only_asked_leave_nothing_behind() -> None:
    setting = a_setting()
    async with setting.process(fills=1, patience=AT_ONCE) as partitions:
        setting.store.weather.hold("pages")
        for n in range(100):
            await search(partitions, Owner("acme", f"person {n}"))
        assert partitions.filling <= 16
        before = partitions.size
    assert partitions.filling == 0
    assert before < 16 * 2_000


async def test_what_is_dropped_of_an_owner_counts_no_longer_while_a_write_of_theirs_waits_for_the_store() -> None:
    setting = a_setting()
    await setting.store.put(ANN, [a_row(f"{n}") for n in range(50)])
    async with setting.process() as partitions:
        await search(partitions)
        setting.store.weather.down = True
        with pytest.raises(TryLaterError):
            await partitions.put(ANN, [a_row("waits")])
        before = partitions.size
        partitions.drop(ANN)
        assert 0 < partitions.size < before / 10


async def test_leaving_ends_the_fills_that_run() -> None:
    setting = a_setting()
    setting.store.weather.hold("pages")
    async with setting.process(patience=AT_ONCE) as partitions:
        await search(partitions)
        assert partitions.filling == 1
    assert partitions.filling == 0


# --- any history --------------------------------------------------------------------------------------
PEOPLE = (ANN, OTHER_ANN)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["put", "put", "supersede", "confirm", "delete", "forget", "search", "elsewhere", "settle"]
        ),
        st.sampled_from(PEOPLE),
        st.integers(0, 5),
        st.integers(0, 5),
    ),
    max_size=25,
)


async def take(step: tuple[str, Owner, int, int], setting: Setting, mine: Partitions, other: Partitions) -> None:
    kind, owner, n, m = step
    id_, at = a_memory(f"{n}", owner).id, MONDAY + timedelta(hours=m)
    setting.clock.now += timedelta(seconds=1)
    match kind:
        case "put":
            await mine.put(owner, [a_row(f"{n}", owner, angle=m / 3, created_at=at, access_count=m)])
        case "supersede":
            await mine.supersede(owner, id_, f"{m}", at)
        case "confirm":
            await mine.confirm(owner, id_, at)
        case "delete":
            await mine.delete(owner, [id_])
        case "forget":
            await mine.delete_owner(owner)
        case "search":
            await search(mine, owner)
        case "elsewhere":
            await other.put(owner, [a_row(f"{n}", owner, angle=-m / 3, access_count=10 + m)])
        case "settle":
            setting.store.settle()


def shown(searched: Searched) -> Sequence[tuple[Memory, float]]:
    return [(one.memory, round(one.cosine, 6)) for one in searched.found]


@settings(max_examples=150, deadline=None)
@given(steps=STEPS, lags=st.booleans())
async def test_after_any_history_a_partition_finds_what_a_freshly_filled_one_finds(
    steps: list[tuple[str, Owner, int, int]], lags: bool
) -> None:
    setting = a_setting(lags=lags)
    setting.store.weather.lagging = lags
    async with setting.process() as mine, setting.process() as other:
        for step in steps:
            await take(step, setting, mine, other)
        found = {owner: await up_to_date(mine, owner) for owner in PEOPLE}
        setting.store.settle()
        async with setting.process() as fresh:
            for owner in PEOPLE:
                expected = await up_to_date(fresh, owner)
                assert shown(found[owner]) == shown(expected)
                assert found[owner].total == expected.total == await setting.store.count(owner)
                assert all(one.memory.owner == owner for one in expected.found)


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3)), max_size=40, unique_by=lambda row: row[0]),
    limit=st.integers(0, 12),
    data=st.data(),
)
async def test_the_order_of_arrival_does_not_show(
    rows: list[tuple[int, int]], limit: int, data: st.DataObject
) -> None:
    made = [a_row(f"{n}", angle=m / 3, created_at=MONDAY + timedelta(hours=n % 3)) for n, m in rows]
    results = []
    for order in (made, data.draw(st.permutations(made))):
        setting = a_setting()
        async with setting.process() as partitions:
            await search(partitions)
            for row in order:
                await partitions.put(ANN, [row])
            results.append(shown(await search(partitions, limit=limit)))
    assert results[0] == results[1]
    assert len(results[0]) == min(limit, len(made))


# --- every row, for the memory API -----------------------------------------------------------------
async def every(partitions: Partitions, owner: Owner = ANN) -> list[str]:
    return sorted([memory.content async for page in partitions.rows(owner) for memory in page])


@pytest.mark.parametrize("patience", [AT_ONCE, timedelta(seconds=5)])
@pytest.mark.parametrize("lags", [False, True])
async def test_every_row_is_listed_once_in_any_state_with_our_own_writes(patience: timedelta, lags: bool) -> None:
    setting = a_setting(lags=lags)
    old = a_row("an old one", state=MemoryState.SUPERSEDED)
    deleted = a_row("deleted")
    await setting.store.put(ANN, [old, deleted, a_row("a stored one")])
    await setting.store.put(BOB, [a_row("Bob's", BOB)])
    async with setting.process(patience=patience) as partitions:
        await partitions.put(ANN, [a_row("just written"), a_row("a stored one", updated_at=MONDAY)])
        await partitions.delete(ANN, [deleted.memory.id])
        assert await every(partitions) == ["a stored one", "an old one", "just written"]


async def test_a_row_written_while_the_store_is_read_is_listed_once() -> None:
    setting = a_setting()
    await setting.store.put(ANN, [a_row(f"stored {number}") for number in range(5)])
    seen: list[str] = []
    async with setting.process(patience=AT_ONCE, page=2) as partitions:
        async for page in partitions.rows(ANN):
            if not seen:
                await partitions.put(ANN, [a_row("stored 4", importance=0.9), a_row("new")])
            seen.extend(memory.content for memory in page)
    assert sorted(seen) == ["new", *(f"stored {number}" for number in range(5))]


@pytest.mark.parametrize("patience", [AT_ONCE, timedelta(seconds=5)])
async def test_what_is_forgotten_while_it_is_listed_is_not_shown_any_more(patience: timedelta) -> None:
    setting = a_setting()
    await setting.store.put(ANN, [a_row(f"stored {number}") for number in range(1200)])
    async with setting.process(patience=patience, page=100) as partitions:
        shown = 0
        async for page in partitions.rows(ANN):
            if not shown:
                await partitions.delete_owner(ANN)
            shown += len(page)
        assert shown < 1000


async def test_a_row_is_changed_in_one_step_or_not_at_all() -> None:
    setting = a_setting()
    row = a_row("before")
    async with setting.process() as partitions:
        await partitions.put(ANN, [row])

        def corrected(there: Embedded) -> Sequence[Embedded]:
            return [Embedded(replace(there.memory, content="after"), there.vector)]

        def refused(_: Embedded) -> Sequence[Embedded]:
            raise GiveUpError("it has changed since")

        assert await partitions.change(ANN, row.memory.id, corrected)
        assert not await partitions.change(BOB, row.memory.id, corrected), "another's row is no row"
        with pytest.raises(GiveUpError):
            await partitions.change(ANN, row.memory.id, refused)
        assert await every(partitions) == ["after"]
