"""Memories that lie close to one another: connected components under a cosine distance, found exactly. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from memory_extproc.model import Matrix

_BLOCK = 256  # rows compared with all others at once: 10 MB for 10,000
_ROUNDING = 1e-5  # what a float32 product of unit vectors is off by at most
_LENGTH = 1e-6  # what a unit vector's length is off by in float32: a vector is at no distance from itself


def components(vectors: Matrix, distance: float) -> list[list[int]]:
    """The rows of *vectors*, unit vectors, in groups of two or more: two rows are in one group if a chain of rows
    leads from one to the other whose neighbours are at most *distance* (1 - cosine) apart. Groups and rows in
    ascending order. Time grows with the square of the rows, memory with the rows."""
    count = len(vectors)
    label: npt.NDArray[np.int64] = np.arange(count)
    for start in range(0, count, _BLOCK):
        block = vectors[start : start + _BLOCK]
        # Each pair once: what lies before a block was compared with it already.
        near = _near(block, vectors[start:], 1 - distance - _LENGTH)
        for row in np.flatnonzero(near.sum(axis=1) > 1).tolist():
            found = label[start:][near[row]]
            if (found != found[0]).any():
                label[np.isin(label, found)] = found.min()
    return _groups(label)


def _near(block: Matrix, others: Matrix, least: float) -> npt.NDArray[np.bool_]:
    products = block @ others.T
    near: npt.NDArray[np.bool_] = products >= least + _ROUNDING
    # What single precision cannot tell is computed once more in double.
    unsure = np.argwhere(np.abs(products - least) < _ROUNDING)
    for start in range(0, len(unsure), _BLOCK * 16):
        rows, columns = unsure[start : start + _BLOCK * 16].T
        exact = np.einsum("ij,ij->i", block[rows].astype(np.float64), others[columns].astype(np.float64))
        near[rows, columns] = exact >= least
    return near


def _groups(label: npt.NDArray[np.int64]) -> list[list[int]]:
    order = np.argsort(label, kind="stable")
    edges = np.flatnonzero(np.diff(label[order])) + 1
    groups: Sequence[npt.NDArray[np.int64]] = np.split(order, edges)
    return [group.tolist() for group in groups if len(group) > 1]
