"""Reads the kind of a question, and the attributes of questions and memories, by likeness to examples.

Patterns know wordings; people use others. A logistic regression over the vector reads the kind of a question; of
what it is not sure, the nearest examples do. The vectors are made for the search in any case, so this costs a
product with some hundred vectors. Floors and margins were chosen on the dev half of tests/quality/intents, for the
embedding model that the packaged weights belong to; with another model nothing is read by examples.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from importlib.resources import files
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from memory_extproc.model import Matrix, Vector
from memory_extproc.recall.fusion import PACKAGED
from memory_extproc.recall.intent import LONGEST, Intent, IntentLexicon, QuestionKind, Reading
from memory_extproc.text.attributes import ATTRIBUTES

T = TypeVar("T")
# In `fitted`: arrays of shape (examples, dimension), by set of examples, and for statements and kinds of questions
# the weights of the labels, (labels, dimension and a bias). A label of "kinds" is a kind, a domain of advice or, as
# the last one, NO_KIND.
VECTORS = "{}.examples.npz"  # by model
NO_KIND = "none"
_MARGIN = 0.12  # of a cosine, above the examples that are no question for memory
# Least likeness. A subject in the question, which no example has, takes from its likeness.
_FLOORS = {
    QuestionKind.OVERVIEW: 0.42,
    QuestionKind.CONSTRAINT: 0.5,
    QuestionKind.PAST: 0.4,
    QuestionKind.SUBJECT: 0.4,
}


# Probabilities of an attribute: the least, and the least share of the likest attribute's.
_LEAST, _BEHIND = 0.25, 0.4
# Probabilities of a kind of question: the least, and the least to outvote a pattern that reads another kind.
_LIKELY, _SURE = 0.5, 0.7
_NAMES = frozenset(map(str, QuestionKind))
_OUTVOTING = frozenset({QuestionKind.SUBJECT, QuestionKind.LIST})
_OUTVOTED = frozenset({QuestionKind.CONSTRAINT, QuestionKind.INDIRECT, QuestionKind.HOPS, QuestionKind.PROCEDURE})
# The least likeness to an attribute, its margin above examples of none, and the most that it is behind the likest.
_ASKED = (0.5, 0.15, 0.05)


@dataclass(frozen=True, slots=True)
class Likeness:
    """The kind of the nearest examples; *domain* of a request for a recommendation, *attributes* of a question for
    a fact."""

    kind: QuestionKind
    domain: str = ""
    attributes: int = 0


class IntentExamples:
    """The examples with their packaged vectors, made by `scripts/make_intent_examples.py`.

    *applies*: whether the embedding model in use gives the vectors of *model*; nothing is read otherwise."""

    def __init__(self, applies: Callable[[], bool] = lambda: True, model: str = PACKAGED[0]) -> None:
        self._applies = applies
        self._by_kind, self._by_asked = _Labels(EXAMPLES), _Labels(ASKED)
        self._told = np.asarray(TOLD_LABELS)
        with (files(__package__) / "fitted" / VECTORS.format(model)).open("rb") as file:
            packed = np.load(file, allow_pickle=False)
            self._vectors: Matrix = packed["vectors"].astype(np.float32)
            self._weights: Matrix = packed["weights"].astype(np.float32)  # of labels by dimension, then a bias
            self._asked: Matrix = packed["asked"].astype(np.float32)
            self._kinds: list[str] = packed["kind_labels"].tolist()
            self._of_kind: Matrix = packed["kinds"].astype(np.float32)
            self._renewing: Vector = packed["renewing"].astype(np.float32)

    def read(self, asked: str, vector: Vector | None) -> Likeness | None:
        """The kind of the question *asked* with *vector*; None for no kind."""
        if vector is None or not self._reads(asked):
            return None
        label, likely = self._find_likeliest(vector)
        if likely >= _SURE and label == QuestionKind.LIST:
            return Likeness(QuestionKind.LIST, attributes=self._asks_for(vector))
        if likely >= _LIKELY and label != QuestionKind.LIST:
            return Likeness(QuestionKind(label)) if label in _NAMES else Likeness(QuestionKind.CONSTRAINT, label)
        if (likest := self._nearest(self._vectors @ vector)) is not None:
            return likest
        asks = self._asks_for(vector)
        return Likeness(QuestionKind.INDIRECT, attributes=asks) if asks else None

    def _asks_for(self, vector: Vector) -> int:
        """The attributes that a question with *vector* asks for, as a mask."""
        return int(_attributes_like(vector[np.newaxis] @ self._asked.T, self._by_asked, _ASKED)[0])

    def may_read(self, reading: Reading) -> bool:
        """Whether `reread` may change *reading*: no pattern matched, or one that also matches other kinds."""
        return not reading.intents or reading.intents[0].kind in _OUTVOTED

    def reread(
        self, reading: Reading, asked: str, vector: Vector | None, intents: IntentLexicon, today: date
    ) -> Reading:
        """*reading* of the question *asked*, or, where no pattern matched, the reading by examples. They also tell
        an overview, a subject and a list from a question for one fact ("summarise who I am, where I live, the lot",
        "all the birds I've spotted so far")."""
        if vector is None or not self._reads(asked):
            return reading
        label, likely = self._find_likeliest(vector)
        if label == QuestionKind.OVERVIEW and likely >= _SURE:
            return replace(reading, intents=(Intent(QuestionKind.OVERVIEW), *reading.intents))
        outvotes = label in _OUTVOTING and likely >= _SURE
        like = self.read(asked, vector) if outvotes or not reading.intents else None
        if like is None:
            return reading
        read = intents.read_as(asked, like.kind, like.domain, today, like.attributes)
        return replace(reading, intents=(*read.intents, *reading.intents))

    def _reads(self, asked: str) -> bool:
        return len(asked) <= LONGEST and self._applies()

    def _find_likeliest(self, vector: Vector) -> tuple[str, float]:
        """The likeliest kind of question and its probability."""
        odds = self._of_kind[:, :-1] @ vector + self._of_kind[:, -1]
        likely = np.exp(odds - odds.max())
        best = int(likely[:-1].argmax())  # the last is NO_KIND
        return self._kinds[best], float(likely[best] / likely.sum())

    def told_by(self, vectors: Matrix) -> npt.NDArray[np.int64]:
        """The attributes that memories with *vectors* tell, as masks, by a logistic over the vectors, fitted on the
        examples. Implements model.AttributeReader."""
        dimension = self._weights.shape[1] - 1
        if vectors.shape[1] != dimension or not self._applies():
            return np.zeros(len(vectors), dtype=np.int64)
        odds = vectors @ self._weights[:, :dimension].T + self._weights[:, dimension]
        likely = np.exp(odds - odds.max(axis=1, keepdims=True))
        likely /= likely.sum(axis=1, keepdims=True)
        of_some = likely[:, self._told != 0].max(axis=1, keepdims=True)
        masks: npt.NDArray[np.int64] = np.where(
            (likely >= _LEAST) & (likely >= _BEHIND * of_some), self._told, 0
        ).sum(axis=1)
        return masks

    def renewed_by(self, vectors: Matrix) -> Matrix:
        """The probabilities that the later statement (column) of a pair replaces the earlier (row): a logistic
        regression over the cosine of their *vectors* and the vector of the later."""
        if vectors.shape[1] != len(self._renewing) - 2 or not self._applies():
            return np.zeros((len(vectors), len(vectors)), dtype=np.float32)
        alike, says, bias = self._renewing[0], self._renewing[1:-1], self._renewing[-1]
        odds = alike * (vectors @ vectors.T) + (vectors @ says + bias)[np.newaxis]
        likely: Matrix = 1 / (1 + np.exp(-odds))
        return likely

    def _nearest(self, cosines: Vector) -> Likeness | None:
        means = self._by_kind.average_nearest(cosines[np.newaxis])[0]
        alike = dict(zip(self._by_kind.labels, means.tolist(), strict=True))
        none = alike.pop(None)
        best = max(alike, key=lambda label: alike[label])
        if best is None or alike[best] < _FLOORS[best.kind] or alike[best] < none + _MARGIN:
            return None
        return best


class _Labels(Generic[T]):
    """The labels of *examples*, each of at least two."""

    def __init__(self, examples: Sequence[tuple[T, str]]) -> None:
        self.labels = list(dict.fromkeys(label for label, _ in examples))
        group = np.asarray([self.labels.index(label) for label, _ in examples])
        self._columns = np.argsort(group, kind="stable")
        self._group = group[self._columns]
        self._starts = np.searchsorted(self._group, np.arange(len(self.labels)))

    def average_nearest(self, cosines: Matrix) -> Matrix:
        """The mean of the two highest *cosines* of each label: a column for each label, a row for each row."""
        cosines = cosines[:, self._columns]
        first = np.maximum.reduceat(cosines, self._starts, axis=1)
        highest = cosines == first[:, self._group]
        second = np.maximum.reduceat(np.where(highest, np.float32(-np.inf), cosines), self._starts, axis=1)
        alike = np.add.reduceat(highest, self._starts, axis=1, dtype=np.int64) > 1  # two share the highest
        mean: Matrix = (first + np.where(alike, first, second)) * np.float32(0.5)
        return mean


def _attributes_like(
    cosines: Matrix, examples: _Labels[int], bounds: tuple[float, float, float]
) -> npt.NDArray[np.int64]:
    """Masks of attributes by row of *cosines*, whose columns are *examples*."""
    known, alike = np.asarray(examples.labels), examples.average_nearest(cosines)
    floor, margin, behind = bounds
    told = known != 0
    least = np.maximum(np.maximum(floor, alike[:, ~told][:, 0] + margin), alike[:, told].max(axis=1) - behind)
    masks: npt.NDArray[np.int64] = np.where(alike >= least[:, np.newaxis], known, 0).sum(axis=1)
    return masks


def _read_examples(text: str) -> Iterator[tuple[Likeness | None, str]]:
    for name, section in tomllib.loads(text).items():
        if name == "none":
            yield from ((None, one) for one in section["examples"])
        elif name == QuestionKind.CONSTRAINT:
            for domain, under in section.items():
                yield from ((Likeness(QuestionKind.CONSTRAINT, domain), one) for one in under["examples"])
        else:
            yield from ((Likeness(QuestionKind(name)), one) for one in section["examples"])


def _read_attributes(key: str) -> tuple[tuple[int, str], ...]:
    sections = tomllib.loads((files(__package__) / "attribute_examples.toml").read_text(encoding="utf-8"))
    masks = {name: 0 if name == "none" else ATTRIBUTES.mask([name]) for name in sections}
    return tuple((masks[name], one) for name, section in sections.items() for one in section.get(key, ()))


EXAMPLES = tuple(_read_examples((files(__package__) / "examples.toml").read_text(encoding="utf-8")))
TOLD, ASKED = _read_attributes("told"), _read_attributes("asked")
TOLD_LABELS = tuple(dict.fromkeys(mask for mask, _ in TOLD))  # the rows of the fitted weights
