"""What people say of themselves that belongs to a special category: health, religion, politics and their like.

Such a sentence is not kept unless the configuration keeps its category, or the person asked for it to be
remembered: a request to keep something is consent to keeping it.

Pure. The lists are of words, so what is said without them is missed.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files

from memory_extproc.language.sentences import sentence_ends


class Category(StrEnum):
    """Also what `privacy.sensitive` lists and a memory's sensitivity says, so a value is never renamed."""

    HEALTH = "health"
    RELIGION = "religion"
    POLITICS = "politics"
    SEXUALITY = "sexuality"
    ETHNICITY = "ethnicity"
    UNION = "union"  # membership in a trade union
    CRIME = "crime"  # convictions and offences
    BIOMETRY = "biometry"  # and genetics
    DIET = "diet"  # what somebody cannot eat: food allergies and intolerances


def _compiled(text: str) -> re.Pattern[str]:
    return re.compile(text, re.IGNORECASE | re.VERBOSE)


_WORDS = tomllib.loads((files(__package__) / "sensitive.toml").read_text(encoding="utf-8"))
_CATEGORIES = {category: _compiled(_WORDS[category.value]["words"]) for category in Category}
_ANY = _compiled("|".join(f"(?:{_WORDS[category.value]['words']})" for category in Category))
_PERSON = _compiled(_WORDS["person"]["words"])
_ADDRESSED = _compiled(_WORDS["person"]["addressed"])
_ASKED_TO_KEEP = _compiled(_WORDS["person"]["asked_to_keep"])
_GOES_ON = re.compile(
    r"(?i)^\W*(?:it|it's|this|that|that's|they|she|he|also|and|es|das|c'est|eso|es\ ist|\u8fd9)\b"
)


@dataclass(frozen=True, slots=True)
class Trimmed:
    """A text without its sentences of special categories, and which those were."""

    text: str
    dropped: tuple[Category, ...] = ()


# A search of a regular expression holds up every other thread, and with them every stream: some 5 ms for so much.
_AT_ONCE = 4_000  # characters
_LONGEST = 400  # of a match with what it looks ahead to, but for words that go on for ever


def _stands(words: re.Pattern[str], text: str) -> bool:
    """Whether *words* match anywhere in *text*, looked for in parts. What begins near the end of one, where a word
    may be cut and look like another, is left to the next, which begins before it."""
    start = 0
    while start + _AT_ONCE < len(text):
        end = start + _AT_ONCE
        found = words.search(text, start, end)
        start = end - _LONGEST
        if found is not None and found.start() < start:
            return True
    return words.search(text, start) is not None


def sensitivity(text: str) -> Category | None:
    """The first category that *text* has words of, whoever it speaks of."""
    if not _stands(_ANY, _straight(text)):
        return None
    return next(category for category, words in _CATEGORIES.items() if words.search(_straight(text)))


def asks_to_keep(text: str) -> bool:
    """Whether it asks for something to be remembered."""
    return _stands(_ASKED_TO_KEEP, _straight(text))


def of_caller(text: str, kept: frozenset[Category]) -> Trimmed:
    """A person's words without what they say of themselves in categories that are not *kept*. Everything stays
    where they ask for it to be remembered, and a text with none of that stays as it is."""
    if not _stands(_ANY, _straight(text)) or asks_to_keep(text):
        return Trimmed(text)
    return _trimmed(text, _PERSON, kept)


def of_assistant(text: str, kept: frozenset[Category], dropped: frozenset[Category]) -> Trimmed:
    """An answer without what it says of whom it addresses; of categories that were *dropped* from the question it
    answers, without any sentence."""
    if not _stands(_ANY, _straight(text)):
        return Trimmed(text)
    return _trimmed(text, _ADDRESSED, kept, dropped)


def _trimmed(
    text: str, person: re.Pattern[str], kept: frozenset[Category], anyway: frozenset[Category] = frozenset()
) -> Trimmed:
    parts: list[str] = []
    dropped: list[Category] = []
    personal = False  # the sentence before spoke of the person
    for sentence in _sentences(text):
        straight = _straight(sentence)
        goes_on = personal and _GOES_ON.match(straight) is not None
        personal = person.search(straight) is not None or goes_on
        found = [one for one, words in _CATEGORIES.items() if one not in kept and words.search(straight)]
        unwanted = [one for one in found if personal or one in anyway]
        if unwanted:
            dropped += unwanted
        else:
            parts.append(sentence)
    return Trimmed("".join(parts).strip(), tuple(dict.fromkeys(dropped))) if dropped else Trimmed(text)


def _sentences(text: str) -> Iterator[str]:
    """Every character of *text*, cut behind its sentences."""
    start = 0
    for end in sentence_ends(text):
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


def _straight(text: str) -> str:
    return text.replace("\u2019", "'")
