"""What operators see of the sidecar: logs, metrics by tenant, the canary, traces."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field

from memory_extproc.settings.values import Duration, OptionalUrl, Section, Share

CANARY_AT_MOST_EVERY = timedelta(seconds=60)
OTHERS = "other"


class Telemetry(Section):
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="from this level on")
    log_format: Literal["json", "console"] = Field("json", description="for programs or for people")
    tenants: tuple[Annotated[str, Field(min_length=1, max_length=128)], ...] = Field(
        (), max_length=100, description="that have metrics of their own; all the rest are counted as `other`"
    )
    canary: Duration | Literal["off"] = Field(
        timedelta(minutes=5),
        description="how often a caller who is nobody is asked what it is known to remember; 60s at least, or off",
    )
    otlp_endpoint: OptionalUrl = Field(
        "", description="http(s)://host:4317 of an OpenTelemetry collector's gRPC port; empty: no traces"
    )
    trace_share: Share = Field(
        1.0, description="of the exchanges that no trace of the gateway's decides about: 0 to 1"
    )
    content: bool = Field(
        default=False,
        description="true: traces show what people say and what is remembered of them; for a test system only",
    )


def telemetry_agrees(telemetry: Telemetry) -> Iterator[str]:
    canary = telemetry.canary
    if canary != "off" and canary < CANARY_AT_MOST_EVERY:
        yield f"telemetry.canary: {canary.total_seconds():g}s is below 60s; expected 60s or more, or off"
    if OTHERS in telemetry.tenants:
        yield f"telemetry.tenants: {OTHERS} is how all tenants are counted that are not listed"
    if telemetry.content and not telemetry.otlp_endpoint:
        yield "telemetry.content: only traces can show it, and telemetry.otlp_endpoint is empty"


def telemetry_notices(telemetry: Telemetry) -> Iterator[str]:
    if telemetry.content:
        yield (
            "telemetry.content: WHAT PEOPLE SAY AND WHAT IS REMEMBERED OF THEM LEAVES FOR "
            f"{telemetry.otlp_endpoint}; whoever can read traces there reads it, and no forget reaches it"
        )
