"""A block of ours that comes back in a caller's words is not the caller's."""

from __future__ import annotations

import pytest

from memory_extproc.recall.prompt_block import CLOSING, OPENING, OPENING_AGAIN, without_blocks
from tests.unit.extproc.talking import BUDGET, SEAT, Talk, a_desk

ECHO = f"{OPENING}\n- [2026-03-02] {BUDGET}\n{CLOSING}"


async def test_a_block_that_comes_back_in_the_callers_words_is_not_the_callers() -> None:
    talk = Talk(a_desk())
    await talk.ask(f"my budget?\n\n{ECHO}")
    await talk.ask(f"hi\n\n{ECHO}")
    assert [wish.asked for wish in talk.desk.recalls.wishes] == ["my budget?", "hi"]
    heard = talk.last.heard
    assert heard is not None
    assert heard.asked == "hi"
    assert [message.text for message in heard.history] == ["my budget?", "About my budget?: yes."]
    assert talk.keeps_its_beginning


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("plain", "plain"),
        (f"a\n\n{ECHO}", "a"),
        (f"{ECHO}{ECHO}", ""),
        (f"a\n\n{OPENING_AGAIN}\n- [2026-03-02] {SEAT}\n{CLOSING}", "a"),
        (f"{ECHO}\n\nb", "\n\nb"),
        ("<memory>mine</memory>", "<memory>mine</memory>"),
        (f"a {OPENING} and no end", f"a {OPENING} and no end"),
        (f"{CLOSING} a\n{ECHO} b {CLOSING}", f"{CLOSING} a b {CLOSING}"),
    ],
)
def test_only_a_whole_block_of_our_shape_is_taken_out(text: str, left: str) -> None:
    assert without_blocks(text) == left


def test_megabytes_of_what_looks_like_blocks_are_read_in_one_go() -> None:
    attack = CLOSING + f"{OPENING}\n" * 4000 + " " * 1_000_000
    assert without_blocks(attack) == attack
