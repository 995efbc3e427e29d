"""The log: one line for each event, and never a reason for anything to fail."""

from __future__ import annotations

import io
import json

import pytest

from memory_extproc.model import Owner
from memory_extproc.observe.log import CallerTag, configure, logger

log = logger("test")


class Failing(io.StringIO):
    """A stream whose other end can be away."""

    error: Exception | None = None

    def write(self, text: str) -> int:
        if self.error is not None:
            raise self.error
        return super().write(text)

    @property
    def events(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.getvalue().splitlines()]


def test_a_line_is_json_with_its_event_level_time_and_fields() -> None:
    stream = Failing()
    configure("info", "json", stream)
    log.debug("not.shown")
    log.info("store.up", rows=3)
    (event,) = stream.events
    assert (event["event"], event["level"], event["rows"]) == ("store.up", "info", 3)
    assert str(event["time"]).endswith("Z")


def test_for_people_a_line_is_plain_text() -> None:
    stream = Failing()
    configure("warning", "console", stream)
    log.info("not.shown")
    log.error("store.down", kind="TransientError")
    assert "store.down" in stream.getvalue()
    assert "not.shown" not in stream.getvalue()


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(28, "No space left on device"), ValueError("closed")])
def test_a_log_that_cannot_be_written_fails_nobody_and_tells_later_how_much_is_missing(error: Exception) -> None:
    stream = Failing()
    configure("info", "json", stream)
    stream.error = error
    log.info("store.down")
    log.error("store.down")
    stream.error = None
    log.info("store.up")
    log.info("store.open")
    events = [(event["event"], event.get("lines")) for event in stream.events]
    assert events == [("store.up", None), ("log.lines_lost", 2), ("store.open", None)]


def test_a_caller_is_tagged_by_key_and_never_named() -> None:
    tag = CallerTag(b"k" * 32)
    assert tag(Owner("acme", "ann")) == CallerTag(b"k" * 32)(Owner("acme", "ann"))
    assert (
        len({tag(Owner("acme", "ann")), tag(Owner("globex", "ann")), CallerTag(b"x" * 32)(Owner("acme", "ann"))})
        == 3
    )
    assert "ann" not in tag(Owner("acme", "ann"))
