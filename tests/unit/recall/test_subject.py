"""Everything on a subject: what belongs to it over several conversations, also in other words than its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from memory_extproc.model import Memory, Owner, Role, Vector
from memory_extproc.recall.subject import most_relevant
from tests.support.builders import a_message, later


def a_talk(session: str, day: int, *texts: str) -> list[Memory]:
    """Messages of the caller (even places) and answers (odd places)."""
    roles = (Role.USER, Role.ASSISTANT)
    return [
        a_message(text, session=session, seq=seq, role=roles[seq % 2], created_at=later(days=day))
        for seq, text in enumerate(texts)
    ]


FIRST = a_talk(
    "first",
    0,
    "We want to replace the old roof, Brandl asks 41,000 for it.",
    "Ask whether the scaffolding is included.",
    "No, the scaffolding is another 3,800.",
    "Then compare a second offer.",
)
SECOND = a_talk(
    "second",
    20,
    "Brandl's scaffolding comes on 4 May.",
    "Good, before the summer storms.",
    "My daughter plays the oboe in the school orchestra.",
    "A demanding instrument.",
)
OTHER = a_talk(
    "other", 30, "I bought trousers in the sale.", "Well done.", "How many grams is a cup?", "About 120."
)
ROWS = [*FIRST, *SECOND, *OTHER]


def contents(rows: Sequence[Memory], least: float = 0.25, seeds: Mapping[str, float] | None = None) -> list[str]:
    return [one.content for one in most_relevant(rows, seeds or {FIRST[0].id: 1.0}, None, least)]


def test_a_name_that_came_up_with_the_subject_brings_what_was_said_of_it_later() -> None:
    assert SECOND[0].content in contents(ROWS)


def test_an_answer_to_the_assistant_belongs_to_the_subject_of_the_question() -> None:
    assert FIRST[2].content in contents(ROWS)


def test_messages_on_other_matters_stay_out_also_in_the_same_conversation() -> None:
    found = contents(ROWS)
    assert not any(one.content in found for one in (SECOND[2], *OTHER))


def test_what_a_message_asks_for_brings_nothing_that_asks_the_same() -> None:
    asking = a_talk("a", 1, "The roof leaks over the attic. How does one remove candle wax from linen?")
    same = a_talk("b", 2, "Trousers again. How does one remove candle wax from linen?")
    assert contents([*asking, *same], seeds={asking[0].id: 1.0}) == [asking[0].content]


def test_a_subject_with_a_name_of_its_own_needs_surer_signs() -> None:
    assert contents(ROWS, least=0.8) == [FIRST[0].content]


def test_at_most_a_dozen_places_are_told_of_a_subject() -> None:
    many = [one for at in range(30) for one in a_talk(f"s{at}", at, f"The roof costs {at} hundred more.")]
    assert len(contents(many, seeds={one.id: 1.0 for one in many})) == 12


class Vectors:
    """Reads vectors from a mapping."""

    def __init__(self, known: Mapping[str, Vector]) -> None:
        self._known = known

    def vectors(self, owner: Owner, ids: Sequence[str]) -> Mapping[str, Vector]:
        return {id_: self._known[id_] for id_ in ids if id_ in self._known}


@pytest.mark.parametrize(("likeness", "belongs"), [(0.7, True), (0.3, False)])
def test_a_memory_that_is_like_those_of_the_subject_belongs_to_it(likeness: float, belongs: bool) -> None:
    roof, tiles = a_talk("a", 1, "We replace the roof.")[0], a_talk("b", 2, "Red tiles it is!")[0]
    here = np.array([1.0, 0.0], dtype=np.float32)
    there = np.array([likeness, (1 - likeness**2) ** 0.5], dtype=np.float32)
    found = most_relevant([roof, tiles], {roof.id: 1.0}, Vectors({roof.id: here, tiles.id: there}), 0.25)
    assert (tiles in found) is belongs
