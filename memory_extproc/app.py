"""The composition root: the one module that knows which adapter stands behind which port.

Lifetimes are one exit stack, so what was opened last is closed first: the server drains, what exchanges left
behind is finished, accepted turns are learned, and then journal, store and model close.
"""

from __future__ import annotations

import asyncio
import fcntl
import random
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR, CollectorRegistry

from memory_extproc import __version__
from memory_extproc.coordination.sqlite import SqliteCoordination
from memory_extproc.errors import ConfigurationError, MemoryExtprocError
from memory_extproc.inference.batching_embedder import EmbedderLimits
from memory_extproc.inference.cross_encoder import CrossEncoderLimits, open_cross_encoder
from memory_extproc.inference.model_directory import Precision, directory_of
from memory_extproc.inference.onnx_embedder import open_onnx_embedder
from memory_extproc.inference.sentence_transformers_embedder import open_sentence_transformers_embedder
from memory_extproc.language.persons import about_caller, compile_patterns
from memory_extproc.learn.extract import Extracts
from memory_extproc.learn.extractors import Fallback, Measured
from memory_extproc.learn.journal import SqliteJournal
from memory_extproc.learn.learner import Learner, LearnLimits
from memory_extproc.learn.llm_extractor import LlmExtractor
from memory_extproc.learn.pieces import PIECE_TOKENS, PieceLimits
from memory_extproc.learn.reconcile import Reconciler
from memory_extproc.learn.remember import judge
from memory_extproc.learn.rules_extractor import RulesExtractor
from memory_extproc.learn.sessions import SessionLimits, Sessions
from memory_extproc.observe.endpoint import OperationsEndpoint
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Completes, Coordination, Embeds, FindsMemories, Learns, Now, Reranks
from memory_extproc.recall.fusion import Fusion
from memory_extproc.recall.gate import AboutCaller
from memory_extproc.recall.llm_rerank import LlmReranker, LlmRerankLimits
from memory_extproc.recall.query import Rewrite, Rewriter
from memory_extproc.recall.recaller import Recaller, RecallLimits
from memory_extproc.recall.rerank import Reranker, RerankLimits
from memory_extproc.recall.weights import WeightsError, packaged_weights, read_weights
from memory_extproc.settings import Settings
from memory_extproc.settings.memory import ExternalModel, ModelRole, Provider
from memory_extproc.store.milvus import MilvusStore
from memory_extproc.store.opener import Opener, OpenerLimits
from memory_extproc.store.options import Layout, MilvusOptions
from memory_extproc.store.partition import PartitionLimits, Partitions
from memory_extproc.wire.admission import Admission
from memory_extproc.wire.background import Background
from memory_extproc.wire.enrich import Enricher
from memory_extproc.wire.exchange import Workshop
from memory_extproc.wire.held import HeldBytes
from memory_extproc.wire.identity import Identity
from memory_extproc.wire.identity_tokens import TokenOptions, Tokens, keys_at_url, keys_in_file
from memory_extproc.wire.options import Mode, SignalSources, WireOptions
from memory_extproc.wire.peers import AllowedPeers
from memory_extproc.wire.processor import SERVICE, Processor, message_options
from memory_extproc.wire.readiness import Readiness
from memory_extproc.wire.replays import Replays
from memory_extproc.wire.rules import Rules
from memory_extproc.wire.server import GrpcServer, ServerOptions, ServerTls

if TYPE_CHECKING:
    from memory_extproc.coordination.redis import RedisCoordination

log = logger(__name__)

LOCK = "lock"


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Sidecar:
    """What runs, and where."""

    ext_proc: str  # the address with the port in use
    http: str
    metrics: Metrics
    partitions: Partitions


