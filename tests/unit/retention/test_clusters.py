"""Memories close to one another are found exactly, chains included."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_extproc.model import Matrix
from memory_extproc.retention.rules import components


def unit(rows: np.ndarray) -> Matrix:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float32)


def at(*degrees: float) -> Matrix:
    angles = np.radians(degrees)
    return unit(np.stack([np.cos(angles), np.sin(angles)], axis=1))


def one_by_one(vectors: Matrix, distance: float) -> list[list[int]]:
    """The same by comparing every pair and walking."""
    exact = vectors.astype(np.float64)
    near = exact @ exact.T >= 1 - distance - 1e-6
    left, found = set(range(len(vectors))), []
    while left:
        group, waiting = set(), [min(left)]
        while waiting:
            row = waiting.pop()
            if row not in group:
                group.add(row)
                waiting += np.flatnonzero(near[row]).tolist()
        left -= group
        if len(group) > 1:
            found.append(sorted(group))
    return sorted(found)


def test_a_chain_of_near_ones_is_one_group_however_far_its_ends_lie_apart() -> None:
    assert components(at(0, 20, 40, 60, 150, 155, 300), 0.08) == [[0, 1, 2, 3], [4, 5]]


def test_nothing_and_nobody_near() -> None:
    assert components(np.zeros((0, 2), dtype=np.float32), 0.08) == []
    assert components(at(0, 90, 180), 0.08) == []


def test_all_the_same_are_one_group() -> None:
    assert components(np.repeat(at(33), 1000, axis=0), 0.0) == [list(range(1000))]


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 700), st.sampled_from([0.0, 0.02, 0.08, 0.3]))
def test_groups_are_those_of_comparing_every_pair(seed: int, count: int, distance: float) -> None:
    chance = np.random.default_rng(seed)
    centres = chance.normal(size=(1 + count // 7, 6))
    rows = centres[chance.integers(0, len(centres), count)] + chance.normal(scale=0.12, size=(count, 6))
    vectors = unit(rows)
    vectors[chance.integers(0, count, count // 5)] = vectors[0]
    assert sorted(components(vectors, distance)) == one_by_one(vectors, distance)
