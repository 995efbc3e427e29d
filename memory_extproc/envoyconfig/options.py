"""Options of the generated Envoy configuration, as frozen values without Envoy messages."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from memory_extproc.settings import Settings

# Fixed names of clusters and filter: dashboards and alert rules refer to them.
SIDECAR = "memory_extproc"
UPSTREAM = "llm"
JWKS = "jwks"
API = "memory_extproc_api"
FILTER = "memory"
OBSERVER = "memory_observer"  # the observing filter, with two filters
JWT_AUTHN = "envoy.filters.http.jwt_authn"


class IdentityMode(StrEnum):
    """The source of the identity headers."""

    STRIP = "strip"  # only a filter added after the stripping; clients cannot set them
    TRUST = "trust"  # the client itself: only if every client is trusted
    JWT = "jwt"  # Envoy, from a verified token


class Bodies(StrEnum):
    """How Envoy sends a body that may be modified."""

    BUFFERED = "buffered"  # whole, with a copy: only so can Envoy always continue without the sidecar
    FULL_DUPLEX = "full-duplex"  # in pieces of which it keeps none: where a gateway offers nothing else


@dataclass(frozen=True, slots=True)
class Upstream:
    """The LLM, or the router in front of several."""

    host: str
    port: int
    tls: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRequirements:
    """Envoy's requirements on tokens. Either *jwks_url* or *jwks_file* is set."""

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
class RestRoute:
    """The memory API, for clients that speak HTTP and JSON."""

    address: str  # host:port or unix:/path, as listen.console
    page: bool = False  # the page is served there, too


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvoyOptions:
    sidecar: str  # host:port or unix:/path
    upstream: Upstream
    listen: tuple[str, int]
    admin_port: int
    identity: IdentityMode
    settings: Settings  # of the sidecar
    metadata_namespaces: tuple[str, ...] = ()  # dynamic metadata the sidecar reads
    verified: TokenRequirements | None = None  # with IdentityMode.JWT
    client_tls: ClientTls | None = None
    bodies: Bodies = Bodies.BUFFERED
    two_filters: bool = False  # a modifying filter, and an observing filter in front of all others
    rest: RestRoute | None = None  # None: the memory API has no HTTP routes
    router: tuple[str, int] | None = None  # the semantic router's ext_proc, in front of memory

    @property
    def identity_headers(self) -> tuple[str, ...]:
        identity, proxy = self.settings.identity, self.settings.api.trusted_proxy
        names = (identity.user_header, identity.tenant_header, proxy.roles_header, proxy.projects_header)
        return tuple(name for name in names if name)

    @property
    def claimed_headers(self) -> list[tuple[str, str]]:
        """The identity headers that come from a verified token, each with its claim."""
        if self.verified is None:
            return []
        identity, verified = self.settings.identity, self.verified
        pairs = ((identity.user_header, verified.user_claim), (identity.tenant_header, verified.tenant_claim))
        return [(header, claim) for header, claim in pairs if header and claim]

    @property
    def forwarded_namespaces(self) -> tuple[str, ...]:
        verified = (JWT_AUTHN,) if self.identity is IdentityMode.JWT else ()
        return tuple(dict.fromkeys((*verified, *self.metadata_namespaces)))

    @property
    def buffer_bytes(self) -> int:
        """Envoy's limit on a buffered body: four times the sidecar's limit."""
        return 4 * self.settings.limits.request_body
