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

    The same words are kept once, the newest of them, and of a message and a fact taken from it only the better
    placed where it says all that the other does; what the model already sees in the conversation
    (*in_view*) is left out, as is what is not recallable at *now*. Equal scores: newer first, then by id,
    so that the result does not depend on the order of *found*.
    """
    seen = {_normal(text) for text in in_view}
    best = sorted(found, key=lambda f: (-f.cosine, -f.memory.updated_at.timestamp(), f.memory.id))
    chosen: list[Ranked] = []
    for one in best:
        score = one.cosine if on_cosine else relevance(one.cosine)
        if score < threshold or len(chosen) == limit:
            break
        words = _normal(one.memory.content)
        if words in seen or not one.memory.recallable(now) or _told_already(one.memory, chosen):
            continue
        seen.add(words)
        chosen.append(Ranked(one.memory, relevance(one.cosine)))
    return tuple(chosen)


def _told_already(memory: Memory, chosen: Sequence[Ranked]) -> bool:
    """Whether *memory* and one of *chosen* are a message and a fact taken from it, and it adds nothing."""
    return any(
        _one_origin(memory, other.memory) and echoes(memory.content, [other.memory.content], "") for other in chosen
    )


def _one_origin(one: Memory, other: Memory) -> bool:
    if not one.session or (one.session, one.seq) != (other.session, other.seq):
        return False
    return (one.source is Source.VERBATIM) != (other.source is Source.VERBATIM)


def _normal(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".!?… ")
