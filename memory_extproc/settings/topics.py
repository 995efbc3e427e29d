"""Topics and summaries of sessions as configured."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from pydantic import Field

from memory_extproc.settings.values import Positive, Section, Share


class Topics(Section):
    enabled: bool = Field(default=True, description="false: turns and facts alone are remembered")
    same: Share = Field(
        0.45, description="cosine to the open topic from which on a turn belongs to it, with no further look"
    )
    apart: Share = Field(
        0.5,
        description="probability from which on a turn begins another topic, by a measure fitted for "
        "all-MiniLM-L6-v2; `eval topics` says how well it does with another model",
    )
    characters: int = Field(25_000, ge=1_000, le=100_000, description="at which a topic closes by itself")
    idle: Positive = Field(
        timedelta(minutes=10), description="of silence, after which a session has ended and is summed up"
    )
    model: Literal["auto", "off"] = Field(
        "auto",
        description="auto: memory_topics decides in doubt and memory_summary sums up, if there is a model; off: "
        "measures and the most central sentences",
    )
