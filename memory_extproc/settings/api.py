"""Settings of the memory API: authorization, authentication and the audit log."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from enum import StrEnum
from typing import Literal

from pydantic import Field, SecretStr

from memory_extproc.model.owner import accept_optional_name
from memory_extproc.settings.identity import IdentitySection, Signed
from memory_extproc.settings.traffic import Listen, Tls
from memory_extproc.settings.types import (
    OptionalHeader,
    OptionalUrl,
    Positive,
    Section,
    Size,
    on_loopback,
)

MIB = 1 << 20
SECRET_BYTES = 16  # at least
Way = Literal["mtls", "jwt", "api_key", "trusted_proxy", "none"]


class PrincipalRole(StrEnum):
    USER = "user"  # the caller's own memories
    ADMIN = "admin"  # memories of any user of the tenant
    AUDITOR = "auditor"  # reads memories of any user of the tenant, changes nothing


class ApiTls(Section):
    cert: str = Field("", description="PEM file with the API server's certificate chain; reloaded when it changes")
    key: str = Field("", description="PEM file with the certificate's private key")
    client_ca: str = Field(
        "",
        description="PEM file of the authorities that sign client certificates; if set, every client must "
        "present one",
    )

    @property
    def is_set(self) -> bool:
        return bool(self.cert or self.key)


class ApiJwt(Signed):
    user_claim: str = Field(
        "sub", min_length=1, description="claim that names the user; dots reach into nested objects"
    )
    tenant_claim: str = Field(
        "", description="claim that names the tenant; empty: every user belongs to one unnamed tenant"
    )
    roles_claim: str = Field(
        "",
        description="claim that lists the caller's roles (user, admin, auditor), as a list or separated by "
        "spaces; empty: every caller has the role user",
    )


class TrustedProxySection(Section):
    roles_header: OptionalHeader = Field(
        "",
        description="header that lists the caller's roles (user, admin, auditor); empty: every caller has the "
        "role user. The gateway must set or remove this header in every request, or callers can "
        "grant themselves roles",
    )
    projects_header: OptionalHeader = Field(
        "",
        description="header that lists the projects of which the caller is a member, as a JSON list or separated "
        "by commas, for the memories that they share (scopes.project.recall); empty: not read. The gateway must "
        "set or remove it in every request; envoy-config sets it from identity.metadata_projects",
    )
    names: tuple[str, ...] = Field(
        (),
        description="names or globs (SAN or common name) of trusted proxies on other machines, which must "
        "present client certificates",
    )


class CertificateSection(Section):
    name: str = Field(min_length=1, description="glob over the certificate's names (SAN, else common name)")
    tenant: str = Field("", description="tenant of the certificate's owner")
    user: str = Field("", description="user id of the certificate's owner; empty: the certificate's name")
    roles: tuple[PrincipalRole, ...] = Field(
        (PrincipalRole.USER,), min_length=1, description="roles of the certificate's owner"
    )


class AuditSection(Section):
    enabled: bool = Field(
        default=True, description="write one line per API call: caller, operation, affected user and result"
    )
    directory: str = Field("", description="directory of the log; empty: audit under data_dir")
    file_bytes: Size = Field(
        64 * MIB, ge=64 << 10, description="size at which a new file is started; old files are never deleted"
    )
    names: Literal["hashed", "plain"] = Field(
        "hashed", description="how user ids are written: as keyed hashes or in plain text"
    )


class RateSection(Section):
    per_second: float = Field(50.0, gt=0, le=1_000_000, description="average calls per second of one caller")
    burst: int = Field(200, ge=1, le=1_000_000, description="calls that one caller may make at once")


class Console(Section):
    page: bool = Field(
        default=False,
        description="true: serve the page at /console on listen.console, where people see, correct and forget "
        "their memories and operators look after the service",
    )
    chats: OptionalUrl = Field(
        "",
        description="base URL of an OpenAI-compatible API behind Envoy, such as http://127.0.0.1:8888/v1, for "
        "the chat box on the page; for demos only: the page sends the reader's name in "
        "identity.user_header, as a gateway would",
    )
    chat_model: str = Field("demo-llm", description="model name that the chat box sends")
    hosts: tuple[str, ...] = Field(
        (),
        description="host names that listen.console accepts besides IP addresses and localhost; pages of these "
        'hosts may call it from a browser. "*" accepts any, for use behind a gateway that checks '
        "the host",
    )


class Api(Section):
    auth: tuple[Way, ...] = Field(
        (),
        description="accepted ways to authenticate: mtls, jwt, api_key, trusted_proxy (identity.user_header set "
        "by a gateway on this machine), none; several may be listed. Empty: jwt if identity.jwt has "
        "keys, else trusted_proxy",
    )
    insecure: bool = Field(
        default=False,
        description="true: allow the API to listen beyond loopback without TLS, or with auth none; anyone who "
        "can reach the port can then read every memory",
    )
    tls: ApiTls = Field(ApiTls(), description="TLS of the API server; empty: the same as tls")
    trusted_proxy: TrustedProxySection = Field(TrustedProxySection(), description="settings for auth trusted_proxy")
    jwt: ApiJwt = Field(ApiJwt(), description="settings for auth jwt; without keys: the same as identity.jwt")
    keys_file: str = Field("", description="for auth api_key: YAML file of hashed keys; reloaded when it changes")
    certificates: tuple[CertificateSection, ...] = Field(
        (), description="for auth mtls: which certificate belongs to which user; the first match counts"
    )
    rate: RateSection = Field(RateSection(), description="rate limit per caller; calls beyond it are refused")
    timeout: Positive = Field(
        timedelta(seconds=30),
        description="maximum duration of a call, besides the client's own deadline; streaming calls are exempt",
    )
    concurrency: int = Field(
        32, ge=1, le=10_000, description="calls processed at the same time; further calls wait"
    )
    secret: SecretStr = Field(
        SecretStr(""),
        description="secret of 16 bytes or more that signs page tokens and the audit log; must be the same in "
        "all replicas. Empty: generated under data_dir",
    )
    secret_file: str = Field("", description="file that holds the secret")
    audit: AuditSection = Field(AuditSection(), description="the audit log")
    error_body: Literal["status", "semantic_router"] = Field(
        "status",
        description='format of an HTTP error body: google.rpc.Status, or `{"error": {"code": …}}` as clients of '
        "the vLLM semantic router expect",
    )


def ways_of(api: Api, identity: IdentitySection) -> tuple[Way, ...]:
    """The ways in effect."""
    return api.auth or (("jwt",) if identity.jwt.is_set else ("trusted_proxy",))


def api_is_shut(listen: Listen, tls: Tls, api: Api, identity: IdentitySection) -> Iterator[str]:
    """Faults that would expose the API to unauthenticated callers."""
    ways = ways_of(api, identity)
    for key, address in (("api", listen.api), ("console", listen.console)):
        if on_loopback(address) or api.insecure:
            continue
        if not (api.tls.is_set or tls.is_set):
            yield (
                f"listen.{key}: {address} is off loopback, and credentials and memories would pass in plain sight: "
                "give api.tls, or write api.insecure: true"
            )
        if "none" in ways:
            why = f"takes everybody's word, and {address} is off loopback"
            yield f"api.auth: none {why}: api.insecure: true says so"
    if bool(api.tls.cert) != bool(api.tls.key):
        yield "api.tls: cert and key belong together"
    if api.tls.client_ca and not api.tls.is_set:
        yield "api.tls.client_ca: without cert and key it does nothing"
    known = bool(api.tls.client_ca if api.tls.is_set else tls.client_ca)
    for needed, path in (("mtls" in ways, "api.auth"), (bool(api.trusted_proxy.names), "api.trusted_proxy.names")):
        if needed and not known:
            yield f"{path}: needs client certificates, and no client_ca is given in api.tls or tls"


def api_ways_are_whole(api: Api, identity: IdentitySection) -> Iterator[str]:
    """Each configured authentication method is complete, and an unused method has no settings."""
    ways = ways_of(api, identity)
    for twice in sorted({way for way in api.auth if api.auth.count(way) > 1}):
        yield f"api.auth: {twice} is there twice"
    needs = (
        (
            "trusted_proxy",
            identity.user_header or not api.auth,
            "api.auth: trusted_proxy reads identity.user_header, which is empty",
        ),
        ("api_key", api.keys_file, "api.keys_file: auth api_key needs one"),
        ("mtls", api.certificates, "api.certificates: auth mtls needs at least one"),
        ("jwt", api.jwt.is_set or identity.jwt.is_set, "api.jwt: auth jwt needs keys: give jwks_file or jwks_url"),
    )
    for way, there, fault in needs:
        if way in ways and not there:
            yield fault
    given = (
        ("api_key", "keys_file", bool(api.keys_file)),
        ("mtls", "certificates", bool(api.certificates)),
        ("jwt", "jwt", api.jwt != ApiJwt()),
        ("trusted_proxy", "trusted_proxy", api.trusted_proxy != TrustedProxySection()),
    )
    for way, key, there in given:
        if there and way not in ways:
            yield f"api.{key}: is given, but api.auth does not name {way}"


def api_names_are_sound(api: Api) -> Iterator[str]:
    secret = api.secret.get_secret_value()
    if secret and len(secret.encode()) < SECRET_BYTES:
        yield f"api.secret: needs {SECRET_BYTES} bytes or more"
    for at, entry in enumerate(api.certificates):
        if accept_optional_name(entry.user) is None:
            yield f"api.certificates[{at}].user: expected a printable name of at most 256 bytes"
        if accept_optional_name(entry.tenant) is None:
            yield f"api.certificates[{at}].tenant: expected a printable name of at most 256 bytes"


def api_notices(listen: Listen, tls: Tls, api: Api, identity: IdentitySection, replicas: str) -> Iterator[str]:
    """Warnings for the operator; *replicas*: coordination.url."""
    if "none" in ways_of(api, identity):
        yield (
            f"api.auth: none: WHOEVER REACHES {listen.api} READS, CHANGES AND FORGETS EVERYBODY'S MEMORIES; "
            "give it another way to know its callers"
        )
    elif api.insecure and not on_loopback(listen.api) and not (api.tls.is_set or tls.is_set):
        yield f"api.insecure: whoever listens on the way to {listen.api} reads memories and credentials"
    if ways_of(api, identity) == ("trusted_proxy",) and not identity.user_header:
        yield "api.auth: nobody can call the memory API: identity.user_header, which a gateway would set, is empty"
    if replicas and not api.secret.get_secret_value():
        yield "api.secret: is empty: page tokens of one replica mean nothing to another"
