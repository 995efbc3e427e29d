"""A fragment that answers the assistant's question is read with the question; without one it states nothing."""

from __future__ import annotations

import pytest

from memory_extproc.learn.extract.rules import RulesExtractor
from tests.support.builders import a_turn

EXTRACTOR = RulesExtractor()


async def learned(question: str, answer: str) -> list[str]:
    facts = await EXTRACTOR.extract([a_turn(answer)], earlier=[a_turn("Can you help me?", question)])
    return [fact.content for fact in facts]


@pytest.mark.parametrize(
    ("question", "answer", "expected"),
    [
        ("Happy to. Where do you live?", "Ghent, since March.", ["User lives in Ghent"]),
        ("And where are you based?", "near Ghent - well, for now", ["User lives in Ghent"]),
        ("How old are you?", "38", ["User is 38"]),
        ("How old is your son?", "seven", ["User's son is seven"]),
        ("Do you have any allergies?", "peanuts and shellfish",
         ["User is allergic to peanuts", "User is allergic to shellfish"]),
        ("Is your son allergic to anything?", "just cashews", ["User's son is allergic to cashews"]),
        ("Any dietary restrictions?", "no pork, no shellfish",
         ["User doesn't eat pork", "User doesn't eat shellfish"]),
        ("Any dietary restrictions?", "Vegan.", ["User is vegan"]),
        ("Which languages do you speak?", "German and a bit of Polish", ["User speaks German and a bit of Polish"]),
        ("What do you do?", "software engineer at Bosch", ["User works as a software engineer at Bosch"]),
        ("What's your budget?", "about 2,000 euros", ["User's budget is 2,000 euros"]),
        ("What is your usual route?", "Hanover to Rotterdam", ["User's usual route is Hanover to Rotterdam"]),
        ("What do you take for it?", "cetirizine, one a day", ["User takes cetirizine"]),
        ("How many kids do you have?", "three", ["User has three kids"]),
        ("Do you have any pets?", "No.", ["User has no pets"]),
        ("Do you smoke?", "no", ["User doesn't smoke"]),
        ("Do you have any allergies?", "Pilar can't have strawberries", ["Pilar can't have strawberries"]),
        ("What do you do for work?", "Dario is a nurse", ["Dario is a nurse"]),
        ("What's your name and your age?", "Noor, 41", ["User's name is Noor", "User is 41"]),
        ("Wo wohnst du?", "in Kassel, seit 2019", ["User lives in Kassel"]),
        ("\u00bfD\u00f3nde vives?", "En Bogot\u00e1", ["User lives in Bogot\u00e1"]),
        ("Sch\u00f6n! Wie hei\u00dft du denn?", "Jonas.", ["User's name is Jonas"]),
        ("Wie hei\u00dfen Sie?", "Petra Lange", ["User's name is Petra Lange"]),
        ("Wie hei\u00dft du?", "Jonas, und du?", ["User's name is Jonas"]),
        ("Wie darf ich dich nennen?", "Lotte", ["User wants to be called Lotte"]),
        ("Tu t'appelles comment ?", "Th\u00e9o", ["User's name is Th\u00e9o"]),
        ("Comment t'appelles-tu ?", "Camille.", ["User's name is Camille"]),
        ("\u00bfC\u00f3mo te llamas?", "Luc\u00eda", ["User's name is Luc\u00eda"]),
        ("\u00bfC\u00f3mo puedo llamarte?", "Nando", ["User wants to be called Nando"]),
    ],
)  # fmt: skip
async def test_a_fragment_states_what_was_asked_for(question: str, answer: str, expected: list[str]) -> None:
    assert await learned(question, answer) == expected


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Where do you live?", "I'd rather not say"),
        ("Where do you live?", "it depends"),
        ("Where do you live?", "Nora: A tiny flat in Porto"),
        ("Where do you live?", "Anna (10:32): Leeds"),
        ("Wie hei\u00dft du?", "Egal."),
        ("Wie hei\u00dft du?", "Keine Ahnung."),
        ("Wie hei\u00dft der Film?", "Jaws"),
        ("Comment t'appelles-tu ?", "Peu importe"),
        ("Quel est ton nom pr\u00e9f\u00e9r\u00e9 pour un chat ?", "Minou"),
        ("\u00bfC\u00f3mo te llamas?", "Nada"),
        ("Where do you live?", "why do you ask?"),
        ("Where do you live?", "in a small house"),
        ("Where do you live? And how old are you?", "Ghent"),  # one of two questions: it is not said which
        ("You could live in Ghent.", "Ghent, since March."),
        ("What is your password?", "hunter2"),
        ("What's your question?", "the second one"),
        ("How old are you?", "old enough"),
        ("Which of these two do you like?", "the first one"),
        ("Would you like it shorter?", "no"),
        ("Who is your doctor?", "Marta does it all"),
        ("What is the price and your deposit?", "285,000"),  # of the two it is not said which
        ("What is the price and your deposit?", "285,000, we've been lucky"),
    ],
)
async def test_what_answers_nothing_about_the_caller_makes_no_fact(question: str, answer: str) -> None:
    assert await learned(question, answer) == []


