"""Fusion of features into a score: a weighted sum, each feature relative to the owner's other memories. The fitted
weights, and the calibration from a score to a relevance.

A file of weights belongs to the embedding models it names. The ranker of words needs no vectors and serves all
models.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from functools import cache
from heapq import heapify, heappop, heappush
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt

from memory_extproc.errors import PermanentError
from memory_extproc.index.features import (
    ANOTHER,
    CLOSELY,
    CLOSELY_BEFORE,
    FEATURES,
    FOREIGN,
    READ_BESIDES,
    READ_CLOSELY,
    STANDS_IN,
)
from memory_extproc.model import Candidate, Candidates, Memory, Rating, Source
from memory_extproc.recall.intent import QuestionKind
from memory_extproc.recall.model_match import FITTED, UNMEASURED, Calibration, ModelMatch
from memory_extproc.text.dates import days_asked_for
from memory_extproc.text.words import fold

VERSION = 1
PACKAGED = ("all-MiniLM-L6-v2", "memory-minilm")  # models with a fit of their own in `fitted`; the usual one first


class WeightsError(PermanentError):
    """A file of weights that is none, or of another embedding model or version."""


class Feature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """*weight* is for a standard deviation. *usual* and *usual_spread*: mean and deviation of an unknown store.
    *own_scale*: standardised by these alone, because a yes or no has no useful deviation."""

    weight: float
    usual: float
    usual_spread: Annotated[float, msgspec.Meta(gt=0)]
    own_scale: bool = False


class Worth(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Logistic: the probability that any candidate helps, from the values of `measures`."""

    bias: float
    weights: Mapping[str, float]


class Relevance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The loss of a memory's relevance against the worth of the question: *slope* for each point of soundness below
    *enough*. *weights*: the contributions of a memory's own features to its soundness."""

    slope: float
    enough: float
    weights: Mapping[str, float]


