"""Envoy's events and our replies as plain values: the exchange knows no protobuf."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from memory_extproc.model import Arm, Outcome
from memory_extproc.model.headers import NOTHING, Headers, RequestHeaders


@dataclass(frozen=True, slots=True)
class RequestBody:
    data: bytes = field(repr=False)
    last: bool


@dataclass(frozen=True, slots=True)
class RequestTrailers:
    last: bool = True


@dataclass(frozen=True, slots=True)
class ResponseHeaders:
    headers: Headers
    last: bool
    metadata: Mapping[str, Any] = field(default_factory=lambda: NOTHING, repr=False)  # as in RequestHeaders


@dataclass(frozen=True, slots=True)
class ResponseBody:
    data: bytes = field(repr=False)
    last: bool


@dataclass(frozen=True, slots=True)
class ResponseTrailers:
    last: bool = True


Event = RequestHeaders | RequestBody | RequestTrailers | ResponseHeaders | ResponseBody | ResponseTrailers


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeMetadata:
    """Dynamic metadata of an exchange for Envoy: for access logs, rate limits and bills. It holds neither caller
    nor words."""

    outcome: Outcome
    count: int = 0  # memories that the upstream sees
    tokens: int = 0  # estimated, of all that was added
    took: timedelta = timedelta()  # delay of the request by memory, from the end of its body
    arm: Arm = Arm.NONE
    explanation: str = ""  # the ids of these memories, as the response header has them


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a body that goes on, in FULL_DUPLEX_STREAMED."""

    data: bytes = field(repr=False)
    last: bool


@dataclass(frozen=True, slots=True)
class Reply:
    """Our answer to one event. The codec picks the message that answers the event's kind.

    A replaced body's content-length is the codec's to set: Envoy answers 500 by itself when a BUFFERED body
    and its content-length differ, so the two never travel apart."""

    set_headers: tuple[tuple[str, str], ...] = ()
    remove_headers: tuple[str, ...] = ()
    body: bytes | None = field(default=None, repr=False)
    chunk: Chunk | None = None
    to: type[Event] | None = None  # type of the answered event, where it may differ from the current event
    told: ExchangeMetadata | None = None
    handed: str | None = field(default=None, repr=False)  # for the filter that watches (handover.py)
    passed: bool = False  # tells a second memory filter of the route that the request has been seen to
    ends: bool = False  # after this reply we end the stream: Envoy carries the exchange on alone


PASS = Reply()
