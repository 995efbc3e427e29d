"""Long chats condensed, as configured."""

from __future__ import annotations

import uuid
from contextlib import AsyncExitStack

from memory_extproc.app.learning import Extraction
from memory_extproc.app.live import Live
from memory_extproc.app.models import completions_for
from memory_extproc.app.screening import Door
from memory_extproc.learn.condensing import LlmCondenser, RulesCondenser
from memory_extproc.learn.rules_extractor import RulesExtractor
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Condenses, Coordination, Now
from memory_extproc.settings import Settings
from memory_extproc.settings.memory import ModelRole
from memory_extproc.wire.background import Background
from memory_extproc.wire.compression import Compression, CompressionLimits


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
    """Also where it is not enabled: a rule or a client may ask for it."""
    made = Compression(
        compression_limits(settings),
        coordination,
        make_condenser(settings, extraction, metrics, stack, live, now=now),
        background=background,
        metrics=metrics,
        holder=uuid.uuid4().hex,
        now=now,
        incognito=door.incognito,
    )
    live.follow(lambda new: made.use(compression_limits(new)))
    return made


def make_condenser(
    settings: Settings, extraction: Extraction, metrics: Metrics, stack: AsyncExitStack, live: Live, *, now: Now
) -> Condenses:
    rules = RulesCondenser(RulesExtractor(), now=now)
    role = ModelRole.MEMORY_SUMMARY
    model = settings.model_for(role)
    if model is None or extraction.budget is None or settings.learn.extractor not in {"auto", "llm"}:
        return rules
    return LlmCondenser(completions_for(model, role, metrics, stack, live), extraction.budget, rules)


def compression_limits(settings: Settings) -> CompressionLimits:
    compress = settings.compress
    return CompressionLimits(
        enabled=compress.enabled,
        above_tokens=compress.above_tokens,
        keep_turns=compress.keep_turns,
        keep=compress.keep,
        wait=settings.deadline / 3,
    )
