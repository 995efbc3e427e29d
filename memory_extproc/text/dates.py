"""Days that a text names, as ordinals ("7 May 2023", "in May", "last week"), and the time that a question is about.

ISO dates, and the months' names in English, German, French, Spanish, Italian, Portuguese and Dutch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date, timedelta
from itertools import islice

from memory_extproc.text import lazy_re as re
from memory_extproc.text.attributes import plain_words
from memory_extproc.text.words import MONTHS, MOST_REMEMBERED, PHRASES, fold, memoize_by_hash

_READ = 2_000  # characters; days are named early in a text
_MOST = 4  # spans kept of a text
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
_SURELY_BEFORE_MONTH = re.compile(r"\b(?:in|since|until|during)\s+$", re.IGNORECASE)  # no verb stands behind it
# "the 14th", "am 14.", "le 14": a day of the month that is not named
_BARE_DAY = re.compile(
    rf"\bthe\s+({_DAY})(?:st|nd|rd|th)\b|\b(?:am|zum)\s+({_DAY})\.(?=\W|$)(?!\s*\d)|(?<!\w)(?:le|el)\s+({_DAY})(?=[\s?!.]*$)",
    re.IGNORECASE,
)
_PLANNED = 6  # months ahead that people speak of without the year
_OVER = re.compile(
    r"\b(?:was|were|did|had|went|came|took|got|saw|met|told|said|talked|spoke|discussed|mentioned|used\s+to|last|ago"
    r"|(?:have|has)\s+(?:i|we|you)\s+\w{1,20}(?:ed|id|en|ne|oke)|(?:habe?|haben|hast|hat)\b.{0,80}?\bge\w{1,20}(?:t|en)"
    r"|(?:habe?|haben|hast|hat)\b.{0,80}?\b\w{1,20}(?:iert|z\u00e4hlt)|\w{1,20}(?:amos|imos)"
    r"|(?:ai|as|a|avons|avez|ont)\s+(?:\w{1,15}\s+){0,2}?\w{1,20}(?:\u00e9e?s?|it|u)"
    r"|cont\u00e9|dije|habl\u00e9|war|waren|hatte\w*|gewesen|gegangen"
    r"|\u00e9tait|\u00e9tais|avais|avait|all\u00e9e?s?|era|fui|fue|fuimos|hice|tuve|ten\u00eda)\b",
    re.IGNORECASE,
)
_CITY = re.compile(r"\brio\s+de\s+$", re.IGNORECASE)  # "Rio de Janeiro" is no month


def days_named(text: str, said: date) -> tuple[Span, ...]:
    """At most four spans of days that *text*, said on the day *said*, names; in no particular order. A date
    without its year is in the half-year after *said* or the one before it; where *text* tells of the past, before
    it or up to a month after it."""
    beginning = text[:_READ]
    said = min(max(said, _EARLIEST), _LATEST)  # there are days before and after it
    found: dict[Span, None] = {}
    for span in _spans(beginning, said):
        found.setdefault(span)
        if len(found) == _MOST:
            break
    return tuple(found)


def days_asked_for(question: str, today: date) -> tuple[Span, ...]:
    """As `days_named`, for a question. Beside a date, "last week" is not the week before today ("the last week of
    August 2023"), so only the dates count then."""
    return _days_asked_for(f"{today.toordinal()} {question[:_READ]}")


@memoize_by_hash(MOST_REMEMBERED)  # a question has several readers
def _days_asked_for(dated: str) -> tuple[Span, ...]:
    day, _, beginning = dated.partition(" ")
    today = min(max(date.fromordinal(int(day)), _EARLIEST), _LATEST)
    dates = tuple(islice(dict.fromkeys(_dates(beginning, today)), _MOST))
    return dates or tuple(islice(dict.fromkeys(relative_dates(beginning, today)), _MOST))


def _spans(text: str, said: date) -> Iterator[Span]:
    yield from _dates(text, said)
    yield from relative_dates(text, said)


def _dates(text: str, said: date) -> Iterator[Span]:
    if any(map(str.isdigit, text)):
        for match in _ISO.finditer(text):
            yield from _span(int(match[1]), int(match[2]), int(match[3]) if match[3] else None)
    months = False
    for word in _WORD.finditer(text):
        if (month := _MONTHS.get(word[0].lower())) is not None:
            months = True
            yield from _in_month(text, word, month, said)
    if not months:
        for match in _BARE_DAY.finditer(text):
            yield from _of_month(int(match[1] or match[2] or match[3]), said, over=_OVER.search(text) is not None)
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
    leading = _BEFORE_MONTH if word[0][0].isupper() else _SURELY_BEFORE_MONTH
    surely = day or year or leading.search(before) is not None
    if word[0].lower() in _AMBIGUOUS and not surely:
        return
    yield from _span(
        int(year) if year else _year_of(month, said, over=_OVER.search(text) is not None),
        month,
        int(day) if day else None,
    )


def _year_of(month: int, said: date, *, over: bool) -> int:
    if over:
        return said.year - 1 if month > said.month + 1 else said.year
    ahead = (month - said.month) % 12
    return said.year + (month < said.month) if ahead <= _PLANNED else said.year - (month > said.month)


def _of_month(day: int, said: date, *, over: bool) -> Iterator[Span]:
    """The next *day* of a month, or the last where the text tells of the past."""
    for months in (0, -1) if over else (0, 1):
        number = said.year * 12 + said.month - 1 + months
        for span in _span(number // 12, number % 12 + 1, day):
            if (span[0] <= said.toordinal()) if over else (span[0] >= said.toordinal()):
                yield span
                return


def _span(year: int, month: int, day: int | None) -> Iterator[Span]:
    try:
        if day is None:
            yield month_span(year, month)
        else:
            only = date(year, month, day).toordinal()
            yield (only, only)
    except ValueError:  # the 31st of June is no day
        return


_TH = "(?P<th>st|nd|rd|th|\\.)?"
_DAY_ALONE = re.compile(rf"(?:(?:on|the|am|den|le|el) ){{0,2}}(?P<day>{_DAY}){_TH}", re.IGNORECASE)
_DAY_IN_MONTH = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(?P<before>(?:on )?(?:{MONTHS}) (?:the )?)(?P<day>{_DAY}){_TH}(?P<after>)\b",
        rf"(?P<before>(?:on )?(?:the |am |le |el )?)(?P<day>{_DAY}){_TH}(?P<after> (?:of |de )?(?:{MONTHS})\b)",
    )
)


