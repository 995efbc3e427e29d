"""What people tell the assistant to keep or to forget, as configured."""

from __future__ import annotations

from contextlib import AsyncExitStack

from memory_extproc.app.learning import Extraction
from memory_extproc.app.live import Live
from memory_extproc.app.models import completions_for
from memory_extproc.app.screening import trusting
from memory_extproc.learn.chat_commands import Act, Markers, Obeyed
from memory_extproc.learn.commanded import CommandOptions, Commands, Unextracted, Unsaid
from memory_extproc.learn.extract import Extracts
from memory_extproc.learn.llm_commands import LlmCommands
from memory_extproc.learn.quarantine import Judging
from memory_extproc.learn.reconcile import Reconciler
from memory_extproc.learn.rules_extractor import RulesExtractor
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Coordination, Embeds, Journal, Now
from memory_extproc.retention.noticing import Partition
from memory_extproc.settings import Settings
from memory_extproc.settings.memory import ModelRole


def make_commands(
    live: Live,
    keeps: Partition,
    embedder: Embeds,
    journal: Journal,
    coordination: Coordination,
    metrics: Metrics,
    stack: AsyncExitStack,
    extraction: Extraction,
    *,
    now: Now,
) -> Commands:
    commands = Commands(
        command_options(live.settings),
        keeps,
        embedder,
        trusting(live, RulesExtractor()),
        Reconciler(keeps, embedder, metrics),
        journal,
        coordination,
        metrics,
        now=now,
        doubts=_doubts(extraction, metrics, stack, live),
    )
    live.follow(lambda new: commands.use(command_options(new)))
    return commands


def command_options(settings: Settings) -> CommandOptions:
    markers = settings.learn.markers
    return CommandOptions(
        obeyed=Obeyed(settings.chat_commands),
        markers=Markers(markers.create, markers.delete),
        patience=settings.learn.model_patience,
    )


def _doubts(extraction: Extraction, metrics: Metrics, stack: AsyncExitStack, live: Live) -> LlmCommands | None:
    """None where facts are not found by a model either."""
    settings, role = live.settings, ModelRole.MEMORY_EXTRACTION
    model = settings.model_for(role)
    if model is None or extraction.budget is None or settings.learn.extractor not in {"auto", "llm"}:
        return None
    return LlmCommands(completions_for(model, role, metrics, stack, live), extraction.budget, metrics)


def unsaid(live: Live, judges: Judging) -> Judging:
    """*judges* without turns that ask for something to be forgotten, where that is obeyed."""
    return Unsaid(judges, obeys=lambda: _forgets(live.settings))


def read_by(live: Live, extractor: Extracts | None) -> Extracts | None:
    """*extractor* without turns that ask for something to be forgotten, and without what is to be put aside."""
    if extractor is None:
        return None
    return Unextracted(trusting(live, extractor), obeys=lambda: _forgets(live.settings))


def _forgets(settings: Settings) -> bool:
    return Act.FORGET in Obeyed(settings.chat_commands).acts
