"""Server-sent events from bytes cut anywhere (WHATWG HTML, "Interpreting an event stream").

Only `event` and `data` are kept: `id` and `retry` concern reconnecting, which an observer never does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from memory_extproc.errors import BadBodyError

_BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\r|\n")

# The most one event or one unfinished line may hold before the stream is given up.
MAX_EVENT_BYTES = 4 * 1024 * 1024


class Event(NamedTuple):
    """One event: its name ("" if it has none) and its data lines joined by newlines, as UTF-8 bytes."""

    name: str
    data: bytes


class EventStream:
    """Turns chunks into events. Holds at most one unfinished event."""

    def __init__(self, limit: int = MAX_EVENT_BYTES) -> None:
        self._limit = limit
        self._line: list[bytes] = []  # pieces of the line that has not ended yet
        self._after_cr = False  # a LF that comes now belongs to the CR that ended the last chunk
        self._begun = False  # the place where a byte order mark may stand is behind us
        self._name = b""
        self._data: list[bytes] = []
        self._held = 0

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """The events that *chunk* completes; it is all read once they are all taken. BadBodyError when an
        event exceeds the limit."""
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        if not chunk:
            return
        first, *rest = _LINE_END.split(chunk)
        self._hold(first)
        if not rest:
            return
        self._after_cr = chunk.endswith(b"\r")
        for line in rest:
            if event := self._take(self._whole_line()):
                yield event
            self._hold(line)

    def remainder(self) -> Event | None:
        """The event that the stream's end cut off, as far as it came. The standard discards it; some servers
        leave out the last empty line. Nothing more may be fed."""
        self._take(self._whole_line())
        return self._take(b"")

    def _hold(self, piece: bytes) -> None:
        self._held += len(piece)
        if self._held > self._limit:
            raise BadBodyError(f"an event of more than {self._limit} bytes")
        if piece:
            self._line.append(piece)

    def _whole_line(self) -> bytes:
        line = b"".join(self._line)
        self._line.clear()
        if not self._begun:
            self._begun = True
            line = line.removeprefix(_BOM)
        return line

    def _take(self, line: bytes) -> Event | None:
        """Takes one line in; an empty one ends the event."""
        if not line:
            event = Event(self._name.decode("utf-8", "replace"), b"\n".join(self._data)) if self._data else None
            self._name, self._data, self._held = b"", [], 0
            return event
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._name = value
        else:
            self._held -= len(line)  # a comment, `id`, `retry` or a field we do not know: nothing is kept
        return None