def in_month_of(day: str, other: str) -> str:
    """*day*, if a day alone ("the 17th"), in the month of the earlier day *other*: "on June 17" after "on June 3".
    Unchanged where it names more or may be in another month."""
    alone = _DAY_ALONE.fullmatch(day)
    known = next(filter(None, (pattern.search(other) for pattern in _DAY_IN_MONTH)), None)
    if alone is None or known is None or int(known["day"]) >= int(alone["day"]):
        return day
    ending = (alone["th"] or "") if known["th"] else ""
    return f"{known['before']}{alone['day']}{ending}{known['after']}"


def day_numbers(text: str) -> Iterator[tuple[int, int, int | None]]:
    """Day, month and year, if *text* has it, of each day beside the name of a month, also of impossible days."""
    for word in _WORD.finditer(text):
        month, after = _MONTHS.get(word[0].lower()), _DAY_AND_YEAR.match(text, word.end())
        if month is None or after is None:
            continue
        before = _DAY_BEFORE.search(text[max(0, word.start() - _LOOKS_BACK) : word.start()])
        if day := before[1] if before else after[1]:
            yield int(day), month, int(after[2]) if after[2] else None


# --- days told ---------------------------------------------------------------------------------------
# Days relative to the day of saying: "yesterday", "last week", "three days ago", "last summer", "the winter of
# 2021", also in German, French, Spanish, Italian, Portuguese and Dutch.
#
# Words that are a day only in some languages ("hier", "morgen") are left out.

Span = tuple[int, int]  # first and last day, as date.toordinal() has them


def _lines(phrase: str) -> dict[str, str]:
    """The words of each line of *phrase*, with the line's first."""
    lines = (line.split() for line in PHRASES[phrase].strip().splitlines())
    return {word: first for first, *words in lines for word in words}


_WEEKDAYS = {name: at for at, name in enumerate(("mon", "tue", "wed", "thu", "fri", "sat", "sun"))}
_SEASONS = {word: int(month) for word, month in _lines("seasons").items()}
_DAYS_TOLD = {word: int(offset) for word, offset in _lines("days_told").items()}
_UNITS = _lines("units_told") | {season: season for season in _SEASONS}
_COUNTS = {word: number for number, word in enumerate(PHRASES["counts"].split(), 1)} | {
    "a": 1, "an": 1, "couple": 2, "few": 3,
} | {word: int(number) for word, number in _lines("counts_told").items()}  # fmt: skip


