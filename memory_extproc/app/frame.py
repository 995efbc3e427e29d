"""What every part of one sidecar is made with."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from memory_extproc.app.live import Live
from memory_extproc.observe.metrics import Metrics
from memory_extproc.observe.tracing import Traces
from memory_extproc.ports import Now
from memory_extproc.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Who opens a part puts it on *stack*: the order of opening is the order of closing reversed."""

    live: Live
    data: Path  # the data directory, held by this process alone
    metrics: Metrics
    traces: Traces
    stack: AsyncExitStack
    now: Now

    @property
    def settings(self) -> Settings:
        """As in effect at the time: to be asked while parts are made."""
        return self.live.settings
