"""Writes memory_extproc/recall/fitted/all-MiniLM-L6-v2.examples.npz: the vectors of recall/examples.toml and of the
questions in recall/attribute_examples.toml, and weights that tell the attributes of its statements apart.

    python scripts/make_intent_examples.py MODEL_DIRECTORY

The model is all-MiniLM-L6-v2 (Apache-2.0). Vectors are in the order of the examples, in half precision.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from memory_extproc.inference.onnx import OnnxModel
from memory_extproc.model import Matrix
from memory_extproc.recall.examples import ASKED, EXAMPLES, TOLD, TOLD_LABELS, VECTORS

OUT = Path(__file__).parent.parent / "memory_extproc" / "recall" / "fitted" / VECTORS


def main() -> None:
    model = OnnxModel(Path(sys.argv[1]))
    sets = {"vectors": EXAMPLES, "told": TOLD, "asked": ASKED}
    made = {name: np.vstack([model.run([text], 2048) for _, text in examples]) for name, examples in sets.items()}
    made["weights"] = fit_weights(made.pop("told"), np.asarray([TOLD_LABELS.index(mask) for mask, _ in TOLD]))
    np.savez_compressed(OUT, **{name: vectors.astype(np.float16) for name, vectors in made.items()})


def fit_weights(vectors: Matrix, labels: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Fit a multinomial logistic regression by gradient descent with momentum: a row of weights and a bias for each
    label. All labels count alike, however many examples each has."""
    wanted = np.eye(int(labels.max()) + 1)[labels]
    share = (wanted / wanted.sum(axis=0)).sum(axis=1, keepdims=True) / wanted.shape[1]
    inputs = np.hstack([vectors, np.ones((len(vectors), 1))])
    weights = np.zeros((wanted.shape[1], inputs.shape[1]))
    step = np.zeros_like(weights)
    held = np.append(np.full(vectors.shape[1], _L2), 0.0)  # the bias is free
    for _ in range(_STEPS):
        odds = inputs @ weights.T
        likely = np.exp(odds - odds.max(axis=1, keepdims=True))
        likely /= likely.sum(axis=1, keepdims=True)
        step = _MOMENTUM * step - _RATE * (((likely - wanted) * share).T @ inputs + held * weights)
        weights = weights + step
    return weights


_L2, _RATE, _MOMENTUM, _STEPS = 1e-4, 5.0, 0.9, 1_500


if __name__ == "__main__":
    main()
