"""Special categories are kept where the person asked for it, or the operator, and else not."""

from __future__ import annotations

import pytest

from memory_extproc.safety.policy import SensitiveCategory, asks_to_keep, of_assistant, of_caller, sensitivity

DIET = frozenset({SensitiveCategory.DIET})

TOLD = {
    "I have diabetes.": SensitiveCategory.HEALTH,
    "My mother was diagnosed with cancer.": SensitiveCategory.HEALTH,
    "I'm on antidepressants since May.": SensitiveCategory.HEALTH,
    "I am allergic to penicillin.": SensitiveCategory.HEALTH,
    "Ich bin schwanger.": SensitiveCategory.HEALTH,
    "Je suis enceinte et mon mari est ravi.": SensitiveCategory.HEALTH,
    "\u6211\u6709\u7cd6\u5c3f\u75c5\u3002": SensitiveCategory.HEALTH,
    "I'm a devout Catholic.": SensitiveCategory.RELIGION,
    "We go to the mosque on Fridays.": SensitiveCategory.RELIGION,
    "I voted for the Greens.": SensitiveCategory.POLITICS,
    "I'm gay.": SensitiveCategory.SEXUALITY,
    "We are of Kurdish descent.": SensitiveCategory.ETHNICITY,
    "I am a union member at the plant.": SensitiveCategory.UNION,
    "Ich bin in der Gewerkschaft und mein Chef wei\u00df es.": SensitiveCategory.UNION,
    "I was arrested in 2019.": SensitiveCategory.CRIME,
    "My DNA test says I carry BRCA1.": SensitiveCategory.BIOMETRY,
}


@pytest.mark.parametrize("text", TOLD)
def test_what_nobody_asked_to_keep_is_dropped_and_the_rest_stays(text: str) -> None:
    trimmed = of_caller(f"I live in Bonn. {text} My dog is Rex.", DIET)
    assert trimmed.text == "I live in Bonn. My dog is Rex."
    assert TOLD[text] in trimmed.dropped


@pytest.mark.parametrize("text", TOLD)
def test_an_operator_may_keep_a_category(text: str) -> None:
    assert of_caller(text, frozenset(SensitiveCategory)).text == text


@pytest.mark.parametrize(
    "text",
    [
        "Remember that I have diabetes.",
        "Please note: I'm pregnant.",
        "Merke dir, dass ich schwanger bin.",
        "N'oublie pas que je suis enceinte.",
        "Recuerda que estoy embarazada.",
        "\u8bf7\u8bb0\u4f4f\u6211\u6709\u7cd6\u5c3f\u75c5\u3002",
        "Remember that I'm allergic to nuts.",
    ],
)
def test_who_asks_for_it_to_be_remembered_agrees_to_its_being_kept(text: str) -> None:
    assert of_caller(text, frozenset()).text == text


@pytest.mark.parametrize("before", [3_580, 3_600, 3_989, 3_995, 4_000, 7_190])
def test_in_a_long_text_it_stands_out_wherever_it_is(before: int) -> None:
    """Which is looked through in parts: a search holds up all that goes on beside it."""
    around = "On we went. " * 800
    text = f"{around[:before]} I have diabetes. {around}"
    assert of_caller(text, DIET).dropped == (SensitiveCategory.HEALTH,)
    assert asks_to_keep(f"{around[:before]} Remember that. {around}")


def test_no_word_of_a_long_text_is_taken_for_the_beginning_of_another() -> None:
    """A search of some of it would see half a word at its end."""
    around = "On we went. " * 800
    for end in range(3_990, 4_010):
        assert not asks_to_keep(f"{around[: end - len(' remember')]} remembered {around}")


@pytest.mark.parametrize(
    "text",
    [
        "I'm allergic to peanuts.",
        "I'm allergic to latex gloves.",
        "I have a latex allergy.",
        "I'm allergic to bee stings and nickel.",
        "I have a lactose intolerance.",
        "What are the symptoms of diabetes?",
        "Cancer research has made progress.",
        "The French voted for Macron.",
        "Buddhism began in India.",
        "I live in Bonn and work as a nurse.",
        "My budget is $10,000.",
        "I drive a white van.",
        "I like black coffee.",
    ],
)
def test_allergies_other_than_to_medicines_general_talk_and_everything_else_is_kept(text: str) -> None:
    assert of_caller(text, DIET).text == text


def test_a_sentence_that_goes_on_about_the_person_goes_with_them() -> None:
    assert of_caller("I went to the doctor. It's cancer.", DIET).text == "I went to the doctor."


def test_an_answer_loses_what_it_says_of_whom_it_answers_and_repeats_nothing_that_was_dropped() -> None:
    answer = "Since you have asthma, hike slowly. Asthma is common. The lake is lovely."
    assert of_assistant(answer, DIET, frozenset()).text == "Asthma is common. The lake is lovely."
    assert of_assistant(answer, DIET, frozenset({SensitiveCategory.HEALTH})).text == "The lake is lovely."
    assert of_assistant("Take a map.", DIET, frozenset()).text == "Take a map."


def test_a_memory_says_which_category_it_is_of() -> None:
    assert sensitivity("User is allergic to nuts") is SensitiveCategory.DIET
    assert sensitivity("User has diabetes") is SensitiveCategory.HEALTH
    assert sensitivity("User has a dog") is None
