"""A question for several things is taken apart; a question for one thing stays whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_extproc.text.intents import MOST_PARTS, decompose_question, split_questions


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("What is my budget and when do I fly?", ("What is my budget", "when do I fly?")),
        ("What's my budget? And when do I fly?", ("What's my budget?", "And when do I fly?")),
        ("Where do I live, where do I work?", ("Where do I live", "where do I work?")),
        ("What do Ann and Bob collect?", ("What do Ann collect?", "What do Bob collect?")),
        ("Did both Ann and Bob go to Rome?", ("Did Ann go to Rome?", "Did Bob go to Rome?")),
        ("What is my budget and did I book a flight?", ("What is my budget", "did I book a flight?")),
        ("Who is Ann and what does she like?", ("Who is Ann", "what does she like?")),
        ("Wo wohne ich und wann fliege ich?", ("Wo wohne ich", "wann fliege ich?")),
        ("I'm planning a trip. What is my budget and when do I fly?", ("What is my budget", "when do I fly?")),
    ],
)
def test_a_question_for_several_things_is_taken_apart(question: str, expected: tuple[str, ...]) -> None:
    assert decompose_question(question) == expected


@pytest.mark.parametrize(
    "question",
    [
        "What is my budget?",
        "How much do I spend on bread and butter?",
        "What do I like about rock and roll?",
        "Is it black and white?",
        "When did I meet people on a hike and have a bad time?",
        "I like tea and I live in Rome.",
        "Ann and Bob are here.",
        "What do Ann, Bob and Eve collect?",
        "What is this and that and what is it and where is it and who is it and why is it?",
        "What about Ann and Ann?",
        "and when?",
        "",
        "?",
        "我住在哪里？",
    ],
)
def test_a_question_for_one_thing_or_too_many_stays_whole(question: str) -> None:
    assert decompose_question(question) == ()


@given(st.text(max_size=200))
def test_any_text_gives_none_or_a_few_different_parts(text: str) -> None:
    found = decompose_question(text)
    assert len(found) in {0, *range(2, MOST_PARTS + 1)}
    assert len(set(found)) == len(found)
    assert all(part.strip() for part in found)


def test_who_writes_a_page_is_taken_at_their_word() -> None:
    assert decompose_question("What is my budget and " + "when do I fly and " * 10_000) == ()


def test_the_questions_of_a_message_that_tells_more_than_it_asks_are_not_torn_from_it() -> None:
    both = "Where do I live? And when do I fly?"
    assert split_questions(both) == ("Where do I live?", "And when do I fly?")
    assert split_questions(f"Quick one. {both}") == ("Where do I live?", "And when do I fly?")
    told = (
        "We booked the clockwise loop for May, the van is paid for and the hut by the lake is ours for two nights."
    )
    assert split_questions(f"{told} What's next? Do you need anything?") == ()
