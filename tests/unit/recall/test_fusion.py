"""Scores from features, with weights that were fitted for one embedding model."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_extproc.index.features import CLOSELY, DENSE, FEATURES
from memory_extproc.model import Candidates, Memory, Source
from memory_extproc.recall.fusion import (
    FARTHEST,
    FEW,
    FEWEST,
    IMAGINED,
    Feature,
    Fusion,
    NamedRow,
    Ranker,
    Relevance,
    Weights,
    Worth,
    scores_of,
    standardise,
)
from memory_extproc.recall.intent import QuestionKind
from tests.support.builders import a_memory
from tests.unit.recall.fusing import MODEL, A, B, C, a_ranker, some_candidates, some_weights


def fused(found: Candidates, weights: Weights | None = None, model: str = MODEL) -> list[Memory]:
    fusion = Fusion(weights or some_weights(), model)
    return [one.memory for one in fusion.fuse(found, np.zeros(len(found.memories))).candidates]


def test_what_speaks_for_a_memory_is_weighed_into_one_order() -> None:
    found = some_candidates(dense=[0.1, 0.5, 0.3], bm25=[0.0, 0.0, 1.0])
    assert fused(found) == [C, B, A]
    assert fused(found, some_weights(a_ranker(dense=1.0))) == [B, C, A]


def test_a_candidate_shows_every_feature_by_name_and_leaves_out_what_is_not_known() -> None:
    found = some_candidates(bm25=[1.0, 2.0, 3.0], dense_around=[math.nan, 0.2, 0.3])
    best = Fusion(some_weights(), MODEL).fuse(found, np.zeros(3)).candidates
    last = best[-1].features
    assert last["bm25"] == 1.0
    assert "dense_around" not in last
    assert len(last) == len(list(last)) == len(FEATURES) - 1
    assert last.get("dense_around", 7.0) == 7.0
    assert best[0].features["dense_around"] == 0.3


def test_equal_scores_stand_newest_first_then_by_id_so_that_no_order_of_arrival_shows() -> None:
    there = [fused(some_candidates(memories)) for memories in ((A, B, C), (C, B, A))]
    assert there[0] == there[1]
    assert there[0][0] == B


def test_the_gate_of_a_kind_of_question_moves_by_its_log_odds_among_many_memories_alone() -> None:
    weights = msgspec.structs.replace(some_weights(a_ranker(dense=1.0)), kinds={"past_conversation": -2.0})
    worth = {
        (kind, searched): Fusion(weights, MODEL).fuse(some_candidates(searched=searched), np.zeros(3), kind).worth
        for kind in (None, QuestionKind.PAST, QuestionKind.LIST)
        for searched in (FEW - 1, FEW)
    }
    assert worth.pop((QuestionKind.PAST, FEW)) == pytest.approx(1 / (1 + math.exp(2.0)))
    assert set(worth.values()) == {0.5}


def test_age_costs_score() -> None:
    found = some_candidates(bm25=[1.0, 0.9, 0.0])
    aged = Fusion(some_weights(), MODEL).fuse(found, np.array([0.5, 0.0, 0.0]))
    assert [one.memory for one in aged.candidates] == [B, A, C]


def test_without_vectors_the_weights_of_words_serve_whatever_the_model() -> None:
    found = some_candidates(vectors=False, bm25=[1.0, 3.0, 2.0])
    assert fused(found) == fused(found, model="another") == [B, C, A]


def test_the_vectors_of_a_model_without_weights_still_have_a_word_in_the_order() -> None:
    fusion = Fusion(some_weights(), "another")
    assert not fusion.fitted
    assert Fusion(some_weights(), MODEL).fitted
    found = replace(some_candidates(dense=[0.2, 0.9, 0.4]), spread=np.full(len(FEATURES), 0.1))
    assert fused(found, model="another") == [B, C, A]


def test_in_a_store_of_few_memories_a_feature_is_set_against_what_is_usual() -> None:
    feature = {"bm25": Feature(1.0, usual=2.0, usual_spread=1.0)}
    only = some_candidates((A,), searched=1, bm25=[5.0])
    alone = replace(only, centre=np.full(len(FEATURES), 5.0), spread=np.zeros(len(FEATURES)))
    assert scores_of(feature, alone)[0] > 1.0
    among_many = replace(alone, searched=100_000)
    assert scores_of(feature, among_many)[0] == pytest.approx(0.0, abs=0.05)


def test_where_nothing_stands_around_a_memory_its_own_words_stand_in() -> None:
    features = {name: Feature(1.0, 0.0, 1.0) for name in ("bm25", "bm25_around")}
    found = some_candidates(bm25=[2.0, 2.0, 0.0], bm25_around=[math.nan, 1.0, math.nan])
    standardised = standardise(features, found)["bm25_around"]
    assert standardised[0] == pytest.approx(0.7 * 2.0, rel=0.05)
    assert standardised[2] == pytest.approx(0.0, abs=0.01)
    without = standardise({"bm25_around": features["bm25_around"]}, found)["bm25_around"]
    assert without[0] == 0.0


@given(
    count=st.integers(0, 10_000),
    rows=st.lists(
        st.tuples(
            st.floats(-5, 5), st.floats(0.01, 3), st.booleans(), st.floats(-5, 5), st.floats(0, 4), st.floats(-9, 9)
        ),
        min_size=1,
        max_size=6,
    ),
)
def test_every_feature_is_set_against_its_own_mean_and_deviation(
    count: int, rows: list[tuple[float, float, bool, float, float, float]]
) -> None:
    names = FEATURES[: len(rows)]
    features = {
        name: Feature(1.0, usual, spread, own) for name, (usual, spread, own, *_) in zip(names, rows, strict=True)
    }
    found = replace(
        some_candidates((A,), searched=count),
        names=names,
        features=np.array([[row[5] for row in rows]]),
        centre=np.array([row[3] for row in rows]),
        spread=np.array([row[4] for row in rows]),
    )
    standardised = standardise(features, found)
    for name, (usual, usual_spread, own, centre, spread, value) in zip(names, rows, strict=True):
        mean, deviation = usual, usual_spread
        if not own:  # as the mean and the deviation of both together are defined
            whole = count + IMAGINED
            mean = (count * centre + IMAGINED * usual) / whole
            squares = count * (spread**2 + centre**2) + IMAGINED * (usual_spread**2 + usual**2)
            deviation = math.sqrt(max(squares / whole - mean**2, 0.0))
        expected = min(FARTHEST, max(-FARTHEST, (value - mean) / max(deviation, 1e-6)))
        assert standardised[name][0] == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_no_candidates_come_to_nothing() -> None:
    for vectors in (True, False):
        found = some_candidates((), vectors=vectors)
        assert Fusion(some_weights(), MODEL).fuse(found, np.zeros(0)).candidates == ()
    assert fused(some_candidates(()), model="another") == []


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3),
    st.lists(st.floats(0, 1e6), min_size=len(DENSE), max_size=len(DENSE)),
    st.integers(0, 10**6),
)
def test_relevance_is_between_0_and_1_and_falls_with_the_score(
    values: list[float], spreads: list[float], searched: int
) -> None:
    found = some_candidates(searched=searched, dense=values, bm25=values[::-1])
    spread = np.ones(len(FEATURES))
    spread[: len(DENSE)] = spreads
    best = Fusion(some_weights(a_ranker(2.0, dense=1.0, bm25=0.5)), MODEL).fuse(
        replace(found, spread=spread), np.zeros(3)
    )
    relevances = [one.relevance for one in best.candidates]
    assert all(0 <= one <= 1 for one in relevances)
    assert relevances == sorted(relevances, reverse=True)
    assert 0 < best.worth < 1


def test_a_row_by_names_is_a_mapping() -> None:
    row = NamedRow({"a": 0, "b": 1}, np.array([[2.0, 3.0], [1.0, math.nan]]), 1)
    assert dict(row) == {"a": 1.0}
    with pytest.raises(KeyError):
        row["b"]
    assert msgspec.to_builtins(dict(row)) == {"a": 1.0}


def test_a_summary_gives_way_to_what_was_said_unless_it_stands_out() -> None:
    """With the same words as a message it comes after it, and does not tell whether anything helps."""
    summed_up = a_memory("summed up", source=Source.SUMMARY)
    features = {"bm25": Feature(1.0, usual=0.0, usual_spread=1.0)}
    ranker = Ranker(features, Worth(0.0, {"best_score": 1.0}), Relevance(1.0, -1.0, {}))
    fusion = Fusion(some_weights(ranker), MODEL)
    alike = fusion.fuse(some_candidates((summed_up, A), bm25=[3.5, 2.0]), np.zeros(2))
    assert [one.memory for one in alike.candidates] == [A, summed_up]
    assert alike.worth == fusion.fuse(some_candidates((A,), bm25=[2.0]), np.zeros(1)).worth
    outstanding = fusion.fuse(some_candidates((summed_up, A), bm25=[5.0, 0.0]), np.zeros(2))
    assert outstanding.candidates[0].memory is summed_up
    assert outstanding.worth > alike.worth


def test_what_was_read_word_by_word_has_weights_of_its_own_and_others_among_few_memories() -> None:
    weights = msgspec.structs.replace(
        some_weights(), close=a_ranker(closely=1.0, bm25=0.1), close_few=a_ranker(closely=0.1, bm25=1.0)
    )

    def read(searched: int) -> Candidates:
        found = some_candidates((A, C), searched, bm25=[1.0, 0.0])
        column = np.array([[0.0], [1.0]])
        return replace(
            found,
            names=(*found.names, CLOSELY),
            features=np.hstack([found.features, column]),
            centre=np.append(found.centre, 0.0),
            spread=np.append(found.spread, 1.0),
        )

    assert fused(read(FEW), weights) == [C, A]
    assert fused(read(FEW - 1), weights) == [A, C]
    without = msgspec.structs.replace(weights, close_few=None)
    assert fused(read(FEW - 1), without) == [C, A]
    assert fused(read(FEWEST - 1), without) == fused(some_candidates((A, C), FEWEST - 1, bm25=[1.0, 0.0]), without)


def test_a_projected_question_has_weights_of_its_own() -> None:
    weights = msgspec.structs.replace(
        some_weights(), close=a_ranker(bm25=1.0), close_few=a_ranker(bm25=1.0), projected_few=a_ranker(closely=1.0)
    )
    found = some_candidates((A, C), FEW - 1, bm25=[1.0, 0.0])
    read = replace(
        found,
        names=(*found.names, CLOSELY),
        features=np.hstack([found.features, np.array([[0.0], [1.0]])]),
        centre=np.append(found.centre, 0.0),
        spread=np.append(found.spread, 1.0),
    )
    assert fused(read, weights) == [A, C]
    assert fused(replace(read, projected=True), weights) == [C, A]
    assert Fusion(weights, MODEL).projects
    assert not Fusion(weights, "another").projects
    assert not Fusion(msgspec.structs.replace(weights, projected_few=None), MODEL).projects


@pytest.mark.parametrize(("kind", "vectors"), [("hybrid", True), ("lexical", False)])
def test_few_memories_have_weights_of_their_own_by_vectors_and_by_words(kind: str, *, vectors: bool) -> None:
    weights = some_weights(hybrid=a_ranker(covered=1.0), lexical=a_ranker(covered=1.0))
    with_few = msgspec.structs.replace(weights, **{f"{kind}_few": a_ranker(bm25=1.0)})

    def order(searched: int, weights: Weights) -> list[Memory]:
        found = some_candidates((A, C), searched, vectors=vectors, bm25=[1.0, 0.0], covered=[0.0, 1.0])
        return fused(found, weights)

    assert order(FEW, with_few) == [C, A]
    assert order(FEW - 1, with_few) == [A, C]
    assert order(FEW - 1, weights) == [C, A]
