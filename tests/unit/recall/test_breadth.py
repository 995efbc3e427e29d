"""Behind the first few, neighbours of memories that were found already make room for memories from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memory_extproc.model import Memory
from memory_extproc.recall.fusion import FIRST, LOOKED_AT, LOSES, diversify_sessions
from tests.support.builders import a_memory, a_message

OTHERS = [a_message(f"other {at}", session=f"other {at}", seq=0) for at in range(FIRST - 1)]
FOUND = a_message("the best", session="talk", seq=10)
FIVE = [FOUND, *OTHERS]


def in_order(memories: Sequence[Memory], scores: Sequence[float]) -> list[str]:
    points = np.array(scores)
    order = np.argsort(-points, kind="stable").tolist()
    return [memories[at].content for at in diversify_sessions(order, points, memories)]


def test_behind_the_first_five_a_message_beside_one_of_them_lets_others_go_ahead() -> None:
    beside = a_message("beside", session="talk", seq=12)
    elsewhere = a_message("elsewhere", session="talk", seq=13)
    found = in_order([*FIVE, beside, elsewhere], [9, 8, 7, 6, 5, 4, 4 - LOSES / 2])
    assert found[FIRST:] == ["elsewhere", "beside"]


def test_what_is_much_better_stays_ahead_whatever_it_stands_beside() -> None:
    beside = a_message("beside", session="talk", seq=11)
    elsewhere = a_message("elsewhere", session="talk", seq=30)
    assert in_order([*FIVE, beside, elsewhere], [9, 8, 7, 6, 5, 4, 4 - 2 * LOSES])[FIRST:] == [
        "beside",
        "elsewhere",
    ]


def test_each_of_several_ahead_counts() -> None:
    five = [a_message(f"talk {at}", session="talk", seq=at) for at in range(FIRST)]
    between = a_message("between", session="talk", seq=2, metadata={"piece": 1})
    elsewhere = a_message("elsewhere", session="walk", seq=2)
    assert in_order([*five, between, elsewhere], [9, 8, 7, 6, 5, 4, 4 - 4 * LOSES])[FIRST:] == [
        "elsewhere",
        "between",
    ]


def test_what_was_chosen_behind_the_first_five_counts_too() -> None:
    pair = [a_message(f"pair {at}", session="pair", seq=at) for at in range(2)]
    elsewhere = a_message("elsewhere", session="walk", seq=2)
    found = in_order([*FIVE, *pair, elsewhere], [9, 8, 7, 6, 5, 4, 3.9, 3.8])
    assert found[FIRST:] == ["pair 0", "elsewhere", "pair 1"]


def test_the_first_five_stand_by_their_scores() -> None:
    five = [a_message(f"talk {at}", session="talk", seq=at) for at in range(FIRST)]
    elsewhere = a_message("elsewhere", session="walk", seq=2)
    found = in_order([*five, elsewhere], [9, 8, 7, 6, 5, 4.9])
    assert found == [*(one.content for one in five), "elsewhere"]


def test_notes_of_no_session_stand_beside_nothing() -> None:
    notes = [a_memory(f"note {at}") for at in range(FIRST + 3)]
    assert in_order(notes, range(len(notes), 0, -1)) == [one.content for one in notes]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2**62), st.floats(-9, 9)), max_size=LOOKED_AT + 9))
def test_nothing_is_lost_and_nothing_comes_twice(drawn: list[tuple[int, int, float]]) -> None:
    memories = [a_message(str(at), session="s" * of, seq=seq) for at, (of, seq, _) in enumerate(drawn)]
    found = in_order(memories, [score for _, _, score in drawn])
    assert sorted(found) == sorted(one.content for one in memories)
