"""Reads the kind of a question by its likeness to example questions, where no pattern of the lexicon matches it.

Patterns know wordings; people use others. The vector of the question is made for the search in any case, so this
costs a product with some hundred vectors. Floors and margins were chosen on the dev half of tests/quality/intents,
for the embedding model that the packaged weights belong to; with another model nothing is read by examples.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

import numpy as np

from memory_extproc.model import Matrix, Vector
from memory_extproc.recall.intent import LONGEST, Kind

VECTORS = "all-MiniLM-L6-v2.examples.npz"  # in `fitted`: an array of shape (examples, dimension)
_NEAREST = 2  # examples of a kind whose mean likeness counts
_MARGIN = 0.12  # of a cosine, above the examples that are no question for memory
# Least likeness. A subject in the question, which no example has, takes from its likeness.
_FLOORS = {Kind.OVERVIEW: 0.42, Kind.CONSTRAINT: 0.5, Kind.PAST: 0.4, Kind.SUBJECT: 0.4}


@dataclass(frozen=True, slots=True)
class Likeness:
    """The kind of the nearest examples; *domain* of a request for a recommendation."""

    kind: Kind
    domain: str = ""


class IntentExamples:
    """The examples with their packaged vectors, made by `scripts/make_intent_examples.py`."""

    def __init__(self) -> None:
        self._labels = [label for label, _ in EXAMPLES]
        with (files(__package__) / "fitted" / VECTORS).open("rb") as file:
            self._vectors: Matrix = np.load(file, allow_pickle=False)["vectors"].astype(np.float32)

    def read(self, asked: str, vector: Vector | None) -> Likeness | None:
        """The kind of the question *asked* with *vector*; None for no kind."""
        if vector is None or len(asked) > LONGEST:
            return None
        return self._nearest(self._vectors @ vector)

    def _nearest(self, cosines: Vector) -> Likeness | None:
        by_label: dict[Likeness | None, list[float]] = {}
        for label, cosine in zip(self._labels, cosines.tolist(), strict=True):
            by_label.setdefault(label, []).append(cosine)
        alike = {label: float(np.mean(sorted(values)[-_NEAREST:])) for label, values in by_label.items()}
        none = alike.pop(None)
        best = max(alike, key=lambda label: alike[label])
        if best is None or alike[best] < _FLOORS[best.kind] or alike[best] < none + _MARGIN:
            return None
        return best


def _read_examples(text: str) -> Iterator[tuple[Likeness | None, str]]:
    for name, section in tomllib.loads(text).items():
        if name == "none":
            yield from ((None, one) for one in section["examples"])
        elif name == Kind.CONSTRAINT:
            for domain, under in section.items():
                yield from ((Likeness(Kind.CONSTRAINT, domain), one) for one in under["examples"])
        else:
            yield from ((Likeness(Kind(name)), one) for one in section["examples"])


EXAMPLES = tuple(_read_examples((files(__package__) / "examples.toml").read_text(encoding="utf-8")))
