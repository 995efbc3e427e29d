"""How well recall finds what was said in chats with an assistant, long answers and all, with the real model: never
worse than plain BM25. The two personas are seen by no fit (realmem-p5-p6.md says where they are from)."""

from __future__ import annotations

import asyncio
import lzma
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from memory_extproc.evaluation.bench import bench
from memory_extproc.evaluation.datasets import Dataset, read_dataset
from memory_extproc.evaluation.metrics import figures
from memory_extproc.evaluation.runner import Bounds, System, run
from memory_extproc.evaluation.training import Gathered, gather, learn_all
from memory_extproc.recall.fusion import packaged_weights, scores_of
from memory_extproc.settings import Settings

SET = Path(__file__).parent / "realmem-p5-p6.jsonl.xz"


@pytest.fixture(scope="module")
def settings(int8_model_dir: Path) -> Settings:
    return Settings.model_validate({"memory": {"embedding": {"models_dir": str(int8_model_dir.parent)}}})


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    path = tmp_path_factory.mktemp("realmem") / "set.jsonl"
    path.write_bytes(lzma.decompress(SET.read_bytes()))
    return read_dataset(path)


@pytest.fixture(scope="module")
def gathered(settings: Settings, dataset: Dataset) -> list[Gathered]:
    """The candidates of every question."""

    async def found() -> list[Gathered]:
        async with bench(settings, unbounded=True) as made, learn_all(dataset, made) as stage:
            return [one for one in await gather(stage, made) if one.question.counts]

    return asyncio.run(found())


@pytest.mark.parametrize("k", [5, 10, 20])
def test_the_order_is_never_worse_than_plain_bm25(gathered: list[Gathered], k: int) -> None:
    assert len(gathered) > 50
    features = packaged_weights().hybrid.features
    columns = [one.candidates.features[:, one.candidates.names.index("bm25")] for one in gathered]
    plain = fmean(one.recall(k, bm25) for one, bm25 in zip(gathered, columns, strict=True))
    assert fmean(one.recall(k, scores_of(features, one.candidates)) for one in gathered) >= plain


def test_recall_finds_what_a_question_in_a_long_chat_needs(settings: Settings, dataset: Dataset) -> None:
    async def measure() -> dict[str, Any]:
        async with bench(settings, unbounded=True) as made:
            return figures(await run(dataset, System.HYBRID, made, Bounds()))

    measured = asyncio.run(measure())
    assert measured["recall@10"] >= 0.30
    assert measured["recall@20"] >= 0.41
    assert measured["injection"]["recall"] >= 0.13  # 0.115 of the search alone: lookups add to it
