"""The read path as configured: the exchange handlers, which are rebuilt when the configuration changes, the
recaller, context compression and identity."""

from __future__ import annotations

import time
import uuid
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from memory_extproc.app.context import AppContext, Live, caller_tag, recall_limits, request_options
from memory_extproc.app.maintenance import open_accesses
from memory_extproc.app.models import completions_for, open_reranks
from memory_extproc.app.storage import Storage
from memory_extproc.app.write_path import Door, Extraction, WritePath
from memory_extproc.concurrency import Background
from memory_extproc.errors import ConfigurationError
from memory_extproc.extproc.exchange import ExchangeDeps
from memory_extproc.extproc.observer import MemoryGetter, RequestObserver, encode_handover
from memory_extproc.extproc.processor import Processor
from memory_extproc.extproc.response_capture import BodyMemoryBudget, ExchangeAccounts
from memory_extproc.inference.classifier import FactClassifier
from memory_extproc.inference.word_hashing import WORDS_ALONE
from memory_extproc.learn.extract.rules import RulesExtractor
from memory_extproc.learn.sessions import Sessions
from memory_extproc.observe.log import NO_TRACES, CallerTag, Traces
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import (
    ChatCondenser,
    Coordination,
    EmbeddingModel,
    MemoryReader,
    MemorySearcher,
    MemorySelector,
    MemoryStore,
    Now,
    RerankModel,
    SignalClassifier,
    TokenEmbeddingModel,
    TurnLearner,
)
from memory_extproc.recall.canary import Canary
from memory_extproc.recall.examples import IntentExamples
from memory_extproc.recall.fusion import (
    Fusion,
    Weights,
    WeightsError,
    packaged_name,
    packaged_weights,
    read_weights,
)
from memory_extproc.recall.late_interaction import CloseReadingLimits, LateInteractionScorer
from memory_extproc.recall.model_match import ModelMatcher
from memory_extproc.recall.prompt_block import Profiles
from memory_extproc.recall.query import (
    AboutCaller,
    QuestionGate,
    QuestionReader,
    Rewrite,
    Rewriter,
    StageTimer,
)
from memory_extproc.recall.rank import ranking_stages
from memory_extproc.recall.recaller import QuestionSearch, Recaller
from memory_extproc.recall.rerank import Reranker
from memory_extproc.request.admission import Admission, LoadLimit
from memory_extproc.request.compression import Compression, LlmCondenser, RulesCondenser
from memory_extproc.request.decisions import DecisionLog
from memory_extproc.request.enricher import BlockInserter, Enricher, InjectionPlanner, PermissionReader
from memory_extproc.request.identity import AllowedPeers, Identity
from memory_extproc.request.policy import Rules
from memory_extproc.request.replay import BlockReplay
from memory_extproc.retention.usage import Accesses, CountedRecalls
from memory_extproc.settings import Settings
from memory_extproc.settings.identity import Signed
from memory_extproc.settings.memory import ModelRole
from memory_extproc.store.partition import Partitions
from memory_extproc.text.persons import about_caller, compile_patterns