def _one_of(words: Iterable[str]) -> str:
    return "|".join(sorted(map(re.escape, words), key=len, reverse=True))


_ENGLISH_SEASON = "spring|summer|autumn|fall|winter"
_ENGLISH = re.compile(
    rf"""\b(?:
        (?P<day>today|tonight|yesterday|tomorrow|last\s+night|this\s+morning)
      | (?P<which>last|past|next|this)\s+
        (?P<unit>week(?:end)?|month|year|{_ENGLISH_SEASON}|(?:mon|tue|wed|thu|fri|sat|sun)\w*)
      | (?P<count>\d{{1,3}}|an?|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve
          |(?:a\s+)?(?:couple|few))
        \s+(?:of\s+)?(?P<ago>day|week|fortnight|month|year)s?\s+(?:ago|back)
    )\b""",
    re.VERBOSE | re.IGNORECASE,
)
_SEASON_OF_YEAR = re.compile(
    rf"\b(?P<season>{_one_of(_SEASONS)})\s+(?:of\s+|de\s+|del\s+|van\s+)?(?P<year>{_YEAR})\b", re.IGNORECASE
)
_ENDS_IN_SEASON = re.compile(rf"\b(?:{_one_of(_SEASONS)})\s+$", re.IGNORECASE)
_TOLD_LOOKS_BACK = 16  # characters
_LAST = _one_of(PHRASES["last_told"].split())
_UNIT = _one_of(_UNITS)
_NUMBER = rf"\d{{1,3}}|{_one_of(_lines('counts_told'))}"
_ELSEWHERE = re.compile(
    rf"""(?<!\w)(?:
        (?P<day>{_one_of(_DAYS_TOLD)})
      | (?:{_LAST})\s+(?P<after_last>{_UNIT}) | (?P<before_last>{_UNIT})\s+(?:{_LAST})
      | (?:{PHRASES["ago_before"].replace(" ", chr(92) + "s+")})\s+(?P<count>{_NUMBER})\s+(?P<ago>{_UNIT})
      | (?P<count_ago>{_NUMBER})\s+(?P<unit_ago>{_UNIT})\s+(?:{PHRASES["ago_behind"]})
    )(?!\w)""",
    re.VERBOSE | re.IGNORECASE,
)
# Every pattern needs a word of its own: finding words is quicker than trying every pattern at every place.
_DAY_WORD = re.compile(r"\w+")
_WORDS_OF_ENGLISH = frozenset(
    {"today", "tonight", "yesterday", "tomorrow", "last", "past", "next", "this", "ago", "back"}
)
_WORDS_ELSEWHERE = frozenset(
    word
    for phrase in (*_DAYS_TOLD, *PHRASES["last_told"].split(), PHRASES["ago_before"], PHRASES["ago_behind"])
    for word in _DAY_WORD.findall(phrase)
) - {"a", "y"}
_LENGTHS = {"day": 1, "week": 7, "fortnight": 14, "month": 30, "year": 365}
_OFFSETS = {"yesterday": -1, "last night": -1, "tomorrow": 1}
_STEPS = {"last": -1, "past": -1, "next": 1, "this": 0}


def relative_dates(text: str, said: date) -> Iterator[Span]:
    """The spans that *text* names relative to the day *said*, and seasons with their year. *said* is neither in the
    first nor in the last year of the calendar."""
    words = set(_DAY_WORD.findall(text.lower()))
    if words & _WORDS_OF_ENGLISH:
        for match in _ENGLISH.finditer(text):
            yield _in_english(match, said)
    if not words.isdisjoint(_SEASONS):
        for match in _SEASON_OF_YEAR.finditer(text):
            yield _season(_SEASONS[match["season"].lower()], int(match["year"]))
    if words & _WORDS_ELSEWHERE:
        for match in _ELSEWHERE.finditer(text):
            if (span := _elsewhere(match, said)) is not None:
                yield span


def ends_in_season(text: str) -> bool:
    """Whether a year behind *text* says which season, not which year."""
    return _ENDS_IN_SEASON.search(text[-_TOLD_LOOKS_BACK:]) is not None


