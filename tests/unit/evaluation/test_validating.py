"""A fit is judged by conversations that it has not seen, through the candidates that recall would get."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from memory_extproc.evaluation.datasets import Dataset, Names, read_dataset
from memory_extproc.evaluation.training import Gathered, ablation, cross_validate, examples_of, judged_by
from tests.unit.evaluation.benches import gather_from
from tests.unit.evaluation.sets import a_note, a_query, a_sample, write_json, write_lines


@pytest.fixture
def locomo(tmp_path: Path) -> Dataset:
    return read_dataset(write_json(tmp_path / "set.json", [a_sample("one"), a_sample("two"), a_sample("three")]))


def normalised(one: Gathered) -> np.ndarray:
    found = one.candidates
    return np.nan_to_num((found.features - found.centre) / np.maximum(found.spread, 1e-9))


async def test_every_question_is_gathered_with_what_answers_it_among_its_candidates(locomo: Dataset) -> None:
    gathered = await gather_from(locomo)
    kept = [one for one in gathered if one.names is Names.KEPT]
    assert len(kept) == 6  # two answerable questions of each
    assert all(one.answers.sum() == 1 for one in kept)
    assert {len(one.covers) for one in kept} == {6}
    own = [one for one in gathered if one.question.relevant]
    assert {one.names for one in own} == {Names.KEPT, Names.FIRST_PERSON, Names.NEUTRAL}
    strangers = [one for one in gathered if not one.question.relevant]
    assert {one.names for one in strangers} == {Names.FIRST_PERSON, Names.NEUTRAL, Names.SWAPPED}
    assert not any(one.answers.any() for one in strangers)


async def test_without_the_model_only_words_speak(locomo: Dataset) -> None:
    lexical, both = await gather_from(locomo, dense=False), await gather_from(locomo)
    assert {one.candidates.path for one in lexical} == {"lexical"}
    assert set(lexical[0].candidates.names) < set(both[0].candidates.names)


async def test_questions_that_a_set_calls_unanswerable_are_gathered_too(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "set.jsonl", a_note("m1"), a_query("What do I keep?", "m1"), a_query("Who am I?"))
    gathered = await gather_from(read_dataset(path))
    assert [bool(one.question.relevant) for one in gathered] == [True, False]


async def test_held_out_recall_is_that_of_all_conversations(locomo: Dataset) -> None:
    kept = [one for one in await gather_from(locomo) if one.names is Names.KEPT]
    found = cross_validate(kept, examples_of(kept, normalised), l2=0.1)
    assert set(found.by_conversation) == {"one", "two", "three"}
    assert found.recall[10] == 1.0  # six messages
    assert found.spread(10) == 0.0


async def test_a_perfect_score_finds_everything_and_a_bad_one_nothing(locomo: Dataset) -> None:
    kept = [one for one in await gather_from(locomo) if one.names is Names.KEPT]
    assert judged_by([(one, one.answers.astype(float)) for one in kept]).recall[5] == 1.0
    assert judged_by([(one, -one.answers.astype(float)) for one in kept]).recall[5] == 0.0


async def test_what_carries_recall_is_missed_the_most(tmp_path: Path) -> None:
    samples = [a_sample(name) for name in ("one", "two", "three")]
    for sample in samples:
        talk = sample["conversation"]
        talk["session_3_date_time"] = "9:00 am on 1 July, 2023"
        talk["session_3"] = [
            {"speaker": "Anna", "dia_id": f"D3:{at}", "text": f"Parcel number {at} went to street {at}."}
            for at in range(40)
        ]
    locomo = read_dataset(write_json(tmp_path / "set.json", samples))
    kept = [one for one in await gather_from(locomo) if one.names is Names.KEPT]
    chance = np.random.default_rng(1)
    examples = examples_of(kept, lambda one: np.column_stack([one.answers, chance.normal(size=len(one.answers))]))
    told: list[tuple[str, int, int]] = []
    rows = ablation(kept, examples, ["telling", "noise"], l2=0.01, says=lambda *step: told.append(step))
    assert [row["left out"] for row in rows] == ["telling", "noise"]
    assert float(rows[0]["recall@5"]) < -0.3
    assert float(rows[1]["recall@5"]) == 0.0
    assert told[-1] == ("leaving out", 2, 2)
    (both,) = ablation(kept, examples, ["telling", "noise"], l2=0.01, groups={"none": ()})
    assert both["recall@5"] == 0.0
