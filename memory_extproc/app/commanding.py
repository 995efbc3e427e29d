"""What people tell the assistant to keep or to forget, as configured."""

from __future__ import annotations

from memory_extproc.app.screening import trusting
from memory_extproc.learn.chat_commands import Act, Markers, Obeyed
from memory_extproc.learn.commanded import CommandOptions, Commands, Unextracted, Unsaid
from memory_extproc.learn.extract import Extracts
from memory_extproc.learn.quarantine import Judging
from memory_extproc.learn.reconcile import Reconciler
from memory_extproc.learn.rules_extractor import RulesExtractor
from memory_extproc.learn.sessions import WORDED
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Coordination, Embeds, Journal, Now
from memory_extproc.settings import Settings
from memory_extproc.store.partition import Partitions
from memory_extproc.wire.compression import WORDED as COMPRESSED
from memory_extproc.wire.replays import WORDED as GIVEN


def make_commands(
    settings: Settings,
    partitions: Partitions,
    embedder: Embeds,
    journal: Journal,
    coordination: Coordination,
    metrics: Metrics,
    *,
    now: Now,
) -> Commands | None:
    if Obeyed(settings.chat_commands) is Obeyed.OFF:
        return None
    markers = settings.learn.markers
    rules = RulesExtractor()
    return Commands(
        CommandOptions(
            obeyed=Obeyed(settings.chat_commands),
            markers=Markers(markers.create, markers.delete),
            worded=(*WORDED, *GIVEN, *COMPRESSED),
        ),
        partitions,
        embedder,
        trusting(settings, rules) or rules,
        Reconciler(partitions, embedder, metrics),
        journal,
        coordination,
        metrics,
        now=now,
    )


def unsaid(settings: Settings, judges: Judging) -> Judging:
    """*judges* without turns that ask for something to be forgotten."""
    return Unsaid(judges) if Act.FORGET in Obeyed(settings.chat_commands).acts else judges


def unextracted(settings: Settings, extractor: Extracts | None) -> Extracts | None:
    if extractor is None or Act.FORGET not in Obeyed(settings.chat_commands).acts:
        return extractor
    return Unextracted(extractor)
