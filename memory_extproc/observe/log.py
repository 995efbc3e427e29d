"""Log events: a fixed name per event, with numbers and enums as fields, without texts of users.

A log never contains the name of a caller; `CallerTag` gives a keyed hash that an operator with the key can
reproduce."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import sys
from collections.abc import Awaitable, Callable, Iterator, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, NamedTuple, TextIO

import structlog

from memory_extproc.model import Owner


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
    """Writes a line per event. A failure to write (a closed pipe, a full disk) must not fail the request; the
    number of lost lines is logged after the next successful write."""

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
    """Keyed hash of an owner for log lines: 12 hex digits, stable for a given key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def __call__(self, owner: Owner) -> str:
        return hmac.new(self._key, owner.key.encode(), hashlib.sha256).hexdigest()[:12]


# Tracing: the ids in an exchange's log lines, and its spans.
#
# This module has the ids and the null tracer. `otlp.py` has the tracer that exports spans, and alone imports
# OpenTelemetry.

# W3C Trace Context, 3.2: version, trace id, parent id, flags. Ids of zeros alone and version ff are none.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-([0-9a-f]{2})(?:-.*)?")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
_SAMPLED = 1
Field = str | int | float | bool
Work = Callable[[Owner, Sequence[Any]], Awaitable[None]]


class TraceParent(NamedTuple):
    """A parsed `traceparent`. *trace_id*: 32 hex digits; empty if the header is absent or invalid."""

    trace_id: str = ""
    sampled: bool = False

    @classmethod
    def parse(cls, header: str) -> TraceParent:
        found = _TRACEPARENT.fullmatch(header.strip())
        return cls(found[1], bool(int(found[2], 16) & _SAMPLED)) if found else cls()


class Trail:
    """The ids of an exchange while it is open. Work that outlives the exchange carries none of them."""

    def __init__(self, trace: TraceParent | None = None, request_id: str = "") -> None:
        self.trace = trace or TraceParent()
        # Envoy's own is a UUID; an id from a client must not bring words or line breaks into a log.
        self.request_id = request_id if _REQUEST_ID.fullmatch(request_id) else ""
        self.caller = ""  # keyed hash, once it is known
        self.open = True

    def ids(self) -> Iterator[tuple[str, str]]:
        named = (("trace_id", self.trace.trace_id), ("request_id", self.request_id), ("caller", self.caller))
        return (pair for pair in named if pair[1])


_TRAIL: ContextVar[Trail | None] = ContextVar("trail", default=None)


@contextmanager
def following(trail: Trail | None) -> Iterator[None]:
    """Everything inside, and every task that begins there, belongs to the exchange of *trail*; None: to none."""
    token = _TRAIL.set(trail)
    try:
        yield
    finally:
        _TRAIL.reset(token)


def current() -> Trail | None:
    trail = _TRAIL.get()
    return trail if trail is not None and trail.open else None


def with_ids(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A step of structlog's: adds the ids of the exchange that the line is about."""
    trail = current()
    if trail is not None:
        for name, value in trail.ids():
            event.setdefault(name, value)
    return event


def exemplar() -> dict[str, str] | None:
    """The exemplar of a histogram: the trace id, if the trace is sampled."""
    trail = current()
    if trail is None or not trail.trace.sampled:
        return None
    return {"trace_id": trail.trace.trace_id}


_NOTHING: AbstractContextManager[None] = nullcontext()


class Span:
    """The span of an exchange; here without effect."""

    trace = TraceParent()  # the trace of this span

    def active(self) -> AbstractContextManager[None]:
        """Make stages inside children of this span."""
        return _NOTHING

    def note(self, **fields: Field) -> None:
        """Add numbers and enum values, never texts of users."""

    def end(self) -> None: ...


class Traces:
    """Collects spans; here without effect."""

    def exchange(self, traceparent: str) -> Span:  # noqa: ARG002 - as those that are collected
        """Start a child of *traceparent*'s span, or a new trace without a valid parent."""
        return _NO_SPAN

    def stage(self, name: str) -> AbstractContextManager[None]:  # noqa: ARG002
        return _NOTHING

    def show(self, **texts: str) -> None:
        """Add texts of users and memories to the active span, if the operator enabled telemetry.content."""

    def keep(self, turn_id: str) -> None:
        """Link the turn to the active span."""

    def trace_step(self, name: str, work: Work) -> Work:  # noqa: ARG002
        """Wrap *work* on turns in a span linked to their exchanges. Its jobs are ids of turns, or tuples of ids.
        Its log lines belong to no exchange."""

        async def step(owner: Owner, jobs: Sequence[Any]) -> None:
            with following(None):
                await work(owner, jobs)

        return step


_NO_SPAN = Span()
NO_TRACES = Traces()
