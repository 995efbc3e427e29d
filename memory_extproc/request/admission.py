"""From a request's headers: is it a chat request, who asks, and what did the client and the router say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any

from memory_extproc.dialect.base import Dialect
from memory_extproc.dialect.registry import dialect_for
from memory_extproc.model import Caller, Outcome, Owner, Signals, Switch, digest
from memory_extproc.model.headers import Headers, RequestHeaders
from memory_extproc.request.identity import Identity

OURS = "x-memory-"  # every header that begins so is for us and never reaches the upstream
DISABLE = "x-disable-router-memory"
# Set on our own calls of language models, so that one that comes back through the gateway is known.
INTERNAL = "x-memory-extproc-internal"
# Envoy sets it on a request that it sends once more, to where the upstream redirected it. By then all that the
# client wished of us is taken out, and the body holds what we put in.
REDIRECTED = "x-envoy-original-url"
# In Envoy's dynamic metadata: the namespace and field by which a memory filter tells a second memory filter of the
# same route that it has seen to the request. No client can write it.
METADATA, PASSED = "memory", "passed"
NO_DIALECT = "none"  # metric label of an exchange that is not a chat request

_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off"})
# The vLLM semantic router's own words for what its fact classifier found.
_SAID = {"needs_fact_check": True, "no_fact_check_needed": False}


@dataclass(frozen=True, slots=True)
class HeaderControls:
    """What the client asked in headers, for this one request."""

    retrieve: Switch = Switch.DEFAULT
    store: Switch = Switch.DEFAULT
    compress: Switch = Switch.DEFAULT
    ends_session: bool = False
    internal: bool = False  # one of our own calls of a language model
    redirected: bool = False  # it passed us before, or another memory filter that decides for it
    unkept: bool = False  # nothing of this exchange is to be kept
    incognito: bool = False  # nor of what follows in its conversation
    as_of: str = ""  # as memory stood then; as it was sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A chat request whose body we want to see."""

    dialect: Dialect
    headers: Headers
    path: str
    encoding: str  # the body's content-encoding, "" for none
    caller: Caller | None
    controls: HeaderControls
    signals: Signals
    route: str
    upstream: str  # the name of Envoy's cluster, where its filter is told to say it
    metadata: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Declined:
    """A request that we leave alone from its headers on."""

    outcome: Outcome
    dialect: str = NO_DIALECT


class Admission:
    """Pure but for what `Identity` checks in memory."""

    def __init__(self, options: RequestOptions, identity: Identity) -> None:
        self._options = options
        self._identity = identity
        self._taken_out = frozenset((DISABLE, *options.signals.headers, *options.strip_headers))

    def removals(self, headers: Headers) -> tuple[str, ...]:
        """The names in *headers* that the upstream must not see, each once."""
        names = {name for name, _ in headers if name.startswith(OURS) or name in self._taken_out}
        return tuple(sorted(names))

    def admit(self, event: RequestHeaders) -> Admitted | Declined:
        headers = event.headers
        path = headers.get(":path")
        dialect = dialect_for(path)
        if dialect is None or event.last or not _is_json_post(headers):
            return Declined(Outcome.NOT_CHAT)
        length = headers.get("content-length")
        # Declined here, the body is not buffered for us: it passes even where it is above Envoy's own limit.
        if length.isdecimal() and int(length) > self._options.request_bytes:
            return Declined(Outcome.TOO_LARGE, dialect.name)
        return Admitted(
            dialect=dialect,
            headers=headers,
            path=path,
            encoding=",".join(headers.all("content-encoding")),
            caller=self._identity.caller(headers, event.metadata),
            controls=replace(controls_of(headers), redirected=REDIRECTED in headers or _is_seen_to(event.metadata)),
            signals=signals_of(headers, event.metadata, self._options.signals),
            route=str(event.attributes.get("xds.route_name", "")),
            upstream=str(event.attributes.get("xds.cluster_name", "")),
            metadata=event.metadata,
        )


def _is_seen_to(metadata: Mapping[str, Any]) -> bool:
    ours = metadata.get(METADATA)
    return isinstance(ours, Mapping) and ours.get(PASSED) is True