@asynccontextmanager
async def sidecar(settings: Settings, *, now: Now = utc_now) -> AsyncIterator[Sidecar]:
    """The whole sidecar, serving while entered. Raises only what an operator can mend before it serves."""
    metrics = Metrics(_registry(), __version__)
    for notice in settings.notices():
        log.warning("configuration.notice", notice=notice)
    async with AsyncExitStack() as stack:
        data = hold_data_directory(settings, stack)
        embedder = await open_embedder(settings, metrics, stack)
        coordination = await _coordination(settings, data, now, stack)
        store = MilvusStore(milvus_options(settings, data, embedder.fingerprint), metrics, now=now)
        await stack.enter_async_context(Opener(store, OpenerLimits(), chance=random.random))
        partitions = await stack.enter_async_context(
            Partitions(store, coordination, partition_limits(settings), metrics, now=now)
        )
        journal = await stack.enter_async_context(
            SqliteJournal(
                data / "journal.db",
                now=now,
                max_turns=settings.learn.journal.max_turns,
                fsync=settings.learn.journal.fsync,
            )
        )
        sessions = Sessions(coordination, SessionLimits(), new_session=lambda: uuid.uuid4().hex)
        learner = await stack.enter_async_context(
            Learner(
                journal,
                sessions,
                partitions,
                embedder,
                coordination,
                _learn_limits(settings),
                metrics,
                extractor=make_extractor(settings, metrics, stack),
                reconciler=Reconciler(partitions, embedder, metrics),
                now=now,
                chance=random.random,
                judged=partial(judge, limits=piece_limits(settings, embedder)),
            )
        )
        reranks = await open_reranks(settings, metrics, stack)
        recaller = make_recaller(
            settings, partitions, embedder, metrics, stack, now=now, reranks=reranks, learns=learner
        )
        background = await stack.enter_async_context(Background(metrics, grace=settings.shutdown.flush))
        options = wire_options(settings)
        identity = await _identity(settings, stack)
        replays = Replays(options, coordination, background=background, metrics=metrics, now=now)
        shop = Workshop(
            admits=Admission(options, identity),
            enriches=Enricher(
                options,
                identity=identity,
                rules=Rules([section.rule() for section in settings.rules]),
                recalls=recaller,
                replays=replays,
                metrics=metrics,
                chains=sessions,
            ),
            follows=replays,
            learns=learner,
            held=HeldBytes(settings.limits.process_bytes, metrics),
            background=background,
            metrics=metrics,
            now=now,
            answer_bytes=options.answer_bytes,
            last_reply_waits=options.last_reply_waits,
        )
        server = GrpcServer(
            _server_options(settings),
            [SERVICE],
            Processor(shop, _peers(settings)).register,
        )
        api = GrpcServer(_api_options(settings), [], lambda _server: None)

        async def tell(ready: bool) -> None:  # noqa: FBT001 - as Readiness calls it
            await asyncio.gather(server.set_ready(ready=ready), api.set_ready(ready=ready))

        readiness = Readiness(journal.check, tell)
        host, _, port = settings.listen.http.rpartition(":")
        endpoint = await stack.enter_async_context(
            OperationsEndpoint(host.strip("[]"), int(port), metrics.registry, lambda: readiness.reason)
        )
        await stack.enter_async_context(api)
        await stack.enter_async_context(server)
        await stack.enter_async_context(readiness)
        yield Sidecar(server.address, f"{host}:{endpoint.port}", metrics, partitions)
        log.info("sidecar.stopping")


def _registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    for collector in (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR):
        registry.register(collector)
    return registry


def hold_data_directory(settings: Settings, stack: AsyncExitStack) -> Path:
    """The data directory, made readable by its owner alone and held by this process alone."""
    directory = Path(settings.data_dir).absolute()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = stack.enter_context((directory / LOCK).open("w"))
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigurationError(
            [f"data_dir: another sidecar is using {directory}; give each one its own"]
        ) from error
    except OSError as error:
        raise ConfigurationError([f"data_dir: {directory} cannot be used: {error.strerror}"]) from error
    return directory


