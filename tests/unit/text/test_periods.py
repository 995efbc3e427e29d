"""The time a question is about: feasts, weekdays and spans, beside the days that `dates` knows."""

from __future__ import annotations

from datetime import date

import pytest

from memory_extproc.text.dates import impossible_day, period_asked_for

SUNDAY = date(2026, 11, 22)


@pytest.mark.parametrize(
    ("question", "first", "last"),
    [
        ("what did we do yesterday", date(2026, 11, 21), date(2026, 11, 21)),
        ("what did I say the day before yesterday", date(2026, 11, 20), date(2026, 11, 20)),
        ("qué hice ayer", date(2026, 11, 21), date(2026, 11, 21)),
        ("qu'est-ce que j'ai dit hier", date(2026, 11, 21), date(2026, 11, 21)),
        ("what did I do on Monday", date(2026, 11, 16), date(2026, 11, 16)),
        ("what do I have on Friday", date(2026, 11, 27), date(2026, 11, 27)),
        ("the past two weeks", date(2026, 11, 8), date(2026, 11, 22)),
        ("what did I plan before Christmas", date(2025, 11, 24), date(2025, 12, 23)),
        ("what did we eat at Easter", date(2026, 4, 5), date(2026, 4, 5)),
        ("what am I doing on Thanksgiving, what is planned", date(2026, 11, 26), date(2026, 11, 26)),
        ("what did I say since March", date(2026, 3, 1), date(2026, 11, 22)),
        ("what happened in the middle of October", date(2026, 10, 9), date(2026, 10, 21)),
        ("Was habe ich Ende Oktober erzählt", date(2026, 10, 21), date(2026, 10, 31)),
        ("what did I say in the first week of October", date(2026, 10, 1), date(2026, 10, 7)),
        ("what did I say in October about my last job", date(2026, 10, 1), date(2026, 10, 31)),
        ("on 19 November", date(2026, 11, 19), date(2026, 11, 19)),
        ("what did I do two Sundays ago", date(2026, 11, 8), date(2026, 11, 8)),
        ("what have I got on Friday evening, will it rain", date(2026, 11, 27), date(2026, 11, 27)),
    ],
)
def test_the_time_a_question_names(question: str, first: date, last: date) -> None:
    assert period_asked_for(question, SUNDAY) == (first.toordinal(), last.toordinal())


@pytest.mark.parametrize(
    "question",
    [
        "what is my job",
        "who won on 14 July 1789",
        "what happened in the 12th century",
        "what's on Tuesday evenings for me",
        "what do I do on Fridays?",
        "who comes every Monday",
        "was mache ich jeden Dienstag",
        "qu'est-ce que je fais les mardis",
        "qué hago los martes",
    ],
)
def test_a_question_of_no_time_one_of_long_ago_and_one_of_a_habit_name_none(question: str) -> None:
    assert period_asked_for(question, SUNDAY) is None


@pytest.mark.parametrize(
    ("text", "day"),
    [("on 30 February", "30 February"), ("am 31. April", "31 April"), ("on 29 February", ""), ("in May", "")],
)
def test_a_day_that_no_calendar_has(text: str, day: str) -> None:
    assert impossible_day(text, SUNDAY) == day
