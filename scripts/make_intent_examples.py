"""Writes memory_extproc/recall/fitted/MODEL.examples.npz: the vectors of recall/examples.toml and of the
questions in recall/attribute_examples.toml; weights that tell the attributes of its statements, and the kinds of
the questions in scripts/examples/kinds.tsv, apart; and weights that tell whether a statement replaces an earlier
one, from scripts/examples/renewals.tsv.

    python scripts/make_intent_examples.py MODEL_DIRECTORY

A line of kinds.tsv is a question with its kind, or with the domain of the advice that it asks for; "none" marks all
others, and stands last among the labels. A line of renewals.tsv is "new" or "both" (both statements hold), the
question that they answer, the earlier and the later statement. All were written for this purpose;
tests/quality/questions.tsv and tests/quality/renewals.tsv have others by the same hands. The model is
all-MiniLM-L6-v2 (Apache-2.0). Vectors are in the order of the examples, in half precision.
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
RENEWALS = Path(__file__).parent / "examples" / "renewals.tsv"
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
    made["renewing"] = fit_renewals(model)
    packed: dict[str, npt.NDArray[Any]] = {name: vectors.astype(np.float16) for name, vectors in made.items()}
    out = OUT / VECTORS.format(model.fingerprint.partition("/")[0])
    np.savez_compressed(out, kind_labels=np.array(labels), **packed)


def fit_renewals(model: OnnxModel) -> npt.NDArray[np.float64]:
    """Fit the weights of the cosine of two statements and of the later one's vector, and a bias. All lines have
    pairs of one topic; half as many pairs of two topics are put together of them."""
    rows = [line.split("\t") for line in RENEWALS.read_text(encoding="utf-8").splitlines()]
    pairs = [(label == "new", older, newer) for label, _, older, newer in rows]
    pairs += [(False, older, pairs[at - _APART][2]) for at, (_, older, _) in enumerate(pairs) if at % 2]
    older, newer = (np.vstack([model.run([pair[side]], 2048) for pair in pairs]) for side in (1, 2))
    alike = (older * newer).sum(axis=1, keepdims=True)
    labels = np.asarray([int(new) for new, *_ in pairs])
    weights = fit_weights(np.hstack([alike * _SCALE, newer]), labels, l2=3.5e-4, balanced=False)
    found: npt.NDArray[np.float64] = weights[1] - weights[0]
    found[0] *= _SCALE
    return found


_APART = 9  # lines between the two statements of a pair of two topics
_SCALE = 4.0  # so that the penalty hardly holds the cosine's weight


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
