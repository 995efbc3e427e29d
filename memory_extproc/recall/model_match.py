"""Which calibration serves an embedding model, found out by embedding a packaged set of probes.

A model is recognised by its vectors and not by its name, because equal weights give equal vectors in any server.
The cosines of an unknown model are put on the scale of the packaged model, so that the packaged weights serve:
centred at the cosine of unrelated texts, and scaled by how well the model separates related texts from these.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Self

import numpy as np
import numpy.typing as npt

from memory_extproc.errors import MemoryExtprocError, PermanentError
from memory_extproc.model import Candidates, Matrix
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import EmbeddingModel
from memory_extproc.text.words import stems

# Quantised to int8, the packaged model itself has 0.985 and more in the mean.
LEAST_MEAN_COSINE = 0.985
LEAST_COSINE = 0.96
MOST_RECALL_LOST = 0.01  # evidence recall@10 on the probes
_DEPTH = 10
_LEAST_QUALITY = 0.25  # below it a model finds little that words do not find
_LEAST_SPREAD = 1e-4  # of cosines; a model below it tells nothing apart
_DENSE = ("dense", "dense_around", "dense_before")
_BATCH = 32  # texts of a call: endpoints limit their input


class Calibration(StrEnum):
    """The source of recall's weights. Also a metric label, so a value is never renamed."""

    FITTED = "fitted"  # weights of this model
    ALIGNED = "aligned"  # the packaged weights, with the model's cosines on their scale
    WORDS = "words"  # words alone decide: the model could not be measured yet, or tells nothing apart


@dataclass(frozen=True, slots=True)
class CosineScale:
    """Map a model's cosines to those of the model of the weights.

    *quality*, 0 to 1: the value of a standard deviation of this model in standard deviations of that model, and at
    most the share of the evidence beyond words that this model finds of what that model finds.
    """

    mean: float  # cosine of texts that do not belong together
    factor: float
    usual: float  # the same mean for the model of the weights
    quality: float

    def apply(self, found: Candidates) -> Candidates:
        columns = [at for at, name in enumerate(found.names) if name in _DENSE]
        if not columns:
            return found
        features, centre, spread = found.features.copy(), found.centre.copy(), found.spread.copy()
        features[:, columns] = self._rescale(features[:, columns])
        centre[columns] = self._rescale(centre[columns])
        spread[columns] = spread[columns] * self.factor
        return replace(found, features=features, centre=centre, spread=spread)

    def _rescale(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return self.usual + (values - self.mean) * self.factor

    def weight(self, feature: str) -> float:
        return self.quality if feature in _DENSE else 1.0


@dataclass(frozen=True, slots=True)
class ModelMatch:
    """The comparison of a model with the model of the packaged weights."""

    calibration: Calibration
    scale: CosineScale | None = None  # with ALIGNED alone
    mean_cosine: float | None = None  # between the two models' vectors of a text; None: another width
    least_cosine: float | None = None
    recall: float = 0.0  # evidence recall@10 on the probes
    usual_recall: float = 0.0  # of the other model


FITTED = ModelMatch(Calibration.FITTED)
UNMEASURED = ModelMatch(Calibration.WORDS)


@dataclass(frozen=True, slots=True)
class _Probes:
    texts: Sequence[str]
    questions: Sequence[str]
    evidence: npt.NDArray[np.int64]  # the place of each question's text
    text_vectors: Matrix  # of the model that the weights were fitted for, in fp32
    question_vectors: Matrix


@cache
def _probes() -> _Probes:
    place = files(__package__) / "fitted"
    plain = json.loads((place / "probes.json").read_text(encoding="utf-8"))
    vectors = np.load(io.BytesIO((place / "all-MiniLM-L6-v2.probes.npz").read_bytes()))
    return _Probes(
        texts=plain["texts"],
        questions=[one["text"] for one in plain["questions"]],
        evidence=np.array([one["evidence"] for one in plain["questions"]]),
        text_vectors=vectors["texts"].astype(np.float32),
        question_vectors=vectors["questions"].astype(np.float32),
    )


@cache
def _words_of_probes() -> tuple[Matrix, Matrix]:
    """The probes as bags of stems, of unit length: vectors that tell no more than words do."""
    probes = _probes()
    bags = [stems(text) for text in (*probes.texts, *probes.questions)]
    place = {word: at for at, word in enumerate(sorted(set().union(*bags)))}
    rows: Matrix = np.zeros((len(bags), len(place)), dtype=np.float32)
    for row, bag in zip(rows, bags, strict=True):
        row[[place[word] for word in bag]] = 1.0
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)
    return rows[: len(probes.texts)], rows[len(probes.texts) :]


async def match_model(embedder: EmbeddingModel) -> ModelMatch:
    """Embeds some hundred short texts. TransientError and PermanentError as the embedder raises them, the latter
    also for vectors that are none."""
    probes = _probes()
    texts = await _embed_in_batches(embedder, probes.texts)
    questions = await _embed_in_batches(embedder, probes.questions)
    return await asyncio.to_thread(compare, texts, questions)


