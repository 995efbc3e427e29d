"""The query of a search: its words, their sources, and a model's rewriting of them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_extproc.errors import TransientError
from memory_extproc.recall.query import (
    LONGEST,
    MOST_REWRITES,
    QueryTexts,
    Rewrite,
    Rewriter,
    parse_queries,
    plain_query,
)
from memory_extproc.testing.models import CannedCompletions

SOON = timedelta(seconds=5)
TWO = "What is my budget and when do I fly?"


def a_rewriter(answer: str | Exception, *, when: Rewrite = Rewrite.ALWAYS, **more: bool) -> Rewriter:
    return Rewriter(CannedCompletions([answer]), when, **{"hyde": False, **more})


def test_without_a_model_the_words_themselves_are_searched_for() -> None:
    assert plain_query("  What is\n my budget for the trip? ", ()) == QueryTexts("What is my budget for the trip?")


def test_a_question_for_two_things_is_searched_for_in_its_parts_too_where_that_is_wanted() -> None:
    assert plain_query(TWO, ()).texts == (TWO,)
    assert plain_query(TWO, (), take_apart=True).texts == (TWO, "What is my budget", "when do I fly?")


async def test_up_to_two_rewrites_are_searched_for_beside_the_words_as_they_were_said() -> None:
    query = await a_rewriter("budget for Hawaii\nflight to Hawaii\na third one").query("And that one?", (), SOON)
    assert query == QueryTexts("budget for Hawaii", others=("flight to Hawaii", "And that one?"))


async def test_a_rewrite_that_changes_nothing_is_not_searched_for_twice() -> None:
    query = await a_rewriter("What is my budget?").query("What is my budget?", (), SOON)
    assert query.texts == ("What is my budget?",)


async def test_a_model_that_fails_leaves_the_parts_of_the_question() -> None:
    query = await a_rewriter(TransientError("down"), take_apart=True).query(TWO, (), SOON)
    assert query == plain_query(TWO, (), take_apart=True)


async def test_a_supposed_answer_stands_beside_the_queries_on_one_line() -> None:
    query = await a_rewriter("User's budget\nis $5,000", when=Rewrite.OFF, hyde=True).query("My budget?", (), SOON)
    assert query == QueryTexts("My budget?", supposed="User's budget is $5,000")


async def test_no_answer_is_supposed_to_what_asks_nothing() -> None:
    model = CannedCompletions([])
    query = await Rewriter(model, Rewrite.OFF, hyde=True).query("I spent too much in Hawaii.", (), SOON)
    assert query == QueryTexts("I spent too much in Hawaii.")
    assert model.asked == []


async def test_what_stands_for_itself_is_not_rewritten_when_only_vague_words_are() -> None:
    model = CannedCompletions([])
    query = await Rewriter(model, Rewrite.VAGUE, hyde=False).query("What is my budget for Hawaii?", (), SOON)
    assert query == QueryTexts("What is my budget for Hawaii?")
    assert model.asked == []


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("budget", ("budget",)),
        ("1. budget\n2. flight", ("budget", "flight")),
        ("- \u201cbudget\u201d\n\n* 'flight'", ("budget", "flight")),
        ("Here are the queries:\nbudget", ("budget",)),
        ("budget\nbudget", ("budget",)),
        ("  \n ", ()),
        ("", ()),
        ("the user's 10.5 km run", ("the user's 10.5 km run",)),
    ],
)
def test_queries_are_read_whatever_marks_a_model_puts_around_them(answer: str, expected: tuple[str, ...]) -> None:
    assert parse_queries(answer) == expected


@given(st.text())
def test_any_answer_gives_at_most_two_queries_of_bounded_length(answer: str) -> None:
    found = parse_queries(answer)
    assert len(found) <= MOST_REWRITES
    assert all(0 < len(query) <= LONGEST for query in found)
