"""Options of the Envoy configuration that is written, as frozen values that know no Envoy message."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

# Names of clusters, and of the filter: fixed, because dashboards and alert rules hold them.
SIDECAR = "memory_extproc"
UPSTREAM = "llm"
JWKS = "jwks"
API = "memory_extproc_api"
FILTER = "memory"
OBSERVER = "memory_observer"  # with two filters: the one that watches
JWT_AUTHN = "envoy.filters.http.jwt_authn"


class IdentityMode(StrEnum):
    """Who puts the identity headers in."""

    STRIP = "strip"  # nobody but a filter that is added after the stripping; clients cannot
    TRUST = "trust"  # the client itself: only where every client is trusted
    JWT = "jwt"  # Envoy, from a token it has verified


class Bodies(StrEnum):
    """How Envoy hands a body over that is to be changed."""

    BUFFERED = "buffered"  # whole, and it keeps a copy: the one way in which it can always go on without us
    FULL_DUPLEX = "full-duplex"  # in pieces of which it keeps none: where a gateway offers nothing else


@dataclass(frozen=True, slots=True)
class Upstream:
    """The LLM, or the router in front of several."""

    host: str
    port: int
    tls: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What Envoy demands of tokens. One of *jwks_url* and *jwks_file* is set."""

    issuer: str
    audience: str
    jwks_url: str = ""
    jwks_file: str = ""
    user_claim: str = "sub"
    tenant_claim: str = ""


@dataclass(frozen=True, slots=True)
class ClientTls:
    """Envoy's side of mutual TLS with the sidecar: PEM files as Envoy sees them."""

    cert: str
    key: str
    ca: str
    server_name: str


@dataclass(frozen=True, slots=True)
class RestApi:
    """The memory API, for clients that speak HTTP and JSON."""

    address: str  # host:port or unix:/path, as listen.console


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvoyOptions:
    sidecar: str  # host:port or unix:/path
    upstream: Upstream
    listen: tuple[str, int]
    admin_port: int
    identity: IdentityMode
    user_header: str
    tenant_header: str
    roles_header: str = ""  # with which a gateway tells the memory API what a caller may do
    message_timeout: timedelta  # above the sidecar's own deadline
    health_interval: timedelta
    route_timeout: timedelta  # of a whole exchange; zero: none
    idle_timeout: timedelta
    request_body: int  # bytes the sidecar looks at
    streams: int
    metadata_namespaces: tuple[str, ...] = ()  # dynamic metadata the sidecar reads
    verified: Verified | None = None  # with IdentityMode.JWT
    client_tls: ClientTls | None = None
    bodies: Bodies = Bodies.BUFFERED
    two_filters: bool = False  # one changes the request, another in front of all watches
    rest: RestApi | None = None  # None: the memory API has no HTTP routes
    router: tuple[str, int] | None = None  # the semantic router's ext_proc, in front of memory

    @property
    def identity_headers(self) -> tuple[str, ...]:
        return tuple(name for name in (self.user_header, self.tenant_header, self.roles_header) if name)

    @property
    def forwarded_namespaces(self) -> tuple[str, ...]:
        verified = (JWT_AUTHN,) if self.identity is IdentityMode.JWT else ()
        return tuple(dict.fromkeys((*verified, *self.metadata_namespaces)))

    @property
    def buffer_bytes(self) -> int:
        """Envoy's limit on a body that waits for us: four times what the sidecar looks at."""
        return 4 * self.request_body
