"""Attributes of a person, in statements and in questions: job, allergies, children, home.

"I'm a pediatric nurse" answers a question for the job, though the two share no word. A lexicon (attributes.toml)
has the words and forms of statements and questions for each attribute, and the attributes of facts. Pure.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from importlib.resources import files
from typing import Any, Final

from memory_extproc.text import lazy_re
from memory_extproc.text.words import (
    MOST_REMEMBERED,
    MOST_SETS,
    PHRASES,
    UNSPACED,
    fold,
    memoize_by_hash,
    strip_accents,
)

Compiles = Callable[[str], re.Pattern[str]]

_READ = 1_000  # characters of a statement, which names its attribute early
_LED_WITHIN = 4  # words, from a leading word to the word behind it
_WORD = re.compile(r"\w+(?:['-]\w+)*")
_UNSPACED = re.compile(UNSPACED)
_KEYS = frozenset(
    {"group", "asks", "asking", "fields", "told", "led", "tells", "shapes", "others", "distinct", "single"}
)
_CONTRACTIONS: Final[Mapping[str, str]] = dict(
    line.split(" ", 1) for line in PHRASES["contractions"].strip().splitlines()
)


class LexiconError(ValueError):
    """A lexicon that cannot be used. The message names the place, and the values that would be right."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """A section of the lexicon; *bit* stands for it in a mask of attributes."""

    name: str
    bit: int
    group: str
    others: bool
    distinct: bool
    single: bool
    asks: frozenset[str]
    told: frozenset[str]
    led: frozenset[str]
    asking: re.Pattern[str] | None
    fields: re.Pattern[str] | None
    tells: tuple[re.Pattern[str], ...]
    shapes: re.Pattern[str] | None


def plain_words(text: str) -> list[str]:
    """The words of *text*, folded, without accents, contractions written out ("I'm": "i am")."""
    words: list[str] = []
    for word in _WORD.findall(strip_accents(fold(text))):
        if (meant := _CONTRACTIONS.get(word)) is not None:
            words += meant.split()
        else:
            words.append(word)
    return words


@memoize_by_hash(MOST_SETS)
def word_set(text: str) -> frozenset[str]:
    """The set of `plain_words`, of a memory, which each question reads anew. Not in their order, which would be the
    text, and would outlive a forget."""
    return frozenset(plain_words(text))


class AttributeLexicon:
    """All attributes, found by the words of a text. Linear in the text."""

    def __init__(self, sections: Mapping[str, Any], compiles: Compiles = re.compile) -> None:
        self.attributes = {
            name: _parse_attribute(name, 1 << place, section, compiles)
            for place, (name, section) in enumerate(sections.items())
        }
        self._told = _by_word((one.told, one.bit) for one in self.attributes.values() if not one.led)
        self._led = _by_word((one.told, one.bit) for one in self.attributes.values() if one.led)
        self._leading = {one.bit: one.led for one in self.attributes.values() if one.led}
        self._asks = _by_word((one.asks, one.bit) for one in self.attributes.values())
        self._tells: dict[str, list[tuple[int, re.Pattern[str]]]] = {}
        for one in self.attributes.values():
            for pattern in one.tells:
                for word in first_words(pattern.pattern, f"{one.name}.tells"):
                    self._tells.setdefault(word, []).append((one.bit, pattern))
        self._asking = [(one.bit, one.asking) for one in self.attributes.values() if one.asking is not None]
        self._shapes = [(one.bit, one.shapes) for one in self.attributes.values() if one.shapes is not None]
        self._fields = [(one.bit, one.fields) for one in self.attributes.values() if one.fields is not None]
        self.of_others = sum(one.bit for one in self.attributes.values() if one.others)
        self.single = sum(one.bit for one in self.attributes.values() if one.single)
        self.every = (1 << len(self.attributes)) - 1
        self._unspaced = [(word, bit) for word, bit in self._asks.items() if _UNSPACED.match(word)]
        # A question is read by several readers, and its candidates by each of them.
        self._told_by_words = memoize_by_hash(MOST_REMEMBERED)(self._read_told)
        self._asked_by_words = memoize_by_hash(MOST_REMEMBERED)(self._read_asked)

    def mask(self, names: Iterable[str], where: str = "") -> int:
        """LexiconError for an unknown attribute."""
        found = 0
        for name in names:
            if name not in self.attributes:
                known = ", ".join(sorted(self.attributes))
                raise LexiconError(f"{where or 'attributes'}: no attribute {name!r}; expected one of {known}")
            found |= self.attributes[name].bit
        return found

    def names(self, mask: int) -> list[str]:
        return [name for name, one in self.attributes.items() if one.bit & mask]

    def groups(self, mask: int) -> frozenset[str]:
        return frozenset(one.group for one in self.attributes.values() if one.bit & mask)

    def in_groups(self, groups: Container[str]) -> int:
        return sum(one.bit for one in self.attributes.values() if one.group in groups)

    def told_by(self, text: str, field: str = "") -> int:
        """The mask of the attributes that the statement *text* tells of; *field*: the attribute of a fact."""
        return self._told_by_words(text) | (self.of_field(field) if field else 0)

    def _read_told(self, text: str) -> int:
        words = plain_words(text[:_READ])
        joined = " ".join(words)
        found = start = 0
        for at, word in enumerate(words):
            for bit, pattern in self._tells.get(word, ()):
                if not found & bit and pattern.match(joined, start):
                    found |= bit
            start += len(word) + 1
            found |= self._told.get(word, 0)
            if led := self._led.get(word, 0):
                before = words[max(0, at - _LED_WITHIN) : at]
                for bit, leading in self._leading.items():
                    if led & bit and not leading.isdisjoint(before):
                        found |= bit
        return found | sum(bit for bit, pattern in self._shapes if not found & bit and pattern.search(joined))

    def of_field(self, field: str) -> int:
        folded = fold(field[:_READ])
        return sum(bit for bit, pattern in self._fields if pattern.match(folded))

    def named_in(self, words: Sequence[str]) -> int:
        """The mask of the attributes that *words* of a question name."""
        found = 0
        for word in words:
            found |= self._asks.get(word.removesuffix("'s").removesuffix("'"), 0)
            if not word.isascii() and _UNSPACED.match(word):
                for known, bit in self._unspaced:
                    found |= bit if known in word else 0
        return found

    def things(self, words: Iterable[str], mask: int) -> frozenset[str]:
        """The words in *words*, in the singular, by which questions and statements name a thing of an attribute,
        without the word for all of them ("pets")."""
        names = [
            (one.asks & one.told) - {one.name, one.name.removesuffix("s")}
            for one in self.attributes.values()
            if one.distinct and one.bit & mask
        ]
        bare = {word.removesuffix("'s") for word in words}
        return frozenset(word.removesuffix("s") for several in names for word in several & bare)

    def is_plural(self, word: str) -> bool:
        """Whether *word* names several of an attribute: questions name one by the same word without its ending."""
        bits = self._asks.get(word, 0)
        return any(self._asks.get(word[:-ending], 0) & bits for ending in (1, 2))

    def asked_by(self, joined: str) -> int:
        """The mask of the attributes that the plain words of a question, *joined*, ask for without naming them."""
        return self._asked_by_words(joined)

    def _read_asked(self, joined: str) -> int:
        return sum(bit for bit, pattern in self._asking if pattern.search(joined))

    def without_asking(self, joined: str) -> str:
        """The plain words of a question, *joined*, but for those that ask for an attribute without naming it."""
        for _, pattern in self._asking:
            joined = pattern.sub(" ", joined)
        return joined


def _by_word(several: Iterable[tuple[frozenset[str], int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for words, bit in several:
        for word in words:
            found[word] = found.get(word, 0) | bit
    return found


def _parse_attribute(name: str, bit: int, section: Any, compiles: Compiles) -> Attribute:
    if not isinstance(section, Mapping):
        raise LexiconError(f"{name}: expected a section of keys")
    if unknown := sorted(set(section) - _KEYS):
        raise LexiconError(f"{name}.{unknown[0]}: no such key; expected {', '.join(sorted(_KEYS))}")

    def words(key: str) -> frozenset[str]:
        return frozenset(fold(str(section.get(key, ""))).split())

    return Attribute(
        name=name,
        bit=bit,
        group=str(section.get("group", "")),
        shapes=any_of(section.get("shapes", ()), f"{name}.shapes", compiles),
        others=bool(section.get("others", False)),
        distinct=bool(section.get("distinct", False)),
        single=bool(section.get("single", False)),
        asks=words("asks"),
        told=words("told"),
        led=words("led"),
        asking=any_of(section.get("asking", ()), f"{name}.asking", compiles),
        fields=any_of([rf"\A{translate(glob)}" for glob in section.get("fields", ())], f"{name}.fields", compiles),
        tells=tuple(compile_pattern(one, f"{name}.tells", compiles) for one in section.get("tells", ())),
    )


_OPTIONAL = re.compile(r"\w\?")
_FIRST = re.compile(r"[\w'?-]+")


def first_words(pattern: str, where: str) -> frozenset[str]:
    """The words that a match of *pattern* can begin with, so that it is tried there alone: it begins with a word,
    or with a group of alternatives that do. LexiconError for any other pattern."""
    if pattern.startswith("(?:"):
        return frozenset().union(*(first_words(one, where) for one in _alternatives(pattern)))
    matched = _FIRST.match(pattern)
    if matched is None:
        raise LexiconError(f"{where}: {pattern!r} begins with no word; expected a word or (?:one|of|several)")
    return frozenset({matched[0].replace("?", ""), _OPTIONAL.sub("", matched[0])})


def _alternatives(group: str) -> list[str]:
    """The alternatives of the group at the beginning of *group*."""
    depth, start, found = 0, len("(?:"), []
    for at, sign in enumerate(group):
        depth += (sign == "(") - (sign == ")")
        if (sign == "|" and depth == 1) or depth == 0:
            found.append(group[start:at])
            start = at + 1
        if depth == 0:
            break
    return found


def compile_pattern(pattern: str, where: str, compiles: Compiles = re.compile) -> re.Pattern[str]:
    """LexiconError for a broken pattern, unless *compiles* puts that off."""
    try:
        return compiles(pattern)
    except re.error as error:
        raise LexiconError(f"{where}: {error}") from error


def any_of(patterns: Sequence[str], where: str, compiles: Compiles = re.compile) -> re.Pattern[str] | None:
    """A pattern for all of *patterns*; None if there are none. Errors as with `compile_pattern`."""
    return compile_pattern("|".join(f"(?:{one})" for one in patterns), where, compiles) if patterns else None


def read_lexicon(name: str) -> Mapping[str, Any]:
    """A lexicon that comes with this package."""
    return tomllib.loads((files(__package__) / name).read_text(encoding="utf-8"))


ATTRIBUTES = AttributeLexicon(read_lexicon("attributes.toml"), lazy_re.compile)
