"""The file of fitted weights: what each feature counts for, and how a score becomes a relevance.

A file belongs to the embedding models it names. What needs no vectors in it, the ranker of words, serves for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import msgspec

from memory_extproc.errors import GiveUpError
from memory_extproc.index.features import (
    ANOTHER,
    CLOSELY,
    CLOSELY_BEFORE,
    FEATURES,
    FOREIGN,
    READ_BESIDES,
    READ_CLOSELY,
)

VERSION = 1
PACKAGED = "fitted/all-MiniLM-L6-v2.json"  # beside this module


class WeightsError(GiveUpError):
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
ABOVE = ("dense", "near", CLOSELY)
SIZE = "size"  # the logarithm of the number of memories: of many, the best is better by chance alone
# These mean something else where the question is not in English: what any two texts have in common is more there.
IN_FOREIGN = ("most_dense", "most_closely", "best_closely", "known_near", "best_score")
OUTLYING = ("dense", "dense_around", "bm25", "bm25_around", "near", "near_around", CLOSELY)
WHOLE = ("known", "known_near")
MEASURES = (
    *(f"{kind}_{name}" for name in RAW for kind in ("most", "best", "first")),
    *(f"outlying_{name}" for name in OUTLYING),
    *WHOLE,
    "best_score",
    *(f"{kind}_{name}" for name in ABOVE for kind in ("above", "best_above")),
    SIZE,
    FOREIGN,
    *(f"foreign_{name}" for name in IN_FOREIGN),
)
