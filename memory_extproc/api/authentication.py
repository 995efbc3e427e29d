"""Authentication. The first configured method for which a call has credentials decides alone.

A credential that is refused ends the search: a weaker proof does not make up for a bad token. There is no default
caller; only the method `none` trusts every client."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol, Self
from urllib.parse import unquote

import grpc
import msgspec
import yaml

from memory_extproc.api.call import Call, ErrorReason, RefusedError, bad_request
from memory_extproc.api.principal import (
    METHODS,
    Access,
    Means,
    Principal,
    Whose,
    may,
    roles_of,
)
from memory_extproc.concurrency import TokenBuckets
from memory_extproc.errors import ConfigurationError
from memory_extproc.model import Owner
from memory_extproc.model.headers import Headers
from memory_extproc.model.owner import accept_name, accept_optional_name
from memory_extproc.observe.log import logger
from memory_extproc.request.identity import (
    LOST,
    NAMES,
    AllowedPeers,
    TokenVerifier,
    bearer,
    look_up,
    names_in,
    single,
)
from memory_extproc.settings.api import ApiJwt, CertificateSection, PrincipalRole, TrustedProxySection
from memory_extproc.settings.identity import IdentitySection

KEY_HEADER = "x-api-key"
KEY_PREFIX = "mxk_"  # begins every API key: tells it from a token, and secret scanners find it


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials of a call: its peer, headers and TLS context."""

    peer: str  # as gRPC names the peer: ipv4:127.0.0.1:4711, ipv6:[::1]:4711, unix:/path
    headers: Headers
    certificate: Mapping[str, Iterable[bytes]] = field(default_factory=dict, repr=False)  # gRPC's auth context

    @property
    def local(self) -> bool:
        """Whether the peer is on this machine."""
        kind, _, rest = self.peer.partition(":")
        if kind == "unix":
            return True
        host = unquote(rest).rpartition(":")[0].removeprefix("[").removesuffix("]")
        try:
            return kind in {"ipv4", "ipv6"} and ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False

    @property
    def names(self) -> list[str]:
        """Names of a verified client certificate: its alternative names, else the common name."""
        for kind in NAMES:
            found = [name.decode("utf-8", "replace") for name in self.certificate.get(kind, ())]
            if found:
                return found
        return []


class CredentialVerifier(Protocol):
    def principal(self, presented: Credentials) -> Principal | None:
        """None: the call has no credentials of this kind. RefusedError: they are invalid."""


def unauthenticated_error() -> RefusedError:
    """The error for invalid credentials; it does not reveal which check failed."""
    return RefusedError(
        grpc.StatusCode.UNAUTHENTICATED, ErrorReason.CREDENTIALS_REFUSED, "these credentials are not accepted"
    )


class Authenticator:
    def __init__(self, ways: Sequence[CredentialVerifier]) -> None:
        self._ways = tuple(ways)

    def reconfigure(self, ways: Sequence[CredentialVerifier]) -> None:
        """Apply to calls that begin from now on."""
        self._ways = tuple(ways)

    def principal(self, presented: Credentials) -> Principal:
        """Identify the caller. RefusedError without valid credentials."""
        for way in self._ways:
            principal = way.principal(presented)
            if principal is not None:
                return principal
        raise RefusedError(grpc.StatusCode.UNAUTHENTICATED, ErrorReason.NO_CREDENTIALS, "say who you are")


class TrustedProxy:
    """Identity headers set by an authenticating gateway. They are trusted only from a peer on this machine or with
    a certificate of a listed name, and ignored otherwise."""

    def __init__(self, identity: IdentitySection, section: TrustedProxySection) -> None:
        self._identity, self._section = identity, section
        self._peers = AllowedPeers(section.names)

    def principal(self, presented: Credentials) -> Principal | None:
        headers, identity, section = presented.headers, self._identity, self._section
        trusted = presented.local or self._peers.admit(presented.certificate)
        if not trusted or identity.user_header not in headers:
            return None
        user = accept_name(single(headers, identity.user_header))
        named = single(headers, identity.tenant_header)
        tenant = None if named is None else accept_optional_name(named)
        if not user or tenant is None:
            raise unauthenticated_error()
        roles = ",".join(headers.all(section.roles_header)) if section.roles_header else ""
        principal = _principal(Means.TRUSTED_PROXY, tenant, user, roles_of(_words(roles)))
        return replace(principal, projects=_projects_in(headers.all(section.projects_header)))


