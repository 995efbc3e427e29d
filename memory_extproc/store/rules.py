"""What every memory store refuses, so that the fake refuses what Milvus would."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from memory_extproc.errors import GiveUpError
from memory_extproc.model import Embedded, Owner, Vector

# Milvus clients put keys into expressions unescaped, so an id is from an alphabet that needs no escaping.
_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}", re.ASCII)
_UNIT_TOLERANCE = 1e-2


def is_id(text: str) -> bool:
    """Whether *text* can be a memory's id: 1 to 64 of A-Z a-z 0-9 _ . : -"""
    return _ID.fullmatch(text) is not None


def check_vector(vector: Vector, dimension: int) -> None:
    """GiveUpError unless *vector* has *dimension* finite numbers and length 1. Milvus Lite would store a
    NaN, and a server stores a zero vector and never returns it."""
    if vector.shape != (dimension,):
        raise GiveUpError(f"a vector of shape {vector.shape} where the collection holds {dimension} numbers")
    with np.errstate(all="ignore"):
        length = float(np.sqrt(np.square(vector, dtype=np.float64).sum()))
    # A NaN or infinity anywhere makes the length one too, and no comparison with it is true.
    if not abs(length - 1.0) <= _UNIT_TOLERANCE:
        raise GiveUpError("a vector that is not of unit length")


def check_rows(owner: Owner, rows: Sequence[Embedded], dimension: int) -> None:
    """GiveUpError unless all of *rows* are *owner*'s, with an id and a vector that can be stored."""
    for row in rows:
        if row.memory.owner != owner:
            raise GiveUpError("a memory of another owner")
        if not is_id(row.memory.id):
            raise GiveUpError("a memory id outside the safe alphabet")
        check_vector(row.vector, dimension)
