"""Writes memory_extproc/recall/fitted/all-MiniLM-L6-v2.examples.npz: the vectors of recall/examples.toml
and recall/attribute_examples.toml.

    python scripts/make_intent_examples.py MODEL_DIRECTORY

The model is all-MiniLM-L6-v2 (Apache-2.0). Vectors are in the order of the examples, in half precision.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from memory_extproc.inference.onnx import OnnxModel
from memory_extproc.recall.examples import ASKED, EXAMPLES, TOLD, VECTORS

OUT = Path(__file__).parent.parent / "memory_extproc" / "recall" / "fitted" / VECTORS


def main() -> None:
    model = OnnxModel(Path(sys.argv[1]))
    sets = {"vectors": EXAMPLES, "told": TOLD, "asked": ASKED}
    made = {name: np.vstack([model.run([text], 2048) for _, text in examples]) for name, examples in sets.items()}
    np.savez_compressed(OUT, **{name: vectors.astype(np.float16) for name, vectors in made.items()})


if __name__ == "__main__":
    main()