if TYPE_CHECKING:
    from memory_extproc.request.jwt import Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPathParts:
    """The parts that outlive a configuration change."""

    identifies: IdentityFactory
    recalls: Recaller
    accesses: Accesses
    replays: BlockReplay
    decisions: DecisionLog
    sessions: Sessions
    door: Door
    learns: TurnLearner
    gets: MemoryGetter
    held: BodyMemoryBudget
    load: LoadLimit
    background: Background
    metrics: Metrics
    traces: Traces
    tag: CallerTag
    compression: Compression
    profiles: Profiles
    now: Now

    def exchange_deps(self, settings: Settings) -> ExchangeDeps:
        options, identity = request_options(settings), self.identifies.identity(settings)
        decisions = self.decisions if settings.trace.keep else None
        recalls = CountedRecalls(self.recalls, self.accesses)
        return ExchangeDeps(
            admits=Admission(options, identity, self.load),
            enriches=Enricher(
                options,
                PermissionReader(options, identity, Rules(settings.rules), self.door.consent),
                InjectionPlanner(
                    options, recalls, self.replays, self.metrics, chains=self.sessions, profiles=self.profiles
                ),
                BlockInserter(options, self.replays, self.metrics, self.traces),
                self.replays,
                incognito=self.door.incognito,
                traces=self.traces,
                compression=self.compression,
                decisions=decisions,
            ),
            follows=self.replays,
            learns=self.learns,
            held=self.held,
            background=self.background,
            metrics=self.metrics,
            accounts=ExchangeAccounts(self.metrics, settings.telemetry.tenants),
            now=self.now,
            request_bytes=options.request_bytes,
            answer_bytes=options.answer_bytes,
            request_waits=(options.give_up_after + settings.message_timeout) / 2,
            last_reply_waits=options.last_reply_waits,
            incognito=self.door.incognito,
            traces=self.traces,
            tag=self.tag,
            receipts=decisions,
            hands=encode_handover,
        )

    def processor(self, live: Live) -> Processor:
        settings, overhears = live.settings, None
        if settings.envoy.two_filters:
            overhears = RequestObserver(self.gets, self.replays, request_bytes=settings.limits.request_body)
        processor = Processor(self.exchange_deps(settings), peers_of(settings), overhears)

        def reconfigure(new: Settings) -> None:
            processor.reconfigure(self.exchange_deps(new), peers_of(new))
            if overhears is not None:
                overhears.reconfigure(request_bytes=new.limits.request_body)

        live.subscribe(self.reconfigure)
        live.subscribe(reconfigure)
        return processor

    def reconfigure(self, settings: Settings) -> None:
        """Apply new limits to these parts."""
        self.metrics.recall_deadline.set(settings.deadline.total_seconds())
        self.recalls.reconfigure(recall_limits(settings), about_caller_of(settings))
        self.replays.reconfigure(request_options(settings))
        self.held.reconfigure(settings.limits.process_bytes)


async def open_exchange_parts(
    context: AppContext,
    kept: Storage,
    writing: WritePath,
    recalls: Recaller,
    replays: BlockReplay,
    background: Background,
    decisions: DecisionLog,
) -> ReadPathParts:
    settings, live, metrics = context.settings, context.live, context.metrics
    stack, now = context.stack, context.now
    door, intake, partitions = writing.door, writing.intake, kept.partitions
    return ReadPathParts(
        identifies=await open_identities(live, stack),
        recalls=recalls,
        accesses=await open_accesses(live, partitions, stack, now=now),
        replays=replays,
        decisions=decisions,
        sessions=writing.sessions,
        door=door,
        learns=intake,
        gets=partitions,
        held=BodyMemoryBudget(settings.limits.process_bytes, metrics),
        load=context.load,
        background=background,
        metrics=metrics,
        traces=context.traces,
        tag=caller_tag(settings),
        profiles=Profiles(partitions, lambda: live.settings, now=now, learns=intake),
        compression=make_compression(
            settings, kept.coordination, writing.extraction, door, background, metrics, stack, live, now=now
        ),
        now=now,
    )


# The read path as configured.

MEASURED_WITHIN = timedelta(seconds=5)  # of the start; the usual time of a measurement is below it


@dataclass(frozen=True, slots=True)
class ReadPath:
    recaller: Recaller
    canary: Canary | None  # None: it is switched off
    matcher: ModelMatcher


async def open_read_path(context: AppContext, kept: Storage, learns: TurnLearner) -> ReadPath:
    """Open a sidecar's read path with its canary."""
    settings, metrics, stack, now = context.settings, context.metrics, context.stack, context.now
    matcher = await open_matcher(settings, kept.embedder, metrics, stack, MEASURED_WITHIN)
    classifier = FactClassifier(settings.signals.classifier, metrics, time.monotonic)
    await stack.enter_async_context(classifier)
    context.live.subscribe(lambda new: classifier.reconfigure(new.signals.classifier))
    recaller = make_recaller(
        settings,
        kept.partitions,
        kept.embedder,
        metrics,
        stack,
        now=now,
        reranks=await open_reranks(settings, metrics, stack, context.live),
        learns=learns,
        reads=kept.partitions,
        selects=kept.partitions,
        live=context.live,
        traces=context.traces,
        matcher=matcher,
        classifier=classifier,
    )
    canary = await open_canary(
        context.live, kept.partitions, kept.shown, kept.embedder, metrics, stack, matcher, now=now
    )
    return ReadPath(recaller, canary, matcher)


