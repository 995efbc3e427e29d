"""A function's result for a text is kept for a while, and the text itself is not."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

from memory_extproc.text.words import memoize_by_hash


class Counting:
    def __init__(self) -> None:
        self.asked: list[str] = []

    def read(self, text: str) -> int:
        self.asked.append(text)
        return len(text)


def counting(most: int) -> tuple[Counting, Callable[[str], int]]:
    counts = Counting()
    return counts, memoize_by_hash(most)(counts.read)


def test_a_text_is_read_once_and_others_by_themselves() -> None:
    counts, read = counting(10)
    assert [read(text) for text in ("one", "three", "one", "three", "")] == [3, 5, 3, 5, 0]
    assert counts.asked == ["one", "three", ""]


def test_answers_are_bounded_in_number_and_stay_right_beyond_it() -> None:
    counts, read = counting(2)
    assert [read("x" * length) for length in (1, 2, 3, 1, 3)] == [1, 2, 3, 1, 3]
    assert len(counts.asked) == 4


def test_no_text_is_held() -> None:
    held = _Held("words of a person")
    gone = weakref.ref(held)
    memoize_by_hash(10)(len)(held)
    del held
    gc.collect()
    assert gone() is None


class _Held(str):
    """A text that can be seen to go."""

    __slots__ = ("__weakref__",)
