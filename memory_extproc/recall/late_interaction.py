"""Late interaction: compares the likeliest memories with the question word by word.

Khattab and Zaharia 2020, "ColBERT": the best match of each word of the query, summed. Here a word counts by
how well it tells the candidates apart: a word that nearly all of them have, such as a name, says little.

The words of a question are not those of its answer ("where do I live", "we moved to Leeds"). A matrix that was
trained on questions and their answers moves the former towards the latter before they are compared.

A message depends on earlier messages: "Yes, two cats!" has the words of its question only together with the
answered message. So another candidate of the same session may also match a word, with a weight that falls with its
distance.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from functools import cache
from importlib.resources import files
from itertools import accumulate
from typing import Self

import numpy as np
import numpy.typing as npt

from memory_extproc.errors import MemoryExtprocError
from memory_extproc.index.entries import cosines, together, unpack
from memory_extproc.index.features import LONGEST_READ, READ_BESIDES, READ_CLOSELY
from memory_extproc.model import Candidates, Memory, Role, WordPieces
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import TokenEmbeddingModel
from memory_extproc.recall.asked import speaker_of
from memory_extproc.recall.fusion import FEW, packaged_name, packaged_weights
from memory_extproc.text.persons import mentioned_words, of_another
from memory_extproc.text.words import ENGLISH, lexicon_of

log = logger(__name__)
Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]

# Candidates that are read, the likeliest by everything else; with 100 of them no more evidence came first.
FIRST_READ = 40
SAME = 0.6  # cosine of two words in context from which they match
GUESSED_SHARE = 0.7  # of the deviation of a memory's vector, as an estimate for its words
_ENOUGH = 0.7  # share of memories whose words must be known; with three in ten unknown, half of the gain was left
FADES = 0.06  # loss of cosine for each message between the candidate and the matching message
_APART = 40  # messages; at this distance no cosine is left, so it also separates sessions
_FARTHEST = 3.0  # standard deviations
_LEAST_SPREAD = 1e-3  # of cosines
_LEAST_WEIGHT = 1e-6
_FEWEST_USUAL = 3  # memories
_READ_FOR_LANGUAGE = 400  # characters of a question
_READ_FOR_SPEAKERS = 10  # memories
PROJECTION = "{}.projection.npz"  # in `fitted`, by model


class CloseReading(StrEnum):
    """How it ended: a label of close_readings_total, so never renamed."""

    READ = "read"
    PARTLY = "partly"  # the few whose words were not at hand have a guess
    UNKNOWN = "unknown"  # the words of too many were not at hand, or the question's
    LATE = "late"  # waited for, and not there in time
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class QuestionTraits:
    """Traits of a question, before any search."""

    mentioned: frozenset[str]
    foreign: bool

    @classmethod
    def of(cls, text: str) -> Self:
        return cls(mentioned_words(text), foreign(text))


class QuestionProjection:
    """Moves the words of a question towards the words of its answers; the words of memories stay as they are.
    Trained by `scripts/train/projection.py` on chats of single people, most of them in English."""

    def __init__(self, matrix: Singles, importance: Singles) -> None:
        """*matrix*: (dimension, dimension). *importance*: (dimension,), the direction along which words of a
        question count more."""
        self._matrix, self._importance = matrix, importance

    def suits(self, asks: QuestionTraits, found: Candidates) -> bool:
        """Whether it helps with a question among *found*: in English, in a small store, and not in talks of several
        people (with names before what they said). Elsewhere it gained nothing."""
        if asks.foreign or found.searched >= FEW:
            return False
        first = found.memories[:_READ_FOR_SPEAKERS]
        return 2 * sum(bool(speaker_of(one.content)) for one in first) <= len(first)

    def project(self, words: Singles) -> tuple[Singles, Floats]:
        """*words* of a question, moved and of unit length, and how much each counts beside the others."""
        moved = words @ self._matrix
        moved /= np.maximum(np.linalg.norm(moved, axis=1, keepdims=True), _LEAST_WEIGHT)
        return moved, np.exp(words @ self._importance).astype(np.float64)


@cache
def packaged_projection(fingerprint: str) -> QuestionProjection | None:
    """The projection for the embedding model *fingerprint*; None where none was trained."""
    place = files(__package__) / "fitted" / PROJECTION.format(packaged_name(fingerprint))
    if fingerprint not in packaged_weights(fingerprint).embedding_models or not place.is_file():
        return None
    with place.open("rb") as file:
        packed = np.load(file, allow_pickle=False)
        return QuestionProjection(packed["matrix"].astype(np.float32), packed["importance"].astype(np.float32))


class LateInteractionScorer:
    """Adds the features READ_CLOSELY and READ_BESIDES to candidates. Memories without known words are
    embedded once more, after other queries and a question at a time, so that the next question finds their
    words."""

    def __init__(
        self,
        embedder: TokenEmbeddingModel,
        waits: timedelta,
        metrics: Metrics,
        projection: QuestionProjection | None = None,
    ) -> None:
        """*waits*: the longest wait for missing words. A request does not wait: embedding another text for it
        costs as much as embedding its own. *projection*: of the words of questions that it suits."""
        self._embedder, self._waits, self._metrics = embedder, waits, metrics
        self._projection = projection
        self._embedding: asyncio.Task[bool] | None = None

    async def read(self, text: str, found: Candidates, asks: QuestionTraits | None = None) -> Candidates:
        """*found* with the features of the question *text*; unchanged where no vectors were searched or too few
        words are known. *asks*: the traits of *text*, where they are known already."""
        if "dense" not in found.names or not found.memories:
            return found
        texts = [text, *(memory.content for memory in found.memories)]
        words = self._embedder.words(texts)
        late: CloseReading | None = None
        if None in words:
            missing = [one for one, known in zip(texts, words, strict=True) if known is None]
            short = [one for one in dict.fromkeys(missing) if len(one) <= LONGEST_READ]
            late = await self._late(short) if short else None
            words = self._embedder.words(texts) if self._waits else words
        read, outcome = self._read(asks or QuestionTraits.of(text), words, found)
        if late is not None and outcome is CloseReading.UNKNOWN:
            outcome = late
        self._metrics.close_readings.labels(outcome.value).inc()
        return read

    def _read(
        self, asks: QuestionTraits, words: Sequence[WordPieces | None], found: Candidates
    ) -> tuple[Candidates, CloseReading]:
        """*words*: of the question, and of each memory."""
        query, *memories = words
        known = [one for one in memories if one is not None]
        if query is None or not known or len(known) < _ENOUGH * len(memories):
            return found, CloseReading.UNKNOWN
        there = np.array([one is not None for one in memories])
        asked, importance = unpack(query), np.ones(len(query.scale))
        projection = self._projection
        if projection is not None and not projection.suits(asks, found):
            projection = None
        if projection is not None:
            asked, importance = projection.project(asked)
        best = matches(asked, known)
        weight = telling(best, importance)
        closely = best @ weight
        if len(known) < len(memories):
            closely = impute_missing(closely, there, found)
        beside = surroundings(best, weight, found.memories, there)
        beside[~there] = np.maximum(beside[~there], closely[~there, None])
        features = np.column_stack([closely, beside, besides(asks, found.memories)])
        outcome = CloseReading.READ if len(known) == len(memories) else CloseReading.PARTLY
        return replace(with_features(found, features), projected=projection is not None), outcome

    async def _late(self, missing: Sequence[str]) -> CloseReading | None:
        """Has *missing* embedded. Why something is not there that was waited for, if so."""
        if self._embedding is None or self._embedding.done():
            self._embedding = asyncio.create_task(self._embed(missing), name="close reading")
        if not self._waits:
            return None
        # Started work serves the next question too, so it continues after this question.
        await asyncio.wait({self._embedding}, timeout=self._waits.total_seconds())
        if not self._embedding.done():
            return CloseReading.LATE
        return None if self._embedding.result() else CloseReading.FAILED

    async def _embed(self, texts: Sequence[str]) -> bool:
        """Whether the words could be made. Ends with the embedder, which fails waiting calls when it is closed."""
        try:
            await self._embedder.embed(texts)
        except MemoryExtprocError as error:
            log.warning("close_reading.failed", kind=type(error).__name__)
            return False
        return True


def matches(query: Singles, memories: Sequence[WordPieces]) -> Floats:
    """The best match, a cosine, of each word of *query* (rows of unit length) among the words of each of
    *memories*: a row for each memory, a column for each word. A single pass over all words of all memories."""
    starts = [0, *accumulate(len(one.scale) for one in memories[:-1])]
    best: Floats = np.maximum.reduceat(cosines(together(memories), query), starts, axis=0).astype(np.float64)
    return best


def telling(best: Floats, importance: Floats) -> Floats:
    """How much each word of a question counts, 1 in all: the more, the fewer memories meet it, times its
    *importance*."""
    met = (best > SAME).sum(axis=0)
    weight = np.maximum(np.log((len(best) + 1.0) / (met + 0.5)), _LEAST_WEIGHT) * importance
    found: Floats = weight / weight.sum()
    return found


def surroundings(best: Floats, weight: Floats, memories: Sequence[Memory], known: Bools) -> Floats:
    """CLOSELY_AROUND and CLOSELY_BEFORE of all *memories*, about 0 to 1, where *best* has a row for each of the
    *known*; NaN for memories without a session. Words of earlier messages count more evenly than words of the
    message itself."""
    line = _in_line(memories)
    rows = np.full((len(memories), best.shape[1]), -1.0)
    rows[known] = best
    order = np.argsort(line, kind="stable")
    fades = FADES * line[order, None]
    # Even fading is a running maximum of evenly raised values. Memories at the same place, such as a message and
    # its fact, stand before each other.
    before = np.maximum.accumulate(rows[order] + fades, axis=0)
    last = np.searchsorted(line[order], line[order], "right") - 1
    before = before[last] - fades
    after = np.maximum.accumulate((rows[order] - fades)[::-1], axis=0)[::-1] + fades
    evenly = np.sqrt(weight) / np.sqrt(weight).sum()
    found = np.empty((len(memories), 2))
    found[order, 0] = np.maximum(before, after) @ weight
    found[order, 1] = before @ evenly
    found[[not memory.session for memory in memories]] = np.nan
    return found


def _in_line(memories: Sequence[Memory]) -> Floats:
    """The place of each memory with all sessions in a single line."""
    sessions = {session: at for at, session in enumerate(sorted({one.session for one in memories}))}
    session = np.array([sessions[one.session] for one in memories])
    seq = np.array([one.seq for one in memories], dtype=np.int64)
    order = np.lexsort((seq, session))
    steps = np.minimum(np.diff(seq[order]), _APART)
    steps[np.diff(session[order]) > 0] = _APART
    line = np.empty(len(memories))
    line[order] = np.concatenate([[0], np.cumsum(steps)])
    return line


def besides(asks: QuestionTraits, memories: Sequence[Memory]) -> Floats:
    """READ_BESIDES of *memories*. The subject of an assistant's message is not read."""
    found = np.zeros((len(memories), len(READ_BESIDES)))
    asked, assistant = asks.mentioned, Role.ASSISTANT
    found[:, 0] = [0.0 if one.role is assistant else of_another(asked, one.content) for one in memories]
    found[:, 1] = asks.foreign
    return found


