"""Sets by kind of question: how they are read, and how a block is judged."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from memory_extproc.evaluation.by_intent import (
    SHIFTS,
    IntentQuestion,
    Piece,
    Shifted,
    ask_by_intent,
    fit_kinds,
    intent_figures,
    judge_block,
    read_intent_set,
    sample_set,
)
from memory_extproc.evaluation.datasets import DatasetError
from memory_extproc.evaluation.runner import Bounds, play
from memory_extproc.learn.messages import judge
from memory_extproc.model import Outcome, Ranked, RecallResult
from memory_extproc.recall.fusion import packaged_weights
from memory_extproc.recall.intent import QuestionKind
from memory_extproc.recall.prompt_block import render
from memory_extproc.store.loader import PartitionLimits
from tests.unit.evaluation.benches import a_bench

AT = "2026-03-02T09:00:00Z"
LATER = "2026-03-09T09:00:00Z"


def a_message(id_: str, text: str, role: str = "user", **changes: Any) -> dict[str, Any]:
    return {"memory": id_, "owner": "ann", "text": text, "at": AT, "session": "s1", "role": role, **changes}


def a_question(id_: str = "q1", **changes: Any) -> dict[str, Any]:
    wanted = [{"any": [["Rex"]], "ids": ["m1"]}]
    asked = {"query": "my dog?", "owner": "ann", "id": id_, "kind": "indirect", "asked_at": LATER, "wanted": wanted}
    return {**asked, **changes}


MESSAGES = (a_message("m1", "My dog is called Rex."), a_message("m2", "Rex sounds like a good dog.", "assistant"))


def written(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_a_folder_has_a_half_for_fitting_and_a_half_that_is_held_back(tmp_path: Path) -> None:
    written(tmp_path / "dev.jsonl", *MESSAGES, a_question("of dev"))
    written(tmp_path / "held.jsonl", *MESSAGES, a_question("of held"))
    found = {held: read_intent_set(tmp_path, held=held).people[0][1][0].id for held in (False, True)}
    assert found == {False: "of dev", True: "of held"}


@pytest.mark.parametrize(
    ("question", "fault"),
    [
        (a_question(owner="bob"), "line 3: owner"),
        (a_question(wanted=[{"any": [["Rex"]], "ids": ["m9"]}]), "line 3: there is no message 'm9'"),
        (a_question(wanted=[{"any": []}]), "line 3: .*wanted"),
        (a_question(asked_at="2026-03-09T09:00:00"), "line 3: asked_at"),
        (a_question(asked_at="2026-02-30T09:00:00Z"), "line 3: .*asked_at"),
        (a_question(answer="Rex"), "line 3: .*answer"),
    ],
)
def test_a_set_that_is_not_one_is_refused_with_its_place(
    tmp_path: Path, question: dict[str, Any], fault: str
) -> None:
    with pytest.raises(DatasetError, match=fault):
        read_intent_set(written(tmp_path / "set.jsonl", *MESSAGES, question))


def test_two_questions_of_one_id_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="line 4: id"):
        read_intent_set(written(tmp_path / "set.jsonl", *MESSAGES, a_question(), a_question()))


@pytest.mark.parametrize("lines", [MESSAGES, (a_question(),)])
def test_a_set_without_questions_or_messages_is_refused(tmp_path: Path, lines: tuple[dict[str, Any], ...]) -> None:
    with pytest.raises(DatasetError):
        read_intent_set(written(tmp_path / "set.jsonl", *lines))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="gone"):
        read_intent_set(tmp_path / "gone.jsonl")


async def test_every_question_is_asked_at_its_time_and_counted_by_kind(tmp_path: Path) -> None:
    nothing = a_question("q2", kind="small talk", wanted=[], query="hello")
    intents = read_intent_set(written(tmp_path / "set.jsonl", *MESSAGES, a_question(), nothing))
    judged = await ask_by_intent(intents, a_bench(), Bounds(threshold=0.0))
    figures = intent_figures(intents, judged)["kinds"]
    assert figures["indirect"]["answered"] == 1.0
    assert figures["indirect"]["precision"] == 1.0
    assert figures["small talk"]["abstention"] == 1.0
    assert all(one.milliseconds is not None for one in judged)


async def test_every_kind_that_recall_reads_is_asked_under_every_shift_of_its_gate(tmp_path: Path) -> None:
    asked = [
        a_question("q1", query="What do you know about me?"),
        a_question("q2", query="Which allergies have I?"),
    ]
    intents = read_intent_set(written(tmp_path / "set.jsonl", *MESSAGES, *asked))
    kinds = await fit_kinds(intents, packaged_weights(), a_bench(), Bounds(threshold=0.6))
    assert {one.kind: one.questions for one in kinds} == {QuestionKind.OVERVIEW: 1, QuestionKind.LIST: 1}
    assert all(set(one.answered) == set(SHIFTS) and one.chosen == 0.0 for one in kinds)


def test_the_shift_of_a_gate_is_the_one_with_most_answers_and_silence_and_the_smallest_of_equals() -> None:
    same = dict.fromkeys(SHIFTS, 0.5)
    assert Shifted(QuestionKind.LIST, 9, same, same, same).chosen == 0.0
    assert Shifted(QuestionKind.LIST, 9, {**same, -1.5: 0.7, -1.0: 0.7}, same, same).chosen == -1.0
    assert Shifted(QuestionKind.LIST, 9, {**same, 1.0: 0.7}, {**same, 1.0: 0.3}, {**same, 1.0: 0.3}).chosen == 0.0


def test_a_sample_has_so_many_of_each_kind_and_of_its_counterexamples(tmp_path: Path) -> None:
    asked = [a_question(f"q{at}", wanted=[] if at % 2 else a_question()["wanted"]) for at in range(20)]
    intents = sample_set(read_intent_set(written(tmp_path / "set.jsonl", *MESSAGES, *asked)), 1, 3)
    assert [question.id for question in intents.people[0][1]] == ["q0", "q1", "q6", "q7", "q12", "q13"]


# --- judging a block -----------------------------------------------------------------------------------


def a_wanted(*pieces: Piece, **changes: Any) -> IntentQuestion:
    at = datetime(2026, 3, 9, 9, tzinfo=UTC)
    return IntentQuestion("?", "ann", "q", "indirect", at, pieces, **changes)


async def judged_lines(tmp_path: Path, question: IntentQuestion, *lines: str) -> tuple[bool, int, int]:
    """Whether answered, how many lines, how many to the point."""
    intents = read_intent_set(written(tmp_path / "set.jsonl", *MESSAGES, a_question()))
    bench = a_bench()
    async with play(
        intents.people[0][0], bench.embedder, bench.metrics,
        extractor=None, judged=judge, partition=PartitionLimits(),
    ) as there:  # fmt: skip
        rows = [row for row in there.memories if row.content in lines]
        rendered = render([Ranked(row, 1.0) for row in rows], 512).text.splitlines()[2:-1]
        others = [f"- {line}" for line in lines if line not in {row.content for row in rows}]
        block = "\n".join(["<memory>", *rendered, *others, "</memory>"])
        found = RecallResult(outcome=Outcome.USED, block=block, memories=tuple(Ranked(row, 1.0) for row in rows))
        one = judge_block(question, found, there)
        return one.answered, one.lines, one.serving


REX = Piece(any=(("Rex",),), ids=("m1",))


async def test_a_piece_is_there_when_a_line_holds_every_word_of_an_alternative(tmp_path: Path) -> None:
    both = Piece(any=(("dog", "Rex"), ("Rexy",)))
    assert await judged_lines(tmp_path, a_wanted(both), "The dog: Rex") == (True, 1, 1)
    assert await judged_lines(tmp_path, a_wanted(both), "The dog", "Rex") == (False, 2, 0)


@pytest.mark.parametrize(
    ("line", "there"), [("rent: 340", False), ("1,34", False), ("34 euros", True), ("(34)", True)]
)
async def test_numbers_count_as_whole_numbers(tmp_path: Path, line: str, *, there: bool) -> None:
    assert (await judged_lines(tmp_path, a_wanted(Piece(any=(("34",),))), line))[0] is there


async def test_the_date_of_a_line_answers_nothing(tmp_path: Path) -> None:
    assert not (await judged_lines(tmp_path, a_wanted(Piece(any=(("2026",),))), "[2026-03-02] I moved"))[0]


async def test_an_outdated_value_spoils_an_answer_unless_its_line_says_so(tmp_path: Path) -> None:
    question = a_wanted(REX, forbidden=("Bello",))
    assert (await judged_lines(tmp_path, question, "Rex", "Bello"))[0] is False
    assert (await judged_lines(tmp_path, question, "Rex (before: Bello)"))[0] is True
    assert (await judged_lines(tmp_path, question, "Rex", "[2025, no longer so] Bello"))[0] is True


async def test_common_words_count_only_in_lines_of_their_messages(tmp_path: Path) -> None:
    said = "My dog is called Rex."
    ours, others = (Piece(any=(("dog",),), ids=(id_,), strict=True) for id_ in ("m1", "m2"))
    assert (await judged_lines(tmp_path, a_wanted(ours), said))[0] is True
    assert (await judged_lines(tmp_path, a_wanted(others), said))[0] is False


async def test_lines_of_messages_that_serve_are_to_the_point(tmp_path: Path) -> None:
    question = a_wanted(Piece(any=(("Bello",),)), serves=("m1",), helps=("cat",))
    assert await judged_lines(tmp_path, question, "My dog is called Rex.", "a cat", "rain") == (False, 3, 2)


async def test_a_counterexample_is_answered_by_no_block(tmp_path: Path) -> None:
    assert (await judged_lines(tmp_path, a_wanted(), "anything"))[0] is False
