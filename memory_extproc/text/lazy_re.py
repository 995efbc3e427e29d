"""Stands in for `re` in modules with many patterns: they are compiled when they are first used.

Compiling the patterns of this package takes a second of a start, a third of all."""

from __future__ import annotations

import re
from contextlib import suppress
from re import DOTALL, IGNORECASE, MULTILINE, VERBOSE, Match, Pattern, error, escape, fullmatch, match, sub
from typing import Any, cast
from weakref import WeakValueDictionary

__all__ = [
    "DOTALL", "IGNORECASE", "MULTILINE", "VERBOSE", "LazyPattern", "Match", "Pattern", "compile", "compile_all",
    "error", "escape", "fullmatch", "match", "sub",
]  # fmt: skip

_METHODS = ("search", "match", "fullmatch", "finditer", "findall", "sub", "split")
_known: WeakValueDictionary[tuple[str, int], LazyPattern] = WeakValueDictionary()  # all that are referenced


class LazyPattern:
    """A pattern with the attributes and methods of `re.Pattern`, which stay bound once it is compiled."""

    def __init__(self, pattern: str, flags: int) -> None:
        self.pattern = pattern
        self._flags = flags
        self._compiled: Pattern[str] | None = None

    def compile(self) -> Pattern[str]:
        if self._compiled is None:
            self._compiled = re.compile(self.pattern, self._flags)
            for name in _METHODS:
                setattr(self, name, getattr(self._compiled, name))
        return self._compiled

    def __getattr__(self, name: str) -> Any:  # called for attributes that are not bound yet
        found = getattr(self.compile(), name)
        setattr(self, name, found)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return compile, (self.pattern, self._flags)


def compile(pattern: str, flags: int = 0) -> Pattern[str]:  # noqa: A001 - the name that it stands in for
    """As `re.compile`, but an error in *pattern* shows when it is first used."""
    known = _known.get((pattern, flags))
    if known is None:
        known = _known[pattern, flags] = LazyPattern(pattern, flags)
    return cast("Pattern[str]", known)


def compile_all() -> None:
    """Compile all patterns that were not used yet, so that no request needs to."""
    for pattern in list(_known.values()):
        with suppress(error):  # its user meets the error
            pattern.compile()
