"""Reads the likeliest memories word by word: how well each word of the question is met by some word of a memory.

Khattab and Zaharia 2020, "ColBERT": the best match of each word of the query, summed. Here each word counts for as
much as it tells the candidates apart: one that nearly all of them have, such as a name, says little.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from memory_extproc.errors import MemoryExtprocError
from memory_extproc.index.features import CLOSELY
from memory_extproc.model import Candidates, Words
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import ReadsWords

log = logger(__name__)
Floats = npt.NDArray[np.float64]

SAME = 0.6  # cosine of two words in their contexts from which one stands for the other
_LEAST_WEIGHT = 1e-6


class CloseReading(StrEnum):
    """How it ended: a label of close_readings_total, so never renamed."""

    READ = "read"
    UNKNOWN = "unknown"  # memories whose words are not at hand, and too many to embed in time
    LATE = "late"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CloseReadingLimits:
    each: timedelta = timedelta(
        milliseconds=4
    )  # taken for embedding one memory: what cannot be in time is not waited for


class CloseReader:
    """Adds the feature CLOSELY to candidates. Memories whose words are not known are embedded once more, behind
    others' queries and one question's at a time, so that they are known when they are next come upon."""

    def __init__(self, embedder: ReadsWords, limits: CloseReadingLimits, metrics: Metrics) -> None:
        self._embedder, self._limits, self._metrics = embedder, limits, metrics
        self._embedding: asyncio.Task[None] | None = None

    async def read(self, text: str, found: Candidates, within: timedelta) -> Candidates:
        """*found* with the feature of the question *text*, or as it is: where no vectors were searched, or the
        words of some candidate are not known and cannot be *within* the time."""
        if "dense" not in found.names or not found.memories:
            return found
        words, outcome = await self._words([text, *(memory.content for memory in found.memories)], within)
        self._metrics.close_readings.labels(outcome.value).inc()
        return with_feature(found, closeness(words[0], words[1:])) if words else found

    async def _words(self, texts: Sequence[str], within: timedelta) -> tuple[list[Words], CloseReading]:
        """Of all *texts*, or of none."""
        words, missing = self._known(texts)
        if not missing:
            return words, CloseReading.READ
        if self._embedding is None or self._embedding.done():
            self._embedding = asyncio.create_task(self._embed(missing), name="close reading")
        if len(missing) * self._limits.each > within:
            return [], CloseReading.UNKNOWN
        # What is begun is of use to the next question too, so it is not given up when this one goes on.
        done, _ = await asyncio.wait({self._embedding}, timeout=within.total_seconds())
        words, missing = self._known(texts)
        if missing:
            return [], CloseReading.FAILED if done else CloseReading.LATE
        return words, CloseReading.READ

    def _known(self, texts: Sequence[str]) -> tuple[list[Words], list[str]]:
        """What is known of *texts*, and those of which nothing is."""
        found = [(text, self._embedder.words(text)) for text in texts]
        return (
            [words for _, words in found if words is not None],
            list(dict.fromkeys(text for text, words in found if words is None)),
        )

    async def _embed(self, texts: Sequence[str]) -> None:
        """Ends with the embedder, which fails what waits when it is closed."""
        try:
            await self._embedder.embed(texts)
        except MemoryExtprocError as error:
            log.warning("close_reading.failed", kind=type(error).__name__)


def closeness(query: Words, memories: Sequence[Words]) -> Floats:
    """Of each memory, about 0 to 1: the best match of each word of *query*, weighed by how few of *memories* meet
    it. One pass over all words of all memories."""
    asked = query.vectors.astype(np.float32) * query.scale[:, None]
    pieces = np.concatenate([one.vectors for one in memories]).astype(np.float32)
    cosines = (pieces @ asked.T) * np.concatenate([one.scale for one in memories])[:, None]
    starts = np.cumsum([0, *(len(one.scale) for one in memories[:-1])])
    best = np.maximum.reduceat(cosines, starts, axis=0)
    met = (best > SAME).sum(axis=0)
    weight = np.maximum(np.log((len(memories) + 1.0) / (met + 0.5)), _LEAST_WEIGHT)
    found: Floats = (best @ (weight / weight.sum())).astype(np.float64)
    return found


def with_feature(found: Candidates, values: Floats) -> Candidates:
    """*found* with CLOSELY behind the other features; mean and deviation are those of the candidates, for of the
    others nothing was read."""
    return replace(
        found,
        names=(*found.names, CLOSELY),
        features=np.column_stack([found.features, values]),
        centre=np.append(found.centre, values.mean()),
        spread=np.append(found.spread, values.std()),
    )
