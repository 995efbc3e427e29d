"""Weights are fitted, judged by conversations held out, and written as the file that recall reads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memory_extproc.errors import PermanentError
from memory_extproc.evaluation.datasets import Dataset, Names, read_dataset, read_datasets
from memory_extproc.evaluation.fitting import (
    PROJECTED,
    Aims,
    figures_of,
    fit_rankers,
    fitted_weights,
    passing,
    tune,
    write_weights,
)
from memory_extproc.evaluation.training import Gathered
from memory_extproc.index.features import READ_BESIDES, READ_CLOSELY
from memory_extproc.recall.fusion import WeightsError, packaged_weights, read_weights
from memory_extproc.recall.late_interaction import with_features
from tests.unit.evaluation.benches import a_bench, gather_from
from tests.unit.evaluation.sets import a_sample, write_json

THINGS = ("canoe", "telescope", "tractor", "violin", "greenhouse", "saddle", "kayak", "printer", "tent", "loom")


def a_talk(name: str) -> dict[str, Any]:
    """A conversation in which each speaker speaks of ten things, and a question about each."""
    sample = a_sample(name)
    talk = sample["conversation"]
    talk["session_2"] = [
        {
            "speaker": ("Anna", "Boris")[at % 2],
            "dia_id": f"D2:{at}",
            "text": f"The {name} {thing} stands in the yard.",
        }
        for at, thing in enumerate(THINGS)
    ]
    sample["qa"] = [
        {"question": f"Where does the {name} {thing} stand?", "evidence": [f"D2:{at}"], "category": 4}
        for at, thing in enumerate(THINGS)
    ]
    return sample


@pytest.fixture
def talks(tmp_path: Path) -> Dataset:
    return read_dataset(write_json(tmp_path / "set.json", [a_talk(name) for name in ("amber", "birch", "coral")]))


@pytest.fixture
async def gathered(talks: Dataset) -> list[Gathered]:
    return await gather_from(talks)


async def test_what_was_fitted_finds_what_it_has_not_seen(gathered: list[Gathered]) -> None:
    tuned = tune(gathered, Aims())
    assert tuned.held.recall.recall[5] >= 0.9
    assert set(tuned.held.recall.by_conversation) == {"amber", "birch", "coral"}


async def test_the_threshold_is_set_where_the_wanted_share_of_questions_to_others_gets_nothing(
    gathered: list[Gathered],
) -> None:
    strangers = [one for one in gathered if not one.question.relevant and one.names is not Names.SWAPPED]
    for wanted in (0.7, 0.95):
        aims = Aims(abstention=wanted)
        ranker = tune(gathered, aims).ranker
        silent = sum(not len(passing(one, ranker, aims)) for one in strangers) / len(strangers)
        assert silent == pytest.approx(wanted, abs=0.15)


async def test_a_higher_aim_for_silence_never_finds_more(gathered: list[Gathered]) -> None:
    low, high = tune(gathered, Aims(abstention=0.5)).held, tune(gathered, Aims(abstention=0.99)).held
    assert high.loss >= low.loss


async def test_the_same_questions_give_the_same_weights(gathered: list[Gathered]) -> None:
    first, second = tune(gathered, Aims()), tune(gathered, Aims())
    assert first.ranker == second.ranker
    assert figures_of([(one, first.ranker) for one in gathered], Aims()) == figures_of(
        [(one, second.ranker) for one in gathered], Aims()
    )


async def test_a_file_of_weights_is_written_and_belongs_to_its_embedding_model(
    talks: Dataset, tmp_path: Path
) -> None:
    fitted = await fitted_weights(talks, a_bench(), features=True)
    path = tmp_path / "weights.json"
    write_weights(path, fitted.weights)
    assert read_weights(path, "canned/64") == fitted.weights
    assert fitted.weights.fitted_on == "set.json: 3 conversations, 30 questions"
    with pytest.raises(WeightsError, match="not for the embedding model another"):
        read_weights(path, "another")
    for ranker in ("hybrid", "hybrid_few", "lexical", "lexical_few"):
        assert {"before", "after", "spread", "by_conversation", "kinds"} == set(fitted.said[ranker])
    assert {row["left out"] for row in fitted.said["features"]} >= {"dense", "bm25"}
    assert fitted.said["before_fitted_on"] == packaged_weights().fitted_on
    json.dumps(fitted.said)


async def test_projected_questions_are_fitted_by_themselves_and_for_small_stores(gathered: list[Gathered]) -> None:
    columns = len(READ_CLOSELY) + len(READ_BESIDES)
    read = []
    for one in gathered:
        found = with_features(one.candidates, np.ones((len(one.candidates.memories), columns)))
        read.append(replace(one, candidates=replace(found, projected=True)))
    rankers, said = fit_rankers(PROJECTED, read, packaged_weights())
    assert set(rankers) == set(said) == {"projected_few"}
    assert (
        rankers["projected_few"]
        == fit_rankers(PROJECTED, [*read, *gathered], packaged_weights())[0]["projected_few"]
    )
    assert fit_rankers(PROJECTED, gathered, packaged_weights()) == ({}, {})


async def test_no_ranker_is_judged_by_memories_it_was_fitted_on(gathered: list[Gathered]) -> None:
    tuned = tune(gathered, Aims())
    assert len(tuned.judged) == len(gathered)
    of_memories: dict[str, set[int]] = {}
    for one, ranker in tuned.judged:
        assert ranker is not tuned.ranker
        of_memories.setdefault(one.candidates.memories[0].owner.user, set()).add(id(ranker))
    assert len(set().union(*of_memories.values())) == 3
    assert all(len(rankers) == 1 for rankers in of_memories.values())


async def test_too_little_to_fit_on_is_told(tmp_path: Path) -> None:
    alone = read_dataset(write_json(tmp_path / "set.json", [a_talk("amber")]))
    with pytest.raises(PermanentError, match="cross-validation needs two conversations"):
        await fitted_weights(alone, a_bench(), features=False)


def test_weights_that_cannot_be_written_are_told(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match="cannot be written"):
        write_weights(tmp_path / "nowhere" / "weights.json", packaged_weights())


def test_sets_are_taken_together_and_equal_names_kept_apart(tmp_path: Path) -> None:
    one = write_json(tmp_path / "one.json", [a_talk("amber"), a_talk("birch")])
    two = write_json(tmp_path / "two.json", [a_talk("amber")])
    both = read_datasets([one, two])
    assert both.name == "one.json, two.json"
    assert [found.name for found in both.conversations] == ["one.json:amber", "birch", "two.json:amber"]
