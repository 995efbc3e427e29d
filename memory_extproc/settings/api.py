"""The memory API: who may call it, how it is proved, and what is written down about it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Literal

from pydantic import Field, SecretStr

from memory_extproc.api.principal import SECRET_BYTES, CertificateHolder, Role
from memory_extproc.request.identity import optional
from memory_extproc.settings.identity import IdentitySection, Signed
from memory_extproc.settings.traffic import Listen, Tls
from memory_extproc.settings.types import (
    Duration,
    OptionalHeader,
    OptionalUrl,
    Positive,
    Section,
    Size,
    on_loopback,
)

MIB = 1 << 20
Way = Literal["mtls", "jwt", "api_key", "trusted_proxy", "none"]


class ApiTls(Section):
    cert: str = Field("", description="PEM file of the API's certificate chain; reread when it changes")
    key: str = Field("", description="PEM file of its key")
    client_ca: str = Field(
        "", description="PEM file of the authorities of clients' certificates; given, each client must show one"
    )

    @property
    def given(self) -> bool:
        return bool(self.cert or self.key)


class ApiJwt(Signed):
    user_claim: str = Field("sub", min_length=1, description="claim that names the user; dots lead into objects")
    tenant_claim: str = Field("", description="claim that names the tenant; empty: all are of one unnamed tenant")
    roles_claim: str = Field(
        "", description="claim with the roles user, admin, auditor, a list or words; empty: all are users"
    )
    leeway: Duration = Field(timedelta(seconds=30), description="by which clocks may differ")
    refresh: Positive = Field(timedelta(minutes=5), description="how often keys are read anew, in the background")


class TrustedProxySection(Section):
    roles_header: OptionalHeader = Field(
        "",
        description="header with the roles user, admin, auditor; empty: all are users. The gateway must set or "
        "remove it in every request, or callers give themselves roles",
    )
    names: tuple[str, ...] = Field(
        (), description="names or globs (SAN or common name) of proxies elsewhere, with client certificates"
    )


class CertificateSection(Section):
    name: str = Field(min_length=1, description="glob over the certificate's names (SAN, else common name)")
    tenant: str = Field("", description="the tenant of whoever has it")
    user: str = Field("", description="the user; empty: the certificate's name")
    roles: tuple[Role, ...] = Field((Role.USER,), min_length=1, description="what they may do")

    def holder(self) -> CertificateHolder:
        """As api/authenticate.py takes it."""
        return CertificateHolder(name=self.name, tenant=self.tenant, user=self.user, roles=frozenset(self.roles))


class AuditSection(Section):
    enabled: bool = Field(default=True, description="a line for each call; who, what, whose and how it ended")
    directory: str = Field("", description="where; empty: audit under data_dir")
    file_bytes: Size = Field(64 * MIB, ge=64 << 10, description="of a file, then another is begun; none is deleted")
    names: Literal["hashed", "plain"] = Field("hashed", description="of users: keyed hashes, or as they are")


class RateSection(Section):
    per_second: float = Field(50.0, gt=0, le=1_000_000, description="calls of one caller, on average")
    burst: int = Field(200, ge=1, le=1_000_000, description="calls of one caller at once")


class Console(Section):
    page: bool = Field(
        default=False,
        description="true: a page at /console of listen.console, for people to see, correct and forget what is "
        "remembered of them, and for operators",
    )
    chats: OptionalUrl = Field(
        "",
        description="an OpenAI-compatible API behind Envoy, such as http://127.0.0.1:8888/v1, for a chat box on "
        "the page; for a demo: it names the reader by identity.user_header, as a gateway would",
    )
    chat_model: str = Field("demo-llm", description="the model that the chat box names")
    hosts: tuple[str, ...] = Field(
        (),
        description="names that listen.console answers to, beside addresses and localhost, and whose pages may "
        'call it from a browser; "*": any, where a gateway in front checks them',
    )


class Api(Section):
    auth: tuple[Way, ...] = Field(
        (),
        description="how callers prove who they are: mtls, jwt, api_key, trusted_proxy (identity.user_header from "
        "a gateway on this machine), none; several at once. Empty: as identity: jwt where that has keys, else "
        "trusted_proxy",
    )
    insecure: bool = Field(
        default=False, description="true: off loopback without TLS, or with auth none; whoever reaches it reads all"
    )
    tls: ApiTls = Field(ApiTls(), description="of the API alone; empty: as tls")
    trusted_proxy: TrustedProxySection = Field(TrustedProxySection(), description="auth trusted_proxy")
    jwt: ApiJwt = Field(ApiJwt(), description="auth jwt; without keys: as identity.jwt")
    keys_file: str = Field("", description="auth api_key: YAML file of hashed keys; reread when it changes")
    certificates: tuple[CertificateSection, ...] = Field(
        (), description="auth mtls: who has which certificate; the first that fits"
    )
    rate: RateSection = Field(RateSection(), description="beyond it calls are refused")
    timeout: Positive = Field(
        timedelta(seconds=30), description="of a call, beside its own deadline; not of streams"
    )
    concurrency: int = Field(32, ge=1, le=10_000, description="calls worked on at the same time; others wait")
    secret: SecretStr = Field(
        SecretStr(""),
        description="signs page tokens and the audit log; secret, 16 bytes or more, the same in all replicas; "
        "empty: made under data_dir",
    )
    secret_file: str = Field("", description="file that holds the secret")
    audit: AuditSection = Field(AuditSection(), description="the audit log")
    error_body: Literal["status", "semantic_router"] = Field(
        "status",
        description='of a refused call over HTTP: a google.rpc.Status, or `{"error": {"code": …}}` as clients of '
        "the vLLM semantic router read it",
    )


def ways_of(api: Api, identity: IdentitySection) -> tuple[Way, ...]:
    """The ways in effect."""
    return api.auth or (("jwt",) if identity.jwt.given else ("trusted_proxy",))


def jwt_of(api: Api, identity: IdentitySection) -> ApiJwt:
    """The tokens in effect."""
    if api.jwt.given:
        return api.jwt
    shared = identity.jwt.model_dump(include=set(ApiJwt.model_fields))
    return ApiJwt(**{**shared, "roles_claim": api.jwt.roles_claim})


# --- rules -----------------------------------------------------------------------------------------
def api_is_shut(listen: Listen, tls: Tls, api: Api, identity: IdentitySection) -> Iterator[str]:
    """What would let in whom nobody meant to."""
    ways = ways_of(api, identity)
    for key, address in (("api", listen.api), ("console", listen.console)):
        if on_loopback(address) or api.insecure:
            continue
        if not (api.tls.given or tls.given):
            yield (
                f"listen.{key}: {address} is off loopback, and credentials and memories would pass in plain sight: "
                "give api.tls, or write api.insecure: true"
            )
        if "none" in ways:
            why = f"takes everybody's word, and {address} is off loopback"
            yield f"api.auth: none {why}: api.insecure: true says so"
    if bool(api.tls.cert) != bool(api.tls.key):
        yield "api.tls: cert and key belong together"
    if api.tls.client_ca and not api.tls.given:
        yield "api.tls.client_ca: without cert and key it does nothing"
    known = bool(api.tls.client_ca if api.tls.given else tls.client_ca)
    for needed, path in (("mtls" in ways, "api.auth"), (bool(api.trusted_proxy.names), "api.trusted_proxy.names")):
        if needed and not known:
            yield f"{path}: needs client certificates, and no client_ca is given in api.tls or tls"


def api_ways_are_whole(api: Api, identity: IdentitySection) -> Iterator[str]:
    """Each way that is asked for can work, and nothing is given for one that is not."""
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
        ("jwt", api.jwt.given or identity.jwt.given, "api.jwt: auth jwt needs keys: give jwks_file or jwks_url"),
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
        if optional(entry.user) is None:
            yield f"api.certificates[{at}].user: expected a printable name of at most 256 bytes"
        if optional(entry.tenant) is None:
            yield f"api.certificates[{at}].tenant: expected a printable name of at most 256 bytes"


def api_notices(listen: Listen, tls: Tls, api: Api, identity: IdentitySection, replicas: str) -> Iterator[str]:
    """What an operator should know; *replicas*: coordination.url."""
    if "none" in ways_of(api, identity):
        yield (
            f"api.auth: none: WHOEVER REACHES {listen.api} READS, CHANGES AND FORGETS EVERYBODY'S MEMORIES; "
            "give it another way to know its callers"
        )
    elif api.insecure and not on_loopback(listen.api) and not (api.tls.given or tls.given):
        yield f"api.insecure: whoever listens on the way to {listen.api} reads memories and credentials"
    if ways_of(api, identity) == ("trusted_proxy",) and not identity.user_header:
        yield "api.auth: nobody can call the memory API: identity.user_header, which a gateway would set, is empty"
    if replicas and not api.secret.get_secret_value():
        yield "api.secret: is empty: page tokens of one replica mean nothing to another"
