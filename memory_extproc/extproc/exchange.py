"""An HTTP exchange as ext_proc shows it: the legal order of messages, and our replies.

Knows no gRPC, protobuf or clock, so a test drives it with plain values; `processor.py` pumps the real stream
through `handle`, and on `OutOfOrderError` ends that stream cleanly."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import Enum, auto
from typing import Any, Protocol

from memory_extproc.concurrency import Background
from memory_extproc.dialect.base import Answer
from memory_extproc.errors import MemoryExtprocError
from memory_extproc.extproc.response_capture import (
    BodyMemoryBudget,
    Capture,
    ExchangeAccounts,
    capture,
    is_router_flagged,
)
from memory_extproc.model import Arm, Exchanged, Outcome, Owner, TurnOutcome
from memory_extproc.model.headers import NOTHING, Headers, RequestHeaders
from memory_extproc.observe.log import NO_TRACES, Traces, Trail, logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import IncognitoMarker, Now, TurnLearner, TurnReceipts
from memory_extproc.recall.prompt_block import without_blocks
from memory_extproc.request.admission import EXPLAIN, NO_DIALECT, Admission, Admitted, Declined, Room
from memory_extproc.request.body import Enriched, PendingTurn
from memory_extproc.request.replay import InView

# Envoy's events and our replies as plain values: the exchange knows no protobuf.


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
    """Our answer to one event. The processor picks the message that answers the event's kind.

    A replaced body's content-length is the processor's to set: Envoy answers 500 by itself when a BUFFERED body
    and its content-length differ, so the two never travel apart."""

    set_headers: tuple[tuple[str, str], ...] = ()
    remove_headers: tuple[str, ...] = ()
    body: bytes | None = field(default=None, repr=False)
    chunk: Chunk | None = None
    to: type[Event] | None = None  # type of the answered event, where it may differ from the current event
    told: ExchangeMetadata | None = None
    handed: str | None = field(default=None, repr=False)  # for the observing filter: see observer.py
    passed: bool = False  # tells a second memory filter of the route that the request has been seen to
    ends: bool = False  # after this reply we end the stream: Envoy carries the exchange on alone


PASS = Reply()


log = logger(__name__)

STATUS = "x-memory-status"
# A cache in front must not serve an answer that contains a person's memories to other people.
UNCACHED = ("cache-control", "private, no-store")

# Digests of a request's body: a server that checks them would reject a changed body. RFC 9530, RFC 1864.
DIGESTS = ("content-digest", "repr-digest", "digest", "content-md5")

# Outcomes with which the learner has the turn, and with it a request to end the session.
ACCEPTED = frozenset(
    {TurnOutcome.JOURNALLED, TurnOutcome.JOURNAL_LATE, TurnOutcome.UNDECIDED, TurnOutcome.DUPLICATE}
)


class Phase(Enum):
    OPENED = auto()
    REQUEST = auto()  # the request's headers came, its body did not yet
    UPSTREAM = auto()  # the request is whole
    RESPONSE = auto()
    CLOSED = auto()


class OutOfOrderError(MemoryExtprocError):
    """Envoy sent a message that this phase does not allow: we disagree about the protocol."""


# (phase, message, last of its half?) -> next phase; absent combinations are illegal.
# A response may begin early: Envoy or another filter can answer before the request ends.
TRANSITIONS: Mapping[tuple[Phase, type[Event], bool], Phase] = {
    (Phase.OPENED, RequestHeaders, False): Phase.REQUEST,
    (Phase.OPENED, RequestHeaders, True): Phase.UPSTREAM,
    (Phase.REQUEST, RequestBody, False): Phase.REQUEST,
    (Phase.REQUEST, RequestBody, True): Phase.UPSTREAM,
    (Phase.REQUEST, RequestTrailers, True): Phase.UPSTREAM,
    # Trailers follow a BUFFERED body that is whole already.
    (Phase.UPSTREAM, RequestTrailers, True): Phase.UPSTREAM,
    **{
        (early, ResponseHeaders, last): Phase.CLOSED if last else Phase.RESPONSE
        for early in (Phase.OPENED, Phase.REQUEST, Phase.UPSTREAM)
        for last in (False, True)
    },
    (Phase.RESPONSE, ResponseBody, False): Phase.RESPONSE,
    (Phase.RESPONSE, ResponseBody, True): Phase.CLOSED,
    (Phase.RESPONSE, ResponseTrailers, True): Phase.CLOSED,
}


class RequestEnricher(Protocol):
    async def enrich(self, admitted: Admitted, body: bytes, *, watching: bool) -> Enriched: ...


class ConversationFollower(Protocol):
    def record_view(self, view: InView, response_id: str) -> None:
        """Record the model's input, for the request that will continue from its response."""


