"""One thing said once is told once: of a message and what was drawn from it, what serves best goes in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from memory_extproc.model import Candidate, Memory, Provenance, Role, Source, Verdict
from memory_extproc.recall.rank import choose_ranked, weigh
from tests.support.builders import ANN, BOB, a_memory, a_message, later

NOW = later(days=3)


def said(content: str, turn: str = "t1", **changes: Any) -> Memory:
    return a_message(content, **{"session": "s", "seq": 4, "metadata": {"turn": turn}, **changes})


def fact(content: str, value: str, *, subject: str = "user", turn: str = "t1", **more: Any) -> Memory:
    named = {"subject": subject, "attribute": "", "value": value, "turn": turn, **more.pop("metadata", {})}
    return a_memory(content, **{"session": "s", "seq": 4, "metadata": named, **more})


def told(asked: str, *memories: Memory, limit: int = 5, **more: Any) -> list[Memory]:
    """Whom of *memories*, the best first, are injected when this is *asked*."""
    ordered = [Candidate(one, 9.0 - at, 0.9 - at / 100) for at, one in enumerate(memories)]
    weighed = weigh(ordered, now=NOW, threshold=0.6, limit=limit, asked=asked, **more)
    return [one.memory for one in choose_ranked(weighed)]


INITECH = said(
    "My sister Alice works at Initech as an auditor. She loves it there, and she has a cat called Bella."
)
WORKS = fact(
    "User's sister Alice works at Initech as an auditor", "Initech as an auditor", subject="user's sister alice"
)
CAT = fact("User's sister Alice has a cat called Bella", "Bella", subject="user's sister alice")


@pytest.mark.parametrize("fact_first", [True, False])
def test_where_the_fact_covers_what_is_asked_only_the_fact_is_given(*, fact_first: bool) -> None:
    both = (WORKS, INITECH) if fact_first else (INITECH, WORKS)
    assert told("Where does my sister Alice work?", *both) == [WORKS]


def test_where_more_is_asked_than_the_fact_covers_only_the_message_is_given() -> None:
    assert told("Does my sister love it at Initech?", WORKS, INITECH) == [INITECH]
    assert told("How is my sister?", WORKS, INITECH) == [INITECH]


def test_where_the_message_stands_ahead_and_no_kind_of_value_is_asked_for_it_is_given() -> None:
    assert told("My sister's work?", INITECH, WORKS) == [INITECH]


@pytest.mark.parametrize("limit", [1, 5])
def test_what_is_given_has_the_place_of_the_better_one(limit: int) -> None:
    tea = a_memory("User likes tea")
    assert told("How is my sister?", WORKS, tea, INITECH, limit=limit) == [INITECH, tea][:limit]


@pytest.mark.parametrize("asked", ["Which team do I lead?", "What is my team's stack?", ""])
def test_the_rest_of_the_very_sentence_is_never_lost(asked: str) -> None:
    message = said(
        "I lead the billing team, five engineers, we're on a Kotlin monolith that we're slowly carving up"
    )
    leads = fact("User leads the billing team, five engineers", "billing team, five engineers")
    assert told(asked, leads, message) == [message]


@pytest.mark.parametrize("rest", ["Carlos", "three", "tomorrow", "not"])
def test_a_name_a_number_a_day_or_a_not_in_the_sentence_is_never_lost(rest: str) -> None:
    message = said(f"I live in Madrid, {rest}")
    lives = fact("User lives in Madrid", "Madrid")
    assert message in told("Where do I live?", lives, message)


def test_greetings_questions_and_one_plain_word_beside_the_fact_are_no_loss() -> None:
    message = said("Hi, my sister Rosa has just moved to Madrid. What should I bring her?")
    lives = fact("User's sister Rosa lives in Madrid", "Madrid", subject="user's sister rosa")
    assert told("Where does my sister live?", lives, message) == [lives]
    assert told("Which city did my sister move to?", message, lives) == [message]


def test_a_message_that_tells_a_change_alone_is_given_as_the_fact_of_its_new_value() -> None:
    message = said("The wedding is now moved to June 27")
    wedding = fact("User's wedding is on June 27 in Kinsale", "on June 27 in Kinsale")
    assert told("Who am I?", message, wedding) == [wedding]
    elsewhere = said("The wedding is moved to June 27 because of Carlos")
    assert elsewhere in told("Who am I?", elsewhere, wedding)


def test_several_facts_ahead_of_a_message_stand_for_it_together() -> None:
    message = said("My sister Alice works at Initech and my brother Bo at Globex.")
    bo = fact("User's brother Bo works at Globex", "Globex", subject="user's brother bo")
    alice = fact("User's sister Alice works at Initech", "Initech", subject="user's sister alice")
    assert told("Where do they work?", alice, bo, message) == [alice, bo]
    assert told("Where do they work?", message, alice, bo) == [message]


def test_a_fact_that_the_message_does_not_say_in_its_own_words_is_given_beside_it() -> None:
    message = said("Let's say 10k, and we fly with Lufthansa.")
    budget = fact("User's budget for the trip to Hawaii is 10k", "10k")
    assert told("What did we settle?", message, budget) == [message, budget]
    she = said("She works at Initech, which is near.")
    assert told("And Alice?", she, WORKS) == [she, WORKS]


def test_a_fact_that_has_the_word_asked_for_is_not_left_out_for_a_message_without_it() -> None:
    message = said("I'm Alice, and I do machine learning.")
    name = fact("User's name is Alice", "Alice")
    assert told("What's my name, and what do I learn?", message, name) == [message, name]


def test_a_fact_of_several_turns_stands_for_all_of_them() -> None:
    first, again = said("I love sushi.", "t1", seq=0), said("I do love sushi!", "t2", seq=6)
    likes = fact("User loves sushi", "sushi", metadata={"drawn_from": ["t1", "t2"]}, session="", seq=0)
    assert told("What do I love?", first, again, likes) == [likes]
    confirmed = fact("User loves sushi", "sushi", seq=0, metadata={"also": {"t2": []}})
    assert told("What do I love?", again, confirmed, first) == [confirmed]


@pytest.mark.parametrize(
    "anew",
    [
        fact("User works at Globex", "Globex", turn="t9", seq=20, metadata={"corrects": ["t1"]}),
        fact("User works at Globex", "Globex", metadata={"revision": 2}, source=Source.API),
    ],
    ids=["replaced", "corrected by hand"],
)
def test_a_fact_corrected_since_is_given_instead_of_the_old_words(anew: Memory) -> None:
    old = said("I work at Initech and live in Rome.")
    assert told("Where do I work?", old, anew) == [anew]
    assert told("Where do I live and work?", old, anew) == [old, anew]
    assert told("", old, anew) == [old, anew]


def test_what_others_said_and_what_an_assistant_said_stands_for_itself() -> None:
    of_bob = replace(said("I work at Initech."), owner=BOB, id="bob's")
    answer = said("You work at Initech.", role=Role.ASSISTANT)
    works = fact("User works at Initech", "Initech", owner=ANN)
    assert told("Where do I work?", works, of_bob) == [works]  # the same words, found in another way
    assert told("Where do I work?", works, replace(of_bob, content="I work at Initech in Rome.")) == [
        works,
        replace(of_bob, content="I work at Initech in Rome."),
    ]
    more = replace(answer, content="You work at Initech in Rome.")
    assert told("Where do I work?", works, more) == [works, more]


@pytest.mark.parametrize("odd", [["t1"], {"t1": 1}, 7, "", None])
def test_metadata_of_any_shape_ends_no_recall(odd: Any) -> None:
    named = dict.fromkeys(("subject", "value", "turn", "also", "drawn_from", "corrects", "sources", "span"), odd)
    memories = [replace(one, provenance=Provenance.decode(named)) for one in (WORKS, INITECH)]
    assert told("Where does my sister Alice work?", *memories) == [memories[0]]


def test_a_fact_in_view_is_in_the_message_too() -> None:
    assert told("How is my sister?", WORKS, in_view=[INITECH.content]) == [
        WORKS
    ]  # which message says so is not found
    assert told("How is my sister?", WORKS, INITECH, in_view=[INITECH.content]) == []


def test_what_was_left_out_is_explained_as_told_already() -> None:
    weighed = weigh(
        [Candidate(WORKS, 9.0, 0.9), Candidate(INITECH, 8.0, 0.8)],
        now=NOW,
        threshold=0.6,
        limit=5,
        asked="Where does my sister work?",
    )
    assert [(one.memory, one.verdict) for one in weighed] == [
        (WORKS, Verdict.INJECTED),
        (INITECH, Verdict.DUPLICATE),
    ]


def test_what_was_forgotten_or_replaced_stands_for_nothing() -> None:
    gone = replace(WORKS, expires_at=later(days=1))
    assert told("Where does my sister work?", gone, INITECH) == [INITECH]


def test_the_facts_of_one_subject_told_together_stand_for_the_message_too() -> None:
    whole = a_memory(
        "User's sister Alice works at Initech as an auditor and has a cat called Bella",
        metadata={"derived": "subject", "sources": [WORKS.id, CAT.id]},
    )
    assert told("Where does my sister Alice work?", WORKS, CAT, INITECH, whole) == [whole]
    assert told("Where does my sister Alice work?", WORKS, INITECH, whole) == [WORKS]


def test_a_fact_too_weak_by_itself_goes_in_for_the_message_where_it_covers_what_is_asked() -> None:
    message = said("Hi, I'm Alice. I'm a data scientist. I work at Google.")
    works = fact("User works for Google", "Google")
    weak = [Candidate(message, 9.0, 0.8), Candidate(works, 3.0, 0.4, {"dense": 0.4})]
    asked = "Where do I work?"
    found = weigh(weak, now=NOW, threshold=0.6, limit=5, asked=asked)
    assert [(one.memory, one.relevance) for one in found if one.verdict is Verdict.INJECTED] == [(works, 0.8)]
    found = weigh(weak, now=NOW, threshold=0.6, limit=5, asked=asked, in_view=[message.content])
    assert choose_ranked(found) == ()  # what is in view needs no other words
    cosine = [replace_cosine(one, 0.7 if one.memory is message else 0.4) for one in weak]
    found = weigh(cosine, now=NOW, threshold=0.6, limit=5, asked=asked, on_cosine=True)
    assert [one.memory for one in choose_ranked(found)] == [
        message
    ]  # there nothing but its own cosine lets it pass


def replace_cosine(one: Candidate, cosine: float) -> Candidate:
    return Candidate(one.memory, one.score, one.relevance, {"dense": cosine})


@pytest.mark.parametrize(
    ("message", "content"),
    [
        ("I can't stand loud music", "User dislikes loud music"),
        ("I don't like loud music", "User dislikes loud music"),
        ("I hate loud music", "User dislikes loud music"),
        ("I never liked loud music", "User dislikes loud music"),
    ],
)
def test_a_not_in_other_words_is_the_same_not(message: str, content: str) -> None:
    both = told("What about loud music at the party?", said(message), fact(content, "dislikes"))
    assert len(both) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("User likes pizza", "User likes pizza a lot"),
        ("User really likes pizza", "User loves pizza"),
        ("User dislikes noise", "User doesn't like noise"),
    ],
)
def test_of_facts_that_differ_in_force_alone_the_better_is_given(one: str, other: str) -> None:
    first, second = fact(one, "likes", turn="t1"), fact(other, "likes", turn="t2")
    assert told("What do I like to eat?", first, second) == [first]
    assert told("What do I like to eat?", second, first) == [second]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("User likes pizza", "User dislikes pizza"),
        ("User likes pizza", "User has pizza"),
        ("User likes pizza", "User's sister likes pizza"),
        ("User likes pizza", "User likes pizza with olives"),
        ("User has a cat", "User has a cat allergy"),
    ],
)
def test_facts_that_differ_in_anything_else_are_both_given(one: str, other: str) -> None:
    both = [fact(one, "likes", turn="t1"), fact(other, "likes", turn="t2")]
    assert told("What about pizza and cats?", *both) == both
