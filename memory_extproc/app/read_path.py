"""The read path as configured: the exchange handlers, which are rebuilt when the configuration changes, the
recaller, context compression and identity."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from memory_extproc.app.context import AppContext, caller_tag
from memory_extproc.app.maintenance import open_accesses
from memory_extproc.app.models import completions_for, open_reranks
from memory_extproc.app.storage import Storage
from memory_extproc.app.write_path import WritePath
from memory_extproc.concurrency import Background
from memory_extproc.errors import ConfigurationError
from memory_extproc.extproc.exchange import ExchangeDeps
from memory_extproc.extproc.observer import MemoryGetter, RequestObserver, encode_handover
from memory_extproc.extproc.processor import Processor
from memory_extproc.extproc.response_capture import BodyMemoryBudget, ExchangeAccounts
from memory_extproc.inference.classifier import FactClassifier
from memory_extproc.inference.word_hashing import WORDS_ALONE
from memory_extproc.learn.extract.rules import RulesExtractor
from memory_extproc.observe.log import NO_TRACES, CallerTag
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import (
    ChatCondenser,
    EmbeddingModel,
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
from memory_extproc.recall.late_interaction import LateInteractionScorer, packaged_projection
from memory_extproc.recall.model_match import ModelMatcher
from memory_extproc.recall.prompt_block import Profiles
from memory_extproc.recall.query import (
    QuestionGate,
    QuestionReader,
    Rewrite,
    Rewriter,
    StageTimer,
)
from memory_extproc.recall.rank import RenewalMarker, ranking_stages
from memory_extproc.recall.recaller import QuestionSearch, Recaller
from memory_extproc.recall.rerank import Reranker
from memory_extproc.request.admission import Admission
from memory_extproc.request.compression import Compression, LlmCondenser, RulesCondenser
from memory_extproc.request.decisions import DecisionLog
from memory_extproc.request.enricher import (
    BlockInserter,
    Enricher,
    InjectionPlanner,
    PermissionReader,
    give_up_after,
)
from memory_extproc.request.identity import AllowedPeers, Identity
from memory_extproc.request.policy import Rules
from memory_extproc.request.replay import BlockReplay
from memory_extproc.retention.usage import Accesses, CountedRecalls
from memory_extproc.settings import Settings
from memory_extproc.settings.identity import Signed
from memory_extproc.settings.memory import ModelRole
from memory_extproc.store.partition import Partitions

if TYPE_CHECKING:
    from memory_extproc.request.jwt import Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPathParts:
    """The parts that outlive a configuration change."""

    context: AppContext
    tokens: Tokens | None  # the keys of callers' tokens; None: callers come without
    recalls: Recaller
    accesses: Accesses
    replays: BlockReplay
    decisions: DecisionLog
    writing: WritePath
    gets: MemoryGetter
    held: BodyMemoryBudget
    background: Background
    tag: CallerTag
    compression: Compression
    profiles: Profiles

    def exchange_deps(self, settings: Settings) -> ExchangeDeps:
        replays, door = self.replays, self.writing.door
        metrics, traces = self.context.metrics, self.context.traces
        identity = Identity(settings.identity, self.tokens, settings.privacy.key)
        decisions = self.decisions if settings.trace.keep else None
        recalls = CountedRecalls(self.recalls, self.accesses)
        return ExchangeDeps(
            admits=Admission(settings, identity, self.context.load),
            enriches=Enricher(
                settings,
                PermissionReader(settings, identity, Rules(settings.rules), door.consent),
                InjectionPlanner(
                    settings, recalls, replays, metrics, chains=self.writing.sessions, profiles=self.profiles
                ),
                BlockInserter(settings, replays, metrics, traces),
                replays,
                incognito=door.incognito,
                traces=traces,
                compression=self.compression,
                decisions=decisions,
            ),
            follows=replays,
            learns=self.writing.intake,
            held=self.held,
            background=self.background,
            metrics=metrics,
            accounts=ExchangeAccounts(metrics, settings.telemetry.tenants),
            now=self.context.now,
            request_bytes=settings.limits.request_body,
            answer_bytes=settings.limits.answer_capture,
            request_waits=(give_up_after(settings) + settings.message_timeout) / 2,
            # A guard above the journal's own timeout: how long the last response chunk may wait for us.
            last_reply_waits=2 * settings.learn.journal.wait,
            incognito=door.incognito,
            traces=traces,
            tag=self.tag,
            receipts=decisions,
            hands=encode_handover,
        )

    def processor(self) -> Processor:
        settings, overhears = self.context.settings, None
        if settings.envoy.two_filters:
            overhears = RequestObserver(self.gets, self.replays, self.context.live)
        processor = Processor(self.exchange_deps(settings), peers_of(settings), overhears)
        self.context.live.subscribe(lambda new: processor.reconfigure(self.exchange_deps(new), peers_of(new)))
        return processor


async def open_exchange_parts(
    context: AppContext,
    kept: Storage,
    writing: WritePath,
    recalls: Recaller,
    replays: BlockReplay,
    background: Background,
    decisions: DecisionLog,
) -> ReadPathParts:
    live, partitions, tokens = context.live, kept.partitions, None
    if live.settings.identity.jwt.is_set:
        tokens = await open_tokens(lambda: live.settings.identity.jwt, context.stack)
    return ReadPathParts(
        context=context,
        tokens=tokens,
        recalls=recalls,
        accesses=await open_accesses(context, partitions),
        replays=replays,
        decisions=decisions,
        writing=writing,
        gets=partitions,
        held=BodyMemoryBudget(partial(attrgetter("settings.limits.process_bytes"), live), context.metrics),
        background=background,
        tag=caller_tag(live.settings),
        profiles=Profiles(partitions, lambda: live.settings, now=context.now, learns=writing.intake),
        compression=Compression(
            live,
            kept.coordination,
            make_condenser(context),
            background=background,
            metrics=context.metrics,
            holder=uuid.uuid4().hex,
            now=context.now,
            incognito=writing.door.incognito,
        ),
    )


def make_condenser(context: AppContext) -> ChatCondenser:
    """The condenser of long chats, also if compression is disabled: a rule or a client may request it."""
    rules = RulesCondenser(RulesExtractor(), now=context.now)
    if context.settings.learn.extractor not in {"auto", "llm"}:
        return rules
    completions = completions_for(context, ModelRole.MEMORY_SUMMARY)
    return rules if completions is None else LlmCondenser(completions, context.budget, rules)


# The read path as configured.

MEASURED_WITHIN = timedelta(seconds=5)  # of the start; the usual time of a measurement is below it


@dataclass(frozen=True, slots=True)
class ReadPath:
    recaller: Recaller
    canary: Canary | None  # None: it is switched off
    matcher: ModelMatcher


async def open_read_path(context: AppContext, kept: Storage, learns: TurnLearner) -> ReadPath:
    """Open a sidecar's read path with its canary."""
    matcher = await open_matcher(context, kept.embedder, MEASURED_WITHIN)
    classifier = FactClassifier(context.settings.signals.classifier, context.metrics, time.monotonic)
    await context.stack.enter_async_context(classifier)
    context.live.subscribe(lambda new: classifier.reconfigure(new.signals.classifier))
    recaller = make_recaller(
        context,
        kept.partitions,
        kept.embedder,
        reranks=await open_reranks(context),
        learns=learns,
        matcher=matcher,
        classifier=classifier,
    )
    return ReadPath(recaller, await open_canary(context, kept, matcher), matcher)


