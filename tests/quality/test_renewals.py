"""Whether a later statement is read as the newer value of an earlier one, on pairs that nothing was fitted on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from memory_extproc.inference.onnx import OnnxModel
from memory_extproc.recall.examples import IntentExamples
from memory_extproc.recall.rank import LIKELY

pytest_plugins = ["tests.support.models"]

PAIRS = [
    line.split("\t") for line in (Path(__file__).parent / "renewals.tsv").read_text(encoding="utf-8").splitlines()
]


@pytest.fixture(scope="module")
def likely(int8_model_dir: Path) -> dict[str, list[float]]:
    """The probabilities of the pairs by their label, and of pairs of two topics."""
    model, examples = OnnxModel(int8_model_dir), IntentExamples()
    older, newer = (np.vstack([model.run([pair[side]], 2048) for pair in PAIRS]) for side in (2, 3))
    found: dict[str, list[float]] = {"new": [], "both": [], "apart": []}
    for at, (label, *_) in enumerate(PAIRS):
        several = np.stack([older[at], newer[at], newer[at - 7]])
        _, then, apart = examples.renewed_by(several)[0].tolist()
        found[label].append(then)
        found["apart"].append(apart)
    return found


def test_many_newer_values_are_found_though_no_word_tells_of_a_change(likely: dict[str, list[float]]) -> None:
    assert len(likely["new"]) >= 100
    assert np.mean(np.array(likely["new"]) >= LIKELY) >= 0.33


def test_few_statements_that_leave_the_earlier_one_right_are_taken_for_newer_values(
    likely: dict[str, list[float]],
) -> None:
    assert len(likely["both"]) >= 100
    assert np.mean(np.array(likely["both"]) >= LIKELY) <= 0.08
    assert np.mean(np.array(likely["apart"]) >= LIKELY) <= 0.02


async def test_vectors_of_another_dimension_tell_nothing() -> None:
    assert not IntentExamples().renewed_by(np.ones((2, 8), np.float32)).any()
    assert not IntentExamples(lambda: False).renewed_by(np.ones((2, 384), np.float32)).any()