def make_recaller(
    settings: Settings,
    finds: MemorySearcher,
    embedder: EmbeddingModel,
    metrics: Metrics,
    stack: AsyncExitStack,
    *,
    now: Now,
    reranks: RerankModel | None = None,
    learns: TurnLearner | None = None,
    reads: MemoryReader | None = None,
    selects: MemorySelector | None = None,
    live: Live | None = None,
    waits: timedelta = timedelta(),
    traces: Traces = NO_TRACES,
    matcher: ModelMatcher | None = None,
    classifier: SignalClassifier | None = None,
    weights: Weights | None = None,
) -> Recaller:
    """Build the recaller, for the sidecar and for the tools that measure or explain recall.

    *waits*: load missing word vectors, if no request waits for the result. *matcher*: measures a model that the
    weights do not name. *weights*: instead of the configured ones."""
    metrics.recall_deadline.set(settings.deadline.total_seconds())
    fusion = Fusion(weights or weights_of(settings, embedder.fingerprint), embedder.fingerprint)
    if matcher is not None:
        matcher.subscribe(fusion.adopt)
    current = live or Live(settings)
    search = QuestionSearch(
        finds,
        embedder,
        fusion,
        QuestionReader(selects, _examples(settings, embedder, fusion)),
        metrics,
        learner=learns,
        rewriter=_rewriter(settings, metrics, stack, live),
        close_reader=_close_reader(embedder, fusion, waits, metrics),
        reranker=None if reranks is None else Reranker(reranks, lambda: current.settings.recall, metrics=metrics),
    )
    return Recaller(
        QuestionGate(metrics, about_caller_of(settings), classifier),
        search,
        ranking_stages(reads, current),
        recall_limits(settings),
        now=now,
        metrics=metrics,
        timer=StageTimer(metrics, traces),
    )


def _examples(settings: Settings, embedder: EmbeddingModel, fusion: Fusion) -> IntentExamples | None:
    """None with weights of another model than the packaged ones, whose vectors the examples have."""
    fingerprint = embedder.fingerprint
    if settings.recall.weights and fingerprint not in packaged_weights(fingerprint).embedding_models:
        return None
    return IntentExamples(partial(getattr, fusion, "fitted"), packaged_name(fingerprint))


async def open_canary(
    live: Live,
    partitions: Partitions,
    store: MemoryStore,
    embedder: EmbeddingModel,
    metrics: Metrics,
    stack: AsyncExitStack,
    matcher: ModelMatcher,
    *,
    now: Now,
) -> Canary | None:
    """Open the canary: it uses the configured read path without language models, which would cost.

    Its recalls are excluded from the metrics."""
    settings = live.settings
    if settings.telemetry.canary == "off":
        return None
    alone = settings.model_copy(update={"external_models": ()})
    unseen = Metrics(CollectorRegistry(), "")
    recaller = make_recaller(alone, partitions, embedder, unseen, stack, now=now, matcher=matcher)
    live.subscribe(lambda new: recaller.reconfigure(recall_limits(new), about_caller_of(new)))
    canary = Canary(
        recaller, partitions, store, embedder, lambda: live.settings.memory, metrics,
        every=settings.telemetry.canary, now=now,
    )  # fmt: skip
    return await stack.enter_async_context(canary)


def _close_reader(
    embedder: EmbeddingModel, fusion: Fusion, waits: timedelta, metrics: Metrics
) -> LateInteractionScorer | None:
    if not fusion.reads_closely or not isinstance(embedder, TokenEmbeddingModel) or not embedder.reads_words:
        return None
    return LateInteractionScorer(embedder, CloseReadingLimits(waits=waits), metrics)


