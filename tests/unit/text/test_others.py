"""Whether a text is about somebody else than the one who asks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_extproc.text.persons import mentioned_words, of_another, subject

ABOUT_SISTER = "My sister Maren has just moved to Toronto."


def tells_of_another(question: str, text: str) -> float:
    return of_another(mentioned_words(question), text)


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("Where do I live?", ABOUT_SISTER),
        ("What breed is my dog?", "Our postman has a husky called Kira."),
        ("what's my cat called?", "Bea from next door calls her cat Miso."),
        ("When is my wedding?", "Friends of ours are getting married on July 18."),
        ("When is my birthday?", "User's uncle's birthday is on August 21"),
        ("what am I allergic to", "and a colleague of mine is allergic to nuts"),
        ("Wo wohne ich?", "Meine Schwester wohnt in Kiel."),
        ("O\u00f9 est-ce que j'habite ?", "Ma soeur habite \u00e0 Lyon."),
        ("\u00bfD\u00f3nde vivo?", "Mi hermano vive en Lima."),
    ],
)
def test_what_is_told_of_somebody_the_question_does_not_mention_is_about_another(question: str, text: str) -> None:
    assert tells_of_another(question, text) > 0


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("Where does my sister live?", ABOUT_SISTER),
        ("Who am I married to?", "My husband Rafael is a night owl."),
        ("How old are my kids?", "My son turned four."),
        ("what does Bea call her cat", "Bea from next door calls her cat Miso."),
        ("Wie hei\u00dft mein Chef?", "Mein Chef Herr Bachmeier geht in Rente."),
    ],
)
def test_what_is_told_of_whom_the_question_mentions_is_not(question: str, text: str) -> None:
    assert tells_of_another(question, text) < 0


@pytest.mark.parametrize(
    "text",
    [
        "I live in Cork with my sister.",
        "User lives in Cork",
        "We walk every evening.",
        "It is late",
        "My sisterhood of books has a meeting.",
        "",
    ],
)
def test_what_the_speaker_tells_of_themselves_is_about_nobody_else(text: str) -> None:
    assert tells_of_another("Where do I live?", text) == 0


@given(st.text(max_size=300), st.text(max_size=300))
def test_any_two_texts_have_an_answer_within_its_range(question: str, text: str) -> None:
    assert -1.0 <= tells_of_another(question, text) <= 1.0
    who, sure = subject(text)
    assert bool(who) == (sure > 0)
