"""Whether words are about the person who says them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from memory_extproc.language.words import LEXICONS, fold

_LONGEST_READ = 4000  # characters
# One regular expression per language, for configuration to repeat, shorten or extend.
DEFAULT_PATTERNS: tuple[str, ...] = tuple(lexicon.person for lexicon in LEXICONS.values())


def compile_patterns(patterns: Iterable[str]) -> re.Pattern[str]:
    """One pattern that matches where any of *patterns* does, whatever the case. re.error names a bad one."""
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns), re.IGNORECASE)


_DEFAULT = compile_patterns(DEFAULT_PATTERNS)


def about_caller(text: str, patterns: re.Pattern[str] | None = None) -> bool:
    """Whether *text* speaks in the first person ("What's my budget?"). Typographic apostrophes count as
    straight ones. Errs towards yes: it decides whether to search, and a needless search costs little. Of a
    long text its beginning and its end are read: people put their own words around what they paste."""
    if len(text) > 2 * _LONGEST_READ:
        text = f"{text[:_LONGEST_READ]}\n{text[-_LONGEST_READ:]}"
    return (patterns or _DEFAULT).search(fold(text)) is not None
