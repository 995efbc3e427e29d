from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from memory_extproc.text.words import estimate_tokens, fold, normalize


def test_english_costs_a_token_for_four_characters_and_ideographs_one_each() -> None:
    assert estimate_tokens("") == 0
    assert estimate_tokens("four") == 1
    assert estimate_tokens("four more") == 3
    assert estimate_tokens("我的预算") == 4
    assert estimate_tokens("мой") == 2


@given(st.text(), st.text())
def test_text_never_costs_less_for_being_longer_nor_more_for_being_joined(one: str, other: str) -> None:
    whole = estimate_tokens(one + other)
    assert whole >= max(estimate_tokens(one), estimate_tokens(other))
    assert whole <= estimate_tokens(one) + estimate_tokens(other)


def test_a_sign_that_stands_for_many_letters_does_not_make_a_text_longer() -> None:
    text = "\ufdfa" * 1_000
    assert len(fold(text)) <= len(text)
    assert normalize("NFC", f"{text}e\u0301") == f"{text}\u00e9"
