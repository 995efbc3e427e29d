"""The write path as configured, with retention."""

from __future__ import annotations

import time
import uuid
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from memory_extproc.app.context import AppContext, Live, learn_limits, partition_limits, piece_limits
from memory_extproc.app.coordination import CONSENT, Fleet
from memory_extproc.app.maintenance import (
    make_consolidator,
    make_reflector,
    make_retention,
    make_summing,
    open_topics,
)
from memory_extproc.app.models import completions_for
from memory_extproc.app.storage import Storage, make_master_key
from memory_extproc.concurrency import HelperThread, Pace, steady_now
from memory_extproc.coordination.consent import Consents, SqliteConsent
from memory_extproc.coordination.replicas import RedisReplicas
from memory_extproc.coordination.sqlite import SoleReplica
from memory_extproc.errors import MemoryExtprocError
from memory_extproc.learn.commands.parser import Act, CommandMode, LlmCommands, Markers
from memory_extproc.learn.commands.runner import (
    CommandOptions,
    Commands,
    ForgetFilteringExtractor,
    ForgetFilteringJudge,
)
from memory_extproc.learn.extract.extractor import FactExtractor, FactFinder, Fallback, Measured
from memory_extproc.learn.extract.llm_client import Budget
from memory_extproc.learn.extract.llm_extractor import LlmExtractor
from memory_extproc.learn.extract.llm_notes import Noting
from memory_extproc.learn.extract.rules import RulesExtractor
from memory_extproc.learn.ingest import Intake
from memory_extproc.learn.intake_log import INTAKE, IntakeLog, IntakeLogLimits
from memory_extproc.learn.learner import ForgetGuard, Learner, LearnStages
from memory_extproc.learn.messages import MessagePreparer, judge
from memory_extproc.learn.queue import QueuePolicy
from memory_extproc.learn.reconcile import ComingMemories, ConflictJudge, LlmJudge, Reconciler
from memory_extproc.learn.screening import (
    Incognito,
    IncognitoLimits,
    Judging,
    QuarantiningExtractor,
    QuarantiningJudge,
    Quota,
    Screening,
)
from memory_extproc.learn.sessions import SessionLimits, Sessions
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import ConsentRecords, Coordination, EmbeddingModel, Now, TurnReceipts
from memory_extproc.retention.passes import SummaryRebuilder
from memory_extproc.retention.scheduler import RetentionJob
from memory_extproc.retention.usage import ChangeNotifier, Partition
from memory_extproc.safety.policy import Policy
from memory_extproc.settings import Settings
from memory_extproc.settings.memory import ModelRole
from memory_extproc.store.partition import Partitions
from memory_extproc.topics.tracker import TopicTracker


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePath:
    door: Door
    sessions: Sessions
    extraction: Extraction
    topics: TopicTracker | None  # None: they are switched off
    retention: RetentionJob  # entered by the caller, in shutdown order
    noticing: ChangeNotifier  # the partitions, with change notification for retention
    foresees: ComingMemories
    intake: Intake


async def open_write_path(context: AppContext, kept: Storage, receipts: TurnReceipts | None = None) -> WritePath:
    settings, live, metrics = context.settings, context.live, context.metrics
    stack, now = context.stack, context.now
    coordination, embedder, partitions = kept.coordination, kept.embedder, kept.partitions
    intake_log = await open_intake_log(settings, context.data, metrics, stack)
    door = await open_door(
        settings,
        context.data,
        kept.erasing.fleet,
        coordination,
        metrics,
        stack,
        live,
        now=now,
        intake_log=intake_log,
        helper=context.helper,
    )
    sessions = Sessions(coordination, SessionLimits(), new_session=lambda: uuid.uuid4().hex, helper=context.helper)
    budget = make_budget(settings, now, live)
    extraction = make_extraction(settings, metrics, stack, budget, live)
    summaries, rebuilds = make_summing(settings, budget, embedder, metrics, stack, live, now=now)
    topics = await open_topics(
        settings, summaries, partitions, embedder, coordination, metrics, stack, live, now=now
    )
    retention = _retention(context, kept, extraction, rebuilds)
    noticing = ChangeNotifier(partitions, retention.request_pass)
    judged = skip_forget_requests(
        live, quarantine_messages(live, partial(judge, limits=piece_limits(settings, embedder)))
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
        extraction=extraction,
        topics=topics,
        retention=retention,
        noticing=noticing,
        foresees=ComingMemories(
            judged,
            quarantine_facts(live, RulesExtractor(), context.helper),
            by_rules_alone=extraction.by_rules_alone,
            now=now,
            helper=context.helper,
        ),
        intake=intake,
    )


