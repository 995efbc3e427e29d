"""Ordinary chats of people with an assistant, over months, and what they ask later: answers with the real model
may not get worse unseen. The sixteen people here were written by hands that did not know the product; on sixteen
others, in `dev.jsonl`, rules were tried. `eval recall --by-intent --held --dataset tests/quality/chats` prints the
figures by kind.

The floors stand a little below what was measured when they were set.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from memory_extproc.evaluation.bench import bench
from memory_extproc.evaluation.by_intent import JudgedQuestion, ask_by_intent, read_intent_set
from memory_extproc.evaluation.runner import Bounds
from memory_extproc.settings import Settings

SETS = Path(__file__).parent / "chats"
FLOORS = {
    "fact": 0.5,
    "change": 0.45,
    "overview": 0.8,
    "subject": 0.38,
    "past": 0.48,
    "date": 0.75,
    "advice": 0.4,
    "hops": 0.35,
}


@pytest.fixture(scope="module")
def judged(int8_model_dir: Path) -> list[JudgedQuestion]:
    """Recall as it is configured by default, asked everything."""
    settings = Settings.model_validate({"memory": {"embedding": {"models_dir": str(int8_model_dir.parent)}}})
    memory = settings.memory
    bounds = Bounds(memory.default_similarity_threshold, memory.default_retrieval_limit)

    async def measure() -> list[JudgedQuestion]:
        async with bench(settings, topics=True, unbounded=True) as made:
            return list(await ask_by_intent(read_intent_set(SETS, held=True), made, bounds, timed=False))

    return asyncio.run(measure())


@pytest.mark.parametrize("kind", FLOORS)
def test_people_are_answered_as_often_as_before(judged: list[JudgedQuestion], kind: str) -> None:
    asked = [one for one in judged if one.question.kind == kind]
    assert len(asked) >= 16
    assert sum(one.answered for one in asked) >= FLOORS[kind] * len(asked)


def test_small_talk_and_questions_about_the_world_get_nothing(judged: list[JudgedQuestion]) -> None:
    small = [one for one in judged if one.question.kind == "small"]
    assert len(small) >= 30
    assert sum(bool(one.block) for one in small) <= 1


def test_the_halves_share_no_person() -> None:
    dev, held = (read_intent_set(SETS, held=held) for held in (False, True))
    assert len(dev.people) == len(held.people) == 16
    assert not {said.name for said, _ in dev.people} & {said.name for said, _ in held.people}
