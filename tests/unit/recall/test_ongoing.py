"""A summary of the ongoing conversation is not told to a model that sees its messages; it is, once it does not."""

from __future__ import annotations

from datetime import timedelta

import pytest

from memory_extproc.errors import TransientError
from memory_extproc.model import Memory, RecallRequest, Role, Source
from memory_extproc.recall.rank import Ongoing
from tests.support.builders import a_memory, a_message, a_wish
from tests.unit.recall.reading import Reads

SECOND = timedelta(seconds=1)
ASKED = a_message("How do neural networks learn?", source=Source.QUESTION, seq=0)
ANSWERED = a_message("They learn by gradient descent.", role=Role.ASSISTANT, seq=1)
TOLD = a_message("I train mine on pictures of plants.", seq=2)
SAID = (ASKED, ANSWERED, TOLD)


def a_summary(text: str, *sources: Memory, session: str = "s") -> Memory:
    return a_memory(text, source=Source.SUMMARY, session=session, metadata={"sources": [one.id for one in sources]})


TOPIC = a_summary("Neural networks: how they learn.", *SAID)
PART = a_summary("Of networks.", TOPIC)
SESSION = a_summary("The user asked about networks.", PART)


def a_request(*seen: Memory, asked: str = "And recurrent networks?", behind: str = "") -> RecallRequest:
    return a_wish(asked, in_view=frozenset({asked, *(one.content for one in seen)}), behind=behind)


async def told(wish: RecallRequest, *found: Memory, reads: Reads | None = None) -> set[str]:
    known = reads or Reads(*SAID, TOPIC, PART, SESSION)
    ids = await Ongoing(known).find_in_view(found or (TOPIC, SESSION), wish, SECOND)
    return {one.content for one in (TOPIC, SESSION) if one.id in ids}


BOTH = {TOPIC.content, SESSION.content}


async def test_a_conversation_that_is_in_view_is_not_summed_up_on_any_level() -> None:
    assert await told(a_request(*SAID)) == BOTH


async def test_it_is_known_by_most_of_its_messages() -> None:
    assert await told(a_request(ASKED, TOLD)) == BOTH
    assert await told(a_request(TOLD)) == set()


async def test_another_conversation_is_told_of() -> None:
    assert await told(a_request(a_message("Where is the next Waffle House?"))) == set()
    assert await told(a_request()) == set()


async def test_the_very_question_of_before_is_no_conversation_of_its_own() -> None:
    short = a_summary("Networks.", ASKED)
    reads = Reads(ASKED, short)
    assert not await Ongoing(reads).find_in_view((short,), a_request(asked=ASKED.content), SECOND)


async def test_what_a_provider_keeps_is_known_by_its_session() -> None:
    assert await told(a_request(behind="s")) == BOTH
    assert await told(a_request(behind="t")) == set()


async def test_a_summary_of_which_no_message_is_left_is_told() -> None:
    assert await told(a_request(*SAID), reads=Reads()) == set()


@pytest.mark.parametrize("behind", ["", "s"])
async def test_a_fault_leaves_what_was_found(behind: str) -> None:
    reads = Reads(*SAID)
    reads.failing = TransientError("away")
    assert await told(a_request(*SAID, behind=behind), reads=reads) == (BOTH if behind else set())