async def open_embedder(settings: Settings, metrics: Metrics, stack: AsyncExitStack) -> Embeds:
    """The configured embedder, open until *stack* is left."""
    embedding = settings.memory.embedding
    limits = EmbedderLimits(threads=embedding.threads, cached_queries=embedding.cache)
    embedder: Embeds
    match embedding.provider:
        case Provider.ONNX:
            directory = Path(embedding.models_dir) / f"{embedding.model}-{embedding.precision}"
            embedder = await stack.enter_async_context(open_onnx_embedder(directory, limits))
        case Provider.SENTENCE_TRANSFORMERS:
            device = "" if embedding.device == "auto" else embedding.device
            opened = open_sentence_transformers_embedder(embedding.model, device, limits)
            embedder = await stack.enter_async_context(opened)
        case Provider.OPENAI:
            # Imported where it is configured, here and below: OpenAI's client takes 0.4 s and 30 MB, Redis's 0.2 s.
            from memory_extproc.inference.openai_embedder import (  # noqa: PLC0415
                OpenAIEmbedder,
                RemoteEmbedderLimits,
            )
            from memory_extproc.inference.openai_endpoint import Endpoint, EndpointLimits  # noqa: PLC0415

            endpoint = Endpoint(
                EndpointLimits(
                    base_url=embedding.endpoint,
                    model=embedding.model,
                    access_key=embedding.access_key.get_secret_value(),
                    timeout=embedding.timeout,
                    # A request that waits has no time for a second attempt, and one given up in between would
                    # tell the breaker nothing; the learner comes back by itself.
                    attempts=1,
                ),
                role="embedding",
                marker="embedding",
                metrics=metrics,
                chance=random.random,
                clock=time.monotonic,
            )
            remote = OpenAIEmbedder(
                endpoint, RemoteEmbedderLimits(dimension=embedding.dimension, cached_queries=embedding.cache)
            )
            stack.push_async_callback(remote.close)
            embedder = remote
    if embedder.dimension != embedding.dimension:
        fault = f"is {embedding.dimension}, but {embedding.model} gives vectors of {embedder.dimension}"
        raise ConfigurationError([f"memory.embedding.dimension: {fault}"])
    return embedder


async def _coordination(settings: Settings, data: Path, now: Now, stack: AsyncExitStack) -> Coordination:
    section = settings.coordination
    coordination: SqliteCoordination | RedisCoordination
    if section.url:
        from memory_extproc.coordination.redis import RedisCoordination  # noqa: PLC0415

        password = section.password.get_secret_value() or None
        coordination = RedisCoordination(
            section.url, prefix=section.prefix, timeout=section.timeout, password=password
        )
    else:
        coordination = SqliteCoordination(data / "coordination.db", now=now)
    await stack.enter_async_context(coordination)
    try:
        await coordination.open()
    except MemoryExtprocError as error:
        # Not a reason to stay away: requests pass, turns are journalled, and it is asked again each time.
        log.warning("coordination.not_open", detail=str(error))
    return coordination


def milvus_options(settings: Settings, data: Path, fingerprint: str) -> MilvusOptions:
    """How the store is reached; the one mapping of the settings that concern it."""
    milvus = settings.memory.milvus
    return MilvusOptions(
        collection=milvus.collection,
        dimension=milvus.dimension,
        fingerprint=fingerprint,
        address=milvus.address,
        path=data / "milvus.db",
        layout=Layout(milvus.layout),
        shards=milvus.shards,
        user=milvus.user,
        password=milvus.password.get_secret_value(),
        token=milvus.token.get_secret_value(),
        database=milvus.database,
        tls=milvus.tls.enabled,
        tls_ca=milvus.tls.ca,
        tls_cert=milvus.tls.cert,
        tls_key=milvus.tls.key,
        tls_server_name=milvus.tls.server_name,
        timeout=milvus.timeout,
        content_bytes=settings.limits.content_bytes,
    )


def _fusion(settings: Settings, fingerprint: str) -> Fusion:
    try:
        if settings.recall.weights:
            return Fusion(read_weights(Path(settings.recall.weights), fingerprint), fingerprint)
        fusion = Fusion(packaged_weights(), fingerprint)
    except WeightsError as error:
        raise ConfigurationError([f"recall.weights: {error}"]) from error
    if not fusion.fitted:
        log.warning("recall.weights_not_fitted", embedding_model=fingerprint)
    return fusion


def make_recaller(
    settings: Settings,
    finds: FindsMemories,
    embedder: Embeds,
    metrics: Metrics,
    stack: AsyncExitStack,
    *,
    now: Now,
    reranks: Reranks | None = None,
    learns: Learns | None = None,
) -> Recaller:
    """The read path as configured; the tools that measure and explain it use the same one."""
    limits = RerankLimits(first=settings.recall.rerank_candidates)
    return Recaller(
        finds,
        embedder,
        _recall_limits(settings),
        fusion=_fusion(settings, embedder.fingerprint),
        now=now,
        metrics=metrics,
        about_caller=_about_caller(settings),
        learns=learns,
        rewriter=_rewriter(settings, metrics, stack),
        reranker=None if reranks is None else Reranker(reranks, limits, metrics=metrics),
    )


