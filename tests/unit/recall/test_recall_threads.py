"""For a topic that matches well its own words are fetched: no more than may be, and none that the model sees."""

from __future__ import annotations

from datetime import timedelta

import pytest

from memory_extproc.errors import TransientError
from memory_extproc.model import Considered, Memory, MemoryState, Ranked, Source, Verdict
from memory_extproc.recall.rank import ThreadFetcher, with_threads
from memory_extproc.settings import CurrentSettings, Settings
from memory_extproc.settings.paths import Recall, Threads
from tests.support.builders import ANN, BOB, MONDAY, a_memory, a_message
from tests.unit.recall.reading import Reads

SECOND = timedelta(seconds=1)
BUDGET = a_message("My budget for Hawaii is $10,000.", seq=2)
FLIGHT = a_message("The flight leaves on May 3.", seq=0)
THANKS = a_message("Thanks a lot for that.", seq=4)
TOPIC = a_memory(
    "Hawaii: a trip in May.", source=Source.SUMMARY, metadata={"sources": [FLIGHT.id, BUDGET.id, THANKS.id, 7]}
)


async def extended(
    reads: Reads,
    relevance: float = 0.9,
    section: Threads | None = None,
    in_view: frozenset[str] = frozenset(),
    topic: Memory = TOPIC,
) -> list[str]:
    ranked = (Ranked(topic, relevance),)
    settings = Settings(recall=Recall(threads=section or Threads(max=2)))
    threads = ThreadFetcher(reads, CurrentSettings(settings))
    asked = "What is my budget for Hawaii?"
    return [one.memory.content for one in await threads.add_messages(ranked, asked, in_view, MONDAY, SECOND)]


async def test_the_words_of_a_strong_topic_follow_it_those_about_the_question_first() -> None:
    found = await extended(Reads(FLIGHT, BUDGET, THANKS))
    assert found == [TOPIC.content, BUDGET.content, FLIGHT.content]


@pytest.mark.parametrize(("relevance", "section"), [(0.7, Threads()), (0.9, Threads(max=0))], ids=["weak", "off"])
async def test_a_weak_topic_or_none_allowed_fetches_nothing(relevance: float, section: Threads) -> None:
    assert await extended(Reads(FLIGHT, BUDGET), relevance, section) == [TOPIC.content]


async def test_what_the_model_sees_is_not_fetched() -> None:
    found = await extended(Reads(FLIGHT, BUDGET), in_view=frozenset({BUDGET.content}))
    assert found == [TOPIC.content, FLIGHT.content]


async def test_what_may_not_be_recalled_is_not_fetched() -> None:
    aside = a_message(BUDGET.content, id=BUDGET.id, state=MemoryState.QUARANTINED)
    asking = a_message(FLIGHT.content, id=FLIGHT.id, source=Source.QUESTION)
    bobs = a_message(THANKS.content, BOB, id=THANKS.id)
    assert await extended(Reads(aside, asking, bobs)) == [TOPIC.content]


async def test_a_fault_leaves_what_was_found() -> None:
    reads = Reads(FLIGHT, BUDGET)
    reads.failing = TransientError("away")
    assert await extended(reads) == [TOPIC.content]


async def test_a_summary_without_sources_has_no_words() -> None:
    for metadata in ({}, {"sources": "none"}):
        topic = a_memory("A trip.", ANN, source=Source.SUMMARY, metadata=metadata)
        assert await extended(Reads(FLIGHT), topic=topic) == ["A trip."]


def considered(memory: Memory, verdict: Verdict) -> Considered:
    return Considered(memory, 1.0, 0.5, verdict)


def test_what_was_fetched_shows_in_an_explanation_once_and_claims_no_relevance() -> None:
    weighed = [considered(TOPIC, Verdict.INJECTED), considered(BUDGET, Verdict.BELOW_THRESHOLD)]
    ranked = [Ranked(TOPIC, 0.9), Ranked(BUDGET, 0.9), Ranked(FLIGHT, 0.9)]
    shown = [(one.memory.content, one.verdict, one.relevance) for one in with_threads(weighed, ranked)]
    assert shown == [
        (TOPIC.content, Verdict.INJECTED, 0.5),
        (BUDGET.content, Verdict.THREAD, 0.5),
        (FLIGHT.content, Verdict.THREAD, 0.0),
    ]
