"""Attributes, people and days of memories: in process and read from the store alike."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_extproc.index.entries import Facets, names_in, select_among, tells_of
from memory_extproc.model import Memory, Role, Selection, Source
from memory_extproc.text.attributes import ATTRIBUTES
from tests.support.builders import MONDAY, a_memory, a_message

MEMORIES = (
    a_message("My sister Dana works as a nurse in Bergen."),
    a_message("I'll see the dentist on 2026-03-05."),
    a_message("We moved to Lisbon last summer.", created_at=MONDAY - timedelta(days=40)),
    a_message("You could ask Dana about it.", role=Role.ASSISTANT),
    a_message("Ok.", valid_from=MONDAY - timedelta(days=9)),
    a_memory("User has a dog named Bruno", metadata={"attribute": "pet"}),
    a_memory("Dana and the caller met in Bergen in 2026", source=Source.SUMMARY),
)
NAMES = sorted(frozenset[str]().union(*(names_in(one.content) for one in MEMORIES)))
DAY = MONDAY.date().toordinal()
SELECTIONS = st.builds(
    Selection,
    attributes=st.sampled_from([0, ATTRIBUTES.every, *(tells_of(one) for one in MEMORIES)]),
    names=st.frozensets(st.sampled_from([*NAMES, "nobody"]), max_size=2),
    days=st.none()
    | st.tuples(st.integers(DAY - 300, DAY + 5), st.integers(0, 400)).map(lambda of: (of[0], sum(of))),
    everything=st.sampled_from([False, False, True]),
)


def held(*memories: Memory) -> Facets:
    facets = Facets()
    for place, memory in enumerate(memories):
        facets.add(place, memory)
    return facets


@given(SELECTIONS)
def test_stored_memories_are_selected_as_those_in_process(wanted: Selection) -> None:
    facets = held(*MEMORIES)
    places = np.flatnonzero(facets.select(wanted, len(MEMORIES)))
    told, _ = facets.masks(places, wanted)
    expected = [(MEMORIES[place].id, tells) for place, tells in zip(places.tolist(), told, strict=True)]
    assert [(one.memory.id, one.tells) for one in select_among(MEMORIES, wanted)] == expected


def test_the_examples_have_something_of_everything() -> None:
    assert {"dana", "bergen", "lisbon", "bruno"} <= set(NAMES)
    assert any(tells_of(one) for one in MEMORIES)
    dentist = Selection(days=(date(2026, 3, 5).toordinal(),) * 2)
    assert [one.memory for one in select_among(MEMORIES, dentist)] == [MEMORIES[1]]


@pytest.mark.parametrize("kept", [(), (0, 5), tuple(range(len(MEMORIES)))])
def test_the_size_is_that_of_what_is_held(kept: tuple[int, ...]) -> None:
    facets = held(*MEMORIES)
    for place in set(range(len(MEMORIES))) - set(kept):
        facets.drop(place)
    facets.keep(kept)
    fresh = held(*(MEMORIES[place] for place in kept))
    named = [len(names_in(MEMORIES[place].content)) for place in kept]
    assert facets.size - fresh.size == (len(kept) - len(fresh._rows)) * fresh._rows.itemsize
    assert fresh.size - fresh._rows.nbytes == 150 * sum(named)


def test_vectors_add_attributes_of_the_owner_s_words_and_each_is_read_once() -> None:
    read: list[int] = []

    def reader(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
        read.append(len(vectors))
        return np.full(len(vectors), ATTRIBUTES.mask(["pets"]))

    mine = a_message("the little rascal chewed my shoes", seq=0)
    theirs = a_message("the little rascal chewed my shoes", seq=1, role=Role.ASSISTANT)
    facets = held(mine, theirs)
    wanted = Selection(attributes=ATTRIBUTES.mask(["pets"]))
    assert not facets.select(wanted, 2).any()
    vectors = np.ones((2, 3), dtype=np.float32)
    for _ in range(2):
        facets.read_vectors(reader, vectors)
    assert facets.select(replace(wanted, reads=reader), 2).tolist() == [True, False]
    assert not facets.select(wanted, 2).any()
    facets.add(2, a_message("and the sofa", seq=2))
    facets.read_vectors(reader, np.ones((3, 3), dtype=np.float32))
    facets.keep([0, 2])
    facets.read_vectors(reader, vectors)
    assert read == [2, 1, 2]
