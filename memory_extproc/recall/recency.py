"""How much the age of what was said counts against it. A fact does not age: it holds until another replaces it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date, datetime, timedelta

import numpy as np
import numpy.typing as npt

from memory_extproc.language.dates import days_named
from memory_extproc.language.words import fold
from memory_extproc.model import Memory, Source

HALF_LIFE = timedelta(days=60)
# Points of score that the oldest message loses, at most: little beside what speaks for a memory, unless the
# question asks for what is new.
USUAL = 0.2
FRESH = 2.0
_READ = 2_000  # characters

_ASKS_FOR_NEW = re.compile(
    r"\b(?:latest|newest|current|currently|now|nowadays|today|recent|recently|lately|these days|at the moment"
    r"|neueste[nrs]?|aktuell\w*|derzeit|jetzt|heute|zuletzt|actuel\w*|maintenant|aujourd'hui|r\u00e9cemment"
    r"|actual\w*|ahora|hoy|\u00faltimamente|recientemente|attual\w*|adesso|oggi|atual\w*|agora|hoje|huidige|nu"
    r"|vandaag)\b"
)


def asks_for_new(text: str) -> bool:
    """Whether *text* asks for how things are by now ("my latest offer", "where do I work now?")."""
    return _ASKS_FOR_NEW.search(fold(text[:_READ])) is not None


def most_lost(text: str, today: date) -> float:
    """Points of score that the oldest memory loses for the question *text*, asked on the day *today*. Nothing where
    the question names a day of its own."""
    return FRESH if asks_for_new(text) else 0.0 if days_named(text, today) else USUAL


def lost_to_age(
    most: float, memories: Sequence[Memory], now: datetime, half_life: timedelta
) -> npt.NDArray[np.float64]:
    """Points of score, 0 or more, that each memory loses: half of the *most* it can lose after one *half_life*."""
    if most == 0.0:
        return np.zeros(len(memories))
    ages = np.array(
        [
            (now - (memory.valid_from or memory.created_at)) / half_life
            if memory.source is Source.VERBATIM
            else 0.0
            for memory in memories
        ],
        dtype=np.float64,
    )
    lost: npt.NDArray[np.float64] = most * (1.0 - np.exp2(-np.maximum(ages, 0.0)))
    return lost
