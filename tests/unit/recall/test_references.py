"""A question is about the caller's own things, or about the world at large."""

from __future__ import annotations

import pytest

from memory_extproc.recall.asked import refers_to, tells_price

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


PRICES = (
    "a check-up is 45 and a hygiene visit 60",
    "raised the full groom to $72",
    "Ab Juni kostet die Massage 38 Euro",
)


@pytest.mark.parametrize(
    "question",
    ["what does a check-up cost?", "how much is a hygiene visit?", "What does a full groom cost now?",
     "Was kostet eine Massage?",
     "what's the price for a check-up?", "what do we charge for a hygiene visit?"],
)  # fmt: skip
def test_a_question_for_a_price_is_answered_with_the_price_that_the_caller_told(question: str) -> None:
    assert any(tells_price(question, one) for one in PRICES)


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("what does a haircut cost in New York?", "a haircut is 45"),
        ("how much does a car cost?", "User's new car is the Megane, 24,300"),
        ("what does a wedding cost?", "our wedding is on 12 May"),
        ("what does a practice cost?", "I run a practice in Exeter, a check-up is 45"),
        ("why does a check-up hurt?", "a check-up is 45"),
        ("how long is a massage?", "a massage is 35"),
    ],
)
def test_a_thing_of_the_caller_is_no_price(question: str, text: str) -> None:
    assert not tells_price(question, text)