async def _embed_in_batches(embedder: EmbeddingModel, texts: Sequence[str]) -> Matrix:
    parts = [await embedder.embed(texts[at : at + _BATCH]) for at in range(0, len(texts), _BATCH)]
    vectors: Matrix = np.concatenate(parts)
    if vectors.shape != (len(texts), embedder.dimension) or not np.isfinite(vectors).all():
        raise PermanentError(f"the embedding model answered with {vectors.shape}, or with numbers that are none")
    return vectors


def compare(texts: Matrix, questions: Matrix) -> ModelMatch:
    """The match of a model with these vectors of the probes, of unit length."""
    probes = _probes()
    ours, theirs = _judge(probes.text_vectors, probes.question_vectors), _judge(texts, questions)
    mean = least = None
    if texts.shape[1] == probes.text_vectors.shape[1]:
        both = np.vstack([probes.text_vectors, probes.question_vectors]) * np.vstack([texts, questions])
        cosines = both.sum(axis=1)
        mean, least = float(cosines.mean()), float(cosines.min())
    found = ModelMatch(Calibration.FITTED, None, mean, least, theirs.recall, ours.recall)
    same = mean is not None and least is not None and mean >= LEAST_MEAN_COSINE and least >= LEAST_COSINE
    if same and abs(theirs.recall - ours.recall) <= MOST_RECALL_LOST:
        return found
    words = _judge(*_words_of_probes())
    quality = min(1.0, theirs.apart / ours.apart, (theirs.recall - words.recall) / (ours.recall - words.recall))
    if theirs.spread < _LEAST_SPREAD or quality < _LEAST_QUALITY:
        return replace(found, calibration=Calibration.WORDS)
    scale = CosineScale(theirs.mean, ours.spread / theirs.spread * quality, ours.mean, quality)
    return replace(found, calibration=Calibration.ALIGNED, scale=scale)


@dataclass(frozen=True, slots=True)
class _Judged:
    mean: float  # cosine of a question with texts that do not answer it
    spread: float
    apart: float  # distance of the answers above these, in standard deviations
    recall: float


def _judge(texts: Matrix, questions: Matrix) -> _Judged:
    evidence = _probes().evidence
    cosines = questions @ texts.T
    answers = cosines[np.arange(len(evidence)), evidence]
    others = cosines[np.arange(cosines.shape[1]) != evidence[:, None]]
    mean, spread = float(others.mean()), float(others.std())
    # A tie counts half: bags of words have many.
    ahead = (cosines > answers[:, None]).sum(axis=1) + ((cosines == answers[:, None]).sum(axis=1) - 1) / 2
    return _Judged(mean, spread, (float(answers.mean()) - mean) / max(spread, 1e-9), float((ahead < _DEPTH).mean()))


# --- at the start ------------------------------------------------------------------------------------

log = logger(__name__)

Adopts = Callable[[ModelMatch], None]
_RETRY = timedelta(seconds=30)  # between two attempts, while the model is out of reach


class ModelMatcher:
    """Measures the embedding model in the background and informs subscribers.

    While the model is unreachable, words alone decide, and the measurement is retried.
    """

    def __init__(
        self,
        embedder: EmbeddingModel,
        *,
        known: Container[str],
        metrics: Metrics,
        retry: timedelta = _RETRY,
    ) -> None:
        """*known*: fingerprints of models that need no measuring, because there are weights of their own."""
        self._embedder, self._metrics, self._retry = embedder, metrics, retry
        self._known = embedder.fingerprint in known
        self.match = FITTED if self._known else UNMEASURED
        self._adopts: list[Adopts] = []
        self._measuring: asyncio.Task[None] | None = None
        self._tell()

    async def __aenter__(self) -> Self:
        if not self._known:
            self._measuring = asyncio.create_task(self._measure(), name="match of the embedding model")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._measuring is not None:
            self._measuring.cancel()
            await asyncio.gather(self._measuring, return_exceptions=True)

    async def wait(self, within: timedelta) -> None:
        """Until the model is measured, for *within* at most."""
        if self._measuring is not None:
            await asyncio.wait({self._measuring}, timeout=within.total_seconds())

    def subscribe(self, adopts: Adopts) -> None:
        """Call *adopts* now, and again when the model is measured."""
        self._adopts.append(adopts)
        adopts(self.match)

    def _tell(self) -> None:
        for each in Calibration:
            self._metrics.calibration.labels(each.value).set(each is self.match.calibration)
        for adopts in self._adopts:
            adopts(self.match)

    async def _measure(self) -> None:
        fingerprint, told = self._embedder.fingerprint, False
        while True:
            try:
                self.match = await match_model(self._embedder)
                break
            except MemoryExtprocError as error:
                if not told:
                    log.warning("recall.model_not_measured", embedding_model=fingerprint, kind=type(error).__name__)
                told = True
            await asyncio.sleep(self._retry.total_seconds())
        found = self.match
        self._tell()
        if found.calibration is Calibration.WORDS:
            log.warning("recall.weights_not_fitted", embedding_model=fingerprint)
            return
        log.info(
            "recall.model_measured",
            embedding_model=fingerprint,
            calibration=found.calibration.value,
            cosine=found.mean_cosine,
            least_cosine=found.least_cosine,
            recall=found.recall,
            quality=1.0 if found.scale is None else found.scale.quality,
        )
