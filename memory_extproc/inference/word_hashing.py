"""An embedder that needs no model: hashed bags of words. Recall then finds memories by their words alone."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from memory_extproc.inference.batching import of_unit_length
from memory_extproc.model import Matrix, Vector
from memory_extproc.text.words import stems

WORDS_ALONE = "words/"  # begins the fingerprint
_AXES_PER_WORD = 4  # few words then share many axes
_WINDOW = 256  # tokens, as the usual model has it: pieces of long messages are cut alike


class WordHashEmbedder:
    """Implements ports.EmbeddingModel: texts that share stemmed content words are near one another, texts that
    share none are close to orthogonal. The ranking takes its ranker of words, as for any model it does not know."""

    max_tokens = _WINDOW

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self.fingerprint = f"{WORDS_ALONE}{dimension}"

    async def embed(self, texts: Sequence[str]) -> Matrix:
        rows: Matrix = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            for word in sorted(stems(text)):
                self._add(row, word)
        return of_unit_length(rows)

    async def embed_query(self, text: str) -> Vector:
        vector: Vector = (await self.embed([text]))[0]
        vector.flags.writeable = False
        return vector

    def _add(self, row: Vector, word: str) -> None:
        seed = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=4 * _AXES_PER_WORD).digest()
        for at in range(0, len(seed), 4):
            number = int.from_bytes(seed[at : at + 4], "big")
            row[number % self.dimension] += 1.0 if number >> 31 else -1.0
