"""Names and summaries: by a model, whose answer is checked, or by key phrases and sentences that people said."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from importlib.resources import files
from typing import Annotated, Final, Protocol, Self, TypeVar

import msgspec
from msgspec import Meta

from memory_extproc.errors import MemoryExtprocError
from memory_extproc.model import Owner
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.text.words import estimate_tokens, number_key, tokens
from memory_extproc.topics.extractive import name_topic, summarize
from memory_extproc.topics.state import TurnWords

log = logger(__name__)
T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)

TOPIC: Final = "topic-1"
SESSION: Final = "session-1"
SHIFT: Final = "shift-1"
EXTRACTIVE: Final = "extractive-2"

_SHOWN = 3_000  # characters per message in the prompt
TOPIC_SENTENCES = 3


class NamedSummary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=2, max_length=100)]
    summary: Annotated[str, Meta(min_length=10, max_length=2_000)]


class Summed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    summary: Annotated[str, Meta(min_length=10, max_length=4_000)]


class Same(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    same: bool


class PromptAnswerer(Protocol):
    """Sends a prompt to a model."""

    async def answer(self, owner: Owner, shown: str, parsed: Callable[[bytes], T]) -> T:
        """The result of *parsed* for the answer to *shown*; asks again if it raises msgspec.DecodeError."""


@dataclass(frozen=True, slots=True)
class Prompts:
    """A model for each of our questions."""

    shift: PromptAnswerer
    topic: PromptAnswerer
    session: PromptAnswerer


@dataclass(frozen=True, slots=True)
class Summary:
    text: str
    by: str  # the prompt, or EXTRACTIVE
    name: str = ""


def prompt(name: str) -> str:
    """The prompt *name*, which is also its version: a file never changes, a new version is a new file."""
    return (files(__package__) / "prompts" / f"{name}.txt").read_text(encoding="utf-8")


class Summaries:
    """*trusted* says whether a model's words may be kept. Without *prompts*, and wherever the model fails,
    sentences of the conversation serve: a fault of the model never stops anything."""

    def __init__(self, metrics: Metrics, *, prompts: Prompts | None, trusted: Callable[[str], bool]) -> None:
        self._metrics, self._prompts, self._trusted = metrics, prompts, trusted

    @property
    def asks_models(self) -> bool:
        return self._prompts is not None

    async def same(self, owner: Owner, before: Sequence[TurnWords], turn: TurnWords) -> bool | None:
        """Whether *turn* continues the topic of *before*, by the model; None if the model gives no verdict."""
        if self._prompts is None:
            return None
        lines = [*(_line(said) for said in before), {**_line(turn), "new": True}]
        try:
            return await self._prompts.shift.answer(owner, _lines(lines), lambda raw: _SAME.decode(raw).same)
        except MemoryExtprocError as error:
            log.warning("topics.by_measure", error=type(error).__name__)
            return None

    async def of_topic(self, owner: Owner, said: Sequence[TurnWords]) -> Summary:
        """The name and the summary of *said*, which is not empty. The text is empty where nothing was said but
        questions without an answer and pleasantries."""
        if self._prompts is not None:
            words = "\n".join(one.text for one in said)
            try:
                named = await self._prompts.topic.answer(
                    owner, _lines([_line(one) for one in said]), self._checker_of(_NAMED.decode, words)
                )
            except MemoryExtprocError as error:
                log.warning("topics.by_sentences", what="topic", error=type(error).__name__)
            else:
                return self._count_summary("topic", Summary(named.summary.strip(), TOPIC, named.name.strip()))
        return self._count_summary(
            "topic", Summary(summarize([said], TOPIC_SENTENCES, named=False), EXTRACTIVE, name_topic(said))
        )

    async def of_parts(self, owner: Owner, parts: Sequence[Part], count: int, earlier: str = "") -> Summary:
        """Summarize *parts* in about *count* sentences, with still relevant content of an *earlier* summary; empty
        as a topic."""
        if self._prompts is not None:
            lines: list[dict[str, object]] = [{"sentences": count}]
            lines += [{"earlier": earlier}] if earlier else []
            lines += [{"said": part.text} for part in parts]
            words = "\n".join([earlier, *(part.text for part in parts)])
            try:
                summed = await self._prompts.session.answer(
                    owner, _lines(lines), self._checker_of(_SUMMED.decode, words)
                )
            except MemoryExtprocError as error:
                log.warning("topics.by_sentences", what="session", error=type(error).__name__)
            else:
                return self._count_summary("session", Summary(summed.summary.strip(), SESSION))
        told = [*([earlier] if earlier else []), *(part.said or part.text for part in parts)]
        return self._count_summary("session", Summary(summarize(told, count), EXTRACTIVE))

    def _count_summary(self, what: str, summary: Summary) -> Summary:
        self._metrics.summaries.labels(what, "sentences" if summary.by == EXTRACTIVE else "model").inc()
        return summary

    def _checker_of(self, decode: Callable[[bytes], S], words: str) -> Callable[[bytes], S]:
        known = _numbers(words)

        def decode_checked(raw: bytes) -> S:
            """Raises msgspec.DecodeError for an empty answer, a number not in the messages, or unsafe text."""
            found = decode(raw)
            text = " ".join(str(value) for value in msgspec.structs.astuple(found))
            if not _numbers(text) <= known:
                raise msgspec.ValidationError("a number that was not said - at `$.summary`")
            if not self._trusted(text):
                raise msgspec.ValidationError("an instruction instead of a summary - at `$.summary`")
            return found

        return decode_checked


_SAME = msgspec.json.Decoder(Same)
_NAMED = msgspec.json.Decoder(NamedSummary)
_SUMMED = msgspec.json.Decoder(Summed)


def _numbers(text: str) -> frozenset[str]:
    return frozenset(key for key in map(number_key, tokens(text)) if any(character.isdigit() for character in key))


def _line(said: TurnWords) -> dict[str, object]:
    return {"user": said.asked[:_SHOWN], "assistant": said.answered[:_SHOWN]}


def _lines(lines: Sequence[dict[str, object]]) -> str:
    """As JSON lines: no text in them can look like the end of its own field."""
    return "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)


# A session in as many words as its size deserves, level by level.

CHUNK = 2_000  # tokens that are summed up together, about
FANOUT = 5  # summaries of one level per summary of the next level
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
    """Something *said*, or a summary of it, with the ids of the memories it stands for."""

    text: str = field(repr=False)
    sources: tuple[str, ...]
    said: tuple[TurnWords, ...] = field(default=(), repr=False)

    @classmethod
    def of_turns(cls, said: Sequence[TurnWords], sources: Sequence[str]) -> Self:
        return cls("\n".join(one.text for one in said), tuple(sources), tuple(said))

    @property
    def tokens(self) -> int:
        return estimate_tokens(self.text)


@dataclass(frozen=True, slots=True)
class Condensed:
    """A summary of *parts*. *level* 1 is nearest to the messages; *ratio*: its tokens divided by theirs."""

    text: str = field(repr=False)
    by: str
    level: int
    parts: tuple[int, int]  # from which to which part of the level below, half open
    ratio: float


def is_topic(said: Sequence[TurnWords], least: int) -> bool:
    """Whether *said* is a topic to be summed up: by its messages, or because fewer of them are as long as many."""
    return sum(one.messages for one in said) >= least or sum(estimate_tokens(one.text) for one in said) >= CHUNK


async def condense_parts(
    summaries: Summaries, owner: Owner, parts: Sequence[Part], earlier: str = ""
) -> list[list[Condensed]]:
    """The levels of summaries of *parts*, nearest to the messages first; the last level has one summary of
    everything. None for a session that is too small or has no content. *earlier*: summary of the session before
    *parts*, carried along."""
    size = sum(part.tokens for part in parts)
    match Band.of(size):
        case Band.NOTHING:
            return []
        case Band.SENTENCE:
            levels = [[await _one(summaries, owner, parts, SENTENCE, 1, (0, len(parts)), earlier)]]
        case Band.PARAGRAPH:
            levels = [[await _one(summaries, owner, parts, PARAGRAPH, 1, (0, len(parts)), earlier)]]
        case _:
            levels = await _levels(summaries, owner, parts, earlier, deep=Band.of(size) is Band.LEVELS)
    return levels if levels and levels[-1][0].text else []


async def _levels(
    summaries: Summaries, owner: Owner, parts: Sequence[Part], earlier: str, *, deep: bool
) -> list[list[Condensed]]:
    below = _with_text(
        [await _one(summaries, owner, parts[start:end], PARAGRAPH, 1, (start, end)) for start, end in chunks(parts)]
    )
    if not below:
        return []
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


def _with_text(made: Sequence[Condensed]) -> list[Condensed]:
    """*made* without empty summaries; each also covers the empty summaries behind it, and the first also those
    before it."""
    told = [one for one in made if one.text]
    starts = [0, *(one.parts[0] for one in told[1:])]
    ends = [*starts[1:], made[-1].parts[1]]
    return [replace(one, parts=(start, end)) for one, start, end in zip(told, starts, ends, strict=False)]


def chunks(parts: Sequence[Part]) -> list[tuple[int, int]]:
    """Group neighbouring *parts* into ranges of about CHUNK tokens."""
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
    made = await summaries.of_parts(owner, parts, sentences, earlier)
    before = sum(part.tokens for part in parts)
    return Condensed(made.text, made.by, level, of, round(estimate_tokens(made.text) / max(1, before), 3))
