"""The write path as configured, with retention."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from memory_extproc.app.context import AppContext, piece_limits
from memory_extproc.app.coordination import CONSENT
from memory_extproc.app.maintenance import make_reflector, make_retention, make_summing, make_topics
from memory_extproc.app.models import completions_for
from memory_extproc.app.storage import Storage, make_master_key
from memory_extproc.concurrency import Pace, steady_now
from memory_extproc.coordination.consent import Consents, SqliteConsent
from memory_extproc.coordination.replicas import RedisReplicas
from memory_extproc.coordination.sqlite import SoleReplica
from memory_extproc.errors import MemoryExtprocError
from memory_extproc.learn.commands.parser import ACTS, Act, LlmCommands
from memory_extproc.learn.commands.runner import (
    Commands,
    ForgetFilteringExtractor,
    ForgetFilteringJudge,
)
from memory_extproc.learn.extract.extractor import FactExtractor, FactFinder, Fallback, Measured
from memory_extproc.learn.extract.llm_extractor import LlmExtractor, Noting
from memory_extproc.learn.extract.rules import RulesExtractor
from memory_extproc.learn.ingest import Intake
from memory_extproc.learn.intake_log import INTAKE, IntakeLog
from memory_extproc.learn.learner import ForgetGuard, Learner, LearnStages
from memory_extproc.learn.messages import MessagePreparer, judge
from memory_extproc.learn.queue import QueuePolicy
from memory_extproc.learn.reconcile import ComingMemories, ConflictJudge, LlmJudge, Reconciler
from memory_extproc.learn.screening import (
    Incognito,
    Judging,
    QuarantiningExtractor,
    QuarantiningJudge,
    Quota,
    Screening,
)
from memory_extproc.learn.sessions import TURN_CHARACTERS, Sessions
from memory_extproc.observe.log import logger
from memory_extproc.ports import ConsentRecords, EmbeddingModel, TurnReceipts
from memory_extproc.retention.scheduler import RetentionJob
from memory_extproc.retention.usage import ChangeNotifier, Partition
from memory_extproc.safety.policy import Policy
from memory_extproc.settings import Settings
from memory_extproc.settings.identity import Privacy
from memory_extproc.settings.memory import ModelRole
from memory_extproc.topics.tracker import TopicTracker


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePath:
    door: Door
    sessions: Sessions
    topics: TopicTracker | None  # None: they are switched off
    retention: RetentionJob  # entered by the caller, in shutdown order
    noticing: ChangeNotifier  # the partitions, with change notification for retention
    foresees: ComingMemories
    intake: Intake


async def open_write_path(context: AppContext, kept: Storage, receipts: TurnReceipts) -> WritePath:
    settings, live, stack, now = context.settings, context.live, context.stack, context.now
    coordination, embedder, partitions = kept.coordination, kept.embedder, kept.partitions
    intake_log = await open_intake_log(context)
    door = await open_door(context, kept, intake_log)
    sessions = Sessions(coordination, new_session=lambda: uuid.uuid4().hex, helper=context.helper)
    extraction = make_extraction(context)
    summaries, rebuilds = make_summing(context, embedder)
    topics = None
    if settings.topics.enabled:
        topics = await stack.enter_async_context(
            make_topics(context, summaries, partitions, embedder, coordination)
        )
    retention = make_retention(context, kept, rebuilds, make_reflector(context))
    noticing = ChangeNotifier(partitions, retention.request_pass)
    judged = ForgetFilteringJudge(
        QuarantiningJudge(
            partial(judge, limits=piece_limits(settings, embedder)), aside=lambda: live.settings.privacy.quarantine
        ),
        obeys=lambda: _forgets(live.settings),
    )
    intake = await _open_intake(
        context, kept, door, sessions, extraction, noticing, topics, judged, intake_log, receipts
    )
    replicas = kept.erasing.replicas
    if isinstance(replicas, RedisReplicas):
        # Our entry in the register of data directories, read by replicas that forget.
        replicas.oldest_waiting = lambda: min(
            filter(None, (intake.oldest_waiting(), kept.oldest_aside())), default=None
        )
    elif isinstance(replicas, SoleReplica):
        replicas.oldest_waiting = intake.oldest_waiting
    return WritePath(
        door=door,
        sessions=sessions,
        topics=topics,
        retention=retention,
        noticing=noticing,
        foresees=ComingMemories(
            judged,
            quarantine_facts(context, RulesExtractor()),
            by_rules_alone=extraction.by_rules_alone,
            now=now,
            helper=context.helper,
        ),
        intake=intake,
    )


async def _open_intake(
    context: AppContext,
    kept: Storage,
    door: Door,
    sessions: Sessions,
    extraction: Extraction,
    noticing: ChangeNotifier,
    topics: TopicTracker | None,
    judged: Judging,
    intake_log: IntakeLog,
    receipts: TurnReceipts,
) -> Intake:
    metrics, now, helper = context.metrics, context.now, context.helper
    journal, embedder = kept.journal, kept.embedder
    live, settings = context.live, context.settings
    guard = ForgetGuard(journal, kept.coordination, kept.erasing.forgotten)
    extractor = filter_extractor(context, extraction.extractor)
    fallback = filter_extractor(context, extraction.fallback)
    facts = FactFinder(extractor, fallback, live, now=now) if extractor else None
    stages = LearnStages(
        journal,
        noticing,
        guard,
        MessagePreparer(embedder, judged, now=now, helper=helper),
        facts,
        Reconciler(noticing, embedder, metrics, judges=extraction.judges),
        make_commands(context, noticing, embedder, guard),
    )
    learner = Learner(
        stages,
        journal,
        QueuePolicy(
            pace=Pace(context.load.is_busy),
            settle=timedelta(seconds=3 if settings.coordination.url else 0),  # a single replica has all tombstones
            batches=settings.extracts_by_model,
            gather=timedelta(seconds=1),
        ),
        live,
        metrics,
        now=now,
        topics=topics,
        store_works=lambda: not kept.store.failing_for,
        traces=context.traces,
    )
    return await context.stack.enter_async_context(
        Intake(
            learner,
            journal,
            sessions,
            guard,
            live,
            metrics,
            screens=door.screening,
            intake_log=intake_log,
            receipts=receipts,
        )
    )


# The write path as configured.


@dataclass(frozen=True, slots=True)
class Extraction:
    """The extraction parts, each of which may be None.

    *fallback* stands in for an unreachable extractor; *judges* decides conflicts that no rule decides."""

    extractor: FactExtractor | None = None
    fallback: FactExtractor | None = None
    judges: ConflictJudge | None = None
    by_rules_alone: bool = True  # False: no extraction


def make_extraction(context: AppContext) -> Extraction:
    """Build extraction: by a model with the rules as fallback, by the rules, or none."""
    section, metrics, budget = context.settings.learn, context.metrics, context.budget
    wanted = section.extractor
    if wanted == "off":
        return Extraction()
    rules = Measured(RulesExtractor(), metrics, time.perf_counter)
    completions = None if wanted == "rules" else completions_for(context, ModelRole.MEMORY_EXTRACTION)
    if completions is None:
        return Extraction(rules)
    found: FactExtractor = LlmExtractor(completions, budget)
    if section.notepad:
        found = Noting(found, completions, budget)
    by_model = Measured(found, metrics, time.perf_counter)
    judges = LlmJudge(completions, budget)
    if wanted == "llm":
        return Extraction(by_model, judges=judges, by_rules_alone=False)
    return Extraction(Fallback(by_model, rules), fallback=rules, judges=judges, by_rules_alone=False)


# Chat commands as configured: requests to remember or forget.


def make_commands(context: AppContext, keeps: Partition, embedder: EmbeddingModel, guard: ForgetGuard) -> Commands:
    completions = (
        completions_for(context, ModelRole.MEMORY_EXTRACTION) if context.settings.extracts_by_model else None
    )
    return Commands(
        context.live,
        keeps,
        embedder,
        quarantine_facts(context, RulesExtractor()),
        Reconciler(keeps, embedder, context.metrics),
        guard,
        context.metrics,
        now=context.now,
        doubts=None if completions is None else LlmCommands(completions, context.budget, context.metrics),
    )


def filter_extractor(context: AppContext, extractor: FactExtractor | None) -> FactExtractor | None:
    """Wrap *extractor* to skip turns that request a forget, and quarantined text."""
    if extractor is None:
        return None
    live = context.live
    return ForgetFilteringExtractor(quarantine_facts(context, extractor), obeys=lambda: _forgets(live.settings))


def _forgets(settings: Settings) -> bool:
    return Act.FORGET in ACTS[settings.chat_commands]


# Screening as configured: consent, incognito, quotas and quarantine.

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Door:
    """The admission to the write path, shared with the request path and the memory API."""

    consent: Consents
    incognito: Incognito
    screening: Screening


async def open_door(context: AppContext, kept: Storage, intake_log: IntakeLog) -> Door:
    live, fleet = context.live, kept.erasing.fleet  # without a fleet: a single replica
    consent = Consents(
        await _records(context) if fleet is None else fleet.consent,
        live,
        now=context.now,
        monotonic_now=steady_now,
    )
    incognito = await context.stack.enter_async_context(Incognito(kept.coordination, intake_log))
    if fleet is not None:
        fleet.recovery.hooks.restored.append(incognito.write_again)
    screening = Screening(
        consent,
        incognito,
        Quota(lambda: live.settings.learn.quota, now=steady_now),
        lambda: make_policy(live.settings.privacy),
        context.metrics,
        most=TURN_CHARACTERS,
        helper=context.helper,
    )
    return Door(consent, incognito, screening)


def quarantine_facts(context: AppContext, extractor: FactExtractor) -> FactExtractor:
    """*extractor* without what is to be put aside."""
    live = context.live

    def refusal(text: str) -> str:
        return live.settings.privacy.storage_rules.refusal(text)

    return QuarantiningExtractor(
        extractor, aside=lambda: live.settings.privacy.quarantine, refusal=refusal, helper=context.helper
    )


def make_policy(privacy: Privacy) -> Policy:
    return Policy(identifiers=privacy.identifiers, sensitive=privacy.sensitive, rules=privacy.storage_rules)


async def _records(context: AppContext) -> ConsentRecords:
    records = await context.stack.enter_async_context(SqliteConsent(context.data / CONSENT))
    try:
        await records.open()
    except MemoryExtprocError as error:
        # While consent is unknown we neither recall nor store: a denial must not be missed.
        log.warning("consent.not_open", detail=str(error))
    return records


# The intake log as configured.


async def open_intake_log(context: AppContext) -> IntakeLog:
    """Open the intake log. With encryption, the keys of its segments are wrapped with the master key too."""
    return await context.stack.enter_async_context(
        IntakeLog(
            context.data / INTAKE,
            context.settings.learn.journal,
            wraps=make_master_key(context.settings),
            tells=lambda why: context.metrics.intake_aside.labels(why).inc(),
        )
    )
