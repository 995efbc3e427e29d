"""Resolves a request's caller: the only path from a gateway's assertion to a memory owner.

Configuration selects a single source: a header set by a trusted filter, Envoy's dynamic metadata, or a claim of a
verified JWT. An identity that fails any check is discarded, and the request gets no memory: there is no default
caller and no fallback."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase, translate
from typing import Any, Protocol

from memory_extproc.model import Caller, Owner, digest
from memory_extproc.model.headers import Headers
from memory_extproc.model.owner import accept_name, accept_optional_name
from memory_extproc.settings.identity import HASH_KEY_BYTES, IdentitySection

# The Unicode replacement character (23.8) means that an earlier hop lost bytes. Zoë and Zoé in Latin-1 become equal
# that way, so a name that contains it identifies no user.
LOST = "\ufffd"
MAX_PROJECTS = 256  # entries read from a claim or metadata list


class TokenVerifier(Protocol):
    """Verifies JWTs for `Identity`; implemented by `jwt.Tokens`."""

    def claims(self, token: str) -> Mapping[str, Any] | None:
        """The claims of a valid token, else None. Never waits for the network."""


class Identity:
    """Resolves a request's identity to a `Caller`. Pure except for the in-memory token check."""

    def __init__(
        self, section: IdentitySection, tokens: TokenVerifier | None = None, hash_key: bytes | None = None
    ) -> None:
        """*hash_key*: replaces user ids by a keyed hash."""
        if section.jwt.is_set and tokens is None:
            raise ValueError("identity from JWT claims needs something that verifies tokens")
        if hash_key is not None and len(hash_key) < HASH_KEY_BYTES:
            raise ValueError(f"the key of user id hashes needs {HASH_KEY_BYTES} bytes or more")
        self._section, self._hash_key = section, hash_key
        self._by_token = section.jwt.is_set
        self._tokens = tokens
        # fnmatchcase would do, but compiles through a bounded shared cache
        self._people = re.compile(translate(section.people_only)) if section.people_only else None

    @property
    def headers(self) -> tuple[str, ...]:
        """The identity headers that `identity.strip_headers` removes before the upstream."""
        section = self._section
        named = (section.user_header, section.tenant_header, section.project_header, section.session_header)
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
        section = self._section
        by_header = not (section.metadata or self._by_token)
        if not (section.trust_body and by_header) or section.user_header in headers:
            return self.caller(headers, metadata)
        tenant = self._tenant_of(headers)
        trusted = accept_name(user)
        return None if tenant is None or not trusted else self._caller(tenant, trusted, headers, metadata)

    def _identify(self, headers: Headers, metadata: Mapping[str, Any]) -> tuple[str, str] | None:
        """(tenant, user) from the configured source; None if either is invalid."""
        section = self._section
        if self._by_token:
            return self._of_token(headers)
        if section.metadata:
            user = accept_name(look_up_metadata(metadata, section.metadata))
            place = section.metadata_tenant
            tenant = accept_optional_name(look_up_metadata(metadata, place)) if place else ""
        else:
            user = accept_name(single(headers, section.user_header))
            tenant = self._tenant_of(headers)
        return None if not user or tenant is None else (tenant, user)

    def _verify_claims(self, headers: Headers) -> Mapping[str, Any] | None:
        # A list of credentials is ambiguous, like a list of users; a compact JWT contains no comma.
        token = bearer(single(headers, self._section.jwt.header) or "")
        return self._tokens.claims(token) if self._tokens and token else None

    def _of_token(self, headers: Headers) -> tuple[str, str] | None:
        verified = self._verify_claims(headers)
        if verified is None:
            return None
        jwt = self._section.jwt
        user = accept_name(look_up(verified, jwt.user_claim))
        tenant = accept_optional_name(look_up(verified, jwt.tenant_claim)) if jwt.tenant_claim else ""
        return None if not user or tenant is None else (tenant, user)

    def _tenant_of(self, headers: Headers) -> str | None:
        """The tenant; empty if none was named, None if its name is invalid."""
        value = single(headers, self._section.tenant_header)
        return None if value is None else accept_optional_name(value)

    def _caller(self, tenant: str, user: str, headers: Headers, metadata: Mapping[str, Any]) -> Caller | None:
        if self._people is not None and not self._people.match(user):
            return None
        if LOST in user or LOST in tenant:
            return None
        if self._hash_key is not None:
            user = hashed_user(self._hash_key, tenant, user)
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
        section = self._section
        if section.metadata_projects:
            return names_in(look_up_metadata(metadata, section.metadata_projects))
        if self._by_token and section.jwt.projects_claim:
            return names_in(look_up(self._verify_claims(headers), section.jwt.projects_claim))
        return ()

    def _project(self, headers: Headers) -> str:
        """The requested project, or a digest of an invalid name.

        A project narrows recall. Ignoring an invalid name would widen it to all projects; the digest names a
        project without memories."""
        value = single(headers, self._section.project_header)
        if value == "":
            return ""
        return accept_name(value) or digest("project", *headers.all(self._section.project_header))

    def _session(self, headers: Headers) -> str:
        """The session, or none if its name is invalid. A session only groups turns and grants no access."""
        return accept_name(single(headers, self._section.session_header))


def single(headers: Headers, name: str) -> str | None:
    """The value of a header without surrounding white space.

    "" if it is absent or no name is configured; None if it is repeated or a list and therefore ambiguous."""
    values = headers.all(name) if name else ()
    # RFC 9110, 5.3: repeated fields may be joined with commas, so a comma may hide a second value.
    if len(values) > 1 or any("," in value for value in values):
        return None
    return values[0].strip(" \t") if values else ""


def names_in(value: Any) -> tuple[str, ...]:
    """The valid names in *value*, a name or a list of names; invalid entries are skipped."""
    listed = value if isinstance(value, list | tuple) else [value]
    return tuple(dict.fromkeys(name for name in map(accept_name, listed[:MAX_PROJECTS]) if name))


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


def look_up_metadata(metadata: Mapping[str, Any], place: str) -> Any:
    """The value at *place*, written `namespace:key.key`, in Envoy's dynamic metadata; None if absent."""
    namespace, _, keys = place.partition(":")
    return look_up(metadata.get(namespace), keys)


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
