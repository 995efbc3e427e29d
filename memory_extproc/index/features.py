"""Features of memories for a question: arrays by position, without weights.

BM25: Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework", with k1 1.2 and b 0.75."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

import numpy as np
import numpy.typing as npt

from memory_extproc.index.entries import BY_ITSELF, IndexedQuestion, Sums, Timeline, running_sums

Floats = npt.NDArray[np.float64]
AnyFloats = TypeVar("AnyFloats", Floats, npt.NDArray[np.float32])
Singles = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]  # numbers of rows
K1, B = 1.2, 0.75
# Imagined memories beside the memories of a store, without any term of the question: so that in a store of three
# a memory with the rare word still stands out.
IMAGINED = 20
IMAGINED_LENGTH = 12.0  # terms of an imagined memory
FARTHEST = 400.0  # days; beyond, a date is as wrong as can be
_NEXT, _FURTHER = 2, 4  # messages on either side
FADES = 1 / 16  # loss of a share of the question's terms with each message further on
NEAR = 3.0  # days within which a date agrees
WEEK = 7  # days; a shorter span means the messages of these days, a longer span some week of a year
# Fallbacks of features over surroundings, for memories without surroundings.
STANDS_IN: Mapping[str, str] = {
    "dense_around": "dense", "dense_before": "dense",
    "bm25_around": "bm25", "bm25_far_around": "bm25", "bm25_question": "bm25",
    "covered_around": "covered", "covered_before": "covered",
    "near_around": "near", "near_question": "near",
    "mass_session": "mass", "mass_others": "mass",
    "closely_around": "closely", "closely_before": "closely",
}  # fmt: skip
DENSE = ("dense", "dense_around", "dense_before")
LEXICAL = (
    "bm25", "bm25_piece", "bm25_around", "bm25_far_around", "bm25_question",
    "covered", "covered_around", "covered_before",
    "near", "near_around", "near_question", "mass", "mass_session", "mass_others",
    "subject", "only_subject", "days_apart", "days_agree", "days_same", "time_for_when", "names_for_which",
    "assistant", "assistant_asked", "known", "known_near", "asked_terms", *BY_ITSELF,
)  # fmt: skip
FEATURES = (*DENSE, *LEXICAL)
# Added for the few candidates that are read word by word.
CLOSELY, CLOSELY_AROUND, CLOSELY_BEFORE = READ_CLOSELY = ("closely", "closely_around", "closely_before")
# Characters of a text that is read so. Word vectors of a piece of a long answer take 20 to 40 KiB, several times
# as much as of a short message; where most candidates are longer, nothing is read.
LONGEST_READ = 600
# Further features of this reading: whether a memory is about a person whom the question does not mention, and,
# equal for all memories, whether the question is in a language that the embedding model knows less.
ANOTHER, FOREIGN = READ_BESIDES = ("another", "foreign")


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """By position: attributes of the messages known before any question; *piece_length* and *days* by piece."""

    timeline: Timeline
    piece_length: Floats  # in terms
    length: Floats  # in terms
    by_itself: Floats  # (memories, BY_ITSELF)
    speaker: npt.NDArray[np.int64]  # a number per name
    role: npt.NDArray[np.int64]
    assistant: npt.NDArray[np.bool_]  # said by an assistant without a name
    about_caller: npt.NDArray[np.bool_]
    said: npt.NDArray[np.int64]  # day, as an ordinal
    days: npt.NDArray[np.int64]  # (pieces, 2, 2): named spans of days; zeros: none


@dataclass(frozen=True, slots=True, eq=False)
class Matched:
    """By term of the question and position; *pieces* by piece."""

    pieces: Singles  # occurrences of the term
    counts: Singles
    near: Singles  # closeness in [0, 1] of the closest term of the memory
    idf: Floats  # by term


def of_words(
    known: Known, matched: Matched, asked: IndexedQuestion, subjects: Sequence[Floats]
) -> tuple[dict[str, Floats], Floats]:
    """The features of LEXICAL that need no vector, by name, and the BM25 of each piece by itself. NaN where
    nothing stands around a message."""
    line = known.timeline
    found: dict[str, Floats] = {}
    around = running_sums(matched.counts)
    beside = line.around(around, _NEXT)
    pieces = _bm25(found, known, matched, (beside, line.around(around, _FURTHER)))
    _coverage(found, line, matched, beside)
    _about(found, len(line), subjects)
    _when(found, known, asked)
    for at, name in enumerate(BY_ITSELF):
        found[name] = known.by_itself[:, at]
    found["asked_terms"] = np.full(len(line), np.log1p(len(asked.terms)))
    found["assistant"] = known.assistant.astype(np.float64)
    found["assistant_asked"] = found["assistant"] * asked.of_assistant
    found["time_for_when"] = found["tells_time"] * asked.when
    found["names_for_which"] = found["tells_names"] * asked.which_name
    _of_surroundings(found, line)
    return found, pieces


def of_vectors(line: Timeline, bm25: Floats, dense: Floats | None) -> dict[str, Floats]:
    """The remaining FEATURES by name, from *dense*, the cosines by piece; without the features of DENSE where it is
    None. NaN as above."""
    found: dict[str, Floats] = {}
    if dense is not None:
        dense = line.reduce(np.maximum, dense)
        _dense(found, line, dense)
    _mass(found, line, bm25, dense)
    _of_surroundings(found, line)
    return found


def _saturate(counts: Sums, length: Sums, usual: float) -> Singles:
    share = (K1 * (1.0 - B + B * length / usual)).astype(np.float32)
    found: Singles = np.float32(K1 + 1.0) * counts / (counts + share)
    return found


def _sum_rows(weights: Floats, rows: npt.NDArray[np.generic]) -> Floats:
    """Weighted sums of *rows* (by term) for each position. In double precision: in single precision equal memories
    would differ in their last digits, and the order would depend on positions."""
    found: Floats = weights @ rows.astype(np.float64)
    return found


def _bm25(found: dict[str, Floats], known: Known, matched: Matched, counts: tuple[Sums, Sums]) -> Floats:
    """*counts*: sums of the terms within _NEXT and within _FURTHER. Returns the BM25 of each piece by itself."""
    line, length, idf = known.timeline, known.length, matched.idf
    usual = (float(length.sum()) + IMAGINED * IMAGINED_LENGTH) / (len(length) + IMAGINED)
    bm25 = _sum_rows(idf, _saturate(matched.counts, length, usual))
    found["bm25"] = found["bm25_piece"] = pieces = bm25
    if line.in_pieces:
        usual_piece = float(known.piece_length.mean())
        pieces = _sum_rows(idf, _saturate(matched.pieces, known.piece_length, usual_piece))
        found["bm25_piece"] = line.reduce(np.maximum, pieces)
    lengths = running_sums(length)
    reaches = (("bm25_around", _NEXT), ("bm25_far_around", _FURTHER))
    for (name, reach), within in zip(reaches, counts, strict=True):
        around = line.around(lengths, reach)
        usual_around = max(float(around.mean()), usual) if len(around) else usual
        found[name] = _sum_rows(idf, _saturate(within, around, usual_around))
    found["bm25_question"] = _of_question(line, bm25, 0.0)
    return pieces


def _coverage(found: dict[str, Floats], line: Timeline, matched: Matched, counts: Sums) -> None:
    """Shares of the question's terms, weighted by their rarity. *counts*: sums of the terms within _NEXT."""
    weight = matched.idf / max(float(matched.idf.sum()), 1e-9)
    hit = matched.counts > 0
    found["covered"] = _sum_rows(weight, hit)
    # Equal for all memories: the share of the question that has a meaning here.
    found["known"] = np.full(len(line), float(weight @ hit.any(axis=1)))
    found["known_near"] = np.full(len(line), float(weight @ matched.near.max(axis=1, initial=0.0)))
    found["covered_around"] = _sum_rows(weight, counts > 0)
    found["covered_before"] = _sum_rows(weight, _leaning(line, hit.astype(np.float32)))
    found["near"] = _sum_rows(weight, matched.near)
    beside = matched.near
    for _ in range(_NEXT):
        beside = np.maximum(beside, np.maximum(*_beside(line, beside)))
    found["near_around"] = _sum_rows(weight, beside)
    found["near_question"] = _of_question(line, found["near"], 0.0)


