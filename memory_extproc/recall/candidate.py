"""A memory that a search found, and why recall answered as it did."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from memory_extproc.model import Memory, Outcome, Rating


class Candidate(msgspec.Struct, frozen=True):  # no dataclass: of these there are a hundred for each question
    """A memory found by a search. *score* orders the candidates of a question and has no meaning beyond it;
    *relevance* in [0, 1] is calibrated; *features* by name are the inputs of both."""

    memory: Memory
    score: float
    relevance: float
    features: Mapping[str, float] = msgspec.field(default_factory=dict)

    def standing(self, *, on_cosine: bool) -> float:
        """The value for thresholds: the relevance, or with *on_cosine* the raw cosine. A search by words alone has
        no cosine, and NaN would pass every threshold, so the relevance stands in."""
        if not on_cosine:
            return self.relevance
        cosine = self.features.get("dense", math.nan)
        return self.relevance if math.isnan(cosine) else cosine


def reaching(ordered: Sequence[Candidate], threshold: float, *, on_cosine: bool) -> list[Candidate]:
    """The candidates of *ordered* whose standing is at least *threshold*."""
    if on_cosine:
        return [one for one in ordered if one.standing(on_cosine=True) >= threshold]
    return [one for one in ordered if one.relevance >= threshold]


# --- explanation -------------------------------------------------------------------------------------
# The reasons of a recall, for evaluation and for the operator's `explain`.


class Verdict(StrEnum):
    """The outcome of a candidate."""

    INJECTED = "injected"
    NO_ROOM = "no_room"  # chosen, but the block's tokens were used up before it
    OVER_LIMIT = "over_limit"  # relevant enough, but as many as wanted were better
    BELOW_THRESHOLD = "below_threshold"
    DUPLICATE = "duplicate"  # says what a chosen memory says already
    IN_VIEW = "in_view"  # the model sees it in the conversation as it is
    THREAD = "thread"  # fetched because a summary of its topic matched well, whatever its own relevance
    BLOCKED = "blocked"  # a pattern of privacy.never_inject matches it, or it holds another request's placeholder
    UNTRUSTED = "untrusted"  # less trusted than the question requires
    NOT_RECALLABLE = "not_recallable"  # expired, replaced, forgotten, or a bare question


@dataclass(frozen=True, slots=True)
class Considered:
    """A candidate with its verdict. *score* orders the candidates of a question and has no meaning beyond it;
    *relevance* in [0, 1] is compared with the threshold; *features* by name are the inputs of both."""

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
    if memory.provenance.rating is Rating.HELPFUL:
        found["rating"] = "was called helpful"
    return list(found.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The explanation of a recall. An early stop leaves the later fields empty."""

    outcome: Outcome
    query: str = field(default="", repr=False)  # the searched text
    gate: Outcome | None = None  # the reason for no search; None: there was a search
    path: str = ""
    total: int | None = None  # memories the caller has; None where that is not known
    worth: float | None = None  # probability that anything is worth injecting, before any single memory
    considered: tuple[Considered, ...] = ()  # best first, with the rejected candidates
    block: str = field(default="", repr=False)
    kind: str = ""  # of the question, if it decided the lookup; empty: a plain search
    notes: tuple[str, ...] = ()  # parts of the request that could not be read and were ignored
