"""A process that dies at any moment loses no journalled turn, and stores none of them twice."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def start(directory: Path, turns: int, point: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.faults.learn_process", str(directory), str(turns), point],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )


def journalled(process: subprocess.Popen[str]) -> set[int]:
    output, _ = process.communicate(timeout=60)
    return {int(line) for line in output.split()}


def words(directory: Path, statement: str) -> Counter[int]:
    """How often each turn's number stands in the store."""
    with sqlite3.connect(directory / "store.sqlite") as connection:
        contents = [row[0] for row in connection.execute(statement)]
    connection.close()
    return Counter(int(number) for content in contents for number in content.split() if number.isdigit())


def assert_each_once(directory: Path, accepted: set[int]) -> None:
    for statement in ("SELECT content FROM rows", "SELECT content FROM facts"):
        found = words(directory, statement)
        assert accepted <= set(found), "a journalled turn was lost"
        assert set(found.values()) <= {1}, "a turn is there twice"


@pytest.mark.parametrize("point", ["put-1", "put-4", "stored-1", "stored-4", "apply-1", "applied-1", "applied-3"])
def test_a_process_killed_while_it_learns_loses_nothing_and_doubles_nothing(tmp_path: Path, point: str) -> None:
    killed = start(tmp_path, 40, point)
    before = journalled(killed)
    assert killed.returncode == -signal.SIGKILL
    # What was journalled is taken up while the client says everything once more.
    again = start(tmp_path, 40, "none")
    after = journalled(again)
    assert again.returncode == 0
    assert not before & after, "a turn that was told of is a duplicate the second time"
    assert_each_once(tmp_path, set(range(40)))


@pytest.mark.parametrize("lines", [1, 9])
def test_a_process_killed_while_it_accepts_loses_nothing_that_it_told_of(tmp_path: Path, lines: int) -> None:
    process = start(tmp_path, 100_000, "none")
    assert process.stdout
    told = {int(process.stdout.readline()) for _ in range(lines)}
    process.kill()
    told |= journalled(process)
    again = start(tmp_path, 0, "none")
    journalled(again)
    assert again.returncode == 0
    assert_each_once(tmp_path, told)


def test_a_process_told_to_end_works_off_what_it_accepted(tmp_path: Path) -> None:
    process = start(tmp_path, 100_000, "none")
    assert process.stdout
    told = {int(process.stdout.readline()) for _ in range(10)}
    process.terminate()
    told |= journalled(process)
    assert process.returncode == 0
    assert_each_once(tmp_path, told)
    with sqlite3.connect(tmp_path / "journal.sqlite") as connection:
        assert connection.execute("SELECT count(*) FROM turns WHERE stage <> 2").fetchone() == (0,)
    connection.close()
