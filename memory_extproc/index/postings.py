"""Which memories a term stands in, and how often: lists that only grow, until they are made anew."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

_PER_TERM = 250  # bytes of an entry of the dictionary with its two arrays
_PER_POSTING = 8


class Postings:
    """Places are numbers that the caller gives out, each once."""

    def __init__(self) -> None:
        self._places: dict[str, array[int]] = {}
        self._counts: dict[str, array[int]] = {}
        self._alive: Counter[str] = Counter()  # memories that a term stands in, those taken out left out
        self._postings = 0

    @property
    def size(self) -> int:
        """Bytes."""
        return _PER_TERM * len(self._places) + _PER_POSTING * self._postings

    def add(self, place: int, counts: Mapping[str, int]) -> None:
        for term, count in counts.items():
            if term not in self._places:
                self._places[term], self._counts[term] = array("i"), array("H")
            self._places[term].append(place)
            self._counts[term].append(min(count, 65_535))
            self._alive[term] += 1
        self._postings += len(counts)

    def drop(self, counts: Mapping[str, int]) -> None:
        """Of a memory that was added; its place stays in the lists and is the caller's to leave out."""
        for term in counts:
            self._alive[term] -= 1

    def within(self, term: str) -> int:
        """How many memories *term* stands in."""
        return self._alive.get(term, 0)

    def of(self, term: str) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint16]] | None:
        """Places and counts, also of what was taken out since; None for an unknown term. Copies: a view would
        keep the lists from growing."""
        places = self._places.get(term)
        if places is None:
            return None
        return np.array(places, dtype=np.int32), np.array(self._counts[term], dtype=np.uint16)
