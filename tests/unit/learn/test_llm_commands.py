"""A model's reading of a doubtful message counts only in the message's own words."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry

from memory_extproc.errors import PermanentError, TransientError
from memory_extproc.learn.commands.parser import Act, Command, LlmCommands
from memory_extproc.learn.extract.llm_client import Budget
from memory_extproc.observe.metrics import Metrics
from memory_extproc.settings.paths import ModelTokens
from memory_extproc.testing.models import CannedCompletions
from tests.support.builders import MONDAY, a_turn, tokens

SAID = a_turn("I'd rather you did not remember the story of my ex Sarah any more.")


def answer(*commands: tuple[str, str]) -> str:
    return json.dumps({"commands": [{"act": act, "what": what} for act, what in commands]})


class Asked:
    def __init__(self, *answers: str | Exception, limits: Callable[[], ModelTokens] | None = None) -> None:
        self.completes = CannedCompletions(answers)
        self.metrics = Metrics(CollectorRegistry(), "test")
        budget = Budget(limits or tokens(), now=lambda: MONDAY)
        self.doubts = LlmCommands(self.completes, budget, self.metrics)

    def outcome(self, name: str) -> float:
        sample = "memory_extproc_chat_command_doubts_total"
        return self.metrics.registry.get_sample_value(sample, {"outcome": name}) or 0.0


async def test_what_is_meant_is_taken_in_the_words_of_the_message() -> None:
    asked = Asked(answer(("forget", "my ex Sarah"), ("no_longer_true", "")))
    assert await asked.doubts.commands(SAID) == [Command(Act.FORGET, "my ex Sarah"), Command(Act.RETRACT)]
    assert json.loads(asked.completes.asked[0][1]) == {"user": SAID.asked}
    assert asked.outcome("command") == 1


@pytest.mark.parametrize(
    "wrong",
    [
        "no JSON",
        answer(("forget", "")),
        answer(("forget", "the")),
        answer(("forget", "her job")),
        answer(("burn", "ex")),
    ],
    ids=["no JSON", "nothing", "no word that means anything", "what nobody said", "no such act"],
)
async def test_an_answer_that_does_not_hold_is_asked_for_again_and_then_nothing_is_done(wrong: str) -> None:
    assert await Asked(wrong, answer(("forget", "my ex"))).doubts.commands(SAID) == [Command(Act.FORGET, "my ex")]
    twice = Asked(wrong, wrong)
    assert await twice.doubts.commands(SAID) == ()
    assert twice.outcome("undecided") == 1


async def test_a_message_that_tells_us_nothing_is_asked_about_once() -> None:
    asked = Asked(answer(), PermanentError("not again"))
    assert await asked.doubts.commands(SAID) == []
    assert await asked.doubts.commands(SAID) == ()
    assert asked.outcome("none") == 1


async def test_a_model_that_is_away_is_waited_for_and_one_too_dear_is_not_asked() -> None:
    with pytest.raises(TransientError):
        await Asked(TransientError("away")).doubts.commands(SAID)
    poor = Asked(answer(("forget", "my ex")), limits=tokens(caller_hour=0))
    assert await poor.doubts.commands(SAID) == ()
    assert poor.completes.asked == []
