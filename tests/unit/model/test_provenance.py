"""The stored form of a memory's provenance goes in and out unchanged, whatever a file holds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_extproc.model import Provenance, Rating, Trust

NAMES = sorted(Provenance.__struct_fields__)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)
STORED: dict[str, Any] = {
    "turn": "t1", "said": 1767607200.25, "ordinal": 0, "piece": 0, "subject": "user", "ends": True,
    "confidence": 0.9, "trust": "tool", "beside": ["f1"], "confirmations": 2, "also": {"t2": ["f2"], "t3": []},
    "derived": "reflection", "sources": ["f1", "f2"], "past": [], "made": 1767607201, "span": [0, 4],
    "rating": "wrong", "accessed": 1767607202, "mood": {"of": ["the", "owner"]},
}  # fmt: skip


def test_what_is_stored_is_read_and_written_back_the_same() -> None:
    known = Provenance.decode(STORED)
    assert (known.trust, known.rating, known.past, known.span) == (Trust.TOOL, Rating.WRONG, (), (0, 4))
    assert (known.also, known.extra) == ({"t2": ("f2",), "t3": ()}, {"mood": {"of": ["the", "owner"]}})
    assert json.dumps(known.encode(), sort_keys=True) == json.dumps(STORED, sort_keys=True)
    assert repr(known) == "Provenance(…)"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("turn", ["t1"]), ("turn", 7), ("turn", ""), ("said", 1e18), ("said", -1), ("said", "1"), ("said", True),
        ("piece", 1.5), ("piece", True), ("ends", 1), ("ends", False), ("trust", "a word of a later version"),
        ("rating", "none"), ("sources", "f1"), ("sources", {}), ("sources", []), ("also", ["t2"]), ("span", [0]),
        ("span", [0, "4"]), ("confirmations", "2"), ("extra", {"turn": "t1"}),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_kept_and_says_nothing(name: str, value: object) -> None:
    known = Provenance.decode({name: value})
    assert known.replace(extra={}) == Provenance()
    assert known.encode() == {name: value}


@given(st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=4), JSON, max_size=4))
def test_whatever_a_file_holds_is_read_and_reading_what_was_written_changes_nothing(
    metadata: dict[str, Any],
) -> None:
    known = Provenance.decode(metadata)
    assert Provenance.decode(known.encode()) == known
    assert known.encode().keys() == metadata.keys()


def test_a_later_value_takes_the_place_of_one_that_nobody_could_read() -> None:
    known = Provenance.decode({"merged": 7, "mood": "good"}).replace(merged="whole")
    assert known.encode() == {"merged": "whole", "mood": "good"}
    assert known.with_fields({"mood": "bad", "turn": "t1"}).encode() == {
        "merged": "whole", "mood": "bad", "turn": "t1",
    }  # fmt: skip
