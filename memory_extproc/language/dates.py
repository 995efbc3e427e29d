"""Days that a text names, as ordinals: "7 May 2023", "2023-05-07", "in May", "last week", "three days ago".

English words and ISO dates; month names also in German, French, Spanish, Italian, Portuguese and Dutch where they
stand beside a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date, timedelta

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
    r"\b(?:in|last|next|this|since|until|during|of|early|late|mid|im|en)[\s-]+$", re.IGNORECASE
)
_WEEKDAYS = {name: at for at, name in enumerate(("mon", "tue", "wed", "thu", "fri", "sat", "sun"))}
_COUNTS = {word: number for number, word in enumerate(PHRASES["counts"].split(), 1)} | {
    "a": 1, "an": 1, "couple": 2, "few": 3,
}  # fmt: skip
_RELATIVE = re.compile(
    r"""\b(?:
        (?P<day>today|tonight|yesterday|tomorrow|last\s+night|this\s+morning)
      | (?P<which>last|past|next|this)\s+(?P<unit>week(?:end)?|month|year|(?:mon|tue|wed|thu|fri|sat|sun)\w*)
      | (?P<count>\d{1,3}|an?|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve
          |(?:a\s+)?(?:couple|few))
        \s+(?:of\s+)?(?P<ago>day|week|month|year)s?\s+ago
    )\b""",
    re.VERBOSE | re.IGNORECASE,
)
_DAYS = {"day": 1, "week": 7, "month": 30, "year": 365}
_OFFSETS = {"yesterday": -1, "last night": -1, "tomorrow": 1}

Span = tuple[int, int]  # first and last day, as date.toordinal() has them


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


def _spans(text: str, said: date) -> Iterator[Span]:
    if any(character.isdigit() for character in text):
        for match in _ISO.finditer(text):
            yield from _span(int(match[1]), int(match[2]), int(match[3]) if match[3] else None)
    for word in _WORD.finditer(text):
        if (month := _MONTHS.get(word[0].lower())) is not None:
            yield from _in_month(text, word, month, said)
    for match in _BARE_YEAR.finditer(text):
        yield (date(int(match[1]), 1, 1).toordinal(), date(int(match[1]), 12, 31).toordinal())
    for match in _RELATIVE.finditer(text):
        yield _relative(match, said)


def _in_month(text: str, word: re.Match[str], month: int, said: date) -> Iterator[Span]:
    after = _DAY_AND_YEAR.match(text, word.end())
    if after is None:  # the beginning of another word
        return
    before = text[max(0, word.start() - _LOOKS_BACK) : word.start()]
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
        if day is not None:
            only = date(year, month, day).toordinal()
            yield (only, only)
        else:
            following = date(year + month // 12, month % 12 + 1, 1)
            yield (date(year, month, 1).toordinal(), following.toordinal() - 1)
    except ValueError:  # the 31st of June is no day
        return


def _relative(match: re.Match[str], said: date) -> Span:
    today = said.toordinal()
    if match["day"]:
        only = today + _OFFSETS.get(" ".join(match["day"].lower().split()), 0)
        return (only, only)
    if match["ago"]:
        word = match["count"].lower().split()[-1]
        back = (int(word) if word.isdigit() else _COUNTS[word]) * _DAYS[match["ago"].lower()]
        slack = _DAYS[match["ago"].lower()] // 2
        return (max(1, today - back - slack), max(1, today - back + slack))
    return _last_or_next(match["which"].lower(), match["unit"].lower(), said)


def _last_or_next(which: str, unit: str, said: date) -> Span:
    step = {"last": -1, "past": -1, "next": 1, "this": 0}[which]
    if unit in {"week", "weekend"}:
        monday = said - timedelta(days=said.weekday()) + timedelta(weeks=step)
        first = monday + timedelta(days=5 if unit == "weekend" else 0)
        return (first.toordinal(), monday.toordinal() + 6)
    if unit == "month":
        number = said.year * 12 + said.month - 1 + step
        return next(_span(number // 12, number % 12 + 1, None))
    if unit == "year":
        return (date(said.year + step, 1, 1).toordinal(), date(said.year + step, 12, 31).toordinal())
    ahead = (_WEEKDAYS[unit[:3]] - said.weekday()) % 7
    day = said.toordinal() + (ahead - 7 if step < 0 else ahead)
    return (day, day)
