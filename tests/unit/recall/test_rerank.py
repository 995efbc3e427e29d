"""A reranker has a word in the order of the best, when there is time for it, and does no harm when it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from memory_extproc.errors import PermanentError, TransientError
from memory_extproc.model import Candidate
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import RerankModel
from memory_extproc.recall.rerank import ExpectedCost, Reranker, RerankOutcome, blend_order
from memory_extproc.settings.paths import Recall
from tests.support.builders import a_memory
from tests.support.canned import CannedReranker

PLENTY = timedelta(seconds=30)
TEXTS = ["the weather was fine", "my budget for Hawaii is $10,000", "we went to the beach"]
QUERY = "budget for Hawaii"


class Watch:
    """A clock that stands still unless it is moved on."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class SlowReranker(CannedReranker):
    """Takes *takes* seconds on the watch."""

    def __init__(self, watch: Watch, takes: float) -> None:
        super().__init__()
        self.watch, self.takes = watch, takes

    async def rerank(self, query: str, texts: Sequence[str]) -> Sequence[float]:
        self.watch.seconds += self.takes
        return await super().rerank(query, texts)


class RerankerByText(CannedReranker):
    """Takes *takes* seconds on the watch for each text."""

    def __init__(self, watch: Watch, takes: float) -> None:
        super().__init__()
        self.watch, self.takes = watch, takes

    async def rerank(self, query: str, texts: Sequence[str]) -> Sequence[float]:
        self.watch.seconds += self.takes * len(texts)
        return await super().rerank(query, texts)


class SilentReranker:
    async def rerank(self, query: str, texts: Sequence[str]) -> Sequence[float]:
        await asyncio.Event().wait()
        return ()


CROSS_ENCODER = Recall(rerank="cross_encoder")


def a_reranker(
    reranks: RerankModel, section: Recall | None = None, watch: Watch | None = None, **times: Any
) -> tuple[Reranker, Metrics]:
    metrics = Metrics(CollectorRegistry(), "test")
    reranker = Reranker(reranks, lambda: section or Recall(), metrics=metrics, clock=watch or Watch(), **times)
    return reranker, metrics


def candidates(texts: Sequence[str] = TEXTS) -> list[Candidate]:
    return [
        Candidate(a_memory(text, id=f"memory {at}"), 9.0 - at, 1.0 / (at + 1), {"dense": 0.5})
        for at, text in enumerate(texts)
    ]


async def order(reranker: Reranker, left: timedelta, texts: Sequence[str] = TEXTS) -> tuple[int, ...] | None:
    """The places that the candidates had, in their new order."""
    given = [one.memory for one in candidates(texts)]
    found = await reranker.rerank(QUERY, candidates(texts), left)
    return None if found is None else tuple(given.index(one.memory) for one in found)


def counted(metrics: Metrics, outcome: RerankOutcome) -> float:
    return metrics.registry.get_sample_value("memory_extproc_reranks_total", {"outcome": outcome.value}) or 0.0


async def test_what_the_reranker_prefers_moves_up_and_is_counted() -> None:
    reranker, metrics = a_reranker(CannedReranker())
    assert await order(reranker, PLENTY) == (1, 0, 2)
    assert counted(metrics, RerankOutcome.USED) == 1
    assert metrics.registry.get_sample_value("memory_extproc_recall_seconds_count", {"stage": "rerank"}) == 1


async def test_only_the_first_are_shown_and_the_others_keep_their_places() -> None:
    canned = CannedReranker()
    reranker, _ = a_reranker(canned, Recall(rerank_candidates=2))
    assert await order(reranker, PLENTY, [TEXTS[0], *TEXTS]) == (0, 1, 2, 3)
    assert canned.asked == [(QUERY, (TEXTS[0], TEXTS[0]))]


@pytest.mark.parametrize("texts", [[], TEXTS[:1]], ids=["none", "one"])
async def test_what_has_no_order_is_not_reranked(texts: list[str]) -> None:
    canned = CannedReranker()
    reranker, metrics = a_reranker(canned)
    assert await order(reranker, PLENTY, texts) is None
    assert canned.asked == []
    assert counted(metrics, RerankOutcome.TOO_FEW) == 1


@pytest.mark.parametrize("error", [TransientError("busy"), PermanentError("refused")])
async def test_a_reranker_that_fails_leaves_the_fused_order(error: Exception) -> None:
    canned = CannedReranker()
    canned.failing = error
    reranker, metrics = a_reranker(canned)
    assert await order(reranker, PLENTY) is None
    assert counted(metrics, RerankOutcome.FAILED) == 1


async def test_a_reranker_that_is_late_leaves_the_fused_order() -> None:
    reranker, metrics = a_reranker(SilentReranker())
    assert await order(reranker, timedelta(milliseconds=20)) is None
    assert counted(metrics, RerankOutcome.LATE) == 1


async def test_a_recall_that_is_cancelled_is_not_taken_for_a_late_reranker() -> None:
    reranker, metrics = a_reranker(SilentReranker())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await order(reranker, PLENTY)
    assert counted(metrics, RerankOutcome.LATE) == 0


@pytest.mark.parametrize("left", [timedelta(), timedelta(seconds=-1), timedelta(milliseconds=5)])
async def test_without_time_it_is_not_tried(left: timedelta) -> None:
    canned = CannedReranker()
    reranker, metrics = a_reranker(canned)
    assert await order(reranker, left) is None
    assert canned.asked == []
    assert counted(metrics, RerankOutcome.NO_TIME) == 1


