"""Vectors of single words, packed: four bits a number, which changed no figure of recall beside the model's own 32.

What is matched is a sum over hundreds of numbers, so the roundings of single ones even out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from memory_extproc.model import Words

Singles = npt.NDArray[np.float32]

_MOST = 7  # of a number; kept with _ZERO added, so that it fits four bits without a sign
_ZERO = 8
_BITS = 4
_LOW = 0x0F
_LEAST = 1e-6


def pack(vectors: Singles) -> Words:
    """Of *vectors*, a row for each piece and at least one, of any length; all zeros stay so."""
    steps = np.maximum(np.abs(vectors).max(axis=1), _LEAST) / _MOST
    rounded = np.round(vectors / steps[:, None])
    # Of what is kept, not of what was given: a piece is as near to itself as can be.
    lengths = np.maximum(np.sqrt(np.einsum("ij,ij->i", rounded, rounded)), _LEAST)
    numbers = (rounded + _ZERO).astype(np.uint8)
    if numbers.shape[1] % 2:
        numbers = np.pad(numbers, ((0, 0), (0, 1)), constant_values=_ZERO)
    half = numbers.shape[1] // 2
    return Words(numbers[:, :half] | (numbers[:, half:] << _BITS), (1.0 / lengths).astype(np.float32))


def unpack(words: Words) -> Singles:
    """A row of unit length for each piece; of an odd dimension one zero more."""
    numbers = np.concatenate([words.packed & _LOW, words.packed >> _BITS], axis=1).astype(np.float32)
    found: Singles = (numbers - _ZERO) * words.scale[:, None]
    return found


def together(several: Sequence[Words]) -> Words:
    """All pieces of *several*, one after the other."""
    return Words(np.concatenate([one.packed for one in several]), np.concatenate([one.scale for one in several]))


def cosines(pieces: Words, asked: Words) -> Singles:
    """A row for each of *pieces*, a column for each piece of *asked*. The pieces are never unpacked as a whole."""
    there = unpack(asked).T
    half = len(there) // 2
    sums = (pieces.packed & _LOW).astype(np.float32) @ there[:half]
    sums += (pieces.packed >> _BITS).astype(np.float32) @ there[half:]
    sums -= _ZERO * there.sum(axis=0)
    found: Singles = sums * pieces.scale[:, None]
    return found