def make_recaller(
    context: AppContext,
    partitions: Partitions,
    embedder: EmbeddingModel,
    *,
    reranks: RerankModel | None = None,
    learns: TurnLearner | None = None,
    waits: timedelta = timedelta(),
    matcher: ModelMatcher | None = None,
    classifier: SignalClassifier | None = None,
    weights: Weights | None = None,
    searches_alone: bool = False,
) -> Recaller:
    """Build the recaller, for the sidecar and for the tools that measure or explain recall.

    *waits*: load missing word vectors, if no request waits for the result. *matcher*: measures a model that the
    weights do not name. *weights*: instead of the configured ones. *searches_alone*: no lookups, and no language
    model that rewrites."""
    settings, metrics, live = context.settings, context.metrics, context.live
    metrics.recall_deadline.set_function(lambda: live.settings.deadline / timedelta(seconds=1))
    fusion = Fusion(weights or weights_of(settings, embedder.fingerprint), embedder.fingerprint)
    if matcher is not None:
        matcher.subscribe(fusion.adopt)
    reads = None if searches_alone else partitions
    examples = _examples(settings, embedder, fusion)
    renewal = () if reads is None or examples is None else (RenewalMarker(reads, examples),)
    search = QuestionSearch(
        partitions,
        embedder,
        fusion,
        QuestionReader(reads, examples, reads),
        metrics,
        learner=learns,
        rewriter=None if searches_alone else _rewriter(context),
        close_reader=_close_reader(embedder, fusion, waits, metrics),
        reranker=None if reranks is None else Reranker(reranks, lambda: live.settings.recall, metrics=metrics),
    )
    return Recaller(
        QuestionGate(metrics, classifier),
        search,
        [*ranking_stages(reads, live), *renewal],
        live,
        now=context.now,
        metrics=metrics,
        timer=StageTimer(metrics, context.traces),
    )