def _leaning(line: Timeline, rows: Singles) -> Singles:
    """The largest value of a memory or of an earlier memory in its session, less FADES for each step back: messages
    depend on earlier messages. *rows* are in [0, 1]."""
    found = rows.copy()
    at = np.arange(len(line))
    back = 1
    while (
        back * FADES < 1.0
    ):  # twice as far each time: the value of an earlier memory covers the memories before it
        within = (at[back:] - back >= line.first[back:]).astype(np.float32)
        before = (found[:, :-back] - np.float32(back * FADES)) * within
        found[:, back:] = np.maximum(found[:, back:], before)
        back *= 2
    return found


def _dense(found: dict[str, Floats], line: Timeline, dense: Floats) -> None:
    found["dense"] = dense
    summed, ones = running_sums(dense), running_sums(np.ones(len(dense)))
    # The cosine to the sum of the neighbours' vectors, but for how alike the neighbours are.
    found["dense_around"] = line.around(summed, _NEXT) / np.sqrt(line.around(ones, _NEXT))
    found["dense_before"] = _beside(line, dense)[0]


def _mass(found: dict[str, Floats], line: Timeline, bm25: Floats, dense: Floats | None) -> None:
    """The share of all evidence that stands in a memory's session."""
    evidence = standardise(bm25) + (0.0 if dense is None else standardise(dense))
    mass = np.exp(np.minimum(evidence, 12.0))
    session = np.bincount(line.session, weights=mass, minlength=line.sessions)[line.session]
    usual = float(mass.mean()) if len(mass) else 1.0
    found["mass"] = np.log(mass / usual)
    found["mass_session"] = np.log(session / usual)
    found["mass_others"] = np.log((session - mass) / usual + 0.1)


