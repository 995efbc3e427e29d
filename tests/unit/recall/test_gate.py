from __future__ import annotations

import pytest

from memory_extproc.model import Outcome, Signals
from memory_extproc.recall.query import gate
from memory_extproc.text.persons import about_caller


@pytest.mark.parametrize(
    ("asked", "signals", "expected"),
    [
        ("run the tests", Signals(tool=True), Outcome.SKIPPED_TOOL),
        ("what is my budget?", Signals(tool=True, fact=True), Outcome.SKIPPED_TOOL),
        ("good morning to you all", Signals(greeting=True), Outcome.SKIPPED_GREETING),
        ("hi!", Signals(), Outcome.SKIPPED_GREETING),
        ("thanks", Signals(), Outcome.SKIPPED_GREETING),
        ("hi!", Signals(greeting=False), None),
        ("Hi, what's my budget?", Signals(), None),
        ("What is the capital of France?", Signals(fact=True), Outcome.SKIPPED_FACT),
        ("What is my budget for the trip?", Signals(fact=True), None),
        ("What\u2019s the name I\u2019ve given you?", Signals(fact=True), None),
        ("Wie hoch ist mein Budget?", Signals(fact=True), None),
        ("What is the capital of France?", Signals(), None),
        ("What is the capital of France?", Signals(fact=False), None),
        ("", Signals(), Outcome.NOTHING_RELEVANT),
        ("🤷 !!", Signals(), Outcome.NOTHING_RELEVANT),
    ],
)
def test_the_gate_lets_through_what_memory_can_help_with(
    asked: str, signals: Signals, expected: Outcome | None
) -> None:
    assert gate(asked, signals, about_caller) is expected
