from __future__ import annotations

import math
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_extproc.model import Found, Memory, MemoryState, Ranked, Source
from memory_extproc.recall.rank import Candidate, rank, relevance
from tests.builders import MONDAY, a_memory, a_message, later

NOW = later(days=3)
BUDGET = a_memory("User's budget for Hawaii is $10,000")
SEAT = a_memory("User prefers window seats")


def test_relevance_is_even_odds_at_a_cosine_of_0_40_and_grows_with_the_cosine() -> None:
    assert relevance(0.40) == pytest.approx(0.5)
    assert relevance(0.48) == pytest.approx(1 / (1 + math.exp(-1)))
    assert 0 < relevance(-1) < relevance(0) < relevance(1) < 1


def test_only_memories_at_or_above_the_threshold_are_chosen_best_first() -> None:
    found = [Found(SEAT, 0.45), Found(BUDGET, 0.7), Found(a_memory("User likes hiking"), 0.05)]
    chosen = rank(found, now=NOW, threshold=0.6, limit=5)
    assert [one.memory for one in chosen] == [BUDGET, SEAT]
    assert [one.relevance for one in chosen] == [relevance(0.7), relevance(0.45)]


def test_the_threshold_can_stand_on_the_cosine_itself() -> None:
    found = [Found(SEAT, 0.45), Found(BUDGET, 0.7)]
    assert [one.memory for one in rank(found, now=NOW, threshold=0.6, limit=5, on_cosine=True)] == [BUDGET]


@pytest.mark.parametrize("features", [{}, {"dense": math.nan}], ids=["none", "not known"])
def test_without_a_cosine_the_threshold_stands_on_the_relevance(features: dict[str, float]) -> None:
    assert Candidate(SEAT, 1.0, 0.4, features).standing(on_cosine=True) == 0.4
    assert Candidate(SEAT, 1.0, 0.4, {"dense": 0.7}).standing(on_cosine=True) == 0.7


def test_what_is_forgotten_replaced_expired_or_only_asks_is_never_chosen() -> None:
    words = "User's budget for Hawaii is $8,000"
    never = [
        a_memory(words, state=MemoryState.SUPERSEDED),
        a_memory(words, state=MemoryState.DELETED),
        a_memory(words, state=MemoryState.QUARANTINED),
        a_memory(words, expires_at=MONDAY),
        a_message("What is my budget?", source=Source.QUESTION),
    ]
    assert rank([Found(memory, 0.9) for memory in never], now=NOW, threshold=0.0, limit=9) == ()


def test_the_same_words_are_given_once_and_the_newest_of_them() -> None:
    older = a_message("My budget is $10,000.", updated_at=MONDAY)
    newer = a_message("my budget is  $10,000", updated_at=later(days=1))
    chosen = rank([Found(older, 0.8), Found(newer, 0.8)], now=NOW, threshold=0.0, limit=5)
    assert [one.memory for one in chosen] == [newer]


@pytest.mark.parametrize(("of_fact", "of_message"), [(0.8, 0.7), (0.7, 0.8)])
@pytest.mark.parametrize("limit", [1, 5])
def test_of_a_fact_and_the_message_it_was_taken_from_the_fact_is_given(
    of_fact: float, of_message: float, limit: int
) -> None:
    said = a_message("I prefer window seats.", session="s", seq=4)
    fact = a_memory("User prefers window seats", session="s", seq=4)
    chosen = rank([Found(fact, of_fact), Found(said, of_message)], now=NOW, threshold=0, limit=limit)
    assert chosen == (Ranked(fact, relevance(0.8)),)


@pytest.mark.parametrize(
    "said",
    [
        a_message("I prefer window seats, but not on the way to Hawaii.", session="s", seq=4),
        a_message("I prefer window seats.", session="another", seq=4),
        a_message("I don't prefer window seats.", session="s", seq=4),
    ],
    ids=["says more", "said elsewhere", "says the contrary"],
)
def test_a_message_that_says_something_else_than_the_fact_is_given_beside_it(said: Memory) -> None:
    fact = a_memory("User prefers window seats", session="s", seq=4)
    chosen = rank([Found(fact, 0.8), Found(said, 0.7)], now=NOW, threshold=0, limit=5)
    assert [one.memory for one in chosen] == [fact, said]


def test_what_the_model_already_sees_is_not_given_again() -> None:
    said = a_message("My budget is $10,000.")
    chosen = rank(
        [Found(said, 0.9), Found(SEAT, 0.8)], now=NOW, threshold=0, limit=5, in_view=["my budget is $10,000"]
    )
    assert [one.memory for one in chosen] == [SEAT]


@pytest.mark.parametrize("seen", ["User prefers window seats", "I prefer window seats."])
def test_a_fact_in_view_stands_for_its_message_and_the_message_for_its_fact(seen: str) -> None:
    said = a_message("I prefer window seats.", session="s", seq=4)
    fact = a_memory("User prefers window seats", session="s", seq=4)
    more = a_message("I prefer window seats, but not on the way to Hawaii.", session="s", seq=4)
    found = [Found(said, 0.9), Found(fact, 0.8), Found(more, 0.7)]
    chosen = rank(found, now=NOW, threshold=0, limit=5, in_view=[seen])
    assert [one.memory for one in chosen] == [more]


def test_the_order_of_what_was_found_does_not_matter_even_for_equal_scores() -> None:
    found = [
        Found(a_memory("one"), 0.7),
        Found(a_memory("two", updated_at=later(days=1)), 0.7),
        Found(a_memory("three"), 0.7),
        Found(a_memory("four"), 0.8),
    ]
    orders = {
        tuple(one.memory.id for one in rank(order, now=NOW, threshold=0, limit=3)) for order in permutations(found)
    }
    assert len(orders) == 1
    assert orders.pop()[:2] == (found[3].memory.id, found[1].memory.id)


@given(st.lists(st.floats(-1, 1), max_size=20), st.floats(0, 1), st.integers(0, 8))
def test_never_more_than_the_limit_and_never_below_the_threshold(
    cosines: list[float], threshold: float, limit: int
) -> None:
    found = [Found(a_memory(f"memory {n}"), cosine) for n, cosine in enumerate(cosines)]
    chosen = rank(found, now=NOW, threshold=threshold, limit=limit)
    assert len(chosen) <= limit
    assert all(one.relevance >= threshold for one in chosen)
    assert len(chosen) == min(limit, sum(relevance(cosine) >= threshold for cosine in cosines))