def _is_json_post(headers: Headers) -> bool:
    """A request with a JSON body and nothing else: an upgrade (WebSocket) has a body that never ends."""
    if headers.get(":method") != "POST" or "upgrade" in headers or ":protocol" in headers:
        return False
    return is_json(headers.get("content-type"))


def is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def controls_of(headers: Headers) -> HeaderControls:
    """A header given several times says skip if any of them does: the narrower wish wins. So does a no in another
    word than ours."""
    off = _any_true(headers, DISABLE)
    incognito = _any_true(headers, "x-memory-incognito")
    unkept = off or incognito
    return HeaderControls(
        retrieve=Switch.SKIP if off else _switch(headers, "x-memory-retrieve"),
        store=Switch.SKIP if unkept else _switch(headers, "x-memory-store"),
        compress=Switch.SKIP if off else _switch(headers, "x-memory-compress"),
        ends_session="end" in (value.lower() for value in _listed(headers, "x-memory-session")),
        internal=INTERNAL in headers,
        redirected=REDIRECTED in headers,
        unkept=unkept,
        incognito=incognito,
        as_of=headers.get("x-memory-as-of").strip(),
    )


def _listed(headers: Headers, name: str) -> Iterator[str]:
    """Each value of *name*. Whatever a request passed may have joined several with commas (RFC 9110, 5.3)."""
    return (value.strip() for line in headers.all(name) for value in line.split(","))


def _any_true(headers: Headers, name: str) -> bool:
    return any(truth(value) for value in _listed(headers, name))


def _switch(headers: Headers, name: str) -> Switch:
    said = {value.lower() for value in _listed(headers, name)}
    if Switch.SKIP in said or not said.isdisjoint(_FALSE):
        return Switch.SKIP
    return Switch.FORCE if Switch.FORCE in said else Switch.DEFAULT


def truth(value: Any) -> bool | None:
    """What a router means by *value*; None where it says neither yes nor no."""
    if isinstance(value, bool):
        return value
    if not isinstance(value, str):
        return None
    word = value.strip().lower()
    if word in _TRUE:
        return True
    return False if word in _FALSE else _SAID.get(word)


def signals_of(headers: Headers, metadata: Mapping[str, Any], sources: SignalSources) -> Signals:
    """Envoy's metadata comes before headers: a client cannot write it."""
    said = metadata.get(sources.metadata_namespace) if sources.metadata_namespace else None
    known = said if isinstance(said, Mapping) else {}

    def signal(key: str, names: tuple[str, ...]) -> bool | None:
        values = (known.get(key), *(value for name in names for value in _listed(headers, name)))
        return next((found for found in map(truth, values) if found is not None), None)

    return Signals(
        fact=signal("fact", sources.fact_headers),
        tool=signal("tool", sources.tool_headers),
        greeting=signal("greeting", sources.greeting_headers),
    )


# --- sharing -----------------------------------------------------------------------------------------
# Which memories of others a request may reach beside the caller's own, and whose its words become. Pure.


class Everyone(StrEnum):
    """How far an operator's memories reach."""

    NOBODY = "nobody"
    TENANT = "tenant"  # each tenant has a set of its own
    ALL = "all"  # there is one set, for the callers of every tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """What the operator lets be shared. Membership is what `Caller.projects` says, and nothing else."""

    projects: bool = False
    learns: bool = False  # what is said in a project's name becomes the project's
    most_projects: int = 4  # searched for one request, in the order in which they were verified
    everyone: Everyone = Everyone.NOBODY

    def owners(self, caller: Caller) -> tuple[Owner, ...]:
        """Whose memories are recalled beside *caller*'s. A request that names a project reaches that one alone, and
        only if the caller is its member."""
        tenant = caller.owner.tenant
        named = (caller.project,) if caller.project else caller.projects
        mine = [project for project in named if project in caller.projects] if self.projects else []
        shared = [Owner.of_project(tenant, project) for project in mine[: self.most_projects]]
        if self.everyone is Everyone.TENANT:
            shared.append(Owner.of_everyone(tenant))
        elif self.everyone is Everyone.ALL:
            shared.append(Owner.of_everyone())
        return tuple(shared)

    def learned_as(self, caller: Caller) -> Caller:
        """Who is to be taken to have spoken: *caller*, or the project that they named and are a member of."""
        if not (self.learns and caller.project and caller.project in caller.projects):
            return caller
        # Members who open with the same words, or name a session alike, are in conversations of their own.
        session = caller.session and digest("member", caller.owner.key, caller.session)
        owner = Owner.of_project(caller.owner.tenant, caller.project)
        speaker = digest("speaker", caller.owner.key)
        return replace(caller, owner=owner, session=session, speaker=speaker, spoken_by=caller)