def _examples(settings: Settings, embedder: EmbeddingModel, fusion: Fusion) -> IntentExamples | None:
    """None with weights of another model than the packaged ones, whose vectors the examples have."""
    fingerprint = embedder.fingerprint
    if settings.recall.weights and fingerprint not in packaged_weights(fingerprint).embedding_models:
        return None
    return IntentExamples(partial(getattr, fusion, "fitted"), packaged_name(fingerprint))


async def open_canary(context: AppContext, kept: Storage, matcher: ModelMatcher) -> Canary | None:
    """Open the canary: it uses the configured read path without language models, which would cost.

    Its recalls are excluded from the metrics."""
    live, partitions, embedder = context.live, kept.partitions, kept.embedder
    if live.settings.telemetry.canary == "off":
        return None
    unseen = replace(context, metrics=Metrics(CollectorRegistry(), ""), traces=NO_TRACES)
    recaller = make_recaller(unseen, partitions, embedder, matcher=matcher, searches_alone=True)
    canary = Canary(
        recaller, partitions, kept.shown, embedder, lambda: live.settings.memory, context.metrics,
        every=live.settings.telemetry.canary, now=context.now,
    )  # fmt: skip
    return await context.stack.enter_async_context(canary)


def _close_reader(
    embedder: EmbeddingModel, fusion: Fusion, waits: timedelta, metrics: Metrics
) -> LateInteractionScorer | None:
    if not fusion.reads_closely or not isinstance(embedder, TokenEmbeddingModel) or not embedder.reads_words:
        return None
    projection = packaged_projection(embedder.fingerprint) if fusion.projects else None
    return LateInteractionScorer(embedder, waits, metrics, projection)


def weights_of(settings: Settings, fingerprint: str) -> Weights:
    """The weights as configured, for the embedding model *fingerprint*."""
    try:
        if settings.recall.weights:
            return read_weights(Path(settings.recall.weights), fingerprint)
        return packaged_weights(fingerprint)
    except WeightsError as error:
        raise ConfigurationError([f"recall.weights: {error}"]) from error


async def open_matcher(context: AppContext, embedder: EmbeddingModel, waits: timedelta) -> ModelMatcher:
    """Measures the embedding model. *waits*: at most, for the first measurement."""
    known = weights_of(context.settings, embedder.fingerprint).embedding_models
    matcher = ModelMatcher(embedder, known=known, metrics=context.metrics)
    if not embedder.fingerprint.startswith(WORDS_ALONE):  # without a model, words decide
        await context.stack.enter_async_context(matcher)
        await matcher.wait(waits)
    return matcher


def _rewriter(context: AppContext) -> Rewriter | None:
    recall = context.settings.recall
    completions = completions_for(context, ModelRole.MEMORY_REWRITE) if recall.rewrites else None
    if completions is None:
        return None
    return Rewriter(completions, Rewrite(recall.query_rewrite), hyde=recall.hyde, take_apart=recall.split_questions)


# Identity as configured: keys of tokens, and the gateways that may assert an identity.


async def open_tokens(section: Callable[[], Signed], stack: AsyncExitStack) -> Tokens:
    # PyJWT and its algorithms are imported only if tokens are configured.
    from memory_extproc.request.jwt import Tokens, keys_at_url, keys_in_file  # noqa: PLC0415

    jwt = section()
    keys = keys_in_file(Path(jwt.jwks_file)) if jwt.jwks_file else keys_at_url(jwt.jwks_url)
    return await stack.enter_async_context(Tokens(section, keys))


def peers_of(settings: Settings) -> AllowedPeers | None:
    return AllowedPeers(settings.tls.allowed_names) if settings.tls.is_set else None
