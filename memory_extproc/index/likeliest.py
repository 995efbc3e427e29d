"""The memories worth a closer look: those that most speaks for, by a rough sum that needs no fitted weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from memory_extproc.index.features import FEATURES

Floats = npt.NDArray[np.float64]
# What each feature counts for in the rough sum, in standard deviations.
_ROUGH = {
    "dense": 1.0, "dense_around": 1.0, "bm25": 1.0, "bm25_around": 1.0, "mass_session": 0.5, "near": 0.5,
}  # fmt: skip
_PLAIN = {"only_subject": 0.7, "days_agree": 1.0, "days_same": 2.0}  # already on a scale of their own
_TELLING = tuple(name for name in FEATURES if name in _ROUGH or name in _PLAIN)
_ALIKE = 1e-9
_ROUNDING = 1e-6  # of a mean: what may be left of a deviation of zero


@dataclass(frozen=True, slots=True, eq=False)
class Likeliest:
    """*features* has a row for each of *places* and a column for each of *names*; *centre* and *spread* are over
    all *searched* memories."""

    places: npt.NDArray[np.int64]
    names: tuple[str, ...]
    features: Floats
    centre: Floats
    spread: Floats
    searched: int


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Features of the memories among which is chosen: a row for each of *names*, with its mean and deviation."""

    names: tuple[str, ...]
    rows: Floats
    centre: Floats
    spread: Floats

    @classmethod
    def of(cls, by_name: Mapping[str, Floats], within: npt.NDArray[np.int64]) -> Self:
        """Of the memories at the positions *within*."""
        names = tuple(name for name in FEATURES if name in by_name)
        rows = np.stack([by_name[name] for name in names])
        if len(within) < rows.shape[1]:
            rows = rows[:, within]
        return cls(names, rows, *_statistics(rows))

    def beside(self, other: Self) -> Self:
        """The rows of both."""
        return type(self)(
            (*self.names, *other.names),
            np.concatenate([self.rows, other.rows]),
            np.concatenate([self.centre, other.centre]),
            np.concatenate([self.spread, other.spread]),
        )


def likeliest(
    table: Table, places: npt.NDArray[np.int64], limit: int, tie: Callable[[int], tuple[float, str]]
) -> Likeliest:
    """At most *limit* of the memories at *places*, of whom *table* is. *tie* orders by place those that the rough
    sum cannot tell apart, so that the choice does not depend on places."""
    columns, centre, spread = table.rows, table.centre, table.spread
    rough = np.zeros(len(places))
    for name in _TELLING:  # always in one order: a sum in another has other last digits
        if name not in table.names:
            continue
        at = table.names.index(name)
        if name in _ROUGH and spread[at] > _ALIKE:
            apart = (columns[at] - centre[at]) * (_ROUGH[name] / spread[at])
            rough += np.where(np.isnan(apart), 0.0, apart)
        elif name in _PLAIN:
            rough += columns[at] * _PLAIN[name]
    best = _best(rough, limit, lambda at: tie(int(places[at])))
    # In the order of FEATURES, whichever rows were made first: what two searches found is laid together.
    names = tuple(name for name in FEATURES if name in table.names)
    rows = [table.names.index(name) for name in names]
    return Likeliest(places[best], names, columns[:, best][rows].T, centre[rows], spread[rows], len(places))


def _statistics(columns: Floats) -> tuple[Floats, Floats]:
    """Mean and standard deviation of each row, what is NaN left out; zeros where nothing is left."""
    count = columns.shape[1]
    if not count:
        return np.zeros(len(columns)), np.zeros(len(columns))
    centre = columns.mean(axis=1)
    # One pass each; what is left of a constant by rounding is no spread.
    squares = np.einsum("ij,ij->i", columns, columns) / count
    spread = np.sqrt(np.maximum(squares - centre**2, 0.0))
    spread[spread < _ROUNDING * np.abs(centre)] = 0.0
    for at in np.flatnonzero(np.isnan(centre)):
        known = columns[at][~np.isnan(columns[at])]
        centre[at], spread[at] = (known.mean(), known.std()) if len(known) else (0.0, 0.0)
    return centre, spread


def _best(scores: Floats, limit: int, tie: Callable[[int], tuple[float, str]]) -> npt.NDArray[np.int64]:
    if len(scores) <= limit:
        return np.arange(len(scores))
    if limit <= 0:
        return np.zeros(0, dtype=np.int64)
    worst = np.partition(scores, len(scores) - limit)[len(scores) - limit]
    above = np.flatnonzero(scores > worst + _ALIKE)
    level = sorted(np.flatnonzero(np.abs(scores - worst) <= _ALIKE).tolist(), key=tie)
    return np.concatenate([above, np.asarray(level[: limit - len(above)], dtype=np.int64)])