def month_span(year: int, month: int) -> Span:
    following = date(year + month // 12, month % 12 + 1, 1)
    return (date(year, month, 1).toordinal(), following.toordinal() - 1)


def _in_english(match: re.Match[str], said: date) -> Span:
    if match["day"]:
        only = said.toordinal() + _OFFSETS.get(" ".join(match["day"].lower().split()), 0)
        return (only, only)
    if match["ago"]:
        return _ago(match["count"].lower().split()[-1], match["ago"].lower(), said)
    return _last_or_next(_STEPS[match["which"].lower()], match["unit"].lower(), said)


def _elsewhere(match: re.Match[str], said: date) -> Span | None:
    if match["day"]:
        only = said.toordinal() + _DAYS_TOLD[match["day"].lower()]
        return (only, only)
    if last := match["after_last"] or match["before_last"]:
        unit = _UNITS[last.lower()]
        return None if unit == "day" else _last_or_next(-1, unit, said)
    unit = _UNITS[(match["ago"] or match["unit_ago"]).lower()]
    return _ago((match["count"] or match["count_ago"]).lower(), unit, said) if unit in _LENGTHS else None


def _ago(count: str, unit: str, said: date) -> Span:
    """The span so many *unit*s ago, give or take half a unit."""
    length = _LENGTHS[unit]
    middle = said.toordinal() - (int(count) if count.isdigit() else _COUNTS[count]) * length
    return (max(1, middle - length // 2), max(1, middle + length // 2))


def _last_or_next(step: int, unit: str, said: date) -> Span:
    if unit in _SEASONS:
        return _season_near(step, _SEASONS[unit], said)
    if unit in {"week", "weekend"}:
        monday = said - timedelta(days=said.weekday()) + timedelta(weeks=step)
        first = monday + timedelta(days=5 if unit == "weekend" else 0)
        return (first.toordinal(), monday.toordinal() + 6)
    if unit == "month":
        number = said.year * 12 + said.month - 1 + step
        return month_span(number // 12, number % 12 + 1)
    if unit == "year":
        return (date(said.year + step, 1, 1).toordinal(), date(said.year + step, 12, 31).toordinal())
    ahead = (_WEEKDAYS[unit[:3]] - said.weekday()) % 7
    day = said.toordinal() + (ahead - 7 if step < 0 else ahead)
    return (day, day)


def _season(month: int, year: int) -> Span:
    """The three months from *month* on: the winter of a year ends in the next year."""
    last = year * 12 + month - 1 + 2
    return (month_span(year, month)[0], month_span(last // 12, last % 12 + 1)[1])


def _season_near(step: int, month: int, said: date) -> Span:
    """The last past season, the nearest one, or the next season that has not begun."""
    around = [_season(month, said.year + years) for years in (-2, -1, 0, 1)]
    today = said.toordinal()
    if step < 0:
        return [span for span in around if span[1] < today][-1]
    if step > 0:
        return next((span for span in around if span[0] > today), around[-1])
    return min(around, key=lambda span: abs(span[0] + span[1] - 2 * today))


# --- past --------------------------------------------------------------------------------------------
# Questions about the past: "where did I live before?", "my budget in March". Pure.

_LONGEST = 400  # characters; a longer text tells rather than asks
_WAS = re.compile(
    r"\b(?:was|were|did|had|used?\s+to|wasn't|weren't|didn't|hadn't|war|waren|hatte|hatten|wohnte|arbeitete"
    r"|\u00e9tait|avais|avait|habitais|travaillais|era|ten\u00eda|viv\u00eda|trabajaba|estaba)\b"
)
# No date, and yet about a time that is over.
_BEFORE = re.compile(
    r"""(?x)\b(?:used\s+to|did\s+(?:i|we)\s+use\s+to|previous(?:ly)?|former(?:ly)?|originally|initially|at\s+first|to\s+begin\s+with|back\s+then|back\s+in
      |in\s+the\s+past|earlier\s+on
      |(?:was|were|did|had)\b.{0,60}\b(?:before|earlier|until|back)|(?:my|our)\s+(?:old|last|first|prior)\s+\w+
      |history\s+of\s+(?:my|our)|how\s+(?:has|have|did)\b.{0,60}\bchanged?|over\s+(?:time|the\s+years)
      |fr\u00fcher|vorher|damals|urspr\u00fcnglich|avant|autrefois|auparavant|antes|anteriormente|originalmente)\b
      |\u4ee5\u524d|\u4e4b\u524d|\u8fc7\u53bb|\u539f\u6765"""
)
_MINE = re.compile(
    r"\b(?:i|i'm|my|mine|we|our|me|us|ich|mein\w*|wir|je|j'\w+|mon|ma|mes|nous|yo|mi|mis|nuestr\w*)\b|\u6211"
)
_EVER = date(1900, 1, 1).toordinal()


def asked_of(text: str, today: date) -> Span | None:
    """First and last day of the time in the past that *text* asks about, when it asks how things of the
    caller's were; None when it asks about now, or tells something."""
    if len(text) > _LONGEST:
        return None
    folded = fold(text)
    if _MINE.search(folded) is None:
        return None
    over = [span for span in days_named(text, today) if span[0] < today.toordinal()] if _WAS.search(folded) else []
    if over:
        return min(first for first, _ in over), min(max(last for _, last in over), today.toordinal())
    return (_EVER, today.toordinal()) if _BEFORE.search(folded) else None


_READ_FOR_PERIOD = 400  # characters
_AROUND = 30  # days before or after a feast that "before Christmas" means
_LATELY = 14  # days
_WEEK = 7
_SHORTEST_MONTH, _LONGEST_MONTH = 28, 31  # days
# Words for a week of a month, by their places in it (of the last: -1), and for its other parts: first and last day,
# counted from 0.
_WEEKS_OF_MONTH = {
    frozenset({"first", "erste", "ersten", "premiere", "primera"}): 0,
    frozenset({"second", "zweite", "zweiten", "deuxieme", "segunda"}): 1,
    frozenset({"third", "dritte", "dritten", "troisieme", "tercera"}): 2,
    frozenset({"last", "letzte", "letzten", "derniere", "ultima"}): -1,
}
_PARTS_OF_MONTH = {
    frozenset({"beginning", "anfang", "debut", "principios", "comienzos", "inicios"}): (0, 9),
    frozenset({"middle", "mid", "mitte", "milieu", "mediados"}): (8, 20),
    frozenset({"end", "ende", "fin", "finales"}): (20, 30),
}
_WEEKS = frozenset({"week", "woche", "semaine", "semana"})
_FEASTS = {
    word: line.split()[0]
    for line in PHRASES["feasts"].strip().splitlines()
    for word in line.split()
    if word[0].isalpha()
}
_DAYS_OF_WEEK = {
    word: at for at, line in enumerate(PHRASES["weekdays"].strip().splitlines()) for word in line.split()
}
_EACH_WEEKDAY = frozenset(PHRASES["each_weekday"].split())
_PARTS_OF_WEEKDAYS = frozenset(PHRASES["parts_of_weekdays"].split())
_WORDS_BEFORE = frozenset({"before", "until", "till", "vor", "bis", "avant", "jusqu'a", "antes", "hasta", "prior"})
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
_SEVERAL = {
    word: number for number, line in enumerate(PHRASES["several"].strip().splitlines(), 2) for word in line.split()
}
_UNIT_DAYS = {"d": 1, "t": 1, "j": 1, "w": 7, "s": 7, "m": 30}  # by the unit's first letter
_LONG_AGO = re.compile(r"\b(?:1[0-8]\d\d|[1-9]\d\d (?:AD|BC)|ancient|century)\b")
_EVE = re.compile(r"\b(?:day before yesterday|vorgestern|avant-hier|anteayer|antier|avantieri)\b")
_RECENTLY = re.compile(
    r"\b(?:recently|lately|these days|neulich|kurzlich|in letzter zeit|recemment|ces derniers temps"
    r"|ultimamente|recientemente)\b"
)
_WEEKEND = re.compile(
    r"\b(?:over|at|on|during) the weekend\b|\bam wochenende\b|\b(?:ce|le) week-end\b|\bel fin de semana\b"
)
_YESTERDAY = re.compile(r"\b(?:hier|ayer|ieri|ontem)\b")
_OWN_YESTERDAY = re.compile(r"\b(?:je|j'ai|ai-je|on|nous|avons|qu'ai-je|que|yo|hice|hicimos|hablamos)\b")


def period_asked_for(question: str, today: date) -> Span | None:
    """First and last day of the time that *question*, asked on the day *today*, is about; None: it names none."""
    beginning = question[:_READ_FOR_PERIOD]
    if _LONG_AGO.search(beginning):
        return None
    words = plain_words(beginning)
    joined = " ".join(words)
    named = _feast_or_weekday(words, joined, today) or _told_from_today(joined, today)
    if named is None:
        spans = days_asked_for(beginning, today)
        if not spans:
            return None
        named = _part_of_month(words, (min(first for first, _ in spans), max(last for _, last in spans)))
        return _shift([word for word in words if word != "vor"], named, today)  # "vor drei Tagen": three days ago
    return named


def _part_of_month(words: list[str], named: Span) -> Span:
    """The part of *named*, where it is a month and *words* name a part: "mid-May", "the first week of"."""
    if not _SHORTEST_MONTH <= named[1] - named[0] + 1 <= _LONGEST_MONTH:
        return named
    if not _WEEKS.isdisjoint(words):
        for ordinal, at in _WEEKS_OF_MONTH.items():
            if not ordinal.isdisjoint(words):
                first = named[0] + at * _WEEK if at >= 0 else named[1] - _WEEK + 1
                return first, first + _WEEK - 1
    for part, (first, last) in _PARTS_OF_MONTH.items():
        if not part.isdisjoint(words):
            return named[0] + first, min(named[1], named[0] + last)
    return named


def _told_from_today(joined: str, today: date) -> Span | None:
    now = today.toordinal()
    if _EVE.search(joined):
        return now - 2, now - 2
    if _RECENTLY.search(joined):
        return now - _LATELY, now
    if _WEEKEND.search(joined):
        ahead = _AHEAD.search(joined) is not None
        saturday = now - (today.weekday() + 2) % _WEEK if not ahead else now + (5 - today.weekday()) % _WEEK
        return saturday, min(saturday + 1, max(now, saturday)) if not ahead else saturday + 1
    if (few := _PAST_FEW.search(joined)) is not None:
        count = few["count"] or "1"
        number = int(count) if count.isdigit() else 2 if count.startswith("couple") else _SEVERAL[count]
        return max(1, now - number * _UNIT_DAYS[few["unit"][0]]), now
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
        if (weekday := _DAYS_OF_WEEK.get(word.removesuffix("s"))) is not None or (
            weekday := _DAYS_OF_WEEK.get(word)
        ) is not None:
            if _is_habit(words, at):
                continue
            if {"last", "next", "letzten", "dernier", "pasado", "proximo", "nachsten"} & set(
                words[max(0, at - 1) : at + 2]
            ):
                return None  # `dates` knows these
            back = (today.weekday() - weekday) % _WEEK
            if words[at + 1 : at + 2] == ["ago"] and (count := _COUNTS.get(words[at - 1], 0)) > 1:
                back = (back or _WEEK) + (count - 1) * _WEEK  # "two Sundays ago"
            ahead = _AHEAD.search(joined) is not None
            day = today.toordinal() + (_WEEK - back) % _WEEK if ahead else today.toordinal() - (back or _WEEK)
            return _shift(words, (day, day), today)
    return None


def _is_habit(words: list[str], at: int) -> bool:
    """Whether the weekday at the place *at* in *words* is each such day: "every Monday", "Tuesday evenings", "on
    Fridays", not "two Sundays ago"."""
    before, behind = words[at - 1] if at else "", words[at + 1] if at + 1 < len(words) else ""
    counted = behind == "ago" or before in _COUNTS or before in {"last", "past", "next", "few"}
    several = words[at] not in _DAYS_OF_WEEK or behind in _PARTS_OF_WEEKDAYS
    return before in _EACH_WEEKDAY or (several and not counted)


def _shift(words: list[str], named: Span, today: date) -> Span:
    """*named*, or the time before or after it where *words* say so."""
    if _WORDS_BEFORE & set(words):
        return max(1, named[0] - _AROUND), named[0] - 1
    if _SINCE & set(words):
        return named[0], max(today.toordinal(), named[1])
    if _AFTER & set(words):
        return named[1] + 1, max(today.toordinal(), named[1] + 1)
    return named


def _feast(name: str, today: date, *, ahead: bool) -> int:
    """The nearest date before *today*, or after it."""
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
    for day, month, year in day_numbers(text[:_READ_FOR_PERIOD]):
        try:
            date(year or 2024, month, day)  # a leap year: of no year is said that it has no 29 February
        except ValueError:
            return f"{day} {date(today.year, month, 1):%B}"
    return ""
