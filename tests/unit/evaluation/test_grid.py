"""Settings are chosen by trying their values on a data set, and only for a gain that is hardly by chance."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from memory_extproc.evaluation.datasets import Dataset, read_dataset
from memory_extproc.evaluation.runner import Bench
from memory_extproc.evaluation.training import GRID, as_fragment, choose_settings, read_value, with_value
from memory_extproc.settings import Settings
from tests.unit.evaluation.benches import a_bench
from tests.unit.evaluation.sets import write_json
from tests.unit.evaluation.test_tuning import a_talk

THRESHOLD = "memory.default_similarity_threshold"


@pytest.fixture
def talks(tmp_path: Path) -> Dataset:
    return read_dataset(write_json(tmp_path / "set.json", [a_talk("amber")]))


@asynccontextmanager
async def open_bench(_settings: Settings) -> AsyncIterator[Bench]:
    yield a_bench()


async def test_a_threshold_that_hides_every_answer_gives_way_to_one_that_does_not(talks: Dataset) -> None:
    blind = with_value(Settings(), THRESHOLD, 1.0)
    chosen = await choose_settings(talks, blind, open_bench, grid={THRESHOLD: (1.0, 0.6)})
    assert chosen.changes == {THRESHOLD: 0.6}
    blind_trial, seeing = chosen.trials
    assert blind_trial.evidence == 0.0
    assert seeing.evidence is not None
    assert seeing.evidence > 0.5
    assert [one.chosen for one in chosen.trials] == [False, True]


async def test_a_setting_that_makes_no_difference_stays_as_it_is(talks: Dataset) -> None:
    chosen = await choose_settings(talks, Settings(), open_bench, grid={"recall.candidates": (50, 100)})
    assert chosen.changes == {}
    assert [(one.value, one.gain, one.chosen) for one in chosen.trials] == [(50, 0.0, False), (100, 0.0, True)]


def test_every_value_of_the_grid_is_one_that_a_configuration_may_have() -> None:
    for name, values in GRID.items():
        for value in values:
            changed = Settings.model_validate(as_fragment({name: value}))
            assert read_value(changed, name) == value


def test_the_changes_are_a_configuration_file() -> None:
    changes: dict[str, object] = {"recall.half_life": timedelta(days=14), THRESHOLD: 0.55}
    assert as_fragment(changes) == {
        "recall": {"half_life": "14d"},
        "memory": {"default_similarity_threshold": 0.55},
    }