def foreign(text: str) -> bool:
    """Whether *text* is in another language than English, or has letters that English has not."""
    beginning = text[:_READ_FOR_LANGUAGE]
    return lexicon_of(beginning) is not ENGLISH or (
        not beginning.isascii() and any(not letter.isascii() and letter.isalpha() for letter in beginning)
    )


def impute_missing(values: Floats, known: Bools, found: Candidates) -> Floats:
    """*values* of the *known* of *found*; the others are as far from their mean as their own vectors are, and a
    little nearer, for a guess should not decide."""
    dense = found.features[:, found.names.index("dense")]
    spread = max(float(dense[known].std()), _LEAST_SPREAD)
    apart = np.clip((dense - dense[known].mean()) / spread, -_FARTHEST, _FARTHEST)
    whole: Floats = values.mean() + GUESSED_SHARE * values.std() * apart
    whole[known] = values
    return whole


def _mean_and_deviation(values: Floats) -> tuple[float, float]:
    """As numpy's mean and std have them, to the last digit; NaN of no values."""
    count = len(values)
    if not count:
        return math.nan, math.nan
    mean = float(np.add.reduce(values)) / count
    apart = values - mean
    return mean, math.sqrt(float(np.add.reduce(apart * apart)) / count)


def with_features(found: Candidates, values: Floats) -> Candidates:
    """*found* with READ_CLOSELY and READ_BESIDES after the other features. Mean and deviation are over the
    candidates, because no other memory was read, and without pieces of long messages where possible: a pasted log
    is no measure of the distance between statements and a question. NaN where nothing is known."""
    usual = np.array([memory.provenance.piece is None for memory in found.memories], dtype=bool)
    if np.count_nonzero(usual) < _FEWEST_USUAL:
        usual[:] = True
    kept = usual[:, None] & ~np.isnan(values)
    centre, spread = zip(
        *(_mean_and_deviation(values[:, at][kept[:, at]]) for at in range(len(values.T))), strict=True
    )
    return replace(
        found,
        names=(*found.names, *READ_CLOSELY, *READ_BESIDES),
        features=np.column_stack([found.features, values]),
        centre=np.append(found.centre, centre),
        spread=np.append(found.spread, spread),
    )