Hands = Callable[[PendingTurn, Enriched], str]  # encodes the handover from one filter to the other


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeDeps:
    """Parts shared by all exchanges of a process."""

    admits: Admission
    enriches: RequestEnricher
    follows: ConversationFollower
    learns: TurnLearner
    held: BodyMemoryBudget
    background: Background
    metrics: Metrics
    accounts: ExchangeAccounts
    now: Now
    request_bytes: int  # a larger body that comes in pieces is not collected
    answer_bytes: int
    request_waits: timedelta  # maximum delay of a whole body; below Envoy's message_timeout
    last_reply_waits: timedelta
    incognito: IncognitoMarker | None = None  # None: incognito is not tracked
    receipts: TurnReceipts | None = None  # None: no receipts
    hands: Hands | None = None  # None: no handover to another filter
    clock: Callable[[], float] = time.perf_counter  # seconds, monotonic
    traces: Traces = NO_TRACES
    tag: Callable[[Owner], str] = lambda _: ""  # the pseudonym of an owner in logs


@dataclass(frozen=True, slots=True)
class StreamMode:
    """How Envoy shows this exchange, as stated in the first message of a stream."""

    watching: bool = False  # observability mode: Envoy sends copies and ignores replies
    sends_body: bool = True  # BUFFERED: a single message with the whole body, whatever its end flag says
    streams_answer: bool = True
    duplex_request: bool = False  # FULL_DUPLEX_STREAMED: see duplex.py
    duplex_answer: bool = False
    hands_over: bool = False  # another filter sees the answer and learns from our handover


