"""Admission from a request's headers: chat request or not, caller, client controls and router signals."""

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
from memory_extproc.request.load import ArrivalQueue, LoadLimit, Room
from memory_extproc.settings.identity import Scopes
from memory_extproc.settings.traffic import SignalsSection

OURS = "x-memory-"  # every header that begins so is for us and never reaches the upstream
DISABLE = "x-disable-router-memory"
EXPLAIN = "x-memory-explain"  # of a request: asks for the memories injected; of its response: names them
# Marks our own calls to language models, so that a call that returns through the gateway is recognised.
INTERNAL = "x-memory-extproc-internal"
# Envoy sets this header when it follows an upstream redirect. By then our control headers are removed and the body
# contains the injected block.
REDIRECTED = "x-envoy-original-url"
# In Envoy's dynamic metadata: the namespace and field with which a memory filter marks a request as processed for a
# second memory filter on the same route. Clients cannot write it.
METADATA, PASSED = "memory", "passed"
# Envoy's attributes of a request: when its first byte arrived, its route and its cluster.
ARRIVED, ROUTE, CLUSTER = "request.time", "xds.route_name", "xds.cluster_name"
NO_DIALECT = "none"  # metric label of an exchange that is not a chat request

_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off"})
# Values of the vLLM semantic router's fact classifier.
_SAID = {"needs_fact_check": True, "no_fact_check_needed": False}


