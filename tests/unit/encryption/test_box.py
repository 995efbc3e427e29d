"""Sealed data is read with its owner's key, in its own place, whole, or not at all."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_extproc.encryption.keys import (
    OVERHEAD,
    KeyDestroyedError,
    context_of,
    seal,
    seal_text,
    sealable,
    unseal,
    unseal_text,
)
from memory_extproc.errors import PermanentError
from memory_extproc.model import DataKey

KEY = DataKey(b"k" * 8, b"s" * 32)
OTHER = DataKey(b"o" * 8, b"t" * 32)
HERE, THERE = context_of("content", "ann", "1"), context_of("content", "ann", "2")


@given(st.binary())
def test_what_was_sealed_comes_back(plain: bytes) -> None:
    sealed = seal(KEY, HERE, plain)
    assert unseal(KEY, HERE, sealed) == plain
    assert len(sealed) == len(plain) + OVERHEAD
    assert seal(KEY, HERE, plain) == sealed


def test_no_two_places_texts_or_keys_share_a_nonce() -> None:
    sealed = [seal(KEY, HERE, b"x"), seal(KEY, THERE, b"x"), seal(KEY, HERE, b"y"), seal(OTHER, HERE, b"x")]
    assert len({one[9:21] for one in sealed}) == 4


def test_it_cannot_be_read_elsewhere_or_by_another_owner() -> None:
    sealed = seal(KEY, HERE, b"secret")
    with pytest.raises(PermanentError):
        unseal(KEY, THERE, sealed)
    with pytest.raises(PermanentError):
        unseal(DataKey(KEY.id, OTHER.secret), HERE, sealed)


@pytest.mark.parametrize("key", [None, OTHER, DataKey(b"n" * 8, KEY.secret)])
def test_what_was_sealed_with_a_key_that_is_gone_is_told_from_what_is_damaged(key: DataKey | None) -> None:
    with pytest.raises(KeyDestroyedError):
        unseal(key, HERE, seal(KEY, HERE, b"secret"))


@given(st.data())
def test_a_single_wrong_byte_is_noticed(data: st.DataObject) -> None:
    sealed = bytearray(seal(KEY, HERE, b"my budget is $10,000"))
    sealed[data.draw(st.integers(0, len(sealed) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(PermanentError):
        unseal(KEY, HERE, bytes(sealed))


@given(st.binary(max_size=60))
def test_what_was_never_sealed_is_refused(junk: bytes) -> None:
    with pytest.raises(PermanentError):
        unseal(KEY, HERE, junk)


@pytest.mark.parametrize("junk", ["", "not base64!", "žluť", "AAAA", "\n"])
def test_text_that_was_never_sealed_is_refused(junk: str) -> None:
    with pytest.raises(PermanentError):
        unseal_text(KEY, HERE, junk)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_texts_come_back_and_are_ascii_meanwhile(text: str) -> None:
    sealed = seal_text(KEY, HERE, text)
    assert unseal_text(KEY, HERE, sealed) == text
    assert sealed.isascii()


def test_half_a_character_becomes_a_question_mark() -> None:
    assert unseal_text(KEY, HERE, seal_text(KEY, HERE, "a\ud800b")) == "a?b"


@given(st.integers(60, 10_000))
def test_what_is_sealable_fits_its_room(room: int) -> None:
    plain = "x" * sealable(room)
    assert len(seal_text(KEY, HERE, plain)) <= room
    assert len(base64.b64encode(b"x" * (sealable(room) + OVERHEAD + 3))) > room


def test_no_two_places_have_one_context() -> None:
    assert len({context_of("a", "bc"), context_of("ab", "c"), context_of("abc"), context_of("a", "b", "c")}) == 4


def test_a_key_is_never_printed() -> None:
    assert "secret" not in repr(KEY)
    assert "ssss" not in repr(KEY)
