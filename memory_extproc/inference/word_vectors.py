"""The vectors of single words of texts that were embedded lately: a by-product of embedding them.

A sentence's vector says what it is about as a whole; a word that it has among many others shows only in its own.
Late interaction of such vectors: Khattab and Zaharia 2020, "ColBERT: Efficient and Effective Passage Search via
Contextualized Late Interaction over BERT".
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from threading import Lock

import numpy as np
import numpy.typing as npt

from memory_extproc.index.packing import pack
from memory_extproc.language.stemming import carries_meaning
from memory_extproc.model import Words

_PER_ENTRY = 500  # bytes beside the arrays
_Key = tuple[int, int]


class WordVectors:
    """At most *most_bytes*, by a hash of their text, so that no one's words are kept; the least recently used go
    first. Used from any thread.

    One for all owners: the vectors depend on the text alone, so they tell a caller nothing that the text does not.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._bytes = 0
        self._words: OrderedDict[_Key, Words] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._words)

    @property
    def size(self) -> int:
        """Bytes."""
        return self._bytes

    def find(self, text: str) -> Words | None:
        key = _key(text)
        with self._lock:
            found = self._words.get(key)
            if found is not None:
                self._words.move_to_end(key)
            return found

    def find_all(self, texts: Sequence[str]) -> list[Words | None]:
        """As `find` of each: a hundred memories are looked up for one question."""
        keys = [(hash(text), len(text)) for text in texts]  # as _key has it, without a call for each
        with self._lock:
            found = [self._words.get(key) for key in keys]
            for key, words in zip(keys, found, strict=True):
                if words is not None:
                    self._words.move_to_end(key)
        return found

    def keep(self, text: str, words: Words) -> None:
        key = _key(text)
        with self._lock:
            if (old := self._words.pop(key, None)) is not None:
                self._bytes -= old.size + _PER_ENTRY
            self._words[key] = words
            self._bytes += words.size + _PER_ENTRY
            while self._bytes > self._most:
                _, gone = self._words.popitem(last=False)
                self._bytes -= gone.size + _PER_ENTRY


def meaningful(vocabulary: Mapping[str, int]) -> npt.NDArray[np.bool_]:
    """By token id: whether the piece carries meaning. Marks of the model ("[CLS]"), punctuation and function words
    do not; the end of a word ("##ing") does, for it says what became of its beginning."""
    found = np.zeros(max(vocabulary.values(), default=-1) + 1, dtype=bool)
    for piece, at in vocabulary.items():
        marks = piece.startswith(("[", "<")) and piece.endswith(("]", ">"))
        found[at] = not marks and (
            piece.startswith("##") or (any(map(str.isalnum, piece)) and carries_meaning(piece.lower()))
        )
    return found


def words_of(states: npt.NDArray[np.float32], kept: npt.NDArray[np.bool_]) -> Words:
    """Of the states that a model gave to the pieces of a text, those *kept*; all of them where that is none."""
    chosen = states[kept] if kept.any() else states
    return pack(chosen)


def _key(text: str) -> _Key:
    # Python's own hash of 64 bits, keyed anew for every process, is computed once for a text that is held: a
    # hundred memories are looked up for one question. Two texts of one hash among some thousand are no event to
    # expect.
    return hash(text), len(text)
