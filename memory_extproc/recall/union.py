"""Several searches for one question as one."""

from __future__ import annotations

from collections.abc import Sequence

from memory_extproc.model import Found, Searched
from memory_extproc.recall.rank import Candidate


def union(searches: Sequence[Searched]) -> Searched:
    """What any of *searches* (at least one, all of one owner) found, best first, each memory by the search that
    it fits best. Whether the owner was held in process does not change between them: the first one's path."""
    best: dict[str, Found] = {}
    for searched in searches:
        for one in searched.found:
            known = best.get(one.memory.id)
            if known is None or one.cosine > known.cosine:
                best[one.memory.id] = one
    found = sorted(best.values(), key=lambda one: (-one.cosine, one.memory.id))
    return Searched(tuple(found), searches[0].total, searches[0].path)


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
