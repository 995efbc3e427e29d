"""How well recall finds what people ask in everyday words, with the real model, may not fall unseen.

The floors stand a little below what was measured when they were set. Who makes recall better raises them.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from memory_extproc.evaluation.bench import bench
from memory_extproc.evaluation.datasets import read_dataset
from memory_extproc.evaluation.metrics import figures
from memory_extproc.evaluation.runner import Bounds, System, run
from memory_extproc.settings import Settings
from scripts.make_recall_set import lines
from scripts.make_small_talk import write

SET = Path(__file__).parent / "everyday.jsonl"


@pytest.fixture(scope="module")
def measured(int8_model_dir: Path) -> dict[str, Any]:
    return measure(SET, int8_model_dir)


def measure(path: Path, int8_model_dir: Path, most: int | None = None) -> dict[str, Any]:
    """The figures of recall on the set at *path*, as it is configured by default; *most*: of its questions."""
    settings = Settings.model_validate({"memory": {"embedding": {"models_dir": str(int8_model_dir.parent)}}})
    memory = settings.memory
    bounds = Bounds(memory.default_similarity_threshold, memory.default_retrieval_limit)

    async def run_all() -> dict[str, Any]:
        async with bench(settings, unbounded=True) as made:
            return figures(await run(read_dataset(path), System.HYBRID, made, bounds, limit_questions=most))

    return asyncio.run(run_all())


def test_the_set_is_what_its_script_writes() -> None:
    assert [json.loads(line) for line in SET.read_text(encoding="utf-8").splitlines()] == list(lines())


def test_what_answers_a_question_is_among_the_first_five(measured: dict[str, Any]) -> None:
    assert measured["recall@5"] >= 0.95


def test_it_stands_near_the_top(measured: dict[str, Any]) -> None:
    assert measured["mrr"] >= 0.86


@pytest.mark.parametrize(
    ("category", "floor"), [("fact", 0.90), ("update", 0.90), ("said", 0.92), ("short answer", 0.97)]
)
def test_no_kind_of_memory_is_left_behind(measured: dict[str, Any], category: str, floor: float) -> None:
    assert measured["by_category"][category]["recall@5"] >= floor


def test_nothing_is_injected_for_questions_that_nothing_answers(measured: dict[str, Any]) -> None:
    assert measured["abstention"]["share"] >= 0.88


def test_the_threshold_lets_through_what_answers(measured: dict[str, Any]) -> None:
    assert measured["injection"]["recall"] >= 0.77
    assert measured["injection"]["precision"] >= 0.71


@pytest.mark.long
def test_lookups_take_nothing_from_talk_of_two_people(int8_model_dir: Path, tmp_path: Path) -> None:
    """Weights are fitted on this talk, so the floors say nothing about other talk: they hold the way through the
    product, where a lookup by kind may come before the ranking."""
    talk = tmp_path / "small.json"
    write(talk)
    found = measure(talk, int8_model_dir, 150)
    assert found["questions"] > 100
    assert found["recall@5"] >= 0.80
    assert found["recall@10"] >= 0.853
    assert found["injection"]["recall"] >= 0.59
    assert found["injection"]["precision"] >= 0.255
