"""What the captured words of a rule must be like, named as rules.toml names it. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from memory_extproc.language.words import content_words, fold, lexicon_of, tokens

_LONGEST_VALUE = 16  # words
_LONGEST_NAME = 3
_IDLE = re.compile(
    r"(?:it|for|this|that|these|those|them|him|her|you|your|yours|here|there|something|anything|nothing|everything"
    r"|how|what|when|why|where|whether|who"
    r"|being|having|to\s+(?:know|see|hear|say|think|ask|thank|be)|not|so|such|one|ones|all|both|some|any|around"
    r"|with|along|too|each|the\s+(?:idea|way|fact|option|one"
    r"|first|second|third|last|latter|former|other|answer|suggestion|result|sound|look|feel|part|new|plan|above"
    r"|following|same|code|design))\b"
)
_ABOUT_OTHERS = re.compile(r"\b(?:i|i'm|i've|me|my|mine|myself|you|your|yours)\b")
_NUMBER = re.compile(r"\d")
_DATE = re.compile(
    r"\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)(?:[a-z]*)\b|\b(?:mon|tues|wednes|thurs|fri|satur"
    r"|sun)days?\b"
    r"|\b(?:tomorrow|tonight|next|noon|midnight|christmas|easter|summer|winter|spring|autumn|fall)\b|\d"
)
_SPELLED_NUMBER = re.compile(
    r"\b(?:two|three|four|five|six|seven|eight|nine|ten|\w+teen|\w+ty|hundred|thousand|million)\b"
)
_NOT_FOR_LONG = re.compile(
    r"\b(?:today|tonight|tomorrow|now|yet|right\s+now|this\s+(?:morning|evening|week|time|one))\b"
)
_AGE = re.compile(r"\d{1,3}(?:\s+(?:years?|yrs?|months?)(?:\s+old)?|\s*yo)?$")
_COUNTED = re.compile(r"\d[\d.,]*\s*(?:kg|kilos?|lbs?|pounds|stone|g)\b")
_OCCUPATION_ENDINGS = ("er", "or", "ist", "ian", "ant", "ect", "smith", "wright", "man", "woman", "nurse", "eer")
_NOUN_PHRASE = re.compile(
    r"^(.*?)(?:\s+(?:at|for|in|with|from|on|by|who|working|based|specializing|of|and|turned)\b.*)?$"
)
_PREPOSITION = re.compile(r"\s+(?:for|of|to|in|at|on|with|from)\s+")
_NOT_PLACES = re.compile(
    r"(?:a\s+(?:hurry|rush|mess|bubble|bind|meeting|call|way)|fear|peace|denial|doubt|trouble|the\s+(?:moment"
    r"|middle|app|way|zone|mood|past|future|next|end))\b"
)
_NOT_EMPLOYERS = re.compile(
    r"(?:home|night|nights|least|first|all|once|times|\d|free|fun|me|now|ages|hours|weeks|years|the\s+(?:moment"
    r"|best|day))\b"
)
_NO_NAMES = """
later back tomorrow when if a crazy at on maybe asap an the not now today soon anytime again sorry
ok okay done here fine in for to with sure happy glad lost stuck new good great tired ready ceo cto
irrelevant unimportant private secret shown listed none unknown hidden
"""
_NOT_NAMES = frozenset(tokens(_NO_NAMES))


@dataclass(frozen=True, slots=True)
class Captured:
    """The words a rule caught, as written."""

    value: str
    groups: Mapping[str, str]

    @property
    def folded(self) -> str:
        return fold(self.value)


class Checks:
    """The named checks over the word lists of one rules file."""

    def __init__(self, lists: Mapping[str, Any]) -> None:
        self._lists = lists
        words = lists["words"]
        self._traits = _whole(words["traits"])
        self._nationalities = _whole(words["nationalities"])
        self._occupations = frozenset(words["occupations"].split("|"))
        self._not_occupations = frozenset(words["not_occupations"].split("|"))
        self._possession = re.compile(
            rf"(?:(?:an?|the|one|two|three|four|five|six|seven|\d+|twin|several|many"
            rf"|type\s+[12])\s+)?(?:[\w'-]+\s+){{0,3}}?(?P<head>{words['possessions']})"
            r"(?:\s+(?:and|from|in|at|on|with|,)\b.*)?"
        )
        self._undertaking = re.compile(
            rf"(?P<named>(?:(?!(?:in|on|for|of|the|an?|to|with|from|at)\b)[\w-]+\s+){{0,4}}?)(?:{words['undertakings']})"
            r"(?P<told>\s+(?:that|which|about|called|named|for|with|to|on|in|of|using|where)\b.*)?"
        )
        self._habits = re.compile(rf"(?:{words['habits']})s?\b")
        self._lasting = _whole(lists["lasting"])
        self._things = _whole(lists["things"])
        self._passing = _whole(lists["passing"])
        self._events = frozenset(lists["events"].split("|"))
        self._secret = re.compile(rf"\b(?:{lists['secret']})\b")
        self._relation = _whole(rf"(?:\w+\s+)?(?:{lists['relations']})")

    @cached_property
    def by_name(self) -> Mapping[str, Callable[[Captured], bool]]:
        return {
            "plain": self.plain,
            "not idle": lambda caught: not _IDLE.match(caught.folded),
            "not technical": self._not_technical,
            "liked": lambda caught: not _IDLE.match(caught.folded) and self.plain(caught),
            "name": self._name,
            "titled": self._titled,
            "place": lambda caught: self.plain(caught) and not _NOT_PLACES.match(caught.folded),
            "titled place": self._titled_place,
            "employer": lambda caught: self.plain(caught) and not _NOT_EMPLOYERS.match(caught.folded),
            "trait": lambda caught: self._traits.fullmatch(caught.folded) is not None,
            "state": lambda caught: not caught.value or self._titled(caught),
            "age": lambda caught: _AGE.match(caught.folded) is not None,
            "counted": lambda caught: _COUNTED.match(caught.folded) is not None,
            "counted sum": lambda caught: self.plain(caught) and _hard(caught.value),
            "dated": lambda caught: self.plain(caught) and _DATE.search(caught.folded) is not None,
            "deed": lambda caught: self.plain(caught) and len(content_words(caught.value)) > 0,
            "occupation": self._occupation,
            "undertaking": self._of_some_size,
            "nationality": lambda caught: self._nationalities.fullmatch(caught.folded) is not None,
            "possession": lambda caught: self._possession.fullmatch(caught.folded) is not None,
            "habit": lambda caught: self.plain(caught) and self._habits.match(caught.folded) is not None,
            "without": self._without,
            "own thing": self._own_thing,
            "own event": lambda caught: self.is_event(caught.groups.get("thing", "")) and self._own_thing(caught),
        }

    def is_event(self, thing: str) -> bool:
        """Whether one has several of *thing*, told apart by their dates."""
        *_, last = ["", *_head_of(thing).split()]
        return last in self._events

    def head(self, value: str) -> str:
        """The noun that "two big cats" is about; the value itself where none is known."""
        matched = self._possession.fullmatch(fold(value))
        return matched["head"] if matched is not None else value

    def plain(self, caught: Captured) -> bool:
        """Some words, not too many, about nobody else."""
        words = tokens(caught.value)
        return 0 < len(words) <= _LONGEST_VALUE and _ABOUT_OTHERS.search(caught.folded) is None

    def _not_technical(self, caught: Captured) -> bool:
        *_, last = ["", *_NOUN_PHRASE.sub(r"\1", caught.folded).split()]
        return not self._passing.fullmatch(last) and last not in {"command", "script", "job", "program", "new"}

    def _name(self, caught: Captured) -> bool:
        words = caught.value.split()
        folded = {fold(word) for word in words}
        if not 0 < len(words) <= _LONGEST_NAME or _NUMBER.search(caught.value):
            return False
        small = lexicon_of(caught.value).stop - {"may", "will", "mark"}
        titled = all(word[0].isupper() for word in words)
        return not folded & _NOT_NAMES and (titled or not folded & small) and self.plain(caught)

    def _titled(self, caught: Captured) -> bool:
        words = caught.value.split()
        written = all(
            word[:1].isupper() and (word[1:].islower() or (len(word) > 1 and "'" in word) or word.endswith("."))
            for word in words
        )
        known = self._nationalities.fullmatch(caught.folded) is not None
        return written and not known and self._name(caught)

    def _titled_place(self, caught: Captured) -> bool:
        named = any(word[:1].isupper() for word in caught.value.split())
        return named and self.plain(caught)

    def _occupation(self, caught: Captured) -> bool:
        phrase = _NOUN_PHRASE.sub(r"\1", caught.folded).strip()
        *_, last = ["", *phrase.split()]
        if last in self._not_occupations or not self.plain(caught):
            return False
        return phrase in self._occupations or last in self._occupations or last.endswith(_OCCUPATION_ENDINGS)

    def _of_some_size(self, caught: Captured) -> bool:
        """Whether it is said what it is: "a project" alone tells nothing."""
        matched = self._undertaking.fullmatch(caught.folded)
        return matched is not None and bool(matched["named"] or matched["told"]) and self.plain(caught)

    def _without(self, caught: Captured) -> bool:
        if _NOT_FOR_LONG.search(caught.folded):
            return False
        avoids = fold(caught.groups.get("verb", "")).startswith("avoid")
        return (avoids or bool(caught.groups.get("deed"))) and self.plain(caught) and not _IDLE.match(caught.folded)

    def _own_thing(self, caught: Captured) -> bool:
        """Whether "my *thing* is *value*" will still be worth knowing tomorrow."""
        thing = fold(caught.groups.get("thing", ""))
        bare = _head_of(thing).removeprefix("new ").removeprefix("current ")
        *_, last = ["", *bare.split()]
        if self._secret.search(thing) or not self.plain(caught) or _ABOUT_OTHERS.search(thing):
            return False
        if any(self._passing.fullmatch(word) for word in (bare, last)) or self._relation.fullmatch(bare):
            return False
        if bare.startswith(("favourite ", "favorite ", "preferred ")) or self._lasting.fullmatch(bare):
            return not _IDLE.match(caught.folded)
        if self._things.fullmatch(last):
            return re.match(r"(?:an?|the)\s+\w", caught.folded) is not None
        return _hard(caught.value) and not _IDLE.match(caught.folded)


def _head_of(thing: str) -> str:
    """Such as "flight" of "flight to Rome", "hawaii budget" of "Hawaii budget for May"; folded."""
    return _PREPOSITION.split(fold(thing), maxsplit=1)[0]


def _whole(alternatives: str) -> re.Pattern[str]:
    return re.compile(f"(?:{alternatives})")


def _hard(value: str) -> bool:
    """Whether *value* is a number, date, address or name rather than a passing state."""
    folded = fold(value)
    if (
        _DATE.search(folded)
        or _SPELLED_NUMBER.search(folded)
        or "@" in value
        or re.match(r"(?:called|named)\s+\w", folded)
    ):
        return True
    words = value.split()
    return len(words) <= _LONGEST_NAME + 1 and any(word[:1].isupper() for word in words)
