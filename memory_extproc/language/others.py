"""Whether words tell of somebody else than the person a question is about. Pure.

"My sister has just moved to Toronto" shares its words with "Where do I live?" and does not answer it. Read are the
beginnings of a text, where a sentence says whom it is about; who stands further on ("we went there with my sister")
is not taken for its subject.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from memory_extproc.language.remembered import MOST_REMEMBERED, remembered
from memory_extproc.language.words import fold

_LONGEST_READ = 200  # characters of a text: its first sentence says whom it is about
_LONGEST_ASKED = 1_000
NAMED_SHARE = 0.5  # of a name at the beginning, which is less sure to be somebody's than "my sister"


def _parsed() -> Mapping[str, Any]:
    return tomllib.loads((files(__package__) / "others.toml").read_text(encoding="utf-8"))


def _any_of(words: set[str]) -> str:
    return "|".join(sorted(map(re.escape, words), key=len, reverse=True))


def _patterns() -> tuple[re.Pattern[str], Mapping[str, frozenset[str]]]:
    parsed = dict(_parsed())
    same: dict[str, set[str]] = {}
    for group in parsed.pop("same")["groups"]:
        for word in fold(group).split():
            same.setdefault(word, set()).update(fold(group).split())
    people = {word for language in parsed.values() for word in fold(language["people"]).split()}
    before = {word for language in parsed.values() for word in fold(language["before"]).split()}
    lead = r"(?:(?:and|but|so|oh|btw|also|ok|well|yes|now|yesterday|today|und|aber|et|mais|y|pero)[\s,]+){0,2}"
    subject = re.compile(
        rf"{lead}(?:(?:one\s+of\s+)?(?:{_any_of(before)})\s+(?:[\w-]+\s+){{0,2}}?)?({_any_of(people)})(?:'s?)?(?![\w-])"
    )
    return subject, {word: frozenset(group) for word, group in same.items()}


_SUBJECT, _SAME = _patterns()
_NAMED = re.compile(
    r"([A-Z][a-z\u00e0-\u00ff]+)\s+(?:from|next\s+door|upstairs|has|is|was|got|plays|bought|calls|wants|lives|runs)\b"
)
_ENDS = re.compile(r"[.!?;]\s")
_WORD = re.compile(r"\w(?:[\w-]*\w)?")
_NOBODY = frozenset({"user", "it", "this", "that", "there", "he", "she", "what", "who", "where", "how", "which"})


@remembered(MOST_REMEMBERED)
def subject(text: str) -> tuple[str, float]:
    """Whom the first sentence of *text* is about, folded, and how sure that is, in (0, 1]; an empty word and 0
    where it is about the speaker, or nobody who is named."""
    first = _ENDS.split(text[:_LONGEST_READ].lstrip(), maxsplit=1)[0]
    matched = _SUBJECT.match(fold(first))
    if matched is not None:
        return matched[1], 1.0
    named = _NAMED.match(first)
    if named is not None and (name := fold(named[1])) not in _NOBODY:
        return name, NAMED_SHARE
    return "", 0.0


def mentioned(question: str) -> frozenset[str]:
    """The words by which *question* may mention somebody."""
    folded = fold(question[:_LONGEST_ASKED]).replace("'s", " ")
    return frozenset(_WORD.findall(folded))


def of_another(asked: frozenset[str], text: str) -> float:
    """Above 0, at most 1: *text* is about somebody whom the question does not mention, whose words are *asked*;
    below 0, at least -1: about whom it does mention; 0: about nobody else than its speaker."""
    who, sure = subject(text)
    if not who:
        return 0.0
    return -sure if asked & _SAME.get(who, frozenset({who})) or who in asked else sure