def weights_of(settings: Settings, fingerprint: str) -> Weights:
    """The weights as configured, for the embedding model *fingerprint*."""
    try:
        if settings.recall.weights:
            return read_weights(Path(settings.recall.weights), fingerprint)
        return packaged_weights(fingerprint)
    except WeightsError as error:
        raise ConfigurationError([f"recall.weights: {error}"]) from error


async def open_matcher(
    settings: Settings, embedder: EmbeddingModel, metrics: Metrics, stack: AsyncExitStack, waits: timedelta
) -> ModelMatcher:
    """Measures the embedding model until *stack* is left. *waits*: at most, for the first measurement."""
    known = weights_of(settings, embedder.fingerprint).embedding_models
    matcher = ModelMatcher(embedder, known=known, metrics=metrics)
    if not embedder.fingerprint.startswith(WORDS_ALONE):  # without a model, words decide
        await stack.enter_async_context(matcher)
        await matcher.wait(waits)
    return matcher


def about_caller_of(settings: Settings) -> AboutCaller:
    if not settings.recall.about_caller:
        return about_caller
    return partial(about_caller, patterns=compile_patterns(settings.recall.about_caller))


def _rewriter(settings: Settings, metrics: Metrics, stack: AsyncExitStack, live: Live | None) -> Rewriter | None:
    model = settings.model_for(ModelRole.MEMORY_REWRITE)
    if model is None or not settings.recall.rewrites:
        return None
    completions = completions_for(model, ModelRole.MEMORY_REWRITE, metrics, stack, live)
    recall = settings.recall
    return Rewriter(completions, Rewrite(recall.query_rewrite), hyde=recall.hyde, take_apart=recall.split_questions)


# Context compression as configured.


def make_compression(
    settings: Settings,
    coordination: Coordination,
    extraction: Extraction,
    door: Door,
    background: Background,
    metrics: Metrics,
    stack: AsyncExitStack,
    live: Live,
    *,
    now: Now,
) -> Compression:
    """Build compression. Also if disabled: a rule or a client may request it."""
    return Compression(
        live,
        coordination,
        make_condenser(settings, extraction, metrics, stack, live, now=now),
        background=background,
        metrics=metrics,
        holder=uuid.uuid4().hex,
        now=now,
        incognito=door.incognito,
    )


def make_condenser(
    settings: Settings, extraction: Extraction, metrics: Metrics, stack: AsyncExitStack, live: Live, *, now: Now
) -> ChatCondenser:
    rules = RulesCondenser(RulesExtractor(), now=now)
    role = ModelRole.MEMORY_SUMMARY
    model = settings.model_for(role)
    if model is None or extraction.budget is None or settings.learn.extractor not in {"auto", "llm"}:
        return rules
    return LlmCondenser(completions_for(model, role, metrics, stack, live), extraction.budget, rules)


# Identity as configured: the caller's identity, and the gateways that may assert it.


@dataclass(frozen=True, slots=True)
class IdentityFactory:
    """The parts that outlive a configuration change: the token keys."""

    tokens: Tokens | None

    def identity(self, settings: Settings) -> Identity:
        return Identity(settings.identity, self.tokens, settings.privacy.key)


async def open_identities(live: Live, stack: AsyncExitStack) -> IdentityFactory:
    settings = live.settings
    if not settings.identity.jwt.is_set:
        return IdentityFactory(None)
    tokens = await open_tokens(settings.identity.jwt, stack)
    live.subscribe(lambda new: tokens.reconfigure(new.identity.jwt))
    return IdentityFactory(tokens)


async def open_tokens(jwt: Signed, stack: AsyncExitStack) -> Tokens:
    # PyJWT and its algorithms are imported only if tokens are configured.
    from memory_extproc.request.jwt import Tokens, keys_at_url, keys_in_file  # noqa: PLC0415

    keys = keys_in_file(Path(jwt.jwks_file)) if jwt.jwks_file else keys_at_url(jwt.jwks_url)
    return await stack.enter_async_context(Tokens(jwt, keys))


def peers_of(settings: Settings) -> AllowedPeers | None:
    return AllowedPeers(settings.tls.allowed_names) if settings.tls.is_set else None
