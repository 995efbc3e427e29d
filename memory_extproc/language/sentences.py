"""Text into sentences: survives "$10,000.50", "e.g.", initials, versions and addresses."""

from __future__ import annotations

import re

# After these a full stop does not end a sentence (unless a new line does).
_ABBREVIATIONS = frozenset(
    "e.g i.e etc vs mr mrs ms dr prof sr jr st mt ft no nr vol fig approx dept est inc ltd co corp cf al "
    "jan feb mar apr jun jul aug sep sept oct nov dec mon tue wed thu fri sat sun a.m p.m u.s u.k u.s.a d.c ph.d "
    "z.b d.h u.a bzw ca usw evtl ggf inkl str tel hr fr bspw p.ex av bd m mme mlle sra dra ud uds sig dott".split()
)
_ENDING = re.compile(r"[.!?\u2026]+[\"'\u201d\u2019)\]]*(?=\s|$)|[\u3002\uff01\uff1f]+[\u300d\u300f\u201d]?|\n+")
_LAST_WORD = re.compile(r"[\w.]+$")
_BULLET = re.compile(r"^\s*(?:[-*\u2022\u2013]|\(?\d{1,2}[.)])\s+")


def sentences(text: str) -> list[str]:
    """The sentences of *text* in order, stripped, without list bullets; their end marks stay. Lines end
    sentences too. Linear in *text*; every word of it is in exactly one of them."""
    found: list[str] = []
    start = 0
    for ending in _ENDING.finditer(text):
        if ending[0][0] == "." and _continues(text, start, ending):
            continue
        _append(found, text[start : ending.end()])
        start = ending.end()
    _append(found, text[start:])
    return found


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
    ordinal = word.isdigit() and len(word) <= 2 and following[0].islower()  # noqa: PLR2004  "am 3. Mai", "the 2. try"
    return word in _ABBREVIATIONS or initial or ordinal or _is_bullet(text, start, ending)


def _is_bullet(text: str, start: int, ending: re.Match[str]) -> bool:
    head = text[start : ending.start()].strip()
    return head.isdigit() and len(head) <= 2  # noqa: PLR2004  "1. Buy milk"


def _append(found: list[str], piece: str) -> None:
    stripped = _BULLET.sub("", piece.strip())
    if any(character.isalnum() for character in stripped):
        found.append(stripped)
