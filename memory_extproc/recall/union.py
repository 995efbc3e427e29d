"""Several searches for one question as one."""

from __future__ import annotations

from collections.abc import Sequence

from memory_extproc.model import Found, Searched


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
