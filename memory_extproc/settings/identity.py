"""Settings of caller identity, and of shared memories."""

from __future__ import annotations

from datetime import timedelta
from functools import cached_property
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr

from memory_extproc.errors import ConfigurationError
from memory_extproc.safety.policy import (
    BlockPatterns,
    Identifiers,
    SecretClass,
    SecretPolicy,
    SensitiveCategory,
    StorageRules,
)
from memory_extproc.settings.types import Duration, Header, OptionalHeader, OptionalUrl, Positive, Section

HASH_KEY_BYTES = 16  # fewer and the keyed hash can be undone by trying keys

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]


class Signed(Section):
    """Verification of a token. By default none is trusted: `given` is false."""

    jwks_file: str = Field("", description="file with the public keys (JWKS); reloaded when it changes")
    jwks_url: OptionalUrl = Field(
        "", description="URL of the public keys (JWKS), instead of a file; https, or http on loopback"
    )
    issuer: str = Field("", description="required value of the claim iss")
    audience: str = Field("", description="required value of the claim aud")
    algorithms: tuple[Algorithm, ...] = Field(
        ("RS256", "ES256"),
        min_length=1,
        description="accepted signature algorithms; none and shared-key algorithms cannot be chosen",
    )
    leeway: Duration = Field(timedelta(seconds=30), description="accepted clock difference for exp, nbf and iat")
    refresh: Positive = Field(
        timedelta(minutes=5), description="interval at which the keys are read again, in the background"
    )

    @property
    def is_set(self) -> bool:
        return bool(self.jwks_file or self.jwks_url)


class Jwt(Signed):
    header: Header = Field(
        "authorization", description="header that carries the token, with or without the prefix Bearer"
    )
    user_claim: str = Field(
        "sub", min_length=1, description="claim that names the user; dots reach into nested objects"
    )
    tenant_claim: str = Field(
        "", description="claim that names the tenant; empty: every user belongs to one unnamed tenant"
    )
    projects_claim: str = Field(
        "", description="claim that lists the projects of which the caller is a member; empty: no projects"
    )


def _metadata_path(value: str) -> str:
    namespace, _, keys = value.partition(":")
    if value and not (namespace and keys):
        raise ValueError("expected namespace:key.key, such as envoy.filters.http.jwt_authn:jwt.sub")
    return value


Metadata = Annotated[str, AfterValidator(_metadata_path)]


class IdentitySection(Section):
    user_header: OptionalHeader = Field(
        "x-authz-user-id",
        description="header with the user id, set by a trusted filter that runs before the sidecar",
    )
    tenant_header: OptionalHeader = Field(
        "x-authz-tenant-id", description="header with the tenant; memories belong to the pair (tenant, user)"
    )
    project_header: OptionalHeader = Field(
        "x-memory-project", description="header that restricts a request to the memories of one project"
    )
    session_header: OptionalHeader = Field(
        "x-session-id",
        description="header that joins requests into one conversation; without it, conversations are recognised "
        "by their messages",
    )
    metadata: Metadata = Field(
        "",
        description="place of the user id in Envoy's dynamic metadata, as namespace:key.key; used instead of "
        "the header",
    )
    metadata_tenant: Metadata = Field(
        "",
        description="place of the tenant in Envoy's dynamic metadata; empty: every user belongs to one unnamed "
        "tenant",
    )
    metadata_projects: Metadata = Field(
        "", description="place in Envoy's dynamic metadata of the list of projects of which the caller is a member"
    )
    jwt: Jwt = Field(
        Jwt(),
        description="take the user from a claim of a token that the sidecar verifies; used instead of the header",
    )
    trust_body: bool = Field(
        default=False,
        description="true: take the user from memory_context.user_id in the body if the header is absent",
    )
    strip_headers: bool = Field(
        default=False, description="true: remove the identity headers from requests to the upstream"
    )
    people_only: str = Field(
        "", description="glob of user ids that have memory, such as *@example.com; empty: all user ids"
    )

    @property
    def headers(self) -> tuple[str, ...]:
        """The configured identity headers."""
        names = (self.user_header, self.tenant_header, self.project_header, self.session_header)
        return tuple(name for name in names if name)


class ProjectScope(Section):
    recall: bool = Field(
        default=False, description="true: requests of a member also search the memories that the project shares"
    )
    learn: bool = Field(
        default=False,
        description="true: statements in a request that names a project are stored as the project's, not as the "
        "caller's",
    )
    most: int = Field(
        4,
        ge=1,
        le=16,
        description="maximum number of projects searched for a request that names none; the first ones listed "
        "are used",
    )


