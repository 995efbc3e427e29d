"""Terms: what text is found by."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from memory_extproc.text.words import rarity, related_stems, terms, terms_in


def test_forms_of_a_word_meet_and_function_words_are_left_out() -> None:
    assert terms("She is hiking in the mountains") == terms("they hiked a mountain")


def test_sums_dates_and_numbers_are_kept_whole_and_agree_however_written() -> None:
    assert terms("My budget is $10,000")[0] == terms("budget: 10k")[0]
    assert "2024-05-03" in terms("due 2024-05-03")[0]


def test_words_are_stemmed_in_their_own_language() -> None:
    found, language = terms("Meine Wohnungen sind in Berlin und ich wohne gern dort")
    assert language == "de"
    assert found.count("wohn") == 1
    assert "wohnung" in found
    assert terms_in("Katze", "de") == terms_in("Katzen", "de")


def test_scripts_without_spaces_are_found_by_pairs_of_characters() -> None:
    assert set(terms("北京天气")[0]) <= set(terms("我住在北京天气很好")[0])


@given(st.text(max_size=400))
def test_any_text_has_terms_and_none_is_empty(text: str) -> None:
    found, _ = terms(text)
    assert all(found)


def test_a_word_of_a_hundred_thousand_letters_is_cut_before_it_is_stemmed() -> None:
    (only,) = terms("a" * 100_000)[0]
    assert len(only) <= 64


def test_words_close_in_meaning_are_known_and_a_name_has_none() -> None:
    assert dict(related_stems("pet")).keys() >= {"dog", "cat"}
    assert all(0.5 <= closeness <= 1 for _, closeness in related_stems("budget"))
    assert related_stems("xyzzyqu") == ()


def test_a_frequent_word_is_less_rare_than_a_seldom_one_and_a_name_is_rarest() -> None:
    assert 0 <= rarity("time") < rarity("pet") < rarity("xyzzyqu") == 1
