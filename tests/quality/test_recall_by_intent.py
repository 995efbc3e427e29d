"""People ask a memory for overviews, past conversations, dates, lists and facts several hops away: the answers,
with the real model, may not get worse unseen. The people are of the half that nothing is fitted on; this is a
sample, `eval recall --by-intent --held` asks all of it.

The floors stand a little below what was measured when they were set. A better recall raises the row of its kind.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from memory_extproc.evaluation.bench import bench
from memory_extproc.evaluation.by_intent import ask_by_intent, intent_figures, read_intent_set, sample_set
from memory_extproc.evaluation.runner import Bounds
from memory_extproc.settings import Settings
from scripts.make_intent_sets import HALVES, text_of

SETS = Path(__file__).parent / "intents"
PEOPLE, PER_KIND = 3, 15

# kind → share answered, precision of the lines injected, share of counterexamples that get nothing
FLOORS = {
    "overview of caller": (0.0, 0.75, 0.65),
    "overview of subject": (0.4, 0.55, 0.95),
    "past conversation": (0.38, 0.62, 0.95),
    "by date": (0.7, 0.95, 0.95),
    "list": (0.0, 0.4, 0.95),
    "indirect": (0.2, 0.1, 0.95),
    "several hops": (0.18, 0.55, 0.8),
    "standing constraint": (0.18, 0.22, 0.95),
    "as of": (0.38, 0.3, 0.95),
    "procedure": (0.8, 0.3, 0.95),
    "single fact": (0.28, 0.4, None),
    "small talk": (None, None, 0.95),
}
FLOOR_OF = {"answered": 0, "precision": 1, "abstention": 2}


@pytest.fixture(scope="module")
def measured(int8_model_dir: Path) -> dict[str, Any]:
    """The figures of recall as it is configured by default."""
    settings = Settings.model_validate({"memory": {"embedding": {"models_dir": str(int8_model_dir.parent)}}})
    memory = settings.memory
    bounds = Bounds(memory.default_similarity_threshold, memory.default_retrieval_limit)
    intents = sample_set(read_intent_set(SETS, held=True), PEOPLE, PER_KIND)

    async def measure() -> dict[str, Any]:
        async with bench(settings, topics=True, unbounded=True) as made:
            return intent_figures(intents, await ask_by_intent(intents, made, bounds, timed=False))

    return asyncio.run(measure())


@pytest.mark.parametrize("half", HALVES)
def test_the_sets_are_what_their_script_writes(half: str) -> None:
    assert (SETS / f"{half}.jsonl").read_text(encoding="utf-8") == text_of(half)


@pytest.mark.parametrize("half", HALVES)
def test_each_half_asks_enough_of_enough_people(half: str) -> None:
    intents = read_intent_set(SETS, held=half == "held")
    asked = [question.kind for _, questions in intents.people for question in questions if question.wanted]
    assert len(intents.people) == 10
    assert all(len(conversation.said) > 300 for conversation, _ in intents.people)
    assert all(asked.count(kind) >= 50 for kind in FLOORS if kind != "small talk")


def test_the_halves_share_no_question_and_no_message() -> None:
    dev, held = (read_intent_set(SETS, held=held) for held in (False, True))
    texts = [
        {question.query.casefold() for _, questions in one.people for question in questions if question.wanted}
        | {said.text.casefold() for conversation, _ in one.people for said in conversation.said}
        for one in (dev, held)
    ]
    assert not texts[0] & texts[1]


@pytest.mark.parametrize("figure", FLOOR_OF)
@pytest.mark.parametrize("kind", FLOORS)
def test_no_kind_of_question_falls_below_its_floor(measured: dict[str, Any], kind: str, figure: str) -> None:
    floor = FLOORS[kind][FLOOR_OF[figure]]
    found = measured["kinds"][kind][figure]
    if floor is None:
        assert found is None
    elif found is None:  # no line was injected, so none was wrong
        assert (figure, floor) == ("precision", 0.0)
    else:
        assert found >= floor, measured["kinds"][kind]
