"""The read path over the in-memory store, the real partition and the canned embedder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from memory_extproc.errors import TransientError
from memory_extproc.model import (
    Caller,
    Candidates,
    Embedded,
    Exchanged,
    Matrix,
    Memory,
    MemoryType,
    Outcome,
    Owner,
    Scope,
    SearchQuery,
    Signals,
    Source,
    TurnOutcome,
    Vector,
    Verdict,
)
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import ComingVector
from memory_extproc.recall.prompt_block import smallest
from memory_extproc.recall.query import Rewrite, Rewriter
from memory_extproc.recall.recaller import Recaller
from memory_extproc.recall.rerank import Reranker
from memory_extproc.settings import Settings
from memory_extproc.settings.paths import Recall, Threads
from memory_extproc.store.loader import PartitionLimits
from memory_extproc.store.partition import Partitions
from memory_extproc.store.resident import ResidentRows
from memory_extproc.testing.adapters import InMemoryCoordination, InMemoryStore
from memory_extproc.testing.models import CannedCompletions, CannedEmbedder
from tests.support.builders import ANN, BOB, MONDAY, OTHER_ANN, a_memory, a_message, a_wish, later
from tests.support.canned import CannedReranker
from tests.support.recallers import a_recaller
from tests.support.sidecar import request_settings

BUDGET = "User's budget for the Hawaii trip is $10,000"


@dataclass
class Bench:
    """A recaller with everything behind it in reach."""

    store: InMemoryStore
    partitions: Partitions
    embedder: CannedEmbedder
    metrics: Metrics

    async def remember(self, *memories: Memory) -> None:
        for memory in memories:
            vector = (await self.embedder.embed([memory.content]))[0]
            await self.partitions.put(memory.owner, [Embedded(memory, vector)])

    def recaller(self, settings: Settings | None = None, **parts: Any) -> Recaller:
        return a_recaller(
            parts.pop("searcher", self.partitions),
            parts.pop("embedder", self.embedder),
            settings or request_settings(deadline=timedelta(seconds=5)),
            self.metrics,
            lambda: later(days=4),
            **parts,
        )

    def counted(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"memory_extproc_{name}", labels) or 0.0


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    metrics = Metrics(CollectorRegistry(), "test")
    embedder = CannedEmbedder()
    store = InMemoryStore(embedder.dimension, now=lambda: MONDAY)
    coordination = InMemoryCoordination(lambda: MONDAY)
    async with Partitions(store, coordination, PartitionLimits(), metrics, now=lambda: MONDAY) as partitions:
        yield Bench(store, partitions, embedder, metrics)


async def test_what_was_remembered_comes_back_in_a_block_and_is_counted(bench: Bench) -> None:
    await bench.remember(a_memory(BUDGET))
    recalled = await bench.recaller().recall(a_wish("What is my budget for the Hawaii trip?"))
    assert recalled.outcome is Outcome.USED
    assert BUDGET in recalled.block
    assert [one.memory.content for one in recalled.memories] == [BUDGET]
    assert recalled.path == "hybrid"
    assert recalled.took > timedelta()
    assert bench.counted("recall_seconds_count", stage="total") == 1
    assert bench.counted("recall_injected_sum") == 1
    assert bench.counted("recall_path_total", path="hybrid") == 1
    assert bench.counted("recalls_running") == 0


async def test_nobody_is_told_what_another_remembers_not_even_a_namesake_in_another_tenant(bench: Bench) -> None:
    await bench.remember(a_memory(BUDGET), a_memory("User likes tea", BOB))
    for stranger, outcome in ((BOB, Outcome.NOTHING_RELEVANT), (OTHER_ANN, Outcome.EMPTY)):
        recalled = await bench.recaller().recall(a_wish("What is my budget for the Hawaii trip?", stranger))
        assert recalled.outcome is outcome
        assert recalled.block == ""


async def test_a_caller_without_memories_is_told_apart_from_one_without_relevant_ones(bench: Bench) -> None:
    await bench.remember(a_memory("User likes hiking"))
    assert (await bench.recaller().recall(a_wish("what is my budget?"))).outcome is Outcome.NOTHING_RELEVANT
    assert (await bench.recaller().recall(a_wish("what is my budget?", BOB))).outcome is Outcome.EMPTY


async def test_force_overrides_the_gate(bench: Bench) -> None:
    await bench.remember(a_memory(BUDGET))
    wish = a_wish("the Hawaii trip budget", signals=Signals(tool=True))
    assert (await bench.recaller().recall(wish)).outcome is Outcome.SKIPPED_TOOL
    assert (await bench.recaller().recall(replace(wish, force=True))).outcome is Outcome.USED


async def test_type_and_project_narrow_what_is_found(bench: Bench) -> None:
    await bench.remember(a_memory(BUDGET, project="travel"))
    for scope, outcome in (
        (Scope(project="travel"), Outcome.USED),
        (Scope(project="work"), Outcome.NOTHING_RELEVANT),
        (Scope(types=frozenset({MemoryType.PROCEDURAL})), Outcome.NOTHING_RELEVANT),
    ):
        recalled = await bench.recaller().recall(a_wish("my budget for the Hawaii trip", scope=scope))
        assert recalled.outcome is outcome


@pytest.mark.parametrize("room", [0, smallest() - 1])
async def test_without_room_in_the_models_window_nothing_is_searched(bench: Bench, room: int) -> None:
    await bench.remember(a_memory(BUDGET))
    recalled = await bench.recaller().recall(a_wish("my budget for the Hawaii trip", room=room))
    assert recalled.outcome is Outcome.NO_ROOM
    assert recalled.path == ""


async def test_a_vague_question_is_found_by_what_was_said_before(bench: Bench) -> None:
    await bench.remember(a_memory(BUDGET))
    plain = await bench.recaller().recall(a_wish("How much?"))
    assert plain.outcome is Outcome.NOTHING_RELEVANT
    leaning = await bench.recaller().recall(a_wish("How much?", earlier=("Let's plan the Hawaii trip budget",)))
    assert leaning.outcome is Outcome.USED


async def test_a_search_that_does_not_come_back_is_out_of_time(bench: Bench) -> None:
    bench.store.weather.hold("nearest")
    bench.store.weather.hold("pages")
    recaller = bench.recaller(request_settings(deadline=timedelta(milliseconds=40)))
    recalled = await recaller.recall(a_wish("What is my budget?"))
    assert recalled.outcome is Outcome.OUT_OF_TIME
    assert recalled.block == ""


async def test_a_store_that_is_down_is_unavailable(bench: Bench) -> None:
    bench.store.weather.down = True
    assert (await bench.recaller().recall(a_wish("What is my budget?"))).outcome is Outcome.UNAVAILABLE


class BrokenEmbedder(CannedEmbedder):
    async def embed_query(self, text: str) -> Vector:
        raise TransientError("the model is away")

    async def embed(self, texts: Sequence[str]) -> Matrix:
        raise TransientError("the model is away")


async def test_while_the_embedding_model_fails_memories_are_found_by_their_words(bench: Bench) -> None:
    await bench.remember(a_memory(BUDGET), a_memory("User likes tea"))
    recalled = await bench.recaller(embedder=BrokenEmbedder()).recall(a_wish("What is my budget for Hawaii?"))
    assert (recalled.outcome, recalled.path) == (Outcome.USED, "lexical")
    assert [one.memory.content for one in recalled.memories] == [BUDGET]
    assert bench.counted("recall_path_total", path="lexical") == 1


class StuckEmbedder(CannedEmbedder):
    async def embed_query(self, text: str) -> Vector:
        await asyncio.Event().wait()
        return await super().embed_query(text)


async def test_an_embedding_that_is_late_leaves_time_to_search_by_words(bench: Bench) -> None:
    await bench.remember(a_memory(BUDGET))
    limits = request_settings(deadline=timedelta(milliseconds=1500))
    recalled = await bench.recaller(limits, embedder=StuckEmbedder()).recall(a_wish("My budget for Hawaii?"))
    assert (recalled.outcome, recalled.path) == (Outcome.USED, "lexical")
    assert recalled.took < limits.deadline


async def test_without_model_and_partition_nothing_is_found_and_nothing_fails(bench: Bench) -> None:
    bench.store.weather.down = True
    recalled = await bench.recaller(embedder=BrokenEmbedder()).recall(a_wish("What is my budget?"))
    assert recalled.outcome is Outcome.UNAVAILABLE


class Parked:
    """A search that has begun and does not return until it is let go."""

    def __init__(self) -> None:
        self.begun, self.let_go = asyncio.Event(), asyncio.Event()

    async def candidates(
        self,
        owner: Owner,
        sought: SearchQuery,
        limit: int,
        scope: Scope,
        vector: ComingVector | None = None,
    ) -> Candidates:
        self.begun.set()
        await self.let_go.wait()
        return ResidentRows().candidates(sought, limit, scope, MONDAY)


async def test_more_recalls_at_once_than_allowed_pass_untouched(bench: Bench) -> None:
    parked = Parked()
    recaller = bench.recaller(request_settings(deadline=timedelta(seconds=5), max_concurrent=1), searcher=parked)
    first = asyncio.create_task(recaller.recall(a_wish("What is my budget?")))
    await parked.begun.wait()
    assert bench.counted("recalls_running") == 1
    assert (await recaller.recall(a_wish("What is my budget?"))).outcome is Outcome.OVERLOADED
    parked.let_go.set()
    assert (await first).outcome is Outcome.EMPTY
    assert (await recaller.recall(a_wish("What is my budget?"))).outcome is Outcome.EMPTY


class SlowLearner:
    """Has a turn of Ann's that is journalled and can be found once *settled* returns."""

    def __init__(self, bench: Bench, *, ever: bool = True) -> None:
        self._bench, self._ever = bench, ever

    async def wait_visible(self, caller: Caller) -> None:
        if not self._ever:
            await asyncio.Event().wait()
        await self._bench.remember(a_memory(BUDGET, caller.owner))

    async def accept(self, exchanged: Exchanged) -> TurnOutcome:
        return TurnOutcome.JOURNALLED

    async def end_session(self, caller: Caller) -> None: ...