async def open_reranks(settings: Settings, metrics: Metrics, stack: AsyncExitStack) -> Reranks | None:
    """ModelDirectoryError when a cross-encoder is asked for that was not prepared."""
    recall, embedding = settings.recall, settings.memory.embedding
    if recall.rerank == "cross_encoder":
        directory = directory_of(Path(embedding.models_dir), recall.rerank_model, Precision(embedding.precision))
        limits = CrossEncoderLimits(threads=embedding.threads)
        return await stack.enter_async_context(open_cross_encoder(directory, limits))
    model = settings.model_for(ModelRole.MEMORY_RERANK)
    if recall.rerank == "off" or model is None:
        return None
    return LlmReranker(_completions(model, ModelRole.MEMORY_RERANK, metrics, stack), LlmRerankLimits())


def piece_limits(settings: Settings, embedder: Embeds) -> PieceLimits:
    """Pieces that fit the window with room for what an estimate is off by; never longer than they would be for
    the default model, because what is injected should be to the point."""
    tokens = min(PIECE_TOKENS, embedder.max_tokens * 4 // 5)
    return PieceLimits(tokens=tokens, bytes=settings.limits.content_bytes)


def partition_limits(settings: Settings) -> PartitionLimits:
    """Milvus Lite works in this process and takes the interpreter from the streams: while a partition is filled
    from it, chunks of answers wait. So it is read in small pages, for one owner at a time; a server, where every
    page is a journey, in large ones."""
    held = settings.recall.partition_bytes
    if settings.memory.milvus.address:
        return PartitionLimits(bytes=held)
    return PartitionLimits(bytes=held, page=32, fills=1)


def _about_caller(settings: Settings) -> AboutCaller:
    if not settings.recall.about_caller:
        return about_caller
    return partial(about_caller, patterns=compile_patterns(settings.recall.about_caller))


def _recall_limits(settings: Settings) -> RecallLimits:
    recall = settings.recall
    return RecallLimits(
        deadline=settings.deadline,
        settle=recall.settle,
        max_concurrent=recall.max_concurrent,
        candidates=recall.candidates,
        half_life=recall.half_life,
        token_budget=settings.inject.token_budget,
        threshold_on_cosine=recall.threshold_on == "cosine",
        take_apart=recall.split_questions,
        mmr_lambda=recall.mmr_lambda,
    )


def _completions(model: ExternalModel, role: ModelRole, metrics: Metrics, stack: AsyncExitStack) -> Completes:
    from memory_extproc.inference.completions import CompletionLimits, OpenAICompletions  # noqa: PLC0415
    from memory_extproc.inference.openai_endpoint import Endpoint, EndpointLimits  # noqa: PLC0415

    endpoint = Endpoint(
        EndpointLimits(
            base_url=model.llm_endpoint.url,
            model=model.llm_model_name,
            access_key=model.llm_endpoint.access_key.get_secret_value(),
            timeout=timedelta(seconds=model.llm_timeout_seconds),
            # In the read path there is no time for a second attempt: it does without.
            attempts=3 if role is ModelRole.MEMORY_EXTRACTION else 1,
        ),
        role=role.value,
        marker=role.value,
        metrics=metrics,
        chance=random.random,
        clock=time.monotonic,
    )
    completions = OpenAICompletions(
        endpoint, CompletionLimits(max_tokens=model.max_tokens, temperature=model.temperature)
    )
    stack.push_async_callback(completions.close)
    return completions


def _learn_limits(settings: Settings) -> LearnLimits:
    learn = settings.learn
    return LearnLimits(
        journal_wait=learn.journal.wait,
        batch=settings.memory.extraction_batch_size,
        idle=learn.session_idle,
        extracting=learn.concurrency,
        attempts=learn.max_attempts,
        retention=learn.journal.retention,
        grace=settings.shutdown.flush,
    )


def make_extractor(settings: Settings, metrics: Metrics, stack: AsyncExitStack) -> Extracts | None:
    """By a model, with the rules for the batches it cannot do; by the rules; or not at all."""
    wanted = settings.learn.extractor
    if wanted == "off":
        return None
    rules = Measured(RulesExtractor(), metrics, time.perf_counter)
    model = settings.model_for(ModelRole.MEMORY_EXTRACTION)
    if wanted == "rules" or model is None:
        return rules
    completions = _completions(model, ModelRole.MEMORY_EXTRACTION, metrics, stack)
    by_model = Measured(LlmExtractor(completions), metrics, time.perf_counter)
    return by_model if wanted == "llm" else Fallback(by_model, rules)


def _rewriter(settings: Settings, metrics: Metrics, stack: AsyncExitStack) -> Rewriter | None:
    model = settings.model_for(ModelRole.MEMORY_REWRITE)
    if model is None or not settings.recall.rewrites:
        return None
    completions = _completions(model, ModelRole.MEMORY_REWRITE, metrics, stack)
    recall = settings.recall
    return Rewriter(completions, Rewrite(recall.query_rewrite), hyde=recall.hyde, take_apart=recall.split_questions)


async def _identity(settings: Settings, stack: AsyncExitStack) -> Identity:
    options = settings.identity.options(settings.privacy.key)
    jwt = settings.identity.jwt
    if not jwt.given:
        return Identity(options)
    keys = keys_in_file(Path(jwt.jwks_file)) if jwt.jwks_file else keys_at_url(jwt.jwks_url)
    tokens = Tokens(
        TokenOptions(
            algorithms=tuple(jwt.algorithms),
            issuer=jwt.issuer,
            audience=jwt.audience,
            leeway=jwt.leeway,
            refresh=jwt.refresh,
        ),
        keys,
    )
    return Identity(options, await stack.enter_async_context(tokens))


def wire_options(settings: Settings) -> WireOptions:
    """What the wire is told; the one mapping of the settings that concern it."""
    signals, inject = settings.signals, settings.inject
    return WireOptions(
        enabled=settings.memory.enabled,
        auto_store=settings.memory.auto_store,
        mode=Mode(settings.mode),
        percent=100.0 if settings.percent is None else settings.percent,
        limit=settings.memory.default_retrieval_limit,
        threshold=settings.memory.default_similarity_threshold,
        request_bytes=settings.limits.request_body,
        answer_bytes=settings.limits.answer_capture,
        inject_as=inject.as_,
        window=None if inject.window == "auto" else inject.window,
        margin=inject.margin,
        unknown_cap=inject.unknown_window_budget,
        replay=inject.replay,
        replay_tokens=inject.replay_tokens,
        replay_keep=inject.replay_keep,
        replay_wait=settings.deadline / 3,
        signals=SignalSources(
            fact_headers=signals.fact_headers,
            tool_headers=signals.tool_headers,
            greeting_headers=signals.greeting_headers,
            metadata_namespace=signals.metadata_namespace,
        ),
        strip_headers=_identity_headers(settings) if settings.identity.strip_headers else (),
        skip_auxiliary=settings.auxiliary_calls == "skip",
        give_up_after=(settings.deadline + settings.message_timeout) / 2,
        last_reply_waits=2 * settings.learn.journal.wait,
    )


def _identity_headers(settings: Settings) -> tuple[str, ...]:
    identity = settings.identity
    names = (identity.user_header, identity.tenant_header, identity.project_header, identity.session_header)
    return tuple(name for name in names if name)


def _server_options(settings: Settings) -> ServerOptions:
    tls = settings.tls
    return ServerOptions(
        address=settings.listen.ext_proc,
        tls=ServerTls(Path(tls.cert), Path(tls.key), Path(tls.client_ca)) if tls.given else None,
        drain_wait=settings.shutdown.announce,
        grace=settings.shutdown.grace,
        channel=(
            *message_options(settings.limits.request_body),
            ("grpc.max_concurrent_streams", settings.limits.streams),
        ),
    )


def _api_options(settings: Settings) -> ServerOptions:
    """The operators' port leaves at once: nobody sends it requests that could be turned away first."""
    return replace(
        _server_options(settings), address=settings.listen.api, drain_wait=timedelta(), grace=timedelta(seconds=1)
    )


def _peers(settings: Settings) -> AllowedPeers | None:
    return AllowedPeers(settings.tls.allowed_names) if settings.tls.given else None
