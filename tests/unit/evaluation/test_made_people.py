"""The people on whom small stores' weights are fitted can be made again, and are not those they are judged by."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from memory_extproc.evaluation.datasets import read_dataset
from scripts import make_people

NATURAL = Path(__file__).parents[2] / "quality" / "natural.jsonl"
OF_THE_PACKAGED = "3c5e4cedc83c949c75351721f7289b999033794247297c2a2b14de109ff8c70c"


def of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def plain(text: str) -> str:
    return re.sub(r"\W+", " ", text).casefold().strip()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("people") / "people.jsonl"
    make_people.write(path, make_people.SEED)
    return path


def test_the_people_of_the_packaged_weights_are_made_again_to_the_byte(made: Path) -> None:
    assert hashlib.sha256(made.read_bytes()).hexdigest() == OF_THE_PACKAGED


def test_another_seed_makes_others(made: Path, tmp_path: Path) -> None:
    make_people.write(tmp_path / "others.jsonl", make_people.SEED + 1)
    read_dataset(tmp_path / "others.jsonl")
    texts = [[line.get("text") for line in of(path)] for path in (made, tmp_path / "others.jsonl")]
    assert texts[0] != texts[1]


def test_what_answers_a_question_is_among_the_memories_of_who_asks(made: Path) -> None:
    people = read_dataset(made).conversations
    assert len(people) == make_people.PEOPLE
    for person in people:
        assert all(question.relevant <= set(person.ids) for question in person.questions)
        assert {bool(question.relevant) for question in person.questions} == {True, False}


def test_nobody_is_asked_as_unknown_what_another_thing_they_said_may_answer(made: Path) -> None:
    topics = [topic for some in make_people.words().topics.values() for topic in some]
    told: dict[str, set[str]] = {}
    for line in of(made):
        if line.get("category") == "said":
            told.setdefault(line["owner"], set()).add(line["query"])
    for line in of(made):
        if line.get("category") != "unknown":
            continue
        asked = [topic for topic in topics if line["query"] in topic.asks]
        known = [topic for topic in topics if told[line["owner"]] & set(topic.asks)]
        assert any(not any(one.may_answer(other) for other in known) for one in asked)


def test_nothing_is_said_that_somebody_says_in_the_set_that_recall_is_judged_by(made: Path) -> None:
    judged, fitted = (
        {plain(line["text"]) for line in of(path) if line.get("role") == "user"} for path in (NATURAL, made)
    )
    assert judged
    assert judged.isdisjoint(fitted)
