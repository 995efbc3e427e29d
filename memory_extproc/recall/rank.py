"""Which of the memories found are worth injecting: calibrated relevance, threshold, order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from memory_extproc.language.answers import echoes
from memory_extproc.model import Found, Memory, Ranked, Source
from memory_extproc.recall.explanation import Considered, Verdict
from memory_extproc.recall.view import View, normal

# A logistic curve through what all-MiniLM-L6-v2 gives to related pairs (around 0.45 and above) and to
# unrelated ones (below 0.35); at its middle a memory is as likely to help as not.
MIDDLE = 0.40
WIDTH = 0.08


def relevance(cosine: float) -> float:
    """Calibrated relevance in (0, 1) of a cosine in [-1, 1]: 1 / (1 + e^-((cos - 0.40) / 0.08))."""
    return 1.0 / (1.0 + math.exp(-(cosine - MIDDLE) / WIDTH))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A memory that a search came upon. *score* orders the candidates of one question and means nothing beyond
    it; *relevance* in [0, 1] is calibrated; *features* by name are what both were made of."""

    memory: Memory
    score: float
    relevance: float
    features: Mapping[str, float] = field(default_factory=dict)

    def standing(self, *, on_cosine: bool) -> float:
        """What a threshold is held against: the relevance, or the raw cosine where one is known. Where only words
        were searched there is none, and a number that is none would pass every threshold."""
        cosine = self.features.get("dense", math.nan)
        return cosine if on_cosine and not math.isnan(cosine) else self.relevance


def candidates_of(found: Iterable[Found]) -> list[Candidate]:
    """Best first. Equal scores: newer first, then by id, so that the order of *found* does not matter."""
    best = sorted(found, key=lambda f: (-f.cosine, -f.memory.updated_at.timestamp(), f.memory.id))
    return [Candidate(one.memory, one.cosine, relevance(one.cosine), {"dense": one.cosine}) for one in best]


def rank(
    found: Iterable[Found],
    *,
    now: datetime,
    threshold: float,
    limit: int,
    on_cosine: bool = False,
    in_view: Iterable[str] = (),
) -> tuple[Ranked, ...]:
    """At most *limit*, best first, each at or above *threshold* (on relevance, or on the cosine itself).

    The same words are kept once, the newest of them; of a message and a fact taken from it that say the same
    only the fact, because a fact is replaced when it no longer holds and a message is not. What the model
    already sees in the conversation (*in_view*) is left out, as is what is not recallable at *now*.
    """
    ordered = candidates_of(found)
    return chosen(weigh(ordered, now=now, threshold=threshold, limit=limit, on_cosine=on_cosine, in_view=in_view))


def chosen(weighed: Iterable[Considered]) -> tuple[Ranked, ...]:
    return tuple(Ranked(one.memory, one.relevance) for one in weighed if one.verdict is Verdict.INJECTED)


def weigh(
    ordered: Sequence[Candidate],
    *,
    now: datetime,
    threshold: float,
    limit: int,
    on_cosine: bool = False,
    in_view: Iterable[str] = (),
) -> list[Considered]:
    """Every one of *ordered*, best first, with its verdict; those `rank` gives are INJECTED, in their order."""
    view = View(in_view)
    seen: set[str] = set()
    weighed: list[Considered] = []
    taken: list[int] = []  # where in *weighed* those to be injected stand
    for one in ordered:
        memory = one.memory
        words = normal(memory.content)
        twin: int | None = None
        if not memory.recallable(now):
            verdict = Verdict.NOT_RECALLABLE
        elif one.standing(on_cosine=on_cosine) < threshold:
            verdict = Verdict.BELOW_THRESHOLD
        elif words in seen:
            verdict = Verdict.DUPLICATE
        elif view.shows(memory) or _shown_otherwise(memory, ordered, view):
            verdict = Verdict.IN_VIEW
        elif (twin := _twin(memory, [weighed[at].memory for at in taken])) is not None:
            verdict = Verdict.INJECTED if memory.source is not Source.VERBATIM else Verdict.DUPLICATE
            seen.add(words)
        else:
            verdict = Verdict.INJECTED if len(taken) < limit else Verdict.OVER_LIMIT
            seen.add(words)
        considered = Considered(memory, one.score, one.relevance, verdict, one.features)
        if verdict is Verdict.INJECTED and twin is not None:
            message = weighed[taken[twin]]
            weighed[taken[twin]] = replace(considered, score=message.score, relevance=message.relevance)
            considered = replace(message, verdict=Verdict.DUPLICATE)
        elif verdict is Verdict.INJECTED:
            taken.append(len(weighed))
        weighed.append(considered)
    return weighed


def _twin(memory: Memory, taken: Sequence[Memory]) -> int | None:
    """Which of *taken* is the message that *memory* was taken from, or the other way round, and says the same."""
    return next(
        (
            place
            for place, other in enumerate(taken)
            if _one_origin(memory, other) and echoes(memory.content, [other.content], "")
        ),
        None,
    )


def _shown_otherwise(memory: Memory, among: Sequence[Candidate], view: View) -> bool:
    """Whether the model sees what says the same: the fact taken from this message, or the message itself."""
    return any(
        _one_origin(memory, other.memory)
        and view.shows(other.memory)
        and echoes(memory.content, [other.memory.content], "")
        for other in among
    )


def _one_origin(one: Memory, other: Memory) -> bool:
    if not one.session or (one.session, one.seq) != (other.session, other.seq):
        return False
    return (one.source is Source.VERBATIM) != (other.source is Source.VERBATIM)
