"""The intake log as configured."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from memory_extproc.app.sealing import make_master_key
from memory_extproc.learn.intake_log import INTAKE, IntakeLog, IntakeLogLimits
from memory_extproc.observe.metrics import Metrics
from memory_extproc.settings import Settings


async def open_intake_log(settings: Settings, data: Path, metrics: Metrics, stack: AsyncExitStack) -> IntakeLog:
    """Where texts rest sealed, the keys of its segments are wrapped with the master key, too."""
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
