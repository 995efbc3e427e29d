"""Log events: one fixed name per thing that happens, numbers and enums as fields, no person's words.

The name of a caller never stands in a log; `caller_tag` gives a keyed hash that an operator who holds the
key can reproduce.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import sys
from typing import TextIO

import structlog

from memory_extproc.model import Owner
from memory_extproc.observe.tracing import with_ids


def logger(name: str) -> structlog.stdlib.BoundLogger:
    bound: structlog.stdlib.BoundLogger = structlog.get_logger(name)
    return bound


def configure(level: str, form: str, stream: TextIO | None = None) -> None:
    """JSON lines or console text on *stream* (stderr by default). Called once, by commands."""
    numeric = logging.getLevelNamesMapping()[level.upper()]
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.dev.ConsoleRenderer(colors=(stream or sys.stderr).isatty())
    )
    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        with_ids,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
    ]
    if form == "json":
        processors.append(structlog.processors.format_exc_info)
    lines = _Lines(stream or sys.stderr)
    structlog.configure(
        processors=[*processors, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(numeric),
        logger_factory=lambda *_: lines,
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(level=logging.WARNING, stream=stream or sys.stderr)


class _Lines:
    """One line for each event. Where lines go can fail: a pipe's reader leaves, a disk is full. That is no reason
    to fail the request that wanted to log; the next line that can be written is followed by how many were not."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lost = 0

    def msg(self, line: str) -> None:
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):  # ValueError: it was closed
            self._lost += 1
            return
        if self._lost:
            lost, self._lost = self._lost, 0
            logger(__name__).warning("log.lines_lost", lines=lost)

    log = debug = info = warning = warn = error = exception = critical = fatal = failure = msg


class CallerTag:
    """Keyed hash of an owner for log lines: 12 hex digits, stable for one key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def __call__(self, owner: Owner) -> str:
        return hmac.new(self._key, owner.key.encode(), hashlib.sha256).hexdigest()[:12]
