"""Days that a text names."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_extproc.text.dates import days_asked_for, days_named, in_month_of

MONDAY = date(2023, 5, 8)


def named(text: str, said: date = MONDAY) -> list[tuple[str, str]]:
    return [
        (date.fromordinal(first).isoformat(), date.fromordinal(last).isoformat())
        for first, last in days_named(text, said)
    ]


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("on 7 May 2023", "2023-05-07", "2023-05-07"),
        ("May 7th", "2023-05-07", "2023-05-07"),
        ("it was 2024-05-03", "2024-05-03", "2024-05-03"),
        ("back in 2022-02", "2022-02-01", "2022-02-28"),
        ("in May", "2023-05-01", "2023-05-31"),
        ("what happened in march", "2023-03-01", "2023-03-31"),
        ("in December", "2022-12-01", "2022-12-31"),
        ("am 3. März 2024", "2024-03-03", "2024-03-03"),
        ("le 14 juillet 2022", "2022-07-14", "2022-07-14"),
        ("in 2019", "2019-01-01", "2019-12-31"),
        ("yesterday", "2023-05-07", "2023-05-07"),
        ("tomorrow", "2023-05-09", "2023-05-09"),
        ("this morning", "2023-05-08", "2023-05-08"),
        ("last week", "2023-05-01", "2023-05-07"),
        ("next weekend", "2023-05-20", "2023-05-21"),
        ("last month", "2023-04-01", "2023-04-30"),
        ("last year", "2022-01-01", "2022-12-31"),
        ("last Friday", "2023-05-05", "2023-05-05"),
        ("next Monday", "2023-05-08", "2023-05-08"),
        ("three days ago", "2023-05-05", "2023-05-05"),
        ("a couple of weeks ago", "2023-04-21", "2023-04-27"),
        ("last May", "2023-05-01", "2023-05-31"),
        ("last summer", "2022-06-01", "2022-08-31"),
        ("this summer", "2023-06-01", "2023-08-31"),
        ("next winter", "2023-12-01", "2024-02-29"),
        ("last spring", "2022-03-01", "2022-05-31"),
        ("the winter of 2021", "2021-12-01", "2022-02-28"),
        ("gestern", "2023-05-07", "2023-05-07"),
        ("Vorgestern war es", "2023-05-06", "2023-05-06"),
        ("letzte Woche", "2023-05-01", "2023-05-07"),
        ("letzten Sommer", "2022-06-01", "2022-08-31"),
        ("letzten Freitag", "2023-05-05", "2023-05-05"),
        ("letzten März", "2023-03-01", "2023-03-31"),
        ("vor drei Tagen", "2023-05-05", "2023-05-05"),
        ("avant-hier", "2023-05-06", "2023-05-06"),
        ("la semaine dernière", "2023-05-01", "2023-05-07"),
        ("il y a deux jours", "2023-05-06", "2023-05-06"),
        ("l'année dernière", "2022-01-01", "2022-12-31"),
        ("ayer", "2023-05-07", "2023-05-07"),
        ("el mes pasado", "2023-04-01", "2023-04-30"),
        ("hace 3 días", "2023-05-05", "2023-05-05"),
        ("la settimana scorsa", "2023-05-01", "2023-05-07"),
        ("tre giorni fa", "2023-05-05", "2023-05-05"),
        ("no ano passado", "2022-01-01", "2022-12-31"),
        ("há dois dias", "2023-05-06", "2023-05-06"),
        ("vorige week", "2023-05-01", "2023-05-07"),
        ("twee dagen geleden", "2023-05-06", "2023-05-06"),
    ],
)
def test_a_day_is_understood_as_who_said_it_then_meant_it(text: str, first: str, last: str) -> None:
    assert named(text) == [(first, last)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I may go",
        "they march on",
        "the 31 June",
        "room 2023b",
        "version 3.5.1",
        "a fall",
        "hier wohne ich",
        "guten Morgen",
        "in summer it rains",
        "der letzte Tag",
        "a week in Rio de Janeiro",
    ],
)
def test_what_names_no_day_is_not_taken_for_one(text: str) -> None:
    assert named(text) == []


@given(st.text(max_size=300), st.dates())
def test_any_text_gives_a_few_spans_that_end_no_earlier_than_they_begin(text: str, said: date) -> None:
    spans = days_named(text + " last week, 3 May, two years ago, next year", said)
    assert 1 <= len(spans) <= 4
    assert all(0 < first <= last for first, last in spans)


@pytest.mark.parametrize(
    ("question", "first", "last"),
    [
        ("What did we do last week?", "2023-05-01", "2023-05-07"),
        ("What happened the last week of August 2022?", "2022-08-01", "2022-08-31"),
        ("What was done last Friday, on 23 January 2022?", "2022-01-23", "2022-01-23"),
    ],
)
def test_beside_a_date_a_question_means_nothing_from_today_on(question: str, first: str, last: str) -> None:
    expected = (date.fromisoformat(first).toordinal(), date.fromisoformat(last).toordinal())
    assert days_asked_for(question, MONDAY) == (expected,)


@given(st.text(max_size=300), st.dates())
def test_any_question_asks_for_a_few_days_that_it_names(text: str, today: date) -> None:
    question = text + " 3 May, in 2019, last week"
    assert 1 <= len(days_asked_for(question, today)) <= 4


@given(st.dates(date(1950, 1, 1), date(2050, 12, 31)), st.integers(-150, 150))
def test_a_day_without_its_year_is_the_one_nearest_to_the_day_it_was_said(said: date, off: int) -> None:
    meant = said + timedelta(days=off)
    if (meant.month, meant.day) != (2, 29):
        [(first, last)] = days_named(f"The exam is on {meant:%B} {meant.day}.", said)
        assert (first, last) == (meant.toordinal(), meant.toordinal())


@given(st.dates(date(1950, 1, 1), date(2050, 12, 31)), st.integers(0, 300))
def test_a_past_day_without_its_year_is_the_last_such_day(said: date, ago: int) -> None:
    meant = said - timedelta(days=ago)
    if (meant.month, meant.day) != (2, 29):
        [(first, last)] = days_named(f"We went there on {meant:%B} {meant.day}.", said)
        assert (first, last) == (meant.toordinal(), meant.toordinal())


@pytest.mark.parametrize(
    ("day", "other", "named"),
    [
        ("the 17th", "on June 3", "on June 17"),
        ("on the 17th", "Friday, 3 June 2026", "17 June"),
        ("the 17th", "the 3rd of June at noon", "the 17th of June"),
        ("the 2nd", "on June 3", "the 2nd"),
        ("the 17th of July", "on June 3", "the 17th of July"),
        ("the 17th", "on Friday", "the 17th"),
        ("Friday", "on June 3", "Friday"),
    ],
)
def test_a_later_day_alone_is_in_the_month_of_the_day_before_it(day: str, other: str, named: str) -> None:
    assert in_month_of(day, other) == named
