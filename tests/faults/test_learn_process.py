"""A process that dies at any moment loses no journalled turn, and stores none of them twice."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path
from uuid import uuid4

import pytest

from tests.faults.learn_process import made
from tests.support.redis import RedisServer, redis_server

__all__ = ["redis_server"]

ROOT = Path(__file__).resolve().parents[2]


def start(directory: Path, turns: int, point: str, *redis: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.faults.learn_process", str(directory), str(turns), point, *redis],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )


def journalled(process: subprocess.Popen[str]) -> set[int]:
    output, _ = process.communicate(timeout=200)  # most of it are imports, where others want the processor too
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


# Before and after each step from the journal to the mark that a turn is learned.
STEPS = (
    *("append", "appended", "show", "shown", "put", "stored", "mark", "marked"),
    *("extract", "extracted", "apply", "applied", "close", "closed"),
)
JOURNAL_STEPS = STEPS[:8]  # facts are extracted and applied alike, whichever journal holds the turn
JOURNALS = ["sqlite", pytest.param("redis", marks=pytest.mark.redis)]


@pytest.mark.timeout(300)  # fifteen processes, one after the other, on whatever machine
@pytest.mark.parametrize("journal", JOURNALS)
def test_a_process_killed_at_every_step_in_turn_loses_nothing_and_doubles_nothing(
    tmp_path: Path, request: pytest.FixtureRequest, journal: str
) -> None:
    redis = () if journal == "sqlite" else (request.getfixturevalue("redis_server").url, uuid4().hex)
    told: set[int] = set()
    turns = 0
    for step in STEPS if journal == "sqlite" else JOURNAL_STEPS:
        # What was journalled is taken up while the client says everything once more, and more beside it.
        turns += 8
        killed = start(tmp_path, turns, f"{step}-2", *redis)
        told_now = journalled(killed)
        assert killed.returncode == -signal.SIGKILL, step
        assert not told & told_now, "a turn that was told of is a duplicate the second time"
        told |= told_now
    last = start(tmp_path, turns, "none", *redis)
    assert not told & journalled(last)
    assert last.returncode == 0
    assert_each_once(tmp_path, set(range(turns)))


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


@pytest.mark.timeout(300)
@pytest.mark.redis
@pytest.mark.parametrize("point", ["stored-1", "extracted-1", "applied-1"])
def test_a_replica_that_is_killed_leaves_its_work_to_the_other(
    tmp_path: Path, redis_server: RedisServer, point: str
) -> None:
    redis = (redis_server.url, uuid4().hex)
    made(tmp_path / "store.sqlite").close()
    killed = start(tmp_path, 40, point, *redis)
    # The other starts meanwhile, and hears the same turns, as when clients try again elsewhere.
    other = start(tmp_path, 40, "none", *redis)
    told, told_other = journalled(killed), journalled(other)
    assert other.returncode == 0
    assert not told & told_other, "a turn that one was told of is a duplicate at the other"
    assert_each_once(tmp_path, set(range(40)))
