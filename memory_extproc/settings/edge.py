"""Where we listen and how Envoy reaches us: addresses, TLS, bounds, what Envoy is told, how we leave."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field

from memory_extproc.settings.values import (
    Auto,
    Duration,
    Listening,
    Positive,
    Section,
    Size,
)

MIB = 1 << 20


class Listen(Section):
    ext_proc: Listening = Field("127.0.0.1:50051", description="gRPC for Envoy: host:port or unix:/path")
    api: Listening = Field("127.0.0.1:50052", description="gRPC of the memory API, with health and reflection")
    http: Listening = Field("0.0.0.0:9190", description="/metrics, /healthz, /readyz; never a person's words")
    insecure: bool = Field(
        default=False,
        description="true: ext_proc may listen off loopback without TLS; whoever reaches it reads memories",
    )


class Tls(Section):
    cert: str = Field("", description="PEM file of the ext_proc server's certificate chain; reread when it changes")
    key: str = Field("", description="PEM file of its key")
    client_ca: str = Field("", description="PEM file of the authorities that sign clients' certificates")
    allowed_names: tuple[str, ...] = Field((), description="names (SAN or common name) a client must have one of")

    @property
    def given(self) -> bool:
        return bool(self.cert or self.key)


class Limits(Section):
    request_body: Size = Field(
        4 * MIB, ge=1 << 10, le=256 * MIB, description="larger ones pass untouched: too_large"
    )
    answer_capture: Size = Field(
        2 * MIB, ge=1 << 10, le=256 * MIB, description="larger ones pass, nothing is learned"
    )
    process_bytes: Size = Field(
        256 * MIB, ge=MIB, description="of bodies held for open exchanges together; beyond it learning yields first"
    )
    content_bytes: Size = Field(8 << 10, ge=256, le=65_535, description="of one memory's text in UTF-8, cut beyond")
    streams: int = Field(
        10_000, ge=1, le=1_000_000, description="exchanges open at the same time, for us and for Envoy's breaker"
    )


class EnvoySection(Section):
    message_timeout: Positive | Auto = Field(
        "auto", description="Envoy's patience with one message of ours; auto: four deadlines, 1s at least"
    )
    two_filters: bool = Field(
        default=False,
        description="true: a second filter, which nobody waits for, watches answers; no piece of one waits for us",
    )
    health_interval: Positive = Field(timedelta(seconds=1), description="between Envoy's health checks of us")
    route_timeout: Duration = Field(
        timedelta(0), description="Envoy's bound on a whole exchange; 0s: none, answers may stream for long"
    )
    idle_timeout: Positive = Field(timedelta(minutes=10), description="Envoy's bound on silence within an exchange")


class Shutdown(Section):
    announce: Duration = Field(
        timedelta(seconds=2), description="not serving but still working, so that Envoy turns"
    )
    grace: Duration = Field(timedelta(seconds=30), description="for open exchanges to end")
    flush: Duration = Field(timedelta(seconds=10), description="for accepted turns to be learned")
