"""The contract of ports.RerankModel, held by every reranker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from memory_extproc.inference.model_files import ModelKind, Precision
from memory_extproc.inference.onnx import open_cross_encoder
from memory_extproc.inference.prepare import parse_source, prepare
from memory_extproc.ports import RerankModel
from memory_extproc.recall.rerank import LlmReranker
from memory_extproc.testing.models import CannedCompletions
from tests.support.canned import CannedReranker
from tests.support.tiny_bert import write_tiny_bert

AWKWARD = ["", " ", "\n", "\x00", "\ud800", "a\udfffb", "😀" * 2000, "a" * 1_000_000, "我住在上海", "x " * 100_000]


@pytest.fixture(scope="session")
def tiny_cross_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tiny-cross-encoder")
    source = parse_source(str(write_tiny_bert(root / "tiny", classes=1)))
    kind = ModelKind.CROSS_ENCODER
    return prepare(source, Precision.INT8, root / "models", kind=kind, force=False, say=lambda _: None).directory


@pytest.fixture(params=["canned", "cross_encoder", "llm"])
async def reranker(request: pytest.FixtureRequest, tiny_cross_encoder: Path) -> AsyncIterator[RerankModel]:
    if request.param == "canned":
        yield CannedReranker()
        return
    if request.param == "llm":
        model = CannedCompletions(lambda _system, _user: '{"order": [2, 1]}')
        yield LlmReranker(model)
        return
    async with open_cross_encoder(tiny_cross_encoder) as opened:
        yield opened


async def test_each_text_gets_one_number_between_0_and_1(reranker: RerankModel) -> None:
    scores = await reranker.rerank("1 2", ["1", "2 3", "4", "1 2"])
    assert len(scores) == 4
    assert all(0.0 <= score <= 1.0 for score in scores)


async def test_no_texts_give_no_numbers(reranker: RerankModel) -> None:
    assert list(await reranker.rerank("1", [])) == []


async def test_a_single_text_has_a_number_too(reranker: RerankModel) -> None:
    assert 0.0 <= (await reranker.rerank("1", ["2"]))[0] <= 1.0


async def test_any_text_is_accepted_on_both_sides(reranker: RerankModel) -> None:
    assert len(await reranker.rerank("1", AWKWARD)) == len(AWKWARD)
    for query in AWKWARD:
        assert len(await reranker.rerank(query, ["1", ""])) == 2


async def test_the_same_texts_get_the_same_order_again(reranker: RerankModel) -> None:
    texts = ["1", "2 3", "4 5 6"]
    first, second = await reranker.rerank("1 2", texts), await reranker.rerank("1 2", texts)
    assert list(first) == list(second)
