"""What a person took back a moment later, beside what they had said: "My budget is $10,000", "no, I meant 12,000".

A correction often shares no word with the question, so by itself it would not be found; and without it what it
corrects would be given as if it still held. Facts are replaced when they are extracted; until then, and where they
never are, this is done with the messages themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from memory_extproc.language.corrections import may_correct
from memory_extproc.recall.correcting import is_correction, said_by_caller, when
from memory_extproc.recall.rank import Candidate

_LOOKED_AT = 10  # of those that pass, the best; behind them nothing is injected


def with_corrections(ordered: Sequence[Candidate], threshold: float) -> Sequence[Candidate]:
    """*ordered*, best first, with each message that corrects a relevant one just ahead of it and as relevant."""
    passing = [one for one in ordered if one.relevance >= threshold][:_LOOKED_AT]
    if not passing:
        return ordered
    later = [one for one in ordered if said_by_caller(one.memory) and may_correct(one.memory.content)]
    if not later:
        return ordered
    ahead = {one.memory.id: _chain(one, later) for one in passing}
    placed: set[str] = set()
    found: list[Candidate] = []
    for one in ordered:
        for new in ahead.get(one.memory.id, ()) if one.memory.id not in placed else ():
            if new.memory.id not in placed:
                placed.add(new.memory.id)
                best = max(new.score, one.score), max(new.relevance, one.relevance)
                found.append(msgspec.structs.replace(new, score=best[0], relevance=best[1]))
        if one.memory.id not in placed:
            placed.add(one.memory.id)
            found.append(one)
    return found


def _chain(corrected: Candidate, later: Sequence[Candidate]) -> Sequence[Candidate]:
    """The last word on what *corrected* says, then what that corrected in turn, back to it."""
    found: list[Candidate] = []
    last = corrected
    while (newest := _newest(last, later)) is not None:  # ends, for each is later than the one before
        found.append(newest)
        last = newest
    return found[::-1]


def _newest(corrected: Candidate, later: Sequence[Candidate]) -> Candidate | None:
    """The last word on what *corrected* says."""
    found = [one for one in later if is_correction(one.memory, corrected.memory)]
    return max(found, key=lambda one: when(one.memory), default=None)
