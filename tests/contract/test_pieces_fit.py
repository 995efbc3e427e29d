"""Pieces of long messages fit the window of the real model, so that no word of them is missing in its vector."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from memory_extproc.inference.model_files import TOKENIZER, verify
from memory_extproc.learn.messages import ChunkLimits, pieces

ROOT = Path(__file__).parents[2]
LONG = {
    "prose": (ROOT / "LICENSE").read_text(),
    "markdown": (ROOT / "docs" / "memory-model.md").read_text(),
    "code": (ROOT / "memory_extproc" / "learn" / "learner.py").read_text(),
    "configuration": (ROOT / "config.yaml").read_text(),
    "figures": "\n".join(",".join(str(n * step % 99_991) for step in (7, 131, 8191, 65_537)) for n in range(600)),
    "figures in one line": ", ".join(str(n * 7919 % 1_000_003 / 1000) for n in range(2000)),
    "German": "Die Donaudampfschifffahrtsgesellschaft beschäftigt außergewöhnliche Übersetzerinnen in Köln. " * 90,
    "Russian": "Здравствуйте, меня зовут Иван, и я живу в Москве с двумя собаками. " * 90,
    "Arabic": "مرحبا، اسمي أحمد وأعيش في القاهرة مع قطتين. " * 90,
    "Hindi": "नमस्ते, मेरा नाम राम है और मैं दिल्ली में रहता हूँ। " * 90,
    "Chinese": "我的预算是一万美元，我们打算五月去夏威夷。" * 90,
    "Japanese": "私の予算は一万ドルで、五月にハワイへ行くつもりです。" * 90,
    "Korean": "안녕하세요 저는 서울에 살고 있고 고양이 두 마리를 키웁니다. " * 90,
}


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_every_piece_fits_the_window_of_the_default_model(text: str, int8_model_dir: Path) -> None:
    tokenizer = Tokenizer.from_file(str(int8_model_dir / TOKENIZER))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    window = verify(int8_model_dir).max_seq_length
    found = pieces(text, ChunkLimits(pieces=10_000)).texts
    assert len(found) > 1
    assert max(len(tokenizer.encode(piece).ids) for piece in found) <= window


@pytest.mark.parametrize("text", [LONG["prose"], LONG["code"]], ids=["prose", "code"])
def test_pieces_of_english_and_of_code_use_most_of_what_they_may_have(text: str, int8_model_dir: Path) -> None:
    tokenizer = Tokenizer.from_file(str(int8_model_dir / TOKENIZER))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    sizes = [len(tokenizer.encode(piece).ids) for piece in pieces(text, ChunkLimits(pieces=10_000)).texts]
    assert sum(sizes) / len(sizes) > 110
