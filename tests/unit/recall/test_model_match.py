"""An embedding model is known by its vectors; another one's cosines are put on the scale of the weights."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from memory_extproc.errors import PermanentError, TransientError
from memory_extproc.inference.batching import of_unit_length
from memory_extproc.inference.word_hashing import WordHashEmbedder
from memory_extproc.model import Matrix, Vector
from memory_extproc.observe.metrics import Metrics
from memory_extproc.recall.fusion import Fusion, packaged_weights
from memory_extproc.recall.model_match import Calibration, ModelMatcher, _probes, compare, match_model


class Served:
    """Vectors of the probes as another server would give them: *changed* from the reference vectors."""

    fingerprint, dimension, max_tokens = "someone/openai", 384, 256

    def __init__(self, noise: float = 0.0, answers: Matrix | None = None) -> None:
        probes = _probes()
        rng = np.random.default_rng(3)
        texts = [*probes.texts, *probes.questions]
        whole = np.vstack([probes.text_vectors, probes.question_vectors])
        whole = of_unit_length((whole + noise * rng.standard_normal(whole.shape)).astype(np.float32))
        self._vectors = dict(zip(texts, whole, strict=True))
        self._answers, self.fails = answers, 0

    async def embed(self, texts: Sequence[str]) -> Matrix:
        if self.fails:
            self.fails -= 1
            raise TransientError("away")
        return self._answers if self._answers is not None else np.stack([self._vectors[text] for text in texts])

    async def embed_query(self, text: str) -> Vector:
        vector: Vector = (await self.embed([text]))[0]
        return vector


async def test_the_same_weights_are_known_whoever_serves_them_and_however_exactly() -> None:
    for noise in (0.0, 0.002):
        match = await match_model(Served(noise))
        assert match.calibration is Calibration.FITTED, match


async def test_a_model_that_is_mostly_noise_has_no_word() -> None:
    assert (await match_model(Served(0.3))).calibration is Calibration.WORDS


async def test_a_model_that_is_nearly_the_same_is_another() -> None:
    match = await match_model(Served(0.05))
    assert match.calibration is Calibration.ALIGNED
    assert match.scale is not None
    assert 0.0 < match.scale.quality <= 1.0


@pytest.mark.parametrize("dimension", [64, 256, 384])
async def test_of_vectors_that_tell_no_more_than_words_words_alone_decide(dimension: int) -> None:
    match = await match_model(WordHashEmbedder(dimension))
    assert match.calibration is Calibration.WORDS
    assert (match.mean_cosine is None) is (dimension != 384)


def test_another_width_is_put_on_the_scale_of_the_weights() -> None:
    probes = _probes()
    wider = [np.hstack([one, np.zeros((len(one), 128))]) for one in (probes.text_vectors, probes.question_vectors)]
    match = compare(*(one.astype(np.float32) for one in wider))
    assert match.calibration is Calibration.ALIGNED
    assert match.mean_cosine is None
    assert match.scale is not None
    assert match.scale.quality == pytest.approx(1.0)


def test_a_model_that_tells_nothing_apart_has_no_word() -> None:
    probes = _probes()
    same = np.ones((1, 16), dtype=np.float32) / 4
    match = compare(np.repeat(same, len(probes.texts), 0), np.repeat(same, len(probes.questions), 0))
    assert match.calibration is Calibration.WORDS


@pytest.mark.parametrize("answers", [np.full((32, 384), np.nan), np.ones((32, 12)), np.ones((3, 384))])
async def test_vectors_that_are_none_are_refused(answers: Matrix) -> None:
    with pytest.raises(PermanentError):
        await match_model(Served(answers=answers.astype(np.float32)))


async def test_a_model_that_is_away_at_the_start_is_measured_when_it_is_back() -> None:
    served, metrics = Served(), Metrics(CollectorRegistry(), "test")
    served.fails = 2
    fusion = Fusion(packaged_weights(), served.fingerprint)
    pause = timedelta(milliseconds=1)
    async with ModelMatcher(served, known=(), metrics=metrics, retry=pause) as matcher:
        matcher.subscribe(fusion.adopt)
        assert fusion.calibration is Calibration.WORDS
        await matcher.wait(timedelta(seconds=30))
    assert fusion.fitted
    values = {one.value: metrics.calibration.labels(one.value)._value.get() for one in Calibration}
    assert values == {"fitted": 1, "aligned": 0, "words": 0}


async def test_a_model_that_hangs_delays_nothing_for_longer_than_it_may() -> None:
    class Hanging(Served):
        async def embed(self, texts: Sequence[str]) -> Matrix:
            await asyncio.Event().wait()
            return await super().embed(texts)

    async with ModelMatcher(Hanging(), known=(), metrics=Metrics(CollectorRegistry(), "test")) as matcher:
        await matcher.wait(timedelta(milliseconds=1))
        assert matcher.match.calibration is Calibration.WORDS


async def test_a_model_with_weights_of_its_own_is_not_asked() -> None:
    served = Served()
    served.fails = 99
    known = (served.fingerprint,)
    async with ModelMatcher(served, known=known, metrics=Metrics(CollectorRegistry(), "test")) as matcher:
        await matcher.wait(timedelta(seconds=1))
    assert matcher.match.calibration is Calibration.FITTED
    assert served.fails == 99
