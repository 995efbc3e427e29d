"""Where we listen and how Envoy reaches us: addresses, TLS, bounds, what Envoy is told, how we leave."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from memory_extproc.model import MemoryType, Signals, Switch
from memory_extproc.request.identity import optional
from memory_extproc.request.policy import Rule, Then, When
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
    ext_proc: Listening = Field("127.0.0.1:50051", description="gRPC for Envoy: host:port or unix:/path")
    ext_proc_unix: OptionalSocket = Field(
        "", description="a Unix socket for an Envoy on the same machine, beside ext_proc: unix:/path"
    )
    api: Listening = Field("127.0.0.1:50052", description="gRPC of the memory API, with health and reflection")
    console: Listening = Field(
        "127.0.0.1:50053", description="HTTP of the memory API (/v1/memory, /docs), and the page if it is on"
    )
    http: Listening = Field("127.0.0.1:9190", description="/metrics, /healthz, /readyz; never a person's words")
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


class Health(Section):
    stall: Positive = Field(
        timedelta(seconds=10),
        description="an event loop that has not run for so long is unhealthy: /healthz and /readyz answer 503",
    )


class Shutdown(Section):
    announce: Duration = Field(
        timedelta(seconds=2), description="not serving but still working, so that Envoy turns"
    )
    grace: Duration = Field(timedelta(seconds=30), description="for open exchanges to end")
    flush: Duration = Field(timedelta(seconds=10), description="for accepted turns to be learned")


# --- prompt ------------------------------------------------------------------------------------------
# What becomes of a prompt: the blocks that are put into it, and long chats made shorter.

InjectAs = Literal["auto", "system_message", "user_suffix"]


class Inject(Section):
    as_: InjectAs = Field(
        "auto",
        alias="as",
        description="auto: by the model's profile; a message of its own; or appended to the user's",
    )
    token_budget: int = Field(512, ge=32, le=100_000, description="estimated tokens of a block at most")
    overview_budget: int = Field(
        1024,
        ge=32,
        le=100_000,
        description="of a block that answers a question for all there is: an overview, a list, past conversations; "
        "token_budget where that is more",
    )
    window: Annotated[int, Field(ge=256)] | Auto = Field(
        "auto", description="tokens of the models' context window; auto: by the model's profile"
    )
    margin: int = Field(
        256, ge=0, le=100_000, description="tokens of the window left free, for what estimates miss"
    )
    unknown_window_budget: int = Field(
        256, ge=0, le=100_000, description="tokens of a block where the model's window is not known"
    )
    replay: bool = Field(
        default=True, description="put a conversation's earlier blocks back where they stood, for prompt caches"
    )
    replay_tokens: int = Field(
        8192, ge=0, le=1_000_000, description="estimated tokens of those at most; beyond it the oldest go"
    )
    replay_keep: Positive = Field(timedelta(days=1), description="how long after its last turn one is known again")
    profile: Literal["off", "always", "when_relevant"] = Field(
        "off",
        description="who the caller is, in a block of its own, once in a conversation; when_relevant: where "
        "memories are injected too",
    )
    profile_tokens: int = Field(256, ge=32, le=10_000, description="estimated tokens of it at most")
    profile_importance: Share = Field(0.7, description="importance, 0 to 1, that a fact needs to be in it")


class Compress(Section):
    enabled: bool = Field(
        default=False,
        description="send long chats with a condensed state in place of their older messages; false: only where a "
        "rule or x-memory-compress: force asks for it",
    )
    above_tokens: int = Field(
        16_000, ge=256, le=10_000_000, description="estimated tokens that a long chat exceeds"
    )
    keep_turns: int = Field(5, ge=1, le=1000, description="last turns that stay as they were said")
    keep: Positive = Field(timedelta(days=7), description="how long a state is kept, from its making on")


# --- rules -------------------------------------------------------------------------------------------
# What a router in front says of a request, and rules about requests.


class ClassifierSection(Section):
    url: OptionalUrl = Field(
        "",
        description="of the vLLM semantic router's API, such as http://127.0.0.1:8080: asked whether a question is "
        "one of general fact, where the request says nothing; it reads the caller's words. Empty: nobody is asked",
    )
    access_key: SecretStr = Field(SecretStr(""), description="bearer key; secret: environment or file")
    access_key_file: str = Field("", description="file that holds the access key")
    timeout: Positive = Field(timedelta(milliseconds=40), description="of one call, within recall.deadline")
    cache: int = Field(4096, ge=0, le=1_000_000, description="questions whose answer is kept")


class SignalsSection(Section):
    fact_headers: tuple[Header, ...] = Field(
        ("x-memory-signal-fact", "x-vsr-matched-fact-check"), description="say: a question of general fact"
    )
    tool_headers: tuple[Header, ...] = Field(("x-memory-signal-tool",), description="say: a call of tools")
    greeting_headers: tuple[Header, ...] = Field(("x-memory-signal-greeting",), description="say: a greeting")
    metadata_namespace: str = Field(
        "", description="Envoy dynamic metadata with the keys fact, tool, greeting; empty: none"
    )
    classifier: ClassifierSection = Field(ClassifierSection(), description="where the request says nothing")


ORIGINS = ("app", "dialect", "model", "route")


def _origin(value: str) -> str:
    name, _, pattern = value.partition("=")
    if name not in ORIGINS or not pattern or len(value.split()) != 1:
        named = ", ".join(f"{each}=" for each in ORIGINS)
        raise ValueError(f"expected one of {named} and a glob without white space, such as route=support-*")
    return value


def _name(value: str) -> str:
    if optional(value) is None:
        raise ValueError("expected a printable name of at most 256 bytes")
    return value


OptionalName = Annotated[str, AfterValidator(_name)]


class RuleSignals(Section):
    fact: bool | None = Field(None, description="as if the router had said so")
    tool: bool | None = Field(None, description="as if the router had said so")
    greeting: bool | None = Field(None, description="as if the router had said so")


class RuleWhen(Section):
    path: str = Field("", description="glob over the path without its query")
    model: str = Field("", description="glob over the request's model, whatever the case")
    route: str = Field("", description="glob over the name of Envoy's route")
    tenant: str = Field("", description="glob over the tenant")
    project: str = Field("", description="glob over the project that the request names")
    upstream: str = Field("", description="glob over the name of Envoy's cluster that the request goes to")
    header: dict[Header, str] = Field(default_factory=dict, description="name: glob over one of its values")
    keyword: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (),
        examples=[["salary"]],
        description="any of these whole words or phrases in the caller's last words, whatever the case",
    )

    @model_validator(mode="after")
    def asks_something(self) -> Self:
        if self == RuleWhen.model_construct():
            raise ValueError("asks nothing, so it would match every request: write path: '*' if that is meant")
        return self


class RuleThen(Section):
    retrieve: Switch = Field(Switch.DEFAULT, description="skip: outcome `disabled`, no client can override it")
    store: Switch = Field(Switch.DEFAULT, examples=["skip"], description="skip: nothing is learned")
    compress: Switch = Field(
        Switch.DEFAULT,
        examples=["force"],
        description="skip: never; force: whatever its length; default: as compress",
    )
    threshold: Share | None = Field(None, description="relevance, 0 to 1")
    limit: int | None = Field(None, ge=0, le=100, description="memories in a block at most")
    token_budget: int | None = Field(
        None, ge=32, le=100_000, description="estimated tokens of a block at most, of an overview too"
    )
    project: OptionalName = Field(
        "",
        description="the project of these requests, whatever they name: only its memories are recalled, and what "
        "is learned becomes its own; empty: as the request says",
        examples=["support"],
    )
    types: frozenset[MemoryType] | None = Field(None, min_length=1, description="only memories of these types")
    origins: tuple[Annotated[str, AfterValidator(_origin)], ...] = Field(
        (),
        examples=[["route=support-*"]],
        description="only memories that came from one of these: app=, dialect=, model= or route= and a glob",
    )
    shared: bool = Field(default=True, description="false: the caller's own memories alone, nothing shared")
    signals: RuleSignals = Field(RuleSignals(), description="what to take as said by the router")
    inject: InjectAs | None = Field(None, description="as inject.as, for these requests")

    @model_validator(mode="after")
    def sets_something(self) -> Self:
        if self == RuleThen.model_construct():
            raise ValueError("sets nothing")
        return self


class RuleSection(Section):
    when: RuleWhen = Field(description="all that is given must hold")
    then: RuleThen = Field(description="what is set; the first rule that matches decides alone")

    def rule(self) -> Rule:
        """As wire/rules.py takes it."""
        # Field by field under the same names: one that only one side has is an error at the first rule, not lost.
        signals = Signals(**dict(self.then.signals))
        return Rule(When(**dict(self.when)), Then(**{**dict(self.then), "signals": signals}))


# --- telemetry ---------------------------------------------------------------------------------------
# What operators see of the sidecar: logs, metrics by tenant, the canary, traces.

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


class Trace(Section):
    keep: Duration = Field(
        timedelta(0),
        le=timedelta(days=30),
        description="how long it is known what was decided for a request, for GetDecision and the page; ids and "
        "numbers alone, forgotten with their memories. 0s: nothing is kept",
    )
    most: int = Field(200, ge=10, le=10_000, description="requests of one user that are kept at most")


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
