"""People who have said little are remembered as well as those who have said much: the people of both sets with
one, two or six of their memories each, and the questions that these answer, with the real model.

The floors stand a little below what was measured when they were set.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memory_extproc.evaluation.bench import bench
from memory_extproc.evaluation.datasets import read_dataset
from memory_extproc.evaluation.metrics import figures
from memory_extproc.evaluation.runner import Bounds, System, run
from memory_extproc.settings import Settings

SETS = [Path(__file__).parent / name for name in ("natural.jsonl", "everyday.jsonl")]
Row = dict[str, Any]


@pytest.mark.parametrize(
    ("memories", "found", "sound", "silent"), [(1, 0.88, 0.99, 0.89), (2, 0.86, 0.96, 0.89), (6, 0.82, 0.84, 0.90)]
)
def test_a_persons_first_memories_are_given_for_what_they_answer_and_for_nothing_else(
    memories: int, found: float, sound: float, silent: float, int8_model_dir: Path, tmp_path: Path
) -> None:
    few = tmp_path / "few.jsonl"
    rows = [row for path in SETS for row in of_few(path, memories)]
    few.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    settings = Settings.model_validate({"memory": {"embedding": {"models_dir": str(int8_model_dir.parent)}}})
    bounds = Bounds(settings.memory.default_similarity_threshold, settings.memory.default_retrieval_limit)

    async def measure() -> dict[str, Any]:
        async with bench(settings, unbounded=True) as made:
            return figures(await run(read_dataset(few), System.HYBRID, made, bounds))

    measured = asyncio.run(measure())
    assert measured["injection"]["recall"] >= found
    assert measured["injection"]["precision"] >= sound
    assert measured["abstention"]["share"] >= silent


def of_few(path: Path, memories: int) -> Iterator[Row]:
    """The people of a set, each taken apart into some of so many *memories* in turn. What nothing answers is asked
    of one of them each."""
    remembered: dict[str, list[Row]] = defaultdict(list)
    asked: dict[str, list[Row]] = defaultdict(list)
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        (remembered if "memory" in row else asked)[row["owner"]].append(row)
    for owner, rows in remembered.items():
        parts = [rows[at : at + memories] for at in range(0, len(rows), memories)]
        unanswered = [row for row in asked[owner] if not row["relevant"]]
        for place, part in enumerate(parts):
            there = {row["memory"] for row in part}
            answered = [row for row in asked[owner] if row["relevant"] and there.issuperset(row["relevant"])]
            if answered:
                name = f"{path.stem}-{owner}-{place}"
                yield from (_owned(row, name, there) for row in part)
                yield from ({**row, "owner": name} for row in [*answered, *unanswered[place :: len(parts)]])


def _owned(row: Row, owner: str, there: set[str]) -> Row:
    """*row* as said by *owner*, in a session of their own; what it replaces is named where it is *there*."""
    owned = {**row, "owner": owner}
    if "session" in row:
        owned["session"] = f"{owner}-{row['session']}"
    if row.get("replaces") not in there:
        owned.pop("replaces", None)
    return owned
