"""The kind of value that a question asks for, and the boundaries between statements."""

from __future__ import annotations

import pytest

from memory_extproc.text.persons import ValueKind, expected_answer_type
from memory_extproc.text.words import clauses


@pytest.mark.parametrize(
    ("question", "kind"),
    [
        ("Where do I work?", ValueKind.NAME),
        ("And where does my sister live?", ValueKind.NAME),
        ("Wo arbeite ich?", ValueKind.NAME),
        ("When is my birthday?", ValueKind.DAY),
        ("what day was I born on", ValueKind.DAY),
        ("How many people are on my team?", ValueKind.NUMBER),
        ("\u00bfCu\u00e1ntos hermanos tengo?", ValueKind.NUMBER),
        ("Who does my sister live with?", None),  # a place is a name, too, and answers nothing
        ("What's my name?", None),
        ("I know where I work.", None),
        ("", None),
    ],
)
def test_its_first_words_show_what_kind_of_value_a_question_asks_for(question: str, kind: ValueKind | None) -> None:
    assert expected_answer_type(question) is kind


def test_a_sentence_is_taken_apart_where_a_statement_may_end() -> None:
    assert clauses("My birthday is on August 21, so I won't be at work") == [
        "My birthday is on August 21",
        "so I won't be at work",
    ]
    assert clauses("I'm vegetarian and I can't stand coriander") == ["I'm vegetarian", "I can't stand coriander"]
    assert clauses("It costs 1,200") == ["It costs 1,200"]
    assert clauses(" ") == []