def _about(found: dict[str, Floats], count: int, subjects: Sequence[Floats]) -> None:
    """*subjects*: for each subject of the question, by position, whether a memory belongs to it (1) or not (-1)."""
    found["subject"] = subjects[0] if subjects else np.zeros(count)
    found["only_subject"] = subjects[0] if len(subjects) == 1 else np.zeros(count)


def _when(found: dict[str, Floats], known: Known, asked: IndexedQuestion) -> None:
    count = len(known.said)
    if not asked.days:
        found["days_apart"] = found["days_agree"] = found["days_same"] = np.zeros(count)
        return
    apart = np.full(count, FARTHEST)
    same = np.zeros(count, dtype=bool)
    for low, high in asked.days:
        if high - low < WEEK:
            same |= (known.said >= low) & (known.said <= high)
        apart = np.minimum(apart, np.maximum(0, np.maximum(low - known.said, known.said - high)))
        for span in (known.days[:, 0], known.days[:, 1]):
            gap = np.maximum(0, np.maximum(low - span[:, 1], span[:, 0] - high))
            named = np.where(span[:, 0] > 0, gap, FARTHEST)
            apart = np.minimum(apart, known.timeline.reduce(np.minimum, named))
    found["days_apart"] = -np.log1p(apart)
    found["days_agree"] = (apart <= NEAR).astype(np.float64)
    found["days_same"] = same.astype(np.float64)


def standardise(values: Floats) -> Floats:
    """*values* in standard deviations from their mean."""
    if not len(values):
        return values
    apart = values - np.add.reduce(values) / len(values)
    spread = math.sqrt(float(np.add.reduce(apart * apart)) / len(values))
    return apart / spread if spread > 1e-9 else np.zeros_like(values)  # noqa: PLR2004


def _of_question(line: Timeline, values: Floats, otherwise: float) -> Floats:
    found: Floats = np.where(line.question >= 0, values[line.question], otherwise)
    return found


def _beside(line: Timeline, values: AnyFloats) -> tuple[AnyFloats, AnyFloats]:
    """Values of the messages before and after; a session's first and last message stand in for themselves."""
    before, after = line.window(1)
    return np.take(values, before, axis=-1), np.take(values, after - 1, axis=-1)


def _of_surroundings(found: dict[str, Floats], line: Timeline) -> None:
    """A fact has the surroundings of its message; a memory without a session has no surroundings."""
    anchored = line.anchor != np.arange(len(line))
    for name in STANDS_IN:
        if name not in found:
            continue
        values = found[name]
        if anchored.any():
            values = np.where(anchored, np.maximum(values, values[line.anchor]), values)
        found[name] = np.where(line.alone, np.nan, values) if line.alone.any() else values


# Chooses the candidates by a rough sum of features that needs no fitted weights.

# Weights of features in the rough sum, in standard deviations.
_ROUGH = {
    "dense": 1.0, "dense_around": 1.0, "bm25": 1.0, "bm25_around": 1.0, "mass_session": 0.5, "near": 0.5,
}  # fmt: skip
_PLAIN = {"only_subject": 0.7, "days_agree": 1.0, "days_same": 2.0}  # already on a scale of their own
_TELLING = tuple(name for name in FEATURES if name in _ROUGH or name in _PLAIN)
_ALIKE = 1e-9
_ROUNDING = 1e-6  # share of a mean that rounding may leave of a deviation of zero


