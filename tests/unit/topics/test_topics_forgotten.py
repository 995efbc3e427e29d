"""A forget reaches what was made of what was forgotten, also when the summary is written only afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from memory_extproc.erasure.steps import cascade
from memory_extproc.erasure.tombstones import KeyedHasher, Tombstones
from memory_extproc.learn.messages import message_id
from memory_extproc.model import Embedded, ForgetScope, Memory, MemoryState, Owner
from memory_extproc.ports import Change
from memory_extproc.topics.summarizer import Prompts
from tests.support.builders import ANN
from tests.unit.topics.following import FLIGHTS, Surroundings, turns_of

T = TypeVar("T")
BLIND = KeyedHasher(bytes(32))
LONG = tuple((asked * 4, answered * 4) for asked, answered in FLIGHTS)
SAID = turns_of(*LONG, last=True)


async def everything() -> list[Memory]:
    """The messages of a session, its topic and its summary."""
    around = Surroundings()
    async with around.partitions, around.build() as topics:
        await around.say(topics, SAID)
        return [row.memory async for page in around.store.pages(ANN, 100, fresh=True) for row in page]


async def test_a_topic_and_the_summary_that_stands_on_it_go_with_one_of_their_messages() -> None:
    rows = await everything()
    gone = cascade(rows, ForgetScope(ids=(message_id(SAID[1], 0),)), SAID[-1].at.timestamp())
    kinds = {row.provenance.kind for row in gone.memories.values()}
    assert {"topic", "session"} <= kinds


async def test_a_summary_that_is_written_after_the_forget_is_known_for_what_it_is() -> None:
    rows = await everything()
    at = SAID[-1].at.timestamp()
    gone = cascade([row for row in rows if not row.provenance.kind], ForgetScope(ids=(message_id(SAID[1], 0),)), at)
    marks = Tombstones(BLIND, items=dict.fromkeys(gone.items(BLIND), at))
    topic = next(row for row in rows if row.provenance.kind == "topic")
    assert marks.covers(topic)


async def test_what_is_held_in_process_goes_too() -> None:
    around = Surroundings()
    async with around.partitions, around.build() as topics:
        await around.say(topics, SAID[:2])
        topics.forget(ANN)
        await around.say(topics, SAID[2:])
        (topic,) = await around.topics()
    assert topic.provenance.turns == 3


class Interrupted:
    """A model that takes its time: meanwhile *happens* to what was said last."""

    def __init__(self, around: Surroundings, happens: Change) -> None:
        self.around, self.happens = around, happens
        self.asked = 0

    async def answer(self, owner: Owner, shown: str, parsed: Callable[[bytes], T]) -> T:
        self.asked += 1
        if self.asked == 1:
            await self.around.partitions.change(owner, message_id(SAID[2], 0), self.happens)
        budget = " The family budget is $10,000." if "10,000" in shown else ""
        return parsed(json.dumps({"name": "Hawaii", "summary": f"A trip to Hawaii.{budget}"}).encode())


def retired(row: Embedded) -> list[Embedded]:
    return [replace(row, memory=replace(row.memory, state=MemoryState.DELETED))]


def corrected(row: Embedded) -> list[Embedded]:
    memory = replace(row.memory, content="The budget is open.", valid_from=row.memory.created_at)
    return [replace(row, memory=memory)]


async def test_what_is_corrected_while_a_model_sums_it_up_is_not_in_the_summary_as_it_was() -> None:
    around = Surroundings()
    model = Interrupted(around, corrected)
    around.prompts = Prompts(model, model, model)
    async with around.partitions, around.build() as topics:
        await around.say(topics, SAID)
        (topic,) = await around.topics()
    assert model.asked > 1
    assert "10,000" not in topic.content
    assert message_id(SAID[2], 0) in topic.provenance.sources


async def test_what_is_forgotten_in_a_chat_while_a_model_sums_it_up_is_not_in_the_summary() -> None:
    around = Surroundings()
    model = Interrupted(around, retired)
    around.prompts = Prompts(model, model, model)
    async with around.partitions, around.build() as topics:
        await around.say(topics, SAID)
        (topic,) = await around.topics()
    assert model.asked > 1
    assert "10,000" not in topic.content
    assert message_id(SAID[2], 0) not in topic.provenance.sources
