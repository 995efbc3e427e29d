"""The embedding adapter is trained on nothing by which recall is judged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.make_people import words
from scripts.make_small_talk import find_sources
from scripts.train.chats import FILES, read_chats

ROOT = Path(__file__).parents[3]
QUALITY = ROOT / "tests" / "quality"
JUDGED = ("intents/held.jsonl", "everyday.jsonl", "natural.jsonl", "dialogues.jsonl", "talks.jsonl")


def read_lines(path: Path) -> set[tuple[str, str]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return {(label, text.casefold()) for label, _, text in (line.partition("\t") for line in lines)}


@pytest.fixture(scope="module")
def trained() -> dict[str, set[str]]:
    sets = {name: read_lines(ROOT / "scripts" / "train" / f"{name}.tsv") for name in ("told", "asked")}
    assert all(len(lines) > 500 for lines in sets.values())
    return {name: {text for _, text in lines} for name, lines in sets.items()}


def test_no_question_of_the_judged_kinds_is_trained_on(trained: dict[str, set[str]]) -> None:
    judged = {text for _, text in read_lines(QUALITY / "questions.tsv")}
    assert not judged & trained["asked"]


@pytest.mark.parametrize("name", JUDGED)
def test_no_message_of_a_judged_set_is_trained_on(trained: dict[str, set[str]], name: str) -> None:
    rows = [json.loads(line) for line in (QUALITY / name).read_text(encoding="utf-8").splitlines()]
    said = {row["text"].casefold() for row in rows if "text" in row}
    assert not said & trained["told"]


@pytest.mark.parametrize("name", ["dev", "held"])
def test_no_plain_chat_of_a_judged_set_is_trained_on(name: str) -> None:
    lines = (QUALITY / "chats" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    people = read_chats(sorted(FILES.glob("*.txt")))
    assert not {row["owner"] for row in rows} & {one.name for one in people}
    said = {message.text.casefold() for one in people for message in one.messages}
    # Anybody says "thank you" or "congratulations to you both".
    judged = {row["text"].casefold() for row in rows if len(row.get("text", "").split()) > 8}
    assert not judged & said


def test_the_halves_of_a_set_share_nothing_and_make_the_whole() -> None:
    whole, first, second = (
        {topic.about for some in words(half=half).topics.values() for topic in some} for half in (None, 0, 1)
    )
    assert first
    assert second
    assert not first & second
    assert first | second == whole
    talk = [find_sources(half) for half in (0, 1)]
    assert all(talk)
    assert sorted([*talk[0], *talk[1]]) == find_sources()
