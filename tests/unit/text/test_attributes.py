"""Attributes in statements and in questions, though they share no word."""

from __future__ import annotations

import pytest

from memory_extproc.text.attributes import ATTRIBUTES, AttributeLexicon, LexiconError, plain_words


@pytest.mark.parametrize(
    ("statement", "attribute"),
    [
        ("I'm a pediatric nurse", "job"),
        ("User works for Google", "job"),
        ("Ich bin Krankenschwester in Bonn", "job"),
        ("I have twins, Ada and Bo", "children"),
        ("I'm 34 years old", "age"),
        ("we moved to Toronto last spring", "home"),
        ("I can't climb stairs", "mobility"),
        ("I never eat meat", "diet"),
        ("I drive a red Toyota", "vehicles"),
        ("they rebooked me onto KL 641", "flights"),
        ("Soy alérgica a las nueces", "allergies"),
        ("I took the studio. Moving on the 1st of June!", "home"),
        ("keep it plain, none of that corporate talk", "styles"),
        ("please don't use so many exclamation marks in texts for parents", "styles"),
        ("I always want the French version first", "styles"),
        ("I write my pipelines in Snakemake", "coding"),
    ],
)
def test_a_statement_tells_its_attribute(statement: str, attribute: str) -> None:
    assert attribute in ATTRIBUTES.names(ATTRIBUTES.told_by(statement))


@pytest.mark.parametrize(
    ("statement", "attribute"),
    [
        ("I talked to a nurse about it", "job"),
        ("I run 15 km on Sundays", "job"),
        ("I decided on a budget of 8000 euros", "flights"),
        ("I was in the office at 9", "age"),
    ],
)
def test_a_statement_that_only_has_its_words_does_not(statement: str, attribute: str) -> None:
    assert attribute not in ATTRIBUTES.names(ATTRIBUTES.told_by(statement))


def test_the_attribute_of_a_fact_counts_whatever_its_words() -> None:
    assert ATTRIBUTES.names(ATTRIBUTES.told_by("User is at Acme", "employer")) == ["job"]


@pytest.mark.parametrize(
    ("question", "attribute"),
    [
        ("what do I do for a living", "job"),
        ("how old am I", "age"),
        ("wo wohne ich", "home"),
        ("我对什么过敏", "allergies"),
    ],
)
def test_a_question_asks_for_its_attribute(question: str, attribute: str) -> None:
    words = plain_words(question)
    assert attribute in ATTRIBUTES.names(ATTRIBUTES.named_in(words) | ATTRIBUTES.asked_by(" ".join(words)))


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"colour": "blue"}, "pet.colour"),
        ({"asking": ["("]}, "pet.asking"),
        ({"tells": ["\\\\d+ cats"]}, "pet.tells"),
        ("a word", "pet"),
    ],
)
def test_a_section_that_cannot_be_used_is_named(section: object, said: str) -> None:
    with pytest.raises(LexiconError, match=said):
        AttributeLexicon({"pet": section})


def test_an_unknown_attribute_is_named_with_those_that_there_are() -> None:
    with pytest.raises(LexiconError, match="no attribute 'alergies'; expected one of age, allergies"):
        ATTRIBUTES.mask(["alergies"])


@pytest.mark.parametrize(
    "told", ["signing got moved to the 22nd", "the fair moved to tomorrow", "it moved to an earlier slot"]
)
def test_what_is_moved_to_another_time_tells_of_no_home(told: str) -> None:
    home = ATTRIBUTES.mask(["home"])
    assert not ATTRIBUTES.told_by(told) & home
    assert ATTRIBUTES.told_by("we moved to the 4th floor") & home


def test_a_delivery_that_slipped_tells_of_no_illness() -> None:
    health = ATTRIBUTES.mask(["health"])
    assert not ATTRIBUTES.told_by("delivery slipped to May 12") & health
    assert ATTRIBUTES.told_by("I have a slipped disc") & health