async def test_what_was_said_a_moment_ago_is_waited_for(bench: Bench) -> None:
    recalled = await bench.recaller(learner=SlowLearner(bench)).recall(a_wish("my budget for the Hawaii trip?"))
    assert recalled.outcome is Outcome.USED


async def test_a_turn_that_takes_too_long_to_settle_does_not_keep_the_rest_from_being_found(bench: Bench) -> None:
    await bench.remember(a_memory("User prefers window seats on the Hawaii flight"))
    limits = request_settings(deadline=timedelta(seconds=5), settle=timedelta(milliseconds=5))
    recalled = await bench.recaller(limits, learner=SlowLearner(bench, ever=False)).recall(
        a_wish("Which window seats on the Hawaii flight?")
    )
    assert recalled.outcome is Outcome.USED


async def test_a_model_that_rewrites_the_query_finds_what_the_words_alone_do_not(bench: Bench) -> None:
    await bench.remember(a_memory(BUDGET))
    model = CannedCompletions(["budget for the Hawaii trip"])
    rewriter = Rewriter(model, Rewrite.VAGUE, hyde=False)
    assert (await bench.recaller(rewriter=rewriter).recall(a_wish("And that?"))).outcome is Outcome.USED


async def test_a_supposed_answer_is_searched_beside_the_question(bench: Bench) -> None:
    await bench.remember(a_memory(BUDGET))
    model = CannedCompletions(lambda _system, _user: "User's budget for the Hawaii trip is $5,000")
    rewriter = Rewriter(model, Rewrite.OFF, hyde=True)
    recalled = await bench.recaller(rewriter=rewriter).recall(a_wish("How much may we spend on the islands?"))
    assert recalled.outcome is Outcome.USED