class JwtCredentials:
    """A bearer token, verified against pinned keys, algorithms, issuer and audience."""

    def __init__(self, tokens: TokenVerifier, section: ApiJwt, projects_claim: str = "") -> None:
        """*projects_claim*: empty: no caller is a member of a project."""
        self._tokens, self._section, self._projects_claim = tokens, section, projects_claim

    def principal(self, presented: Credentials) -> Principal | None:
        values = presented.headers.all("authorization")
        if not values or any(_key_in(value) for value in values):
            return None
        token = bearer(single(presented.headers, "authorization") or "")
        claims = self._tokens.claims(token) if token else None
        if claims is None:
            raise unauthenticated_error()
        section, listed = self._section, self._projects_claim
        user = accept_name(look_up(claims, section.user_claim))
        tenant = accept_optional_name(look_up(claims, section.tenant_claim)) if section.tenant_claim else ""
        if not user or tenant is None:
            raise unauthenticated_error()
        roles = look_up(claims, section.roles_claim) if section.roles_claim else ""
        projects = names_in(look_up(claims, listed)) if listed else ()
        return replace(_principal(Means.JWT, tenant, user, roles_of(_words(roles))), projects=projects)


class KeyReader(Protocol):
    def holder(self, key: str) -> KeyHolder | None:
        """The principal of a key. Compares in constant time."""


@dataclass(frozen=True, slots=True)
class KeyHolder:
    id: str
    tenant: str
    user: str = field(repr=False)
    roles: frozenset[PrincipalRole]


class ApiKey:
    """A static key in `x-api-key`, or as a bearer token that begins with our prefix."""

    def __init__(self, keys: KeyReader) -> None:
        self._keys = keys

    def principal(self, presented: Credentials) -> Principal | None:
        shown = [*presented.headers.all(KEY_HEADER)]
        shown += filter(None, (_key_in(value) for value in presented.headers.all("authorization")))
        if not shown:
            return None
        holder = self._keys.holder(shown[0]) if len(shown) == 1 else None
        if holder is None:
            raise unauthenticated_error()
        return Principal(holder.tenant, holder.user, holder.roles, Means.API_KEY, f"api_key\0{holder.id}")


class Mtls:
    """A client certificate signed by the server's authorities. The first matching holder decides."""

    def __init__(self, holders: Sequence[CertificateSection]) -> None:
        self._holders = tuple(holders)

    def principal(self, presented: Credentials) -> Principal | None:
        names = presented.names
        for holder in self._holders:
            for name in names:
                if fnmatchcase(name, holder.name):
                    user = holder.user or accept_name(name)
                    if not user:
                        raise unauthenticated_error()
                    return _principal(Means.MTLS, holder.tenant, user, frozenset(holder.roles))
        return None


class NoProof:
    """No authentication: every caller is believed and may do everything. For a developer's machine."""

    def __init__(self, identity: IdentitySection) -> None:
        self._identity = identity

    def principal(self, presented: Credentials) -> Principal | None:
        named = [
            single(presented.headers, name) for name in (self._identity.user_header, self._identity.tenant_header)
        ]
        user, tenant = (None if value is None else accept_optional_name(value) for value in named)
        if user is None or tenant is None:
            raise unauthenticated_error()
        return _principal(Means.NONE, tenant, user, frozenset({PrincipalRole.ADMIN}))


def _principal(means: Means, tenant: str, user: str, roles: frozenset[PrincipalRole]) -> Principal:
    if LOST in user or LOST in tenant:
        raise unauthenticated_error()
    return Principal(tenant, user, roles, means, f"{means}\0{tenant}\0{user}")


def _words(given: Any) -> list[str]:
    """The words of a claim or header: a list, or text separated by commas and blanks."""
    if isinstance(given, str):
        return given.replace(",", " ").split()
    return [one for one in given if isinstance(one, str)] if isinstance(given, list) else []


def _projects_in(values: Sequence[str]) -> tuple[str, ...]:
    """The projects in a header: a JSON list, as Envoy writes one of its metadata, or names separated by commas."""
    if len(values) != 1:
        return ()  # sent twice, it may be the client's
    try:
        listed = msgspec.json.decode(values[0].encode("utf-8", "surrogatepass"), type=list[Any])
    except (msgspec.DecodeError, UnicodeError):
        listed = [name.strip(" \t") for name in values[0].split(",")]
    return tuple(name for name in names_in(listed) if LOST not in name)


