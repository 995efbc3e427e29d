"""A memory that a search found, and why recall answered as it did."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from memory_extproc.model import Memory, Outcome, Rating


class Candidate(msgspec.Struct, frozen=True):  # no dataclass: of these there are a hundred for each question
    """A memory that a search came upon. *score* orders the candidates of one question and means nothing beyond
    it; *relevance* in [0, 1] is calibrated; *features* by name are what both were made of."""

    memory: Memory
    score: float
    relevance: float
    features: Mapping[str, float] = msgspec.field(default_factory=dict)

    def standing(self, *, on_cosine: bool) -> float:
        """What a threshold is held against: the relevance, or the raw cosine where one is known. Where only words
        were searched there is none, and a number that is none would pass every threshold."""
        if not on_cosine:
            return self.relevance
        cosine = self.features.get("dense", math.nan)
        return self.relevance if math.isnan(cosine) else cosine


# --- explanation -------------------------------------------------------------------------------------
# Why recall answered as it did: for who evaluates it, and for the operator's `explain`.


class Verdict(StrEnum):
    """What became of one candidate."""

    INJECTED = "injected"
    NO_ROOM = "no_room"  # chosen, but the block's tokens were used up before it
    OVER_LIMIT = "over_limit"  # relevant enough, but as many as wanted were better
    BELOW_THRESHOLD = "below_threshold"
    DUPLICATE = "duplicate"  # says what a chosen memory says already
    IN_VIEW = "in_view"  # the model sees it in the conversation as it is
    THREAD = "thread"  # fetched because a summary of its topic matched well; its own relevance is not asked
    BLOCKED = "blocked"  # a pattern of privacy.never_inject matches it, or it holds another request's placeholder
    UNTRUSTED = "untrusted"  # its words are not trusted as far as the question needs
    NOT_RECALLABLE = "not_recallable"  # expired, replaced, forgotten, or a bare question


@dataclass(frozen=True, slots=True)
class Considered:
    """One candidate. *score* orders candidates of one question and means nothing beyond it; *relevance* in
    [0, 1] is what the threshold stands on; *features* by name are what both were made of."""

    memory: Memory
    score: float
    relevance: float
    verdict: Verdict
    features: Mapping[str, float] = field(default_factory=dict)


# Feature, least value, meaning in words; of each feature the first entry that holds. Strong evidence comes first.
_REASONS: Sequence[tuple[str, float, str]] = (
    ("dense", 0.6, "means much the same as the question"),
    ("dense", 0.4, "is about something similar"),
    ("covered", 0.75, "has nearly all words of the question that matter"),
    ("covered", 0.25, "has some words of the question that matter"),
    ("days_agree", 0.5, "is of the time that the question names"),
    ("covered_around", 0.5, "stands beside messages with words of the question"),
    ("another", 0.5, "is about somebody whom the question does not mention"),
)


def reasons(memory: Memory, features: Mapping[str, float]) -> list[str]:
    """*features* for people."""
    found: dict[str, str] = {}
    for name, least, words in _REASONS:
        if name not in found and features.get(name, 0.0) >= least:
            found[name] = words
    if memory.rating is Rating.HELPFUL:
        found["rating"] = "was called helpful"
    return list(found.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One recall laid open. Whatever stopped it early leaves the later fields empty."""

    outcome: Outcome
    query: str = field(default="", repr=False)  # what was searched for
    gate: Outcome | None = None  # why there was no search at all; None: there was
    path: str = ""
    total: int | None = None  # memories the caller has; None where that is not known
    worth: float | None = None  # probability that anything is worth injecting, before any single memory
    considered: tuple[Considered, ...] = ()  # best first, also those that were left out
    block: str = field(default="", repr=False)
    kind: str = ""  # of the question, if it decided the lookup; empty: a plain search
    notes: tuple[str, ...] = ()  # parts of the request that could not be read and were ignored