@dataclass(frozen=True, slots=True, eq=False)
class CandidateSelection:
    """*features* has a row for each of *places* and a column for each of *names*; *centre* and *spread* are over
    all *searched* memories."""

    places: npt.NDArray[np.int64]
    names: tuple[str, ...]
    features: Floats
    centre: Floats
    spread: Floats
    searched: int


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Features of the memories to choose from: a row for each of *names*, with its mean and deviation."""

    names: tuple[str, ...]
    rows: tuple[Floats, ...]
    centre: Floats
    spread: Floats

    @classmethod
    def of(cls, by_name: Mapping[str, Floats], within: npt.NDArray[np.int64]) -> Self:
        """The table of the memories at the positions *within*."""
        names = tuple(name for name in FEATURES if name in by_name)
        rows = np.stack([by_name[name] for name in names])
        if len(within) < rows.shape[1]:
            rows = rows[:, within]
        return cls(names, tuple(rows), *_statistics(rows))

    def beside(self, other: Self) -> Self:
        """A table with the rows of both tables."""
        return type(self)(
            (*self.names, *other.names),
            (*self.rows, *other.rows),
            np.concatenate([self.centre, other.centre]),
            np.concatenate([self.spread, other.spread]),
        )


def select_candidates(
    table: Table, places: Callable[[Rows], Rows], limit: int, tie: Callable[[int], tuple[float, str]]
) -> CandidateSelection:
    """At most *limit* of the memories in *table*; *places* has the places of rows. *tie* orders memories with equal
    rough sums by their places, so that the choice does not depend on rows."""
    columns, centre, spread = table.rows, table.centre, table.spread
    searched = len(columns[0])
    rough = np.zeros(searched)
    for name in _TELLING:  # always in the same order: another order changes the last digits of a sum
        if name not in table.names:
            continue
        at = table.names.index(name)
        if name in _ROUGH and spread[at] > _ALIKE:
            apart = (columns[at] - centre[at]) * (_ROUGH[name] / spread[at])
            rough += np.where(np.isnan(apart), 0.0, apart)
        elif name in _PLAIN:
            rough += columns[at] * _PLAIN[name]
    best = _best(rough, limit, lambda rows: [tie(place) for place in places(rows).tolist()])
    # In the order of FEATURES, so that the results of two searches can be joined.
    names = tuple(name for name in FEATURES if name in table.names)
    rows = [table.names.index(name) for name in names]
    features = np.stack([columns[row][best] for row in rows]).T
    return CandidateSelection(places(best), names, features, centre[rows], spread[rows], searched)


def _statistics(columns: Floats) -> tuple[Floats, Floats]:
    """Mean and standard deviation of each row without NaN; zeros for rows of NaN alone."""
    count = columns.shape[1]
    if not count:
        return np.zeros(len(columns)), np.zeros(len(columns))
    centre = columns.mean(axis=1)
    # A single pass; the rounding error of a constant is no spread.
    squares = np.einsum("ij,ij->i", columns, columns) / count
    spread = np.sqrt(np.maximum(squares - centre**2, 0.0))
    spread[spread < _ROUNDING * np.abs(centre)] = 0.0
    for at in np.flatnonzero(np.isnan(centre)):
        known = columns[at][~np.isnan(columns[at])]
        centre[at], spread[at] = (known.mean(), known.std()) if len(known) else (0.0, 0.0)
    return centre, spread


def _best(scores: Floats, limit: int, ties: Callable[[Rows], list[tuple[float, str]]]) -> Rows:
    if len(scores) <= limit:
        return np.arange(len(scores))
    if limit <= 0:
        return np.zeros(0, dtype=np.int64)
    worst = np.partition(scores, len(scores) - limit)[len(scores) - limit]
    above = np.flatnonzero(scores > worst + _ALIKE)
    level = np.flatnonzero(np.abs(scores - worst) <= _ALIKE)
    if len(above) + len(level) > limit:
        by_tie = sorted(zip(ties(level), level.tolist(), strict=True))
        level = np.array([at for _, at in by_tie[: limit - len(above)]], dtype=np.int64)
    return np.concatenate([above, level])
