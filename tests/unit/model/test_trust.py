"""A memory is never trusted further than the least trusted of its sources, whatever is made of it."""

from __future__ import annotations

from typing import Any

import pytest

from memory_extproc.learn.messages import judge
from memory_extproc.model import Memory, Owner, Ranked, Role, Source, Trust, least_trusted, trust_of, with_trust
from memory_extproc.portability.records import memory_of, record_of
from memory_extproc.recall.asked import least_trust
from memory_extproc.recall.intent import INTENTS
from memory_extproc.recall.prompt_block import render
from memory_extproc.retention.rules import Merging, speaking
from memory_extproc.store.partition import confirm_memory
from tests.support.builders import ANN, MONDAY, a_memory, a_turn


def of_tool(content: str = "The fee is 900 euros.", **changes: Any) -> Memory:
    memory = a_memory(content, source=Source.VERBATIM, role=Role.ASSISTANT, **changes)
    return with_trust(memory, Trust.TOOL)


@pytest.mark.parametrize(
    ("changes", "trust"),
    [
        ({}, Trust.CALLER),
        ({"source": Source.VERBATIM, "role": Role.ASSISTANT}, Trust.ASSISTANT),
        ({"source": Source.SUMMARY}, Trust.ASSISTANT),
        ({"owner": Owner.of_project("acme", "lab")}, Trust.MEMBER),
        ({"metadata": {"trust": "tool"}}, Trust.TOOL),
        ({"metadata": {"trust": "a word of a later version"}}, Trust.CALLER),
    ],
)
def test_a_row_without_a_class_gets_one_from_its_origin(changes: dict[str, Any], trust: Trust) -> None:
    assert trust_of(a_memory("I live in Bonn.", **changes)) is trust


def test_an_answer_made_of_tool_results_is_trusted_least() -> None:
    turn = a_turn("Look up my flight, please.", "The flight leaves at nine from gate four.", tools=True)
    asked, answered = (one.memory for one in judge(turn, MONDAY) if one.memory is not None)
    assert (trust_of(asked), trust_of(answered)) == (Trust.CALLER, Trust.TOOL)


def test_a_merged_memory_has_the_least_class_and_its_own_again_where_nothing_lowers_it() -> None:
    mine = a_memory("I live in Bonn.")
    merged = speaking(mine, Merging(mine.id, 0.5, ("other",), least_trusted([Trust.CALLER, Trust.TOOL])))
    assert trust_of(merged) is Trust.TOOL
    assert speaking(mine, Merging(mine.id, 0.5, (), Trust.CALLER)).provenance.trust is None


def test_only_the_caller_confirms_the_words_of_others() -> None:
    assert trust_of(confirm_memory(of_tool(), at=MONDAY, trusted=True)) is Trust.CONFIRMED
    assert trust_of(confirm_memory(of_tool(), at=MONDAY)) is Trust.TOOL
    assert trust_of(confirm_memory(a_memory("I live in Bonn."), at=MONDAY, trusted=True)) is Trust.CALLER


def test_a_file_keeps_the_class() -> None:
    assert trust_of(memory_of(record_of(of_tool()), ANN, "1", MONDAY)) is Trust.TOOL


@pytest.mark.parametrize(
    ("question", "least"),
    [
        ("When does my flight leave?", Trust.TOOL),
        ("Which bank should I take?", Trust.ASSISTANT),
        ("Who is the chief executive of Helion?", Trust.ASSISTANT),
        ("What did we talk about yesterday?", Trust.TOOL),
    ],
)
def test_words_of_tools_serve_the_callers_affairs_and_no_advice(question: str, least: Trust) -> None:
    assert least_trust(question, INTENTS.read(question, (), MONDAY.date())) is least


def test_the_block_says_whose_words_they_are() -> None:
    imported = with_trust(a_memory("I live in Bonn."), Trust.IMPORT)
    text = render([Ranked(of_tool(), 1.0), Ranked(imported, 1.0)], 400).text
    assert 'the assistant said, from a tool or document: "The fee is 900 euros."' in text
    assert "(imported) I live in Bonn." in text
