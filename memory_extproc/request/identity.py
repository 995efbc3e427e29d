"""Whose memory a request may reach: the one door between a gateway's word and an owner.

There is one source of identity, chosen by configuration: a header that a trusted filter sets, Envoy's dynamic
metadata, or a claim of a JWT that we verify. What does not pass every check is no identity, and no identity
is no memory: there is no guess, no default caller and no wider view.
"""

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

# Stands where somebody in front of us met bytes that they could not read (Unicode, 23.8). Zoë and Zoé become one by
# that, where both were written in Latin-1, so a name with it in it says of nobody who they are.
LOST = "\ufffd"
MAX_PROJECTS = 256  # looked at of what a claim or metadata lists
MAX_BYTES = 256  # of a user, tenant, project or session in UTF-8; what the store's key fields hold
HASH_KEY_BYTES = 16  # fewer and the keyed hash can be undone by trying keys


class TokenVerifier(Protocol):
    """What `Identity` asks of JWT verification (identity_tokens.py)."""

    def claims(self, token: str) -> Mapping[str, Any] | None:
        """The claims of a token that passed every check, else None. Never waits for the network."""


@dataclass(frozen=True, slots=True)
class ClaimNames:
    """Where a verified JWT names the caller: keys, joined by dots where they nest ("realm.user")."""

    header: str = "authorization"
    user: str = "sub"
    tenant: str = ""  # empty: every caller is of the one unnamed tenant
    projects: str = ""  # a name or a list of them; empty: nobody is a member of any


