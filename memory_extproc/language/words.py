"""Text into words, the same way everywhere: Unicode-aware, numbers, dates and money kept whole."""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

# Scripts written without spaces between words; a run of one of them is one token.
_HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_KANA = "\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f"
UNSPACED = f"[{_HAN}{_KANA}]"  # one such character, as a regular expression
_KANA_RUN = re.compile(f"[{_KANA}]")
_HAN_RUN = re.compile(f"[{_HAN}]")
_READ_FOR_LANGUAGE = 2000  # characters
_WORDS_READ_FOR_LANGUAGE = 300
_CURRENCY = "$\u20ac\u00a3\u00a5\u20b9\u20bd\u20a9"

_TOKEN = re.compile(
    rf"""
    [{_CURRENCY}]\s?\d+(?:[.,]\d+)*(?:\s?(?:k|m|bn|thousand|million|billion)\b)?  # $10,000, $10k, $ 1.5 million
  | \d+(?:[.,:/-]\d+)+(?:[%{_CURRENCY}]|\w+)?  # 10,000.50, 2024-05-03, 10:30am, 5/8
  | \d+[%{_CURRENCY}\u00b0]  # 20%, 500 with a currency behind it
  | {UNSPACED}+
  | [^\W_](?:[^\W_]|[\u0300-\u036f\u0900-\u0903\u093a-\u094f])*(?:['\u2019.+#_-](?=[^\W_])(?:[^\W_])+)*(?:\+\+|\#)?
    """,
    re.VERBOSE | re.IGNORECASE,
)
_APOSTROPHES = str.maketrans({"\u2019": "'", "\u2018": "'", "\u02bc": "'", "\u00b4": "'", "\u201b": "'"})
_POSSESSIVE = re.compile(r"(?<=\w)'s$|(?<=s)'$")
_ENGLISH_ENDINGS = ("ingly", "edly", "ies", "ing", "ed", "es", "s")
_SHORTEST_STEM = 3


@dataclass(frozen=True, slots=True)
class Lexicon:
    """What we know of one language."""

    language: str  # ISO 639-1
    stop: frozenset[str]
    negations: frozenset[str]
    person: str  # a regular expression for the speaker's own person


def _read(name: str) -> Mapping[str, Any]:
    return tomllib.loads((files(__package__) / name).read_text(encoding="utf-8"))


def _lexicons() -> Mapping[str, Lexicon]:
    parsed = _read("lexicon.toml")
    return {
        language: Lexicon(
            language, frozenset(fold(entry["stop"]).split()), frozenset(fold(entry["not"]).split()), entry["person"]
        )
        for language, entry in parsed.items()
    }


def fold(text: str) -> str:
    """Compatibility forms, case and typographic apostrophes evened out, for comparing; idempotent."""
    if text.isascii():  # has neither other forms nor other apostrophes
        return text.lower()
    # casefold may leave a form that NFKC composes anew, hence normalising after it as well
    folded = unicodedata.normalize("NFKC", text).translate(_APOSTROPHES).casefold()
    return unicodedata.normalize("NFKC", folded)


LEXICONS = _lexicons()
PHRASES = _read("phrases.toml")
ENGLISH = LEXICONS["en"]


def tokens(text: str) -> list[str]:
    """Words, numbers, dates and sums of money in order, as written: "$10,000" is one. Linear in *text*."""
    return _TOKEN.findall(text)


@lru_cache(maxsize=1024)
def _lexicon_of(words: frozenset[str]) -> Lexicon:
    best, most = ENGLISH, len(words & ENGLISH.stop)
    for lexicon in LEXICONS.values():
        hits = len(words & lexicon.stop)
        if hits > most:
            best, most = lexicon, hits
    return best


def lexicon_of(text: str) -> Lexicon:
    """The language whose small words *text* uses most; English when none stands out. A word such as
    "son" is a stop word in one language and a son in another, so lists are never merged."""
    beginning = text[:_READ_FOR_LANGUAGE]
    if _KANA_RUN.search(beginning):
        return LEXICONS["ja"]
    if _HAN_RUN.match(beginning.strip()):
        return LEXICONS["zh"]
    return _lexicon_of(frozenset(fold(token) for token in tokens(beginning)))


def lexicon_of_words(folded: Sequence[str]) -> Lexicon:
    """As `lexicon_of`, for words that are folded already."""
    beginning = folded[:_WORDS_READ_FOR_LANGUAGE]
    if any(_KANA_RUN.match(word) for word in beginning):
        return LEXICONS["ja"]
    if beginning and _HAN_RUN.match(beginning[0]):
        return LEXICONS["zh"]
    return _lexicon_of(frozenset(beginning))


def content_words(text: str) -> list[str]:
    """The tokens of *text* that mean something by themselves, in order, as written."""
    stop = lexicon_of(text).stop
    return [token for token in tokens(text) if _is_content(fold(token), stop)]


def _is_content(folded: str, stop: frozenset[str]) -> bool:
    bare = _POSSESSIVE.sub("", folded)
    if folded in stop or bare in stop:
        return False
    return len(bare) > 1 or bare.isdigit() or re.match(UNSPACED, bare) is not None


def stem(word: str) -> str:
    """A key under which the forms of one word meet ("lives", "living", "live"); not itself a word."""
    folded = _POSSESSIVE.sub("", fold(word))
    if not folded.isascii() or any(character.isdigit() for character in folded):
        return number_key(folded)
    for ending in _ENGLISH_ENDINGS:
        if folded.endswith(ending) and len(folded) - len(ending) >= _SHORTEST_STEM:
            folded = folded[: -len(ending)]
            break
    return folded.removesuffix("e").removesuffix("y").removesuffix("i")


_THOUSANDS = re.compile(r"(?<=\d)[, ](?=\d{3}(?!\d))")
_SCALES = {"k": 1_000, "thousand": 1_000, "m": 1_000_000, "million": 1_000_000, "bn": 1_000_000_000,
           "billion": 1_000_000_000}  # fmt: skip
_NUMBER = re.compile(rf"^[{_CURRENCY}]?\s?(\d+(?:\.\d+)?)\s?(k|m|bn|thousand|million|billion)?\s?[{_CURRENCY}]?$")


def number_key(token: str) -> str:
    """One key for one amount: "$10,000", "10k" and "10000" agree; what is no number comes back folded.

    The currency is dropped: people leave it out when they repeat a sum.
    """
    folded = fold(token).strip()
    matched = _NUMBER.match(_THOUSANDS.sub("", folded))
    if matched is None:
        return folded
    amount = float(matched[1]) * _SCALES.get(matched[2] or "", 1)
    return f"{amount:.10g}" if amount != int(amount) else str(int(amount))


def stems(text: str) -> frozenset[str]:
    """The stems of the content words of *text*; runs of unspaced scripts as pairs of characters."""
    return frozenset(_stems(content_words(text)))


def _stems(words: Iterable[str]) -> Iterator[str]:
    for word in words:
        if re.match(UNSPACED, word):
            yield from (word[at : at + 2] for at in range(max(1, len(word) - 1)))
        else:
            yield stem(word)


def negates(text: str) -> bool:
    """Whether *text* has a word that turns a sentence into its contrary, in its own language."""
    lexicon = lexicon_of(text)
    if lexicon.language in {"zh", "ja"}:
        return any(word in text for word in lexicon.negations)
    return any(fold(token) in lexicon.negations for token in tokens(text))
