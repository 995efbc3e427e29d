"""Relevance: is there anything worth injecting, and which of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from memory_extproc.model import Candidates
from memory_extproc.recall.fusion import MEASURES, SIZE, Relevance, Worth, measures, relevances, worth_of
from memory_extproc.recall.late_interaction import with_features
from tests.unit.recall.fusing import some_candidates

FOUND = some_candidates(covered=[1.0, 0.5, 0.0], dense=[0.5, 0.6, 0.1], known=[0.9, 0.9, 0.9])
SCORES = np.array([4.0, 3.0, -1.0])


def read(closely: Sequence[float], beside: Sequence[float], *, foreign: float = 0.0) -> Candidates:
    return with_features(FOUND, np.array([closely, beside, beside, np.zeros(3), np.full(3, foreign)]).T)


def test_the_measures_of_a_question_are_those_the_weights_name() -> None:
    measured = measures(FOUND, {"dense": np.array([1.0, 2.0, 0.0])}, SCORES)
    assert set(measured) == set(MEASURES)
    assert measured["most_dense"] == 0.6
    assert measured["best_dense"] == 0.5
    assert measured["first_covered"] == pytest.approx(0.5)
    assert (measured["outlying_dense"], measured["known"], measured["best_score"]) == (2.0, 0.9, 4.0)


def test_notes_of_no_session_are_measured_by_their_own_words() -> None:
    beside = [math.nan, math.nan, 0.3]
    measured = measures(read([0.2, 0.7, 0.1], beside), {}, SCORES)
    assert (measured["best_closely_before"], measured["most_closely_before"]) == (0.2, 0.7)
    assert measured["first_closely_before"] == pytest.approx(0.4)


def test_a_match_is_measured_against_what_the_owners_other_memories_have() -> None:
    many = 10_000
    measured = measures(replace(FOUND, centre=np.full(len(FOUND.names), 0.25), searched=many), {}, SCORES)
    assert measured["above_dense"] == pytest.approx(0.6 - 0.25, abs=1e-3)
    assert measured["best_above_dense"] == pytest.approx(0.5 - 0.25, abs=1e-3)
    assert measured[SIZE] == pytest.approx(math.log(1 + many))


def test_an_only_memory_is_measured_against_what_memories_usually_have() -> None:
    alone = some_candidates(dense=[0.6], known=[0.9])
    measured = measures(replace(alone, centre=alone.features[0], searched=1), {}, np.array([4.0]))
    assert 0.4 < measured["above_dense"] == measured["best_above_dense"] < 0.6


def test_where_all_that_was_said_is_about_what_is_asked_all_of_it_still_matches() -> None:
    alike = some_candidates(dense=[0.6, 0.6, 0.6], known=[0.9, 0.9, 0.9])
    measured = measures(replace(alike, centre=alike.features[0], searched=50), {}, SCORES)
    assert measured["above_dense"] > 0.3


def test_a_question_in_another_language_is_measured_apart() -> None:
    even = [0.0, 0.0, 0.0]
    here, abroad = (measures(read(even, even, foreign=is_foreign), {}, SCORES) for is_foreign in (0.0, 1.0))
    assert (here["foreign"], here["foreign_most_dense"]) == (0.0, 0.0)
    assert (abroad["foreign"], abroad["foreign_most_dense"]) == (1.0, abroad["most_dense"])


def test_without_candidates_all_measures_are_zero() -> None:
    assert measures(some_candidates(()), {}, np.zeros(0)) == dict.fromkeys(MEASURES, 0.0)


def test_the_worth_of_a_question_grows_with_what_speaks_for_it_and_stays_a_probability() -> None:
    worth = Worth(-1.0, {"most_dense": 5.0})
    little, much = ({**dict.fromkeys(MEASURES, 0.0), "most_dense": value} for value in (0.1, 0.9))
    assert 0 < worth_of(worth, little) < worth_of(worth, much) < 1
    assert 0 <= worth_of(Worth(1e9, {}), little) <= 1


def test_what_lacks_much_is_less_relevant_than_the_question_is_worth() -> None:
    found = relevances(Relevance(2.0, -1.5, {}), 0.8, FOUND, SCORES)
    assert found[0] == found[1] == pytest.approx(0.8)
    assert found[2] < 0.1


def test_its_own_features_make_up_for_what_a_memory_is_behind() -> None:
    behind = np.array([4.0, 1.0, 1.0])
    found = relevances(Relevance(1.0, 0.0, {"covered": 4.0}), 0.8, FOUND, behind)
    assert found[1] > found[2]


def test_no_question_is_so_sure_that_everything_in_a_small_store_is_relevant() -> None:
    found = relevances(Relevance(2.0, -1.0, {}), 1.0 - 1e-15, FOUND, SCORES)
    assert found[0] > 0.9
    assert found[2] < 0.1


def test_a_worthless_question_has_no_relevant_memory() -> None:
    assert (relevances(Relevance(1.0, 0.0, {}), 0.0, FOUND, SCORES) < 0.01).all()
    assert relevances(Relevance(1.0, 0.0, {}), 0.5, some_candidates(()), np.zeros(0)).size == 0