@pytest.mark.parametrize(
    ("asked", "answered", "reply", "fact"),
    [
        ("Load tests with locust or k6?", "Either works.", "k6 then.",
         'User chose k6 ("Load tests with locust or k6?")'),
        ("I need a name for the loaf. Any ideas?", 'How about "Ribeira" or "Velha Mó"?', "Velha Mó, I love that!",
         'User chose Velha Mó ("I need a name for the loaf")'),
        ("what colour for the hall?", "Sage green or warm white would suit it.", "sage green sounds lovely",
         'User chose sage green ("what colour for the hall?")'),
        ("Welchen Wein zum Fisch?", "Ein Riesling oder ein Grauburgunder.", "Dann nehme ich den Riesling",
         'User chose den Riesling ("Welchen Wein zum Fisch?")'),
        ("Can you help me plan our honeymoon? We have 6k.", "You could do Japan or Costa Rica.",
         "Ooh Japan! But I'm veggie", 'User chose Japan ("Can you help me plan our honeymoon?")'),
        ("can you help me plan?", "Sure, I'd make a plan in three steps.", "the plan sounds good", None),
        ("what's the weather?", "It's sunny in Rome.", "I love Rome", None),
        ("I like tea.", "Tea is great.", "I'll have tea then", None),
        ("Load tests with locust or k6?", "Either works.", "gatling then.", None),
    ],
)  # fmt: skip
async def test_a_choice_among_suggestions_is_a_fact_with_the_question_that_it_settles(
    asked: str, answered: str, reply: str, fact: str | None
) -> None:
    before, turn = a_turn(asked, answered, id="t1"), a_turn(reply, "ok", id="t2")
    chosen = [one for one in await RulesExtractor().extract([turn], earlier=[before]) if "chose" in one.content]
    assert [one.content for one in chosen] == ([fact] if fact else [])
    assert all(one.drawn_from == ("t1", "t2") for one in chosen)  # forgetting either turn forgets it


async def test_a_choice_thought_over_belongs_to_the_question_before_it() -> None:
    asked = a_turn("Load tests with locust or k6?", "Either works.", id="t1")
    chosen, again = a_turn("k6 then.", "Good.", id="t2"), a_turn("actually let's go with locust instead", id="t3")
    facts = await RulesExtractor().extract([chosen, again], earlier=[asked])
    assert [(one.value, one.attribute, one.drawn_from) for one in facts] == [
        ("k6", "choice (load tests with locust or k6?)", ("t1", "t2")),
        ("locust", "choice (load tests with locust or k6?)", ("t1", "t3")),
    ]
    assert all(one.exclusive for one in facts)  # the later takes the place of the first


@pytest.mark.parametrize(
    ("described", "said", "fact"),
    [
        ("I found a studio for 6,900 in Luthagen. Should I take it?", "I took the studio. Moving on June 1!",
         'User chose the studio ("I found a studio for 6,900 in Luthagen")'),
        ("We viewed a cottage near Ennis, 210k.", "We've bought the cottage!",
         'User chose the cottage ("We viewed a cottage near Ennis, 210k")'),
        ("there's a blue Brompton on Marktplaats for 800", "bought the Brompton",  None),
        ("I've got a Golf", "I took the Golf to the garage", None),
        ("I found a studio in Luthagen.", "I took the bus to the studio", None),
        ("I found a studio in Luthagen.", "did you say I took the car?", None),
    ],
)  # fmt: skip
async def test_what_the_caller_took_of_the_things_that_they_described_is_a_fact(
    described: str, said: str, fact: str | None
) -> None:
    before, turn = a_turn(described, "It sounds fair.", id="t1"), a_turn(said, "ok", id="t2")
    chosen = [one for one in await RulesExtractor().extract([turn], earlier=[before]) if "chose" in one.content]
    assert [one.content for one in chosen] == ([fact] if fact else [])
    assert all(one.drawn_from == ("t1", "t2") for one in chosen)
