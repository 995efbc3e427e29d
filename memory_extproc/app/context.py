"""Shared context for the construction of a sidecar's parts."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from operator import attrgetter
from pathlib import Path

from prometheus_client import CollectorRegistry

from memory_extproc import __version__
from memory_extproc.concurrency import HELPER_THREAD, HelperThread, utc_now
from memory_extproc.encryption.keys import sealable
from memory_extproc.extproc.processor import message_options
from memory_extproc.extproc.server import ServerOptions, ServerTls
from memory_extproc.learn.extract.llm_client import Budget
from memory_extproc.learn.messages import PIECE_TOKENS, ChunkLimits
from memory_extproc.observe.log import NO_TRACES, CallerTag, Traces
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import CompletionModel, EmbeddingModel, Now
from memory_extproc.request.admission import LoadLimit
from memory_extproc.settings import CurrentSettings, Settings
from memory_extproc.settings.loading import Change, Fixed, merge_reload
from memory_extproc.settings.memory import ModelRole
from memory_extproc.store.loader import PartitionLimits
from memory_extproc.store.milvus.options import MilvusOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class AppContext:
    """The shared context. Parts are put on *stack* when opened, and closed in reverse order."""

    live: Live
    data: Path  # the data directory, which a sidecar holds alone
    metrics: Metrics
    stack: AsyncExitStack
    now: Now
    traces: Traces = NO_TRACES
    helper: HelperThread = HELPER_THREAD  # for long texts
    load: LoadLimit
    budget: Budget  # of the tokens of all calls to language models
    probes: bool = False  # probe each language model once, in the background

    @property
    def settings(self) -> Settings:
        """The current settings, for use during construction."""
        return self.live.settings


def make_context(
    settings: Settings,
    stack: AsyncExitStack,
    metrics: Metrics | None = None,
    *,
    now: Now = utc_now,
    data: Path | None = None,
) -> AppContext:
    """The context of a command or a tool. *data*: instead of the configured data directory."""
    live = Live(settings)
    return AppContext(
        live=live,
        data=data or Path(settings.data_dir).absolute(),
        metrics=metrics or Metrics(CollectorRegistry(), __version__),
        stack=stack,
        now=now,
        # Read at every request, and so without a Python function in between.
        load=LoadLimit(partial(attrgetter("settings.recall.max_concurrent"), live)),
        budget=Budget(lambda: live.settings.learn.model_tokens, now=now),
    )


# The live configuration and its subscribers.

Applies = Callable[[Settings], None]  # swaps frozen values; must not fail or wait


class Live(CurrentSettings):
    """The configuration in effect. Changed between two events, so that no reader sees a partial change."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.waiting: tuple[str, ...] = ()  # keys whose new values need a restart
        self.models: dict[tuple[ModelRole, ModelRole], CompletionModel] = {}  # by role, and by the role configured
        self._fixed = Fixed.from_settings(settings)
        self._follow: list[Applies] = []

    def subscribe(self, applies: Applies) -> None:
        self._follow.append(applies)

    def merge(self, wanted: Settings) -> Change:
        """Merge a new configuration. ConfigurationError if it conflicts with settings that need a restart."""
        return merge_reload(self.settings, wanted, self._fixed)

    def reconfigure(self, change: Change) -> None:
        self.settings, self.waiting = change.settings, change.waiting
        for applies in self._follow:
            applies(change.settings)


# Tracing and caller tags as configured.


async def open_traces(settings: Settings, stack: AsyncExitStack) -> Traces:
    telemetry = settings.telemetry
    if not telemetry.otlp_endpoint:
        return NO_TRACES
    from memory_extproc.observe.otlp import OtlpTraces  # noqa: PLC0415 - where it is configured

    endpoint, share = telemetry.otlp_endpoint, telemetry.trace_share
    traces = OtlpTraces(endpoint, __version__, share=share, content=telemetry.content)
    return await stack.enter_async_context(traces)


def caller_tag(settings: Settings) -> CallerTag:
    """The caller tag with the operator's key, or else with a random key per process."""
    return CallerTag(settings.privacy.hash_key.get_secret_value().encode() or secrets.token_bytes(32))


# Options: the mapping from the settings to the options of the parts.


def milvus_options(settings: Settings, data: Path, fingerprint: str) -> MilvusOptions:
    """The store's connection options."""
    return MilvusOptions(
        section=settings.memory.milvus,
        fingerprint=fingerprint,
        path=data / "milvus.db",
        encrypted=settings.privacy.encrypt_content,
        content_bytes=settings.limits.content_bytes,
    )


def piece_limits(settings: Settings, embedder: EmbeddingModel) -> ChunkLimits:
    """Chunk limits that fit the embedding window with a margin for estimation errors.

    Never longer than for the default model, because injected chunks should be specific."""
    tokens = min(PIECE_TOKENS, embedder.max_tokens * 4 // 5)
    return ChunkLimits(tokens=tokens, bytes=text_bytes(settings))


def text_bytes(settings: Settings) -> int:
    """The longest text of a memory, which with encryption must fit in its encrypted form."""
    content = settings.limits.content_bytes
    return sealable(content) if settings.privacy.encrypt_content else content


def partition_limits(settings: Settings) -> PartitionLimits:
    """Partition limits for Milvus Lite or a server.

    Milvus Lite runs in this process and blocks the interpreter: while a partition loads, response chunks wait. So
    it is read in small pages, for a single owner at a time; a server, with a round trip per page, in large pages.
    The first request of an owner waits for the load as long as its deadline leaves time for the store's own search.
    """
    limits = PartitionLimits(bytes=settings.recall.partition_bytes, patience=settings.deadline / 4)
    return limits if settings.memory.milvus.address else replace(limits, page=128, fills=1)


def server_options(settings: Settings) -> ServerOptions:
    tls = settings.tls
    return ServerOptions(
        address=settings.listen.ext_proc,
        also=settings.listen.ext_proc_unix,
        tls=ServerTls(Path(tls.cert), Path(tls.key), Path(tls.client_ca)) if tls.is_set else None,
        drain_wait=settings.shutdown.announce,
        grace=settings.shutdown.grace,
        channel=(
            *message_options(settings.limits.request_body),
            ("grpc.max_concurrent_streams", settings.limits.streams),
            # Limits against idle or hostile peers: unfinished handshakes, and streams reset as soon as they are
            # opened (CVE-2023-44487), each of which holds memory until it is gone.
            ("grpc.server_handshake_timeout_ms", 5_000),
            ("grpc.http2.max_requests_per_read", 32),
            ("grpc.http2.max_deallocating_streams", settings.limits.streams),
            ("grpc.http2.ping_on_rst_stream_percent", 1),
        ),
    )


def api_options(settings: Settings) -> ServerOptions:
    """Options of the memory API's port. It closes at once on shutdown: clients are told to retry elsewhere."""
    own, tls = settings.api.tls, None
    if own.is_set:
        tls = ServerTls(Path(own.cert), Path(own.key), Path(own.client_ca) if own.client_ca else None)
    given = server_options(settings)
    return replace(
        given,
        address=settings.listen.api,
        also="",
        light=False,
        tls=tls or given.tls,
        drain_wait=timedelta(),
        grace=timedelta(seconds=1),
    )
