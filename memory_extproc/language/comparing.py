"""Texts as they are compared: what clients send back differs in whitespace and Unicode form alone."""

from __future__ import annotations

import hashlib
import re
import unicodedata

# A number with its separators is one word, so that "$10,000" and "10 000" are the number they are.
_WORD = re.compile(r"\d+(?:[.,'\u00a0\u202f ]\d{3})+(?!\d)|\w+")
_SEPARATORS = re.compile(r"[.,'\u00a0\u202f ]")


def normal(text: str) -> str:
    """*text* with its whitespace collapsed and in one Unicode form."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def words_hash(text: str) -> str:
    """32 hex digits, the same for texts that are the same as they are compared."""
    return hashlib.blake2b(normal(text).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def word_set(text: str) -> frozenset[str]:
    """The words of *text*, case folded, numbers without their separators."""
    found = _WORD.findall(unicodedata.normalize("NFKC", text).casefold())
    return frozenset(_SEPARATORS.sub("", word) if word[0].isdigit() else word for word in found)
