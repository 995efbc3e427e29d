"""Who a caller is, and with whom they share memories."""

from __future__ import annotations

from datetime import timedelta
from functools import cached_property
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr

from memory_extproc.errors import ConfigurationError
from memory_extproc.request.admission import Everyone, Sharing
from memory_extproc.request.identity import ClaimNames, IdentityOptions, MetadataPath
from memory_extproc.safety.operator_rules import BlockPatterns, SecretClass, SecretPolicy, StorageRules
from memory_extproc.safety.policy import Category, Identifiers
from memory_extproc.settings.types import Duration, Header, OptionalHeader, OptionalUrl, Positive, Section

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]


class Signed(Section):
    """What makes a token one to believe. As it stands nothing does: `given` is false."""

    jwks_file: str = Field("", description="file of the keys (JWKS); reread when it changes")
    jwks_url: OptionalUrl = Field("", description="or where to fetch them; https, or http on loopback")
    issuer: str = Field("", description="iss the token must carry")
    audience: str = Field("", description="aud the token must carry")
    algorithms: tuple[Algorithm, ...] = Field(
        ("RS256", "ES256"), min_length=1, description="signatures that count; never none, never shared keys"
    )

    @property
    def given(self) -> bool:
        return bool(self.jwks_file or self.jwks_url)


class Jwt(Signed):
    header: Header = Field("authorization", description="where the token stands, after Bearer or alone")
    user_claim: str = Field("sub", min_length=1, description="claim that names the user; dots lead into objects")
    tenant_claim: str = Field("", description="claim that names the tenant; empty: all are of one unnamed tenant")
    projects_claim: str = Field(
        "", description="claim that lists the projects the caller is a member of; empty: of none"
    )
    leeway: Duration = Field(timedelta(seconds=30), description="by which clocks may differ")
    refresh: Positive = Field(timedelta(minutes=5), description="how often keys are read anew, in the background")


def _metadata_path(value: str) -> str:
    if value:
        MetadataPath.parse(value)
    return value


Metadata = Annotated[str, AfterValidator(_metadata_path)]


class IdentitySection(Section):
    user_header: OptionalHeader = Field("x-authz-user-id", description="set by a trusted filter before us")
    tenant_header: OptionalHeader = Field(
        "x-authz-tenant-id", description="the owner of a memory is (tenant, user)"
    )
    project_header: OptionalHeader = Field("x-memory-project", description="narrows to one project's memories")
    session_header: OptionalHeader = Field("x-session-id", description="joins turns; else found from their words")
    metadata: Metadata = Field(
        "", description="instead of the header: a place in Envoy's dynamic metadata, namespace:key.key"
    )
    metadata_tenant: Metadata = Field("", description="where the tenant stands there; empty: one unnamed tenant")
    metadata_projects: Metadata = Field(
        "",
        description="where Envoy's dynamic metadata lists the projects that the caller is a member of",
    )
    jwt: Jwt = Field(Jwt(), description="instead of the header: a claim of a token that we verify")
    trust_body: bool = Field(
        default=False, description="true: memory_context.user_id names the caller when the header is absent"
    )
    strip_headers: bool = Field(default=False, description="true: the upstream does not see the identity headers")
    people_only: str = Field("", description="glob of user ids that have memory (*@example.com); empty: all")

    def options(self, hash_key: bytes | None) -> IdentityOptions:
        """As wire/identity.py takes it; *hash_key* replaces user ids by keyed hashes."""
        jwt = self.jwt
        return IdentityOptions(
            user_header=self.user_header,
            tenant_header=self.tenant_header,
            project_header=self.project_header,
            session_header=self.session_header,
            metadata=MetadataPath.parse(self.metadata) if self.metadata else None,
            metadata_tenant=MetadataPath.parse(self.metadata_tenant) if self.metadata_tenant else None,
            metadata_projects=MetadataPath.parse(self.metadata_projects) if self.metadata_projects else None,
            claims=(
                ClaimNames(jwt.header, jwt.user_claim, jwt.tenant_claim, jwt.projects_claim) if jwt.given else None
            ),
            trust_body=self.trust_body,
            people_only=self.people_only,
            hash_key=hash_key,
        )


