"""Patterns are compiled when they are first used, or behind a start, and work as those of `re` do."""

from __future__ import annotations

import pickle
import re

import pytest

from memory_extproc.text import lazy_re
from memory_extproc.text.lazy_re import LazyPattern


def made(pattern: str, flags: int = 0) -> LazyPattern:
    found: object = lazy_re.compile(pattern, flags)
    assert isinstance(found, LazyPattern)
    return found


def test_a_pattern_is_compiled_by_its_first_use_and_by_the_work_behind_a_start() -> None:
    used, unused = made(r"first (\w+)", re.IGNORECASE), made(r"never (\w+)")
    assert used._compiled is unused._compiled is None
    assert used.search("My FIRST use")[1] == "use"
    assert used._compiled is not None
    assert unused._compiled is None
    lazy_re.compile_all()
    assert unused._compiled is not None


def test_equal_patterns_are_one_and_stay_what_they_are_on_the_way_to_another_process() -> None:
    pattern = made(r"so (?P<what>\w+)", re.IGNORECASE)
    assert made(r"so (?P<what>\w+)", re.IGNORECASE) is pattern is not made(r"so (?P<what>\w+)")
    assert pickle.loads(pickle.dumps(pattern)) is pattern  # noqa: S301 - our own
    assert (pattern.pattern, pattern.groupindex) == (r"so (?P<what>\w+)", {"what": 1})


def test_a_broken_pattern_says_so_when_it_is_used_and_stops_no_other() -> None:
    broken, whole = made("(unclosed"), made("closed")
    lazy_re.compile_all()
    assert whole._compiled is not None
    with pytest.raises(re.error, match="unterminated"):
        broken.search("x")
