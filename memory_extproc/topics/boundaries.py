"""Whether a turn still belongs to the topic that is open. Pure, but for the model that embeds."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from memory_extproc.model import Matrix, Vector
from memory_extproc.ports import EmbeddingModel
from memory_extproc.settings.memory import Topics
from memory_extproc.text.words import content_words

_MOST_WORDS = 8  # content words of a question beyond which more say nothing more
_READ = 400  # characters of the question
# How people say that they change the subject.
_CUE = re.compile(
    r"\W*(?:(?:thanks|thank you|okay|ok|great|cool|alright|danke|gut|merci|gracias)\W+(?:you\W+)?)*"
    r"(?:by the way|btw|something else|(?:a |one )?different (?:question|topic|thing|matter)"
    r"|(?:an)?other (?:question|topic|thing|matter)"
    r"|(?:my )?next question|new (?:question|topic)|on another note|changing (?:the )?(?:subject|topic)"
    r"|(?:unrelated|off.topic)|speaking of something else|übrigens|etwas anderes|andere frage|neues thema"
    r"|au fait|autre (?:question|chose)|por cierto|otra (?:pregunta|cosa))\b",
    re.IGNORECASE,
)


def announces_other_subject(text: str) -> bool:
    """Report whether *text* begins with a change of subject, such as "Another thing"."""
    return _CUE.match(text) is not None


class DecidingMeasure(StrEnum):
    """The measure that decided: a label of topic_checks_total, so never renamed."""

    FEW = "few"  # the open topic has too few messages to be left
    NEAR = "near"  # near enough to the open topic
    MEASURE = "measure"  # the second, stricter measure
    MODEL = "model"
    FULL = "full"  # the open topic has reached its largest size


# Probabilities of the second measure, outside of which no model is asked.
_DOUBT = (0.1, 0.95)
LEAST_MESSAGES = 3  # of a topic before it can be left
MOST_TURNS = 32  # of a topic: a memory names all that it was made of, and has 8 KiB for that


@dataclass(frozen=True, slots=True)
class EmbeddedTurn:
    """A turn for this purpose: *asked_vector* is of the caller's words, *vector* the middle of question and
    answer."""

    asked: str = field(repr=False)
    asked_vector: Vector = field(repr=False)
    vector: Vector = field(repr=False)


async def embed_turns(embedder: EmbeddingModel, turns: Sequence[tuple[str, str]]) -> list[EmbeddedTurn]:
    """Embed turns, given as (question, answer), from the vectors that the messages are stored with: the embedder
    still has them, so nothing is embedded for this alone."""
    vectors = await embedder.embed([text for turn in turns for text in turn])
    return [
        EmbeddedTurn(turn[0], asked, unit(asked + answered))
        for turn, asked, answered in zip(turns, vectors[0::2], vectors[1::2], strict=True)
    ]


@dataclass(slots=True)
class OpenTopic:
    """The vectors of the turns of the topic that is open, oldest first."""

    vectors: list[Vector] = field(default_factory=list)
    messages: int = 0

    def add(self, heard: EmbeddedTurn | None, messages: int) -> None:
        """*heard* is None for a turn of which nothing is kept, such as thanks."""
        self.messages += messages
        if heard is not None:
            self.vectors.append(heard.vector)

    def centre(self) -> Vector:
        return unit(np.sum(self.vectors, axis=0))

    def nearness(self, heard: EmbeddedTurn) -> float:
        """Cosine to the middle of the topic."""
        return float(heard.vector @ self.centre())


def unit(vector: Vector | Matrix) -> Vector:
    length = float(np.linalg.norm(vector))
    return np.asarray(vector / length if length else vector, dtype=np.float32)


# Fitted for all-MiniLM-L6-v2 on the sessions fit-… of tests/quality/topics.jsonl by logistic regression, judged by
# the others: `memory-extproc eval topics` says how well (docs/memory-model.md has the figures).
_WEIGHTS = (-6.2, -4.3, -3.7, -2.8, 6.5, 3.0)
_BIAS = -0.7


def apartness(topic: OpenTopic, heard: EmbeddedTurn) -> float:
    """The probability in [0, 1] that *heard* begins another topic, from its distance to the whole topic, to the
    nearest turn and to the last turn, from its own content, and from phrases that change the subject. A short
    question depends on its context."""
    vectors = np.asarray(topic.vectors)
    asked = heard.asked[:_READ]
    features = (
        topic.nearness(heard),
        float(heard.asked_vector @ topic.centre()),
        float((vectors @ heard.vector).max()),
        float(topic.vectors[-1] @ heard.vector),
        min(len(content_words(asked)), _MOST_WORDS) / _MOST_WORDS,
        float(announces_other_subject(asked)),
    )
    odds = _BIAS + sum(weight * feature for weight, feature in zip(_WEIGHTS, features, strict=True))
    return 1.0 / (1.0 + math.exp(-odds))


@dataclass(frozen=True, slots=True)
class Decided:
    """*doubtful*: a model may know better."""

    shift: bool
    stage: DecidingMeasure
    doubtful: bool = False


def decide(topic: OpenTopic, heard: EmbeddedTurn | None, section: Topics) -> Decided:
    """Whether *heard* leaves *topic*. Never before `LEAST_MESSAGES`, nor for a turn of which nothing is kept."""
    if heard is None or topic.messages < LEAST_MESSAGES or not topic.vectors:
        return Decided(shift=False, stage=DecidingMeasure.FEW)
    if topic.nearness(heard) >= section.same:
        return Decided(shift=False, stage=DecidingMeasure.NEAR)
    apart = apartness(topic, heard)
    low, high = _DOUBT
    return Decided(shift=apart >= section.apart, stage=DecidingMeasure.MEASURE, doubtful=low <= apart <= high)


def shifts(heard: Sequence[EmbeddedTurn], section: Topics) -> list[int]:
    """Which of the turns of a session, by number, begin another topic where no model is asked."""
    found: list[int] = []
    topic = OpenTopic()
    for number, one in enumerate(heard):
        if decide(topic, one, section).shift:
            found.append(number)
            topic = OpenTopic()
        topic.add(one, 2)
    return found
