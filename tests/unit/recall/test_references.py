"""A question is about the caller's own things, or about the world at large."""

from __future__ import annotations

import pytest

from memory_extproc.recall.asked import refers_to

SAID = (
    "My bad knee hurts when I climb stairs.",
    "Ingrid fixes the boiler on Fridays.",
    "A hotel in Maui?",
    "the Skoda died",
)
ANSWERED = ("The Grand Wailea costs $900 a night.", "Forget gates keep gradients alive in long training sequences.")


@pytest.mark.parametrize(
    "question",
    [
        "Where does my knee hurt?",
        "What does Ingrid fix?",
        "When was the boiler fixed?",
        "boiler?",
        "What did the hotel in Maui cost a night?",
        "Which gates keep gradients alive in long training sequences?",
        "What happened to the Skoda?",
    ],
    ids=["own", "acting name", "definite", "mere noun", "past tense", "nearly all words", "what happened"],
)
def test_a_question_refers_to_what_was_talked_about(question: str) -> None:
    assert refers_to(question, SAID, ANSWERED)


@pytest.mark.parametrize(
    "question",
    [
        "Why do knees crack?",
        "How are stairs built?",
        "Which hotels are best in winter?",
        "Is Friday a noun?",
    ],
)
def test_a_question_that_shares_a_word_with_memories_is_about_the_world(question: str) -> None:
    assert not refers_to(question, SAID, ANSWERED)
