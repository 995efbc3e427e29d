"""Variety among the chosen, as far as it is asked for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_extproc.model import Candidate
from memory_extproc.recall.rerank import alike_in_words, diversify_mmr, mmr
from tests.support.builders import a_memory

TEXTS = ["My budget for Hawaii is $10,000", "The budget for Hawaii is 10k", "I fly on May 3"]


def test_of_two_that_say_the_same_the_second_gives_way_to_what_is_new() -> None:
    alike = alike_in_words(TEXTS)
    assert mmr([0.9, 0.85, 0.6], alike, 0.5, 2) == (0, 2)
    assert mmr([0.9, 0.85, 0.6], alike, 1.0, 2) == (0, 1)


def test_the_most_relevant_is_always_chosen_unless_relevance_counts_for_nothing() -> None:
    assert mmr([0.1, 0.9], alike_in_words(TEXTS[:2]), 0.01, 1) == (1,)


def candidates(*relevances: float) -> list[Candidate]:
    texts = [*TEXTS, "User likes hiking"]
    return [
        Candidate(a_memory(text), one, one, {"dense": one / 2})
        for text, one in zip(texts, relevances, strict=False)
    ]


def test_what_is_new_moves_ahead_and_nothing_is_lost() -> None:
    given = candidates(0.9, 0.85, 0.7, 0.1)
    found = diversify_mmr(given, 0.5, 2, 0.6, on_cosine=False)
    assert found == [given[0], given[2], given[1], given[3]]


def test_variety_never_brings_in_what_is_below_the_threshold() -> None:
    given = candidates(0.9, 0.85, 0.5)
    assert diversify_mmr(given, 0.1, 3, 0.6, on_cosine=False) == given
    assert diversify_mmr(given, 0.1, 3, 0.6, on_cosine=True) == given


def test_no_candidates_have_no_variety() -> None:
    assert diversify_mmr([], 0.5, 3, 0.6, on_cosine=False) == []


@given(st.lists(st.floats(0, 1), max_size=12), st.integers(0, 15), st.floats(0, 1))
def test_each_is_chosen_at_most_once_and_as_many_as_there_may_be(
    relevances: list[float], limit: int, balance: float
) -> None:
    alike = np.random.default_rng(1).random((len(relevances), len(relevances))).astype(np.float32)
    found = mmr(relevances, alike, balance, limit)
    assert len(found) == min(limit, len(relevances))
    assert len(set(found)) == len(found)


@given(st.lists(st.floats(0, 1), max_size=12))
def test_with_all_the_balance_on_relevance_the_order_is_that_of_relevance(relevances: list[float]) -> None:
    alike = np.ones((len(relevances), len(relevances)), dtype=np.float32)
    best = sorted(range(len(relevances)), key=lambda at: -relevances[at])
    assert list(mmr(relevances, alike, 1.0, len(relevances))) == best


@given(st.lists(st.text(max_size=30), max_size=6))
def test_likeness_is_symmetric_and_each_text_is_wholly_like_itself(texts: list[str]) -> None:
    alike = alike_in_words(texts)
    assert alike.shape == (len(texts), len(texts))
    assert np.array_equal(alike, alike.T)
    assert np.array_equal(np.diag(alike), np.ones(len(texts), dtype=np.float32))
    assert ((alike >= 0) & (alike <= 1)).all()


def test_texts_without_a_word_in_common_are_not_alike() -> None:
    alike = alike_in_words([*TEXTS, "", "the of"])
    assert alike[0, 1] == pytest.approx(1.0)
    assert alike[0, 2] == 0.0
    assert alike[3, 4] == 0.0