def _key_in(authorization: str) -> str:
    token = bearer(authorization)
    return token if token.startswith(KEY_PREFIX) else ""


def key_hash(key: str) -> str:
    """The hash for the key file, 64 hex digits. A key is 32 random bytes, so a fast hash is safe."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


# Static API keys: hashed in a YAML file, read again when it changes.
#
# keys:
#   - {id: ops, sha256: 64 hex digits, tenant: acme, user: "", roles: [admin]}

log = logger(__name__)

MAX_KEYS = 1_000
_HASH_DIGITS = 64
Changes = Callable[[Path], AsyncGenerator[object]]  # yields whenever the file may have changed


class KeyEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key's entry in the file."""

    id: str
    sha256: str
    tenant: str = ""
    user: str = ""  # empty: the caller names a user in each request
    roles: tuple[PrincipalRole, ...] = (PrincipalRole.USER,)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keys: tuple[KeyEntry, ...]


async def changes_of(path: Path) -> AsyncGenerator[object]:
    """Watch the directory, because files are often replaced by name, in Kubernetes through a symlink."""
    from watchfiles import awatch  # noqa: PLC0415 - only where keys are configured

    async for _ in awatch(path.parent, recursive=False):
        yield None


class ApiKeys:
    """Implements KeyReader. Entering reads and watches the file; an unreadable or faulty file leaves the keys
    unchanged."""

    def __init__(self, path: Path, changes: Changes = changes_of) -> None:
        self._path = path
        self._changes = changes
        self._holders: tuple[tuple[str, KeyHolder], ...] = ()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Read the file. ConfigurationError with every fault."""
        self._holders = await self._read()
        self._task = asyncio.create_task(self._follow(), name="api keys")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def holder(self, key: str) -> KeyHolder | None:
        """Compare with every key, so that the duration reveals nothing."""
        if not key.startswith(KEY_PREFIX):
            return None
        shown, found = key_hash(key).encode(), None
        for known, holder in self._holders:
            if hmac.compare_digest(known.encode(), shown):
                found = holder
        return found

    async def _follow(self) -> None:
        async with aclosing(self._changes(self._path)) as changes:
            async for _ in changes:
                try:
                    self._holders = await self._read()
                except ConfigurationError as error:
                    log.warning("api.keys_unusable", faults=len(error.faults), held=len(self._holders))
                else:
                    log.info("api.keys_read", held=len(self._holders))

    async def _read(self) -> tuple[tuple[str, KeyHolder], ...]:
        try:
            text = await asyncio.to_thread(self._path.read_text, encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                [f"api.keys_file: {self._path} cannot be read: {type(error).__name__}"]
            ) from error
        entries = parse_keys(text)
        return tuple(
            (entry.sha256.lower(), KeyHolder(entry.id, entry.tenant, entry.user, frozenset(entry.roles)))
            for entry in entries
        )


def parse_keys(text: str) -> Sequence[KeyEntry]:
    """The entries of a key file; ConfigurationError with every fault."""
    try:
        entries = msgspec.convert(yaml.safe_load(text), _File).keys
    except (yaml.YAMLError, msgspec.ValidationError, RecursionError) as error:
        detail = str(error) if isinstance(error, msgspec.ValidationError) else "no YAML"
        raise ConfigurationError([f"api.keys_file: {detail}"]) from None
    if len(entries) > MAX_KEYS:
        raise ConfigurationError([f"api.keys_file: {len(entries)} keys are more than {MAX_KEYS}"])
    faults = [f"keys[{at}].{fault}" for at, entry in enumerate(entries) for fault in _faults(entry)]
    ids = Counter(entry.id for entry in entries)
    faults += [f"keys: the id {one!r} is there twice" for one, times in sorted(ids.items()) if times > 1]
    if faults:
        raise ConfigurationError([f"api.keys_file: {fault}" for fault in faults])
    return entries


def _faults(entry: KeyEntry) -> list[str]:
    faults = []
    if not accept_name(entry.id):
        faults.append("id: expected a printable name of 1 to 256 bytes")
    digits = entry.sha256.lower()
    if len(digits) != _HASH_DIGITS or digits.strip("0123456789abcdef"):
        faults.append("sha256: expected 64 hex digits, the hash of the key")
    faults += [
        f"{name}: expected a printable name of at most 256 bytes"
        for name in ("tenant", "user")
        if accept_optional_name(getattr(entry, name)) is None
    ]
    if not entry.user and entry.roles == (PrincipalRole.USER,):
        faults.append("user: is missing; only admins and auditors act for others")
    if not entry.roles:
        faults.append("roles: expected user, admin or auditor")
    return faults


# Admission of a call: the caller, the rate limit, and the memories that the caller may reach.

# A header or gRPC metadata key that names shared memories, for callers that may reach other users' memories:
# `project:NAME`, percent-encoded beyond ASCII; `tenant` for the caller's tenant; `all` for all tenants.
SHARED_HEADER = "x-memory-shared"
_OPERATORS = "this is for operators: admins whose credentials are of no single tenant"
NamesUser = Callable[[str, str], str]  # (tenant, user) to the stored name of the user, which may be hashed


class CallAdmission:
    def __init__(self, authenticator: Authenticator, rates: TokenBuckets, names_user: NamesUser) -> None:
        self._authenticator, self._rates, self._names_user = authenticator, rates, names_user

    def identify(self, presented: Credentials) -> Principal:
        """The caller. Counts no call."""
        return self._authenticator.principal(presented)

    def principal(self, presented: Credentials) -> Principal:
        """The caller. RefusedError for unknown callers and above the rate limit."""
        principal = self._authenticator.principal(presented)
        wait = self._rates.take(principal.name)
        if wait is not None:
            raise RefusedError(
                grpc.StatusCode.RESOURCE_EXHAUSTED, ErrorReason.TOO_MANY_CALLS, "too many calls", retry_after=wait
            )
        return principal

    def call(self, method: str, principal: Principal, user: str, shared: Sequence[str] = ()) -> Call:
        """Admit a call for *user* (empty: the caller) or for *shared* memories (values of SHARED_HEADER).

        RefusedError without permission. It looks up no user, so the answer does not reveal which users exist."""
        if METHODS[method] is Access.OPERATE:
            return _operating(method, principal)
        if shared:
            return self._admit_shared(method, principal, user, shared)
        if user and not accept_name(user):
            raise bad_request(("user_id", "at most 256 bytes of printable characters"))
        if not user and not principal.user:
            raise bad_request(("user_id", "whose memories; these credentials are of no single user"))
        wanted = user or principal.user
        own = bool(principal.user) and wanted in {
            principal.user, self._names_user(principal.tenant, principal.user),
        }  # fmt: skip
        if not may(principal, METHODS[method], Whose.OWN if own else Whose.OTHERS):
            raise RefusedError(
                grpc.StatusCode.PERMISSION_DENIED,
                ErrorReason.NOT_ALLOWED,
                "these credentials only look" if METHODS[method] is Access.WRITE and own else "not yours",
            )
        named = principal.user if own else wanted
        owner = Owner(principal.tenant, self._names_user(principal.tenant, named))
        return Call(method, principal, owner, own)

    def _admit_shared(self, method: str, principal: Principal, user: str, shared: Sequence[str]) -> Call:
        """Members of a project list the memories that recall gives them, and no more. Callers that may reach other
        users' memories manage shared ones, and with credentials of no tenant those of all tenants."""
        named = shared[0].strip() if len(shared) == 1 else ""
        kind, _, encoded = named.partition(":")
        project = unquote(encoded)
        if user:
            raise bad_request(("user_id", f"stands instead of {SHARED_HEADER}, not beside it"))
        if named == "tenant":
            owner = Owner.of_everyone(principal.tenant)
        elif named == "all":
            owner = Owner.of_everyone()
        elif kind == "project" and accept_name(project):
            owner = Owner.of_project(principal.tenant, project)
        else:
            raise bad_request((SHARED_HEADER, "project:NAME, tenant or all"))
        manages = may(principal, METHODS[method], Whose.OTHERS)
        member = not manages and method == "ListMemories" and owner.project in principal.projects
        if not (manages or member) or (named == "all" and principal.tenant):
            raise RefusedError(grpc.StatusCode.PERMISSION_DENIED, ErrorReason.NOT_ALLOWED, "not yours")
        return Call(method, principal, owner, own=False, member=member)


def _operating(method: str, principal: Principal) -> Call:
    """Admit an operator's call. The server belongs to all tenants, so a tenant's credentials do not suffice."""
    if principal.tenant or not may(principal, METHODS[method], Whose.OWN):
        raise RefusedError(grpc.StatusCode.PERMISSION_DENIED, ErrorReason.NOT_ALLOWED, _OPERATORS)
    return Call(method, principal, Owner(principal.tenant, principal.user), own=True)