async def test_a_model_that_fails_leaves_the_plain_query(bench: Bench) -> None:
    await bench.remember(a_memory(BUDGET))
    model = CannedCompletions([TransientError("down"), TransientError("down")])
    rewriter = Rewriter(model, Rewrite.ALWAYS, hyde=True)
    recalled = await bench.recaller(rewriter=rewriter).recall(a_wish("my budget for the Hawaii trip?"))
    assert recalled.outcome is Outcome.USED


async def test_two_rewrites_and_the_words_themselves_each_find_their_own(bench: Bench) -> None:
    flight, seat = "User flies to Maui on May 3", "User prefers window seats"
    await bench.remember(a_memory(BUDGET), a_memory(flight), a_memory(seat), a_memory("User likes tea"))
    model = CannedCompletions([f"{BUDGET}\n{flight}"])
    recaller = bench.recaller(rewriter=Rewriter(model, Rewrite.ALWAYS, hyde=False))
    recalled = await recaller.recall(a_wish("prefers window seats"))
    assert {one.memory.content for one in recalled.memories} == {BUDGET, flight, seat}


async def test_a_question_for_two_things_finds_each_better_when_it_is_taken_apart(bench: Bench) -> None:
    cat = "User has a cat named Tom, five years of age"
    await bench.remember(a_memory(BUDGET), a_memory(cat))
    asked = a_wish("What is my budget for the Hawaii trip and how many years of age is my cat Tom?")
    limits = request_settings(deadline=timedelta(seconds=5), split_questions=True)
    whole, apart = [
        {one.memory.content: one.score for one in (await bench.recaller(each).explain(asked)).considered}
        for each in (None, limits)
    ]
    assert apart[BUDGET] > whole[BUDGET]
    assert apart[cat] > whole[cat]


