"""Every log event is explained, as it is, on its page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.log_events import PAGE, Event, NotPlainError, events, explained, written

EVENTS: list[Event] = events()


def test_the_page_has_every_event_with_its_levels_and_fields() -> None:
    """`python -m scripts.log_events` writes the page anew; what happened is for whoever adds the event to say."""
    page = PAGE.read_text(encoding="utf-8")
    said = explained(page)
    assert page == written(EVENTS, said)
    assert [each.name for each in EVENTS if len(said[each.name]) < 15] == []


def test_an_event_is_called_by_what_it_is_about_and_what_became_of_it() -> None:
    assert [each.name for each in EVENTS if not re.fullmatch(r"[a-z_]+\.[a-z_]+", each.name)] == []


def test_no_field_is_called_as_what_must_not_stand_in_a_log() -> None:
    """Words, names and ids of people."""
    private = {
        "user",
        "user_id",
        "owner",
        "tenant",
        "session",
        "content",
        "text",
        "query",
        "asked",
        "memory_id",
        "id",
    }
    assert {name for each in EVENTS for name in each.fields} & private == set()


@pytest.mark.parametrize("line", ["log.info(name)", 'log.info(f"store.{state}")', 'log.info("store.up", **fields)'])
def test_an_event_that_the_page_could_not_show_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "part.py").write_text(line)
    with pytest.raises(NotPlainError):
        events(tmp_path)
