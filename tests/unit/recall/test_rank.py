from __future__ import annotations

import math
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from memory_extproc.model import Candidate, Memory, MemoryState, Ranked, Source
from memory_extproc.recall.hops import raise_supported
from memory_extproc.recall.rank import choose_ranked, weigh
from tests.support.builders import BOB, MONDAY, a_memory, a_message, later

NOW = later(days=3)
BUDGET = a_memory("User's budget for Hawaii is $10,000")
SEAT = a_memory("User prefers window seats")


def given(*scored: tuple[Memory, float], **bounds: Any) -> list[Memory]:
    """Whom of *scored*, each with its relevance and the best first, would be injected."""
    ordered = [Candidate(memory, relevance, relevance, {"dense": relevance / 2}) for memory, relevance in scored]
    bounds = {"now": NOW, "threshold": 0.0, "limit": 5, **bounds}
    return [one.memory for one in choose_ranked(weigh(ordered, **bounds))]


def test_only_memories_at_or_above_the_threshold_are_given_best_first() -> None:
    scored = [(BUDGET, 0.9), (SEAT, 0.6), (a_memory("User likes hiking"), 0.59)]
    assert given(*scored, threshold=0.6) == [BUDGET, SEAT]
    ranked = choose_ranked(weigh([Candidate(BUDGET, 4.2, 0.9)], now=NOW, threshold=0.6, limit=5))
    assert ranked == (Ranked(BUDGET, 0.9),)


def test_the_threshold_can_stand_on_the_cosine_itself() -> None:
    assert given((BUDGET, 1.0), (SEAT, 0.8), threshold=0.45, on_cosine=True) == [BUDGET]


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
    assert given(*((memory, 0.9) for memory in never)) == []


@pytest.mark.parametrize("newer_first", [True, False])
@pytest.mark.parametrize("limit", [1, 5])
def test_the_same_words_are_given_once_and_the_newest_of_them(newer_first: bool, limit: int) -> None:
    older = a_message("My budget is $10,000.", updated_at=MONDAY)
    newer = a_message("my budget is  10k", updated_at=later(days=1))
    scored = [(newer, 0.8), (older, 0.7)] if newer_first else [(older, 0.8), (newer, 0.7)]
    assert given(*scored, limit=limit) == [newer]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("My flight is on May 3.", "My flight is on May 8."),
        ("I like tea.", "I don't like tea."),
        ("\U0001f600", "\U0001f622"),
        ("x" * 4_000 + " tea", "x" * 4_000 + " coffee"),
    ],
    ids=["another day", "the contrary", "no words", "far behind"],
)
def test_what_differs_in_what_counts_is_no_duplicate(one: str, other: str) -> None:
    both = [a_message(one), a_message(other)]
    assert given((both[0], 0.9), (both[1], 0.8)) == both


def test_what_only_repeats_takes_no_place_within_the_limit() -> None:
    repeats = [a_message(f"I like {words}") for words in ("green tea", "green teas", "tea, green")]
    assert given(*((one, 0.9) for one in repeats), (SEAT, 0.8), limit=2) == [repeats[0], SEAT]


@pytest.mark.parametrize(("of_fact", "of_message"), [(0.8, 0.7), (0.7, 0.8)])
@pytest.mark.parametrize("limit", [1, 5])
def test_of_a_fact_and_the_message_it_was_taken_from_the_fact_is_given(
    of_fact: float, of_message: float, limit: int
) -> None:
    said = a_message("I prefer window seats.", session="s", seq=4)
    fact = a_memory("User prefers window seats", session="s", seq=4)
    scored = sorted([(fact, of_fact), (said, of_message)], key=lambda one: -one[1])
    assert given(*scored, limit=limit) == [fact]


def test_a_message_that_says_the_contrary_of_the_fact_is_given_beside_it() -> None:
    said = a_message("I don't prefer window seats.", session="s", seq=4)
    fact = a_memory("User prefers window seats", session="s", seq=4)
    assert given((fact, 0.8), (said, 0.7)) == [fact, said]


def test_what_the_model_already_sees_is_not_given_again() -> None:
    said = a_message("My budget is $10,000.")
    assert given((said, 0.9), (SEAT, 0.8), in_view=["my budget is $10,000"]) == [SEAT]


