"""Long messages in pieces: what a piece may hold, where a message is cut, and that no word is lost."""

from __future__ import annotations

import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_extproc.learn.messages import ChunkLimits, pieces, weigh

USUAL = ChunkLimits()
ALL = ChunkLimits(pieces=1_000_000)
LETTERS = (
    "abcdefgh ABC \u00e9\u00df \u0416\u0438 \u05d0\u05d1 \u0e01\u0e33 \ud55c\uad6d \u6f22\u5b57\u304b\u306a\u3002"
    "0123 .,;!?-#`*|\n\n\t\u0301\U0001f468\u200d\U0001f469"
)
TEXTS = st.text(st.sampled_from(LETTERS), max_size=400) | st.text(max_size=400)
SMALL = st.builds(
    ChunkLimits,
    tokens=st.integers(min_value=1, max_value=30),
    bytes=st.integers(min_value=4, max_value=200),
    pieces=st.just(1_000_000),
)


def solid(text: str) -> str:
    """*text* without its blanks."""
    return "".join(text.split())


@given(TEXTS, SMALL)
def test_pieces_hold_every_character_in_order_and_none_twice(text: str, limits: ChunkLimits) -> None:
    found = pieces(text, limits)
    assert found.whole
    assert solid("".join(found.texts)) == solid(text)
    assert all(piece.strip() for piece in found.texts)


@given(TEXTS, SMALL)
def test_no_piece_is_longer_than_its_bounds(text: str, limits: ChunkLimits) -> None:
    for piece in pieces(text, limits).texts:
        assert len(piece.encode("utf-8", "surrogatepass")) <= limits.bytes
        # A sign that weighs more than a piece may is a piece of its own.
        assert weigh(piece) <= limits.tokens or len(piece) == 1 or weigh(piece) <= 2


@given(st.lists(st.text("abcdefghijk", min_size=1, max_size=12), max_size=200))
def test_words_that_fit_stay_whole(words: list[str]) -> None:
    text = " ".join(words)
    found = pieces(text, ChunkLimits(tokens=8, pieces=1_000_000)).texts
    assert " ".join(found).split() == words


@given(TEXTS)
def test_a_message_that_fits_is_one_piece_with_its_own_whitespace(text: str) -> None:
    if weigh(text) <= 200 and len(text) <= 2048:
        assert [piece.strip() for piece in pieces(text, USUAL).texts] == ([text.strip()] if text.strip() else [])


@given(st.text("\u0301\u0300ae\u200d\U0001f468\U0001f469\U0001f1e9\U0001f1ea\U0001f3fd", max_size=200))
def test_what_is_seen_as_one_character_stays_whole(text: str) -> None:
    for piece in pieces(text, ChunkLimits(tokens=40, pieces=1_000_000)).texts[1:]:
        stuck = unicodedata.category(piece[0])[0] == "M" or piece[0] in "\u200d\U0001f3fd"
        # More than thirty of them in a row are nobody's character.
        assert not stuck or any(run in text for run in _runs(piece[0]))


def _runs(first: str) -> list[str]:
    joined = (f"{a}{b}" * 8 for a in "\u0301\u200d\U0001f3fd" for b in "\u0300\U0001f468\U0001f469")
    return [first * 8, *joined]


def test_a_family_and_a_flag_are_never_parted() -> None:
    family, flag = "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea"
    for count in range(1, 9):
        found = pieces("x" * count + (family + flag) * 50, ChunkLimits(tokens=10, pieces=1_000_000)).texts
        joined = "|".join(found)
        assert joined.count(family) == 50
        assert joined.count(flag) == 50


def words(count: int) -> str:
    return " ".join(["word"] * (count - 1)) + " end."


def test_a_message_is_cut_at_its_headings_first() -> None:
    text = f"# Flights\n\n{words(90)}\n\n{words(40)}\n\n# Hotels\n\n{words(120)}\n"
    first, second = pieces(text, USUAL).texts
    assert first.startswith("# Flights")
    assert second.startswith("# Hotels")


def test_an_underlined_heading_is_a_heading() -> None:
    text = f"Flights\n=======\n{words(130)}\n\nHotels\n------\n{words(120)}"
    assert [piece.partition("\n")[0] for piece in pieces(text, USUAL).texts] == ["Flights", "Hotels"]


