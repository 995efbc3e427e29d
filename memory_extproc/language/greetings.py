"""Messages that are nothing but politeness."""

from __future__ import annotations

import re
import unicodedata

from memory_extproc.language.words import PHRASES, fold

LONGEST = 20  # characters; a longer message is never taken for a mere greeting


def _any_of(phrases: list[str]) -> str:
    # the longest first, so that "good morning" is not cut after "good"
    longest_first = sorted({_plain(phrase) for phrase in phrases}, key=len, reverse=True)
    return "|".join(re.escape(phrase) for phrase in longest_first)


def _plain(text: str) -> str:
    """Folded, with punctuation and symbols turned into single spaces; apostrophes within words stay."""
    kept = (
        character if character == "'" or unicodedata.category(character)[0] in "LMN" else " "
        for character in fold(text)
    )
    return " ".join("".join(kept).split())


# Atomic: "good morning" could also be read as two phrases, and a text of many would try all the ways.
_FILLER = rf"(?>(?:{_any_of(PHRASES['fillers'])})(?= |$))"
_PHRASE = rf"(?>(?:{_any_of(PHRASES['polite'])})(?= |$))"
_ONLY = re.compile(rf"(?:{_FILLER} )*{_PHRASE}(?: (?:{_PHRASE}|{_FILLER}))*+")
_EMOJI = frozenset(PHRASES["emoji"])
# variation selectors, the joiner and skin tones change how an emoji looks, not what it is
_SHAPERS = frozenset("\ufe0e\ufe0f\u200d\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff")


def polite(text: str) -> bool:
    """Whether *text*, of any length, is made of greetings, thanks, goodbyes and acknowledgements alone."""
    plain = _plain(text)
    if not plain:
        symbols = {character for character in text if not character.isspace()} - _SHAPERS
        return any(character in _EMOJI for character in symbols) and all(
            character in _EMOJI or unicodedata.category(character)[0] == "P" for character in symbols
        )
    return _ONLY.fullmatch(plain) is not None


def only_greeting(text: str) -> bool:
    """Whether *text* is nothing but a greeting, thanks, goodbye or acknowledgement of at most 20
    characters. "Hi, what's my budget?" is not."""
    stripped = text.strip()
    return 0 < len(stripped) <= LONGEST and polite(stripped)
