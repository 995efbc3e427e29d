"""A forget holds on real stores, however the process dies: nothing of it in recall, nor in any byte of any file."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.faults.forget_process import words

ROOT = Path(__file__).resolve().parents[2]
RUNS = int(os.environ.get("MEMORY_EXTPROC_TEST_FORGETS", "2"))


def start(directory: Path, what: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.faults.forget_process", str(directory), what],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )


@dataclass
class Story:
    """What a process told before it was killed."""

    said: dict[int, tuple[str, str]] = field(default_factory=dict)  # number → user, session
    accepted: set[int] = field(default_factory=set)
    forgotten: set[int] = field(default_factory=set)
    forgets: int = 0

    def hear(self, line: str) -> None:
        match line.split():
            case ["says", number, user, session]:
                self.said[int(number)] = (user, session)
            case ["said", number]:
                self.accepted.add(int(number))
            case ["forgot", _, upto, session]:
                self.forgets += 1
                self.forgotten |= {n for n in range(int(upto)) if self._covers(n, session)}
            case _:
                pass

    def _covers(self, number: int, session: str) -> bool:
        user, where = self.said.get(number, ("", ""))
        return user == "ann" and session in {"-", where}


def killed(directory: Path, seed: int) -> Story:
    """Kills after so many lines: the same seed dies at about the same place."""
    lines = random.Random(seed).randrange(8, 60)
    story = Story()
    with start(directory, str(seed)) as process:
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        assert process.stdout is not None
        for count, line in enumerate(process.stdout):
            story.hear(line)
            if count == lines:
                process.kill()
        watchdog.cancel()
    return story


def left(directory: Path) -> list[str]:
    process = start(directory, "finish")
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 0
    return [line.removeprefix("left ").replace("_", " ") for line in output.splitlines()]


def holding(directory: Path, text: str) -> list[str]:
    files = [file for file in directory.rglob("*") if file.is_file()]
    return [str(file.relative_to(directory)) for file in files if text.encode() in file.read_bytes()]


@pytest.mark.parametrize("seed", range(RUNS))
def test_a_killed_process_finishes_its_forgets_and_leaves_no_byte(tmp_path: Path, seed: int) -> None:
    story = killed(tmp_path, seed)
    recalled = left(tmp_path)
    for number in story.forgotten:
        assert not [text for text in recalled if words(number) in text]
        assert holding(tmp_path, f"canary{number:05}canary") == []
    others = {n for n in story.accepted if story.said[n][0] == "bob"}
    assert {n for n in others if words(n) in recalled} == others, "somebody else's turn was lost"