@dataclass(frozen=True, slots=True)
class MetadataPath:
    """A place in Envoy's dynamic metadata, written `namespace:key.key`."""

    namespace: str
    keys: str

    @classmethod
    def parse(cls, text: str) -> MetadataPath:
        """Raises ValueError when either side of the first colon is missing."""
        namespace, colon, keys = text.partition(":")
        if not (namespace and colon and keys):
            raise ValueError("expected namespace:key.key, such as envoy.filters.http.jwt_authn:jwt.sub")
        return cls(namespace, keys)

    def look_up(self, metadata: Mapping[str, Any]) -> Any:
        return look_up(metadata.get(self.namespace), self.keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityOptions:
    """Header names are lower case. At most one of *metadata* and *claims* is set; with neither, the caller
    is named by *user_header*. The tenant comes from the same source as the user, always."""

    user_header: str = "x-authz-user-id"
    tenant_header: str = "x-authz-tenant-id"
    project_header: str = "x-memory-project"
    session_header: str = "x-session-id"
    metadata: MetadataPath | None = None
    metadata_tenant: MetadataPath | None = None
    metadata_projects: MetadataPath | None = None  # whatever the source of user and tenant
    claims: ClaimNames | None = None
    trust_body: bool = False  # memory_context.user_id names the caller where the header is absent
    people_only: str = ""  # glob over user ids; others (service accounts, shared keys) have no memory
    hash_key: bytes | None = field(default=None, repr=False)  # set: user ids are replaced by a keyed hash


class Identity:
    """Turns what came with a request into a `Caller`. Pure but for the token check, which is in memory."""

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
        """The identity headers, which `identity.strip_headers` keeps from the upstream."""
        options = self._options
        named = (options.user_header, options.tenant_header, options.project_header, options.session_header)
        return tuple(name for name in named if name)

    def caller(self, headers: Headers, metadata: Mapping[str, Any]) -> Caller | None:
        """Who asks, or None: absent, repeated, comma-joined, overlong, not printable, not verified."""
        named = self._named(headers, metadata)
        return None if named is None else self._caller(*named, headers, metadata)

    def caller_of_body(self, headers: Headers, metadata: Mapping[str, Any], user: str) -> Caller | None:
        """As `caller`; where no identity header came at all and the configuration trusts bodies, *user*
        (memory_context.user_id) counts. A header that is there and bad is not papered over by the body."""
        options = self._options
        by_header = options.metadata is None and options.claims is None
        if not (options.trust_body and by_header) or options.user_header in headers:
            return self.caller(headers, metadata)
        tenant = self._tenant_of(headers)
        trusted = accept_name(user)
        return None if tenant is None or not trusted else self._caller(tenant, trusted, headers, metadata)

    def _named(self, headers: Headers, metadata: Mapping[str, Any]) -> tuple[str, str] | None:
        """(tenant, user) from the configured source; None when either is not what it must be."""
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

    def _verified(self, claims: ClaimNames, headers: Headers) -> Mapping[str, Any] | None:
        # A list of credentials is as ambiguous as a list of users; a compact JWT holds no comma.
        token = bearer(single(headers, claims.header) or "")
        return self._tokens.claims(token) if self._tokens and token else None

    def _of_token(self, claims: ClaimNames, headers: Headers) -> tuple[str, str] | None:
        verified = self._verified(claims, headers)
        if verified is None:
            return None
        user = accept_name(look_up(verified, claims.user))
        tenant = optional(look_up(verified, claims.tenant)) if claims.tenant else ""
        return None if not user or tenant is None else (tenant, user)

    def _tenant_of(self, headers: Headers) -> str | None:
        """Empty when no tenant was named; None when it was, but not in a way we accept."""
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
        """The projects that the caller is verifiably a member of: a client can write neither a claim of a token
        that we verify nor Envoy's metadata. No header of any kind adds to them."""
        options = self._options
        if options.metadata_projects is not None:
            return names_in(options.metadata_projects.look_up(metadata))
        if options.claims is not None and options.claims.projects:
            return names_in(look_up(self._verified(options.claims, headers), options.claims.projects))
        return ()

    def _project(self, headers: Headers) -> str:
        """A project only ever narrows, so a bad one must not turn into none, which would be all of them:
        it is known by its digest, a project of its own that nothing else is filed under."""
        value = single(headers, self._options.project_header)
        if value == "":
            return ""
        return accept_name(value) or digest("project", *headers.all(self._options.project_header))

    def _session(self, headers: Headers) -> str:
        """A session joins turns and opens nothing: a bad one is no session, found from the conversation."""
        return accept_name(single(headers, self._options.session_header))


def single(headers: Headers, name: str) -> str | None:
    """The value of a header without the white space around it, "" when it did not come or no name is
    configured; None when it came more than once or is a list, and so does not say which value is meant."""
    values = headers.all(name) if name else ()
    # RFC 9110, 5.3: a recipient may join repeated fields with commas, so a comma may hide a second value.
    if len(values) > 1 or any("," in value for value in values):
        return None
    return values[0].strip(" \t") if values else ""


def accept_name(value: Any) -> str:
    """*value* when it is a name we take: a printable string of 1 to 256 bytes in UTF-8; else ""."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        return ""
    # isprintable refuses control and format characters, lone surrogates and separators but the space.
    return value if len(value.encode()) <= MAX_BYTES else ""


def names_in(value: Any) -> tuple[str, ...]:
    """The names in *value*, which is one or a list of them; what is no name we take is left out."""
    listed = value if isinstance(value, list | tuple) else [value]
    return tuple(dict.fromkeys(name for name in map(accept_name, listed[:MAX_PROJECTS]) if name))


def optional(value: Any) -> str | None:
    """As `accept_name`, but absent or empty is "", and None says that a value was there and was bad."""
    if value is None or value == "":
        return ""
    return accept_name(value) or None


def bearer(value: str) -> str:
    """The token of an Authorization value, or of a header that holds nothing but the token; else ""."""
    scheme, space, token = value.partition(" ")
    if not space:
        return value
    return token.strip() if scheme.lower() == "bearer" else ""


def look_up(tree: Any, keys: str) -> Any:
    """What stands at dotted *keys*; None if nothing does. The longest key present wins at each level, so
    that a claim named by a URL ("https://example.com/user") is found though it holds dots."""
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
    """HMAC-SHA256 of tenant and user under *key*, 64 hex digits; one user in two tenants has two."""
    return hmac.new(key, digest("user", tenant, user).encode(), hashlib.sha256).hexdigest()


# --- peers -------------------------------------------------------------------------------------------
# Which client certificates may open a stream.

# gRPC core's names for what a verified client certificate says (grpc_security_constants.h).
NAMES = ("x509_subject_alternative_name", "x509_common_name")


class AllowedPeers:
    def __init__(self, allowed: Iterable[str]) -> None:
        """*allowed*: names or globs, compared with the certificate's alternative names, and with its common
        name where it has none of those (RFC 6125, 6.4.4)."""
        self._allowed = tuple(allowed)

    def admit(self, auth: Mapping[str, Iterable[bytes]]) -> bool:
        """Whether the peer whose *auth* context this is showed a certificate with an allowed name."""
        for property_name in NAMES:
            names = [name.decode("utf-8", "replace") for name in auth.get(property_name, ())]
            if names:
                return any(fnmatchcase(name, allowed) for name in names for allowed in self._allowed)
        return False