async def test_what_took_long_before_is_not_tried_when_less_time_is_left() -> None:
    watch = Watch()
    slow = SlowReranker(watch, takes=0.2)
    reranker, metrics = a_reranker(slow, watch=watch)
    await order(reranker, PLENTY)
    assert await order(reranker, timedelta(milliseconds=100)) is None
    assert len(slow.asked) == 1
    assert counted(metrics, RerankOutcome.NO_TIME) == 1
    assert await order(reranker, timedelta(seconds=1)) is not None


async def test_where_the_time_is_short_as_many_are_reranked_as_it_allows_and_the_others_keep_their_places() -> None:
    watch = Watch()
    canned = RerankerByText(watch, takes=0.01)
    reranker, metrics = a_reranker(canned, CROSS_ENCODER, watch, share=1.0, reserve=timedelta())
    texts = [f"{QUERY} {at}" if at == 4 else f"text {at}" for at in range(20)]
    await order(reranker, PLENTY, texts)
    for _ in range(40):  # until the estimate is sure of itself
        await order(reranker, PLENTY, texts)
    found = await order(reranker, timedelta(milliseconds=101), texts)
    assert len(canned.asked[-1][1]) == 10
    assert found is not None
    assert found[0] == 4
    assert found[10:] == tuple(range(10, 20))
    assert counted(metrics, RerankOutcome.FEWER) == 1


async def test_too_few_to_matter_are_not_reranked_at_all() -> None:
    watch = Watch()
    canned = RerankerByText(watch, takes=0.01)
    reranker, metrics = a_reranker(canned, CROSS_ENCODER, watch, share=1.0, reserve=timedelta())
    texts = [f"text {at}" for at in range(20)]
    for _ in range(40):
        await order(reranker, PLENTY, texts)
    assert await order(reranker, timedelta(milliseconds=45), texts) is None
    assert counted(metrics, RerankOutcome.NO_TIME) == 1
    assert await order(reranker, timedelta(milliseconds=45), texts[:3]) is not None


async def test_what_was_slow_once_is_tried_again_after_a_while() -> None:
    watch = Watch()
    slow = SlowReranker(watch, takes=5.0)
    reranker, _ = a_reranker(slow, watch=watch)
    await order(reranker, PLENTY)
    slow.takes = 0.01
    orders = [await order(reranker, timedelta(milliseconds=100)) for _ in range(250)]
    assert orders[0] is None
    assert orders[-1] == (1, 0, 2)


async def test_a_failure_says_nothing_of_how_long_a_success_takes() -> None:
    watch = Watch()
    slow = SlowReranker(watch, takes=0.2)
    reranker, metrics = a_reranker(slow, watch=watch)
    await order(reranker, PLENTY)
    slow.failing, slow.takes = TransientError("refused"), 0.0
    for _ in range(50):
        await order(reranker, PLENTY)
    assert await order(reranker, timedelta(milliseconds=100)) is None
    assert counted(metrics, RerankOutcome.NO_TIME) == 1


# --- the blend --------------------------------------------------------------------------------------
@given(st.lists(st.tuples(st.floats(-10, 10), st.floats(0, 1)), max_size=30), st.floats(0, 1))
def test_every_candidate_keeps_exactly_one_place(pairs: list[tuple[float, float]], weight: float) -> None:
    scores, opinions = [score for score, _ in pairs], [opinion for _, opinion in pairs]
    assert sorted(blend_order(scores, opinions, weight)) == list(range(len(pairs)))


@given(st.lists(st.floats(-10, 10), max_size=30).map(lambda found: sorted(found, reverse=True)))
def test_a_reranker_without_weight_or_without_an_opinion_changes_nothing(scores: list[float]) -> None:
    backwards = [at / max(1, len(scores)) for at in range(len(scores))]
    assert list(blend_order(scores, backwards, 0.0)) == list(range(len(scores)))
    assert list(blend_order(scores, [0.5] * len(scores), 0.6)) == list(range(len(scores)))


def test_with_all_the_weight_the_reranker_alone_decides() -> None:
    assert blend_order([3.0, 2.0, 1.0], [0.0, 0.5, 1.0], 1.0) == (2, 1, 0)


def test_a_clear_favourite_of_the_fusion_stays_above_a_faint_preference() -> None:
    assert blend_order([9.0, 1.0, 0.9], [0.8, 1.0, 0.0], 0.6) == (0, 1, 2)


async def test_as_many_as_before_stand_above_any_threshold_and_the_reranker_says_which() -> None:
    reranker, _ = a_reranker(CannedReranker())
    given = candidates()
    found = await reranker.rerank(QUERY, given, PLENTY)
    assert found is not None
    assert [one.relevance for one in found] == [one.relevance for one in given]
    assert found[0].memory == given[1].memory
    assert found[0].score == given[1].score
    assert found[0].features == {"dense": 0.5, "rerank": 1.0}


# --- the estimate -----------------------------------------------------------------------------------
def test_nothing_is_expected_of_what_was_never_tried() -> None:
    cost = ExpectedCost()
    cost.kept_away()
    assert cost.seconds == 0.0


def test_a_steady_cost_is_expected_closely_and_an_unsteady_one_with_room() -> None:
    steady, unsteady = ExpectedCost(), ExpectedCost()
    for at in range(100):
        steady.note(0.1)
        unsteady.note(0.05 if at % 2 else 0.15)
    assert steady.seconds == pytest.approx(0.1, rel=0.01)
    assert unsteady.seconds > 0.2
