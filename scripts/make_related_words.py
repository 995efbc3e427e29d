"""Writes memory_extproc/text/related.npz: which English words are close in meaning, and how rare each is.

    python scripts/make_related_words.py MODEL_DIRECTORY

The words are those that all-MiniLM-L6-v2 (Apache-2.0) has as one piece in its vocabulary, which stands in the order
of their frequency; how close two are is the cosine of the vectors it gives to the bare words. The result is a
thesaurus that needs no model to read.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from memory_extproc.inference.onnx import OnnxModel
from memory_extproc.text.words import stem_key

OUT = Path(__file__).parent.parent / "memory_extproc" / "text" / "related.npz"
CLOSEST = 16  # related words kept of each
LEAST = 0.5  # cosine
SHORTEST = 2  # letters


def main() -> None:
    directory = Path(sys.argv[1])
    vocabulary = Tokenizer.from_file(str(directory / "tokenizer.json")).get_vocab()
    by_stem: dict[str, str] = {}
    for word, _ in sorted(vocabulary.items(), key=lambda entry: entry[1]):
        if word.isascii() and word.isalpha() and len(word) >= SHORTEST:
            by_stem.setdefault(stem_key(word, "en"), word)  # the most frequent form stands for all
    stems, words = list(by_stem), list(by_stem.values())
    vectors = OnnxModel(directory).run(words, 2048)
    starts = [0]
    others: list[int] = []
    closeness: list[int] = []
    for block in range(0, len(words), 512):
        for row, cosines in enumerate(vectors[block : block + 512] @ vectors.T):
            cosines[block + row] = -1.0
            best = np.argpartition(-cosines, CLOSEST)[:CLOSEST]
            best = best[np.argsort(-cosines[best], kind="stable")]
            kept = [at for at in best if cosines[at] >= LEAST]
            others.extend(int(at) for at in kept)
            closeness.extend(round(float(cosines[at]) * 255) for at in kept)
            starts.append(len(others))
    np.savez_compressed(
        OUT,
        stems=np.frombuffer("\n".join(stems).encode(), dtype=np.uint8),
        starts=np.asarray(starts, dtype=np.int32),
        others=np.asarray(others, dtype=np.uint16),
        closeness=np.asarray(closeness, dtype=np.uint8),
    )
    print(f"{OUT}: {len(stems)} words, {len(others)} pairs, {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
