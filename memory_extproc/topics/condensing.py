"""A session in as many words as its size deserves, level by level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from memory_extproc.language.tokens import estimate_tokens
from memory_extproc.model import Owner
from memory_extproc.topics.sayings import Said
from memory_extproc.topics.summing import Summaries

CHUNK = 2_000  # tokens that are summed up together, about
FANOUT = 5  # summaries of one level that are summed up together
SENTENCE, PARAGRAPH = 1, 5  # sentences


class Band(Enum):
    """How a session of some size is summed up: *below* tokens."""

    NOTHING = 100
    SENTENCE = 500
    PARAGRAPH = 3_000
    CHUNKS = 15_000
    LEVELS = 10**12

    @classmethod
    def of(cls, tokens: int) -> Band:
        return next(band for band in cls if tokens < band.value)


@dataclass(frozen=True, slots=True)
class Part:
    """Something said, or a summary of it, with the ids of the memories it stands for."""

    text: str = field(repr=False)
    sources: tuple[str, ...]

    @property
    def tokens(self) -> int:
        return estimate_tokens(self.text)


@dataclass(frozen=True, slots=True)
class Condensed:
    """A summary of *parts*. *level* 1 is nearest to what was said; *ratio*: its tokens to theirs."""

    text: str = field(repr=False)
    by: str
    level: int
    parts: tuple[int, int]  # from which to which part of the level below, half open
    ratio: float


def is_topic(said: Sequence[Said], least: int) -> bool:
    """Whether *said* is a topic to be summed up: by its messages, or because fewer of them are as long as many."""
    return sum(one.messages for one in said) >= least or sum(estimate_tokens(one.text) for one in said) >= CHUNK


async def condensed(
    summaries: Summaries, owner: Owner, parts: Sequence[Part], earlier: str = ""
) -> list[list[Condensed]]:
    """The levels of summaries of *parts*, the nearest to what was said first; the last has one summary, of all.
    None for a session too small to need one. *earlier*: a summary of what was before, carried along into it."""
    size = sum(part.tokens for part in parts)
    match Band.of(size):
        case Band.NOTHING:
            return []
        case Band.SENTENCE:
            return [[await _one(summaries, owner, parts, SENTENCE, 1, (0, len(parts)), earlier)]]
        case Band.PARAGRAPH:
            return [[await _one(summaries, owner, parts, PARAGRAPH, 1, (0, len(parts)), earlier)]]
        case _:
            return await _levels(summaries, owner, parts, earlier, deep=Band.of(size) is Band.LEVELS)


async def _levels(
    summaries: Summaries, owner: Owner, parts: Sequence[Part], earlier: str, *, deep: bool
) -> list[list[Condensed]]:
    below = [
        await _one(summaries, owner, parts[start:end], PARAGRAPH, 1, (start, end)) for start, end in chunks(parts)
    ]
    levels = [below]
    while deep and len(below) > FANOUT:
        level = len(levels) + 1
        below = [
            await _again(summaries, owner, below, level, (start, min(start + FANOUT, len(below))))
            for start in range(0, len(below), FANOUT)
        ]
        levels.append(below)
    levels.append([await _again(summaries, owner, below, len(levels) + 1, (0, len(below)), earlier)])
    return levels


def chunks(parts: Sequence[Part]) -> list[tuple[int, int]]:
    """Neighbouring *parts* of about CHUNK tokens together, as ranges; each part is in one."""
    ranges: list[tuple[int, int]] = []
    start = size = 0
    for at, part in enumerate(parts):
        if at > start and size + part.tokens > CHUNK:
            ranges.append((start, at))
            start, size = at, 0
        size += part.tokens
    return [*ranges, (start, len(parts))]


async def _again(
    summaries: Summaries,
    owner: Owner,
    below: Sequence[Condensed],
    level: int,
    of: tuple[int, int],
    earlier: str = "",
) -> Condensed:
    parts = [Part(one.text, ()) for one in below[of[0] : of[1]]]
    return await _one(summaries, owner, parts, PARAGRAPH, level, of, earlier)


async def _one(
    summaries: Summaries,
    owner: Owner,
    parts: Sequence[Part],
    sentences: int,
    level: int,
    of: tuple[int, int],
    earlier: str = "",
) -> Condensed:
    made = await summaries.of_texts(owner, [part.text for part in parts], sentences, earlier)
    before = sum(part.tokens for part in parts)
    return Condensed(made.text, made.by, level, of, round(estimate_tokens(made.text) / max(1, before), 3))