def _retention(
    context: AppContext, kept: Storage, extraction: Extraction, rebuilds: SummaryRebuilder
) -> RetentionJob:
    settings, live, metrics, stack = context.settings, context.live, context.metrics, context.stack
    return make_retention(
        live,
        kept.store,
        kept.shown,
        kept.partitions,
        kept.embedder,
        kept.coordination,
        metrics,
        now=context.now,
        rebuilds=rebuilds,
        reflects=make_reflector(settings, metrics, stack, extraction.budget, live),
        consolidates=make_consolidator(settings, metrics, stack, extraction.budget, live),
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
    receipts: TurnReceipts | None,
) -> Intake:
    live, metrics, now, helper = context.live, context.metrics, context.now, context.helper
    journal, embedder, coordination = kept.journal, kept.embedder, kept.coordination
    limits = learn_limits(context.settings)
    guard = ForgetGuard(journal, coordination, kept.erasing.forgotten)
    extractor = filter_extractor(live, extraction.extractor, helper)
    fallback = filter_extractor(live, extraction.fallback, helper)
    commands = make_commands(
        live, noticing, embedder, guard, metrics, context.stack, extraction, now=now, helper=helper
    )
    stages = LearnStages(
        journal,
        noticing,
        guard,
        MessagePreparer(embedder, judged, now=now, helper=helper),
        FactFinder(extractor, fallback, limits, now=now) if extractor else None,
        Reconciler(noticing, embedder, metrics, judges=extraction.judges),
        limits,
        commands,
    )
    learner = Learner(
        stages,
        journal,
        QueuePolicy(pace=Pace(context.load.is_busy)),
        limits,
        metrics,
        now=now,
        topics=topics,
        store_works=lambda: not kept.store.failing_for,
        traces=context.traces,
    )
    intake = await context.stack.enter_async_context(
        Intake(
            learner,
            journal,
            sessions,
            guard,
            limits,
            metrics,
            screens=door.screening,
            intake_log=intake_log,
            receipts=receipts,
        )
    )
    live.subscribe(partial(_use, kept.partitions, intake))
    return intake


def _use(partitions: Partitions, intake: Intake, new: Settings) -> None:
    partitions.reconfigure(partition_limits(new))
    intake.reconfigure(learn_limits(new))


# The write path as configured.


@dataclass(frozen=True, slots=True)
class Extraction:
    """The extraction parts, each of which may be None.

    *fallback* stands in for an unreachable extractor; *judges* decides conflicts that no rule decides."""

    extractor: FactExtractor | None = None
    fallback: FactExtractor | None = None
    judges: ConflictJudge | None = None
    budget: Budget | None = None  # the token budget of all model calls
    by_rules_alone: bool = True  # False: no extraction


def make_extraction(
    settings: Settings, metrics: Metrics, stack: AsyncExitStack, budget: Budget, live: Live | None = None
) -> Extraction:
    """Build extraction: by a model with the rules as fallback, by the rules, or none."""
    wanted = settings.learn.extractor
    if wanted == "off":
        return Extraction(budget=budget)
    rules = Measured(RulesExtractor(), metrics, time.perf_counter)
    model = settings.model_for(ModelRole.MEMORY_EXTRACTION)
    if wanted == "rules" or model is None:
        return Extraction(rules, budget=budget)
    completions = completions_for(model, ModelRole.MEMORY_EXTRACTION, metrics, stack, live)
    found: FactExtractor = LlmExtractor(completions, budget)
    if settings.learn.notepad:
        found = Noting(found, completions, budget)
    by_model = Measured(found, metrics, time.perf_counter)
    judges = LlmJudge(completions, budget)
    if wanted == "llm":
        return Extraction(by_model, judges=judges, budget=budget, by_rules_alone=False)
    return Extraction(Fallback(by_model, rules), fallback=rules, judges=judges, budget=budget, by_rules_alone=False)


def make_budget(settings: Settings, now: Now, live: Live) -> Budget:
    budget = Budget(settings.learn.model_tokens, now=now)
    live.subscribe(lambda new: budget.reconfigure(new.learn.model_tokens))
    return budget


# Chat commands as configured: requests to remember or forget.


def make_commands(
    live: Live,
    keeps: Partition,
    embedder: EmbeddingModel,
    guard: ForgetGuard,
    metrics: Metrics,
    stack: AsyncExitStack,
    extraction: Extraction,
    *,
    now: Now,
    helper: HelperThread,
) -> Commands:
    commands = Commands(
        command_options(live.settings),
        keeps,
        embedder,
        quarantine_facts(live, RulesExtractor(), helper),
        Reconciler(keeps, embedder, metrics),
        guard,
        metrics,
        now=now,
        doubts=_doubts(extraction, metrics, stack, live),
    )
    live.subscribe(lambda new: commands.reconfigure(command_options(new)))
    return commands


