"""In questions to others no name gives away whose they were."""

from __future__ import annotations

import pytest

from memory_extproc.evaluation.datasets import EvaluationCase, Names, Question, foreign, reword

SPEAKERS = ("Melanie", "Caroline")


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("When did Melanie paint a sunrise?", "When did I paint a sunrise?"),
        ("What is Caroline's identity?", "What is my identity?"),
        ("What is Caroline\u2019s identity?", "What is my identity?"),
        ("Is Melanie married?", "Am I married?"),
        ("What does Mel do on Sundays?", "What do I do on Sundays?"),
        ("What gift did Tom give to Caroline?", "What gift did Tom give to me?"),
        ("How did Melanie and Caroline meet?", "How did I and my friend meet?"),
        ("Which Melody was played?", "Which Melody was played?"),
        ("What is the weather like?", "What is the weather like?"),
    ],
)
def test_the_speakers_become_the_first_person(question: str, expected: str) -> None:
    assert reword(question, SPEAKERS, Names.FIRST_PERSON) == expected


def test_the_speakers_become_names_that_nobody_has() -> None:
    assert reword("Did Melanie call Caroline?", SPEAKERS, Names.NEUTRAL) == "Did Alex call Robin?"


def test_the_speakers_become_those_who_are_asked() -> None:
    said = reword("Did Melanie call Caroline's aunt?", SPEAKERS, Names.SWAPPED, ("Joe", "Ida"))
    assert said == "Did Joe call Ida's aunt?"


def test_a_question_can_stay_as_it_is() -> None:
    assert reword("Did Melanie call?", SPEAKERS, Names.KEPT) == "Did Melanie call?"


def a_conversation(name: str, questions: int, speakers: tuple[str, ...] = SPEAKERS) -> EvaluationCase:
    asked = tuple(Question(str(at), f"Question {at}?", frozenset()) for at in range(questions))
    return EvaluationCase(name, (), asked, speakers=speakers)


def test_every_question_is_asked_of_somebody_else_once() -> None:
    asked = foreign([a_conversation("a", 4), a_conversation("b", 1), a_conversation("c", 2)])
    assert len(asked) == 7
    assert all(home.name != away.name for home, away, _ in asked)
    assert {away.name for home, away, _ in asked if home.name == "a"} == {"b", "c"}


def test_one_conversation_or_notes_without_names_have_no_others() -> None:
    assert foreign([a_conversation("a", 4)]) == []
    assert foreign([a_conversation("a", 4, ()), a_conversation("b", 4, ())]) == []