@dataclass(frozen=True, slots=True)
class HeaderControls:
    """The client's control headers for this request."""

    retrieve: Switch = Switch.DEFAULT
    store: Switch = Switch.DEFAULT
    compress: Switch = Switch.DEFAULT
    ends_session: bool = False
    internal: bool = False  # our own call to a language model
    redirected: bool = False  # it passed us, or another memory filter, before
    unkept: bool = False  # nothing of this exchange is stored
    incognito: bool = False  # nor of its continuations
    as_of: str = ""  # recall as of this time; unparsed
    explain: bool = False  # say which memories were injected


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A chat request whose body is needed."""

    dialect: Dialect
    headers: Headers
    path: str
    encoding: str  # the body's content-encoding, "" for none
    caller: Caller | None
    controls: HeaderControls
    signals: Signals
    route: str
    upstream: str  # the name of Envoy's cluster, if its filter is configured to send it
    late: bool = False  # there is no time for a recall
    metadata: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Declined:
    """A request that passes untouched from its headers on."""

    outcome: Outcome
    dialect: str = NO_DIALECT


class Admission:
    """Decides admission from the headers, from the load, and from how long a request waited for us.

    Beyond the limit of the load, and behind a queue, some requests get no memory but are learned from, and the
    others pass at once. Else all requests would wait.
    """

    def __init__(
        self,
        options: RequestOptions,
        identity: Identity,
        load: LoadLimit | None = None,
        queue: ArrivalQueue | None = None,
    ) -> None:
        self._options = options
        self._identity = identity
        self.load = load or LoadLimit()
        self._queue = queue or ArrivalQueue(options.late_after)
        signals = options.signals
        named = (*signals.fact_headers, *signals.tool_headers, *signals.greeting_headers)
        self._taken_out = frozenset((DISABLE, *named, *options.strip_headers))

    def removals(self, headers: Headers) -> tuple[str, ...]:
        """The distinct names in *headers* that must be removed before the upstream."""
        names = {name for name, _ in headers if name.startswith(OURS) or name in self._taken_out}
        return tuple(sorted(names))

    def admit(self, event: RequestHeaders, *, recalls: bool = True) -> Admitted | Declined:
        """Not *recalls*: the caller only learns from the request, and takes no room for a recall."""
        headers = event.headers
        path = headers.get(":path")
        dialect = dialect_for(path)
        if dialect is None or event.last or not _is_json_post(headers):
            return Declined(Outcome.NOT_CHAT)
        length = headers.get("content-length")
        # Decline before Envoy buffers the body: a body above Envoy's own limit must still pass.
        if length.isdecimal() and int(length) > self._options.request_bytes:
            return Declined(Outcome.TOO_LARGE, dialect.name)
        queued = self._queue.delay(event.attributes.get(ARRIVED))
        if queued > self._options.pass_after:
            return Declined(Outcome.OVERLOADED, dialect.name)
        controls = replace(controls_of(headers), redirected=REDIRECTED in headers or _is_seen_to(event.metadata))
        room = Room.RECALL
        if recalls:
            size = int(length) if length.isdecimal() else 0
            room = self.load.room_for(size, self._queue.waited, late=queued > self._options.late_after)
        if room is Room.NONE or (room is Room.LEARN and controls.store is Switch.SKIP):
            return Declined(Outcome.OVERLOADED, dialect.name)
        return Admitted(
            dialect=dialect,
            headers=headers,
            path=path,
            encoding=",".join(headers.all("content-encoding")),
            caller=self._identity.caller(headers, event.metadata),
            controls=controls,
            signals=signals_of(headers, event.metadata, self._options.signals),
            route=str(event.attributes.get(ROUTE, "")),
            upstream=str(event.attributes.get(CLUSTER, "")),
            late=room is Room.LEARN,
            metadata=event.metadata,
        )


def _is_seen_to(metadata: Mapping[str, Any]) -> bool:
    ours = metadata.get(METADATA)
    return isinstance(ours, Mapping) and ours.get(PASSED) is True


def _is_json_post(headers: Headers) -> bool:
    """Whether this is a POST with a JSON body. A WebSocket upgrade has a body that never ends."""
    if headers.get(":method") != "POST" or "upgrade" in headers or ":protocol" in headers:
        return False
    return is_json(headers.get("content-type"))


def is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def controls_of(headers: Headers) -> HeaderControls:
    """The control headers. With repeated headers SKIP wins; unknown forms of denial count as SKIP."""
    off = _any_true(headers, DISABLE)
    incognito = _any_true(headers, "x-memory-incognito")
    unkept = off or incognito
    return HeaderControls(
        retrieve=Switch.SKIP if off else _switch(headers, "x-memory-retrieve"),
        store=Switch.SKIP if unkept else _switch(headers, "x-memory-store"),
        compress=Switch.SKIP if off else _switch(headers, "x-memory-compress"),
        ends_session="end" in (value.lower() for value in _list_values(headers, "x-memory-session")),
        internal=INTERNAL in headers,
        redirected=REDIRECTED in headers,
        unkept=unkept,
        incognito=incognito,
        as_of=headers.get("x-memory-as-of").strip(),
        explain=_any_true(headers, EXPLAIN),
    )


def _list_values(headers: Headers, name: str) -> Iterator[str]:
    """Each value of *name*. Intermediaries may have joined several with commas (RFC 9110, 5.3)."""
    return (value.strip() for line in headers.all(name) for value in line.split(","))


def _any_true(headers: Headers, name: str) -> bool:
    return any(truth(value) for value in _list_values(headers, name))


def _switch(headers: Headers, name: str) -> Switch:
    said = {value.lower() for value in _list_values(headers, name)}
    if Switch.SKIP in said or not said.isdisjoint(_FALSE):
        return Switch.SKIP
    return Switch.FORCE if Switch.FORCE in said else Switch.DEFAULT


def truth(value: Any) -> bool | None:
    """Parse a router's boolean; None if it is neither true nor false."""
    if isinstance(value, bool):
        return value
    if not isinstance(value, str):
        return None
    word = value.strip().lower()
    if word in _TRUE:
        return True
    return False if word in _FALSE else _SAID.get(word)


def signals_of(headers: Headers, metadata: Mapping[str, Any], sources: SignalsSection) -> Signals:
    """Router signals. Envoy's metadata takes precedence over headers, because clients cannot write it."""
    said = metadata.get(sources.metadata_namespace) if sources.metadata_namespace else None
    known = said if isinstance(said, Mapping) else {}

    def signal(key: str, names: tuple[str, ...]) -> bool | None:
        values = (known.get(key), *(value for name in names for value in _list_values(headers, name)))
        return next((found for found in map(truth, values) if found is not None), None)

    return Signals(
        fact=signal("fact", sources.fact_headers),
        tool=signal("tool", sources.tool_headers),
        greeting=signal("greeting", sources.greeting_headers),
    )


# Sharing: the shared owners that a request may read, and the owner of learned memories. Pure functions.


