"""Log events: one fixed name per thing that happens, numbers and enums as fields, no person's words.

The name of a caller never stands in a log; `caller_tag` gives a keyed hash that an operator who holds the
key can reproduce."""

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


# What happened to one exchange, found again elsewhere: the ids that its log lines carry, and its spans.
#
# Here are the ids and the traces that nobody collects. Those that are collected are in `otlp.py`, which alone
# imports OpenTelemetry.

# W3C Trace Context, 3.2: version, trace id, parent id, flags. Ids of zeros alone and version ff are none.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-([0-9a-f]{2})(?:-.*)?")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
_SAMPLED = 1
Field = str | int | float | bool
Work = Callable[[Owner, Sequence[Any]], Awaitable[None]]


class TraceParent(NamedTuple):
    """What a `traceparent` says. *trace_id*: 32 hex digits; empty when it says nothing that can be followed."""

    trace_id: str = ""
    sampled: bool = False

    @classmethod
    def parse(cls, header: str) -> TraceParent:
        found = _TRACEPARENT.fullmatch(header.strip())
        return cls(found[1], bool(int(found[2], 16) & _SAMPLED)) if found else cls()


class Trail:
    """The ids of one exchange, for as long as it lasts: work that began with it and serves others after it carries
    none of them."""

    def __init__(self, trace: TraceParent | None = None, request_id: str = "") -> None:
        self.trace = trace or TraceParent()
        # Envoy's own is a UUID; one that a client sent is not to bring words or lines into a log.
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
    """What a histogram shows as an example: the trace, where it is one that somebody collects."""
    trail = current()
    if trail is None or not trail.trace.sampled:
        return None
    return {"trace_id": trail.trace.trace_id}


_NOTHING: AbstractContextManager[None] = nullcontext()


class Span:
    """Of one exchange; of nothing, here."""

    trace = TraceParent()  # the one that it belongs to

    def active(self) -> AbstractContextManager[None]:
        """Stages inside become its children."""
        return _NOTHING

    def note(self, **fields: Field) -> None:
        """Numbers and words of ours, never anybody's."""

    def end(self) -> None: ...


class Traces:
    """Where spans go: nowhere, here."""

    def exchange(self, traceparent: str) -> Span:  # noqa: ARG002 - as those that are collected
        """A child of *traceparent*'s span; the first of a trace where that is none."""
        return _NO_SPAN

    def stage(self, name: str) -> AbstractContextManager[None]:  # noqa: ARG002
        return _NOTHING

    def show(self, **texts: str) -> None:
        """What people said and what is remembered, on the span that is active: only where an operator wants it."""

    def keep(self, turn_id: str) -> None:
        """The active span is what led to this turn."""

    def trace_step(self, name: str, work: Work) -> Work:  # noqa: ARG002
        """*work* on turns, as a span of its own that is linked to the exchanges that led to them. Its jobs are ids
        of turns, or tuples of them. Its log lines are about no single exchange."""

        async def step(owner: Owner, jobs: Sequence[Any]) -> None:
            with following(None):
                await work(owner, jobs)

        return step


_NO_SPAN = Span()
NO_TRACES = Traces()
