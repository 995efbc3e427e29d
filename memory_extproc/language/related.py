"""English words that are close in meaning, and how rare a word is; read from a file that a script made.

`scripts/make_related_words.py` says how. Only words of everyday frequency are in it: a name or a number is related
to nothing but itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

import numpy as np
import numpy.typing as npt

_FULL = 255.0  # the closeness 1.0 in the file


@dataclass(frozen=True, slots=True)
class _Thesaurus:
    stems: tuple[str, ...]  # most frequent first
    at: dict[str, int]
    starts: npt.NDArray[np.int32]
    others: npt.NDArray[np.uint16]
    closeness: npt.NDArray[np.uint8]


@lru_cache(maxsize=1)
def _thesaurus() -> _Thesaurus:
    with (files(__package__) / "related.npz").open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        stems = tuple(arrays["stems"].tobytes().decode("ascii").split("\n"))
        at = {stem: place for place, stem in enumerate(stems)}
        return _Thesaurus(stems, at, arrays["starts"], arrays["others"], arrays["closeness"])


@lru_cache(maxsize=4096)
def related(stem: str) -> tuple[tuple[str, float], ...]:
    """Stems close in meaning to *stem*, closest first, each with its closeness in [0.5, 1]. English."""
    known = _thesaurus()
    place = known.at.get(stem)
    if place is None:
        return ()
    span = slice(int(known.starts[place]), int(known.starts[place + 1]))
    return tuple(
        (known.stems[other], close / _FULL)
        for other, close in zip(known.others[span].tolist(), known.closeness[span].tolist(), strict=True)
    )


def rarity(stem: str) -> float:
    """In [0, 1]: near 0 for the most frequent words of English, 1 for a word that is not among the everyday
    ones (a name, a number, a word of another language)."""
    known = _thesaurus()
    place = known.at.get(stem)
    return 1.0 if place is None else math.log1p(place) / math.log1p(len(known.stems))