def circle_of(shared: tuple[Owner, ...], origins: tuple[str, ...], epochs: tuple[int, ...]) -> str:
    """Names what a request may be given beyond the plain case, for which it is empty. Blocks that a conversation
    was given within one circle are not put back within another: who left a project, who asks through a route that
    is told less, and who asks after something shared was forgotten, begin without them."""
    if not (shared or origins):
        return ""
    owners = (f"{owner.key}:{epoch}" for owner, epoch in zip(shared, epochs, strict=True))
    return digest("circle", *owners, "origins", *origins)


# --- options -----------------------------------------------------------------------------------------
# What the wire is told about its work: frozen values that the composition root fills from the settings.


def most_received(request_bytes: int) -> int:
    """Bytes of one message that gRPC receives, where request bodies of up to *request_bytes* are read. Far above
    what we read: a larger message ends the stream with an error before we could let it pass."""
    return max(64 * 1024 * 1024, 4 * request_bytes)


class Mode(StrEnum):
    ACTIVE = "active"
    SHADOW = "shadow"  # everything runs and is learned, nothing is injected
    GRADUAL = "gradual"  # *percent* of the owners get memories, always the same ones; the others are control


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalSources:
    """Where the router in front says what it found out: headers (lower case) and one namespace of Envoy's
    dynamic metadata with the keys `fact`, `tool` and `greeting`. The empty namespace is none."""

    fact_headers: tuple[str, ...] = ("x-memory-signal-fact", "x-vsr-matched-fact-check")
    tool_headers: tuple[str, ...] = ("x-memory-signal-tool",)
    greeting_headers: tuple[str, ...] = ("x-memory-signal-greeting",)
    metadata_namespace: str = ""

    @property
    def headers(self) -> frozenset[str]:
        return frozenset((*self.fact_headers, *self.tool_headers, *self.greeting_headers))


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """Everything the wire needs to know. Header names are lower case."""

    enabled: bool  # the operator's switch: False is `disabled` for every request
    auto_store: bool  # learn from an exchange unless its client or a rule says otherwise
    client_may_enable: bool  # `auto_store: true` in a body counts where the operator switched it off
    mode: Mode
    percent: float  # 0 to 100, of owners; read in GRADUAL only
    limit: int  # memories in a block; a client may lower it
    threshold: float  # relevance, 0 to 1; a client may raise it
    request_bytes: int  # largest request body looked at, packed or unpacked
    answer_bytes: int  # largest answer kept for learning, packed or unpacked
    inject_as: str  # auto, system_message or user_suffix
    window: int | None  # tokens; None: from the model's profile
    margin: int  # tokens of the window left free
    unknown_cap: int  # tokens of a block for a model of unknown window
    signals: SignalSources = SignalSources()
    strip_headers: tuple[str, ...] = ()  # identity headers to keep from the upstream
    skip_auxiliary: bool = True  # leave title, tag and summary calls of chat clients alone
    # A guard behind recall's own deadline; above it and below Envoy's message_timeout.
    give_up_after: timedelta = timedelta(seconds=5)
    # A guard behind the journal's own bound: how long the last chunk of an answer may ever wait for us.
    last_reply_waits: timedelta = timedelta(milliseconds=200)
    profile: str = "off"  # off, always, or when_relevant: beside memories of use alone
    replay: bool = True  # a conversation keeps its blocks: they go back to where they stood
    replay_tokens: int = 8192  # estimated, of one conversation's blocks; beyond it the oldest go
    replay_keep: timedelta = timedelta(days=1)  # from a conversation's last turn on
    replay_wait: timedelta = timedelta(milliseconds=50)  # for the records of one, within the deadline of recall
    replay_bytes: int = 16 << 20  # of records that could not be written yet
    sharing: Sharing = field(default_factory=Sharing)
