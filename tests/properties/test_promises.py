"""Nothing accepted is lost, nothing of one person reaches another, nothing forgotten comes back: stories told over
the whole sidecar, its stores and its files, with deaths at any turn of its loop. A failure prints the story."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.properties.story import Story

STORIES = int(os.environ.get("MEMORY_EXTPROC_TEST_STORIES", "2"))
STEPS = int(os.environ.get("MEMORY_EXTPROC_TEST_STORY_STEPS", "10"))
FIRST = int(os.environ.get("MEMORY_EXTPROC_TEST_STORY_FIRST", "1"))
SEEDS = range(FIRST, FIRST + STORIES)

pytestmark = pytest.mark.timeout(600)  # the machine may have much else to do


@pytest.mark.parametrize("seed", SEEDS)
async def test_the_promises_hold_in_one_sidecar(seed: int, tmp_path: Path, int8_model_dir: Path) -> None:
    await Story(seed, tmp_path, int8_model_dir.parent).told_out(STEPS)


@pytest.mark.redis
@pytest.mark.parametrize("seed", SEEDS[: max(1, STORIES // 2)])
async def test_the_promises_hold_in_two_replicas(seed: int, tmp_path: Path, int8_model_dir: Path) -> None:
    await Story(seed, tmp_path, int8_model_dir.parent, replicas=2).told_out(STEPS)
