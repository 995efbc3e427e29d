"""Resolves a request's caller: the only path from a gateway's assertion to a memory owner.

Configuration selects a single source: a header set by a trusted filter, Envoy's dynamic metadata, or a claim of a
verified JWT. An identity that fails any check is discarded, and the request gets no memory: there is no default
caller and no fallback."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase, translate
from typing import Any, Protocol

from memory_extproc.model import Caller, Owner, digest
from memory_extproc.model.headers import Headers

# The Unicode replacement character (23.8) means that an earlier hop lost bytes. Zoë and Zoé in Latin-1 become equal
# that way, so a name that contains it identifies no user.
LOST = "\ufffd"
MAX_PROJECTS = 256  # entries read from a claim or metadata list
MAX_BYTES = 256  # UTF-8 bytes of a user, tenant, project or session; the size of the store's key fields
HASH_KEY_BYTES = 16  # fewer and the keyed hash can be undone by trying keys


class TokenVerifier(Protocol):
    """Verifies JWTs for `Identity`; implemented by `jwt.Tokens`."""

    def claims(self, token: str) -> Mapping[str, Any] | None:
        """The claims of a valid token, else None. Never waits for the network."""


@dataclass(frozen=True, slots=True)
class ClaimNames:
    """The claims that name the caller; dots separate nested keys ("realm.user")."""

    header: str = "authorization"
    user: str = "sub"
    tenant: str = ""  # empty: every caller belongs to the unnamed tenant
    projects: str = ""  # a name or a list of names; empty: no memberships


@dataclass(frozen=True, slots=True)
class MetadataPath:
    """A place in Envoy's dynamic metadata, written `namespace:key.key`."""

    namespace: str
    keys: str

    @classmethod
    def parse(cls, text: str) -> MetadataPath:
        """Parse *text*. ValueError if either side of the first colon is missing."""
        namespace, colon, keys = text.partition(":")
        if not (namespace and colon and keys):
            raise ValueError("expected namespace:key.key, such as envoy.filters.http.jwt_authn:jwt.sub")
        return cls(namespace, keys)

    def look_up(self, metadata: Mapping[str, Any]) -> Any:
        return look_up(metadata.get(self.namespace), self.keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityOptions:
    """Where a caller's identity comes from. Header names are lower case.

    At most one of *metadata* and *claims* is set; with neither, *user_header* names the caller. The tenant always
    comes from the same source as the user."""

    user_header: str = "x-authz-user-id"
    tenant_header: str = "x-authz-tenant-id"
    project_header: str = "x-memory-project"
    session_header: str = "x-session-id"
    metadata: MetadataPath | None = None
    metadata_tenant: MetadataPath | None = None
    metadata_projects: MetadataPath | None = None  # used with every source of user and tenant
    claims: ClaimNames | None = None
    trust_body: bool = False  # memory_context.user_id names the caller where the header is absent
    people_only: str = ""  # glob over user ids; others (service accounts, shared keys) have no memory
    hash_key: bytes | None = field(default=None, repr=False)  # set: user ids are replaced by a keyed hash


class Identity:
    """Resolves a request's identity to a `Caller`. Pure except for the in-memory token check."""

    def __init__(self, options: IdentityOptions, tokens: TokenVerifier | None = None) -> None:
        if options.claims is not None and tokens is None:
            raise ValueError("identity from JWT claims needs something that verifies tokens")
        if options.hash_key is not None and len(options.hash_key) < HASH_KEY_BYTES:
            raise ValueError(f"the key of user id hashes needs {HASH_KEY_BYTES} bytes or more")
        self._options = options
        self._tokens = tokens
        # fnmatchcase would do, but compiles through a bounded shared cache
        self._people = re.compile(translate(options.people_only)) if options.people_only else None

    @property
    def headers(self) -> tuple[str, ...]:
        """The identity headers that `identity.strip_headers` removes before the upstream."""
        options = self._options
        named = (options.user_header, options.tenant_header, options.project_header, options.session_header)
        return tuple(name for name in named if name)

    def caller(self, headers: Headers, metadata: Mapping[str, Any]) -> Caller | None:
        """The caller;

        None if the identity is absent, repeated, comma-joined, too long, not printable or not verified."""
        named = self._identify(headers, metadata)
        return None if named is None else self._caller(*named, headers, metadata)

    def caller_of_body(self, headers: Headers, metadata: Mapping[str, Any], user: str) -> Caller | None:
        """As `caller`, with *user* (memory_context.user_id) as a fallback.

        The fallback requires that the configuration trusts bodies and that no identity header came at all. An
        invalid header is not replaced by the body."""
        options = self._options
        by_header = options.metadata is None and options.claims is None
        if not (options.trust_body and by_header) or options.user_header in headers:
            return self.caller(headers, metadata)
        tenant = self._tenant_of(headers)
        trusted = accept_name(user)
        return None if tenant is None or not trusted else self._caller(tenant, trusted, headers, metadata)

    def _identify(self, headers: Headers, metadata: Mapping[str, Any]) -> tuple[str, str] | None:
        """(tenant, user) from the configured source; None if either is invalid."""
        options = self._options
        if options.claims is not None:
            return self._of_token(options.claims, headers)
        if options.metadata is not None:
            user = accept_name(options.metadata.look_up(metadata))
            place = options.metadata_tenant
            tenant = optional(place.look_up(metadata)) if place else ""
        else:
            user = accept_name(single(headers, options.user_header))
            tenant = self._tenant_of(headers)
        return None if not user or tenant is None else (tenant, user)

    def _verify_claims(self, claims: ClaimNames, headers: Headers) -> Mapping[str, Any] | None:
        # A list of credentials is ambiguous, like a list of users; a compact JWT contains no comma.
        token = bearer(single(headers, claims.header) or "")
        return self._tokens.claims(token) if self._tokens and token else None

    def _of_token(self, claims: ClaimNames, headers: Headers) -> tuple[str, str] | None:
        verified = self._verify_claims(claims, headers)
        if verified is None:
            return None
        user = accept_name(look_up(verified, claims.user))
        tenant = optional(look_up(verified, claims.tenant)) if claims.tenant else ""
        return None if not user or tenant is None else (tenant, user)

    def _tenant_of(self, headers: Headers) -> str | None:
        """The tenant; empty if none was named, None if its name is invalid."""
        value = single(headers, self._options.tenant_header)
        return None if value is None else optional(value)

    def _caller(self, tenant: str, user: str, headers: Headers, metadata: Mapping[str, Any]) -> Caller | None:
        if self._people is not None and not self._people.match(user):
            return None
        if LOST in user or LOST in tenant:
            return None
        if self._options.hash_key is not None:
            user = hashed_user(self._options.hash_key, tenant, user)
        return Caller(
            Owner(tenant, user),
            project=self._project(headers),
            session=self._session(headers),
            projects=self._memberships(headers, metadata),
        )

    def _memberships(self, headers: Headers, metadata: Mapping[str, Any]) -> tuple[str, ...]:
        """The projects of which the caller is a verified member.

        They come from claims of a verified token or Envoy's metadata, which clients cannot write. No header adds to
        them."""
        options = self._options
        if options.metadata_projects is not None:
            return names_in(options.metadata_projects.look_up(metadata))
        if options.claims is not None and options.claims.projects:
            return names_in(look_up(self._verify_claims(options.claims, headers), options.claims.projects))
        return ()

    def _project(self, headers: Headers) -> str:
        """The requested project, or a digest of an invalid name.

        A project narrows recall. Ignoring an invalid name would widen it to all projects; the digest names a
        project without memories."""
        value = single(headers, self._options.project_header)
        if value == "":
            return ""
        return accept_name(value) or digest("project", *headers.all(self._options.project_header))

    def _session(self, headers: Headers) -> str:
        """The session, or none if its name is invalid. A session only groups turns and grants no access."""
        return accept_name(single(headers, self._options.session_header))


def single(headers: Headers, name: str) -> str | None:
    """The value of a header without surrounding white space.

    "" if it is absent or no name is configured; None if it is repeated or a list and therefore ambiguous."""
    values = headers.all(name) if name else ()
    # RFC 9110, 5.3: repeated fields may be joined with commas, so a comma may hide a second value.
    if len(values) > 1 or any("," in value for value in values):
        return None
    return values[0].strip(" \t") if values else ""


def accept_name(value: Any) -> str:
    """*value* if it is a valid name: printable, 1 to 256 bytes in UTF-8; else ""."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        return ""
    # isprintable rejects control and format characters, lone surrogates, and separators other than the space.
    return value if len(value.encode()) <= MAX_BYTES else ""


def names_in(value: Any) -> tuple[str, ...]:
    """The valid names in *value*, a name or a list of names; invalid entries are skipped."""
    listed = value if isinstance(value, list | tuple) else [value]
    return tuple(dict.fromkeys(name for name in map(accept_name, listed[:MAX_PROJECTS]) if name))


def optional(value: Any) -> str | None:
    """As `accept_name`, but an absent or empty value gives "", and an invalid value gives None."""
    if value is None or value == "":
        return ""
    return accept_name(value) or None


def bearer(value: str) -> str:
    """The token of an Authorization value, or of a header with only the token; else ""."""
    scheme, space, token = value.partition(" ")
    if not space:
        return value
    return token.strip() if scheme.lower() == "bearer" else ""


def look_up(tree: Any, keys: str) -> Any:
    """The value at dotted *keys*; None if absent.

    The longest matching key wins at each level, so that a claim named by a URL ("https://example.com/user") is
    found despite its dots."""
    if not keys:
        return tree
    if not isinstance(tree, Mapping):
        return None
    parts = keys.split(".")
    for taken in range(len(parts), 0, -1):
        key = ".".join(parts[:taken])
        if key in tree:
            return look_up(tree[key], ".".join(parts[taken:]))
    return None


def hashed_user(key: bytes, tenant: str, user: str) -> str:
    """HMAC-SHA256 of tenant and user under *key*, 64 hex digits; the tenant is part of the hash."""
    return hmac.new(key, digest("user", tenant, user).encode(), hashlib.sha256).hexdigest()


# Client certificates that may open a stream.

# gRPC core's property names of a verified client certificate (grpc_security_constants.h).
NAMES = ("x509_subject_alternative_name", "x509_common_name")


class AllowedPeers:
    def __init__(self, allowed: Iterable[str]) -> None:
        """*allowed*: names or globs.

        They are compared with the certificate's alternative names, or with its common name if it has none (RFC
        6125, 6.4.4)."""
        self._allowed = tuple(allowed)

    def admit(self, auth: Mapping[str, Iterable[bytes]]) -> bool:
        """Whether the peer of this *auth* context presented a certificate with an allowed name."""
        for property_name in NAMES:
            names = [name.decode("utf-8", "replace") for name in auth.get(property_name, ())]
            if names:
                return any(fnmatchcase(name, allowed) for name in names for allowed in self._allowed)
        return False
