"""Text into sentences: survives "$10,000.50", "e.g.", initials, versions and addresses."""

from __future__ import annotations

import re
from collections.abc import Iterator

from memory_extproc.text.words import PHRASES

_ABBREVIATIONS = frozenset(PHRASES["abbreviations"].split())
_MONTHS = tuple(PHRASES["months"].split())
_DIGITS_OF_A_DAY = 2
# Only at the first of several marks: else each of a thousand is followed to their end.
_ENDING = re.compile(
    r"(?<![.!?\u2026])[.!?\u2026]+[\"'\u201d\u2019)\]]*(?=\s|$)|[\u3002\uff01\uff1f]+[\u300d\u300f\u201d]?|\n+"
)
_LAST_WORD = re.compile(r"[\w.]+$")
_BULLET = re.compile(r"^\s*(?:[-*\u2022\u2013]|\(?\d{1,2}[.)])\s+")
_BLANKS = re.compile(r"\s{9,}")
# Words that begin a sentence also where a writer uses no capitals: "the exam is on june 9. can you ...".
_OPENERS = re.compile(
    r"(?:i|i'm|i've|i'll|i'd|we|we're|you|he|she|it|it's|they|my|our|his|her|their|there|this|that|but|so|also|please|can|could"
    r"|would|will|should|do|does|did|is|are|was|what|what's|how|where|when|why|who|which|ich|wir|er|sie|es|mein\w*|kannst|was|wie|wann|wo"
    r"|je|nous|il|elle|mon|ma|mes|yo|mi|mis)\b",
    re.IGNORECASE,
)


def collapse_whitespace(text: str) -> str:
    """*text* with long runs of white space made short: rules that pass over white space do so from each place in a
    run, and would take a minute for a screen of empty lines."""
    return _BLANKS.sub(lambda run: "\n\n" if "\n" in run[0] else "  ", text)


def sentences(text: str) -> list[str]:
    """The sentences of *text* in order, stripped, without list bullets; their end marks stay. Lines end
    sentences too. Linear in *text*; every word of it is in exactly one of them."""
    found: list[str] = []
    start = 0
    for end in sentence_ends(text):
        _append(found, text[start:end])
        start = end
    _append(found, text[start:])
    return found


_CLAUSE = re.compile(
    r"[,;:]\s+|\s[-\u2013\u2014]+\s|[\uff0c\uff1b\uff1a\u3001]"
    r"|\s(?:and|but|so|because|though|und|aber|denn|mais|et|donc|pero|y)\s"
)


def clauses(sentence: str) -> list[str]:
    """*sentence* taken apart where one statement may end and another begin; too often rather than too seldom."""
    return [one for one in _CLAUSE.split(sentence) if one.strip()]


def sentence_ends(text: str) -> Iterator[int]:
    """Where the sentences and lines of *text* end, in order: behind their end marks, before what follows."""
    start = 0
    for ending in _ENDING.finditer(text):
        if ending[0][0] == "." and _continues(text, start, ending):
            continue
        yield ending.end()
        start = ending.end()


def _continues(text: str, start: int, ending: re.Match[str]) -> bool:
    last = _LAST_WORD.search(text, max(start, ending.start() - 20), ending.start())
    if last is None:
        return False
    word = last[0].casefold()
    following = text[ending.end() : ending.end() + 40].lstrip(" \t")
    if not following or following[0] == "\n":
        return False
    if word in {"a.m", "p.m", "etc", "usw"}:
        return following[0].islower()
    initial = len(word) == 1 and word.isalpha() and last[0].isupper() and last[0] != "I"
    return word in _ABBREVIATIONS or initial or _counts(word, following) or _is_bullet(text, start, ending)


def _counts(word: str, following: str) -> bool:
    """Whether *word* is a day or place in a row, as in "am 3. Mai", "the 2. try"."""
    short = word.isdigit() and len(word) <= _DIGITS_OF_A_DAY
    in_row = following[0].islower() and _OPENERS.match(following) is None
    return short and (in_row or following.casefold().startswith(_MONTHS))


def _is_bullet(text: str, start: int, ending: re.Match[str]) -> bool:
    head = text[start : ending.start()].strip()
    return head.isdigit() and len(head) <= _DIGITS_OF_A_DAY  # "1. Buy milk"


def _append(found: list[str], piece: str) -> None:
    stripped = _BULLET.sub("", piece.strip())
    if any(character.isalnum() for character in stripped):
        found.append(stripped)
