"""What was decided, changed and made in a conversation is found another day, with the real model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from memory_extproc.evaluation.bench import bench
from memory_extproc.evaluation.datasets import EvaluationCase, SaidMessage
from memory_extproc.evaluation.runner import wait_filled
from memory_extproc.model import Caller, RecallRequest, Role
from memory_extproc.settings import Settings

MONDAY = datetime(2026, 9, 7, 8, tzinfo=UTC)
Talk = Sequence[tuple[str, str] | None]  # what the caller said, and the answer; None: another session, weeks later

TOOLS: Talk = [
    ("Load tests with locust or k6?", "Either works."),
    ("k6 then.", "Good choice, start with a smoke test."),
    (
        "We deploy on Fridays. Which dumbbells for the office gym, Bowflex or PowerBlock?",
        "PowerBlock lasts longer.",
    ),
    ("PowerBlock it is", "Noted."),
]
MEALS = (
    "I need help planning meals. I'm lactose intolerant, my partner Sam is pescatarian and our budget is about 90"
)
FOOD: Talk = [
    (f"{MEALS} quid a week.", "Happy to help!"),
    None,
    ("also the budget's gone down to 75, I'm between jobs since Friday", "Then more pulses."),
]
ORKNEY: Talk = [
    ("could you help with a packing list for Orkney? we're going 1-10 June", "Waterproofs, dry bags, a drone."),
    ("Freya comes along", "Lovely."),
]

HALL: Talk = [
    ("hall deposit is 300 euros, cash. write me a receipt template", "Received with thanks ..."),
    None,
    ("the council raised it: 450 as a deposit for the hall and by bank transfer only. adapt that receipt", "Done."),
]


@pytest.mark.parametrize(
    ("talk", "question", "there", "not_there"),
    [
        (TOOLS, "which dumbbells did I decide on?", 'User chose PowerBlock ("Which dumbbells', "smoke test"),
        (TOOLS, "locust or k6, what did we decide?", "User chose k6", "summary of an earlier"),
        (FOOD, "what's our weekly food budget?", "User's budget is 75", "between jobs"),
        (ORKNEY, "what's on my packing list?", "Waterproofs, dry bags, a drone.", "Lovely"),
        (HALL, "How much is the deposit for the hall?", "[2026-09-07, perhaps no longer so since 2026-09-21]", "~"),
        (HALL, "How much was the deposit for the hall before?", "300 euros", "no longer so"),
    ],
)
def test_decisions_changes_and_what_the_assistant_made_are_found_another_day(
    talk: Talk, question: str, there: str, not_there: str, int8_model_dir: Path
) -> None:
    block = asyncio.run(asked_later(talk, question, int8_model_dir)).replace("'", '"')
    assert there.replace("'", '"') in block
    assert not_there not in block


async def asked_later(talk: Talk, question: str, models: Path) -> str:
    """The block for *question*, asked a week after *talk*."""
    said: list[SaidMessage] = []
    session, at = "s1", MONDAY
    for turn in talk:
        if turn is None:
            session, at = "s2", at + timedelta(weeks=2)
            continue
        at += timedelta(minutes=1)
        for role, text in zip((Role.USER, Role.ASSISTANT), turn, strict=True):
            said.append(SaidMessage(f"{len(said)}", role, text, session, at))
    settings = Settings.model_validate({"memory": {"embedding": {"models_dir": str(models.parent)}}})
    async with bench(settings, topics=True, unbounded=True) as made:
        case = EvaluationCase("olu", tuple(said), (), asked_at=at + timedelta(weeks=2))
        async with made.play(case, made.partition, made.topics) as there:
            await wait_filled(there, made.embedder)
            recaller = made.recaller(there.partitions, made.embedder, there.clock)
            memory = settings.memory
            request = RecallRequest(
                caller=Caller(there.owner),
                asked=question,
                limit=memory.default_retrieval_limit,
                threshold=memory.default_similarity_threshold,
            )
            return (await recaller.recall(request)).block
