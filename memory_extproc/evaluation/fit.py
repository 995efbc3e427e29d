"""Fitting of few weights from few questions: a ranker over candidates, and a probability. Pure numpy.

Both losses are convex with an L2 term, so Newton's method with halved steps ends at the one best answer: no start,
no seed and no number of rounds shows in the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
T = TypeVar("T")
_Loss = Callable[[Floats], tuple[float, Floats, Floats]]  # weights → loss, gradient, Hessian

ROUNDS = 100
SMALL = 1e-8  # of a Newton step's promise; smaller ones change no figure
_HALVINGS = 40


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """One question: a row of *features* for each candidate, and which of them answer it. *group*: the
    conversation it belongs to; what is fitted on a group is never judged on it. *weight*: how much it counts."""

    group: str
    features: Floats = field(repr=False)  # (candidates, features), already normalised
    answers: Bools = field(repr=False)  # (candidates,)
    weight: float = 1.0


def fit_ranker(examples: Sequence[Example], l2: float) -> Floats:
    """Weights of a linear score: a softmax over each question's candidates is to spread its probability evenly
    over those that answer it (ListNet: Cao et al. 2007). Questions of which no candidate answers teach nothing.
    *l2* is per question and feature. ValueError when nothing is left to learn from."""
    useful = [one for one in examples if one.answers.any()]
    if not useful:
        raise ValueError("no example has a candidate that answers it")
    wanted = [one.answers / one.answers.sum() for one in useful]
    count = sum(one.weight for one in useful)

    def loss(weights: Floats) -> tuple[float, Floats, Floats]:
        value = 0.0
        gradient = np.zeros_like(weights)
        hessian = np.zeros((len(weights), len(weights)))
        for one, target in zip(useful, wanted, strict=True):
            scores = one.features @ weights
            top = float(scores.max())
            powers = np.exp(scores - top)
            whole = float(powers.sum())
            share = powers / whole
            value += one.weight * (top + np.log(whole) - float(target @ scores))
            gradient += one.weight * (one.features.T @ (share - target))
            centred = one.features - share @ one.features
            hessian += one.weight * ((centred * share[:, None]).T @ centred)
        return value / count, gradient / count, hessian / count

    return _newton(loss, useful[0].features.shape[1], np.full(useful[0].features.shape[1], l2))


@dataclass(frozen=True, slots=True, eq=False)
class Logistic:
    """A probability from features: 1 / (1 + e^-(features · weights + bias))."""

    weights: Floats
    bias: float

    def __call__(self, features: Floats) -> Floats:
        """One in (0, 1) for each row."""
        found: Floats = _logistic(features @ self.weights + self.bias)
        return found


def fit_logistic(features: Floats, truth: Bools, l2: float, weight: Floats | None = None) -> Logistic:
    """Fitted by maximum likelihood; *weight* says how much each row counts. The bias is not drawn to 0.
    ValueError unless there are rows of both kinds."""
    if truth.all() or not truth.any():
        raise ValueError("a probability cannot be fitted to one outcome alone")
    counted = np.ones(len(truth)) if weight is None else weight
    whole = float(counted.sum())
    rows = np.column_stack([features, np.ones(len(features))])

    def loss(weights: Floats) -> tuple[float, Floats, Floats]:
        scores = rows @ weights
        likely = _logistic(scores)
        # log(1 + e^s) - y s, without overflow
        each = np.logaddexp(0.0, scores) - truth * scores
        gradient = rows.T @ (counted * (likely - truth)) / whole
        hessian = (rows * (counted * likely * (1.0 - likely))[:, None]).T @ rows / whole
        return float(counted @ each) / whole, gradient, hessian

    penalty = np.full(rows.shape[1], l2)
    penalty[-1] = 0.0
    fitted = _newton(loss, rows.shape[1], penalty)
    return Logistic(fitted[:-1], float(fitted[-1]))


def by_group(examples: Sequence[Example]) -> Iterator[tuple[str, list[Example], list[Example]]]:
    """Each group once: (its name, all others, itself). ValueError when there are fewer than two."""
    groups = sorted({one.group for one in examples})
    if len(groups) < 2:  # noqa: PLR2004 - one to fit on, one to judge by
        raise ValueError("cross-validation needs two conversations or more")
    for group in groups:
        rest = [one for one in examples if one.group != group]
        yield group, rest, [one for one in examples if one.group == group]


def _newton(loss: _Loss, count: int, penalty: Floats) -> Floats:
    """The minimum of *loss* plus half the squared weights times *penalty*."""

    def penalised(weights: Floats) -> tuple[float, Floats, Floats]:
        value, gradient, hessian = loss(weights)
        value += 0.5 * float(penalty @ weights**2)
        # The last term keeps the step finite along a direction in which nothing is known at all.
        return value, gradient + penalty * weights, hessian + np.diag(penalty + 1e-10)

    weights = np.zeros(count)
    value, gradient, hessian = penalised(weights)
    for _ in range(ROUNDS):
        step = np.linalg.solve(hessian, gradient)
        promised = float(gradient @ step)
        if promised < SMALL:
            break
        length = 1.0
        for _ in range(_HALVINGS):
            tried = penalised(weights - length * step)
            if tried[0] <= value - 1e-4 * length * promised:
                break
            length /= 2
        else:
            break  # as good as floating point gets
        weights = weights - length * step
        value, gradient, hessian = tried
    return weights


def _logistic(scores: Floats) -> Floats:
    found: Floats = np.exp(-np.logaddexp(0.0, -scores))
    return found
