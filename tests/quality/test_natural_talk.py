"""Thirteen people who talk as people do, in six languages, and what they ask another day: what recall does for
them, with the real model, may not fall unseen. No weight was ever fitted on these words.

The floors stand a little below what was measured when they were set.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from memory_extproc.evaluation.bench import bench
from memory_extproc.evaluation.datasets import read_dataset
from memory_extproc.evaluation.metrics import figures
from memory_extproc.evaluation.runner import Bounds, EvaluatedQuestion, Run, System, run
from memory_extproc.settings import Settings

SET = Path(__file__).parent / "natural.jsonl"


@pytest.fixture(scope="module")
def ran(int8_model_dir: Path) -> Run:
    """Recall as it is configured by default, asked everything."""
    settings = Settings.model_validate({"memory": {"embedding": {"models_dir": str(int8_model_dir.parent)}}})
    memory = settings.memory
    bounds = Bounds(memory.default_similarity_threshold, memory.default_retrieval_limit)

    async def measure() -> Run:
        async with bench(settings, unbounded=True) as made:
            return await run(read_dataset(SET), System.HYBRID, made, bounds)

    return asyncio.run(measure())


@pytest.fixture(scope="module")
def measured(ran: Run) -> dict[str, Any]:
    return figures(ran)


def test_what_answers_a_question_is_among_the_first_five(measured: dict[str, Any]) -> None:
    assert measured["recall@5"] >= 0.96
    assert measured["mrr"] >= 0.82


def test_the_threshold_lets_through_what_answers(measured: dict[str, Any]) -> None:
    assert measured["injection"]["recall"] >= 0.71
    assert measured["injection"]["precision"] >= 0.55


def test_nothing_is_injected_for_questions_that_nothing_answers(measured: dict[str, Any]) -> None:
    assert measured["abstention"]["share"] >= 0.90


@pytest.mark.parametrize(("category", "most"), [("general", 0), ("task", 0), ("chat", 1), ("others", 1)])
def test_whoever_asks_for_a_poem_or_the_boiling_point_of_water_gets_no_memory_with_it(
    ran: Run, category: str, most: int
) -> None:
    asked = [one for one in ran.asked if one.question.category == category]
    assert len(asked) > 5
    assert len([one for one in asked if _answered(one)]) <= most


def _answered(one: EvaluatedQuestion) -> bool:
    return bool(one.answer.injected)
