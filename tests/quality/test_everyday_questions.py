"""Everyday questions to a few memories, with the real model at the default threshold: what helps is injected, and
where nothing helps nothing is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from memory_extproc.inference.batching import BatchingEmbedder
from memory_extproc.inference.onnx import open_onnx_embedder
from memory_extproc.model import Embedded, Memory, Role, Scope, SearchQuery
from memory_extproc.recall.fusion import Fusion, packaged_weights
from memory_extproc.recall.rank import choose_ranked, weigh
from memory_extproc.settings.memory import Embedding
from memory_extproc.store.resident import ResidentRows
from tests.support.builders import MONDAY, a_memory, a_message, later

BUDGET = a_memory("User's budget for Hawaii is $10,000")
SEAT = a_memory("User prefers window seats")
HIKING = a_memory("User likes hiking")
CAT = a_memory("User has a cat named Bella")
WORK = a_memory("User works with machine learning models at Google")
PEANUTS = a_memory("User is allergic to peanuts")
HOME = a_memory("User lives in Berlin")
DEPLOY = a_memory("To deploy payment-service: run make release")
SOME = (CAT, WORK, PEANUTS, HOME, DEPLOY)
TALK = (
    a_message("My budget for the Hawaii trip is $10,000.", session="s", seq=0),
    a_message("That gives you many options for Hawaii.", role=Role.ASSISTANT, session="s", seq=1),
    a_message("I also like hiking.", session="s", seq=2),
)


@pytest.fixture
async def embedder(int8_model_dir: Path) -> AsyncIterator[BatchingEmbedder]:
    async with open_onnx_embedder(int8_model_dir, Embedding()) as opened:
        yield opened


async def injected(
    embedder: BatchingEmbedder, memories: Sequence[Memory], question: str, *, words_alone: bool = False
) -> list[Memory]:
    held = ResidentRows()
    for memory, vector in zip(memories, await embedder.embed([one.content for one in memories]), strict=True):
        held.put(Embedded(memory, vector))
    sought = SearchQuery(question, None if words_alone else await embedder.embed_query(question))
    found = held.candidates(sought, 200, Scope(), MONDAY)
    fused = Fusion(packaged_weights(), embedder.fingerprint).fuse(found, np.zeros(len(found.memories)))
    ranked = choose_ranked(weigh(fused.candidates, now=later(days=1), threshold=0.6, limit=5))
    return [one.memory for one in ranked]


@pytest.mark.parametrize(
    ("memories", "question", "best"),
    [
        ((BUDGET,), "What's my budget?", BUDGET),
        ((BUDGET,), "What is my budget for the Hawaii trip?", BUDGET),
        ((BUDGET,), "How much can I spend on the trip?", BUDGET),
        ((BUDGET, SEAT, HIKING), "What's my budget?", BUDGET),
        ((BUDGET, SEAT, HIKING), "Which seat do I like?", SEAT),
        (TALK, "What's my budget?", TALK[0]),
        (SOME, "What is my cat's name?", CAT),
        (SOME, "Where do I work?", WORK),
        (SOME, "what can't I eat?", PEANUTS),
        (SOME, "Where do I live?", HOME),
        (SOME, "How do I deploy payment-service?", DEPLOY),
    ],
)
async def test_what_answers_an_everyday_question_is_injected_first(
    embedder: BatchingEmbedder, memories: Sequence[Memory], question: str, best: Memory
) -> None:
    found = await injected(embedder, memories, question)
    assert found[:1] == [best]
    assert len(found) <= 2


@pytest.mark.parametrize(
    ("memories", "question"),
    [
        ((BUDGET,), "What is my cat's name?"),
        ((BUDGET,), "What is the capital of France?"),
        ((BUDGET,), "Write a poem about the sea"),
        ((BUDGET, SEAT, HIKING), "What is my dog called?"),
        (TALK, "What is my cat's name?"),
        (SOME, "What's my budget?"),
        (SOME, "When is my birthday?"),
        (SOME, "Plan a trip to Rome"),
        (SOME, ""),
        (SOME, "\U0001f600"),
        (SOME, "the of and"),
    ],
)
@pytest.mark.parametrize("words_alone", [False, True])
async def test_where_nothing_helps_nothing_is_injected(
    embedder: BatchingEmbedder, memories: Sequence[Memory], question: str, words_alone: bool
) -> None:
    assert await injected(embedder, memories, question, words_alone=words_alone) == []


@pytest.mark.parametrize(
    ("question", "best"),
    [("What is my cat's name?", CAT), ("Where do I live?", HOME), ("How do I deploy payment-service?", DEPLOY)],
)
async def test_while_the_model_is_down_the_plain_words_are_found(
    embedder: BatchingEmbedder, question: str, best: Memory
) -> None:
    assert (await injected(embedder, SOME, question, words_alone=True))[:1] == [best]


@pytest.mark.parametrize(
    "question",
    ["budget " * 14_000, "預算" * 30_000, "\U0001f600" * 50_000, "Б" * 100_000, "?" * 100_000, "a b " * 25_000],
    ids=["words", "ideographs", "emoji", "one word", "marks", "short words"],
)
async def test_a_question_of_a_hundred_thousand_characters_is_answered_like_any_other(
    embedder: BatchingEmbedder, question: str
) -> None:
    assert CAT not in await injected(embedder, (BUDGET, CAT), question)
