"""What every embedder does alike to what it reads and what it returns."""

from __future__ import annotations

import numpy as np

from memory_extproc.model import Matrix

# Far below the length of any vector a model gives, far above where its square would vanish in float32.
_LEAST_LENGTH = 1e-6


def readable(text: str, longest: int) -> str:
    """The first *longest* characters as valid Unicode: lone surrogates become question marks."""
    beginning = text[:longest]
    return beginning if beginning.isascii() else beginning.encode("utf-8", "replace").decode("utf-8")


def of_unit_length(rows: Matrix) -> Matrix:
    """*rows* as float32 of length 1. A row without direction (no token, an overflow) becomes the first axis,
    so that arithmetic on it stays finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    lost = ~np.isfinite(lengths) | (lengths < _LEAST_LENGTH)
    if lost.any():
        rows[lost] = 0.0
        rows[lost, 0] = 1.0
        lengths[lost] = 1.0
    unit: Matrix = (rows / lengths[:, None]).astype(np.float32, copy=False)
    return unit
