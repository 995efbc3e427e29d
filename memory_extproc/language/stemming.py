"""Text into the terms it is found by: function words out, the forms of a word under one key.

Stemmers are Snowball's (M. F. Porter, https://snowballstem.org), for the languages it has and we tell apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

import snowballstemmer

from memory_extproc.language.words import LEXICONS, PHRASES, UNSPACED, fold, lexicon_of_words, number_key, tokens

# Of English only the words that carry nothing at all: "first", "before" and "again" help to find a message.
_FUNCTION_WORDS = frozenset(PHRASES["function_words"].split())
_STEMMERS = {
    "en": "english", "de": "german", "fr": "french", "es": "spanish", "it": "italian", "pt": "portuguese",
    "nl": "dutch", "pl": "polish", "ru": "russian", "tr": "turkish", "hi": "hindi", "ar": "arabic",
}  # fmt: skip
_UNSPACED = re.compile(UNSPACED)
_LONGEST_WORD = 64  # characters; what is longer is no word, and stemming it would take long


def terms(text: str) -> tuple[list[str], str]:
    """The terms of *text* in order, repeated ones too, and the language they were made in (ISO 639-1). Runs of
    unspaced scripts become pairs of characters; numbers, dates and sums keep one key each."""
    words = [_folded(token) for token in tokens(text)]
    language = lexicon_of_words(words).language
    return _terms(words, language), language


def terms_in(text: str, language: str) -> list[str]:
    """As `terms`, in a language that is known."""
    return _terms([_folded(token) for token in tokens(text)], language)


def carries_meaning(word: str) -> bool:
    """Whether a folded word is no function word of English: "the" and "with" say nothing by themselves."""
    return word not in _FUNCTION_WORDS


def stemmed(word: str, language: str) -> str:
    """The key of one folded word; a number's is `number_key`."""
    if not word.isalpha() or len(word) > _LONGEST_WORD:
        return number_key(word[:_LONGEST_WORD])
    return _stemmed(word, language)


def _terms(words: Iterable[str], language: str) -> list[str]:
    stop = _FUNCTION_WORDS if language == "en" else LEXICONS[language].stop
    found: list[str] = []
    for word in words:
        if _UNSPACED.match(word):
            found.extend(word[at : at + 2] for at in range(max(1, len(word) - 1)))
            continue
        bare = word.partition("'")[0]
        if word not in stop and bare not in stop and (len(bare) > 1 or bare.isdigit()):
            found.append(stemmed(bare, language))
    return found


def _folded(token: str) -> str:
    return token.lower() if token.isascii() else fold(token)


@lru_cache(maxsize=65_536)
def _stemmed(word: str, language: str) -> str:
    name = _STEMMERS.get(language)
    return word if name is None else str(_stemmer(name).stemWord(word))


@lru_cache(maxsize=len(_STEMMERS))
def _stemmer(name: str) -> snowballstemmer.basestemmer.BaseStemmer:
    return snowballstemmer.stemmer(name)
