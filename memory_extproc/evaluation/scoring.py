"""Figures of one ranking. Pure.

Positions count what the data set names (LoCoMo: turns), not memories: a memory that stands for n of them takes up
n positions, again when an earlier one stood for the same. It counts where its last position is, so a memory that
does not fit whole into the first k counts for nothing there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def positions(covers: Iterable[Sequence[str]]) -> dict[str, int]:
    """Id → the position, from 1, by which it was found first. What stands for nothing takes up one position."""
    found: dict[str, int] = {}
    used = 0
    for ids in covers:
        used += max(1, len(ids))
        for one in ids:
            found.setdefault(one, used)
    return found


def recall_at(k: int, found: dict[str, int], relevant: frozenset[str]) -> float:
    """The share of *relevant* within the first *k* positions, 0 to 1. *relevant* is not empty."""
    return sum(found.get(one, k + 1) <= k for one in relevant) / len(relevant)


def ndcg_at(k: int, found: dict[str, int], relevant: frozenset[str]) -> float:
    """Normalised discounted cumulative gain with gain 1 for what is relevant (Järvelin and Kekäläinen 2002):
    sum of 1 / log2(1 + position) over the best possible such sum; 0 to 1."""
    gained = sum(1.0 / math.log2(1 + found[one]) for one in relevant if found.get(one, k + 1) <= k)
    best = sum(1.0 / math.log2(1 + at) for at in range(1, min(k, len(relevant)) + 1))
    return gained / best


def reciprocal_rank(found: dict[str, int], relevant: frozenset[str]) -> float:
    """1 / the position of the first that is relevant; 0 when none was found."""
    return max((1.0 / found[one] for one in relevant if one in found), default=0.0)


def mean(values: Sequence[float]) -> float | None:
    """None of nothing, so that an empty group is not taken for a bad one."""
    return math.fsum(values) / len(values) if values else None


def quantile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that *share* of *values* do not exceed (nearest rank); None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
