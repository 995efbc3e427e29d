"""What the index keeps of one memory: its terms and what can be said of it before any question is asked."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from math import log1p

from memory_extproc.language.dates import days_named
from memory_extproc.language.days_told import Span
from memory_extproc.language.related import rarity
from memory_extproc.language.stemming import terms
from memory_extproc.language.words import fold
from memory_extproc.model import Memory, Role

# Features of a memory by itself, in this order.
BY_ITSELF = ("length", "rarity", "asks", "ends_asking", "tells_time", "tells_number", "tells_names")
NO_DAYS: Span = (0, 0)
_SPANS = 2  # spans of days kept of one memory
_MOST_NAMES = 3
_SPEAKER = re.compile(r"^([A-Z\u00c0-\u024f][\w'-]{0,30}): ")
_MARKS = re.compile(r"[?\uff1f\u061f]")
_ENDS_ASKING = re.compile(r"[?\uff1f\u061f][\"')\]\s]*$")
_TIME = re.compile(
    r"\b(?:yesterday|today|tonight|tomorrow|recently|since|ago|the other day|(?:last|next|this)\s+(?:week|month|"
    r"year|night|weekend|summer|winter|spring|fall|autumn|morning|past|mon|tue|wed|thu|fri|sat|sun)\w*|"
    r"(?:in|on)\s+(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)\w*|(?:19|20)\d\d)\b",
    re.IGNORECASE,
)
_NUMBER = re.compile(
    r"\d|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|first|second|twice|once|couple|few)\b", re.IGNORECASE
)
_NAME = re.compile(r"(?<=[a-z,] )[A-Z][a-z]+")
_READ = 2_000  # characters that the marks are looked for in; terms are taken of all


@dataclass(frozen=True, slots=True)
class Entry:
    counts: Mapping[str, int]  # how often each term stands in it
    length: int  # in terms, at least 1
    language: str
    speaker: str  # "caroline" where a name stands before the words ("Caroline: …"), else empty
    by_itself: tuple[float, ...]  # as BY_ITSELF has it
    days: tuple[Span, ...]  # always two: days it names, NO_DAYS where it names fewer
    said: int  # the day it was said or made, as an ordinal

    @property
    def size(self) -> int:
        """About the bytes it takes, postings included."""
        return 400 + 24 * len(self.counts)


def entry_of(memory: Memory) -> Entry:
    """Time linear in the words: about 0.1 ms for a message of a chat, 2 ms for 8 KiB; what was read a moment ago
    is at hand. So who has many to add reads them ahead, a few at a time, with others' work in between."""
    said = (memory.valid_from or memory.created_at).date().toordinal()
    return _read(memory.content, said, memory.role is Role.NONE)


@lru_cache(maxsize=256)
def _read(content: str, said: int, nobody: bool) -> Entry:  # noqa: FBT001 - a key of the cache
    found, language = terms(content)
    counts = Counter(found)
    beginning = content[:_READ]
    days = days_named(beginning, date.fromordinal(said))[:_SPANS]
    speaker = None if nobody else _SPEAKER.match(content)
    marks = (
        log1p(len(found)),
        sum(map(rarity, counts)) / max(1, len(counts)),
        float(_MARKS.search(beginning) is not None),
        float(_ENDS_ASKING.search(content[-40:]) is not None),
        float(_TIME.search(beginning) is not None),
        float(_NUMBER.search(beginning) is not None),
        float(min(_MOST_NAMES, len(_NAME.findall(beginning)))),
    )
    return Entry(
        counts=counts,
        length=max(1, len(found)),
        language=language,
        speaker=fold(speaker[1]) if speaker else "",
        by_itself=marks,
        days=(*days, *(NO_DAYS,) * (_SPANS - len(days))),
        said=said,
    )
