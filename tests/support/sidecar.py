"""Our own server with both paths canned, in process, on a free port."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from prometheus_client import CollectorRegistry

from memory_extproc.concurrency import Background
from memory_extproc.extproc.exchange import ExchangeDeps
from memory_extproc.extproc.observer import MemoryGetter, RequestObserver, encode_handover
from memory_extproc.extproc.processor import SERVICE, Processor, message_options
from memory_extproc.extproc.response_capture import BodyMemoryBudget, ExchangeAccounts
from memory_extproc.extproc.server import GrpcServer, ServerOptions
from memory_extproc.model import Memory, MemoryType, Outcome, Owner, Ranked, RecallResult, Source, digest
from memory_extproc.observe.metrics import Metrics
from memory_extproc.request.admission import Admission
from memory_extproc.request.enricher import BlockInserter, Enricher, InjectionPlanner, PermissionReader
from memory_extproc.request.identity import AllowedPeers, Identity
from memory_extproc.request.policy import Rules
from memory_extproc.request.replay import BlockReplay
from memory_extproc.settings import CurrentSettings, Settings
from memory_extproc.settings.identity import IdentitySection
from memory_extproc.settings.traffic import RuleSection
from memory_extproc.testing.adapters import InMemoryStore
from tests.support.canned import CannedRecalls, RecordedTurns

MIB = 1024 * 1024
BLOCK = "<memories>\n- The budget for the Hawaii trip is $10,000\n</memories>"
NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


def request_settings(**changes: Any) -> Settings:
    """Settings with *changes*, at the top or in one of `_SECTIONS`. There is much time: a busy machine is no fault
    of what is tested."""
    found: Settings = Settings()
    usual = {"deadline": timedelta(seconds=90), "caller_cpu": 0.0, "unknown_window_budget": 512}
    for key, value in {**usual, **changes}.items():
        if key in Settings.model_fields:
            found = found.model_copy(update={key: value})
            continue
        [name] = [name for name in _SECTIONS if key in type(getattr(found, name)).model_fields]
        section = getattr(found, name).model_copy(update={key: value})
        found = found.model_copy(update={name: section})
    return found


_SECTIONS = ("memory", "limits", "inject", "recall", "envoy")


def used(content: str = "The budget for the Hawaii trip is $10,000") -> RecallResult:
    """What recall gives when it found one memory."""
    memory = Memory(
        id=digest("test", content),
        owner=Owner("", "ann"),
        type=MemoryType.SEMANTIC,
        content=content,
        source=Source.RULES,
        created_at=NOON,
        updated_at=NOON,
    )
    return RecallResult(
        outcome=Outcome.USED, block=BLOCK, memories=(Ranked(memory, 0.9),), path="hybrid", tokens=20,
    )  # fmt: skip


class Sidecar:
    """What a test changes (options, recalls, rules…) it changes before `async with`."""

    def __init__(self) -> None:
        self.metrics = Metrics(CollectorRegistry(), "test")
        self.recalls = CannedRecalls(used())
        self.learns = RecordedTurns()
        self.options = request_settings()
        self.identity = IdentitySection()
        self.rules: tuple[RuleSection, ...] = ()
        self.process_bytes = 64 * MIB
        self.background_grace = timedelta(seconds=5)
        self.request_waits = timedelta(seconds=2)
        self.last_reply_waits = timedelta(milliseconds=200)
        self.peers: AllowedPeers | None = None
        self.two_filters = False
        self.gets: MemoryGetter = InMemoryStore(2, now=lambda: NOON)
        self.replays: BlockReplay
        self.server_options = ServerOptions(
            address="127.0.0.1:0", drain_wait=timedelta(0), grace=timedelta(seconds=5)
        )
        self.server: GrpcServer
        self.held = BodyMemoryBudget(lambda: self.process_bytes, self.metrics)
        self._stack = contextlib.AsyncExitStack()

    @property
    def port(self) -> int:
        return self.server.port

    async def __aenter__(self) -> Self:
        background = await self._stack.enter_async_context(Background(self.metrics, grace=self.background_grace))
        deps = self._workshop(background)
        overhears = None
        if self.two_filters:
            overhears = RequestObserver(self.gets, self.replays, CurrentSettings(self.options))
            deps = replace(deps, hands=encode_handover)
        processor = Processor(deps, self.peers, overhears)
        self.server = GrpcServer(
            replace(self.server_options, channel=tuple(message_options(self.options.limits.request_body))),
            [SERVICE],
            processor.register,
        )
        await self._stack.enter_async_context(self.server)
        await self.server.set_ready(ready=True)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    def _workshop(self, background: Background) -> ExchangeDeps:
        self.held = BodyMemoryBudget(lambda: self.process_bytes, self.metrics)
        identity = Identity(self.identity)
        replays = self.replays = BlockReplay(
            CurrentSettings(self.options), background=background, metrics=self.metrics, now=lambda: NOON
        )
        return ExchangeDeps(
            admits=Admission(self.options, identity),
            enriches=Enricher(
                self.options,
                PermissionReader(self.options, identity, Rules(self.rules)),
                InjectionPlanner(self.options, self.recalls, replays, self.metrics),
                BlockInserter(self.options, replays, self.metrics),
                replays,
            ),
            follows=replays,
            learns=self.learns,
            held=self.held,
            background=background,
            metrics=self.metrics,
            accounts=ExchangeAccounts(self.metrics),
            now=lambda: NOON,
            request_bytes=self.options.limits.request_body,
            answer_bytes=self.options.limits.answer_capture,
            request_waits=self.request_waits,
            last_reply_waits=self.last_reply_waits,
        )

    def exchanges(self, outcome: Outcome, dialect: str = "chat_completions") -> float:
        labels = {"dialect": dialect, "outcome": outcome.value}
        return self.metrics.registry.get_sample_value("memory_extproc_exchanges_total", labels) or 0.0

    def sample(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"memory_extproc_{name}", labels) or 0.0
