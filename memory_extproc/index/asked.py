"""A question as the index sees it: its terms, whom it is about, which days and what kind of answer it asks for."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import date

from memory_extproc.language.dates import days_asked_for
from memory_extproc.language.days_told import Span
from memory_extproc.language.persons import about_caller
from memory_extproc.language.related import related
from memory_extproc.language.stemming import terms, terms_in
from memory_extproc.language.words import fold, tokens

CALLER, ANSWERER = "<caller>", "<answerer>"  # subjects that are not named; no name looks like them
MOST_TERMS = 24  # a longer query says the same more than once, and every term costs
_READ = 2_000  # characters
_MOST_RELATED = 12  # of one term

_WHEN = re.compile(
    r"\b(?:when|how long|what (?:date|year|month|day|time)|wann|quand|cu\u00e1ndo|quando)\b", re.IGNORECASE
)
_WHICH_NAME = re.compile(
    r"^\W*(?:who|whose|where|which|what(?:'s|\s+is|\s+was)?\s+(?:the\s+|my\s+)?"
    r"(?:name|book|movie|game|city|country|state|band|song))\b",
    re.IGNORECASE,
)
_ADDRESSES = re.compile(r"\b(?:you|your|yours)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Term:
    """*keys*: what it is called in the languages at hand; *near*: terms close in meaning, with their closeness."""

    keys: tuple[str, ...]
    near: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Asked:
    terms: tuple[Term, ...]
    subjects: tuple[str, ...]  # in the order it names them: names of speakers, CALLER, ANSWERER
    days: tuple[Span, ...]
    when: bool
    which_name: bool


def asked_of(text: str, today: date, speakers: Collection[str], languages: Collection[str]) -> Asked:
    """*speakers* and *languages* are those of the memories asked. Names of speakers are no terms: what they say
    of a memory is who said it."""
    text = text[:_READ]
    words = [fold(token).partition("'")[0] for token in tokens(text)]
    named = [word for word in dict.fromkeys(words) if word in speakers]
    found, language = terms(text)
    others = [terms_in(text, other) for other in sorted(languages) if other != language]
    # Only where the languages drop the same words do their stems stand beside one another.
    rows = [found, *(other for other in others if len(other) == len(found))]
    names = {key for name in named for key in terms_in(name, language)}
    keys = dict.fromkeys(
        tuple(dict.fromkeys(column)) for column in zip(*rows, strict=True) if column[0] not in names
    )
    return Asked(
        terms=tuple(
            Term(key, related(key[0])[:_MOST_RELATED] if language == "en" else ())
            for key in list(keys)[:MOST_TERMS]
        ),
        subjects=tuple(named) or _by_person(text),
        days=days_asked_for(text, today),
        when=_WHEN.search(text) is not None,
        which_name=_WHICH_NAME.search(text) is not None,
    )


def _by_person(text: str) -> tuple[str, ...]:
    if not about_caller(text):
        return ()
    # "What did you tell me?" is about both.
    return (CALLER, ANSWERER) if _ADDRESSES.search(text) else (CALLER,)