class GlobalScope(Section):
    recall: bool = Field(
        default=False, description="true: every request also searches the memories that an operator provides"
    )
    reach: Literal["tenant", "all"] = Field(
        "tenant",
        description="tenant: each tenant has its own set of global memories; all: one set for the callers of "
        "every tenant",
    )


class Scopes(Section):
    project: ProjectScope = Field(
        ProjectScope(), description="memories shared among the members of a project; membership is always verified"
    )
    global_: GlobalScope = Field(
        GlobalScope(),
        alias="global",
        description="memories that an operator provides for everyone; nothing is learned into them",
    )


# Settings of privacy: storable text, consent, and encryption at rest.

ConsentDefault = Literal["opt_out", "opt_in"]


def _readable(pattern: str) -> str:
    try:
        BlockPatterns((pattern,))
    except ConfigurationError as error:
        raise ValueError("; ".join(error.faults)) from error
    return pattern


BlockList = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_readable)], ...],
    Field(max_length=100),
]


class Privacy(Section):
    hash_user_ids: bool = Field(default=False, description="true: store a keyed hash in place of every user id")
    hash_key: SecretStr = Field(
        SecretStr(""),
        description="secret key of 16 bytes or more for hash_user_ids; if it is lost, stored memories can no "
        "longer be assigned to their users",
    )
    hash_key_file: str = Field("", description="file that holds the hash key")
    encrypt_content: bool = Field(
        default=False,
        description="true: encrypt stored texts, in Milvus and in the journal, with one key per caller",
    )
    master_key_file: str = Field(
        "",
        description="file of the master keys that encrypt the callers' keys, one per line; `memory-extproc keys "
        "new` prints one",
    )
    keys_file: str = Field(
        "",
        description="file that stores the encrypted callers' keys; empty: keys.db under data_dir, or Redis if "
        "coordination.url is set",
    )
    consent: ConsentDefault = Field(
        "opt_out",
        description="policy for callers who made no choice; opt_out: memory is on until they decline; opt_in: "
        "memory is off until they agree",
    )
    consent_of: dict[str, ConsentDefault] = Field(
        {}, description="consent policy of individual tenants, by name", examples=[{"acme": "opt_in"}]
    )
    consent_fresh: Positive = Field(
        timedelta(seconds=5),
        description="time within which a choice made at one replica takes effect at the others",
    )
    consent_grace: Duration = Field(
        timedelta(minutes=1),
        description="time for which a known consent counts while the consent store is unreachable; after it, "
        "memory is off",
    )
    identifiers: Identifiers = Field(
        Identifiers.KEEP,
        description="treatment of mail addresses, phone numbers, national ids and street addresses: keep them, "
        "mask them, or drop the sentence",
    )
    sensitive: frozenset[SensitiveCategory] = Field(
        frozenset({SensitiveCategory.DIET}),
        description="special categories that may be learned without the caller asking for it: health, religion, "
        "politics, sexuality, ethnicity, union, crime, biometry, diet (includes allergies, except "
        "to medicines). Statements of other special categories are stored only on request",
        examples=[["diet", "health"]],
    )
    secrets: dict[SecretClass, SecretPolicy] = Field(
        {},
        description="treatment of each class of secrets in stored text: mask (also the default for classes not "
        "listed), drop (remove the sentence) or keep. Classes: api_key, token, password, "
        "private_key, code (PINs), card_number, bank_account",
        examples=[{"code": "keep"}],
    )
    never_store: BlockList = Field(
        (),
        description="regular expressions (RE2 syntax); a message, fact or memory that matches one is not stored",
        examples=[["(?i)project nightfall"]],
    )
    never_inject: BlockList = Field(
        (),
        description="regular expressions (RE2 syntax); a memory that matches one is never put into a prompt",
        examples=[["(?i)salary"]],
    )
    quarantine: bool = Field(
        default=True,
        description="true: put text that gives orders to an assistant into quarantine; false: store it like any "
        "other memory",
    )

    @cached_property
    def storage_rules(self) -> StorageRules:
        return StorageRules(self.secrets, BlockPatterns(self.never_store))

    @cached_property
    def injection_patterns(self) -> BlockPatterns:
        return BlockPatterns(self.never_inject)

    @property
    def key(self) -> bytes | None:
        """The key that hashes user ids; None unless they are hashed."""
        return self.hash_key.get_secret_value().encode() if self.hash_user_ids else None
