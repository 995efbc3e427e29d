"""The write path from its parts, as app/write_path.py joins them, for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

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
from memory_extproc.learn.queue import QueuePolicy
from memory_extproc.learn.screening import TurnScreener
from memory_extproc.learn.sessions import Sessions
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Coordination, EmbeddingModel, Journal, MemoryWriter, Now, TombstoneReader
from memory_extproc.settings import CurrentSettings, Settings


@dataclass(frozen=True, slots=True)
class LearnSettings:
    """What a write path is configured with, in settings and beside them; values that no file may hold, too."""

    batch: int = 10
    idle: timedelta = timedelta(seconds=60)
    journal_wait: timedelta = timedelta(milliseconds=50)
    retention: timedelta = timedelta(minutes=10)
    patience: timedelta = timedelta(hours=24)
    attempts: int = 3
    grace: timedelta = timedelta(seconds=20)
    accepting_bytes: int = 64 << 20
    accepting: int = 1_000
    settle: timedelta = timedelta(seconds=3)
    gather: timedelta = timedelta()
    gathered: int = 256
    look: timedelta = timedelta(seconds=1)
    sweep: timedelta = timedelta(seconds=5)
    rows: int = 256
    stood_in_for: int = 20_000

    def settings(self) -> Settings:
        settings = Settings()
        learn, journal = settings.learn, {"wait": self.journal_wait, "retention": self.retention}
        changes = {
            "memory": settings.memory.model_copy(update={"extraction_batch_size": self.batch}),
            "learn": learn.model_copy(
                update={
                    "journal": learn.journal.model_copy(update=journal),
                    "session_idle": self.idle,
                    "max_attempts": self.attempts,
                    "model_patience": self.patience,
                }
            ),
            "limits": settings.limits.model_copy(update={"process_bytes": 4 * self.accepting_bytes}),
            "shutdown": settings.shutdown.model_copy(update={"flush": self.grace}),
        }
        return settings.model_copy(update=changes)

    def policy(self, policy: QueuePolicy) -> QueuePolicy:
        names = ("accepting", "settle", "gather", "gathered", "look", "sweep")
        return replace(policy, **{name: getattr(self, name) for name in names})


def reconfigure(intake: Intake, limits: LearnSettings) -> None:
    """As a reload does."""
    intake._current.settings = limits.settings()


def make_intake(
    journal: Journal,
    sessions: Sessions,
    memories: MemoryWriter,
    embedder: EmbeddingModel,
    coordination: Coordination,
    limits: LearnSettings,
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
    current, policy = CurrentSettings(limits.settings()), limits.policy(policy)
    facts = None
    if extractor is not None:
        facts = FactFinder(extractor, fallback, current, now=now, stood_in_for=limits.stood_in_for)
    stages = LearnStages(journal, memories, guard, messages, facts, reconciler, commands, rows=limits.rows)
    learner = Learner(stages, journal, policy, current, metrics, now=now, topics=topics, store_works=store_works)
    return Intake(learner, journal, sessions, guard, current, metrics, screens=screens, intake_log=intake_log)