def shared_owners(scopes: Scopes, caller: Caller) -> tuple[Owner, ...]:
    """The shared owners to search besides *caller*'s own memories. Only `Caller.projects` defines membership.

    A request that names a project reaches only that project, and only if the caller is a member."""
    tenant = caller.owner.tenant
    named = (caller.project,) if caller.project else caller.projects
    mine = [project for project in named if project in caller.projects] if scopes.project.recall else []
    shared = [Owner.of_project(tenant, project) for project in mine[: scopes.project.most]]
    if scopes.global_.recall:
        shared.append(Owner.of_everyone(None if scopes.global_.reach == "all" else tenant))
    return tuple(shared)


def learning_caller(scopes: Scopes, caller: Caller) -> Caller:
    """The caller to learn under: *caller*, or the named project if the caller is a member."""
    if not (scopes.project.learn and caller.project and caller.project in caller.projects):
        return caller
    # Separates members who begin with the same words or use the same session name.
    session = caller.session and digest("member", caller.owner.key, caller.session)
    owner = Owner.of_project(caller.owner.tenant, caller.project)
    speaker = digest("speaker", caller.owner.key)
    return replace(caller, owner=owner, session=session, speaker=speaker, spoken_by=caller)


def circle_of(shared: tuple[Owner, ...], origins: tuple[str, ...], epochs: tuple[int, ...]) -> str:
    """A key for the shared memories that a request may get; empty for a caller without any.

    Replay is limited to equal keys. Blocks injected before the caller left a project, used a narrower route, or a
    shared memory was forgotten are therefore not replayed."""
    if not (shared or origins):
        return ""
    owners = (f"{owner.key}:{epoch}" for owner, epoch in zip(shared, epochs, strict=True))
    return digest("circle", *owners, "origins", *origins)


# Options: frozen values that the composition root fills from the settings.


class Mode(StrEnum):
    ACTIVE = "active"
    SHADOW = "shadow"  # everything runs and is learned, nothing is injected
    GRADUAL = "gradual"  # a stable *percent* of owners gets memories; the others are the control group


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """The options of the request path. Header names are lower case."""

    enabled: bool  # the operator's switch: False gives `disabled` for every request
    auto_store: bool  # learn from an exchange unless its client or a rule says otherwise
    client_may_enable: bool  # `auto_store: true` in a body counts where the operator switched it off
    mode: Mode
    percent: float  # 0 to 100, of owners; read in GRADUAL only
    limit: int  # memories in a block; a client may lower it
    threshold: float  # relevance, 0 to 1; a client may raise it
    request_bytes: int  # largest request body parsed, compressed or not
    caller_cpu: float  # cores that one caller's long requests may take on average; 0: no limit
    answer_bytes: int  # largest response kept for learning, compressed or not
    inject_as: str  # auto, system_message or user_suffix
    window: int | None  # tokens; None: from the model's profile
    margin: int  # tokens of the window left free
    unknown_cap: int  # tokens of a block for a model of unknown window
    signals: SignalsSection = field(default_factory=SignalsSection)
    strip_headers: tuple[str, ...] = ()  # identity headers to keep from the upstream
    explain_tenants: frozenset[str] = frozenset()  # whose callers may ask for the memories injected; "*": all
    skip_auxiliary: bool = True  # skip title, tag and summary calls of chat clients
    # In a queue before us: from when on a request gets no memory, and from when on it passes unread.
    late_after: timedelta = timedelta(milliseconds=50)
    pass_after: timedelta = timedelta(milliseconds=500)
    # A guard above recall's own deadline and below Envoy's message_timeout.
    give_up_after: timedelta = timedelta(seconds=5)
    # A guard above the journal's own timeout: how long the last response chunk may wait for us.
    last_reply_waits: timedelta = timedelta(milliseconds=200)
    profile: str = "off"  # off, always, or when_relevant: only with relevant memories
    replay: bool = True  # replay a conversation's blocks at their places
    replay_tokens: int = 8192  # estimated, of a conversation's blocks; the oldest are dropped beyond it
    replay_keep: timedelta = timedelta(days=1)  # since a conversation's last turn
    # for reading a conversation's records, within recall's deadline
    replay_wait: timedelta = timedelta(milliseconds=50)
    replay_bytes: int = 16 << 20  # of records not written yet
    scopes: Scopes = field(default_factory=Scopes)
