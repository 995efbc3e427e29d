"""Variety among what is chosen, for who wants it.

Carbonell and Goldstein 1998, "The Use of MMR, Diversity-Based Reranking for Reordering Documents and Producing
Summaries". Likeness is that of words, which tells a repetition from a second piece of evidence better than
vectors do: with vectors λ 0.7 is known to cost more than half of the questions whose evidence is several messages.
Off by default, for it gives next to nothing: measured on half of LoCoMo over the cosine and BM25 added up, evidence
recall among the first five goes from 0.551 to 0.557 at λ 0.7 and 0.5, and to 0.529 at 0.3.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from memory_extproc.language.words import stems
from memory_extproc.model import Matrix
from memory_extproc.recall.rank import Candidate


def varied(
    candidates: Sequence[Candidate], balance: float, limit: int, threshold: float, *, on_cosine: bool
) -> list[Candidate]:
    """*candidates* (best first) with those ahead that MMR chooses, at most *limit* of those that stand at or
    above *threshold*; all others follow in their order."""
    able = [at for at, one in enumerate(candidates) if one.standing(on_cosine=on_cosine) >= threshold]
    texts = [candidates[at].memory.content for at in able]
    relevances = [candidates[at].relevance for at in able]
    ahead = [able[place] for place in mmr(relevances, alike_in_words(texts), balance, limit)]
    return [candidates[at] for at in dict.fromkeys([*ahead, *range(len(candidates))])]


def mmr(relevances: Sequence[float], alike: Matrix, balance: float, limit: int) -> tuple[int, ...]:
    """At most *limit* places, each next one that with the highest ``balance * relevance - (1 - balance) *
    alike``, its likeness being that to the nearest one chosen before.

    *relevances* in [0, 1]; *alike* in [0, 1], a row and a column for each; *balance* (λ) in [0, 1]: at 1 the
    relevance alone decides. Equal ones: the earlier place. Costs limit · n.
    """
    wanted = np.asarray(relevances, dtype=np.float64)
    nearest = np.zeros(len(wanted))
    free = np.ones(len(wanted), dtype=bool)
    chosen: list[int] = []
    while len(chosen) < min(limit, len(wanted)):
        worth = np.where(free, balance * wanted - (1.0 - balance) * nearest, -np.inf)
        at = int(worth.argmax())
        chosen.append(at)
        free[at] = False
        nearest = np.maximum(nearest, alike[at])
    return tuple(chosen)


def alike_in_words(texts: Sequence[str]) -> Matrix:
    """How alike *texts* are, in [0, 1], a row and a column for each: the cosine of their sets of stems. Texts
    without a content word are like nothing but themselves."""
    sets = [stems(text) for text in texts]
    places = {word: at for at, word in enumerate(sorted(set().union(*sets)))}
    held: Matrix = np.zeros((len(texts), max(1, len(places))), dtype=np.float32)
    for row, words in zip(held, sets, strict=True):
        row[[places[word] for word in words]] = 1.0
    lengths = np.sqrt(held.sum(axis=1, keepdims=True))
    unit = held / np.maximum(lengths, 1.0)
    alike: Matrix = np.clip(unit @ unit.T, 0.0, 1.0)
    np.fill_diagonal(alike, 1.0)
    return alike
