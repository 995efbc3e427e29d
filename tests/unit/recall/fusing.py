"""Candidates by their features, and weights for them."""

from __future__ import annotations

import numpy as np

from memory_extproc.index.features import FEATURES, LEXICAL
from memory_extproc.model import Candidates, Memory
from memory_extproc.recall.fusion import Feature, Ranker, Relevance, Weights, Worth
from tests.support.builders import a_memory, later

MODEL = "some-model/int8/1"
A, B, C = a_memory("a"), a_memory("b", updated_at=later(days=1)), a_memory("c")


def a_ranker(worth: float = 0.0, **weights: float) -> Ranker:
    features = {name: Feature(weight, usual=0.0, usual_spread=1.0) for name, weight in weights.items()}
    return Ranker(features, Worth(worth, {}), Relevance(1.0, -1.0, {}))


def some_weights(hybrid: Ranker | None = None, lexical: Ranker | None = None) -> Weights:
    return Weights(1, (MODEL,), "nothing", hybrid or a_ranker(dense=1.0, bm25=1.0), lexical or a_ranker(bm25=1.0))


def some_candidates(
    memories: tuple[Memory, ...] = (A, B, C), searched: int = 1000, *, vectors: bool = True, **columns: list[float]
) -> Candidates:
    names = FEATURES if vectors else LEXICAL
    features = np.zeros((len(memories), len(names)))
    for name, values in columns.items():
        features[:, names.index(name)] = values
    return Candidates(
        memories, names, features, np.zeros(len(names)), np.ones(len(names)), searched, searched, "hybrid"
    )
