"""From a request's headers: is it a chat request, who asks, and what did the client and the router say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from memory_extproc.dialect.base import Dialect
from memory_extproc.dialect.routes import dialect_for
from memory_extproc.model import Caller, Outcome, Signals, Switch
from memory_extproc.wire.events import Headers, RequestHeaders
from memory_extproc.wire.identity import Identity
from memory_extproc.wire.options import SignalSources, WireOptions

OURS = "x-memory-"  # every header that begins so is for us and never reaches the upstream
DISABLE = "x-disable-router-memory"
# Set on our own calls of language models, so that one that comes back through the gateway is known.
INTERNAL = "x-memory-extproc-internal"
# Envoy sets it on a request that it sends once more, to where the upstream redirected it. By then all that the
# client wished of us is taken out, and the body holds what we put in.
REDIRECTED = "x-envoy-original-url"
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
    redirected: bool = False  # it passed us before
    unkept: bool = False  # nothing of this exchange is to be kept
    incognito: bool = False  # nor of what follows in its conversation


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

    def __init__(self, options: WireOptions, identity: Identity) -> None:
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
            controls=controls_of(headers),
            signals=signals_of(headers, event.metadata, self._options.signals),
            route=str(event.attributes.get("xds.route_name", "")),
            upstream=str(event.attributes.get("xds.cluster_name", "")),
            metadata=event.metadata,
        )


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
