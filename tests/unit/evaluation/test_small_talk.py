"""The conversations on which the weights of small talk are fitted are a whole data set; a fault has a place."""

from __future__ import annotations

from pathlib import Path

import pytest

from memory_extproc.evaluation.datasets import read_dataset
from scripts import make_small_talk

GOOD = [
    "speakers: Ann, Bob",
    "= 2025-01-11 19:10",
    "A{cat}: My cat is Luna.",
    "? 4 | What is Ann's cat called? | cat",
]


def test_every_conversation_is_read_with_the_evidence_of_its_questions(tmp_path: Path) -> None:
    out = tmp_path / "small_talk.json"
    make_small_talk.write(out)
    read = read_dataset(out)
    assert len(read.conversations) >= 9
    for one in read.conversations:
        assert len(one.speakers) == 2
        assert len(one.said) > 100
        assert sum(question.counts for question in one.questions) > 40
        assert any(not question.counts for question in one.questions), "some are asked under the wrong name"
        assert all(question.relevant <= set(one.ids) for question in one.questions)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("? 4 | Where? | nowhere", "no message has the label nowhere"),
        ("B{cat}: Twice.", "the label cat is used twice"),
        ("A whole sentence.", "expected a session, a message or a question"),
    ],
)
def test_a_fault_is_told_with_its_file_and_line(line: str, fault: str, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("\n".join([*GOOD, line]), encoding="utf-8")
    with pytest.raises(ValueError, match=f"x.txt:5: {fault}"):
        make_small_talk.read(tmp_path / "x.txt")