def command_options(settings: Settings) -> CommandOptions:
    markers = settings.learn.markers
    return CommandOptions(
        obeyed=CommandMode(settings.chat_commands),
        markers=Markers(markers.create, markers.delete),
        patience=settings.learn.model_patience,
    )


def _doubts(extraction: Extraction, metrics: Metrics, stack: AsyncExitStack, live: Live) -> LlmCommands | None:
    """The command model; None if facts are not extracted by a model either."""
    settings, role = live.settings, ModelRole.MEMORY_EXTRACTION
    model = settings.model_for(role)
    if model is None or extraction.budget is None or settings.learn.extractor not in {"auto", "llm"}:
        return None
    return LlmCommands(completions_for(model, role, metrics, stack, live), extraction.budget, metrics)


def skip_forget_requests(live: Live, judges: Judging) -> Judging:
    """Wrap *judges* to skip turns that request a forget, if such requests are obeyed."""
    return ForgetFilteringJudge(judges, obeys=lambda: _forgets(live.settings))


def filter_extractor(live: Live, extractor: FactExtractor | None, helper: HelperThread) -> FactExtractor | None:
    """Wrap *extractor* to skip turns that request a forget, and quarantined text."""
    if extractor is None:
        return None
    return ForgetFilteringExtractor(
        quarantine_facts(live, extractor, helper), obeys=lambda: _forgets(live.settings)
    )


def _forgets(settings: Settings) -> bool:
    return Act.FORGET in CommandMode(settings.chat_commands).acts


# Screening as configured: consent, incognito, quotas and quarantine.

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Door:
    """The admission to the write path, shared with the request path and the memory API."""

    consent: Consents
    incognito: Incognito
    screening: Screening


async def open_door(
    settings: Settings,
    data: Path,
    fleet: Fleet | None,
    coordination: Coordination,
    metrics: Metrics,
    stack: AsyncExitStack,
    live: Live,
    *,
    now: Now,
    intake_log: IntakeLog,
    helper: HelperThread,
) -> Door:
    """Open the admission. *fleet*: None with a single replica."""
    consent = Consents(
        await _records(data, stack) if fleet is None else fleet.consent,
        settings,
        now=now,
        monotonic_now=steady_now,
    )
    incognito = await stack.enter_async_context(Incognito(coordination, IncognitoLimits(), intake_log))
    if fleet is not None:
        fleet.recovery.hooks.restored.append(incognito.write_again)
    quota = Quota(settings.learn.quota, now=steady_now)
    screening = Screening(
        consent,
        incognito,
        quota,
        make_policy(settings),
        metrics,
        most=SessionLimits().turn_characters,
        helper=helper,
    )

    def reconfigure(new: Settings) -> None:
        consent.reconfigure(new)
        quota.reconfigure(new.learn.quota)
        screening.reconfigure(make_policy(new))

    live.subscribe(reconfigure)
    return Door(consent, incognito, screening)


def quarantine_facts(live: Live, extractor: FactExtractor, helper: HelperThread) -> FactExtractor:
    """*extractor* without what is to be put aside."""

    def refusal(text: str) -> str:
        return live.settings.privacy.storage_rules.refusal(text)

    return QuarantiningExtractor(
        extractor, aside=lambda: live.settings.privacy.quarantine, refusal=refusal, helper=helper
    )


def quarantine_messages(live: Live, judges: Judging) -> Judging:
    return QuarantiningJudge(judges, aside=lambda: live.settings.privacy.quarantine)


def make_policy(settings: Settings) -> Policy:
    privacy = settings.privacy
    return Policy(identifiers=privacy.identifiers, sensitive=privacy.sensitive, rules=privacy.storage_rules)


async def _records(data: Path, stack: AsyncExitStack) -> ConsentRecords:
    records = await stack.enter_async_context(SqliteConsent(data / CONSENT))
    try:
        await records.open()
    except MemoryExtprocError as error:
        # While consent is unknown we neither recall nor store: a denial must not be missed.
        log.warning("consent.not_open", detail=str(error))
    return records


# The intake log as configured.


async def open_intake_log(settings: Settings, data: Path, metrics: Metrics, stack: AsyncExitStack) -> IntakeLog:
    """Open the intake log. With encryption, the keys of its segments are wrapped with the master key too."""
    section = settings.learn.journal
    return await stack.enter_async_context(
        IntakeLog(
            data / INTAKE,
            IntakeLogLimits(records=section.max_turns, bytes=section.intake_bytes),
            wraps=make_master_key(settings),
            fsync=section.fsync,
            tells=lambda why: metrics.intake_aside.labels(why).inc(),
        )
    )
