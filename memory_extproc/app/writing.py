"""The write path as configured, with what becomes of memories once they are written."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass
from functools import partial

from memory_extproc.app.commanding import make_commands, read_by, unsaid
from memory_extproc.app.frame import Frame
from memory_extproc.app.intake import open_intake_log
from memory_extproc.app.keeping import Kept
from memory_extproc.app.learning import Extraction, make_budget, make_extraction
from memory_extproc.app.options import learn_limits, partition_limits, piece_limits
from memory_extproc.app.retaining import make_consolidator, make_reflector, make_retention
from memory_extproc.app.screening import Door, open_door, putting_aside, trusting
from memory_extproc.app.topics import make_summing, open_topics
from memory_extproc.coordination.replicas import RedisReplicas, SoleReplica
from memory_extproc.learn.foreseeing import ComingMemories
from memory_extproc.learn.intake_log import IntakeLog
from memory_extproc.learn.learner import Learner
from memory_extproc.learn.quarantine import Judging
from memory_extproc.learn.reconcile import Reconciler
from memory_extproc.learn.remember import judge
from memory_extproc.learn.rules_extractor import RulesExtractor
from memory_extproc.learn.sessions import SessionLimits, Sessions
from memory_extproc.retention.job import RetentionJob
from memory_extproc.retention.keeper import Rebuilds
from memory_extproc.retention.noticing import Noticing
from memory_extproc.settings import Settings
from memory_extproc.store.partition import Partitions
from memory_extproc.topics.follower import Topics


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    door: Door
    sessions: Sessions
    extraction: Extraction
    topics: Topics | None  # None: they are switched off
    retention: RetentionJob  # to be entered by who looks after the order of leaving
    noticing: Noticing  # the partitions, where retention hears of what is written
    foresees: ComingMemories
    learner: Learner


async def open_writing(frame: Frame, kept: Kept) -> Writing:
    settings, live, metrics, stack, now = frame.settings, frame.live, frame.metrics, frame.stack, frame.now
    coordination, embedder, partitions = kept.coordination, kept.embedder, kept.partitions
    intake_log = await open_intake_log(settings, frame.data, metrics, stack)
    door = await open_door(
        settings, frame.data, kept.erasing.fleet, coordination, metrics, stack, live, now=now, intake_log=intake_log
    )
    sessions = Sessions(coordination, SessionLimits(), new_session=lambda: uuid.uuid4().hex)
    budget = make_budget(settings, now, live)
    extraction = make_extraction(settings, metrics, stack, budget, live)
    summaries, rebuilds = make_summing(settings, budget, embedder, metrics, stack, live, now=now)
    topics = await open_topics(
        settings, summaries, partitions, embedder, coordination, metrics, stack, live, now=now
    )
    retention = _retention(frame, kept, extraction, rebuilds)
    noticing = Noticing(partitions, retention.soon)
    judged = unsaid(live, putting_aside(live, partial(judge, limits=piece_limits(settings, embedder))))
    learner = await _open_learner(frame, kept, door, sessions, extraction, noticing, topics, judged, intake_log)
    replicas = kept.erasing.replicas
    if isinstance(replicas, RedisReplicas):
        # What the register of data directories says of ours, to replicas that forget.
        replicas.oldest_waiting = lambda: min(
            filter(None, (learner.oldest_waiting(), kept.oldest_aside())), default=None
        )
    elif isinstance(replicas, SoleReplica):
        replicas.oldest_waiting = learner.oldest_waiting
    return Writing(
        door=door,
        sessions=sessions,
        extraction=extraction,
        topics=topics,
        retention=retention,
        noticing=noticing,
        foresees=ComingMemories(
            judged, trusting(live, RulesExtractor()), by_rules_alone=extraction.by_rules_alone, now=now
        ),
        learner=learner,
    )


def _retention(frame: Frame, kept: Kept, extraction: Extraction, rebuilds: Rebuilds) -> RetentionJob:
    settings, live, metrics, stack = frame.settings, frame.live, frame.metrics, frame.stack
    return make_retention(
        settings,
        kept.store,
        kept.shown,
        kept.partitions,
        kept.embedder,
        kept.coordination,
        metrics,
        now=frame.now,
        rebuilds=rebuilds,
        reflects=make_reflector(settings, metrics, stack, extraction.budget, live),
        consolidates=make_consolidator(settings, metrics, stack, extraction.budget, live),
        live=live,
    )


async def _open_learner(
    frame: Frame,
    kept: Kept,
    door: Door,
    sessions: Sessions,
    extraction: Extraction,
    noticing: Noticing,
    topics: Topics | None,
    judged: Judging,
    intake_log: IntakeLog,
) -> Learner:
    settings, live, metrics, now = frame.settings, frame.live, frame.metrics, frame.now
    journal, embedder, coordination = kept.journal, kept.embedder, kept.coordination
    learner = await frame.stack.enter_async_context(
        Learner(
            journal,
            sessions,
            noticing,
            embedder,
            coordination,
            learn_limits(settings),
            metrics,
            extractor=read_by(live, extraction.extractor),
            stand_in=read_by(live, extraction.stand_in),
            reconciler=Reconciler(noticing, embedder, metrics, judges=extraction.judges),
            now=now,
            chance=random.random,
            judged=judged,
            commands=make_commands(
                live, noticing, embedder, journal, coordination, metrics, frame.stack, extraction, now=now
            ),
            screens=door.screening,
            forgotten=kept.erasing.forgotten,
            traces=frame.traces,
            topics=topics,
            store_works=lambda: not kept.store.failing_for,
            intake_log=intake_log,
        )
    )
    live.follow(partial(_use, kept.partitions, learner))
    return learner


def _use(partitions: Partitions, learner: Learner, new: Settings) -> None:
    partitions.use(partition_limits(new))
    learner.use(learn_limits(new))
