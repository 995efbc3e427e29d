"""The file of fitted weights: what each feature counts for, and how a score becomes a relevance.

A file belongs to the embedding models it names. What needs no vectors in it, the ranker of words, serves for all.
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

VERSION = 1
PACKAGED = "fitted/all-MiniLM-L6-v2.json"  # beside this module


class WeightsError(PermanentError):
    """A file of weights that is none, or of another embedding model or version."""


class Feature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """*weight* is for one standard deviation. *usual* and *usual_spread*: mean and deviation that a store has which
    nothing is known of. *own_scale*: judged by these alone, for a yes or no has no spread worth asking for."""

    weight: float
    usual: float
    usual_spread: Annotated[float, msgspec.Meta(gt=0)]
    own_scale: bool = False


class Worth(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Logistic: the probability that anything helps, from what `calibration.measures` names."""

    bias: float
    weights: Mapping[str, float]


class Relevance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a memory's relevance falls behind the worth of the question: *slope* for each point that its soundness is
    below *enough*. *weights*: what a memory's own features add to its soundness."""

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
    fitted_on: str  # in words, for who wonders whether it holds for them
    hybrid: Ranker
    lexical: Ranker  # without vectors
    close: Ranker | None = None  # where the candidates were read word by word
    # The same among fewer memories than `fusion.FEW`, where there are such weights.
    close_few: Ranker | None = None
    lexical_few: Ranker | None = None
    hybrid_few: Ranker | None = None


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
    """Those that come with the product."""
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
    return weights


# What a ranker's worth may stand on; `calibration.measures` makes them of the candidates of a question.
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
# How far above what the owner's other memories have for the same question. Not what these have by itself: in a
# store of pasted logs it is much, and would outweigh the one line that answers.
ABOVE = ("dense", "covered", "near", CLOSELY)
SIZE = "size"  # the logarithm of the number of memories: of many, the best is better by chance alone
LENGTH = "length"  # of a memory, in the logarithm of its terms: long answers have something of any question
ASKED = "asked"  # the logarithm of the question's terms
PRODUCTS = ((LENGTH, "most_dense"), (LENGTH, "most_covered"), (ASKED, "most_covered"), (ASKED, "known"))
# These mean something else where the question is not in English: what any two texts have in common is more there.
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
# From scores to relevance in [0, 1]: is there anything worth injecting, and then, which of it.
#
# A gate for the question as a whole loses far less of what helps than a threshold for each memory by itself
# would.

Floats = npt.NDArray[np.float64]
CAUTION = 0.4  # log-odds
SUREST = 3.0  # log-odds; a question that is surer than that says no more for memories that lack much
_FIRST = 3  # candidates looked at beside the best
# What a memory has in common with a question that it has nothing to do with, in English and in other languages.
# With three memories, the owner's own mean says little; with one, nothing.
_USUAL = {"dense": (0.07, 0.35), "covered": (0.02, 0.02), "near": (0.02, 0.02), CLOSELY: (0.12, 0.3)}
# The most that is taken for it: where all that somebody ever said is about what is asked, all of it is near.
_MOST_USUAL = {"dense": (0.25, 0.6), "covered": (0.15, 0.15), "near": (0.15, 0.15), CLOSELY: (0.3, 0.5)}
_IMAGINED = 3.0  # memories of the usual kind that are taken to stand beside the owner's


def measures(found: Candidates, standardised: Mapping[str, Floats], scores: Floats) -> dict[str, float]:
    """What tells whether anything helps, from the candidates' features and their scores. All zero without
    candidates."""
    if not len(scores):
        return dict.fromkeys(MEASURES, 0.0)
    first = np.argsort(-scores, kind="stable")[:_FIRST]
    place = {name: at for at, name in enumerate(found.names)}
    measured: dict[str, float] = dict.fromkeys(MEASURES, 0.0)
    raw = [name for name in RAW if name in place]
    values = _raw(found, raw, place)
    kinds = {"most": values.max(axis=0), "best": values[first[0]], "first": values[first].mean(axis=0)}
    for kind, row in kinds.items():
        measured.update(zip((f"{kind}_{name}" for name in raw), row.tolist(), strict=True))
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
    """What an owner's memories have but for the one with *most*: *mean* is that of all *count*."""
    return (count * mean - most + _IMAGINED * imagined) / (count - 1 + _IMAGINED)


def _raw(found: Candidates, names: Sequence[str], place: Mapping[str, int]) -> Floats:
    """The columns of *names*. What was read closely and stands in no session has its own words' match in place of
    that of its surroundings, so that a store of notes is not taken for one in which nothing matches."""
    values = found.features[:, [place[name] for name in names]]
    for at, name in enumerate(names):
        if name in READ_CLOSELY:
            values[:, at] = np.where(np.isnan(values[:, at]), found.features[:, place[CLOSELY]], values[:, at])
    return zeros_where_unknown(values)


def worth_of(worth: Worth, measured: Mapping[str, float]) -> float:
    """In (0, 1)."""
    return _logistic(worth.bias + sum(weight * measured[name] for name, weight in worth.weights.items()))


def relevances(relevance: Relevance, worth: float, found: Candidates, scores: Floats) -> Floats:
    """Of each candidate, in [0, 1]: the worth of the question, less what the candidate lacks of being sound."""
    if not len(scores):
        return scores
    lacks = np.maximum(0.0, relevance.enough - soundness(relevance.weights, found, scores)) * relevance.slope
    likely: Floats = 1.0 / (1.0 + np.exp(np.minimum(lacks - odds_of(worth), 50.0)))
    return likely


def mean_odds(worth: float, other: float) -> float:
    """The probability between two, by their mean log-odds, less a margin for an unknown model."""
    return _logistic((_log_odds(worth) + _log_odds(other)) / 2 - CAUTION)


def _log_odds(worth: float) -> float:
    return math.log(max(worth, 1e-9) / max(1.0 - worth, 1e-9))


def odds_of(worth: float) -> float:
    """Log-odds of a probability, SUREST at most."""
    return min(SUREST, _log_odds(worth))


def soundness(weights: Mapping[str, float], found: Candidates, scores: Floats) -> Floats:
    """Points of score that a candidate is behind the best (so none is above 0), and what its own features are
    worth, in the same points: in a small store the best is no yardstick for the others."""
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
