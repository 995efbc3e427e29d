"""People introduce themselves in lists without verbs, and put several things into one phrase."""

from __future__ import annotations

import pytest

from memory_extproc.learn.extract.introductions import read_introduction
from memory_extproc.learn.extract.rules import RulesExtractor
from tests.support.builders import a_turn

EXTRACTOR = RulesExtractor()


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (
            "hey, i'm Noor, 41, radiographer at Leeds General. what's a quick lunch?",
            ["name is Noor", "is 41", "is a radiographer at Leeds General"],
        ),
        ("Hi there, Marcus here, software engineer at Zalando, based in Berlin.",
         ["name is Marcus", "is a software engineer at Zalando", "lives in Berlin"]),
        ("Im jess, 23, nursing student in Dublin", ["name is Jess", "is 23", "is a nursing student in Dublin"]),
        ("I'm Sam (they/them), 27, barista in Portland", ["name is Sam", "is 27", "is a barista in Portland"]),
        ("I am Dr. Lena Fischer, cardiologist at Charité.",
         ["name is Dr. Lena Fischer", "is a cardiologist at Charité"]),
        ("I'm a 34 year old teacher living in Bristol with two cats.",
         ["is 34", "is a teacher", "lives in Bristol"]),
        ("i'm a 19yo student from Perth, any tips?", ["is 19", "is a student", "is from Perth"]),
        ("I'm Dana, a single mum of two from Ohio.", ["name is Dana", "is a single mum of two", "is from Ohio"]),
        ("Some background: 38, divorced, project manager at Siemens, living in Munich.",
         ["is 38", "is divorced", "is a project manager at Siemens", "lives in Munich"]),
        ("My name is Priya, born in Pune, raised in Leicester, working as a paralegal",
         ["name is Priya", "was born in Pune", "grew up in Leicester", "works as a paralegal"]),
        ("Ich bin Jonas, 35, Lehrer aus Köln.", ["name is Jonas", "is 35", "works as a Lehrer", "is from Köln"]),
        ("Bonjour, je suis Claire, 36 ans, infirmière, j'habite à Nantes.",
         ["name is Claire", "is 36", "works as an infirmière", "lives in Nantes"]),
        ("Me llamo Lucía, tengo 28 años y soy enfermera en Sevilla.",
         ["name is Lucía", "is 28", "works as an enfermera en Sevilla"]),
    ],
)  # fmt: skip
async def test_each_thing_of_an_introduction_is_a_fact(asked: str, expected: list[str]) -> None:
    contents = [fact.content for fact in await EXTRACTOR.extract([a_turn(asked)])]
    assert contents == [f"User's {one}" if one.startswith("name") else f"User {one}" for one in expected]


@pytest.mark.parametrize(
    "sentence",
    [
        "I'm tired, 3 hours of sleep, back at the office.",
        "I'm sorry, 41 is too many, thanks.",
        "i'm late, 20 people are waiting, see you later",
        "I'm Anna, can you help me?",
        "This is Python, 30 lines, printer not found",
        "I'm a 5 year old at heart",
        "I'm in the car, 45 minutes from home, tired",
        "Je suis fatiguée, 36 heures de travail, merci",
    ],
)
def test_other_lists_stay_as_they_are(sentence: str) -> None:
    assert read_introduction(sentence) == sentence
