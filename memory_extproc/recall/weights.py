"""The file of fitted weights: the weight of each feature, and the mapping from a score to a relevance.

A file belongs to the embedding models it names. The ranker of words needs no vectors and serves all models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
)
from memory_extproc.model import Candidates
from memory_extproc.recall.intent import QuestionKind

VERSION = 1
PACKAGED = "fitted/all-MiniLM-L6-v2.json"  # beside this module


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


def packaged_weights() -> Weights:
    """The weights that come with the product."""
    place = files(__package__) / PACKAGED
    return parse_weights(place.read_bytes(), place.name)


def parse_weights(raw: bytes, name: str) -> Weights:
    try:
        weights = msgspec.json.decode(raw, type=Weights)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WeightsError(f"{name}: is no file of weights: {error}") from error
    if weights.version != VERSION:
        raise WeightsError(f"{name}: version {weights.version}, and this program reads version {VERSION}")
    known = {"hybrid": FEATURES, "lexical": FEATURES, "close": (*FEATURES, *READ_CLOSELY, *READ_BESIDES)}
    known |= {f"{kind}_few": features for kind, features in known.items()}
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

Floats = npt.NDArray[np.float64]
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
