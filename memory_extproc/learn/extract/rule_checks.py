"""Conditions on the words that a rule caught, by the names that rules.toml gives them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from memory_extproc.learn.extract.clauses import LISTS, fill_in
from memory_extproc.text import lazy_re as re
from memory_extproc.text.persons import ValueKind, kinds
from memory_extproc.text.words import MONTHS, content_words, fold, lexicon_of, tokens

_LONGEST_VALUE = 16  # words
_LONGEST_NAME = 3
_IDLE = re.compile(
    r"(?:it|for|this|that|these|those|them|him|her|you|your|yours|here|there|something|anything|nothing|everything"
    r"|how|what|when|why|where|whether|who|being|having|to\s+(?:know|see|hear|say|think|ask|thank|be)|not|so|such|one|ones|all|both|some|any|around"
    r"|with|along|too|each|the\s+(?:idea|way|fact|option|one"
    r"|first|second|third|last|latter|former|other|answer|suggestion|result|sound|look|feel|part|new|plan|above"
    r"|following|same|code|design))\b"
)
_ABOUT_OTHERS = re.compile(r"\b(?:you|your|yours|u|ur)\b")
_NO_THING = re.compile(  # no name of a thing, but a clause
    r"\b(?:i|i'm|i've|me|my|mine|myself|you|your|yours|is|are|was|were|am|be|been|got|gets|has|have|had|will|would|can|could|do|does|did"
    r"|says|said|that|who|which|if)\b"
)
_A_CLAUSE = re.compile(r"\b(?:is|are|was|were|has|have|had|just|will|would|can't|can|got)\b")
_FIRST_OF_SEVERAL = re.compile(r",|\s(?:and|but)\s")
_DATE = re.compile(
    rf"\b(?:{MONTHS})\b|\b(?:mon|tues|wednes|thurs|fri|satur|sun)days?\b"
    r"|\b(?:montag|dienstag|mittwoch|donnerstag|freitag|samstag|sonntag|lundi|mardi|mercredi|jeudi|vendredi|samedi"
    r"|dimanche|lunes|martes|mi\u00e9rcoles|jueves|viernes|s\u00e1bado|domingo)\b|\b(?:tomorrow|tonight|next|noon|midnight|christmas|easter|summer|winter|spring|autumn|fall)\b|\d"
)
_SPELLED_NUMBER = re.compile(LISTS["grammar"]["spelled_numbers"])
_NOT_FOR_LONG = re.compile(
    r"\b(?:today|tonight|tomorrow|now|yet|right\s+now|this\s+(?:morning|evening|week|time|one))\b"
)
_AGE = re.compile(r"(?:1[01]\d|\d{1,2})(?:\s+(?:years?|yrs?|months?)(?:\s+old)?|\s*yo)?$")
_AGENT = re.compile(LISTS["grammar"]["agents"])
_OCCUPATION_ENDINGS = ("er", "or", "ist", "ian", "ant", "ect", "smith", "wright", "man", "woman", "nurse", "eer")
_NOUN_PHRASE = re.compile(
    r"^(.*?)(?:(?:\s+(?:at|for|in|with|from|on|by|who|working|based|specializing|of|and|turned)\b|,).*)?$"
)
_PREPOSITION = re.compile(
    r"\s+(?:for|of|to|in|at|on|with|from|für|nach|beim?|mit|zu[mr]|pour|chez|avec|à|en|para|con)\s+"
)
_NOT_NAMES = frozenset(tokens(LISTS["grammar"]["not_names"]))


@dataclass(frozen=True, slots=True)
class Captured:
    """The words a rule caught, as written."""

    value: str
    groups: dict[str, str]

    @property
    def folded(self) -> str:
        return fold(self.value)


def kind_of(value: str) -> ValueKind | None:
    """A date, even where it has a number in it; a number; a name; or nothing of the kind."""
    found = kinds(value)
    return next((kind for kind in ValueKind if kind in found), None)


class Checks:
    """The checks that rules name, over the word lists of the rules file."""

    def __init__(self, lists: Mapping[str, Any]) -> None:
        self._lists = lists
        words = lists["words"]
        self._traits = _whole(words["traits"])
        self._trait = _whole(rf"(?:{words['traits']})s?(?: (?:in|on) (?:my|his|her|their|one|both|the) .+)?")
        self._nationalities = _whole(words["nationalities"])
        self._occupations = frozenset(words["occupations"].split("|"))
        self._not_occupations = frozenset(words["not_occupations"].split("|"))
        self._possession = re.compile(
            rf"(?:(?:an?|the|one|two|three|four|five|six|seven|\d+|twin|several|many"
            rf"|type\s+[12])\s+)?(?:[\w'-]+\s+){{0,3}}?(?P<head>{words['possessions']})"
            r"(?:\s+(?:and|from|in|at|on|with|of|who|that)\b.*|,.*)?"
        )
        self._undertaking = re.compile(
            rf"(?P<named>(?:(?!(?:in|on|for|of|the|an?|to|with|from|at)\b)[\w-]+\s+){{0,4}}?)(?:{words['undertakings']})"
            r"(?P<told>,?\s+(?:that|which|about|called|named|set|for|with|to|on|in|of|using|where)\b.*)?"
        )
        self._habits = re.compile(rf"(?:{words['habits']})s?\b")
        self._lasting = _whole(lists["lasting"])
        self._things = _whole(lists["things"])
        self._passing = _whole(lists["passing"])
        self._occasions = _whole(words["occasions"])
        self._events = frozenset(lists["events"].split("|"))
        self._secret = re.compile(rf"\b(?:{lists['secret']})\b")
        self._relation = _whole(rf"(?:\w+\s+)?(?:{lists['relations']})")

    @cached_property
    def by_name(self) -> Mapping[str, Callable[[Captured], bool]]:
        return {
            "plain": self.plain,
            "not idle": lambda caught: not _IDLE.match(caught.folded),
            "not technical": self._not_technical,
            "name": self._name,
            "titled": self._has_title,
            "titled all": self._titled_all,
            "titled place": self._titled_place,
            "trait": lambda caught: self._trait.fullmatch(_FIRST_OF_SEVERAL.split(caught.folded)[0]) is not None,
            "trade": self._trade,
            "state": lambda caught: not caught.value or self._has_title(caught),
            "age": lambda caught: _AGE.match(caught.folded) is not None,
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
            "asked thing": self._asked_thing,
            **{name: self._by_patterns(entry) for name, entry in self._lists["checks"].items()},
        }

    def _by_patterns(self, entry: Mapping[str, Any]) -> Callable[[Captured], bool]:
        """Make a check that looks for patterns: every pattern it *needs*, *any* of some, and none it *lacks*."""
        parts = {**self._lists["words"], **{name: self._lists[name] for name in ("events", "passing")}}
        needs, any_of, lacks = (
            [re.compile(fill_in(self._lists["patterns"][name], parts)) for name in entry.get(kind, ())]
            for kind in ("needs", "any", "lacks")
        )
        of, plain, hard = entry.get("of", "{value}"), entry.get("plain", True), entry.get("hard", False)

        def holds(caught: Captured) -> bool:
            text = fold(of.format_map({"done": "", **caught.groups, "value": caught.value})).strip()
            return (
                (not plain or self.plain(Captured(text, {})))
                and (not hard or _hard(caught.value))
                and all(pattern.search(text) for pattern in needs)
                and (not any_of or any(pattern.search(text) for pattern in any_of))
                and not any(pattern.search(text) for pattern in lacks)
            )

        return holds

    def is_event(self, thing: str) -> bool:
        """Whether people have several of *thing* at a time, each with its own date."""
        *_, last = ["", *head_of(thing).split()]
        return last in self._events

    def head(self, value: str) -> str:
        """The noun that "two big cats" is about; the value itself where none is known."""
        matched = self._possession.fullmatch(fold(value))
        return matched["head"] if matched is not None else value

    def plain(self, caught: Captured) -> bool:
        """Whether the value is a few words and does not address the assistant."""
        words = tokens(caught.value)
        return 0 < len(words) <= _LONGEST_VALUE and _ABOUT_OTHERS.search(caught.folded) is None

    def _not_technical(self, caught: Captured) -> bool:
        *_, last = ["", *_NOUN_PHRASE.sub(r"\1", caught.folded).split()]
        return not self._passing.fullmatch(last) and last not in {"command", "script", "job", "program", "new"}

    def _name(self, caught: Captured) -> bool:
        words = caught.value.split()
        folded = {fold(word) for word in words}
        if not 0 < len(words) <= _LONGEST_NAME or re.match(r".*[\d/]", caught.value):
            return False
        small = lexicon_of(caught.value).stop - {"may", "will", "mark"}
        titled = all(word[0].isupper() for word in words)
        return not folded & _NOT_NAMES and (titled or not folded & small) and self.plain(caught)

    def _has_title(self, caught: Captured) -> bool:
        words = caught.value.split()
        written = all(
            word[:1].isupper() and (word[1:].islower() or (len(word) > 1 and "'" in word) or word.endswith("."))
            for word in words
        )
        return written and self._nationalities.fullmatch(caught.folded) is None and self._name(caught)

    def _titled_all(self, caught: Captured) -> bool:
        """Several names: "Ida and Max"."""
        names = re.sub(r", and | and ", ", ", caught.value).split(", ")
        return all(self._has_title(Captured(name, {})) for name in names)

    def _titled_place(self, caught: Captured) -> bool:
        named = any(word[:1].isupper() for word in caught.value.split())
        return named and self.plain(caught)

    def _occupation(self, caught: Captured) -> bool:
        phrase = _NOUN_PHRASE.sub(r"\1", caught.folded).strip()
        *_, last = ["", *phrase.split()]
        if last in self._not_occupations or self._traits.fullmatch(last) or not self.plain(caught):
            return False
        return phrase in self._occupations or last in self._occupations or last.endswith(_OCCUPATION_ENDINGS)

    def _trade(self, caught: Captured) -> bool:
        """An occupation said without its article, as in "I am teacher of maths"."""
        *_, last = ["", *_NOUN_PHRASE.sub(r"\1", caught.folded).split()]
        return self.plain(caught) and (last in self._occupations or _AGENT.fullmatch(last) is not None)

    def _of_some_size(self, caught: Captured) -> bool:
        """Whether the undertaking is described: "a project" alone tells nothing."""
        matched = self._undertaking.fullmatch(caught.folded)
        return matched is not None and bool(matched["named"] or matched["told"]) and self.plain(caught)

    def _without(self, caught: Captured) -> bool:
        if _NOT_FOR_LONG.search(caught.folded):
            return False
        avoids = fold(caught.groups.get("verb", "")).startswith("avoid")
        return (avoids or bool(caught.groups.get("deed"))) and self.plain(caught) and not _IDLE.match(caught.folded)

    def _asked_thing(self, caught: Captured) -> bool:
        """Whether the assistant asked for a lasting thing that is no secret."""
        thing = fold(caught.groups.get("thing", ""))
        *_, last = ["", *thing.split()]
        asked = not self._secret.search(thing) and not self._passing.fullmatch(last) and not _NO_THING.search(thing)
        return asked and self.plain(caught) and not _IDLE.match(caught.folded)

    def _own_thing(self, caught: Captured) -> bool:
        """Whether "my *thing* is *value*" will still be worth knowing tomorrow."""
        thing = fold(caught.groups.get("thing", ""))
        bare = head_of(thing).removeprefix("new ").removeprefix("current ")
        *_, last = ["", *bare.split()]
        if not thing or self._secret.search(thing) or not self.plain(caught) or _NO_THING.search(thing):
            return False
        dated = (last in self._events or self._occasions.fullmatch(bare)) and kind_of(caught.value) is ValueKind.DAY
        if self._relation.fullmatch(bare) or (not dated and any(map(self._passing.fullmatch, (bare, last)))):
            return False
        if bare.startswith(("favourite ", "favorite ", "preferred ")) or self._lasting.fullmatch(bare):
            return not _IDLE.match(caught.folded)
        if self._things.fullmatch(last):
            return re.match(r"(?:an?|the)\s+\w|\d", caught.folded) is not None
        return _hard(caught.value) and not _IDLE.match(caught.folded) and not _A_CLAUSE.search(caught.folded)


def head_of(thing: str) -> str:
    """Such as "flight" of "flight to Rome", "hawaii budget" of "Hawaii budget for May"; folded."""
    return _PREPOSITION.split(fold(thing), maxsplit=1)[0]


def _whole(alternatives: str) -> re.Pattern[str]:
    return re.compile(f"(?:{alternatives})")


_CALLED = re.compile(r"(?:called|named)\s+\w")


def _hard(value: str) -> bool:
    """Whether *value* is a number, date, address or name rather than a passing state."""
    folded = fold(value)
    if "@" in value or any(found(folded) for found in (_DATE.search, _SPELLED_NUMBER.search, _CALLED.match)):
        return True
    words = value.split()
    return len(words) <= _LONGEST_NAME + 1 and any(word[:1].isupper() for word in words)
