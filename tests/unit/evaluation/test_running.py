"""The evaluation measures the product: learned by its write path, answered by its read path."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from memory_extproc.errors import PermanentError
from memory_extproc.evaluation.datasets import Dataset, read_dataset
from memory_extproc.evaluation.metrics import THRESHOLDS, compare_runs, figures
from memory_extproc.evaluation.runner import NOT_HELD, Bench, Bounds, Played, System, exchanges, run
from memory_extproc.learn.extract.rules import RulesExtractor
from memory_extproc.model import MemoryState, MemoryType, Owner, Role, Source
from tests.unit.evaluation.benches import a_bench
from tests.unit.evaluation.sets import a_note, a_query, a_sample, write_json, write_lines


@asynccontextmanager
async def learned(dataset: Dataset, bench: Bench) -> AsyncIterator[Sequence[Played]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(bench.play(one, bench.partition)) for one in dataset.conversations]


@pytest.fixture
def locomo(tmp_path: Path) -> Dataset:
    return read_dataset(write_json(tmp_path / "set.json", [a_sample("one"), a_sample("two")]))


def lines(tmp_path: Path, *said: Any) -> Dataset:
    return read_dataset(write_lines(tmp_path / "set.jsonl", *said))


def test_messages_become_exchanges_with_their_places(locomo: Dataset) -> None:
    made = list(exchanges(locomo.conversations[0], Owner("t", "u")))
    assert [(bool(one.exchanged.asked), bool(one.exchanged.answered)) for one in made] == [
        (True, True),  # D1:1 and the answer D1:2
        (True, False),  # D1:3, which nobody answered in this session
        (False, True),  # D2:1: the second speaker began
        (True, True),
    ]
    assert [one.places for one in made] == [
        {("session_1", 0): ("D1:1",), ("session_1", 1): ("D1:2",)},
        {("session_1", 2): ("D1:3",)},
        {("session_2", 1): ("D2:1",)},
        {("session_2", 2): ("D2:2",), ("session_2", 3): ("D2:3",)},
    ]
    assert len(made[1].exchanged.history) == 2
    assert not made[2].exchanged.history


async def test_every_message_is_learned_by_the_write_path_and_traced_to_its_turn(locomo: Dataset) -> None:
    async with learned(locomo, a_bench()) as (there, _):
        traced = {there.covers(memory): memory for memory in there.memories}
        assert set(traced) == {(one.id,) for one in locomo.conversations[0].said}
        cat = traced[("D1:1",)]
        assert (cat.role, cat.source, cat.type) == (Role.USER, Source.VERBATIM, MemoryType.EPISODIC)
        assert cat.created_at == locomo.conversations[0].said[0].at
        assert traced[("D2:1",)].role is Role.ASSISTANT


async def test_a_fact_counts_for_the_message_it_was_taken_from(tmp_path: Path) -> None:
    dataset = lines(
        tmp_path,
        a_note("m1", "My dog is called Rex.", session="s", role="user"),
        a_query("What is my dog called?", "m1"),
    )
    async with learned(dataset, a_bench(RulesExtractor())) as (there,):
        assert {memory.type for memory in there.memories} == {MemoryType.EPISODIC, MemoryType.SEMANTIC}
        assert {there.covers(memory) for memory in there.memories} == {("m1",)}


async def test_a_note_replaced_is_kept_and_never_found(tmp_path: Path) -> None:
    dataset = lines(
        tmp_path,
        a_note("old", "User keeps bees"),
        a_note("new", "User keeps goats", replaces="old"),
        a_query("User keeps bees", "new"),
    )
    async with learned(dataset, a_bench()) as (there,):
        states = {there.covers(memory): memory.state for memory in there.memories}
        assert states == {("old",): MemoryState.SUPERSEDED, ("new",): MemoryState.ACTIVE}
    (asked,) = (await run(dataset, System.HYBRID, a_bench(), Bounds(0.0, 5))).asked
    assert [asked.played.covers(memory) for memory in asked.answer.injected] == [("new",)]


async def test_the_figures_say_recall_at_the_top_and_the_rest_below(locomo: Dataset) -> None:
    found = figures(await run(locomo, System.DENSE, a_bench(), Bounds()))
    assert list(found)[:3] == ["recall@5", "recall@10", "recall@20"]
    assert found["questions"] == 4  # the adversarial ones are not among them
    assert found["recall@10"] == 1.0  # of six messages ten are all
    assert set(found["by_category"]) == {"single-hop", "temporal", "adversarial"}
    assert found["learned"] == {
        "conversations": 2,
        "messages": 12,
        "notes": 0,
        "memories": 12,
        "evidence": 4,
        "evidence_left_out": 0,
        "evidence_that_names_nothing": 2,
    }
    assert [one["threshold"] for one in found["sweep"]] == list(THRESHOLDS)
    assert {"embed", "search", "total"} <= set(found["latency_ms"])


async def test_the_sweep_goes_from_everything_to_nothing(locomo: Dataset) -> None:
    found = figures(await run(locomo, System.HYBRID, a_bench(), Bounds()))
    first, last = found["sweep"][0], found["sweep"][-1]
    assert (first["abstention"], first["memories"]) == (0.0, 5.0)
    assert last["memories"] <= first["memories"]
    assert last["abstention"] >= first["abstention"]
    recalls = [one["recall"] for one in found["sweep"]]
    assert recalls == sorted(recalls, reverse=True)


async def test_questions_to_others_are_asked_under_neutral_and_swapped_names(locomo: Dataset) -> None:
    ran = await run(locomo, System.HYBRID, a_bench(), Bounds(1.0, 5))
    strangers = [one for one in ran.asked if one.names is not None]
    assert len(strangers) == 3 * locomo.questions
    assert not any("Anna" in one.question.text for one in strangers if one.names != "swapped")
    assert figures(ran)["abstention"]["questions"] == 2 * locomo.questions
    assert figures(ran)["abstention"]["share"] == 1.0


async def test_a_set_that_says_itself_what_nothing_answers_is_taken_at_its_word(tmp_path: Path) -> None:
    dataset = lines(tmp_path, a_note("m1"), a_query("What do I keep?", "m1"), a_query("Who am I?"))
    found = figures(await run(dataset, System.HYBRID, a_bench(), Bounds(1.0, 5)))
    assert (found["questions"], found["abstention"]["questions"]) == (1, 1)


async def test_an_owner_too_large_to_hold_is_asked_through_the_store(locomo: Dataset) -> None:
    ran = await run(locomo, System.STORE, a_bench(), Bounds())
    assert {one.answer.path for one in ran.asked} == {"store"}
    assert NOT_HELD.bytes == 1


async def test_the_figures_say_which_way_every_question_was_answered(locomo: Dataset) -> None:
    for system, path in ((System.HYBRID, "hybrid"), (System.LEXICAL, "lexical"), (System.STORE, "store")):
        found = figures(await run(locomo, system, a_bench(), Bounds()))
        assert found["paths"] == {path: 1.0}
        assert ("total_over_embed_p50" in found["latency_ms"]) is (system is not System.LEXICAL)


async def test_a_limit_of_questions_is_spread_over_the_whole_set(locomo: Dataset) -> None:
    ran = await run(locomo, System.DENSE, a_bench(), Bounds(), limit_questions=2)
    home = [one for one in ran.asked if one.names is None]
    assert {one.played.conversation.name for one in home} == {"one", "two"}


async def test_progress_is_told_from_nothing_to_all(locomo: Dataset) -> None:
    told: list[tuple[str, int, int]] = []
    await run(locomo, System.DENSE, a_bench(), Bounds(), says=lambda *step: told.append(step))
    assert told[0] == ("learning", 0, 2)
    assert told[-1][1] == told[-1][2] == locomo.questions


@pytest.mark.parametrize("threshold", [-0.1, 1.1, float("nan")])
async def test_a_threshold_outside_nought_and_one_is_refused(locomo: Dataset, threshold: float) -> None:
    with pytest.raises(PermanentError, match="within 0 and 1"):
        await run(locomo, System.DENSE, a_bench(), Bounds(threshold))


@pytest.mark.parametrize(
    "words",
    ["", " ", "the of and", "🙂🙂", "猫の名前は何ですか", "ما اسم قطتي؟", "x" * 100_000, "why " * 25_000, "\ud800"],
)
async def test_whatever_is_asked_is_answered(tmp_path: Path, words: str) -> None:
    dataset = lines(tmp_path, a_note("m1"), a_query("placeholder", "m1"))
    (conversation,) = dataset.conversations
    question = replace(conversation.questions[0], text=words)
    asked = Dataset(dataset.name, (replace(conversation, questions=(question,)),))
    found = figures(await run(asked, System.HYBRID, a_bench(), Bounds()))
    assert found["recall@5"] in {0.0, 1.0}


async def test_a_question_that_is_not_answered_within_the_deadline_has_no_answer(locomo: Dataset) -> None:
    found = figures(await run(locomo, System.HYBRID, replace(a_bench(), deadline=timedelta()), Bounds()))
    assert found["paths"] == {"out_of_time": 1.0}
    assert found["recall@20"] == 0.0


async def test_two_runs_are_compared_question_by_question(locomo: Dataset) -> None:
    found = await run(locomo, System.HYBRID, a_bench(), Bounds())
    silent = await run(locomo, System.HYBRID, replace(a_bench(), deadline=timedelta()), Bounds())
    rows = compare_runs(found, silent)
    assert set(rows) == {"all", "single-hop", "temporal", "abstention"}
    assert rows["all"]["questions"] == 4
    assert rows["all"]["recall@10"]["first"] == 1.0
    assert rows["all"]["recall@10"]["second"] == 0.0
    assert (rows["all"]["recall@10"]["better"], rows["all"]["recall@10"]["worse"]) == (0, 4)
    assert rows["all"]["recall@10"]["interval"] == [-1.0, -1.0]
    assert rows["abstention"]["abstention"]["difference"] >= 0.0


async def test_what_must_not_be_injected_is_counted_where_it_is(tmp_path: Path) -> None:
    case = {"query": "Which red canoe?", "memories": {"a": "A red canoe", "b": "Bees on the roof"}, "must": ["a"]}
    write_json(tmp_path / "one.json", {**case, "must_not": ["b"]})
    write_json(tmp_path / "two.json", {**case, "must_not": ["a"]})
    found = figures(await run(read_dataset(tmp_path), System.HYBRID, a_bench(), Bounds(0.0, 1)))
    assert found["injection"]["unwanted"] == 0.5
