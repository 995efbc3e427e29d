"""The life of memories after they were stored, as configured."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field

from memory_extproc.model import MemoryType
from memory_extproc.settings.values import Duration, Positive, Section, Share


class TimeToLive(Section):
    semantic: Positive | None = Field(None, description="since it was stored; null: for good, here and below")
    procedural: Positive | None = Field(None, description="how the caller wants things done")
    episodic: Positive | None = Field(None, description="what was said, messages themselves too")
    reflective: Positive | None = Field(None, description="what was concluded")

    def given(self) -> dict[MemoryType, timedelta]:
        found = {kind: getattr(self, kind.value) for kind in MemoryType}
        return {kind: ttl for kind, ttl in found.items() if ttl is not None}


class Duplicates(Section):
    enabled: bool = Field(default=True, description="facts that say the same become one")
    distance: float = Field(0.08, ge=0, le=2, description="1 - cosine, at most, between neighbours in a cluster")
    same_words: bool = Field(
        default=True,
        description="they must say the same in words too; false: the distance alone decides, and facts about two "
        "flights, 0.04 apart, become one",
    )


class Consolidate(Section):
    above: int | None = Field(
        3, ge=2, le=1000, description="statements of one thing over time that become one memory; null: none do"
    )
    earlier: int = Field(12, ge=1, le=100, description="values from before that one memory names at most")
    subject: int | None = Field(
        8,
        ge=2,
        le=1000,
        description="facts of one subject other than the caller that the memory_extraction model, where there is "
        "one, tells in one memory; null: none",
    )


class Reflect(Section):
    enabled: bool = Field(
        default=False, description="a model draws conclusions from a caller's facts; needs memory_extraction"
    )
    above: int = Field(5, ge=2, le=10_000, description="facts of one theme from which on it is asked about them")
    grown: int = Field(3, ge=1, le=10_000, description="facts new in a theme until it is asked about it again")
    themes: int = Field(
        3, ge=1, le=100, description="themes of a caller and project that it is asked about in a round"
    )


class Retention(Section):
    every: Positive | None = Field(
        timedelta(hours=24), description="a round over all callers in the background; null: by command alone"
    )
    weight: Share = Field(0.5, description="of importance in a memory's score; the rest is age's")
    half_life: Positive = Field(timedelta(days=60), description="after which age's part has halved")
    refresh_on_access: bool = Field(default=True, description="a memory that was injected is as young as then")
    max_memories: int | None = Field(
        1000, ge=1, le=10_000_000, description="active ones of one caller; beyond, the lowest scores go; null: any"
    )
    prune_share: float = Field(
        0.01, ge=0, lt=1, description="of max_memories that is made room for beyond what is too many"
    )
    protect: Duration = Field(timedelta(hours=24), description="younger memories are left alone")
    ttl: TimeToLive = Field(TimeToLive(), description="how long each type is kept, whatever its score")
    grace: Duration = Field(timedelta(days=30), description="from softly deleted to erased")
    history: Duration | None = Field(
        timedelta(days=365), description="from superseded to erased; null: what held before is kept for good"
    )
    access_interval: Positive = Field(
        timedelta(minutes=15), description="between writes of access counts; a crash loses one interval's at most"
    )
    duplicates: Duplicates = Field(Duplicates(), description="the same said more than once")
    consolidate: Consolidate = Field(Consolidate(), description="one thing's values over time, in one memory")
    reflect: Reflect = Field(Reflect(), description="what several facts show together, as memories of their own")
