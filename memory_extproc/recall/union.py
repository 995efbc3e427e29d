"""Several searches for one question as one."""

from __future__ import annotations

from collections.abc import Sequence

from memory_extproc.recall.rank import Candidate


def strongest(rankings: Sequence[Sequence[Candidate]]) -> list[Candidate]:
    """The candidates of several queries as one ranking, best first: each memory as the query saw it that it fits
    best. The relevance decides, because it is calibrated and means the same for each query; the score, which
    does not, only between equals."""
    best: dict[str, Candidate] = {}
    for one in (one for ranking in rankings for one in ranking):
        known = best.get(one.memory.id)
        if known is None or (one.relevance, one.score) > (known.relevance, known.score):
            best[one.memory.id] = one
    return sorted(best.values(), key=lambda one: (-one.relevance, -one.score, one.memory.id))
