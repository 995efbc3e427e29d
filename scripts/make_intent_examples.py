"""Writes memory_extproc/recall/fitted/MODEL.examples.npz: the vectors of recall/examples.toml and of the
questions in recall/attribute_examples.toml, and weights that tell the attributes of its statements, and the kinds
of the questions in scripts/examples/kinds.tsv, apart.

    python scripts/make_intent_examples.py MODEL_DIRECTORY

A line of kinds.tsv is a question with its kind, or with the domain of the advice that it asks for; "none" marks all
others, and stands last among the labels. They were written for this purpose; tests/quality/questions.tsv has others
by the same hands. The model is all-MiniLM-L6-v2 (Apache-2.0). Vectors are in the order of the examples, in half
precision.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from memory_extproc.inference.onnx import OnnxModel
from memory_extproc.model import Matrix
from memory_extproc.recall.examples import ASKED, EXAMPLES, NO_KIND, TOLD, TOLD_LABELS, VECTORS

KINDS = Path(__file__).parent / "examples" / "kinds.tsv"
OUT = Path(__file__).parent.parent / "memory_extproc" / "recall" / "fitted"


def main() -> None:
    model = OnnxModel(Path(sys.argv[1]))
    sets = {"vectors": EXAMPLES, "told": TOLD, "asked": ASKED}
    made = {name: np.vstack([model.run([text], 2048) for _, text in examples]) for name, examples in sets.items()}
    made["weights"] = fit_weights(made.pop("told"), np.asarray([TOLD_LABELS.index(mask) for mask, _ in TOLD]))
    kinds = [line.split("\t") for line in KINDS.read_text(encoding="utf-8").splitlines()]
    labels = [*sorted({label for label, _ in kinds} - {NO_KIND}), NO_KIND]
    vectors = np.vstack([model.run([text], 2048) for _, text in kinds])
    made["kinds"] = fit_weights(
        vectors, np.asarray([labels.index(label) for label, _ in kinds]), l2=3e-5, balanced=False
    )
    packed: dict[str, npt.NDArray[Any]] = {name: vectors.astype(np.float16) for name, vectors in made.items()}
    out = OUT / VECTORS.format(model.fingerprint.partition("/")[0])
    np.savez_compressed(out, kind_labels=np.array(labels), **packed)


def fit_weights(
    vectors: Matrix, labels: npt.NDArray[np.int64], *, l2: float = 1e-4, balanced: bool = True
) -> npt.NDArray[np.float64]:
    """Fit a multinomial logistic regression by gradient descent with momentum: a row of weights and a bias for each
    label. *balanced*: all labels count alike, however many examples each has; *l2*: the penalty."""
    wanted = np.eye(int(labels.max()) + 1)[labels]
    counts = wanted.sum(axis=0) * wanted.shape[1] if balanced else np.full(wanted.shape[1], len(wanted))
    share = (wanted / counts).sum(axis=1, keepdims=True)
    inputs = np.hstack([vectors, np.ones((len(vectors), 1))])
    weights = np.zeros((wanted.shape[1], inputs.shape[1]))
    step = np.zeros_like(weights)
    held = np.append(np.full(vectors.shape[1], l2), 0.0)  # the bias is free
    for _ in range(_STEPS):
        odds = inputs @ weights.T
        likely = np.exp(odds - odds.max(axis=1, keepdims=True))
        likely /= likely.sum(axis=1, keepdims=True)
        step = _MOMENTUM * step - _RATE * (((likely - wanted) * share).T @ inputs + held * weights)
        weights = weights + step
    return weights


_RATE, _MOMENTUM, _STEPS = 5.0, 0.9, 1_500


if __name__ == "__main__":
    main()
