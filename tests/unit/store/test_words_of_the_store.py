"""Owners too large to hold are found by words too, where the store has an index of words."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from memory_extproc.errors import PermanentError, TransientError
from memory_extproc.model import Candidates, MemoryState, Owner, Scope, SearchQuery
from memory_extproc.store.partition import Partitions
from tests.support.builders import ANN, BOB
from tests.unit.store.partitions import Setting, a_row, a_setting, pointing

EVERYTHING = Scope()
TEA = SearchQuery("Which oolong do I like?", pointing(0.0))
BY_WORDS = SearchQuery("Which oolong do I like?")
OOLONG = a_row("User likes oolong", angle=3.0)


def contents(found: Candidates) -> set[str]:
    return {memory.content for memory in found.memories}


@pytest.fixture
def setting() -> Setting:
    """A store that knows words and pages of which never come: whatever is found, the store's own search finds."""
    made = a_setting(finds_words=True, lags=True)
    made.store.weather.hold("pages")
    return made


@pytest.fixture
async def partitions(setting: Setting) -> AsyncIterator[Partitions]:
    async with setting.process(patience=timedelta(0)) as made:
        yield made


async def ask(
    partitions: Partitions, sought: SearchQuery = TEA, owner: Owner = ANN, scope: Scope = EVERYTHING
) -> set[str]:
    found = await partitions.candidates(owner, sought, 50, scope)
    assert found.path == "store"
    return contents(found)


async def many(setting: Setting) -> None:
    """More than the store's nearest hundred stand before what shares words alone."""
    await setting.store.put(ANN, [*(a_row(f"tea number {n}", angle=n / 1000) for n in range(150)), OOLONG])


async def test_what_no_vector_finds_is_found_by_its_words(setting: Setting, partitions: Partitions) -> None:
    await many(setting)
    found = await partitions.candidates(ANN, TEA, 50, EVERYTHING)
    assert "User likes oolong" in contents(found)
    assert len(found.memories) == 51
    place = [memory.content for memory in found.memories].index("User likes oolong")
    assert found.features[place, found.names.index("dense")] == pytest.approx(-0.99, abs=0.01)


async def test_while_the_embedding_model_is_away_words_alone_find(setting: Setting, partitions: Partitions) -> None:
    await many(setting)
    await partitions.put(ANN, [a_row("User is out of oolong")])
    assert await ask(partitions, BY_WORDS) == {"User likes oolong", "User is out of oolong"}


async def test_what_both_ways_find_is_one_candidate(setting: Setting, partitions: Partitions) -> None:
    await setting.store.put(ANN, [a_row("User likes oolong")])
    found = await partitions.candidates(ANN, TEA, 50, EVERYTHING)
    assert len(found.memories) == 1


async def test_nobody_elses_words_are_found_and_none_that_may_not_be_recalled(
    setting: Setting, partitions: Partitions
) -> None:
    await setting.store.put(BOB, [a_row("Bob likes oolong", BOB)])
    await setting.store.put(ANN, [a_row("User liked oolong", state=MemoryState.SUPERSEDED)])
    assert await ask(partitions) == await ask(partitions, BY_WORDS) == set()


async def test_origins_and_projects_narrow_what_words_find(setting: Setting, partitions: Partitions) -> None:
    rows = [a_row("oolong at home", project="home"), a_row("oolong at work", project="work", origin="route=work")]
    await setting.store.put(ANN, rows)
    for scope in (Scope(project="work"), Scope(origins=("route=*",))):
        assert await ask(partitions, BY_WORDS, scope=scope) == {"oolong at work"}


async def test_what_we_changed_deleted_or_forgot_is_never_shown_as_the_store_has_it(
    setting: Setting, partitions: Partitions
) -> None:
    setting.store.weather.lagging = True
    await setting.store.put(ANN, [OOLONG, a_row("oolong again")])
    setting.store.settle()
    await partitions.delete(ANN, [OOLONG.memory.id])
    assert await ask(partitions, BY_WORDS) == {"oolong again"}
    await partitions.delete_owner(ANN)
    assert contents(await partitions.candidates(ANN, BY_WORDS, 50, EVERYTHING)) == set()


@pytest.mark.parametrize("refuse", ["", "a broken index"])
async def test_an_index_of_words_that_fails_costs_what_vectors_find_nothing(refuse: str) -> None:
    class Broken(type(a_setting().store)):  # type: ignore[misc]
        async def search_text(self, *_: object) -> object:
            raise PermanentError(refuse) if refuse else TransientError("down")

    setting = a_setting(finds_words=True)
    setting.store = Broken(4, now=setting.clock, finds_words=True)
    setting.store.weather.hold("pages")
    await setting.store.put(ANN, [a_row("User likes oolong")])
    async with setting.process(patience=timedelta(0)) as partitions:
        assert await ask(partitions) == {"User likes oolong"}
        with pytest.raises(PermanentError if refuse else TransientError):
            await ask(partitions, BY_WORDS)


async def test_without_an_index_of_words_a_question_without_a_vector_waits_for_the_partition() -> None:
    setting = a_setting()
    setting.store.weather.hold("pages")
    async with setting.process(patience=timedelta(0)) as partitions:
        with pytest.raises(TransientError):
            await ask(partitions, BY_WORDS)
