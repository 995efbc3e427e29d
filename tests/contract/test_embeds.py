"""The contract of ports.EmbeddingModel, held by every embedder."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from memory_extproc.inference.model_files import Precision
from memory_extproc.inference.onnx import open_onnx_embedder
from memory_extproc.inference.openai_client import EndpointLimits, ModelEndpoint
from memory_extproc.inference.openai_models import OpenAIEmbedder
from memory_extproc.inference.prepare import parse_source, prepare
from memory_extproc.inference.sentence_transformers import open_sentence_transformers_embedder
from memory_extproc.inference.word_hashing import WordHashEmbedder
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import EmbeddingModel
from memory_extproc.settings.memory import Embedding
from memory_extproc.testing.models import CannedEmbedder
from tests.support.endpoint import Reply, serving
from tests.support.tiny_bert import write_tiny_bert

Opening = Callable[[], AbstractAsyncContextManager[EmbeddingModel]]
DIMENSION = 64
AWKWARD = [
    "",
    " ",
    "\n\t",
    "\x00",
    "\ud800",
    "a\udfffb",
    "😀" * 2000,
    "a" * 1_000_000,
    "x " * 500_000,
    "我住在上海",
    "1",
]


class LibraryModel:
    """What we use of the class SentenceTransformer."""

    max_seq_length: int | None = None

    def __init__(self, name: str, device: str | None) -> None:
        self.name = name

    def encode(self, texts: Sequence[str], **_: Any) -> Any:
        for text in texts:
            text.encode()  # as the tokenizer does: no lone surrogates
        vectors = [np.bincount([ord(c) % DIMENSION for c in text] + [0], minlength=DIMENSION) for text in texts]
        return np.array(vectors, dtype=np.float64)


@asynccontextmanager
async def canned() -> AsyncIterator[EmbeddingModel]:
    yield CannedEmbedder(DIMENSION)


@asynccontextmanager
async def words() -> AsyncIterator[EmbeddingModel]:
    yield WordHashEmbedder(DIMENSION)


def answer(request: dict[str, Any]) -> Reply:
    vectors = LibraryModel("", None).encode(request["input"])
    data = [{"index": at, "embedding": vector.tolist()} for at, vector in enumerate(vectors)]
    return Reply(json.dumps({"object": "list", "data": data}))


@asynccontextmanager
async def remote() -> AsyncIterator[EmbeddingModel]:
    async with serving(answer) as stand_in:
        endpoint = ModelEndpoint(
            EndpointLimits(base_url=stand_in.base_url, timeout=timedelta(seconds=30)),
            role="embedding",
            marker="",
            metrics=Metrics(CollectorRegistry(), "test"),
            rng=lambda: 0.0,
            clock=lambda: 0.0,
        )
        embedder = OpenAIEmbedder(endpoint, Embedding(dimension=DIMENSION), batch=3)
        try:
            yield embedder
        finally:
            await embedder.close()


@asynccontextmanager
async def library() -> AsyncIterator[EmbeddingModel]:
    async with open_sentence_transformers_embedder("m", "cpu", Embedding(), load=lambda: LibraryModel) as embedder:
        yield embedder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tiny")
    source = parse_source(str(write_tiny_bert(root / "tiny")))
    return prepare(source, Precision.INT8, root / "models", force=False, say=lambda _: None).directory


@pytest.fixture(params=["canned", "words", "onnx", "openai", "sentence_transformers"])
def opening(request: pytest.FixtureRequest, tiny_model: Path) -> Opening:
    openings: dict[str, Opening] = {
        "canned": canned,
        "words": words,
        "onnx": lambda: open_onnx_embedder(tiny_model, Embedding(threads=2)),
        "openai": remote,
        "sentence_transformers": library,
    }
    return openings[request.param]


@pytest.fixture
async def embedder(opening: Opening) -> AsyncIterator[EmbeddingModel]:
    async with opening() as opened:
        yield opened


async def test_every_text_gets_a_unit_row_in_order(embedder: EmbeddingModel) -> None:
    texts = ["1 2", "3", "4 5 6 7 8 9", "3", "10"]

    rows = await embedder.embed(texts)

    assert rows.shape == (5, embedder.dimension)
    assert rows.dtype == np.float32
    assert np.allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-5)
    for text, row in zip(texts, rows, strict=True):
        assert np.allclose((await embedder.embed([text]))[0], row, atol=1e-3)


async def test_no_texts_give_no_rows(embedder: EmbeddingModel) -> None:
    assert (await embedder.embed([])).shape == (0, embedder.dimension)


async def test_any_text_gives_a_finite_unit_vector(embedder: EmbeddingModel) -> None:
    rows = await embedder.embed(AWKWARD)
    queries = [await embedder.embed_query(text) for text in AWKWARD]

    for vectors in (rows, np.stack(queries)):
        assert np.isfinite(vectors).all()
        assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)


async def test_a_query_is_embedded_as_a_memory_is_and_the_same_each_time(embedder: EmbeddingModel) -> None:
    first = await embedder.embed_query("7 8 9")

    assert first.shape == (embedder.dimension,)
    assert first.dtype == np.float32
    assert np.allclose(first, (await embedder.embed(["7 8 9"]))[0], atol=1e-3)
    assert np.array_equal(first, await embedder.embed_query("7 8 9"))


async def test_a_query_vector_that_others_may_hold_cannot_be_written_to(embedder: EmbeddingModel) -> None:
    vector = await embedder.embed_query("1 2 3")

    with pytest.raises(ValueError, match="read-only"):
        vector[0] = 0.0


async def test_many_at_one_time_get_their_own_vectors(embedder: EmbeddingModel) -> None:
    texts = [f"{n} {n + 1}" for n in range(40)]

    together = await asyncio.gather(*(embedder.embed_query(text) for text in texts), embedder.embed(texts))

    assert np.allclose(np.stack(together[:-1]), together[-1], atol=1e-3)
    assert len({row.tobytes() for row in together[-1]}) > 30


async def test_the_fingerprint_is_the_same_after_a_restart(opening: Opening, embedder: EmbeddingModel) -> None:
    async with opening() as again:
        assert (again.fingerprint, again.dimension) == (embedder.fingerprint, embedder.dimension)
    assert embedder.fingerprint
