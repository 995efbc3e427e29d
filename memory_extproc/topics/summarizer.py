"""Names and summaries: by a model, whose answer is checked, or of the most central sentences."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from importlib.resources import files
from typing import Annotated, Final, Protocol, TypeVar

import msgspec
import numpy as np
from msgspec import Meta

from memory_extproc.errors import MemoryExtprocError
from memory_extproc.model import Owner
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import EmbeddingModel
from memory_extproc.text.intents import acknowledgement, only_asks, polite, refusal
from memory_extproc.text.sentences import sentences
from memory_extproc.text.words import content_words, estimate_tokens, number_key, stem, tokens
from memory_extproc.topics.state import Said

log = logger(__name__)
T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)

TOPIC: Final = "topic-1"
SESSION: Final = "session-1"
SHIFT: Final = "shift-1"
EXTRACTIVE: Final = "extractive-1"

_SHOWN = 3_000  # characters of one message that a model is shown
_SENTENCES = 96  # of a topic, spread evenly, among which the most central ones are looked for
_LONGEST = 300  # characters of a sentence in an extractive summary
_SHORTEST = 3  # words of one
_ASSISTANT = 0.9  # what an answer's sentence counts beside the caller's own
_NAMED_BY = 3  # words in the name of a topic that no model named
# Of what people ask for it says nothing that they ask.
_REQUESTS = frozenset(
    [
        "explain",
        "tell",
        "show",
        "give",
        "help",
        "know",
        "want",
        "need",
        "like",
        "make",
        "write",
        "find",
        "suggest",
        "recommend",
        "describe",
        "please",
    ]
)


class Named(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=2, max_length=100)]
    summary: Annotated[str, Meta(min_length=10, max_length=2_000)]


class Summed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    summary: Annotated[str, Meta(min_length=10, max_length=4_000)]


class Same(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    same: bool


class PromptAnswerer(Protocol):
    """One prompt to one model."""

    async def answer(self, owner: Owner, shown: str, parsed: Callable[[bytes], T]) -> T:
        """What *parsed* makes of the answer to *shown*; asked once more where it raises msgspec.DecodeError."""


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
    """The words of the prompt *name*, which is also its version: a file is never changed, the next one is added."""
    return (files(__package__) / "prompts" / f"{name}.txt").read_text(encoding="utf-8")


class Summaries:
    """*trusted* says whether a model's words may be kept. Without *prompts*, and wherever the model fails, the most
    central sentences serve: a fault of the model never stops anything."""

    def __init__(
        self, embedder: EmbeddingModel, metrics: Metrics, *, prompts: Prompts | None, trusted: Callable[[str], bool]
    ) -> None:
        self._embedder, self._metrics, self._prompts, self._trusted = embedder, metrics, prompts, trusted

    @property
    def asks_models(self) -> bool:
        return self._prompts is not None

    async def same(self, owner: Owner, before: Sequence[Said], turn: Said) -> bool | None:
        """Whether *turn* goes on with what was said *before*, by the model; None where it has no word on that."""
        if self._prompts is None:
            return None
        lines = [*(_line(said) for said in before), {**_line(turn), "new": True}]
        try:
            return await self._prompts.shift.answer(owner, _lines(lines), lambda raw: _SAME.decode(raw).same)
        except MemoryExtprocError as error:
            log.warning("topics.by_measure", error=type(error).__name__)
            return None

    async def of_topic(self, owner: Owner, said: Sequence[Said]) -> Summary:
        """What *said* was about, by name; it is not empty."""
        if self._prompts is not None:
            words = "\n".join(one.text for one in said)
            try:
                named = await self._prompts.topic.answer(
                    owner, _lines([_line(one) for one in said]), self._checked(_NAMED.decode, words)
                )
            except MemoryExtprocError as error:
                log.warning("topics.by_sentences", what="topic", error=type(error).__name__)
            else:
                return self._counted("topic", Summary(named.summary.strip(), TOPIC, named.name.strip()))
        pieces = [(one.asked, 1.0) for one in said] + [(one.answered, _ASSISTANT) for one in said]
        text = await self._central(pieces, 3)
        name = " ".join(_named_by(said))
        return self._counted("topic", Summary(text, EXTRACTIVE, name))

    async def of_texts(self, owner: Owner, texts: Sequence[str], count: int, earlier: str = "") -> Summary:
        """*texts* in *count* sentences or so, with what still matters of an *earlier* summary."""
        if self._prompts is not None:
            lines: list[dict[str, object]] = [{"sentences": count}]
            lines += [{"earlier": earlier}] if earlier else []
            lines += [{"said": text} for text in texts]
            words = "\n".join([earlier, *texts])
            try:
                summed = await self._prompts.session.answer(
                    owner, _lines(lines), self._checked(_SUMMED.decode, words)
                )
            except MemoryExtprocError as error:
                log.warning("topics.by_sentences", what="session", error=type(error).__name__)
            else:
                return self._counted("session", Summary(summed.summary.strip(), SESSION))
        pieces = [(text, 1.0) for text in ([earlier, *texts] if earlier else texts)]
        return self._counted("session", Summary(await self._central(pieces, count), EXTRACTIVE))

    def _counted(self, what: str, summary: Summary) -> Summary:
        self._metrics.summaries.labels(what, "sentences" if summary.by == EXTRACTIVE else "model").inc()
        return summary

    def _checked(self, decode: Callable[[bytes], S], words: str) -> Callable[[bytes], S]:
        known = _numbers(words)

        def checked(raw: bytes) -> S:
            """Raises msgspec.DecodeError for no answer, a number that nobody said, or what cannot be trusted."""
            found = decode(raw)
            text = " ".join(str(value) for value in msgspec.structs.astuple(found))
            if not _numbers(text) <= known:
                raise msgspec.ValidationError("a number that was not said - at `$.summary`")
            if not self._trusted(text):
                raise msgspec.ValidationError("an instruction instead of a summary - at `$.summary`")
            return found

        return checked

    async def _central(self, pieces: Sequence[tuple[str, float]], count: int) -> str:
        """The *count* sentences nearest to the middle of all of them, in their order; the caller's own, and what is
        said rather than asked, before others."""
        found: dict[str, float] = {}
        for text, weight in pieces:
            for sentence in sentences(text):
                if _tells(sentence):
                    found.setdefault(sentence[:_LONGEST], weight)
        if not found:
            return " ".join(text for text, _ in pieces)[:_LONGEST]
        if (
            len(told := {sentence: weight for sentence, weight in found.items() if not only_asks(sentence)})
            >= count
        ):
            found = told  # what was asked says little beside what was answered
        kept = list(found)[:: max(1, -(-len(found) // _SENTENCES))]
        vectors = await self._embedder.embed(kept)
        middle = vectors.sum(axis=0)
        scores = (vectors @ middle) * np.array([found[one] for one in kept])
        best = sorted(np.argsort(-scores, kind="stable")[:count])
        return " ".join(kept[at] for at in best)


_SAME = msgspec.json.Decoder(Same)
_NAMED = msgspec.json.Decoder(Named)
_SUMMED = msgspec.json.Decoder(Summed)


def _named_by(said: Sequence[Said]) -> list[str]:
    """The words that come back in most of what was *said*, in the order in which they came first."""
    words: dict[str, str] = {}
    count: Counter[str] = Counter()
    for one in said:
        written = [word for word in content_words(one.text[:_SHOWN]) if word.casefold() not in _REQUESTS]
        for word in written:
            words.setdefault(stem(word), word)
        count.update({stem(word) for word in written})
    best = sorted(words, key=lambda key: -count[key])[:_NAMED_BY]
    return [word for key, word in words.items() if key in best]


def _tells(sentence: str) -> bool:
    return len(tokens(sentence)) >= _SHORTEST and not (
        polite(sentence) or refusal(sentence) or acknowledgement(sentence)
    )


def _numbers(text: str) -> frozenset[str]:
    return frozenset(key for key in map(number_key, tokens(text)) if any(character.isdigit() for character in key))


def _line(said: Said) -> dict[str, object]:
    return {"user": said.asked[:_SHOWN], "assistant": said.answered[:_SHOWN]}


def _lines(lines: Sequence[dict[str, object]]) -> str:
    """As JSON lines: no text in them can look like the end of its own field."""
    return "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)


# --- condensing --------------------------------------------------------------------------------------
# A session in as many words as its size deserves, level by level.

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