def a_reranker(bench: Bench, reranks: CannedReranker) -> Reranker:
    return Reranker(reranks, lambda: Recall(rerank_weight=1.0), metrics=bench.metrics)


ALIKE = ["trip budget", "Hawaii trip", "Hawaii trip budget for May"]


async def test_a_reranker_decides_which_of_the_relevant_ones_fit_the_limit(bench: Bench) -> None:
    await bench.remember(*map(a_memory, ALIKE))
    wish = a_wish("my Hawaii trip budget", limit=1)
    canned = CannedReranker()
    recalled = await bench.recaller(reranker=a_reranker(bench, canned)).recall(wish)
    assert [one.memory.content for one in recalled.memories] == [ALIKE[2]]
    assert recalled.path == "rerank"
    assert bench.counted("recall_path_total", path="rerank") == 1
    assert canned.asked[0][0] == "my Hawaii trip budget"


async def test_a_reranker_that_fails_changes_nothing(bench: Bench) -> None:
    await bench.remember(*map(a_memory, ALIKE))
    wish = a_wish("my Hawaii trip budget")
    canned = CannedReranker()
    canned.failing = TransientError("busy")
    plain = await bench.recaller().recall(wish)
    recalled = await bench.recaller(reranker=a_reranker(bench, canned)).recall(wish)
    assert recalled.memories == plain.memories
    assert recalled.path == "hybrid"
    assert bench.counted("reranks_total", outcome="failed") == 1


async def test_where_nothing_is_relevant_nobody_reranks(bench: Bench) -> None:
    await bench.remember(*map(a_memory, ALIKE))
    canned = CannedReranker()
    recalled = await bench.recaller(reranker=a_reranker(bench, canned)).recall(a_wish("Do I like green tea?"))
    assert recalled.outcome is Outcome.NOTHING_RELEVANT
    assert canned.asked == []


async def test_an_explanation_shows_the_rerankers_opinion_beside_what_the_fusion_gave(bench: Bench) -> None:
    await bench.remember(*map(a_memory, ALIKE))
    recaller = bench.recaller(reranker=a_reranker(bench, CannedReranker()))
    explained = await recaller.explain(a_wish("my Hawaii trip budget", limit=2))
    assert explained.path == "rerank"
    assert [one.features["rerank"] for one in explained.considered] == sorted(
        (one.features["rerank"] for one in explained.considered), reverse=True
    )
    assert [one.verdict for one in explained.considered][:2] == [
        Verdict.INJECTED,
        Verdict.INJECTED,
    ]


async def test_variety_leaves_out_what_says_the_same_in_other_words(bench: Bench) -> None:
    await bench.remember(
        *map(a_memory, ["Hawaii trip budget", "the big budget of the Hawaii trip", "the Hawaii trip is in May"])
    )
    wish = a_wish("Hawaii trip budget", limit=2, threshold=0.5)
    limits = request_settings(deadline=timedelta(seconds=5), mmr_lambda=0.3)
    contents = [{one.memory.content for one in (await bench.recaller(each).recall(wish)).memories}
                for each in (None, limits)]  # fmt: skip
    assert "the Hawaii trip is in May" not in contents[0]
    assert "the Hawaii trip is in May" in contents[1]


class SilentModel:
    async def complete(self, system: str, user: str, *, schema: object = None) -> str:
        await asyncio.Event().wait()
        return ""


async def test_a_model_that_is_slow_leaves_time_for_the_plain_query(bench: Bench) -> None:
    await bench.remember(a_memory(BUDGET))
    limits = request_settings(deadline=timedelta(milliseconds=1500))
    rewriter = Rewriter(SilentModel(), Rewrite.ALWAYS, hyde=True)
    recalled = await bench.recaller(limits, rewriter=rewriter).recall(a_wish("my budget for the Hawaii trip?"))
    assert recalled.outcome is Outcome.USED


@pytest.mark.parametrize(
    "asked",
    [
        "x" * 100_000,
        "的 " * 50_000,
        "🏝️" * 30_000,
        "the of and",
        "\ud800 broken",
        "\x00\x01 what?",
        " ".join("?" * 99),
    ],
    ids=["long", "ideographs", "emoji", "stop words", "lone surrogate", "control characters", "punctuation"],
)
async def test_any_words_at_all_have_an_outcome(bench: Bench, asked: str) -> None:
    await bench.remember(a_memory(BUDGET))
    recalled = await bench.recaller().recall(a_wish(asked))
    assert recalled.outcome in {Outcome.NOTHING_RELEVANT, Outcome.USED}


