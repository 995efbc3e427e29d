"""Facts from first-person statements, and nothing from what only looks like one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_extproc.learn.extract.rules import RulesExtractor
from memory_extproc.learn.extract.statements import first_person_statements
from memory_extproc.model import MemoryType, Source
from memory_extproc.text.words import stem, tokens
from tests.support.builders import a_turn

EXTRACTOR = RulesExtractor()
SENTENCES = [json.loads(line) for line in (Path(__file__).parent / "sentences.jsonl").read_text().splitlines()]


async def contents(*asked: str, injected: tuple[str, ...] = ()) -> list[str]:
    return [fact.content for fact in await EXTRACTOR.extract([a_turn(one, injected=injected) for one in asked])]


def keys(text: str) -> frozenset[str]:
    return frozenset(map(stem, tokens(text)))


def scored(case: dict[str, Any], found: list[str]) -> Iterator[str]:
    """ "right" for each expected fact found, "missed" for each not found, "wrong" for each found in vain."""
    wanted = [keys(" ".join(words)) for words in case["facts"]]
    yield from ("right" if any(want <= keys(one) for one in found) else "missed" for want in wanted)
    yield from ("wrong" for one in found if not any(want <= keys(one) for want in wanted))


def test_the_set_is_large_and_most_of_it_was_held_back_while_the_rules_were_written() -> None:
    assert len(SENTENCES) >= 300
    assert sum(case["held"] for case in SENTENCES) > len(SENTENCES) / 2


@pytest.mark.parametrize("held_back", [False, True], ids=["seen", "held back"])
async def test_of_the_sentences_in_the_set_hardly_any_makes_a_wrong_fact_and_most_make_theirs(
    held_back: bool,
) -> None:
    verdicts = [
        verdict
        for case in SENTENCES
        if case["held"] is held_back
        for verdict in scored(case, await contents(case["text"]))
    ]
    right, wrong, missed = (verdicts.count(word) for word in ("right", "wrong", "missed"))
    assert right + missed > 50
    assert right / (right + wrong) >= 0.95
    assert right / (right + missed) >= 0.70


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("My budget for the Hawaii trip is $10,000.", "User's budget for the Hawaii trip is $10,000"),
        ("My budget for the Hawaii trip has increased to $12,000.", "User's budget for the Hawaii trip is $12,000"),
        ("I\u2019ve moved to Berlin", "User lives in Berlin"),
        ("my older brother works at NASA", "User's older brother works for NASA"),
        ("I usually wake up at 5am", "User usually wakes up at 5am"),
        ("I never eat pork", "User never eats pork"),
        ("I avoid gluten", "User avoids gluten"),
        ("I can't eat nuts", "User can't eat nuts"),
        ("I carry on, and I study physics", "User studies physics"),
        ("I teach a class on Mondays", "User teaches a class on Mondays"),
        ("My maiden name was Halloran", "User's maiden name is Halloran"),
        ("My doctor put me on bisoprolol 5 mg last month", "User takes bisoprolol 5 mg"),
        ("I have a new knee since last year", "User has a new knee since last year"),
        ("Also I'm vegan and broke, so tell me cheap dinners", "User is vegan and broke"),
        ("My wife is a judge, she hates it if I smoke", "User's wife is a judge"),
        ("We had two sons, Piet and Jan", "User's sons are Piet and Jan"),
        ("I work at Google as a data engineer", "User works at Google as a data engineer"),
        ("I'm a data scientist and do machine learning.", "User is a data scientist"),
        (
            "I'm working on a TensorFlow project that classifies images of plants.",
            "User is working on a TensorFlow project that classifies images of plants",
        ),
        ("I'm currently writing my thesis about bees", "User is writing their thesis about bees"),
        ("I'm married to Tom", "User is married to Tom"),
        ("I changed my Hawaii budget to $900", "User's Hawaii budget is $900"),
        ('My cat is called "Miso".', "User's cat is Miso"),
        ("I set a budget of $10,000 for the Hawaii trip", "User's budget for the Hawaii trip is $10,000"),
        ("For our Hawaii trip we have a budget of $10,000", "User's budget for the Hawaii trip is $10,000"),
        ("The budget for my Hawaii trip is ten thousand", "User's budget for the Hawaii trip is ten thousand"),
        ("My kids are 5 and 8", "User's kids are 5 and 8"),
        ("My mom's birthday is May 4", "User's mom's birthday is May 4"),
        ("My daughter has asthma", "User's daughter has asthma"),
        ("Meine Tochter heißt Lena.", "User's daughter is Lena"),
        ("Ma femme s'appelle Claire", "User's wife is Claire"),
        ("Mi perro se llama Toby", "User's dog is Toby"),
        ("I usually swim on Tuesdays", "User usually swims on Tuesdays"),
        ("I've been playing chess for years", "User has been playing chess for years"),
        ("Since I moved to Cork I haven't found a gym", "User lives in Cork"),
        ("I'd love to learn the banjo", "User wants to learn the banjo"),
        ("the doctor put me on a low-salt diet", "User was put on a low-salt diet"),
        ("My daughter has been accepted into law school", "User's daughter was accepted into law school"),
        ("the kids go to St Mary's primary", "User's kids go to St Mary's primary"),
        ("I'm doing an evening course in accounting", "User takes an evening course in accounting"),
        ("My degree was in marine biology", "User's degree is in marine biology"),
        ("my car broke down again, it's a 2009 Corsa", "User's car is a 2009 Corsa"),
        ("the kids won't sleep. they're 4 and 6", "User's kids are 4 and 6"),
        ("Moira had her hip done. She's my wife", "User's wife is Moira"),
        ("Tell him we still live in Pitlochry", "User lives in Pitlochry"),
        ("Crowds make me anxious", "Crowds make them anxious"),
        ("No garlic please, my niece is intolerant", "User's niece is allergic to garlic"),
        ("The house we rent has a tiny yard", "User's house has a tiny yard"),
        ("Fridays I'm off", "User is off on Fridays"),
        ("Before that I drove a bus", "User drove a bus before that"),
        ("My wrists don't let me type for long", "User's wrists do not allow them to type for long"),
        ("service charge will be 210 a month", "User's service charge is 210 a month"),
        ("Our goal is to be debt free by 2028", "User's goal is to be debt free by 2028"),
        ("I've got dyscalculia", "User has dyscalculia"),
        ("I have 34 years", "User is 34"),
        ("I'm 34 and still can't cook rice", "User is 34"),
        ("I'm nineteen so the insurance is horrific", "User is nineteen"),
        ("Turned 21 on Saturday and my head still hurts", "User is 21"),
        ("My English is not very good, please keep it simple", "User speaks English"),
        ("I'm conversational in Tagalog", "User speaks Tagalog"),
        ("my wife she is from Thailand", "User's wife is from Thailand"),
        ("I no longer drive", "User no longer drives"),
        ("write a short bio: born in Recife", "User was born in Recife"),
        ("My deputy, Femi, will sign it at noon", "User's deputy is Femi"),
        ("What do I say about why I left Deloitte?", "User no longer works for Deloitte"),
    ],
)
async def test_a_statement_becomes_a_fact_in_the_third_person(asked: str, expected: str) -> None:
    assert await contents(asked) == [expected]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("I no longer live in Paris", "User no longer lives in Paris"),
        ("I quit Google.", "User no longer works for Google"),
        ("I don't have a dog any more", "User no longer has a dog"),
        ("My wife's no longer vegan", "User's wife is no longer vegan"),
        ("We've stopped working at Google", "User no longer works for Google"),
        ("Ich wohne nicht mehr in Berlin.", "User no longer lives in Berlin"),
        ("Je n'habite plus à Paris.", "User no longer lives in Paris"),
        ("Ya no vivo en Madrid", "User no longer lives in Madrid"),
        ("我不再住在上海了", "User no longer lives in 上海"),
    ],
)
async def test_what_stopped_is_told_as_an_ending_and_never_as_being_so(asked: str, expected: str) -> None:
    (fact,) = await EXTRACTOR.extract([a_turn(asked)])
    assert (fact.content, fact.ends) == (expected, True)


async def test_who_one_is_and_what_one_does_may_stand_in_one_breath() -> None:
    said = await contents("Hi, I'm Alice, a data scientist at Google.")
    assert said == ["User's name is Alice", "User is a data scientist at Google"]


@pytest.mark.parametrize(
    "asked",
    ["I moved to the library till 10", "we moved to cx42 tonight", "I'll move to Rome if I get the job"],
)
async def test_a_place_for_a_while_is_no_home(asked: str) -> None:
    assert await contents(asked) == []


@pytest.mark.parametrize(
    "asked",
    [
        "I'm 10 and a half weeks pregnant",
        "I'm 20 and 3 behind",
        "I'm fifteen minutes late",
        "My Thai is getting cold, where is the driver?",
        "My Polish plumber is bad",
        "My Dutch is non-existent",
    ],
)
async def test_not_every_number_is_an_age_nor_every_word_for_a_language_one_that_is_spoken(asked: str) -> None:
    said = " ".join(await contents(asked))
    assert "User is" not in said
    assert "speaks" not in said


async def test_a_change_leaves_alone_values_of_another_kind() -> None:
    said = "My stack is FastAPI, Postgres 16 and Svelte. My rent is $900."
    assert await contents(f"{said} Make it 10 minutes.") == await contents(said)
    assert "User's rent is 950" in await contents(f"{said} Make it 950.")


@pytest.mark.parametrize(
    "asked",
    [
        "I'm working on a project.",
        "I'm working on a bug in the app.",
        "I'm writing a book review",
        "I'm building it.",
    ],
)
async def test_what_is_done_in_passing_is_no_undertaking(asked: str) -> None:
    assert await contents(asked) == []


@pytest.mark.parametrize(
    "asked", ["This no longer works.", "I don't know anymore.", "I no longer need help.", "I'm used to the rain."]
)
async def test_not_all_that_stops_is_about_the_caller(asked: str) -> None:
    assert await contents(asked) == []


@pytest.mark.parametrize(
    ("question", "answer", "expected"),
    [
        ("So you live in Berlin, right?", "Yes.", ["User lives in Berlin"]),
        ("Just to confirm: your budget for the Hawaii trip is $900?", "exactly!",
         ["User's budget for the Hawaii trip is $900"]),
        ("Got it. You're allergic to nuts?", "Yes, that's right", ["User is allergic to nuts"]),
        ("So you live in Berlin?", "No, in Bonn.", []),
        ("So you live in Berlin?", "Yes, but not for long", []),
        ("You live in Berlin.", "Yes.", []),  # it did not ask
        ("Do you live in Berlin?", "Yes.", []),  # no statement to make one's own: only a model reads it
        ("Would you like some help?", "Yes please", []),
    ],
)  # fmt: skip
async def test_a_plain_yes_makes_the_words_of_the_question_the_callers_own(
    question: str, answer: str, expected: list[str]
) -> None:
    asked_back, answered = a_turn("Find me a gym.", question), a_turn(answer)
    assert [fact.content for fact in await EXTRACTOR.extract([asked_back, answered])] == expected
    later_on = await EXTRACTOR.extract([answered], earlier=[asked_back])
    assert [(fact.content, fact.turn_id) for fact in later_on] == [(one, answered.id) for one in expected]


@pytest.mark.parametrize(
    ("question", "answer", "expected"),
    [
        ("How often do you train?", "three times a week, four in summer", ["User trains three times a week"]),
        ("How do you take your coffee?", "black, no sugar", ["User takes their coffee black"]),
        ("Where do you usually shop?", "Lidl and the market", ["User shops at Lidl and the market"]),
        ("Who do you live with?", "my nan", ["User lives with their nan"]),
        ("What kind of bike do you have?", "a Surly, steel frame", ["User's bike is a Surly"]),
        ("Any injuries I should know about?", "dodgy left knee", ["User's injuries are dodgy left knee"]),
        ("How many words, and what year are you in?", "900 words, year 8", ["User's year is year 8"]),
        ("Do you eat fish?", "only tuna", ["User eats only tuna"]),
        ("What problems do you have with it?", "a loop that never ends", []),
        ("Who is coming?", "my two brothers and their kids", []),
    ],
)
async def test_a_short_answer_is_read_with_the_words_of_its_question(
    question: str, answer: str, expected: list[str]
) -> None:
    turns = [a_turn("Help me with a plan.", question), a_turn(answer)]
    assert [fact.content for fact in await EXTRACTOR.extract(turns)] == expected


async def test_a_number_alone_corrects_the_sum_spoken_of_before() -> None:
    said = await contents("Our budget is 9,000 euros.", "actually no, 8,500")
    assert said == ["User's budget is 9,000 euros", "User's budget is 8,500"]


async def test_a_pronoun_means_a_person_of_a_few_turns_ago() -> None:
    said = await contents("My sister Beth is here.", "What a day!", "She lives in Hull")
    assert said == ["User's sister is Beth", "User's sister Beth lives in Hull"]


async def test_a_bare_thing_is_the_one_spoken_of_in_an_earlier_batch() -> None:
    before = a_turn("My budget for the Hawaii trip is $10,000.")
    (fact,) = await EXTRACTOR.extract([a_turn("My budget is now $9,000")], earlier=[before])
    assert fact.content == "User's budget for the Hawaii trip is $9,000"


async def test_a_procedure_is_kept_with_its_steps() -> None:
    (fact,) = await EXTRACTOR.extract([a_turn("To deploy the app:\n1. run make release\n2. push the tag")])
    assert fact.type is MemoryType.PROCEDURAL
    assert fact.attribute == "how to deploy the app"
    assert "make release" in fact.content
    assert "push the tag" in fact.content


async def test_the_new_value_has_the_attribute_of_the_old_one() -> None:
    old, new = await EXTRACTOR.extract(
        [a_turn("My budget for the Hawaii trip is $10,000."), a_turn("My budget has increased to $12,000")]
    )
    assert (old.subject, old.attribute) == (new.subject, new.attribute)
    assert (old.value, new.value) == ("$10,000", "$12,000")
    assert new.exclusive


async def test_a_change_means_what_was_injected_when_nothing_else_was_spoken_of() -> None:
    injected = ("User's budget for the Hawaii trip is $10,000", "User lives in Rome")
    assert await contents("My budget is now $9,000", injected=injected) == [
        "User's budget for the Hawaii trip is $9,000"
    ]
    two = (*injected, "User's budget for the kitchen is $3,000")
    assert await contents("My budget is now $9,000", injected=two) == ["User's budget is $9,000"]


async def test_flights_on_two_days_are_told_apart_unless_one_was_moved() -> None:
    first, second = await EXTRACTOR.extract([a_turn("My flight is on May 3."), a_turn("My flight is on May 8.")])
    assert first.attribute != second.attribute
    assert not first.exclusive


async def test_only_the_callers_words_are_read_never_the_answer() -> None:
    assert (
        await EXTRACTOR.extract([a_turn("Tell me about yourself.", "My name is Bot. I live in the cloud.")]) == []
    )


async def test_secrets_are_nobodys_memory() -> None:
    assert await contents("My password is hunter2", "my credit card number is 4111 1111", "My pin is 1234") == []


async def test_facts_name_their_turn_and_the_rules_that_made_them() -> None:
    turn = a_turn("I live in Paris.")
    (fact,) = await EXTRACTOR.extract([turn])
    assert (fact.turn_id, fact.source, fact.version) == (turn.id, Source.RULES, "rules-6")
    assert "Paris" not in repr(fact)


async def test_what_is_said_twice_in_a_message_is_one_fact() -> None:
    assert await contents("I live in Paris. Yes, I live in Paris.") == ["User lives in Paris"]


@pytest.mark.parametrize(
    "text",
    [
        "```\nmy name is root\n```",
        "> I live in Rome",
        "Translate this: I live in Rome.",
        "She told me I live in Rome.",
        "If I live in Rome, I need a car.",
        "x" * 5000,
        "Pretend that I live in Rome.",
    ],
)
def test_what_is_quoted_pasted_supposed_or_played_is_no_statement(text: str) -> None:
    assert first_person_statements(text) == []


def test_two_predicates_of_one_subject_are_two_statements() -> None:
    assert first_person_statements("By the way, I'm vegan and allergic to soy, but love tea") == [
        "I'm vegan", "I'm allergic to soy", "I love tea",
    ]  # fmt: skip


@given(st.text(max_size=400))
def test_any_text_gives_statements_without_fault(text: str) -> None:
    assert all(statement.strip() for statement in first_person_statements(text))


@pytest.mark.parametrize(
    "text",
    [
        "I live in " * 400,
        "my " * 1300,
        "to run " * 500,
        '"' * 3900,
        "- " * 1900,
        "I'm " + "a" * 3900,
        "my a " + " b" * 1800,
        "and i " * 600,
        "I don't live in " + "a " * 190 + "any more" + " any more" * 1500,
        "I no longer " * 330,
        "my " + "wife " * 700 + "stopped",
    ],
)
async def test_hostile_text_takes_no_more_than_a_moment(text: str) -> None:
    began = time.process_time()
    await contents(text)
    assert time.process_time() - began < 2
