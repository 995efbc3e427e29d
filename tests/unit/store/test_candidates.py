"""The owner's partition gives the read path candidates by words and vectors, whatever the store does."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_extproc.errors import TransientError
from memory_extproc.index.features import DENSE, FEATURES
from memory_extproc.model import (
    Candidates,
    Embedded,
    Hit,
    MemoryState,
    MemoryType,
    Owner,
    Role,
    Scope,
    SearchQuery,
    Source,
    Vector,
)
from memory_extproc.store.partition import Partitions
from memory_extproc.store.resident import ResidentRows, candidates_among
from tests.support.builders import ANN, BOB, MONDAY, OTHER_ANN, a_message, later
from tests.unit.store.partitions import a_row, a_setting, pointing, until, up_to_date

EVERYTHING = Scope()
TEA = SearchQuery("tea", pointing(0.0))
BY_WORDS = SearchQuery("tea")


def contents(found: Candidates) -> set[str]:
    return {memory.content for memory in found.memories}


def column(found: Candidates, name: str) -> dict[str, float]:
    return {
        memory.content: float(value)
        for memory, value in zip(found.memories, found.features[:, found.names.index(name)], strict=True)
    }


async def ask(partitions: Partitions, sought: SearchQuery = TEA, owner: Owner = ANN, limit: int = 50) -> Candidates:
    return await partitions.candidates(owner, sought, limit, EVERYTHING)


async def test_a_cold_owner_is_filled_and_nobody_elses_memories_are_candidates() -> None:
    setting = a_setting()
    await setting.store.put(ANN, [a_row("User likes tea"), a_row("User has a dog", angle=1.0)])
    await setting.store.put(BOB, [a_row("Bob likes tea", BOB)])
    async with setting.process() as partitions:
        found = await ask(partitions)
        assert (contents(found), found.path, found.total) == ({"User likes tea", "User has a dog"}, "hybrid", 2)
        assert column(found, "dense")["User likes tea"] == pytest.approx(1.0)
        assert column(found, "covered") == {"User likes tea": 1.0, "User has a dog": 0.0}
        assert contents(await ask(partitions, owner=OTHER_ANN)) == set()


async def test_without_a_vector_words_alone_find_and_no_vector_has_a_say() -> None:
    setting = a_setting()
    async with setting.process() as partitions:
        await partitions.put(ANN, [a_row("User likes tea"), a_row("User has a dog")])
        await up_to_date(partitions)
        found = await ask(partitions, BY_WORDS)
        assert found.path == "lexical"
        assert not set(found.names) & set(DENSE)
        assert column(found, "covered") == {"User likes tea": 1.0, "User has a dog": 0.0}


async def test_while_the_partition_cannot_be_filled_the_stores_own_search_answers_with_our_writes_over_it() -> None:
    setting = a_setting()
    await setting.store.put(ANN, [a_row("User likes tea")])
    setting.store.weather.hold("pages")
    async with setting.process(patience=timedelta(0)) as partitions:
        await partitions.put(ANN, [a_row("User likes green tea", angle=0.3)])
        found = await ask(partitions)
        assert (contents(found), found.path) == ({"User likes tea", "User likes green tea"}, "store")
        assert column(found, "covered")["User likes tea"] == 1.0
        with pytest.raises(TransientError):
            await ask(partitions, BY_WORDS)


async def test_the_store_is_read_while_the_vector_of_the_question_is_made() -> None:
    setting = a_setting()
    await setting.store.put(ANN, [a_row("User likes tea")])

    async with setting.process(patience=timedelta(0)) as partitions:

        async def made_once_the_store_is_read() -> Vector | None:
            assert partitions.filling == 1
            await until(lambda: not partitions.filling, "it is read")
            return TEA.vector

        found = await partitions.candidates(ANN, SearchQuery(TEA.text), 10, EVERYTHING, made_once_the_store_is_read)
        assert (contents(found), found.path, found.total) == ({"User likes tea"}, "hybrid", 1)


async def test_an_owner_too_large_to_hold_is_answered_by_the_store() -> None:
    setting = a_setting()
    await setting.store.put(ANN, [a_row(f"tea number {number}", angle=number / 100) for number in range(150)])
    async with setting.process(bytes=1) as partitions:
        await ask(partitions)
        await until(lambda: not partitions.filling, "no fill runs")
        found = await ask(partitions, limit=200)
        assert (found.path, len(found.memories), found.total) == ("store", 100, None)


async def test_what_was_written_or_deleted_a_moment_ago_counts() -> None:
    setting = a_setting()
    async with setting.process() as partitions:
        await up_to_date(partitions)
        row = a_row("User likes tea")
        await partitions.put(ANN, [row])
        assert contents(await ask(partitions)) == {"User likes tea"}
        changed = Embedded(replace(row.memory, content="User likes coffee"), row.vector)
        await partitions.put(ANN, [changed])
        assert column(await ask(partitions), "covered") == {"User likes coffee": 0.0}
        await partitions.delete(ANN, [row.memory.id])
        assert contents(await ask(partitions)) == set()


async def test_a_question_is_context_of_its_answer_and_never_a_candidate() -> None:
    setting = a_setting()
    question = a_message("Do you drink tea?", role=Role.ASSISTANT, source=Source.QUESTION, session="s", seq=0)
    answer = a_message("Every morning!", session="s", seq=1)
    async with setting.process() as partitions:
        await partitions.put(ANN, [Embedded(question, pointing(0.0)), Embedded(answer, pointing(1.0))])
        await up_to_date(partitions)
        found = await ask(partitions)
        assert contents(found) == {"Every morning!"}
        assert column(found, "near_question")["Every morning!"] > 0
        assert column(found, "dense_before")["Every morning!"] == pytest.approx(1.0)


async def test_only_what_the_scope_allows_and_what_may_be_recalled_is_a_candidate() -> None:
    setting = a_setting()
    rows = [
        a_row("tea at home", project="home"),
        a_row("tea at work", project="work"),
        a_row("how to make tea", project="work", type=MemoryType.PROCEDURAL),
        a_row("old tea", state=MemoryState.SUPERSEDED, project="work"),
        a_row("stale tea", expires_at=MONDAY, project="work"),
    ]
    async with setting.process() as partitions:
        await partitions.put(ANN, rows)
        await up_to_date(partitions)
        scope = Scope(project="work", types=frozenset({MemoryType.SEMANTIC}))
        assert contents(await partitions.candidates(ANN, TEA, 9, scope)) == {"tea at work"}
        assert contents(await partitions.candidates(ANN, TEA, 9, Scope(project="nowhere"))) == set()


async def test_others_are_served_while_a_large_owner_is_filled() -> None:
    setting = a_setting()
    await setting.store.put(ANN, [a_row(f"tea number {number}") for number in range(300)])
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with setting.process() as partitions:
        others_task = asyncio.create_task(others())
        await ask(partitions)
        others_task.cancel()
    assert turns > 300 / 50


async def test_others_are_served_while_many_long_memories_are_put() -> None:
    setting = a_setting()
    rows = [a_row(f"piece {number} of " + "a long message " * 100) for number in range(64)]
    async with setting.process() as partitions:
        put = asyncio.create_task(partitions.put(ANN, rows))
        turns = 0
        while not put.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns > 8
        await up_to_date(partitions)
        assert len((await ask(partitions, limit=100)).memories) == 64


ROWS = st.lists(
    st.tuples(st.integers(0, 9), st.sampled_from(["tea", "dog tea", "cat", "tea?"]), st.booleans()), max_size=40
)


@settings(max_examples=40)
@given(ROWS)
def test_after_any_writes_and_deletions_it_gives_what_one_filled_afresh_gives(
    changes: list[tuple[int, str, bool]],
) -> None:
    grown, kept = ResidentRows(), dict[str, Embedded]()
    for number, words, put in changes * 4:  # so that places are left and ranks are closed
        row = Embedded(
            a_message(words, id=f"{number}", session=f"s{number % 2}", seq=number), pointing(number / 10)
        )
        if put:
            grown.put(row)
            kept[row.memory.id] = row
        else:
            grown.remove(row.memory.id)
            kept.pop(row.memory.id, None)
    fresh = ResidentRows()
    for row in reversed(kept.values()):
        fresh.put(row)
    assert (len(grown), {row.memory.id for row in grown}) == (len(fresh), set(kept))
    assert as_told(grown) == as_told(fresh)
    for id_, row in kept.items():
        held = grown.get(id_)
        assert held is not None
        assert held.memory == row.memory
        assert (held.vector == row.vector).all()


def as_told(held: ResidentRows) -> dict[str, list[float]]:
    found = held.candidates(SearchQuery("the tea and the dog", pointing(0.2)), 5, EVERYTHING, later(days=1))
    return {
        memory.id: [round(float(value), 4) for value in np.nan_to_num(row, nan=-9.0)]
        for memory, row in zip(found.memories, found.features, strict=True)
    }


def test_what_is_held_is_counted_with_its_index_and_let_go_again() -> None:
    held = ResidentRows()
    for number in range(200):
        held.put(a_row(f"tea number {number} with many other words beside it"))
    full = held.size
    for number in range(200):
        held.remove(a_row(f"tea number {number} with many other words beside it").memory.id)
    assert len(held) == 0
    assert held.size < full / 4


@pytest.mark.parametrize("change", ["none", "written", "deleted", "forgotten"])
async def test_what_changes_while_the_vector_is_on_its_way_counts(change: str) -> None:
    setting = a_setting()
    async with setting.process() as partitions:
        tea, dog = a_row("User likes tea"), a_row("User has a dog", angle=1.0)
        await partitions.put(ANN, [tea, dog])
        await up_to_date(partitions)

        async def vector() -> Vector | None:
            if change == "written":
                await partitions.put(ANN, [a_row("User likes green tea")])
            elif change == "deleted":
                await partitions.delete(ANN, [tea.memory.id])
            elif change == "forgotten":
                await partitions.delete_owner(ANN)
            return TEA.vector

        found = await partitions.candidates(ANN, BY_WORDS, 50, EVERYTHING, vector)
        after = await ask(partitions)
        assert contents(found) == contents(after)
        assert (found.names, found.path, found.total) == (after.names, after.path, after.total)
        assert np.array_equal(found.features, after.features, equal_nan=True)
        assert np.array_equal(found.spread, after.spread)


async def test_without_the_vector_that_was_waited_for_words_alone_find() -> None:
    setting = a_setting()
    async with setting.process() as partitions:
        await partitions.put(ANN, [a_row("User likes tea")])
        await up_to_date(partitions)

        async def none() -> Vector | None:
            return None

        found = await partitions.candidates(ANN, BY_WORDS, 50, EVERYTHING, none)
        assert (contents(found), found.path) == ({"User likes tea"}, "lexical")


@pytest.mark.parametrize("sought", [TEA, BY_WORDS])
async def test_features_stand_in_one_order_whoever_searched(sought: SearchQuery) -> None:
    """What held before is found by another search and laid beside what holds now."""
    setting = a_setting()
    async with setting.process() as partitions:
        await partitions.put(ANN, [a_row("User likes tea")])
        await up_to_date(partitions)
        held = await ask(partitions, sought)
    names = [name for name in FEATURES if sought.vector is not None or name not in DENSE]
    assert list(held.names) == names
    memory = held.memories[0]
    assert list(candidates_among([Hit(memory, 1.0)], sought, 5, MONDAY).names) == names
