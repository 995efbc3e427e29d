"""What speaks for a memory, weighed into one score: a weighted sum of features, each set against what the other
memories of the same owner have for the same question."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

import numpy as np
import numpy.typing as npt

from memory_extproc.index.features import CLOSELY, STANDS_IN
from memory_extproc.model import Candidates, Memory, Source
from memory_extproc.recall.candidate import Candidate
from memory_extproc.recall.model_match import FITTED, UNMEASURED, Calibration, ModelMatch
from memory_extproc.recall.weights import (
    Feature,
    Ranker,
    Weights,
    mean_odds,
    measures,
    relevances,
    worth_of,
    zeros_where_unknown,
)

Floats = npt.NDArray[np.float64]

# So many memories of the usual kind are taken to stand beside the owner's own when a mean is taken: with three
# memories a mean and a deviation say nothing, with a thousand ours say nothing.
IMAGINED = 10.0
STAND_IN_SHARE = 0.7  # of the feature that stands in for one over surroundings that are not there
# Memories of an owner. Among fewer, a word stands for one thing and little stands around it; among more, what
# stands around a message tells it from others about the same.
FEW = 200
FEWEST = 20  # memories of an owner, for the weights of many
UNFITTED_WEIGHT = 0.4
UNFITTED_SPREAD = 0.02  # of cosines; what differs by less is the same
# Points of score. Without, summaries cost 0.06 of the precision on the everyday set; with them a third of that.
SUMMARY_LOSES = 2.0
SHORT_MESSAGES = 3.6  # mean of the logarithm of their terms: small talk has 2.6, chats with an assistant 4 to 6
FARTHEST = 6.0  # standard deviations; beyond, a feature says no more


class Named(Mapping[str, float]):
    """One row of a table by the names of its columns; NaN is left out. A request makes a hundred of these, and
    hardly reads one."""

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
    """*worth*: the probability that any of them helps. Best first, as `breadth` has it."""

    worth: float
    candidates: tuple[Candidate, ...]


class Fusion:
    """Weighs candidates with fitted weights. The cosines of another embedding model than they were fitted for are
    put on the scale of that one, once they were measured; until then words alone decide, and vectors find."""

    def __init__(self, weights: Weights, fingerprint: str) -> None:
        self._weights = weights
        self._match = FITTED if fingerprint in weights.embedding_models else UNMEASURED

    def adopt(self, match: ModelMatch) -> None:
        """From now on: what was measured of the embedding model."""
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

    def _ranker(self, found: Candidates) -> Ranker:
        """That of what is known of the candidates: words alone, vectors, words read closely. Among few memories its
        own, where there is one."""
        weights, few = self._weights, found.searched < FEW
        if "dense" not in found.names or self.calibration is Calibration.WORDS:
            return self._ranker_of_words(found)
        if CLOSELY in found.names and weights.close is not None:
            if few and weights.close_few is not None:
                return weights.close_few
            # What a word tells apart among so few rests on nothing that the weights for many were fitted on.
            if found.searched >= FEWEST:
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

    def fused(self, found: Candidates, lost: Floats) -> Fused:
        """*lost*: points of score that each memory loses to its age. Equal scores: newer first, then by id. Behind
        the first few what stands elsewhere goes ahead (see `breadth`), where words were read closely."""
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
                Candidate(found.memories[at], points[at], likely[at], Named(at_name, raw.features, at))
                for at in order
            ),
        )


def _speaking(
    found: Candidates, summaries: npt.NDArray[np.bool_], standardised: Mapping[str, Floats], scores: Floats
) -> tuple[Candidates, Mapping[str, Floats], Floats]:
    """Who tells whether anything helps: what was said, without the *summaries*, unless one of these stands out
    from all of it. They have many words, and something in common with most questions."""
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
    """A value for each candidate; comparable within one question."""
    return sum_features(features, standardise(features, found), len(found.memories))


def likeliest(features: Mapping[str, Feature], found: Candidates, count: int) -> Candidates:
    """The *count* of *found* with the highest scores by *features*."""
    if len(found.memories) <= count:
        return found
    best = np.sort(np.argsort(-scores_of(features, found), kind="stable")[:count])
    return replace(found, memories=tuple(found.memories[at] for at in best.tolist()), features=found.features[best])


def sum_features(features: Mapping[str, Feature], standardised: Mapping[str, Floats], count: int) -> Floats:
    total = np.zeros(count)
    for name, feature in features.items():
        total += feature.weight * standardised[name]
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
    """Mean and deviation of the owner's memories and the imagined ones together, for each of *features*; of a
    feature with a scale of its own, that."""
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
# The order of what was found: the best first, and behind the first few what stands elsewhere.
#
# What answers a question for a list stands in several places of what was said, and next to each of them stands
# what is about the same and adds nothing. Greedy as maximal marginal relevance is (Carbonell and Goldstein 1998),
# with the place in the conversation for likeness: held out on half of LoCoMo, evidence recall among the first ten
# goes from 0.839 to 0.846 by it, of questions with several pieces of evidence from 0.538 to 0.566. Among the
# first five it would lose 0.01: there the message beside the best is as often the answer itself. Where the
# candidates were not read word by word it is not done: the order loses 0.009 by it, for scores that know less lie
# nearer together.

FIRST = 5  # that stand by their scores alone
LOOKED_AT = 40  # places; behind them the order is that of the scores
BESIDE = 2  # messages of a session at most so far apart stand beside one another
LOSES = 0.6  # points of score, for each that stands ahead and beside it


def diversify_sessions(order: Sequence[int], scores: Floats, memories: Sequence[Memory]) -> list[int]:
    """*order* (places in *memories*, best score first) with those farther back, behind the first FIRST, that stand
    beside what is ahead of them."""
    ahead = list(order[:LOOKED_AT])
    beside = _beside([memories[at] for at in ahead])
    if not any(beside[FIRST:]):
        return list(order)
    left: list[float] = scores[ahead].tolist()
    for at, near in enumerate(beside):
        left[at] -= LOSES * sum(other < FIRST for other in near)
    # The best of what is left, the one that came first of equals; what has lost meanwhile is there twice.
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
    """Of each of *memories*, the places of those that stand beside it."""
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