def test_a_heading_never_ends_a_piece() -> None:
    text = f"{words(190)}\n\n## Hotels\n\n{words(150)}"
    _, second = pieces(text, USUAL).texts
    assert second.startswith("## Hotels\n\nword")


def test_a_code_block_that_fits_stays_whole() -> None:
    code = "```python\n# not a heading\nfor one in many:\n    print(one)\n\n    count += 1\n```"
    text = f"{words(180)}\n\n{code}\n\n{words(130)}"
    assert code in pieces(text, USUAL).texts[1]


def test_long_code_is_cut_between_its_lines_and_keeps_their_indents() -> None:
    lines = [f"    total_{n} = price_{n} * amount_{n}" for n in range(60)]
    text = "```python\n" + "\n".join(lines) + "\n```"
    found = pieces(text, USUAL).texts
    assert len(found) > 2
    assert "\n".join(found) == text
    assert all(piece.startswith("    total_") for piece in found[1:])


def test_a_list_is_cut_between_its_items_and_not_within_them() -> None:
    items = [f"- thing {n} which is so long that it\n  goes on in a second line" for n in range(40)]
    found = pieces("\n".join(items), USUAL).texts
    assert "\n".join(found).split("\n- ") == "\n".join(items).split("\n- ")
    assert all(piece.startswith("- thing") for piece in found)


def test_a_wrapped_paragraph_is_cut_between_sentences() -> None:
    said = "We went to see Dr. Smith on the 3rd. He\nsaid that all is well and that nothing was the\nmatter."
    text = " ".join([said] * 20)
    for piece in pieces(text, USUAL).texts:
        assert piece.startswith(("We went", "He"))
        assert piece.endswith(("3rd.", "matter."))


def test_chinese_is_cut_behind_its_full_stops() -> None:
    for piece in pieces("我的预算是一万美元，我们打算五月去夏威夷。" * 60, USUAL).texts:
        assert piece.startswith("我的")
        assert piece.endswith("。")


def test_a_table_of_figures_is_cut_between_its_rows() -> None:
    rows = [f"{n},{n * 37 % 1000},{n * 91 % 10_000}.50,Maui" for n in range(200)]
    found = pieces("\n".join(rows), USUAL).texts
    assert [row for piece in found for row in piece.split("\n")] == rows


def test_a_short_rest_is_not_left_alone() -> None:
    first, second = pieces(" ".join(["word"] * 210), USUAL).texts
    assert weigh(second) >= 60
    assert weigh(first) + weigh(second) == 210


def test_no_more_pieces_than_allowed_and_it_is_told() -> None:
    found = pieces("word " * 10_000, ChunkLimits(pieces=3))
    assert len(found.texts) == 3
    assert not found.whole
    assert pieces("word " * 500 + "\n" * 50, ChunkLimits(pieces=3)).whole


def test_nothing_is_no_piece() -> None:
    assert pieces("", USUAL).texts == pieces(" \n\t \n", USUAL).texts == ()


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("x" * 1_000_000, id="one endless word"),
        pytest.param("word, " * 170_000, id="one line"),
        pytest.param("\n" * 1_000_000, id="blank lines"),
        pytest.param(" " * 999_999 + "x", id="blanks"),
        pytest.param("# a\n" * 250_000, id="headings"),
        pytest.param("```\n" * 250_000, id="fences"),
        pytest.param("." * 1_000_000, id="dots"),
        pytest.param("e\u0301" * 500_000, id="accents"),
        pytest.param("a" + "\u0301" * 1_000_000, id="one character, to the eye"),
        pytest.param("\U0001f1e9" * 1_000_000, id="flags"),
        pytest.param("漢字。" * 330_000, id="ideographs"),
        pytest.param("1,2,3;" * 170_000, id="figures in one line"),
    ],
)
def test_a_megabyte_of_anything_costs_little(text: str) -> None:
    """Milliseconds, in truth; the bound is for what grows with the square of a message."""
    started = time.process_time()
    pieces(text, USUAL)
    assert time.process_time() - started < 1.0
