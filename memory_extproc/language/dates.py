"""Days that a text names, as ordinals: "7 May 2023", "2023-05-07", "in May", and what `days_told` knows.

ISO dates, and the months' names in English, German, French, Spanish, Italian, Portuguese and Dutch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date
from itertools import islice

from memory_extproc.language.days_told import Span, days_told, ends_in_season, month_span
from memory_extproc.language.words import PHRASES

_READ = 2_000  # characters; who asks for or tells of a day does so early
_MOST = 4  # spans kept of one text
_EARLIEST, _LATEST = date(1900, 1, 1), date(9000, 1, 1)
_MONTHS = {
    name: number
    for number, line in enumerate(PHRASES["month_names"].strip().splitlines(), 1)
    for name in line.split()
}
_DAY = r"(?:0?[1-9]|[12]\d|3[01])"
_YEAR = r"(?:19|20)\d\d"
_ISO = re.compile(rf"\b({_YEAR})-(0[1-9]|1[0-2])(?:-(0[1-9]|[12]\d|3[01]))?\b")
_WORD = re.compile(r"[^\W\d_]{3,10}")
_DAY_BEFORE = re.compile(rf"\b({_DAY})(?:st|nd|rd|th|\.)?\s+(?:of\s+|de\s+)?$", re.IGNORECASE)
_DAY_AND_YEAR = re.compile(
    rf"\b\.?(?:\s+({_DAY})(?:st|nd|rd|th)?\b(?![\d:]))?(?:,?\s+(?:de\s+)?({_YEAR})\b)?", re.IGNORECASE
)
_LOOKS_BACK = 12  # characters
_BARE_YEAR = re.compile(rf"\b(?:in|since|during|of|from|year|until|before|after)\s+({_YEAR})\b(?!-)", re.IGNORECASE)
# "may", "march" and the short forms are words of their own, unless a number or a preposition says otherwise.
_AMBIGUOUS = frozenset(PHRASES["ambiguous_months"].split())
_BEFORE_MONTH = re.compile(
    r"\b(?:in|last|next|this|since|until|during|of|early|late|mid|im|en|letzte[nrsm]?|vorige[nrsm]?)[\s-]+$",
    re.IGNORECASE,
)
_CITY = re.compile(r"\brio\s+de\s+$", re.IGNORECASE)  # "Rio de Janeiro" is no month


def days_named(text: str, said: date) -> tuple[Span, ...]:
    """At most four spans of days that *text*, said on the day *said*, names; in no particular order. A date
    without its year is the one nearest before *said*, or up to a month behind it."""
    beginning = text[:_READ]
    said = min(max(said, _EARLIEST), _LATEST)  # there are days before and after it
    found: dict[Span, None] = {}
    for span in _spans(beginning, said):
        found.setdefault(span)
        if len(found) == _MOST:
            break
    return tuple(found)


def days_asked_for(question: str, today: date) -> tuple[Span, ...]:
    """As `days_named`, of a question. Beside a date, "last week" is not the one before today ("What did we do in
    the last week of August 2023?"), so then only the dates count."""
    beginning = question[:_READ]
    today = min(max(today, _EARLIEST), _LATEST)
    dates = tuple(islice(dict.fromkeys(_dates(beginning, today)), _MOST))
    return dates or tuple(islice(dict.fromkeys(days_told(beginning, today)), _MOST))


def _spans(text: str, said: date) -> Iterator[Span]:
    yield from _dates(text, said)
    yield from days_told(text, said)


def _dates(text: str, said: date) -> Iterator[Span]:
    if any(character.isdigit() for character in text):
        for match in _ISO.finditer(text):
            yield from _span(int(match[1]), int(match[2]), int(match[3]) if match[3] else None)
    for word in _WORD.finditer(text):
        if (month := _MONTHS.get(word[0].lower())) is not None:
            yield from _in_month(text, word, month, said)
    for match in _BARE_YEAR.finditer(text):
        if ends_in_season(text[: match.start()]):
            continue
        yield (date(int(match[1]), 1, 1).toordinal(), date(int(match[1]), 12, 31).toordinal())


def _in_month(text: str, word: re.Match[str], month: int, said: date) -> Iterator[Span]:
    after = _DAY_AND_YEAR.match(text, word.end())
    if after is None:  # the beginning of another word
        return
    before = text[max(0, word.start() - _LOOKS_BACK) : word.start()]
    if _CITY.search(before):
        return
    day_before = _DAY_BEFORE.search(before)
    day = day_before[1] if day_before else after[1]
    year = after[2]
    surely = day or year or (word[0][0].isupper() and _BEFORE_MONTH.search(before) is not None)
    if word[0].lower() in _AMBIGUOUS and not surely:
        return
    yield from _span(int(year) if year else _year_of(month, said), month, int(day) if day else None)


def _year_of(month: int, said: date) -> int:
    return said.year - 1 if month > said.month + 1 else said.year


def _span(year: int, month: int, day: int | None) -> Iterator[Span]:
    try:
        if day is None:
            yield month_span(year, month)
        else:
            only = date(year, month, day).toordinal()
            yield (only, only)
    except ValueError:  # the 31st of June is no day
        return
