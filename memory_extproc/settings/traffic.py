"""Settings of traffic: addresses, TLS, limits, metadata for Envoy, shutdown."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from memory_extproc.model import MemoryType, Switch
from memory_extproc.model.owner import accept_optional_name
from memory_extproc.settings.types import (
    Auto,
    Duration,
    Header,
    Listening,
    OptionalSocket,
    OptionalUrl,
    Positive,
    Section,
    Share,
    Size,
)

MIB = 1 << 20


class Listen(Section):
    ext_proc: Listening = Field(
        "127.0.0.1:50051", description="address of the ext_proc gRPC server for Envoy: host:port or unix:/path"
    )
    ext_proc_unix: OptionalSocket = Field(
        "", description="additional Unix socket for an Envoy on the same machine: unix:/path"
    )
    api: Listening = Field(
        "127.0.0.1:50052",
        description="address of the memory API's gRPC server, which also serves health and reflection",
    )
    console: Listening = Field(
        "127.0.0.1:50053",
        description="address of the memory API over HTTP (/v1/memory, /docs) and of the page, if enabled",
    )
    http: Listening = Field(
        "127.0.0.1:9190",
        description="address of /metrics, /healthz and /readyz; these never contain texts of users",
    )
    insecure: bool = Field(
        default=False,
        description="true: allow ext_proc to listen beyond loopback without TLS; anyone who can reach the port "
        "can then read memories",
    )


class Tls(Section):
    cert: str = Field(
        "", description="PEM file with the ext_proc server's certificate chain; reloaded when it changes"
    )
    key: str = Field("", description="PEM file with the certificate's private key")
    client_ca: str = Field("", description="PEM file of the authorities that sign client certificates")
    allowed_names: tuple[str, ...] = Field(
        (), description="names or globs (SAN or common name); a client certificate must match one"
    )

    @property
    def is_set(self) -> bool:
        return bool(self.cert or self.key)


class Limits(Section):
    request_body: Size = Field(
        4 * MIB,
        ge=1 << 10,
        le=256 * MIB,
        description="maximum size of a request body; larger ones pass unchanged, with the outcome `too_large`",
    )
    answer_capture: Size = Field(
        2 * MIB,
        ge=1 << 10,
        le=256 * MIB,
        description="maximum size of an answer that is learned from; larger ones pass and nothing is learned",
    )
    process_bytes: Size = Field(
        256 * MIB,
        ge=MIB,
        description="memory for the bodies of all open exchanges; when it is used up, learning is given up first. "
        "Turns on their way into the journal hold at most a quarter as much; further ones wait on disk",
    )
    content_bytes: Size = Field(
        8 << 10, ge=256, le=65_535, description="maximum size of one memory's text in UTF-8; longer text is cut"
    )
    caller_cpu: float = Field(
        0.2,
        ge=0,
        le=64,
        description="cores that one caller's requests above 64 KiB may take, on average over a minute; beyond it "
        "they, and compressed ones, pass with the outcome `overloaded`; 0: no limit",
    )
    streams: int = Field(
        10_000,
        ge=1,
        le=1_000_000,
        description="maximum number of open exchanges, also written into Envoy's circuit breaker",
    )


def most_received(request_bytes: int) -> int:
    """The gRPC receive limit in bytes for request bodies up to *request_bytes*.

    Far above the body limit: gRPC ends the stream with an error on a larger message, before we can pass it on."""
    return max(64 * 1024 * 1024, 4 * request_bytes)


class EnvoySection(Section):
    message_timeout: Positive | Auto = Field(
        "auto", description="Envoy's message_timeout for the sidecar; auto: four times recall.deadline, at least 1s"
    )
    two_filters: bool = Field(
        default=False,
        description="true: observe answers in a second filter for which Envoy does not wait, so that answers "
        "are never delayed",
    )
    health_interval: Positive = Field(
        timedelta(seconds=1), description="interval of Envoy's health checks of the sidecar"
    )
    route_timeout: Duration = Field(
        timedelta(0), description="Envoy's timeout of a whole exchange; 0s: none, for long streamed answers"
    )
    idle_timeout: Positive = Field(
        timedelta(minutes=10), description="Envoy's timeout of silence within an exchange"
    )


class Health(Section):
    stall: Positive = Field(
        timedelta(seconds=10),
        description="time without a run of the event loop after which /healthz and /readyz answer 503",
    )


class Shutdown(Section):
    announce: Duration = Field(
        timedelta(seconds=2),
        description="time for which the sidecar reports not serving but still works, so that Envoy sends "
        "requests elsewhere",
    )
    grace: Duration = Field(timedelta(seconds=30), description="time for open exchanges to end")
    flush: Duration = Field(timedelta(seconds=10), description="time for accepted turns to be learned")


# Settings of the prompt: inserted blocks, and compression of long chats.

InjectAs = Literal["auto", "system_message", "user_suffix"]


class Inject(Section):
    as_: InjectAs = Field(
        "auto",
        alias="as",
        description="place of the block: system_message: a system message of its own; user_suffix: the end of "
        "the user's message; auto: by the model's profile",
    )
    token_budget: int = Field(512, ge=32, le=100_000, description="maximum size of a block, in estimated tokens")
    overview_budget: int = Field(
        1024,
        ge=32,
        le=100_000,
        description="maximum size, in estimated tokens, of a block that answers an overview, a list or a "
        "question about past conversations; token_budget if that is larger",
    )
    window: Annotated[int, Field(ge=256)] | Auto = Field(
        "auto", description="context window of the models, in tokens; auto: by the model's profile"
    )
    margin: int = Field(
        256,
        ge=0,
        le=100_000,
        description="tokens of the context window that stay free, because sizes are estimates",
    )
    unknown_window_budget: int = Field(
        1024,
        ge=0,
        le=100_000,
        description="maximum size of a block, in tokens, for models whose context window is unknown, such as a "
        'router\'s "auto"; blocks that are replayed take four times as much at most',
    )
    replay: bool = Field(
        default=True,
        description="put the earlier blocks of a conversation back into their places, so that prompt caches "
        "keep working",
    )
    replay_tokens: int = Field(
        8192,
        ge=0,
        le=1_000_000,
        description="maximum size of these earlier blocks, in estimated tokens; the oldest are left out first",
    )
    replay_keep: Positive = Field(
        timedelta(days=1), description="time after the last turn for which a conversation's blocks are kept"
    )
    profile: Literal["off", "always", "when_relevant"] = Field(
        "off",
        description="add a profile of the caller as a block of its own, once per conversation; when_relevant: "
        "only where memories are injected too",
    )
    profile_tokens: int = Field(
        256, ge=32, le=10_000, description="maximum size of the profile, in estimated tokens"
    )
    profile_importance: Share = Field(0.7, description="minimum importance of a fact in the profile, 0 to 1")
    explain_tenants: tuple[str, ...] = Field(
        (),
        max_length=1000,
        description="tenants whose callers learn with `x-memory-explain: true` which memories were injected, by id "
        "and relevance: in the response header of that name and in Envoy's dynamic metadata; "
        '"" is the unnamed tenant, "*" stands for all of them',
    )


class Compress(Section):
    enabled: bool = Field(
        default=False,
        description="replace the older messages of long chats by a condensed state; false: only where a rule or "
        "`x-memory-compress: force` asks for it",
    )
    above_tokens: int = Field(
        16_000, ge=256, le=10_000_000, description="length in estimated tokens above which a chat is compressed"
    )
    keep_turns: int = Field(5, ge=1, le=1000, description="number of last turns that stay unchanged")
    keep: Positive = Field(timedelta(days=7), description="time for which a condensed state is kept")


# Signals of a router in front, and rules about requests.


class ClassifierSection(Section):
    url: OptionalUrl = Field(
        "",
        description="base URL of the vLLM semantic router's classification API, such as http://127.0.0.1:8080; "
        "it is asked whether a question is about general facts if the request carries no signal, "
        "and receives the question's text. Empty: not used",
    )
    access_key: SecretStr = Field(
        SecretStr(""), description="bearer token; set it through the environment or access_key_file"
    )
    access_key_file: str = Field("", description="file that holds the bearer token")
    timeout: Positive = Field(
        timedelta(milliseconds=40), description="maximum duration of one call, within recall.deadline"
    )
    cache: int = Field(4096, ge=0, le=1_000_000, description="number of questions whose classification is cached")


class SignalsSection(Section):
    fact_headers: tuple[Header, ...] = Field(
        ("x-memory-signal-fact", "x-vsr-matched-fact-check"),
        description="headers that mark a question about general facts",
    )
    tool_headers: tuple[Header, ...] = Field(("x-memory-signal-tool",), description="headers that mark a tool call")
    greeting_headers: tuple[Header, ...] = Field(
        ("x-memory-signal-greeting",), description="headers that mark a greeting"
    )
    metadata_namespace: str = Field(
        "",
        description="namespace in Envoy's dynamic metadata with the keys fact, tool and greeting; empty: not used",
    )
    classifier: ClassifierSection = Field(
        ClassifierSection(), description="classification API, for requests without signals"
    )


ORIGINS = ("app", "dialect", "model", "route")


def _origin(value: str) -> str:
    name, _, pattern = value.partition("=")
    if name not in ORIGINS or not pattern or len(value.split()) != 1:
        named = ", ".join(f"{each}=" for each in ORIGINS)
        raise ValueError(f"expected one of {named} and a glob without white space, such as route=support-*")
    return value


def _name(value: str) -> str:
    if accept_optional_name(value) is None:
        raise ValueError("expected a printable name of at most 256 bytes")
    return value


OptionalName = Annotated[str, AfterValidator(_name)]


class RuleSignals(Section):
    fact: bool | None = Field(None, description="treat the request as a question about general facts")
    tool: bool | None = Field(None, description="treat the request as a tool call")
    greeting: bool | None = Field(None, description="treat the request as a greeting")


class RuleWhen(Section):
    path: str = Field("", description="glob over the path, without the query string")
    model: str = Field("", description="glob over the request's model, ignoring case")
    route: str = Field("", description="glob over the name of Envoy's route")
    tenant: str = Field("", description="glob over the tenant")
    project: str = Field("", description="glob over the project that the request names")
    upstream: str = Field("", description="glob over the name of the Envoy cluster that receives the request")
    header: dict[Header, str] = Field(
        default_factory=dict, description="globs by header name; one of the header's values must match"
    )
    keyword: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (),
        examples=[["salary"]],
        description="words or phrases of which the caller's last message must contain one, ignoring case",
    )

    @model_validator(mode="after")
    def asks_something(self) -> Self:
        if self == RuleWhen.model_construct():
            raise ValueError("asks nothing, so it would match every request: write path: '*' if that is meant")
        return self


class RuleThen(Section):
    retrieve: Switch = Field(
        Switch.DEFAULT, description="skip: no recall, with the outcome `disabled`; clients cannot override it"
    )
    store: Switch = Field(Switch.DEFAULT, examples=["skip"], description="skip: nothing is learned")
    compress: Switch = Field(
        Switch.DEFAULT,
        examples=["force"],
        description="skip: never compress; force: always compress; default: as compress says",
    )
    threshold: Share | None = Field(None, description="minimum relevance of an injected memory, 0 to 1")
    limit: int | None = Field(None, ge=0, le=100, description="maximum number of memories in a block")
    token_budget: int | None = Field(
        None, ge=32, le=100_000, description="maximum size of a block in estimated tokens, overviews included"
    )
    project: OptionalName = Field(
        "",
        description="project of the matching requests, whatever they name: only its memories are recalled, and "
        "new ones are stored for it; empty: as the request says",
        examples=["support"],
    )
    types: frozenset[MemoryType] | None = Field(
        None, min_length=1, description="recall only memories of these types"
    )
    origins: tuple[Annotated[str, AfterValidator(_origin)], ...] = Field(
        (),
        examples=[["route=support-*"]],
        description="recall only memories of these origins: app=, dialect=, model= or route= followed by a glob",
    )
    shared: bool = Field(default=True, description="false: recall only the caller's own memories, no shared ones")
    signals: RuleSignals = Field(RuleSignals(), description="signals to assume for the matching requests")
    inject: InjectAs | None = Field(None, description="place of the block for the matching requests, as inject.as")

    @model_validator(mode="after")
    def sets_something(self) -> Self:
        if self == RuleThen.model_construct():
            raise ValueError("sets nothing")
        return self


class RuleSection(Section):
    when: RuleWhen = Field(description="conditions; all that are given must hold")
    then: RuleThen = Field(description="effects; only those of the first matching rule apply")


# Settings of observability: logs, metrics by tenant, the canary, traces.

CANARY_AT_MOST_EVERY = timedelta(seconds=60)
OTHERS = "other"


class Telemetry(Section):
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="lowest level that is logged"
    )
    log_format: Literal["json", "console"] = Field("json", description="json for programs, console for people")
    tenants: tuple[Annotated[str, Field(min_length=1, max_length=128)], ...] = Field(
        (), max_length=100, description="tenants with metrics of their own; all others are counted as `other`"
    )
    canary: Duration | Literal["off"] = Field(
        timedelta(minutes=5),
        description="interval of a self-test that asks for a known memory of an artificial caller; at least "
        "60s, or off",
    )
    otlp_endpoint: OptionalUrl = Field(
        "",
        description="OTLP gRPC endpoint of an OpenTelemetry collector, such as http://host:4317; empty: no traces",
    )
    trace_share: Share = Field(
        1.0, description="share of exchanges that are traced if the gateway's trace context does not decide, 0 to 1"
    )
    content: bool = Field(
        default=False, description="true: include texts of users and memories in traces; for test systems only"
    )


class Trace(Section):
    keep: Duration = Field(
        timedelta(0),
        le=timedelta(days=30),
        description="time for which the decisions about a request are kept, for GetDecision and the page; they "
        "hold ids and numbers only and are forgotten with their memories. 0s: not kept",
    )
    most: int = Field(200, ge=10, le=10_000, description="maximum number of requests kept per user")


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
