"""A fit is the best for its data, and the same every time."""

from __future__ import annotations

import numpy as np
import pytest

from memory_extproc.evaluation.training import Example, by_group, fit_logistic, fit_ranker


def some_examples(truth: np.ndarray, count: int = 60, seed: int = 3) -> list[Example]:
    """Questions of three conversations whose answer is the candidate that *truth* scores best."""
    chance = np.random.default_rng(seed)
    examples = []
    for at in range(count):
        features = chance.normal(size=(12, len(truth)))
        scores = features @ truth
        examples.append(Example(f"talk-{at % 3}", features, scores == scores.max()))
    return examples


def share_found(examples: list[Example], weights: np.ndarray) -> float:
    return float(np.mean([one.answers[int(np.argmax(one.features @ weights))] for one in examples]))


def test_a_ranker_finds_what_orders_the_answers_first() -> None:
    truth = np.array([2.0, -1.0, 0.0])
    weights = fit_ranker(some_examples(truth), l2=1e-3)
    assert share_found(some_examples(truth, seed=8), weights) > 0.9
    assert abs(weights[2]) < 0.15 * abs(weights[0])
    assert weights[0] / -weights[1] == pytest.approx(2.0, rel=0.2)


def test_what_is_the_same_for_all_candidates_gets_no_weight() -> None:
    flat = [
        Example(one.group, np.column_stack([one.features, np.full(12, 7.0)]), one.answers)
        for one in some_examples(np.array([1.0]))
    ]
    assert fit_ranker(flat, l2=1e-3)[1] == pytest.approx(0.0, abs=1e-6)


def test_the_minimum_is_reached_from_wherever_the_data_stand() -> None:
    examples = some_examples(np.array([1.0, 0.5]))
    assert np.allclose(fit_ranker(examples, 1e-2), fit_ranker(examples[::-1], 1e-2), atol=1e-5)


def test_separable_answers_do_not_run_away() -> None:
    weights = fit_ranker(some_examples(np.array([1.0, 0.0])), l2=1e-2)
    assert np.isfinite(weights).all()
    assert np.abs(weights).max() < 100


def test_questions_without_an_answer_teach_nothing() -> None:
    examples = some_examples(np.array([1.0, 0.5]))
    silent = [Example("talk-9", one.features, np.zeros(12, dtype=bool)) for one in examples]
    assert np.allclose(fit_ranker(examples, 1e-2), fit_ranker([*examples, *silent], 1e-2))
    with pytest.raises(ValueError, match="no example has a candidate"):
        fit_ranker(silent, 1e-2)


def test_a_probability_is_that_of_the_data() -> None:
    chance = np.random.default_rng(5)
    features = chance.normal(size=(4000, 2))
    likely = 1 / (1 + np.exp(-(1.5 * features[:, 0] - 0.5)))
    fitted = fit_logistic(features, chance.random(4000) < likely, l2=1e-6)
    assert fitted.weights[0] == pytest.approx(1.5, abs=0.15)
    assert fitted.weights[1] == pytest.approx(0.0, abs=0.1)
    assert fitted.bias == pytest.approx(-0.5, abs=0.1)
    assert np.abs(fitted(features) - likely).max() < 0.05


def test_a_row_can_count_for_more() -> None:
    features, truth = np.zeros((2, 1)), np.array([True, False])
    assert fit_logistic(features, truth, 1e-3, np.array([3.0, 1.0]))(features)[0] == pytest.approx(0.75, abs=1e-3)


def test_extreme_features_give_probabilities_all_the_same() -> None:
    fitted = fit_logistic(np.array([[0.0], [1.0], [1.0]]), np.array([False, True, False]), 1e-3)
    assert fitted(np.array([[-1e6], [1e6]])) == pytest.approx([0.0, 1.0])


@pytest.mark.parametrize("outcome", [True, False])
def test_one_outcome_alone_is_no_ground_for_a_probability(outcome: bool) -> None:
    with pytest.raises(ValueError, match="one outcome alone"):
        fit_logistic(np.zeros((3, 1)), np.full(3, outcome), 1e-3)


def test_no_conversation_is_judged_by_what_was_fitted_on_it() -> None:
    examples = some_examples(np.array([1.0]), count=9)
    seen = []
    for group, rest, own in by_group(examples):
        seen.append(group)
        assert {one.group for one in own} == {group}
        assert group not in {one.group for one in rest}
        assert len(rest) + len(own) == 9
    assert seen == ["talk-0", "talk-1", "talk-2"]


def test_one_conversation_cannot_be_judged_by_others() -> None:
    with pytest.raises(ValueError, match="two conversations or more"):
        list(by_group(some_examples(np.array([1.0]))[:1]))
