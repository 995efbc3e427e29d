"""One exchange with everything around it in plain sight: events in, replies out, what was learned."""

from __future__ import annotations

from datetime import timedelta
from itertools import count
from typing import Any

from prometheus_client import CollectorRegistry

from memory_extproc.concurrency import Background
from memory_extproc.extproc.duplex import DuplexExchange
from memory_extproc.extproc.exchange import (
    Event,
    Exchange,
    ExchangeDeps,
    ExchangeMetadata,
    Reply,
    RequestBody,
    ResponseHeaders,
    StreamMode,
)
from memory_extproc.extproc.response_capture import BodyMemoryBudget, ExchangeAccounts
from memory_extproc.model import Arm, Caller, Message, Origin, Outcome, Owner, Role, TurnOutcome
from memory_extproc.model.headers import Headers, RequestHeaders
from memory_extproc.observe.metrics import Metrics
from memory_extproc.request.admission import Admission, Admitted
from memory_extproc.request.body import Enriched, PendingTurn
from memory_extproc.request.identity import Identity
from memory_extproc.request.replay import InView
from memory_extproc.settings.identity import IdentitySection
from tests.support.canned import Before, RecordedTurns
from tests.support.sidecar import NOON, request_settings

ANN = Caller(Owner("", "ann"))
CHAT = RequestHeaders(
    Headers(
        [
            (":method", "POST"),
            (":path", "/v1/chat/completions"),
            ("content-type", "application/json"),
            ("x-authz-user-id", "ann"),
            ("x-memory-retrieve", "force"),
        ]
    ),
    last=False,
)
GET = RequestHeaders(Headers([(":method", "GET"), (":path", "/v1/models"), ("x-memory-store", "skip")]), last=True)
BODY = RequestBody(b"{}", last=True)
OK = ResponseHeaders(Headers([(":status", "200"), ("content-type", "application/json")]), last=False)
ANSWER = b'{"id": "c1", "choices": [{"index": 0, "message": {"content": "Ten."}, "finish_reason": "stop"}]}'


def heard(**changes: Any) -> PendingTurn:
    fields: dict[str, Any] = {
        "caller": ANN,
        "store": True,
        "history": (Message(Role.USER, "hello"),),
        "asked": "how much?",
        "origin": Origin(dialect="chat_completions"),
        "previous_response_id": "",
        "ends_session": False,
        "injected": ("a fact",),
    }
    return PendingTurn(**{**fields, **changes})


USED = Enriched(
    outcome=Outcome.USED,
    body=b'{"new": 1}',
    count=2,
    path="hybrid",
    tokens=40,
    arm=Arm.MEMORY,
    tenant="acme",
    heard=heard(),
)
QUARTER = timedelta(seconds=0.25)  # what everything takes here
TOLD = ExchangeMetadata(outcome=Outcome.USED, count=2, tokens=40, took=QUARTER, arm=Arm.MEMORY)


class Prepared:
    """An enricher that gives what a test says. Keeps the bodies it saw."""

    def __init__(self, enriched: Enriched | Exception) -> None:
        self.enriched = enriched
        self.bodies: list[bytes] = []
        self.before: Before | None = None  # awaited first: a place for slowness

    async def enrich(self, admitted: Admitted, body: bytes, *, watching: bool) -> Enriched:
        self.bodies.append(body)
        if self.before is not None:
            await self.before()
        if isinstance(self.enriched, Exception):
            raise self.enriched
        return self.enriched


class Followed:
    """Which response was made of which view."""

    def __init__(self) -> None:
        self.views: dict[str, InView] = {}

    def record_view(self, view: InView, response_id: str) -> None:
        self.views[response_id] = view


class Bench:
    """One exchange with everything around it in plain sight."""

    def __init__(
        self, enriched: Enriched | Exception = USED, mode: StreamMode | None = None, **options: Any
    ) -> None:
        self.metrics = Metrics(CollectorRegistry(), "test")
        self.learns = RecordedTurns(options.pop("stored", TurnOutcome.JOURNALLED), options.pop("before", None))
        process_bytes: int = options.pop("process_bytes", 1_000_000)
        self.held = BodyMemoryBudget(lambda: process_bytes, self.metrics)
        self.enriches = Prepared(enriched)
        self.follows = Followed()
        self.background = Background(self.metrics, grace=timedelta(seconds=1))
        request_waits = options.pop("request_waits", timedelta(seconds=5))
        wire = request_settings(**options)
        deps = ExchangeDeps(
            admits=Admission(wire, Identity(IdentitySection())),
            enriches=self.enriches,
            follows=self.follows,
            learns=self.learns,
            held=self.held,
            background=self.background,
            metrics=self.metrics,
            accounts=ExchangeAccounts(self.metrics, ["acme"]),
            clock=iter(count(step=0.25)).__next__,
            now=lambda: NOON,
            request_bytes=wire.limits.request_body,
            answer_bytes=wire.limits.answer_capture,
            request_waits=request_waits,
            last_reply_waits=timedelta(milliseconds=20),
            hands=lambda heard, enriched: f"{heard.asked} {enriched.outcome.value}",
        )
        self.deps = deps
        mode = mode or StreamMode()
        within = Exchange(deps, mode)
        duplex = mode.duplex_request or mode.duplex_answer
        self.exchange: Exchange | DuplexExchange = DuplexExchange(within, deps, mode) if duplex else within

    async def play(self, *events: Event) -> list[Reply]:
        """All replies; the exchange is left as when its stream ends after these events."""
        replies = [reply for event in events for reply in await self.exchange.handle(event)]
        await self.exchange.leave()
        await self.background.__aexit__()
        return replies

    def count(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"memory_extproc_{name}_total", labels) or 0.0

    def outcome(self, outcome: Outcome, dialect: str = "chat_completions") -> float:
        return self.count("exchanges", dialect=dialect, outcome=outcome.value)
