"""What exchanges are handled with, as configured; made anew when the configuration changes."""

from __future__ import annotations

from dataclasses import dataclass

from memory_extproc.app.compressing import make_compression
from memory_extproc.app.frame import Frame
from memory_extproc.app.identifying import Identifies, open_identities, peers_of
from memory_extproc.app.keeping import Kept
from memory_extproc.app.live import Live
from memory_extproc.app.options import profile_limits, recall_limits, wire_options
from memory_extproc.app.recalling import about_caller_of
from memory_extproc.app.retaining import open_accesses
from memory_extproc.app.screening import Door
from memory_extproc.app.tracing import caller_tag
from memory_extproc.app.writing import Writing
from memory_extproc.learn.sessions import Sessions
from memory_extproc.observe.log import CallerTag
from memory_extproc.observe.metrics import Metrics
from memory_extproc.observe.tracing import Traces
from memory_extproc.ports import Learns, Now
from memory_extproc.recall.profile import Profiles
from memory_extproc.recall.recaller import Recaller
from memory_extproc.retention.accesses import Accesses, CountedRecalls
from memory_extproc.settings import Settings
from memory_extproc.wire.accounts import Accounts
from memory_extproc.wire.admission import Admission
from memory_extproc.wire.background import Background
from memory_extproc.wire.compression import Compression
from memory_extproc.wire.enrich import Enricher
from memory_extproc.wire.exchange import Workshop
from memory_extproc.wire.handover import GetsMemories, Overhears, hands
from memory_extproc.wire.held import HeldBytes
from memory_extproc.wire.processor import Processor
from memory_extproc.wire.replays import Replays
from memory_extproc.wire.rules import Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """The parts that outlast a change of the configuration."""

    identifies: Identifies
    recalls: Recaller
    accesses: Accesses
    replays: Replays
    sessions: Sessions
    door: Door
    learns: Learns
    gets: GetsMemories
    held: HeldBytes
    background: Background
    metrics: Metrics
    traces: Traces
    tag: CallerTag
    compression: Compression
    profiles: Profiles
    now: Now

    def workshop(self, settings: Settings) -> Workshop:
        options, identity = wire_options(settings), self.identifies.identity(settings)
        return Workshop(
            admits=Admission(options, identity),
            enriches=Enricher(
                options,
                identity=identity,
                rules=Rules([section.rule() for section in settings.rules]),
                recalls=CountedRecalls(self.recalls, self.accesses),
                replays=self.replays,
                metrics=self.metrics,
                chains=self.sessions,
                consent=self.door.consent,
                incognito=self.door.incognito,
                traces=self.traces,
                compression=self.compression,
                profiles=self.profiles,
            ),
            follows=self.replays,
            learns=self.learns,
            held=self.held,
            background=self.background,
            metrics=self.metrics,
            accounts=Accounts(self.metrics, settings.telemetry.tenants),
            now=self.now,
            request_bytes=options.request_bytes,
            answer_bytes=options.answer_bytes,
            request_waits=(options.give_up_after + settings.message_timeout) / 2,
            last_reply_waits=options.last_reply_waits,
            incognito=self.door.incognito,
            traces=self.traces,
            tag=self.tag,
            hands=hands,
        )

    def processor(self, live: Live) -> Processor:
        settings, overhears = live.settings, None
        if settings.envoy.two_filters:
            overhears = Overhears(self.gets, self.replays, request_bytes=settings.limits.request_body)
        processor = Processor(self.workshop(settings), peers_of(settings), overhears)

        def use(new: Settings) -> None:
            processor.use(self.workshop(new), peers_of(new))
            if overhears is not None:
                overhears.use(request_bytes=new.limits.request_body)

        live.follow(self.use)
        live.follow(use)
        return processor

    def use(self, settings: Settings) -> None:
        """New limits for those parts."""
        self.metrics.recall_deadline.set(settings.deadline.total_seconds())
        self.recalls.use(recall_limits(settings), about_caller_of(settings))
        self.replays.use(wire_options(settings))
        self.profiles.use(profile_limits(settings))
        self.held.use(settings.limits.process_bytes)


async def open_wire(
    frame: Frame, kept: Kept, writing: Writing, recalls: Recaller, replays: Replays, background: Background
) -> Wire:
    settings, live, metrics, stack, now = frame.settings, frame.live, frame.metrics, frame.stack, frame.now
    door, learner, partitions = writing.door, writing.learner, kept.partitions
    return Wire(
        identifies=await open_identities(live, stack),
        recalls=recalls,
        accesses=await open_accesses(live, partitions, stack, now=now),
        replays=replays,
        sessions=writing.sessions,
        door=door,
        learns=learner,
        gets=partitions,
        held=HeldBytes(settings.limits.process_bytes, metrics),
        background=background,
        metrics=metrics,
        traces=frame.traces,
        tag=caller_tag(settings),
        profiles=Profiles(partitions, profile_limits(settings), now=now, learns=learner),
        compression=make_compression(
            settings, kept.coordination, writing.extraction, door, background, metrics, stack, live, now=now
        ),
        now=now,
    )
