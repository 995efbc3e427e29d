"""The figures count what the data set names, however the memories cut it up."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_extproc.evaluation.metrics import (
    interval,
    mean,
    ndcg_at,
    positions,
    quantile,
    recall_at,
    reciprocal_rank,
    sign_test,
)


def test_a_memory_that_stands_for_several_takes_up_several_places() -> None:
    found = positions([["a", "b", "c"], ["d"], ["e"]])
    assert found == {"a": 3, "b": 3, "c": 3, "d": 4, "e": 5}
    assert recall_at(2, found, frozenset("a")) == 0.0
    assert recall_at(3, found, frozenset("a")) == 1.0


def test_the_same_thing_again_takes_up_its_place_again() -> None:
    assert positions([["a"], ["a"], ["b"]]) == {"a": 1, "b": 3}


def test_what_stands_for_nothing_takes_up_a_place() -> None:
    assert positions([[], ["a"]]) == {"a": 2}


def test_recall_is_the_share_of_the_evidence_within_k() -> None:
    found = positions([["a"], ["x"], ["b"]])
    assert recall_at(1, found, frozenset("abc")) == pytest.approx(1 / 3)
    assert recall_at(3, found, frozenset("abc")) == pytest.approx(2 / 3)


def test_ndcg_is_one_for_the_best_order_and_less_for_a_later_find() -> None:
    assert ndcg_at(5, positions([["a"], ["b"], ["x"]]), frozenset("ab")) == pytest.approx(1.0)
    second = ndcg_at(5, positions([["x"], ["a"]]), frozenset("a"))
    assert second == pytest.approx(1 / math.log2(3))
    assert ndcg_at(1, positions([["x"], ["a"]]), frozenset("a")) == 0.0


def test_the_reciprocal_rank_is_that_of_the_first_find() -> None:
    assert reciprocal_rank(positions([["x"], ["a"], ["b"]]), frozenset("ab")) == 0.5
    assert reciprocal_rank(positions([["x"]]), frozenset("a")) == 0.0


@given(
    ranking=st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=3), max_size=12),
    relevant=st.frozensets(st.sampled_from("abcdefgh"), min_size=1),
)
def test_figures_stay_within_bounds_and_never_fall_with_k(
    ranking: list[list[str]], relevant: frozenset[str]
) -> None:
    found = positions(ranking)
    recalls = [recall_at(k, found, relevant) for k in range(1, 40)]
    assert recalls == sorted(recalls)
    assert all(0.0 <= value <= 1.0 for value in recalls)
    assert 0.0 <= ndcg_at(10, found, relevant) <= 1.0
    assert 0.0 <= reciprocal_rank(found, relevant) <= 1.0


def test_nothing_measured_is_not_zero() -> None:
    assert mean([]) is None
    assert quantile([], 0.5) is None
    assert mean([1.0, 0.0]) == 0.5
    assert (quantile([3.0, 1.0, 2.0], 0.5), quantile([3.0, 1.0, 2.0], 0.95)) == (2.0, 3.0)


def test_an_interval_holds_the_mean_and_narrows_with_more_questions() -> None:
    few, many = interval([0.0, 1.0] * 10), interval([0.0, 1.0] * 1000)
    assert few is not None
    assert many is not None
    assert few[0] < many[0] < 0.5 < many[1] < few[1]
    assert interval([]) is None
    assert interval([1.0, 1.0]) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("differences", "p"),
    [([], 1.0), ([0.0, 0.0], 1.0), ([1.0] * 5, 0.0625), ([1.0, -1.0], 1.0), ([0.1] * 10, 2 / 1024)],
)
def test_the_sign_test_counts_what_differs(differences: list[float], p: float) -> None:
    assert sign_test(differences) == pytest.approx(p)