class Ranker(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    features: Mapping[str, Feature]
    worth: Worth
    relevance: Relevance


class Weights(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    embedding_models: tuple[str, ...]  # fingerprints
    fitted_on: str  # in words, for operators with other data
    hybrid: Ranker
    lexical: Ranker  # without vectors
    close: Ranker | None = None  # where the candidates were read word by word
    # The same among fewer memories than `fusion.FEW`, where there are such weights.
    close_few: Ranker | None = None
    lexical_few: Ranker | None = None
    hybrid_few: Ranker | None = None
    # The same where the words of the question were projected before they were compared.
    projected_few: Ranker | None = None
    # Log-odds for the worth of a question of each kind among many memories: a block for a kind with lookups of its
    # own needs the search less, and its counterexamples look more alike.
    kinds: Mapping[str, float] = {}


def read_weights(path: Path, fingerprint: str) -> Weights:
    """The weights in *path*; WeightsError when there are none, or not for the embedding model *fingerprint*."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error.strerror}") from error
    weights = parse_weights(raw, str(path))
    if fingerprint not in weights.embedding_models:
        raise WeightsError(
            f"{path}: fitted for {', '.join(weights.embedding_models)}, not for the embedding model {fingerprint}; "
            "run `memory-extproc eval tune` with this model"
        )
    return weights


def packaged_weights(fingerprint: str = "") -> Weights:
    """The weights that come with the product: those of the embedding model *fingerprint*, or of the usual one."""
    return _read_packaged(packaged_name(fingerprint))


def packaged_name(fingerprint: str) -> str:
    """Whose packaged fit serves the embedding model *fingerprint*: its own, or that of the usual model."""
    name = fingerprint.partition("/")[0]
    return name if name in PACKAGED and fingerprint in _read_packaged(name).embedding_models else PACKAGED[0]


@cache
def _read_packaged(name: str) -> Weights:
    place = files(__package__) / "fitted" / f"{name}.json"
    return parse_weights(place.read_bytes(), place.name)


def parse_weights(raw: bytes, name: str) -> Weights:
    try:
        weights = msgspec.json.decode(raw, type=Weights)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WeightsError(f"{name}: is no file of weights: {error}") from error
    if weights.version != VERSION:
        raise WeightsError(f"{name}: version {weights.version}, and this program reads version {VERSION}")
    closely = (*FEATURES, *READ_CLOSELY, *READ_BESIDES)
    known = {"hybrid": FEATURES, "lexical": FEATURES, "close": closely}
    known |= {f"{kind}_few": features for kind, features in known.items()} | {"projected_few": closely}
    for kind, features in known.items():
        ranker: Ranker | None = getattr(weights, kind)
        if ranker is None:
            continue
        if unknown := sorted((ranker.features.keys() | ranker.relevance.weights.keys()) - set(features)):
            raise WeightsError(f"{name}: there is no feature {unknown[0]!r}")
        if unknown := sorted(ranker.worth.weights.keys() - set(MEASURES)):
            raise WeightsError(f"{name}: there is no measure {unknown[0]!r}")
    if unknown := sorted(weights.kinds.keys() - set(QuestionKind)):
        raise WeightsError(f"{name}: there is no kind of question {unknown[0]!r}")
    return weights


# Inputs of a ranker's worth; `measures` computes them from the candidates of a question.
RAW = (
    "dense",
    "covered",
    "covered_around",
    "near",
    "near_around",
    "only_subject",
    CLOSELY,
    CLOSELY_BEFORE,
    ANOTHER,
)
# Distances from the owner's other memories for the same question. The absolute values do not count: in a store of
# pasted logs they are large, and would outweigh the single line that answers.
ABOVE = ("dense", "covered", "near", CLOSELY)
SIZE = "size"  # the logarithm of the number of memories: of many, the best is better by chance alone
LENGTH = "length"  # of a memory, in the logarithm of its terms: long answers have something of any question
ASKED = "asked"  # the logarithm of the question's terms
PRODUCTS = ((LENGTH, "most_dense"), (LENGTH, "most_covered"), (ASKED, "most_covered"), (ASKED, "known"))
# These differ for questions in other languages than English: any two texts have more in common there.
IN_FOREIGN = ("most_dense", "most_closely", "best_closely", "known_near", "best_score")
OUTLYING = ("dense", "dense_around", "bm25", "bm25_piece", "covered", "bm25_around", "near", "near_around", CLOSELY)
WHOLE = ("known", "known_near")
MEASURES = (
    *(f"{kind}_{name}" for name in RAW for kind in ("most", "best", "first")),
    *(f"outlying_{name}" for name in OUTLYING),
    *WHOLE,
    "best_score",
    *(f"{kind}_{name}" for name in ABOVE for kind in ("above", "best_above")),
    SIZE,
    LENGTH,
    ASKED,
    *(f"{one}_{other}" for one, other in PRODUCTS),
    FOREIGN,
    *(f"foreign_{name}" for name in IN_FOREIGN),
)


# --- calibration -------------------------------------------------------------------------------------
# From scores to relevance in [0, 1]: whether any memory is worth injecting, and then, which memories.
#
# A gate for the whole question loses far fewer helpful memories than a threshold for each memory by itself would.

CAUTION = 0.4  # log-odds
SUREST = 3.0  # log-odds; more certainty of a question does not help memories that lack much
_FIRST = 3  # candidates looked at beside the best
# Similarity of a question and an unrelated memory, in English and in other languages. With three memories, the
# owner's own mean says little; with a single memory, nothing.
_USUAL = {"dense": (0.07, 0.35), "covered": (0.02, 0.02), "near": (0.02, 0.02), CLOSELY: (0.12, 0.3)}
# Its largest value: where all memories of an owner are about the question, all of them are near.
_MOST_USUAL = {"dense": (0.25, 0.6), "covered": (0.15, 0.15), "near": (0.15, 0.15), CLOSELY: (0.3, 0.5)}
_IMAGINED = 3.0  # memories of the usual kind that are taken to stand beside the owner's


_OF_RAW = {name: (f"most_{name}", f"best_{name}", f"first_{name}") for name in RAW}


def measures(found: Candidates, standardised: Mapping[str, Floats], scores: Floats) -> dict[str, float]:
    """Inputs of the gate, from the candidates' features and scores. All zero without candidates."""
    if not len(scores):
        return dict.fromkeys(MEASURES, 0.0)
    first = np.argsort(-scores, kind="stable")[:_FIRST]
    place = {name: at for at, name in enumerate(found.names)}
    measured: dict[str, float] = dict.fromkeys(MEASURES, 0.0)
    raw = [name for name in RAW if name in place]
    values = _raw(found, raw, place)
    most, best, mean = values.max(axis=0), values[first[0]], values[first].mean(axis=0)
    for name, *three in zip(raw, most.tolist(), best.tolist(), mean.tolist(), strict=True):
        measured.update(zip(_OF_RAW[name], three, strict=True))
    for name in OUTLYING:
        if name in standardised:
            measured[f"outlying_{name}"] = float(standardised[name].max())
    for name in WHOLE:
        measured[name] = float(found.features[0, place[name]])
    measured["best_score"] = float(scores[first[0]])
    measured[SIZE] = math.log1p(found.searched)
    measured[LENGTH] = float(zeros_where_unknown(found.centre[place["length"]])) if "length" in place else 0.0
    measured[ASKED] = float(found.features[0, place["asked_terms"]]) if "asked_terms" in place else 0.0
    measured.update((f"{one}_{other}", measured[one] * measured[other]) for one, other in PRODUCTS)
    foreign = FOREIGN in place and bool(found.features[0, place[FOREIGN]])
    for name in ABOVE:
        if name in place:
            count = len(found.memories) if name in READ_CLOSELY else found.searched
            centre = float(zeros_where_unknown(found.centre[place[name]]))
            usual = _usual(centre, measured[f"most_{name}"], count, _USUAL[name][foreign])
            usual = min(usual, _MOST_USUAL[name][foreign])
            measured[f"above_{name}"] = measured[f"most_{name}"] - usual
            measured[f"best_above_{name}"] = measured[f"best_{name}"] - usual
    if foreign:
        measured[FOREIGN] = 1.0
        measured.update((f"foreign_{name}", measured[name]) for name in IN_FOREIGN)
    return measured


def _usual(mean: float, most: float, count: int, imagined: float) -> float:
    """The mean over an owner's memories without the largest value *most*; *mean* is over all *count*."""
    return (count * mean - most + _IMAGINED * imagined) / (count - 1 + _IMAGINED)


def _raw(found: Candidates, names: Sequence[str], place: Mapping[str, int]) -> Floats:
    """The columns of *names*. A closely read memory without a session has the match of its own words in place of
    its surroundings, so that a store of notes does not look like a store without matches."""
    values = found.features[:, [place[name] for name in names]]
    for at, name in enumerate(names):
        if name in READ_CLOSELY:
            values[:, at] = np.where(np.isnan(values[:, at]), found.features[:, place[CLOSELY]], values[:, at])
    return zeros_where_unknown(values)


def worth_of(worth: Worth, measured: Mapping[str, float]) -> float:
    """In (0, 1)."""
    return _logistic(worth.bias + sum(weight * measured[name] for name, weight in worth.weights.items()))


def relevances(relevance: Relevance, worth: float, found: Candidates, scores: Floats) -> Floats:
    """The relevance of each candidate in [0, 1]: the worth of the question, less the missing soundness."""
    if not len(scores):
        return scores
    lacks = np.maximum(0.0, relevance.enough - soundness(relevance.weights, found, scores)) * relevance.slope
    likely: Floats = 1.0 / (1.0 + np.exp(np.minimum(lacks - odds_of(worth), 50.0)))
    return likely


def shift_odds(worth: float, by: float) -> float:
    """*worth* with its log-odds moved by *by*."""
    return _logistic(_log_odds(worth) + by)


def mean_odds(worth: float, other: float) -> float:
    """The probability between two, by their mean log-odds, less a margin for an unknown model."""
    return _logistic((_log_odds(worth) + _log_odds(other)) / 2 - CAUTION)


def _log_odds(worth: float) -> float:
    return math.log(max(worth, 1e-9) / max(1.0 - worth, 1e-9))


def odds_of(worth: float) -> float:
    """Log-odds of a probability, SUREST at most."""
    return min(SUREST, _log_odds(worth))


def soundness(weights: Mapping[str, float], found: Candidates, scores: Floats) -> Floats:
    """Points of score behind the best candidate (at most 0), plus the worth of a candidate's own features in the
    same points: in a small store the best candidate is no yardstick for the others."""
    total: Floats = scores - scores.max()
    for name, weight in weights.items():
        if name in found.names:
            total = total + weight * zeros_where_unknown(found.features[:, found.names.index(name)])
    return total


def zeros_where_unknown(values: Floats) -> Floats:
    """*values* with zeros where nothing is known."""
    return np.where(np.isnan(values), 0.0, values)


def _logistic(value: float) -> float:
    return 1.0 / (1.0 + math.exp(-max(-50.0, min(50.0, value))))


Floats = npt.NDArray[np.float64]

# Imagined memories of the usual kind beside the owner's own in means and deviations: with three memories the own
# statistics mean nothing, with a thousand the imagined memories mean nothing.
IMAGINED = 10.0
STAND_IN_SHARE = 0.7  # of the feature that stands in for a feature over missing surroundings
# Memories of an owner. Among fewer, a word has a single meaning and few surroundings; among more, the surroundings
# of a message tell it from other messages on the same subject.
FEW = 200
FEWEST = 20  # memories of an owner, for the weights of many
UNFITTED_WEIGHT = 0.4
UNFITTED_SPREAD = 0.02  # of cosines; smaller differences do not count
# Points of score. Without, summaries cost 0.06 of the precision on the everyday set; with them a third of that.
SUMMARY_LOSES = 2.0
SHORT_MESSAGES = 3.6  # mean of the logarithm of their terms: small talk has 2.6, chats with an assistant 4 to 6
FARTHEST = 6.0  # standard deviations; beyond, a feature says no more


class NamedRow(Mapping[str, float]):
    """A row of a table by the names of its columns, without NaN. A request makes a hundred and reads few."""

    __slots__ = ("_at", "_row", "_table")

    def __init__(self, at: Mapping[str, int], table: Floats, row: int) -> None:
        self._at, self._table, self._row = at, table, row

    def __getitem__(self, name: str) -> float:
        value = float(self._table[self._row, self._at[name]])
        if math.isnan(value):
            raise KeyError(name)
        return value

    def __iter__(self) -> Iterator[str]:
        return (name for name, at in self._at.items() if not math.isnan(self._table[self._row, at]))

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass(frozen=True, slots=True)
class Fused:
    """*worth*: the probability that any candidate helps. Best first, in the order of `diversify_sessions`."""

    worth: float
    candidates: tuple[Candidate, ...]


class Fusion:
    """Weighs candidates with fitted weights. Cosines of another embedding model are put on the scale of the fitted
    model after a measurement; until then words alone decide, and vectors only find candidates."""

    def __init__(self, weights: Weights, fingerprint: str) -> None:
        self._weights = weights
        self._match = FITTED if fingerprint in weights.embedding_models else UNMEASURED

    def adopt(self, match: ModelMatch) -> None:
        """Use the measurement *match* of the embedding model from now on."""
        self._match = match

    @property
    def fitted(self) -> bool:
        """Whether the weights belong to the embedding model in use."""
        return self._match.calibration is Calibration.FITTED

    @property
    def calibration(self) -> Calibration:
        return self._match.calibration

    @property
    def reads_closely(self) -> bool:
        """Whether there are weights for candidates that were read word by word."""
        return self.fitted and self._weights.close is not None

    @property
    def projects(self) -> bool:
        """Whether there are weights for questions whose words were projected."""
        return self.reads_closely and self._weights.projected_few is not None

    def _ranker(self, found: Candidates) -> Ranker:
        """The ranker for the known features of the candidates: words alone, vectors, or words read closely. Small
        stores have rankers of their own."""
        weights, few = self._weights, found.searched < FEW
        if "dense" not in found.names or self.calibration is Calibration.WORDS:
            return self._ranker_of_words(found)
        if CLOSELY in found.names:
            if found.projected and weights.projected_few is not None:
                return weights.projected_few
            if few and weights.close_few is not None:
                return weights.close_few
            # The weights for many memories were fitted on no store where words distinguish so few.
            if weights.close is not None and found.searched >= FEWEST:
                return weights.close
        return weights.hybrid_few if few and weights.hybrid_few is not None else weights.hybrid

    def _ranker_of_words(self, found: Candidates) -> Ranker:
        weights = self._weights
        few = found.searched < FEW and weights.lexical_few is not None
        return weights.lexical_few if few and weights.lexical_few is not None else weights.lexical

    def suits_reading(self, found: Candidates) -> bool:
        """Whether late interaction helps in the store of *found*: a small store, or short messages. In chats with
        long answers its weights put less evidence first than the weights without it."""
        if found.searched < FEW or "length" not in found.names:
            return True
        return float(found.centre[found.names.index("length")]) <= SHORT_MESSAGES

    def likeliest(self, found: Candidates, count: int) -> Candidates:
        """The *count* of *found* with the highest scores before late interaction; all in a small store, as its
        weights were fitted."""
        return found if found.searched < FEW else likeliest(self._ranker(found).features, found, count)

    def fuse(self, found: Candidates, lost: Floats, kind: QuestionKind | None = None) -> Fused:
        """*lost*: points of score that each memory loses to its age. *kind*: of the question, for the gate. Equal
        scores: newer first, then by id.
        After the first few, other places of conversations go ahead (`diversify_sessions`), where words were
        read closely."""
        raw, scale = found, self._match.scale
        if scale is not None:
            found = scale.apply(found)
        ranker = self._ranker(found)
        standardised = standardise(ranker.features, found)
        if scale is not None:
            standardised = {name: row * scale.weight(name) for name, row in standardised.items()}
        scores = sum_features(ranker.features, standardised, len(found.memories))
        summaries = np.array([memory.source is Source.SUMMARY for memory in found.memories], dtype=bool)
        scores = scores - SUMMARY_LOSES * summaries
        worth = worth_of(ranker.worth, measures(*_speaking(found, summaries, standardised, scores)))
        if scale is not None and "dense" in found.names:
            words = self._ranker_of_words(found)
            rows = standardise(words.features, found)
            ranked = sum_features(words.features, rows, len(found.memories)) - SUMMARY_LOSES * summaries
            worth = mean_odds(worth, worth_of(words.worth, measures(*_speaking(found, summaries, rows, ranked))))
        if kind is not None and found.searched >= FEW:
            worth = shift_odds(worth, self._weights.kinds.get(kind, 0.0))
        if "dense" in found.names and self.calibration is Calibration.WORDS:
            scores = scores + score_unfitted(found)
        scores = scores - lost
        relevant = relevances(ranker.relevance, worth, found, scores)
        order = _best_first(scores, found.memories)
        if CLOSELY in found.names:
            order = diversify_sessions(order, scores, found.memories)
        at_name = {name: at for at, name in enumerate(found.names)}
        points, likely = scores.tolist(), relevant.tolist()
        return Fused(
            worth,
            tuple(
                Candidate(found.memories[at], points[at], likely[at], NamedRow(at_name, raw.features, at))
                for at in order
            ),
        )


def _speaking(
    found: Candidates, summaries: npt.NDArray[np.bool_], standardised: Mapping[str, Floats], scores: Floats
) -> tuple[Candidates, Mapping[str, Floats], Floats]:
    """The candidates that decide whether anything helps: all but *summaries*, unless a summary stands out from all
    other candidates. Summaries have many words, and some in common with most questions."""
    if not summaries.any() or summaries.all() or scores[summaries].max() > scores[~summaries].max():
        return found, standardised, scores
    said = ~summaries
    left = tuple(memory for memory, kept in zip(found.memories, said.tolist(), strict=True) if kept)
    rows = replace(found, memories=left, features=found.features[said])
    return rows, {name: values[said] for name, values in standardised.items()}, scores[said]


def score_unfitted(found: Candidates) -> Floats:
    """The share of a score from the vectors of a model without weights: a plain sum of standard deviations."""
    total = np.zeros(len(found.memories))
    for name in ("dense", "dense_around"):
        at = found.names.index(name)
        spread = max(float(found.spread[at]), UNFITTED_SPREAD)
        total += np.clip(
            zeros_where_unknown((found.features[:, at] - found.centre[at]) / spread), -FARTHEST, FARTHEST
        )
    return UNFITTED_WEIGHT * total


def scores_of(features: Mapping[str, Feature], found: Candidates) -> Floats:
    """A value for each candidate, comparable within a question."""
    return sum_features(features, standardise(features, found), len(found.memories))


def likeliest(features: Mapping[str, Feature], found: Candidates, count: int) -> Candidates:
    """The *count* of *found* with the highest scores by *features*."""
    if len(found.memories) <= count:
        return found
    best = np.sort(np.argsort(-scores_of(features, found), kind="stable")[:count])
    return replace(found, memories=tuple(found.memories[at] for at in best.tolist()), features=found.features[best])


def sum_features(features: Mapping[str, Feature], standardised: Mapping[str, Floats], count: int) -> Floats:
    if not features:
        return np.zeros(count)
    weights = np.array([feature.weight for feature in features.values()])
    # Row by row, always in the same order: the last digits of a sum depend on it.
    total: Floats = np.add.reduce(weights[:, None] * np.array([standardised[name] for name in features]), axis=0)
    return total


def standardise(features: Mapping[str, Feature], found: Candidates) -> dict[str, Floats]:
    """Each of *features* by name, in standard deviations from the mean of the owner's memories."""
    place = {name: at for at, name in enumerate(found.names)}
    columns = [place[name] for name in features]
    # All at once, and then a row for each feature: a call for each would cost more than its numbers.
    centre, spread = _blend_statistics(
        features.values(), found.centre[columns], found.spread[columns], found.searched
    )
    apart = (found.features[:, columns] - centre) / spread
    rows: Floats = np.ascontiguousarray(np.clip(apart, -FARTHEST, FARTHEST).T)
    standardised = dict(zip(features, rows, strict=True))
    unknown = np.isnan(rows)
    for name, there in zip(features, np.logical_or.reduce(unknown, axis=1).tolist(), strict=True):
        if there:
            values = standardised[name]
            without = np.isnan(values)
            instead = standardised.get(STANDS_IN.get(name, ""), np.zeros(len(values)))
            values[without] = STAND_IN_SHARE * instead[without]
    return standardised


def _blend_statistics(
    features: Collection[Feature], centre: Floats, spread: Floats, count: int
) -> tuple[Floats, Floats]:
    """Mean and deviation over the owner's and the imagined memories, for each of *features*; a feature with a scale
    of its own keeps that scale."""
    usual = np.array([one.usual for one in features])
    usual_spread = np.array([one.usual_spread for one in features])
    own = np.array([one.own_scale for one in features], dtype=np.bool_)
    whole = count + IMAGINED
    mean = (count * centre + IMAGINED * usual) / whole
    variance = (
        count * (spread**2 + (centre - mean) ** 2) + IMAGINED * (usual_spread**2 + (usual - mean) ** 2)
    ) / whole
    blended = np.maximum(np.sqrt(variance), 1e-6)
    return np.where(own, usual, mean), np.where(own, usual_spread, blended)


def _best_first(scores: Floats, memories: Sequence[Memory]) -> list[int]:
    order: list[int] = np.argsort(-scores, kind="stable").tolist()
    sorted_scores = scores[order]
    if not (sorted_scores[1:] == sorted_scores[:-1]).any():
        return order
    points = scores.tolist()
    return sorted(order, key=lambda at: (-points[at], -memories[at].updated_at.timestamp(), memories[at].id))


# --- breadth -----------------------------------------------------------------------------------------
# The order of candidates: the best first, and after the first few other places of the conversations.
#
# The answers to a question for a list stand in several places, and their neighbours add nothing. Greedy like
# maximal marginal relevance (Carbonell and Goldstein 1998), with the place in the conversation as likeness: held
# out on half of LoCoMo, evidence recall among the first ten
# goes from 0.839 to 0.846 by it, of questions with several pieces of evidence from 0.538 to 0.566. Among the
# first five it would lose 0.01: there the message beside the best is as often the answer itself. Without
# reading word by word the order stays: it would lose 0.009, because scores of fewer features lie nearer together.

FIRST = 5  # candidates ordered by their scores alone
LOOKED_AT = 40  # places; further candidates keep the order of the scores
BESIDE = 2  # largest distance of neighbouring messages of a session
LOSES = 0.6  # points of score, for each neighbour ahead


def diversify_sessions(order: Sequence[int], scores: Floats, memories: Sequence[Memory]) -> list[int]:
    """*order* (places in *memories*, best score first) with neighbours of earlier memories moved back, after the
    first FIRST."""
    ahead = list(order[:LOOKED_AT])
    beside = _beside([memories[at] for at in ahead])
    if not any(beside[FIRST:]):
        return list(order)
    left: list[float] = scores[ahead].tolist()
    for at, near in enumerate(beside):
        left[at] -= LOSES * len([other for other in near if other < FIRST])
    # The best remaining place, of equals the first; a place that lost points meanwhile is in the heap twice.
    waiting = [(-left[at], at) for at in range(FIRST, len(ahead))]
    heapify(waiting)
    chosen = dict.fromkeys(range(FIRST))
    while waiting:
        points, best = heappop(waiting)
        if best in chosen or -points != left[best]:
            continue
        chosen[best] = None
        for other in beside[best]:
            if other not in chosen:
                left[other] -= LOSES
                heappush(waiting, (-left[other], other))
    return [*(ahead[at] for at in chosen), *order[LOOKED_AT:]]


def _beside(memories: Sequence[Memory]) -> list[list[int]]:
    """The places of the neighbours of each of *memories*."""
    talks: dict[str, list[tuple[int, int]]] = {}
    for at, one in enumerate(memories):
        if one.session:
            talks.setdefault(one.session, []).append((one.seq, at))
    found: list[list[int]] = [[] for _ in memories]
    for talk in talks.values():
        talk.sort()
        for number, (seq, at) in enumerate(talk, start=1):
            for then, other in talk[number:]:
                if then - seq > BESIDE:
                    break
                found[at].append(other)
                found[other].append(at)
    return found


# --- recency -----------------------------------------------------------------------------------------
# The loss of score by age. A fact does not age: it holds until another replaces it.

# Points of score that the oldest message loses, at most: little beside the other features, unless the question
# asks for news.
USUAL = 0.2
FRESH = 2.0
_READ = 2_000  # characters

_ASKS_FOR_NEW = re.compile(
    r"\b(?:latest|newest|current|currently|now|nowadays|today|recent|recently|lately|these days|at the moment"
    r"|neueste[nrs]?|aktuell\w*|derzeit|jetzt|heute|zuletzt|actuel\w*|maintenant|aujourd'hui|r\u00e9cemment"
    r"|actual\w*|ahora|hoy|\u00faltimamente|recientemente|attual\w*|adesso|oggi|atual\w*|agora|hoje|huidige|nu"
    r"|vandaag)\b"
)


def asks_for_new(text: str) -> bool:
    """Whether *text* asks for how things are by now ("my latest offer", "where do I work now?")."""
    return _ASKS_FOR_NEW.search(fold(text[:_READ])) is not None


def most_lost(text: str, today: date) -> float:
    """Points of score that the oldest memory loses for the question *text*, asked on the day *today*: zero
    where the question names a day of its own."""
    return FRESH if asks_for_new(text) else 0.0 if days_asked_for(text, today) else USUAL


HELPFUL = 0.4  # points of score that a memory gains which its owner called helpful


def gained_by_rating(memories: Sequence[Memory]) -> npt.NDArray[np.float64]:
    """Points of score, 0 or more, that each memory gains."""
    helpful = [memory.provenance.rating is Rating.HELPFUL for memory in memories]
    return HELPFUL * np.array(helpful, dtype=np.float64)


def lost_to_age(
    most: float, memories: Sequence[Memory], now: datetime, half_life: timedelta
) -> npt.NDArray[np.float64]:
    """Points of score, 0 or more, that each memory loses: half of *most* after a *half_life*."""
    if most == 0.0:
        return np.zeros(len(memories))
    ages = np.array(
        [
            (now - (memory.valid_from or memory.created_at)) / half_life
            if memory.source is Source.VERBATIM
            else 0.0
            for memory in memories
        ],
        dtype=np.float64,
    )
    lost: npt.NDArray[np.float64] = most * (1.0 - np.exp2(-np.maximum(ages, 0.0)))
    return lost
