"""Which messages become memories, before any model is asked."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_extproc.learn.remember import Decision, cut, judge, memories_of, provenance
from memory_extproc.model import MemoryType, Origin, Role, Source
from tests.builders import ANN, BOB, MONDAY, OTHER_ANN, a_turn, later


def test_both_messages_of_a_turn_are_remembered_as_they_were_said_with_their_place() -> None:
    turn = a_turn(
        "My budget is $10,000.",
        "Then Maui in May is within reach.",
        session="s",
        seq=4,
        project="trip",
        origin=Origin(app="chat", model="qwen3"),
    )
    asked, answered = memories_of(turn, later(hours=1))
    assert (asked.content, asked.role, asked.seq) == ("My budget is $10,000.", Role.USER, 4)
    assert (answered.content, answered.role, answered.seq) == (
        "Then Maui in May is within reach.",
        Role.ASSISTANT,
        5,
    )
    for memory in (asked, answered):
        assert (memory.type, memory.source, memory.owner) == (MemoryType.EPISODIC, Source.VERBATIM, ANN)
        assert (memory.session, memory.project, memory.origin) == ("s", "trip", "app=chat model=qwen3")
        assert (memory.created_at, memory.valid_from, memory.updated_at) == (MONDAY, MONDAY, later(hours=1))
        assert memory.recallable(later(days=900))


@pytest.mark.parametrize(
    ("asked", "answered", "expected"),
    [
        ("Hi!", "Hello! How can I help you today?", (Decision.POLITE, Decision.POLITE)),
        ("What's my budget?", "I don't know your budget.", (Decision.QUESTION, Decision.REFUSAL)),
        ("My dog is Rex.", "Got it!", (Decision.KEPT, Decision.POLITE)),
        ("My dog is Rex.", "Great, your dog is Rex.", (Decision.KEPT, Decision.ECHO)),
        ("I want to travel.", "What is your budget?", (Decision.KEPT, Decision.QUESTION)),
        ("  ", "", (Decision.EMPTY, Decision.EMPTY)),
        ("Is Paris big?", "Paris has two million people.", (Decision.QUESTION, Decision.KEPT)),
    ],
)
def test_each_message_is_judged_by_what_it_holds(
    asked: str, answered: str, expected: tuple[Decision, Decision]
) -> None:
    assert tuple(one.decision for one in judge(a_turn(asked, answered), MONDAY)) == expected


def test_a_question_is_kept_as_context_and_never_recalled() -> None:
    question, _ = memories_of(a_turn("Where is Maui?", "Maui is part of Hawaii."), MONDAY)
    assert question.source is Source.QUESTION
    assert not question.recallable(MONDAY)


def test_what_repeats_an_injected_memory_is_not_remembered_again() -> None:
    turn = a_turn(
        "My budget for the Hawaii trip is $10,000.",
        "Your budget is $10,000.",
        injected=("User's budget for the Hawaii trip is $10,000",),
    )
    assert [one.decision for one in judge(turn, MONDAY)] == [Decision.ECHO, Decision.ECHO]


def test_a_statement_put_together_from_words_of_two_memories_is_new() -> None:
    turn = a_turn("My budget is $10,000.", injected=("User's budget is $5,000", "User's car cost $10,000"))
    assert judge(turn, MONDAY)[0].decision is Decision.KEPT


def test_remembering_again_gives_the_same_ids_and_no_two_owners_share_one() -> None:
    turn = a_turn("My dog is Rex.", "Rex is a fine name for a dog in Texas.")
    again = memories_of(turn, later(days=1))
    ids = {memory.id for memory in memories_of(turn, MONDAY)}
    assert {memory.id for memory in again} == ids
    assert len(ids) == 2
    for other in (BOB, OTHER_ANN):
        assert ids.isdisjoint(memory.id for memory in memories_of(replace(turn, owner=other), MONDAY))


def test_times_have_whole_seconds_and_writing_is_never_before_saying() -> None:
    turn = a_turn("My dog is Rex.", at=MONDAY + timedelta(microseconds=5))
    (memory,) = memories_of(turn, MONDAY - timedelta(days=1))
    assert (memory.created_at, memory.updated_at) == (MONDAY, MONDAY)


@given(st.text(), st.integers(min_value=0, max_value=40))
def test_a_cut_text_fits_and_holds_no_half_character(text: str, most: int) -> None:
    kept = cut(text, most)
    assert len(kept.encode()) <= most
    assert text.encode("utf-8", "replace").decode().startswith(kept)


def test_a_long_message_is_kept_up_to_the_length_of_the_field() -> None:
    asked, _ = memories_of(a_turn("I keep bees. " * 10_000, "Bees make honey."), MONDAY)
    assert len(asked.content.encode()) == 8192


def test_an_origin_without_names_is_empty() -> None:
    assert provenance(Origin()) == ""


def test_a_message_too_long_to_be_judged_is_kept() -> None:
    assert [one.decision for one in judge(a_turn("why? " * 1000, "sorry, no. " * 1000), MONDAY)] == [
        Decision.KEPT
    ] * 2
