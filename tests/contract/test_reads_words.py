"""The contract of ports.TokenEmbeddingModel, held by every embedder that says what single words are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

import numpy as np
import pytest

from memory_extproc.index.entries import cosines, unpack
from memory_extproc.inference.model_files import Precision
from memory_extproc.inference.onnx import open_onnx_embedder
from memory_extproc.inference.prepare import parse_source, prepare
from memory_extproc.ports import EmbeddingModel, TokenEmbeddingModel
from memory_extproc.settings.memory import Embedding
from tests.support.canned import CannedWords
from tests.support.tiny_bert import write_tiny_bert


class Reader(EmbeddingModel, TokenEmbeddingModel, Protocol):
    """Both, as recall has them from one model."""


@pytest.fixture(scope="session")
def tiny_reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tiny-reader")
    source = parse_source(str(write_tiny_bert(root / "tiny")))
    return prepare(source, Precision.INT8, root / "models", force=False, say=lambda _: None).directory


@pytest.fixture(params=["canned", "onnx"])
async def reader(request: pytest.FixtureRequest, tiny_reader: Path) -> AsyncIterator[Reader]:
    if request.param == "canned":
        yield CannedWords()
        return
    async with open_onnx_embedder(tiny_reader, Embedding()) as opened:
        yield opened


async def test_it_says_that_it_reads_words(reader: Reader) -> None:
    assert isinstance(reader, TokenEmbeddingModel)
    assert reader.reads_words


async def test_the_words_of_what_was_never_embedded_are_not_known(reader: Reader) -> None:
    await reader.embed(["1 2"])
    assert reader.words(["3 4"]) == [None]


async def test_embedding_texts_makes_the_words_of_each_known(reader: Reader) -> None:
    await reader.embed(["1 2 3", "4", "5 6"])
    known = reader.words(["1 2 3", "never embedded", "4", "5 6"])
    assert [len(words.scale) if words is not None else None for words in known] == [3, None, 1, 2]


async def test_asking_for_a_querys_vector_makes_its_words_known(reader: Reader) -> None:
    await reader.embed_query("7 8")
    assert reader.words(["7 8"])[0] is not None


async def test_each_piece_is_of_unit_length_and_as_near_to_itself_as_can_be(reader: Reader) -> None:
    await reader.embed(["1 2 3"])
    words = reader.words(["1 2 3"])[0]
    assert words is not None
    assert np.allclose(np.linalg.norm(unpack(words), axis=1), 1.0, atol=1e-3)
    assert np.allclose(np.diag(cosines(words, unpack(words))), 1.0, atol=1e-3)


@pytest.mark.parametrize("text", ["", " ", "\x00", "😀", "\ud800", "the of and", "x " * 5_000])
async def test_whatever_the_text_it_has_a_finite_piece(reader: Reader, text: str) -> None:
    await reader.embed([text])
    words = reader.words([text])[0]
    assert words is not None
    assert len(words.scale) >= 1
    assert np.isfinite(unpack(words)).all()
