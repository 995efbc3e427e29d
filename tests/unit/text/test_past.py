"""Which questions ask how things were, and for when."""

from __future__ import annotations

from datetime import date

import pytest

from memory_extproc.text.dates import asked_of

TODAY = date(2026, 6, 15)


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("What was my budget in March?", date(2026, 3, 1), date(2026, 3, 31)),
        ("Where did I live in 2024?", date(2024, 1, 1), date(2024, 12, 31)),
        ("Who was my dentist last month?", date(2026, 5, 1), date(2026, 5, 31)),
        ("What was my budget this month?", date(2026, 6, 1), TODAY),
    ],
)
def test_a_question_about_a_time_that_is_over_names_it(text: str, first: date, last: date) -> None:
    assert asked_of(text, TODAY) == (first.toordinal(), last.toordinal())


@pytest.mark.parametrize(
    "text",
    [
        "Where did I live before?",
        "What was my previous employer?",
        "What did my budget use to be, originally?",
        "How has my budget changed?",
        "What was my old address?",
        "Wo habe ich früher gewohnt?",
        "Où est-ce que j'habitais avant ?",
        "¿Dónde vivía yo antes? ¿Y mi trabajo?",
        "我以前住在哪里？",
    ],
)
def test_a_question_about_before_means_all_the_past(text: str) -> None:
    span = asked_of(text, TODAY)
    assert span is not None
    assert span[1] == TODAY.toordinal()


@pytest.mark.parametrize(
    "text",
    [
        "What is my budget?",
        "What's my budget for March 2027?",
        "Where do I live now?",
        "When was Rome founded?",
        "What was the population of Peru before the war?",
        "I was in Rome in March. " * 40,
        "",
    ],
)
def test_other_questions_do_not_ask_for_the_past_of_the_caller(text: str) -> None:
    assert asked_of(text, TODAY) is None
