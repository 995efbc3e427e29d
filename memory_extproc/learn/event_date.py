"""The day, month or year that a fact is about, counted from the day it was said. Pure."""

from __future__ import annotations

import re
from calendar import monthrange
from datetime import date

from memory_extproc.language.dates import days_named
from memory_extproc.language.days_told import Span

_FORM = re.compile(r"(\d{4})(?:-(\d\d)(?:-(\d\d))?)?")
_HAS_YEAR = re.compile(r"\b(?:19|20)\d\d\b")
_PAST = re.compile(
    r"\b(?:was|were|had|did|went|flew|came|got|met|saw|bought|born|ago|last|yesterday|past|since|[a-z]{3,}ed)\b",
    re.IGNORECASE,
)
_SLACK = 1  # days by which a model may miscount; time zones differ by as much
_FAR = 2 * 366  # days; further away a date must stand in the words


def resolved(text: str, said: date, proposed: str = "") -> str:
    """What *text*, said on the day *said*, is about: YYYY-MM-DD, YYYY-MM, YYYY, or empty where it names no one
    time. *proposed* by a model is taken where the words do not speak against it."""
    spans = [_ahead(span, text, said) for span in days_named(text, said)]
    wanted = span_of(proposed)
    if wanted is not None:
        if any(wanted[0] <= last + _SLACK and first - _SLACK <= wanted[1] for first, last in spans):
            return proposed
        if not spans and abs(wanted[0] - said.toordinal()) <= _FAR:
            return proposed
    return _form(spans[0]) if len(spans) == 1 else ""


def span_of(form: str) -> Span | None:
    """First and last day of YYYY-MM-DD, YYYY-MM or YYYY; None for anything else."""
    matched = _FORM.fullmatch(form)
    if matched is None:
        return None
    year, month, day = (int(part) if part else 0 for part in matched.groups())
    try:
        first = date(year, month or 1, day or 1)
        last = first if day else date(year, month or 12, monthrange(year, month or 12)[1])
    except ValueError:
        return None
    return first.toordinal(), last.toordinal()


def _ahead(span: Span, text: str, said: date) -> Span:
    """A day without its year is read as the one that was; of what is not told as past it is the next."""
    if span[1] >= said.toordinal() or _HAS_YEAR.search(text) or _PAST.search(text):
        return span
    try:
        first, last = (day.replace(year=day.year + 1) for day in map(date.fromordinal, span))
    except ValueError:  # the 29th of February
        return span
    return first.toordinal(), last.toordinal()


def _form(span: Span) -> str:
    first, last = map(date.fromordinal, span)
    if first == last:
        return first.isoformat()
    for form in (f"{first:%Y-%m}", f"{first:%Y}"):
        if span_of(form) == span:
            return form
    return ""