class Exchange:
    def __init__(self, deps: ExchangeDeps, mode: StreamMode, trail: Trail | None = None) -> None:
        """*trail*: the ids for log lines."""
        self.phase = Phase.OPENED
        self._trail = trail or Trail()
        self._deps, self._mode = deps, mode
        self._admitted: Admitted | None = None  # None: not a chat request; every reply is PASS
        self._enriched: Enriched | None = None
        self._heard: PendingTurn | None = None
        self._capture: Capture | None = None
        self._body = bytearray()  # grows in observability mode only, where bodies come in pieces
        self._held_to_read = self._held_to_learn = 0
        self._flagged = False  # the router in front warns of the answer, or made it itself
        self._skip_reason: TurnOutcome | None = None  # why nothing can be learned, once that is known
        self._counted = self._concluded = False
        self._began = deps.now()

    async def handle(self, event: Event) -> Sequence[Reply]:
        """The replies to *event*, in order. OutOfOrderError leaves the state as it was."""
        last = event.last or (isinstance(event, RequestBody) and not self._mode.watching)
        step = (self.phase, type(event), last)
        if step not in TRANSITIONS:
            raise OutOfOrderError(f"{type(event).__name__} in {self.phase.name}")
        self.phase = TRANSITIONS[step]  # before any await: no message is handled twice
        match event:
            case RequestHeaders():
                reply = self._open_request(event)
            case RequestBody() if self._admitted is not None:
                reply = await self._answer_request(self._admitted, event.data)
            case RequestTrailers() if self._admitted is not None and self._mode.watching:
                reply = await self._answer_request(self._admitted, b"")
            case ResponseHeaders():
                reply = self._answering(event)
            case ResponseBody() if self._capture is not None:
                self._capture.add(event.data)
                reply = PASS
            case _:
                reply = PASS
        if self.phase is Phase.CLOSED and self._heard is not None:
            await self._deps.background.see_to_its_end(self._conclude(), self._deps.last_reply_waits)
        return (reply,)

    @property
    def may_end(self) -> bool:
        """Always true: Envoy keeps a message until it has our reply."""
        return True

    @property
    def observes(self) -> Capture | None:
        return self._capture if self.phase is Phase.RESPONSE else None

    @property
    def is_settled(self) -> bool:
        nothing_held = self._heard is None and not (self._held_to_read or self._held_to_learn)
        return self._counted and (self._concluded or nothing_held)

    def rescue(self) -> Sequence[Reply] | None:
        return None

    def refuse(self, outcome: Outcome) -> Reply:
        """The request's body goes on unread."""
        self._body.clear()
        self._give_back_read()
        self._enriched = Enriched(outcome=outcome)
        self._count(outcome)
        return Reply(told=ExchangeMetadata(outcome=outcome))

    async def leave(self, *, faulty: bool = False) -> None:
        """The stream is over, however it ended. Idempotent; runs to its end in the background."""
        if not self._counted:
            self._count(Outcome.UNAVAILABLE if faulty else Outcome.ABANDONED)
        await self._conclude()

    def _open_request(self, event: RequestHeaders) -> Reply:
        deps = self._deps
        removed = deps.admits.removals(event.headers)
        found = deps.admits.admit(event)
        if isinstance(found, Declined):
            self._count(found.outcome, found.dialect)
            return Reply(remove_headers=removed, told=ExchangeMetadata(outcome=found.outcome), ends=True)
        self._admitted = found
        self._trail.caller = self._deps.tag(found.caller.owner) if found.caller is not None else ""
        if not self._mode.sends_body:
            # STREAMED, BUFFERED_PARTIAL or NONE: in none of them can a body be changed without harm.
            self._count(Outcome.UNAVAILABLE)
            return Reply(remove_headers=removed, told=ExchangeMetadata(outcome=Outcome.UNAVAILABLE), ends=True)
        return Reply(remove_headers=removed, passed=True)

    async def _answer_request(self, admitted: Admitted, data: bytes) -> Reply:
        if self._enriched is not None:
            return PASS
        if not self._deps.held.reserve_read(len(data)):
            return self.refuse(Outcome.OVERLOADED)
        self._held_to_read += len(data)
        if self.phase is Phase.REQUEST:
            self._body += data
            return PASS
        body = bytes(self._body) + data if self._body else data
        self._body.clear()
        started = self._deps.clock()
        try:
            # A guard above the timeouts of the steps: if Envoy itself times out, the user gets an error unless
            # failure_mode_allow is set.
            waits = None if self._mode.watching else self._deps.request_waits.total_seconds()
            async with asyncio.timeout(waits), self._take_room(admitted, len(body)) as room:
                if room is Room.NONE:
                    return self.refuse(Outcome.OVERLOADED)
                admitted = replace(admitted, late=room is Room.LEARN)
                enriched = await self._deps.enriches.enrich(admitted, body, watching=self._mode.watching)
        except TimeoutError:
            log.warning("stream.held_too_long")
            return self.refuse(Outcome.OUT_OF_TIME)
        finally:
            self._give_back_read()
        took = timedelta(seconds=self._deps.clock() - started)
        self._enriched = replace(enriched, body=None, heard=None)  # frees both before the answer
        self._count(enriched.outcome)
        self._deps.accounts.count_request(enriched)
        handed = None
        if not self._mode.hands_over:
            self._hear(enriched.heard)
        elif enriched.heard is not None and self._deps.hands is not None:
            handed = self._deps.hands(enriched.heard, enriched)
        untrue = () if enriched.body is None else _untrue(admitted.headers, unpacked=enriched.unpacked)
        return Reply(body=enriched.body, remove_headers=untrue, told=_metadata_of(enriched, took), handed=handed)

    def _take_room(self, admitted: Admitted, size: int) -> AbstractAsyncContextManager[Room]:
        return nullcontext(Room.LEARN) if admitted.late else self._deps.admits.load.work(size)

    def _hear(self, heard: PendingTurn | None) -> None:
        if heard is None:
            return
        if not heard.store:
            # An answer of an incognito conversation is read for its id alone.
            self._skip_reason = None if heard.notes_response else heard.unkept
        elif not self._deps.held.reserve_learn(heard.size):
            self._skip_reason = TurnOutcome.PROCESS_LIMIT
        else:
            self._held_to_learn = heard.size
        # Without a lesson in it only whose session it was is kept.
        self._heard = (
            heard
            if heard.store and self._skip_reason is None
            else replace(heard, history=(), asked="", injected=(), in_view=None)
        )

    def _answering(self, event: ResponseHeaders) -> Reply:
        admitted, enriched = self._admitted, self._enriched
        if admitted is None or enriched is None:
            # Not ours, or answered before the request was whole: by Envoy itself, mostly (413, 408).
            return Reply(ends=self.phase is not Phase.CLOSED)
        headers = [(STATUS, enriched.status)]
        if enriched.given:
            headers.append((EXPLAIN, enriched.explanation))
        if enriched.personal or admitted.controls.redirected:
            headers.append(UNCACHED)
        return Reply(set_headers=tuple(headers), ends=not self._captures(admitted, event))

    def _captures(self, admitted: Admitted, event: ResponseHeaders) -> bool:
        """Whether the answer is worth seeing; else the stream ends and its chunks pass without us."""
        if self._heard is None or self._skip_reason is not None:
            return False
        if event.headers.get(":status") != "200":
            self._skip_reason = (
                TurnOutcome.NOT_OK
            )  # an upstream's error, or a local reply of Envoy or another filter
            return False
        self._flagged = is_router_flagged(event.headers)
        if self.phase is Phase.CLOSED:
            return False
        if not self._mode.streams_answer:
            self._skip_reason = TurnOutcome.UNREADABLE
            return False
        captured = capture(admitted.dialect, event.headers, self._deps.answer_bytes, self._deps.held)
        if isinstance(captured, TurnOutcome):
            self._skip_reason = captured
            return False
        self._capture = captured
        return True

    async def _conclude(self) -> None:
        """Learns from the exchange, once; gives back every byte."""
        if self._concluded:
            return
        self._concluded = True
        heard, captured = self._heard, self._capture
        self._heard = self._capture = None
        try:
            if heard is not None:
                await self._learn(heard, captured)
        finally:
            if captured is not None:
                captured.forget()
            self._give_back_read()
            self._give_back_learn()

    async def _learn(self, heard: PendingTurn, captured: Capture | None) -> None:
        stored = await self._store_turn(heard, captured)
        self._deps.metrics.turns.labels(stored.value).inc()
        if stored not in ACCEPTED and self._deps.receipts is not None:
            self._deps.receipts.note(heard.caller, heard.request_id, stored)
        if heard.ends_session and stored not in ACCEPTED:
            await self._deps.learns.end_session(heard.caller)

    async def _store_turn(self, heard: PendingTurn, captured: Capture | None) -> TurnOutcome:
        if self._skip_reason is not None or captured is None:
            return self._skip_reason or TurnOutcome.CUT_OFF
        answer = await captured.read()
        if isinstance(answer, TurnOutcome):
            return answer
        self._count_tokens(answer)
        if answer.damaged:
            self._deps.metrics.damaged_events.inc(answer.damaged)
        if heard.in_view is not None:
            for kept in filter(None, (answer.response_id, heard.conversation)):
                self._deps.follows.record_view(heard.in_view, kept)
        if heard.notes_response:
            if answer.response_id and self._deps.incognito is not None:
                await self._deps.incognito.mark_response(heard.caller.person.owner, answer.response_id)
            return heard.unkept
        if answer.failed:
            return TurnOutcome.NOT_OK
        if not answer.complete:
            return TurnOutcome.CUT_OFF
        return await self._deps.learns.accept(
            Exchanged(
                caller=heard.caller,
                history=heard.history,
                asked=heard.asked,
                # A refusal is no statement of the assistant, nor is an answer that a router gave in its place or
                # flagged.
                answered="" if answer.refused or self._flagged else without_blocks(answer.text),
                at=self._began,  # so that a forget during the answer covers this turn
                injected=heard.injected,
                origin=heard.origin,
                previous_response_id=heard.previous_response_id,
                response_id=answer.response_id,
                conversation=heard.conversation,
                ends_session=heard.ends_session,
                tools=heard.tools,
                request_id=heard.request_id,
            )
        )

    def _count(self, outcome: Outcome, dialect: str | None = None) -> None:
        if self._counted:
            return
        self._counted = True
        name = dialect or (self._admitted.dialect.name if self._admitted else NO_DIALECT)
        self._deps.metrics.exchanges.labels(name, outcome.value).inc()
        log.debug("exchange.decided", dialect=name, outcome=outcome.value)

    def _count_tokens(self, answer: Answer) -> None:
        """Count tokens, if the provider reports its cache: the two metrics form a ratio."""
        if answer.prompt_tokens is None or answer.cached_tokens is None:
            return
        if self._admitted is not None and self._enriched is not None:
            labels = (self._admitted.dialect.name, self._enriched.outcome.value)
            self._deps.metrics.prompt_tokens.labels(*labels).inc(answer.prompt_tokens)
            self._deps.metrics.cached_tokens.labels(*labels).inc(answer.cached_tokens)
            self._deps.accounts.count_answer(self._enriched, answer)

    def _give_back_read(self) -> None:
        self._deps.held.release_read(self._held_to_read)
        self._held_to_read = 0

    def _give_back_learn(self) -> None:
        self._deps.held.release_learn(self._held_to_learn)
        self._held_to_learn = 0


def _untrue(headers: Headers, *, unpacked: bool) -> tuple[str, ...]:
    """The headers that describe the original body and not the changed body."""
    packing = ("content-encoding",) if unpacked else ()
    return (*packing, *(name for name in DIGESTS if name in headers))


def _metadata_of(enriched: Enriched, took: timedelta) -> ExchangeMetadata:
    return ExchangeMetadata(
        outcome=enriched.outcome,
        count=enriched.count,
        tokens=enriched.tokens,
        took=took,
        arm=enriched.arm,
        explanation=enriched.explanation,
    )