class ProjectScope(Section):
    recall: bool = Field(default=False, description="true: a member's requests also reach what the project shares")
    learn: bool = Field(
        default=False,
        description="true: what a member says in a request that names it becomes the project's, not theirs",
    )
    most: int = Field(
        4, ge=1, le=16, description="projects searched for a request that names none; the first that are listed"
    )


class GlobalScope(Section):
    recall: bool = Field(default=False, description="true: every request also reaches what an operator put there")
    reach: Literal["tenant", "all"] = Field(
        "tenant",
        description="tenant: each tenant has a set of its own; all: one set for every tenant's callers",
    )


class Scopes(Section):
    project: ProjectScope = Field(
        ProjectScope(), description="memories of a project's members together; membership is always verified"
    )
    global_: GlobalScope = Field(
        GlobalScope(), alias="global", description="an operator's memories for everybody; never learned into"
    )

    def sharing(self) -> Sharing:
        """As wire/sharing.py takes it."""
        return Sharing(
            projects=self.project.recall,
            learns=self.project.learn,
            most_projects=self.project.most,
            everyone=Everyone(self.global_.reach) if self.global_.recall else Everyone.NOBODY,
        )


# --- privacy -----------------------------------------------------------------------------------------
# What may be kept of people's words, with whose consent, and how it rests.

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
    hash_user_ids: bool = Field(default=False, description="true: a keyed hash stands for the user id everywhere")
    hash_key: SecretStr = Field(SecretStr(""), description="16 bytes or more; secret; lost, memories are orphaned")
    hash_key_file: str = Field("", description="file that holds the hash key")
    encrypt_content: bool = Field(
        default=False, description="true: texts rest sealed, in Milvus and the journal, with a key of each caller's"
    )
    master_key_file: str = Field(
        "", description="file of the master keys that wrap those, a line each; `memory-extproc keys new` prints one"
    )
    keys_file: str = Field(
        "", description="where the wrapped keys rest; empty: keys.db under data_dir, or Redis where there is one"
    )
    consent: ConsentDefault = Field(
        "opt_out", description="of who never chose: opt_out: has memory until they say no; opt_in: none until yes"
    )
    consent_of: dict[str, ConsentDefault] = Field(
        {}, description="the same for single tenants, by name", examples=[{"acme": "opt_in"}]
    )
    consent_fresh: Positive = Field(
        timedelta(seconds=5), description="within which a choice made at one replica holds at the others"
    )
    consent_grace: Duration = Field(
        timedelta(minutes=1), description="how long a yes counts while nobody can be asked; then nothing is allowed"
    )
    identifiers: Identifiers = Field(
        Identifiers.KEEP,
        description="mail addresses, phones, national ids, streets: keep; mask; drop their sentence",
    )
    sensitive: frozenset[Category] = Field(
        frozenset({Category.DIET}),
        description="special categories kept though nobody asked for it: health, religion, politics, sexuality, "
        "ethnicity, union, crime, biometry, diet (allergies, but those to medicines); the others are not",
        examples=[["diet", "health"]],
    )
    secrets: dict[SecretClass, SecretPolicy] = Field(
        {},
        description="what becomes of a class of secrets in what is stored: mask (also of classes not named), drop "
        "its sentence, or keep; classes: api_key, token, password, private_key, code (PINs), card_number, "
        "bank_account",
        examples=[{"code": "keep"}],
    )
    never_store: BlockList = Field(
        (),
        description="regular expressions in RE2's syntax: a message, fact or memory that one of them matches is "
        "not stored",
        examples=[["(?i)project nightfall"]],
    )
    never_inject: BlockList = Field(
        (),
        description="the same, for memories that are never put into a prompt",
        examples=[["(?i)salary"]],
    )
    quarantine: bool = Field(
        default=True, description="put what instructs an assistant aside; false: as any memory"
    )

    @cached_property
    def storage_rules(self) -> StorageRules:
        return StorageRules(self.secrets, BlockPatterns(self.never_store))

    @cached_property
    def injection_patterns(self) -> BlockPatterns:
        return BlockPatterns(self.never_inject)

    @property
    def key(self) -> bytes | None:
        """What `IdentitySection.options` takes; None unless user ids are hashed."""
        return self.hash_key.get_secret_value().encode() if self.hash_user_ids else None
