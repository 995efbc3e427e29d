"""The pieces that are kept of a message that is too long for all of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_extproc.learn.messages import ChunkLimits, both_ends, pieces

USUAL = ChunkLimits()
LINES = [
    f"2026-03-01 12:{at % 60:02d} worker-{at} finished batch {at * 37} in {at % 900} ms" for at in range(2_000)
]


def pasted(*, line: str, at: int) -> str:
    return "\n".join([*LINES[:at], line, *LINES[at:]])


@pytest.mark.parametrize("at", [0, 20, 1_000, 1_995, 2_000], ids=["first", "early", "middle", "late", "last"])
def test_what_somebody_says_of_themselves_in_a_paste_of_2000_lines_is_kept_wherever_it_stands(at: int) -> None:
    own = "My tax adviser is called Ottilie and I see her on May 9."
    found = pieces(pasted(line=own, at=at), USUAL)
    assert not found.whole
    assert len(found.texts) <= USUAL.pieces
    assert any(own in piece for piece in found.texts)


def test_own_words_among_the_lines_of_a_log_have_a_piece_to_themselves() -> None:
    own = "I need this by Friday,\nmy boss Ramona presents it."
    for at in (1_000, 2_000):
        assert own in pieces(pasted(line=own, at=at), USUAL).texts


def test_the_end_of_a_paste_is_kept_though_nobody_speaks_there() -> None:
    found = pieces("\n".join(LINES), USUAL)
    assert LINES[0] in found.texts[0]
    assert LINES[-1] in found.texts[-1]


def test_of_what_is_too_long_to_be_read_both_ends_are() -> None:
    text = "\n".join(LINES)
    found = both_ends(text, 10_000)
    assert 9_900 < len(found) <= 10_000
    assert set(found.split("\n")) - {""} <= set(LINES)
    assert found.startswith(LINES[0])
    assert found.endswith(LINES[-1])
    assert both_ends(text, len(text)) == text


@given(st.text(max_size=300), st.integers(min_value=8, max_value=300))
def test_both_ends_are_never_longer_than_they_may_be(text: str, most: int) -> None:
    assert len(both_ends(text, most)) <= most


@pytest.mark.parametrize(
    "own", ["Meine Steuerberaterin sitzt in Kassel.", "j'ai deux soeurs", "\u6211\u5728\u676d\u5dde\u5de5\u4f5c"]
)
def test_own_words_are_known_in_other_languages(own: str) -> None:
    assert any(own in piece for piece in pieces(pasted(line=own, at=1_000), USUAL).texts)


def test_a_line_without_end_has_own_words_of_nobody() -> None:
    found = pieces("x1 " * 40_000 + "and I like it", USUAL)
    assert len(found.texts) <= USUAL.pieces
    assert "I like it" in found.texts[-1]


@given(
    st.lists(
        st.sampled_from(["I like tea.", "my dog is old", "x = 1", "", "```", "# Title", "word " * 30]), max_size=80
    ),
    st.integers(min_value=1, max_value=12),
)
def test_pieces_of_what_is_too_long_stand_in_order_and_hold_nothing_twice(lines: list[str], most: int) -> None:
    text = "\n".join(f"{at} {line}" for at, line in enumerate(lines))
    found = pieces(text, ChunkLimits(tokens=12, pieces=most))
    assert len(found.texts) <= most
    at = 0
    for piece in found.texts:
        at = text.index(piece, at) + len(piece)
    if not found.whole:
        assert text.rstrip().endswith(found.texts[-1]) or most < 4
