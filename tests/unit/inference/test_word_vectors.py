"""Vectors of single words: which are kept, for how long, and how near they are to what the model gave."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from memory_extproc.index.entries import pack, unpack
from memory_extproc.inference.batching import WordVectors, meaningful, words_of
from memory_extproc.inference.model_files import Precision
from memory_extproc.inference.onnx import OnnxModel
from memory_extproc.inference.prepare import parse_source, prepare
from memory_extproc.model import WordPieces
from tests.support.tiny_bert import HIDDEN, write_tiny_bert


def some_words(pieces: int = 4, dimension: int = 8) -> WordPieces:
    return pack(np.ones((pieces, dimension), dtype=np.float32))


def test_function_words_punctuation_and_the_models_own_marks_carry_no_meaning() -> None:
    pieces = ["[CLS]", "[SEP]", "<s>", "the", "with", "!", "...", "dog", "##gie", "7", "犬"]
    kept = meaningful({piece: at for at, piece in enumerate(pieces)})
    assert [piece for piece, carries in zip(pieces, kept, strict=True) if carries] == ["dog", "##gie", "7", "犬"]


def test_a_text_of_nothing_but_function_words_keeps_them() -> None:
    states = np.eye(3, dtype=np.float32)
    assert len(words_of(states, np.zeros(3, dtype=bool)).scale) == 3


def test_a_state_without_length_stays_finite() -> None:
    words = words_of(np.zeros((2, 4), dtype=np.float32), np.ones(2, dtype=bool))
    assert np.isfinite(unpack(words)).all()


def test_what_is_kept_is_bounded_in_bytes_and_what_was_asked_for_last_stays() -> None:
    kept = WordVectors(4 * (some_words().size + 500))
    for text in ("a", "b", "c", "d"):
        kept.keep(text, some_words())
    assert kept.find("a") is not None
    kept.keep("e", some_words())
    assert (kept.find("b"), len(kept)) == (None, 4)
    assert kept.find("a") is not None
    kept.keep("e", some_words(pieces=2))
    assert kept.size < 4 * (some_words().size + 500)


def test_a_text_larger_than_all_that_may_be_kept_leaves_nothing_behind() -> None:
    kept = WordVectors(100)
    kept.keep("a", some_words())
    assert (len(kept), kept.size) == (0, 0)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    source = parse_source(str(write_tiny_bert(tmp_path / "tiny")))
    return prepare(source, Precision.FP32, tmp_path / "models", force=False, say=lambda _: None).directory


def test_embedding_a_text_makes_its_words_known_and_changes_no_vector(tiny: Path) -> None:
    texts = ["1 2 3", "", "4 5 6 7 8", "unknown words"]
    kept = WordVectors(1 << 20)
    vectors = OnnxModel(tiny, kept).run(texts, 16)
    assert np.array_equal(vectors, OnnxModel(tiny).run(texts, 16))
    known = kept.find("4 5 6 7 8")
    assert known is not None
    assert unpack(known).shape == (5, HIDDEN)
    assert kept.find("4 5 6") is None


def test_a_word_is_the_same_whatever_it_was_embedded_beside(tiny: Path) -> None:
    alone, together = WordVectors(1 << 20), WordVectors(1 << 20)
    OnnxModel(tiny, alone).run(["1 2 3"], 1)
    OnnxModel(tiny, together).run(["1 2 3", "4 5 6 7 8 9 10 11"], 10_000)
    one, other = alone.find("1 2 3"), together.find("1 2 3")
    assert one is not None
    assert other is not None
    assert (np.einsum("ij,ij->i", unpack(one), unpack(other)) > 0.99).all()
