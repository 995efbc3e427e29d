"""The explanation in a response's headers is bounded, and no id breaks it."""

from __future__ import annotations

from memory_extproc.model import Outcome
from memory_extproc.request.body import LONGEST_EXPLANATION, Enriched


def explained(*given: tuple[str, float | None]) -> str:
    return Enriched(outcome=Outcome.USED, given=given).explanation


def test_ids_and_relevance_in_their_order() -> None:
    assert explained(("a1", 0.91239), ("b2", None)) == '"a1";relevance=0.912, "b2"'
    assert explained() == ""


def test_an_id_of_any_characters_stays_one_printable_value() -> None:
    hostile = 'x", "y";relevance=1\r\nset-cookie: a=b\u202e\U0001f600'
    said = explained((hostile, 0.5))
    assert said.isascii()
    assert said.isprintable()
    assert said.count('"') == 2


def test_many_and_long_ids_are_cut_at_whole_entries() -> None:
    many = explained(*((f"{at:064d}", 0.5) for at in range(100)))
    assert len(many) <= LONGEST_EXPLANATION + 2
    assert many.count('"') % 2 == 0
    assert many.endswith(";relevance=0.500")
    assert explained(("i" * 5000, 0.5)) == ""
