"""From scores to relevance in [0, 1]: is there anything worth injecting, and then, which of it.

A gate for the question as a whole loses far less of what helps than a threshold for each memory by itself would.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from memory_extproc.model import Candidates
from memory_extproc.recall.weights import MEASURES, OUTLYING, RAW, WHOLE, Relevance, Worth

__all__ = ["MEASURES", "measures", "relevances", "soundness", "worth_of"]

Floats = npt.NDArray[np.float64]
SUREST = 3.0  # log-odds; a question that is surer than that says no more for memories that lack much
_FIRST = 3  # candidates looked at beside the best


def measures(found: Candidates, standardised: Mapping[str, Floats], scores: Floats) -> dict[str, float]:
    """What tells whether anything helps, from the candidates' features and their scores. All zero without
    candidates."""
    if not len(scores):
        return dict.fromkeys(MEASURES, 0.0)
    first = np.argsort(-scores, kind="stable")[:_FIRST]
    columns = dict(zip(found.names, found.features.T, strict=True))
    measured: dict[str, float] = {}
    for name in RAW:
        values = np.nan_to_num(columns[name]) if name in columns else np.zeros(len(scores))
        measured[f"most_{name}"] = float(values.max())
        measured[f"best_{name}"] = float(values[first[0]])
        measured[f"first_{name}"] = float(values[first].mean())
    for name in OUTLYING:
        measured[f"outlying_{name}"] = float(standardised[name].max()) if name in standardised else 0.0
    for name in WHOLE:
        measured[name] = float(columns[name][0])
    measured["best_score"] = float(scores[first[0]])
    return measured


def worth_of(worth: Worth, measured: Mapping[str, float]) -> float:
    """In (0, 1)."""
    return _logistic(worth.bias + sum(weight * measured[name] for name, weight in worth.weights.items()))


def relevances(relevance: Relevance, worth: float, found: Candidates, scores: Floats) -> Floats:
    """Of each candidate, in [0, 1]: the worth of the question, less what the candidate lacks of being sound."""
    if not len(scores):
        return scores
    lacks = np.maximum(0.0, relevance.enough - soundness(relevance.weights, found, scores)) * relevance.slope
    odds = min(SUREST, math.log(max(worth, 1e-9) / max(1.0 - worth, 1e-9)))
    likely: Floats = 1.0 / (1.0 + np.exp(np.minimum(lacks - odds, 50.0)))
    return likely


def soundness(weights: Mapping[str, float], found: Candidates, scores: Floats) -> Floats:
    """Points of score that a candidate is behind the best (so none is above 0), and what its own features are
    worth, in the same points: in a small store the best is no yardstick for the others."""
    total: Floats = scores - scores.max()
    for name, weight in weights.items():
        if name in found.names:
            total = total + weight * np.nan_to_num(found.features[:, found.names.index(name)])
    return total


def _logistic(value: float) -> float:
    return 1.0 / (1.0 + math.exp(-max(-50.0, min(50.0, value))))
