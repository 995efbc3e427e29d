"""Memories learned from conversations, through the real Envoy, the real store and the real model."""

from __future__ import annotations

import copy
from collections import Counter

import numpy as np
import pytest
from aiohttp import web

from memory_extproc.model import Memory, Owner, Scope, Source
from tests.support.upstream import ANSWER
from tests.support.waiting import until
from tests.support.whole import WholeStand

pytestmark = pytest.mark.envoy

BUDGET = "My budget for the Hawaii trip is $10,000."
TURNS = 200


async def echo(request: web.Request) -> web.StreamResponse:
    """A model that answers with all it was shown, our block included."""
    body = await request.json()
    answer = copy.deepcopy(ANSWER)
    shown = "\n".join(str(message["content"]) for message in body["messages"])
    answer["choices"][0]["message"]["content"] = f"I see:\n{shown}"  # type: ignore[index]  # JSON
    return web.json_response(answer)


async def memories(whole: WholeStand, user: str = "ann") -> list[Memory]:
    anywhere = np.full(384, 384**-0.5, dtype=np.float32)
    searched = await whole.whole.partitions.nearest(Owner("", user), anywhere, 1000, Scope())
    return [found.memory for found in searched.found]


async def test_an_echoing_model_teaches_us_nothing_however_long_it_goes_on(whole: WholeStand) -> None:
    whole.changes["memory"] = {"extraction_batch_size": 1}
    await whole.start()
    whole.upstream.answers = echo
    await whole.say(BUDGET)
    await until(lambda: whole.sample("reconcile_total", decision="added") == 1, "the fact is there", seconds=10)

    async def kinds() -> Counter[str]:
        return Counter(memory.source.value for memory in await memories(whole))

    for _ in range(2):
        await whole.say("What's my budget for the trip?")
        await whole.say(BUDGET)
    await until(lambda: whole.sample("journal_depth") == 0, "all is learned", seconds=20)
    before = await kinds()
    assert before[Source.RULES.value] == 1
    for turn in range(TURNS):
        answer = await whole.say(BUDGET if turn % 2 else "What's my budget for the trip?")
        assert turn % 2 or answer.memory.startswith("used")
    await until(lambda: whole.sample("journal_depth") == 0, "all is learned", seconds=20)
    assert await kinds() == before


async def test_what_stopped_being_so_is_known_as_such_and_the_past_to_who_asks_for_it(whole: WholeStand) -> None:
    await whole.start()
    said = ["I live in Paris.", "I moved to Tokyo."]
    for count, words in enumerate(said):
        await whole.say(words, x_memory_session="end")
        decision = "replaced" if count else "added"
        await until(lambda d=decision: whole.sample("reconcile_total", decision=d) == 1, decision, seconds=10)  # type: ignore[misc]  # a default binds it
    assert (await whole.say("Where do I live?")).memory.startswith("used")
    assert "Tokyo" in whole.shown
    assert "Paris" not in whole.shown
    assert (await whole.say("Where did I live before?")).memory.startswith("used")
    (line,) = [line for line in whole.shown.splitlines() if "User lives in Paris" in line]
    assert "no longer so" in line


async def test_a_value_that_was_corrected_is_learned_without_an_end_of_the_session(whole: WholeStand) -> None:
    """The rules need no batch of turns: the new value replaces the old one while the conversation goes on."""
    await whole.start()
    for words, decision in ((BUDGET, "added"), ("Sorry, my budget for the Hawaii trip is $12,500", "replaced")):
        await whole.say(words)
        await until(lambda d=decision: whole.sample("reconcile_total", decision=d) == 1, decision, seconds=10)  # type: ignore[misc]  # a default binds it
    assert (await whole.say("What's my budget for the trip?")).memory.startswith("used")
    assert "12,500" in whole.shown
    assert "10,000" not in whole.shown
