"""Our ONNX models against the vectors that sentence-transformers on PyTorch gives (scripts/parity.py)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.embedding import write_unit_model
from memory_extproc.inference.onnx import OnnxModel, open_onnx_embedder
from memory_extproc.inference.prepare import DEFAULT_WEIGHTS_SHA256
from memory_extproc.model import Matrix
from memory_extproc.recall.model_match import Calibration, _probes, compare
from memory_extproc.settings.memory import Embedding

REFERENCE = Path(__file__).parents[1] / "reference"
ONE_BY_ONE = 1  # tokens in a batch: every text goes alone


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    return (REFERENCE / "sentences.txt").read_text("utf-8").splitlines()


@pytest.fixture(scope="module")
def reference() -> Matrix:
    vectors: Matrix = np.load(REFERENCE / "vectors.npy")
    return vectors


def cosines(left: Matrix, right: Matrix) -> Matrix:
    products: Matrix = np.einsum("ij,ij->i", left, right)
    return products


def test_the_reference_was_made_from_these_sentences_and_the_published_weights(reference: Matrix) -> None:
    made_with = json.loads((REFERENCE / "made_with.json").read_text("utf-8"))

    sentences = (REFERENCE / "sentences.txt").read_bytes()
    assert made_with["sentences_sha256"] == hashlib.sha256(sentences).hexdigest()
    assert made_with["weights_sha256"] == DEFAULT_WEIGHTS_SHA256
    assert made_with["libraries"]["torch"].startswith("2.")
    assert reference.shape == (200, 384)


def test_fp32_gives_the_vectors_of_pytorch(fp32_model_dir: Path, sentences: list[str], reference: Matrix) -> None:
    found = cosines(OnnxModel(fp32_model_dir).run(sentences, ONE_BY_ONE), reference)

    assert found.min() >= 0.9999


@pytest.mark.parametrize("batch_tokens", [ONE_BY_ONE, 128, 4096])
def test_int8_stays_near_pytorch_alone_and_in_company(
    int8_model_dir: Path, sentences: list[str], reference: Matrix, batch_tokens: int
) -> None:
    found = cosines(OnnxModel(int8_model_dir).run(sentences, batch_tokens), reference)

    assert found.mean() >= 0.995
    assert found.min() >= 0.98


def test_rows_of_an_earlier_versions_graph_serve_beside_those_of_the_fused_one(
    int8_model_dir: Path, fp32_model_dir: Path, tmp_path: Path
) -> None:
    earlier, fused = OnnxModel(write_unit_model(fp32_model_dir, tmp_path / "earlier")), OnnxModel(int8_model_dir)
    probes = _probes()

    for texts, questions in ((earlier, fused), (fused, earlier), (fused, fused)):
        found = compare(texts.run(probes.texts, 128), questions.run(probes.questions, 128))
        assert found.calibration is Calibration.FITTED


def test_the_fingerprint_is_the_one_that_rows_were_written_with(int8_model_dir: Path) -> None:
    assert OnnxModel(int8_model_dir).fingerprint == "all-MiniLM-L6-v2/int8/6c765dcc2394"


def test_the_vector_of_a_text_does_not_depend_on_what_it_was_batched_with(
    int8_model_dir: Path, sentences: list[str]
) -> None:
    model = OnnxModel(int8_model_dir)

    found = cosines(model.run(sentences, ONE_BY_ONE), model.run(sentences, 4096))

    assert found.min() >= 0.999


async def test_queries_and_memories_of_one_text_get_one_vector(int8_model_dir: Path, sentences: list[str]) -> None:
    some = sentences[::10]
    async with open_onnx_embedder(int8_model_dir, Embedding()) as embedder:
        memories = await embedder.embed(some)
        queries = np.stack([await embedder.embed_query(text) for text in some])

    assert cosines(memories, queries).min() >= 0.999
