"""The time that a question is about, beyond days: "before Christmas", "on Monday", "the past two weeks".

Also days that no calendar knows. Pure; time linear in the text.
"""

from __future__ import annotations

import re
from datetime import date, timedelta

from memory_extproc.text.attributes import plain_words
from memory_extproc.text.dates import Span, day_numbers, days_asked_for
from memory_extproc.text.words import PHRASES

_READ = 400  # characters
_AROUND = 30  # days before or after a feast that "before Christmas" means
_LATELY = 14  # days
_WEEK = 7
_FEASTS = {
    word: line.split()[0]
    for line in PHRASES["feasts"].strip().splitlines()
    for word in line.split()
    if word[0].isalpha()
}
_WEEKDAYS = {word: at for at, line in enumerate(PHRASES["weekdays"].strip().splitlines()) for word in line.split()}
_BEFORE = frozenset({"before", "until", "till", "vor", "bis", "avant", "jusqu'a", "antes", "hasta", "prior"})
_AFTER = frozenset({"after", "nach", "apres", "despues", "following"})
_SINCE = frozenset({"since", "seit", "depuis", "desde"})
_AHEAD = re.compile(
    r"\b(?:next|coming|will|going|planned|scheduled|do i have|am i doing|are we doing|what is on|coming up|tomorrow"
    r"|habe ich|geplant|prevu|ai-je|tengo|planeado|kommenden?|prochaine?|proximo)\b"
)
_PAST_FEW = re.compile(
    r"\b(?:(?:in|over|during|for) )?(?:the |these )?(?:last|past|letzten|derniers|dernieres|ultimos|ultimas) "
    r"(?P<count>\d{1,3}|two|three|four|five|six|seven|couple(?: of)?|few|zwei|drei|paar|deux|trois|dos|tres)? ?"
    r"(?P<unit>days|weeks|months|tage|tagen|wochen|monate|monaten|jours|semaines|mois|dias|semanas|meses)\b"
)
_COUNTS = {
    word: number for number, line in enumerate(PHRASES["several"].strip().splitlines(), 2) for word in line.split()
}
_LENGTHS = {"d": 1, "t": 1, "j": 1, "w": 7, "s": 7, "m": 30}  # by the unit's first letter
_LONG_AGO = re.compile(r"\b(?:1[0-8]\d\d|[1-9]\d\d (?:AD|BC)|ancient|century)\b")
_DAY_BEFORE = re.compile(r"\b(?:day before yesterday|vorgestern|avant-hier|anteayer|antier|avantieri)\b")
_RECENTLY = re.compile(
    r"\b(?:recently|lately|these days|neulich|kurzlich|in letzter zeit|recemment|ces derniers temps"
    r"|ultimamente|recientemente)\b"
)
_YESTERDAY = re.compile(r"\b(?:hier|ayer|ieri|ontem)\b")
_OWN_YESTERDAY = re.compile(r"\b(?:je|j'ai|ai-je|on|nous|avons|qu'ai-je|que|yo|hice|hicimos|hablamos)\b")


def period_asked_for(question: str, today: date) -> Span | None:
    """First and last day of the time that *question*, asked on the day *today*, is about; None: it names none."""
    beginning = question[:_READ]
    if _LONG_AGO.search(beginning):
        return None
    words = plain_words(beginning)
    joined = " ".join(words)
    named = _feast_or_weekday(words, joined, today) or _told_from_today(joined, today)
    if named is None:
        spans = days_asked_for(beginning, today)
        if not spans:
            return None
        named = min(first for first, _ in spans), max(last for _, last in spans)
        return _shift([word for word in words if word != "vor"], named, today)  # "vor drei Tagen": three days ago
    return named


def _told_from_today(joined: str, today: date) -> Span | None:
    now = today.toordinal()
    if _DAY_BEFORE.search(joined):
        return now - 2, now - 2
    if _RECENTLY.search(joined):
        return now - _LATELY, now
    if (few := _PAST_FEW.search(joined)) is not None:
        count = few["count"] or "1"
        number = int(count) if count.isdigit() else 2 if count.startswith("couple") else _COUNTS[count]
        return max(1, now - number * _LENGTHS[few["unit"][0]]), now
    if _YESTERDAY.search(joined) and _OWN_YESTERDAY.search(joined):
        return now - 1, now - 1
    return None


def _feast_or_weekday(words: list[str], joined: str, today: date) -> Span | None:
    for word in words:
        if (feast := _FEASTS.get(word.removesuffix("'s"))) is not None:
            ahead = _AHEAD.search(joined) is not None
            day = _feast(feast, today, ahead=ahead)
            if word in {"christmas", "xmas", "weihnachten"} and not {"eve", "day"} & set(words):
                return _shift(words, (day - 1, day + 1), today)
            return _shift(words, (day, day), today)
    for at, word in enumerate(words):
        if (weekday := _WEEKDAYS.get(word.removesuffix("s"))) is not None or (
            weekday := _WEEKDAYS.get(word)
        ) is not None:
            if {"last", "next", "letzten", "dernier", "pasado", "proximo", "nachsten"} & set(
                words[max(0, at - 1) : at + 2]
            ):
                return None  # `dates` knows these
            back = (today.weekday() - weekday) % _WEEK
            ahead = _AHEAD.search(joined) is not None
            day = today.toordinal() + (_WEEK - back) % _WEEK if ahead else today.toordinal() - (back or _WEEK)
            return _shift(words, (day, day), today)
    return None


def _shift(words: list[str], named: Span, today: date) -> Span:
    """*named*, or the time before or after it where *words* say so."""
    if _BEFORE & set(words):
        return max(1, named[0] - _AROUND), named[0] - 1
    if _SINCE & set(words):
        return named[0], max(today.toordinal(), named[1])
    if _AFTER & set(words):
        return named[1] + 1, max(today.toordinal(), named[1] + 1)
    return named


def _feast(name: str, today: date, *, ahead: bool) -> int:
    """The one that is nearest before *today*, or after it."""
    days = [_feast_in(name, year) for year in (today.year - 1, today.year, today.year + 1)]
    now = today.toordinal()
    return next(day for day in days if day >= now) if ahead else [day for day in days if day <= now][-1]


def _feast_in(name: str, year: int) -> int:
    if name == "easter":
        return _easter(year)
    if name == "thanksgiving":
        first = date(year, 11, 1)
        return (first + timedelta(days=(3 - first.weekday()) % _WEEK + 3 * _WEEK)).toordinal()
    return date(year, int(name[:2]), int(name[3:])).toordinal()


def _easter(year: int) -> int:
    """Western Easter: Meeus, "Astronomical Algorithms", chapter 8, in its Gregorian form."""
    a, b, c = year % 19, year // 100, year % 100
    d, e = divmod(b, 4)
    g = (8 * b + 13) // 25
    h = (19 * a + b - d - g + 15) % 30
    i, k = divmod(c, 4)
    length = (32 + 2 * e + 2 * i - h - k) % 7
    m = (a + 11 * h + 19 * length) // 433
    month, day = divmod(h + length - 7 * m + 114, 31)
    return date(year, month, day + 1).toordinal()


# --- days that are none ------------------------------------------------------------------------------
# "30 February", "31.4.": clear to people, and in no calendar.


def impossible_day(text: str, today: date) -> str:
    """The first day that *text* names and no calendar knows, as "30 February"; empty where there is none."""
    for day, month, year in day_numbers(text[:_READ]):
        try:
            date(year or 2024, month, day)  # a leap year: of no year is said that it has no 29 February
        except ValueError:
            return f"{day} {date(today.year, month, 1):%B}"
    return ""
