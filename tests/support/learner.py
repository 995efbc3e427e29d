"""The write path from its parts, as app/write_path.py joins them, for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Callable

from memory_extproc.learn.extract.extractor import FactExtractor, FactFinder
from memory_extproc.learn.ingest import Intake
from memory_extproc.learn.intake_log import IntakeLog
from memory_extproc.learn.learner import (
    CommandApplier,
    FactReconciler,
    ForgetGuard,
    Learner,
    LearnStages,
    TopicFollower,
)
from memory_extproc.learn.messages import Judges, MessagePreparer, judge
from memory_extproc.learn.queue import LearnLimits, QueuePolicy
from memory_extproc.learn.screening import TurnScreener
from memory_extproc.learn.sessions import Sessions
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Coordination, EmbeddingModel, Journal, MemoryWriter, Now, TombstoneReader


def make_intake(
    journal: Journal,
    sessions: Sessions,
    memories: MemoryWriter,
    embedder: EmbeddingModel,
    coordination: Coordination,
    limits: LearnLimits,
    metrics: Metrics,
    *,
    extractor: FactExtractor | None,
    fallback: FactExtractor | None = None,
    reconciler: FactReconciler,
    now: Now,
    policy: QueuePolicy,
    judged: Judges = judge,
    screens: TurnScreener | None = None,
    forgotten: TombstoneReader | None = None,
    commands: CommandApplier | None = None,
    topics: TopicFollower | None = None,
    store_works: Callable[[], bool] = lambda: True,
    intake_log: IntakeLog | None = None,
) -> Intake:
    guard = ForgetGuard(journal, coordination, forgotten)
    messages = MessagePreparer(embedder, judged, now=now)
    facts = FactFinder(extractor, fallback, limits, now=now) if extractor else None
    stages = LearnStages(journal, memories, guard, messages, facts, reconciler, limits, commands)
    learner = Learner(stages, journal, policy, limits, metrics, now=now, topics=topics, store_works=store_works)
    return Intake(learner, journal, sessions, guard, limits, metrics, screens=screens, intake_log=intake_log)
