"""Memories that the conversation shows already are not injected once more."""

from __future__ import annotations

import time

import pytest

from memory_extproc.recall.asked import View
from tests.support.builders import a_memory, a_message

BEES = "I keep forty hives of bees in Texas."
REPORT = f"# Hives\n\n{BEES}\n\n# Honey\n\nEach gives thirty pounds of honey a year."


@pytest.mark.parametrize(
    "text", [BEES, f"  {BEES}\n", BEES.upper(), BEES.replace(" ", "\n "), BEES.rstrip("."), f"{BEES}..."]
)
def test_a_message_that_the_conversation_repeats_is_seen_however_it_is_spaced(text: str) -> None:
    assert View(["Hello", text, "Bye"]).shows(a_message(BEES))


@pytest.mark.parametrize("text", ["", "I keep forty hives of bees.", f"{BEES} And cats.", "x" * 100_000])
def test_other_words_are_not(text: str) -> None:
    assert not View([text]).shows(a_message(BEES))
    assert not View([]).shows(a_message(BEES))


def test_a_piece_is_seen_in_the_long_message_that_it_is_a_piece_of() -> None:
    view = View(["Hello", REPORT])
    for number, content in enumerate([BEES, "Each gives thirty pounds of honey a year."]):
        piece = a_message(content, session="s", seq=3, metadata={"piece": number})
        assert view.shows(piece)
        assert not View(["Hello", "Bye"]).shows(piece)


def test_a_fact_that_a_message_happens_to_contain_is_told_all_the_same() -> None:
    assert not View([REPORT]).shows(a_memory("I keep forty hives of bees in Texas."))


def test_ten_thousand_messages_cost_little() -> None:
    texts = [f"Message {number} about hives and honey. " * 10 for number in range(10_000)]
    pieces = [a_message(f"{n} {BEES}", session="s", seq=1, metadata={"piece": n}) for n in range(20)]
    started = time.process_time()
    view = View(texts)
    assert not any(view.shows(piece) for piece in pieces)
    assert time.process_time() - started < 1.0
