"""Kinds of questions through the real Envoy: what was said in one conversation is asked for in others."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from memory_extproc.concurrency import utc_now
from tests.support.upstream import ANSWER, an_answer
from tests.support.whole import WholeStand

pytestmark = pytest.mark.envoy

SAID = (
    "I'm a pediatric nurse at the Riverside Hospital.",
    "I have twins, Ada and Bo.",
    "I'm allergic to peanuts.",
    "I'm allergic to shellfish too.",
    "I live in Gothenburg.",
    "My sister's name is Anna.",
    "Anna's husband Tom owns the Rye Corner bakery on Elm Street.",
    "To deploy atlas: run make release, then tag the build.",
    "My appointment with the physiotherapist is on 27 November.",
    "We want oak counters for the kitchen.",
    "I moved to Malmö.",
)


@pytest.fixture
async def told(whole: WholeStand) -> WholeStand:
    await whole.start()
    message = {"role": "assistant", "content": "Noted."}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    whole.upstream.answers = an_answer(json.dumps({**ANSWER, "choices": choices}).encode())
    for words in SAID:
        assert (await whole.say(words)).status == 200
    await whole.restart()  # all of it is learned
    return whole


@pytest.mark.parametrize("as_of", [False, True])
async def test_each_kind_of_question_gets_what_answers_it_and_the_others_nothing(
    told: WholeStand, *, as_of: bool
) -> None:
    if as_of:
        then = (utc_now() - timedelta(days=400)).isoformat()
        await told.say("What do you know about me?", **{"x-memory-as-of": then})
        assert "<memory>" not in told.shown
        for unreadable in ("tomorrow", (datetime.now(UTC) + timedelta(days=1)).isoformat()):
            answer = await told.say("my allergies", **{"x-memory-as-of": unreadable})
            assert answer.status == 200
            assert "peanuts" in told.shown
        return
    for question, wanted in (
        ("what did we talk about last time?", ["the user said"]),
        ("What do you know about me?", ["pediatric nurse", "Malmö", "peanuts", "Ada and Bo"]),
        ("waht do u remember about me", ["pediatric nurse", "peanuts"]),
        ("Was weißt du über mich?", ["pediatric nurse"]),
        ("what do you know about my sister?", ["Anna", "Rye Corner"]),
        ("what did I tell you today?", ["oak counters"]),
        ("list my allergies", ["peanuts", "shellfish"]),
        ("whom did I mention?", ["Anna", "Ada and Bo"]),
        ("what do I do for a living?", ["pediatric nurse"]),
        ("what are the names of my children", ["Ada and Bo"]),
        ("where is the bakery of my sister's husband?", ["Anna", "Elm Street"]),
        ("Recommend a restaurant for tonight.", ["peanuts"]),
        ("where did i live before", ["Gothenburg"]),
        ("how do I deploy atlas again?", ["make release"]),
        ("What do I have on 27 November?", ["physiotherapist"]),
    ):
        await told.say(question)
        assert all(word in told.shown for word in wanted), (question, told.shown)
    for question in (
        "What is the capital of France?",
        "Write a poem",
        "tell me everything about black holes",
        "who is Ada Lovelace?",
        "how do I boil an egg?",
        "hi there",
    ):
        await told.say(question)
        assert "<memory>" not in told.shown, question
    await told.say("What do you know about me?", user="bob")
    assert "<memory>" not in told.shown
