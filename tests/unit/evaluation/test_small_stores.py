"""A conversation cut into small stores keeps who said what, and asks each store what it can and cannot answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memory_extproc.evaluation.datasets import DatasetError, read_dataset
from scripts import make_small_stores
from tests.unit.evaluation.sets import a_note, a_query, a_sample, write_json, write_lines


def a_cello_player() -> dict[str, Any]:
    """Another conversation than the usual one; its speakers have other names."""
    sample = a_sample("conv-2")
    talk = {
        key: [{**turn, "speaker": {"Anna": "Clara", "Boris": "Dmitri"}[turn["speaker"]]} for turn in value]
        if isinstance(value, list)
        else value
        for key, value in sample["conversation"].items()
    }
    asked = [
        {"question": "What does Clara play on Sundays?", "evidence": ["D2:2"], "category": 4},
        {"question": "Where do Clara and Dmitri meet?", "evidence": ["D2:2"], "category": 4},
    ]
    return {**sample, "conversation": {**talk, "speaker_a": "Clara", "speaker_b": "Dmitri"}, "qa": asked}


@pytest.fixture
def locomo(tmp_path: Path) -> Path:
    return write_json(tmp_path / "locomo.json", [a_sample(), a_cello_player()])


@pytest.fixture
def cut(locomo: Path) -> list[dict[str, Any]]:
    return list(make_small_stores.lines(read_dataset(locomo).conversations))


def test_the_same_seed_cuts_the_same_stores(locomo: Path, tmp_path: Path) -> None:
    for name in ("once.jsonl", "again.jsonl"):
        make_small_stores.write(tmp_path / name, locomo, make_small_stores.SEED)
    assert (tmp_path / "once.jsonl").read_bytes() == (tmp_path / "again.jsonl").read_bytes()


def test_what_answers_a_question_is_in_the_store_that_is_asked(locomo: Path, tmp_path: Path) -> None:
    make_small_stores.write(tmp_path / "cut.jsonl", locomo, make_small_stores.SEED)
    stores = read_dataset(tmp_path / "cut.jsonl").conversations
    assert any(question.relevant for store in stores for question in store.questions)
    for store in stores:
        assert all(question.relevant <= set(store.ids) for question in store.questions)


def test_every_message_is_once_in_the_stores_of_each_speaker_without_its_name(cut: list[dict[str, Any]]) -> None:
    canoe = [line for line in cut if line.get("text") == "I bought a red canoe for the lake."]
    assert sorted((line["owner"][:4], line["role"]) for line in canoe) == [
        ("L1-0", "assistant"),
        ("L1-1", "user"),
        ("L2-0", "assistant"),
        ("L2-1", "user"),
    ]


def test_a_question_about_the_caller_is_asked_in_the_first_person(cut: list[dict[str, Any]]) -> None:
    own = {(line["owner"][:4], line["query"]) for line in cut if line.get("relevant")}
    assert own == {
        ("L1-0", "What is my cat called?"),
        ("L1-1", "When did the sister of me move?"),
        ("L2-0", "What do I play on Sundays?"),
    }


def test_other_peoples_questions_are_things_never_said(cut: list[dict[str, Any]]) -> None:
    foreign = {(line["owner"][:2], line["query"]) for line in cut if line.get("category") == "unknown"}
    assert ("L1", "What do I play on Sundays?") in foreign
    assert ("L2", "What is my cat called?") in foreign
    assert ("L1", "What is my cat called?") not in foreign


def test_a_set_without_named_speakers_is_refused(tmp_path: Path) -> None:
    notes = write_lines(tmp_path / "notes.jsonl", a_note("m1"), a_query("What do I keep?", "m1"))
    with pytest.raises(DatasetError, match="ann: its speakers have no names"):
        list(make_small_stores.lines(read_dataset(notes).conversations))