async def test_the_threshold_can_stand_on_the_cosine(bench: Bench) -> None:
    await bench.remember(a_memory(BUDGET))
    limits = request_settings(deadline=timedelta(seconds=5), threshold_on="cosine")
    wish = a_wish("Which budget did I tell you about lately?", threshold=0.99)
    assert (await bench.recaller(limits).recall(wish)).outcome is Outcome.NOTHING_RELEVANT


def test_owners_with_the_same_name_in_other_tenants_differ() -> None:
    assert len({ANN.key, BOB.key, OTHER_ANN.key, Owner("ac", "meann").key, Owner("", "ann").key}) == 5


async def test_an_explanation_shows_every_candidate_with_its_features_and_why_it_was_in_or_out(
    bench: Bench,
) -> None:
    await bench.remember(a_memory(BUDGET), a_memory("User prefers window seats"), a_memory("seen words"))
    wish = a_wish("budget for the Hawaii trip", in_view=frozenset({"seen words"}))
    explanation = await bench.recaller().explain(wish)
    recalled = await bench.recaller().recall(wish)
    verdicts = {one.memory.content: one.verdict for one in explanation.considered}
    assert verdicts[BUDGET] is Verdict.INJECTED
    assert verdicts["User prefers window seats"] is Verdict.BELOW_THRESHOLD
    assert (explanation.outcome, explanation.block) == (Outcome.USED, recalled.block)
    assert explanation.query == "budget for the Hawaii trip"
    assert all("dense" in one.features and 0 <= one.relevance <= 1 for one in explanation.considered)


async def test_an_explanation_of_a_request_that_needs_no_search_names_the_gate(bench: Bench) -> None:
    explanation = await bench.recaller().explain(a_wish("hello!"))
    assert explanation.gate is explanation.outcome is Outcome.SKIPPED_GREETING
    assert explanation.considered == ()


async def test_an_explanation_tells_what_had_no_room_in_the_block(bench: Bench) -> None:
    await bench.remember(a_memory(BUDGET), a_memory("User's trip " + "went on and on " * 40))
    explanation = await bench.recaller().explain(a_wish("budget Hawaii trip", threshold=0.0, room=smallest()))
    assert [one.verdict for one in explanation.considered] == [Verdict.INJECTED, Verdict.NO_ROOM]


PLAN = a_message("Last week of June, then.", session="s", seq=0)
HAWAII = a_memory(
    "Hawaii trip: the user plans the Hawaii trip.", source=Source.SUMMARY, metadata={"sources": [PLAN.id]}
)
ABOUT = "What did we plan for the Hawaii trip?"


async def test_a_summary_is_told_with_its_words_but_not_while_the_model_sees_what_it_sums_up(bench: Bench) -> None:
    others = (a_memory(f"Sourdough loaf {n} rose well") for n in range(12))
    await bench.remember(HAWAII, PLAN, *others)
    settings = Settings(recall=Recall(threads=Threads(min_relevance=0.0)))
    recaller = bench.recaller(reads=bench.partitions, settings=settings)
    anew = await recaller.recall(a_wish(ABOUT, threshold=0.6))
    assert [one.memory.content for one in anew.memories] == [HAWAII.content, PLAN.content]
    explained = await recaller.explain(a_wish(ABOUT, threshold=0.6))
    verdicts = {one.memory.content: one.verdict for one in explained.considered}
    assert (verdicts[HAWAII.content], verdicts[PLAN.content]) == (
        Verdict.INJECTED,
        Verdict.THREAD,
    )
    assert explained.block == anew.block
    wish = a_wish(ABOUT, threshold=0.6, in_view=frozenset({ABOUT, PLAN.content}))
    seen = await recaller.recall(wish)
    assert (seen.outcome, seen.in_view) == (Outcome.NOTHING_RELEVANT, frozenset({HAWAII.id}))


async def test_a_former_value_stays_out_of_the_messages_of_a_topic_beside_the_newest(bench: Bench) -> None:
    due = a_message("The deadline for Quartz is June 30.", session="s", seq=0)
    topic = a_memory(
        "Quartz: the deadline for Quartz and its venue.", source=Source.SUMMARY, metadata={"sources": [due.id]}
    )
    pushed = a_message("They pushed Quartz back, due October 20 now.", session="t", seq=0, created_at=later(days=9))
    others = (a_memory(f"Sourdough loaf {n} rose well") for n in range(12))
    await bench.remember(topic, due, pushed, *others)
    settings = Settings(recall=Recall(threads=Threads(min_relevance=0.0)))
    found = await bench.recaller(reads=bench.partitions, settings=settings).recall(
        a_wish("Quartz deadline venue", threshold=0.0, limit=2)
    )
    assert [one.memory.content for one in found.memories] == [topic.content, pushed.content]
