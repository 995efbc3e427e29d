"""Which messages become memories, before any model is asked."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_extproc.learn.messages import ChunkLimits, MessageDecision, judge
from memory_extproc.model import MemoryType, Origin, Provenance, Role, Source, cut, format_origin, message_ids
from memory_extproc.store.milvus.rows import check_name
from tests.support.builders import ANN, BOB, MONDAY, OTHER_ANN, a_turn, later, memories_of


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
        ("Hi!", "Hello! How can I help you today?", (MessageDecision.POLITE, MessageDecision.POLITE)),
        ("What's my budget?", "I don't know your budget.", (MessageDecision.QUESTION, MessageDecision.REFUSAL)),
        ("My dog is Rex.", "Got it!", (MessageDecision.KEPT, MessageDecision.POLITE)),
        ("My dog is Rex.", "Great, your dog is Rex.", (MessageDecision.KEPT, MessageDecision.ECHO)),
        ("I want to travel.", "What is your budget?", (MessageDecision.KEPT, MessageDecision.QUESTION)),
        ("  ", "", (MessageDecision.EMPTY, MessageDecision.EMPTY)),
        ("Is Paris big?", "Paris has two million people.", (MessageDecision.QUESTION, MessageDecision.KEPT)),
    ],
)
def test_each_message_is_judged_by_what_it_holds(
    asked: str, answered: str, expected: tuple[MessageDecision, MessageDecision]
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
    assert [one.decision for one in judge(turn, MONDAY)] == [MessageDecision.ECHO, MessageDecision.ECHO]


def test_a_statement_put_together_from_words_of_two_memories_is_new() -> None:
    turn = a_turn("My budget is $10,000.", injected=("User's budget is $5,000", "User's car cost $10,000"))
    assert judge(turn, MONDAY)[0].decision is MessageDecision.KEPT


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


LONG_ANSWER = "\n\n".join(
    f"Day {day}: we walk from village {day} to the next and sleep there." for day in range(40)
)


def test_a_long_message_is_remembered_in_pieces_that_share_its_place() -> None:
    asked, *pieces = memories_of(a_turn("I plan my walk through Crete.", LONG_ANSWER, seq=4), MONDAY)
    assert asked.provenance == Provenance(turn=asked.provenance.turn)
    assert len(pieces) > 2
    assert "\n\n".join(piece.content for piece in pieces) == LONG_ANSWER
    assert {(piece.seq, piece.session, piece.role) for piece in pieces} == {(5, "session-1", Role.ASSISTANT)}
    assert [piece.provenance.piece for piece in pieces] == list(range(len(pieces)))
    assert len({piece.id for piece in pieces}) == len(pieces)


def test_the_pieces_of_a_long_question_are_context_and_never_recalled() -> None:
    found = memories_of(a_turn("What is Maui, and where is it? " * 60, ""), MONDAY)
    assert len(found) > 1
    assert {memory.source for memory in found} == {Source.QUESTION}


def test_two_long_messages_share_the_pieces_of_their_turn() -> None:
    long = "I keep bees. " * 10_000
    judged = judge(a_turn(long, long), MONDAY)
    kept = Counter(one.role for one in judged if one.memory is not None)
    assert kept == {Role.USER: 20, Role.ASSISTANT: 12}
    assert Counter(one.decision for one in judged)[MessageDecision.SURPLUS] == 2
    short = judge(a_turn("I keep bees.", long), MONDAY)
    assert Counter(one.role for one in short if one.memory is not None) == {Role.USER: 1, Role.ASSISTANT: 31}


def test_what_no_piece_holds_any_more_is_counted() -> None:
    judged = judge(a_turn("I keep bees. " * 10_000, "Bees make honey."), MONDAY)
    decisions = [one.decision for one in judged if one.role is Role.USER]
    assert decisions == [MessageDecision.KEPT] * 31 + [MessageDecision.SURPLUS]


def test_every_id_a_turn_may_leave_behind_is_known_whatever_was_answered() -> None:
    turn = a_turn("I keep bees. " * 10_000, "Bees make honey. " * 10_000)
    memories = memories_of(turn, MONDAY)
    assert len(memories) == 32
    assert {memory.id for memory in memories} <= set(message_ids(replace(turn, answered="")))


def test_no_memory_is_longer_than_the_stores_field() -> None:
    limits = ChunkLimits(tokens=10_000, bytes=100)
    for memory in memories_of(a_turn("蜜蜂" * 500, "🐝" * 500), MONDAY, limits):
        assert len(memory.content.encode()) <= 100


def test_an_origin_without_names_is_empty() -> None:
    assert format_origin(Origin()) == ""
    assert format_origin(Origin(model=" \0 ")) == ""


@pytest.mark.parametrize(
    "name", ["m" * 300_000, "é" * 2_000, "蜜" * 300, "half \ud83d a pair", "a\0b", "route-" * 80, " \n "]
)
def test_whatever_a_client_calls_its_model_or_application_the_store_takes_the_origin(name: str) -> None:
    for origin in (
        Origin(model=name),
        Origin(app=name),
        Origin(dialect="messages", model=name, route=name, app=name),
    ):
        check_name("origin", format_origin(origin))


def test_names_of_usual_length_are_kept_whole_however_long_another_is() -> None:
    origin = format_origin(Origin(dialect="responses", model="m" * 5_000, route="support-eu", app="chat"))
    assert origin.startswith("app=chat dialect=responses model=mmm")
    assert origin.endswith(" route=support-eu")


def test_a_message_too_long_to_be_judged_is_kept() -> None:
    judged = judge(a_turn("why? " * 1000, "sorry, no. " * 1000), MONDAY)
    assert {(one.role, one.decision) for one in judged} == {
        (Role.USER, MessageDecision.KEPT),
        (Role.ASSISTANT, MessageDecision.KEPT),
    }
