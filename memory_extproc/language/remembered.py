"""What pure functions say of texts that are looked at over and over: their answers are kept, the texts are not."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

R = TypeVar("R")
MOST_REMEMBERED = 16_384  # answers: some 2 MB of them


def remembered(most: int) -> Callable[[Callable[[str], R]], Callable[[str], R]]:
    """At most *most* answers, by Python's own hash of the text, which is keyed anew for every process and computed
    once for a text that is held: a hundred memories are read for one question. Two texts of one hash and length
    are no event to expect. Used from any thread."""

    def around(function: Callable[[str], R]) -> Callable[[str], R]:
        known: dict[tuple[int, int], R] = {}

        @wraps(function)
        def asked(text: str) -> R:
            key = hash(text), len(text)
            try:
                return known[key]
            except KeyError:
                answer = function(text)
            if len(known) >= most:
                known.clear()
            known[key] = answer
            return answer

        return asked

    return around
