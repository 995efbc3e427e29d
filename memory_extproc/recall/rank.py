"""Which of the memories found are worth injecting: calibrated relevance, threshold, order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime

from memory_extproc.language.answers import echoes
from memory_extproc.model import Found, Memory, Ranked, Source

# A logistic curve through what all-MiniLM-L6-v2 gives to related pairs (around 0.45 and above) and to
# unrelated ones (below 0.35); at its middle a memory is as likely to help as not.
MIDDLE = 0.40
WIDTH = 0.08


def relevance(cosine: float) -> float:
    """Calibrated relevance in (0, 1) of a cosine in [-1, 1]: 1 / (1 + e^-((cos - 0.40) / 0.08))."""
    return 1.0 / (1.0 + math.exp(-(cosine - MIDDLE) / WIDTH))


def rank(
    found: Sequence[Found],
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
    already sees in the conversation (*in_view*) is left out, as is what is not recallable at *now*. Equal
    scores: newer first, then by id, so that the result does not depend on the order of *found*.
    """
    seen = {_normal(text) for text in in_view}
    best = sorted(found, key=lambda f: (-f.cosine, -f.memory.updated_at.timestamp(), f.memory.id))
    chosen: list[Ranked] = []
    for one in best:
        memory = one.memory
        score = one.cosine if on_cosine else relevance(one.cosine)
        twin = _twin(memory, chosen)
        if score < threshold or (len(chosen) == limit and twin is None):
            break
        words = _normal(memory.content)
        if words in seen or not memory.recallable(now):
            continue
        seen.add(words)
        if twin is None:
            chosen.append(Ranked(memory, relevance(one.cosine)))
        elif memory.source is not Source.VERBATIM:
            chosen[twin] = Ranked(memory, chosen[twin].relevance)
    return tuple(chosen)


def _twin(memory: Memory, chosen: Sequence[Ranked]) -> int | None:
    """Which of *chosen* is the message that *memory* was taken from, or the other way round, and says the same."""
    return next(
        (
            place
            for place, other in enumerate(chosen)
            if _one_origin(memory, other.memory) and echoes(memory.content, [other.memory.content], "")
        ),
        None,
    )


def _one_origin(one: Memory, other: Memory) -> bool:
    if not one.session or (one.session, one.seq) != (other.session, other.seq):
        return False
    return (one.source is Source.VERBATIM) != (other.source is Source.VERBATIM)


def _normal(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".!?… ")