@pytest.mark.parametrize("seen", ["User prefers window seats", "I prefer window seats."])
def test_a_fact_in_view_stands_for_its_message_and_the_message_for_its_fact(seen: str) -> None:
    said = a_message("I prefer window seats.", session="s", seq=4)
    fact = a_memory("User prefers window seats", session="s", seq=4)
    more = a_message("I prefer window seats, but not on the way to Hawaii.", session="s", seq=4)
    assert given((said, 0.9), (fact, 0.8), (more, 0.7), in_view=[seen]) == [more]


@hypothesis.given(st.lists(st.floats(0, 1), max_size=20), st.floats(0, 1), st.integers(0, 8))
def test_never_more_than_the_limit_and_never_below_the_threshold(
    relevances: list[float], threshold: float, limit: int
) -> None:
    scored = [(a_memory(f"memory {n}"), one) for n, one in enumerate(sorted(relevances, reverse=True))]
    assert (
        given(*scored, threshold=threshold, limit=limit)
        == [memory for memory, relevance in scored if relevance >= threshold][:limit]
    )


def a_summary(span: Any, **more: Any) -> Memory:
    words = "budget Hawaii: the budget is $10,000, window seats are preferred"
    return a_memory(words, source=Source.SUMMARY, session="s1", metadata={"span": span}, **more)


@pytest.mark.parametrize("summary_first", [True, False])
def test_a_summary_is_left_out_where_something_that_it_sums_up_is_found_itself(*, summary_first: bool) -> None:
    said = a_message("My budget is $10,000.", session="s1", seq=4)
    scored = [(a_summary([2, 6]), 0.9), (said, 0.8)]
    assert given(*(scored if summary_first else reversed(scored)), threshold=0.6) == [said]


def test_a_span_from_a_file_may_be_of_any_length() -> None:
    said = a_message("My budget is $10,000.", session="s1", seq=4)
    before = a_message("My budget is in euros.", session="s2", seq=4)
    assert given((a_summary([5, 10**400]), 0.9), (said, 0.8), (before, 0.8), threshold=0.6)[1:] == [said, before]
    assert given((a_summary([-(10**15), 10**400]), 0.9), (said, 0.8), threshold=0.6) == [said]


def test_a_summary_stays_where_nothing_of_it_is_found_well_enough() -> None:
    said = a_message("My budget is $10,000.", session="s1", seq=4)
    elsewhere = a_message("My budget was $8,000.", session="s1", seq=6)
    other_session = a_message("My budget is in euros.", session="s2", seq=4)
    others = a_message("My budget is $9.", owner=BOB, session="s1", seq=4)
    summary = a_summary([2, 6])
    scored = [(summary, 0.9), (elsewhere, 0.8), (other_session, 0.8), (others, 0.8), (said, 0.5)]
    assert given(*scored, threshold=0.6) == [summary, elsewhere, other_session, others]


@pytest.mark.parametrize("span", [None, [1], ["a", "b"], "2-6", {"from": 2}])
def test_a_summary_that_does_not_say_what_it_sums_up_is_a_memory_as_any_other(span: Any) -> None:
    said = a_message("My budget is $10,000.", session="s1", seq=4)
    summary = a_summary(span)
    assert given((summary, 0.9), (said, 0.8)) == [summary, said]


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("What's my sister's name?", "got a parcel from Marta, my little sister"),
        ("Where am I staying in Madeira?", "Casa Velha in Madeira has no lift"),
        ("How much is my rent?", "we pay 780 in rent, warm"),
    ],
)
def test_a_message_that_tells_what_a_question_for_ones_own_names_counts_for_more(question: str, text: str) -> None:
    other = Candidate(a_message("the sourdough is flat again"), 0.2, 0.2)
    raised, same = raise_supported([Candidate(a_message(text), 0.3, 0.3), other], question)
    assert raised.relevance > 0.6
    assert same == other


def test_support_counts_for_the_first_candidates_alone() -> None:
    sisters = [Candidate(a_message(f"my sister called {at}"), 0.3, 0.3) for at in range(9)]
    raised = [one.relevance > 0.3 for one in raise_supported(sisters, "What's my sister's name?")]
    assert raised == [True] * 5 + [False] * 4
