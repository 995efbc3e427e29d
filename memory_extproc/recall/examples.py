"""Reads the kind of a question, and the attributes of questions and memories, by likeness to examples.

Patterns know wordings; people use others. The vectors are made for the search in any case, so this costs a product
with some hundred vectors. Floors and margins were chosen on the dev half of tests/quality/intents,
for the embedding model that the packaged weights belong to; with another model nothing is read by examples.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files

import numpy as np
import numpy.typing as npt

from memory_extproc.model import Matrix, Vector
from memory_extproc.recall.intent import LONGEST, Kind
from memory_extproc.text.attributes import ATTRIBUTES

VECTORS = "all-MiniLM-L6-v2.examples.npz"  # in `fitted`: arrays of shape (examples, dimension), by set of examples
_NEAREST = 2  # examples of a kind whose mean likeness counts
_MARGIN = 0.12  # of a cosine, above the examples that are no question for memory
# Least likeness. A subject in the question, which no example has, takes from its likeness.
_FLOORS = {Kind.OVERVIEW: 0.42, Kind.CONSTRAINT: 0.5, Kind.PAST: 0.4, Kind.SUBJECT: 0.4}


# The least likeness to an attribute, its margin above examples of none, and the most that it is behind the likest.
_TOLD = (0.4, 0.12, 0.08)
_OF_ASKING = 0.3  # more likeness for a memory that asks something
_ASKED = (0.5, 0.15, 0.05)


@dataclass(frozen=True, slots=True)
class Likeness:
    """The kind of the nearest examples; *domain* of a request for a recommendation, *attributes* of a question for
    a fact."""

    kind: Kind
    domain: str = ""
    attributes: int = 0


class IntentExamples:
    """The examples with their packaged vectors, made by `scripts/make_intent_examples.py`."""

    def __init__(self) -> None:
        self._labels = [label for label, _ in EXAMPLES]
        with (files(__package__) / "fitted" / VECTORS).open("rb") as file:
            packed = np.load(file, allow_pickle=False)
            self._vectors: Matrix = packed["vectors"].astype(np.float32)
            self._told: Matrix = packed["told"].astype(np.float32)
            self._asked: Matrix = packed["asked"].astype(np.float32)

    def read(self, asked: str, vector: Vector | None) -> Likeness | None:
        """The kind of the question *asked* with *vector*; None for no kind."""
        if vector is None or len(asked) > LONGEST:
            return None
        if (likest := self._nearest(self._vectors @ vector)) is not None:
            return likest
        asks = int(_attributes_like(vector[np.newaxis] @ self._asked.T, ASKED, _ASKED)[0])
        return Likeness(Kind.INDIRECT, attributes=asks) if asks else None

    def told_by(self, vectors: Matrix, asking: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        """The attributes that memories with *vectors* tell, as masks. Implements model.AttributeReader."""
        if vectors.shape[1] != self._told.shape[1]:
            return np.zeros(len(vectors), dtype=np.int64)
        return _attributes_like(vectors @ self._told.T - _OF_ASKING * asking[:, np.newaxis], TOLD, _TOLD)

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


def _attributes_like(
    cosines: Matrix, examples: Sequence[tuple[int, str]], bounds: tuple[float, float, float]
) -> npt.NDArray[np.int64]:
    """Masks of attributes by row of *cosines*, whose columns are *examples*."""
    bits = np.asarray([bit for bit, _ in examples], dtype=np.int64)
    known = np.unique(bits)  # 0, of no attribute, is the first
    alike = np.stack([np.sort(cosines[:, bits == bit], axis=1)[:, -_NEAREST:].mean(axis=1) for bit in known])
    floor, margin, behind = bounds
    least = np.maximum(np.maximum(floor, alike[0] + margin), alike[1:].max(axis=0) - behind)
    masks: npt.NDArray[np.int64] = np.where(alike[1:] >= least, known[1:, np.newaxis], 0).sum(axis=0)
    return masks


def _read_examples(text: str) -> Iterator[tuple[Likeness | None, str]]:
    for name, section in tomllib.loads(text).items():
        if name == "none":
            yield from ((None, one) for one in section["examples"])
        elif name == Kind.CONSTRAINT:
            for domain, under in section.items():
                yield from ((Likeness(Kind.CONSTRAINT, domain), one) for one in under["examples"])
        else:
            yield from ((Likeness(Kind(name)), one) for one in section["examples"])


def _read_attributes(key: str) -> tuple[tuple[int, str], ...]:
    sections = tomllib.loads((files(__package__) / "attribute_examples.toml").read_text(encoding="utf-8"))
    masks = {name: 0 if name == "none" else ATTRIBUTES.mask([name]) for name in sections}
    return tuple((masks[name], one) for name, section in sections.items() for one in section[key])


EXAMPLES = tuple(_read_examples((files(__package__) / "examples.toml").read_text(encoding="utf-8")))
TOLD, ASKED = _read_attributes("told"), _read_attributes("asked")
