"""People are known by the words around their names, listed each once, and found by their names."""

from __future__ import annotations

import pytest

from memory_extproc.model import Role
from memory_extproc.recall.asked import asks_of_doer, people_in
from memory_extproc.recall.intent import INTENTS
from tests.support.builders import a_message
from tests.unit.recall.test_lookups import Desk, desk

__all__ = ["desk"]  # a fixture


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("My apprentice Liam can do the lifting", {"liam"}),
        ("User's flatmates are Pablo, Luc\u00eda and Bram", {"pablo", "lucia", "bram"}),
        ("School is De Regenboog in Utrecht, principal is Mr Bakker", {"bakker"}),
        ("I've rented half of it to a luthier called Greta", {"greta"}),
        ("first appointment on Thursday. Her name is Morag", {"morag"}),
        ("we hired a barista called Finlay", {"finlay"}),
        ("her name's Bethan", {"bethan"}),
        ("I'll ask Noor, and Raj is leaving the company", {"noor", "raj"}),
        ("Pilar is 6", {"pilar"}),
        ("Atlas is 6 weeks late", set()),
        ("We moved Callum's party to the 11th", {"callum"}),
        ("I fly to Oslo in June, Delft is lovely", set()),
        ("There's a hall called Avertical World", set()),
        ("I drive a Toyota and work for Siemens", set()),
    ],
)
def test_a_name_is_a_persons_where_the_words_around_it_say_so(said: str, expected: set[str]) -> None:
    assert people_in(said) == expected


async def test_everybody_is_listed_with_one_memory_each(desk: Desk) -> None:
    said = ["my apprentice Liam is strong", "Liam wants to move to Perth", "Mrs Pym drives me", "I drive to Oslo"]
    await desk.remember(*(a_message(one, session="s8", seq=2 * at) for at, one in enumerate(said)))
    block = (await desk.ask("whom have I mentioned so far?")).block
    assert [one in block for one in said].count(True) == 2
    assert "Mrs Pym" in block
    assert "Oslo" not in block


async def test_a_question_about_a_person_finds_the_memory_with_the_name(desk: Desk) -> None:
    await desk.remember(a_message("our investor is Northlight, my contact there is Ingrid", session="s8", seq=0))
    assert "Northlight" in (await desk.ask("Which investor does Ingrid work for?")).block
    assert not (await desk.explain("Which films did Ingrid Bergman make?")).kind
    assert not (await desk.explain("What does the name Greta mean?")).kind


async def test_an_answer_is_found_by_the_request_before_it(desk: Desk) -> None:
    await desk.remember(
        a_message("I want a birthday present for Callum", session="s8", seq=0),
        a_message("A chalk bag, or a voucher for a climbing hall.", session="s8", seq=1, role=Role.ASSISTANT),
    )
    assert "chalk bag" in (await desk.ask("what did you suggest for the birthday present?")).block


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("How did Ann calm the dog after the storm?", True),
        ("What causes has Marek raised money for?", True),
        ("How do I reset the Vaillant boiler?", False),
        ("How is the release of Atlas done?", False),
        ("how do we bake the rye bread", False),
    ],
)
def test_a_name_behind_an_auxiliary_asks_what_somebody_did(question: str, expected: bool) -> None:
    assert asks_of_doer(question) is expected


async def test_what_somebody_did_is_no_set_of_steps(desk: Desk) -> None:
    said = "Ann at the animal shelter: she began to volunteer, then stayed for years."
    await desk.remember(a_message(said, session="s8", seq=0))
    assert (await desk.explain("How do we volunteer at the animal shelter for years?")).kind == "procedure"
    assert (await desk.explain("How did Ann begin to volunteer at the animal shelter?")).kind != "procedure"


async def test_the_name_before_each_message_of_a_talk_begins_no_steps(desk: Desk) -> None:
    said = [
        "Ann: Hi Lou, I tried the ramen at the market, and loved it.",
        "Ann: See you, and bring the ramen bowls.",
    ]
    await desk.remember(*(a_message(one, session="s8", seq=2 * at) for at, one in enumerate(said)))
    assert (await desk.explain("How do we find the ramen of the market?")).kind != "procedure"


@pytest.mark.parametrize(("people", "of_world"), [(frozenset({"melanie"}), False), (frozenset(), True)])
def test_a_question_about_a_known_person_is_not_about_the_world(people: frozenset[str], of_world: bool) -> None:
    question = "How did Melanie feel after the accident?"
    assert INTENTS.asks_of_world(question, ["She was shaken."], people) is of_world


async def test_a_talk_tells_about_its_speakers_what_each_of_them_said(desk: Desk) -> None:
    said = "Melanie: I was shaken after the accident, and so glad about my family."
    await desk.remember(a_message(said, session="s8", seq=1, role=Role.ASSISTANT))
    assert "shaken" in (await desk.ask("How did Melanie feel after the accident?")).block


@pytest.mark.parametrize(
    ("said", "question"),
    [
        ("My career went well, and Petra broke a record", "What broke on my car?"),
        ("Another shelter record, thanks to Petra, was broken", "What record did I break at the other shelter?"),
    ],
)
async def test_a_word_that_looks_like_a_thing_or_a_role_leads_to_nobody(
    desk: Desk, said: str, question: str
) -> None:
    await desk.remember(
        a_message(said, session="s8", seq=0), a_message("Petra broke the big green vase", session="s9", seq=0)
    )
    assert (await desk.explain(question)).kind != "several_hops"
