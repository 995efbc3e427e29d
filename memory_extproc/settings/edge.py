"""How requests reach us and who may ask: addresses, TLS, identity, signals, rules, limits, Envoy itself."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from memory_extproc.model import MemoryType, Signals, Switch
from memory_extproc.safety.identifiers import Identifiers
from memory_extproc.safety.sensitive import Category
from memory_extproc.settings.values import (
    Auto,
    Duration,
    Header,
    Listening,
    OptionalHeader,
    OptionalUrl,
    Positive,
    Section,
    Share,
    Size,
)
from memory_extproc.wire.identity import ClaimNames, IdentityOptions, MetadataPath
from memory_extproc.wire.rules import Rule, Then, When
from memory_extproc.wire.sharing import Everyone, Sharing

MIB = 1 << 20
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
InjectAs = Literal["auto", "system_message", "user_suffix"]


class Listen(Section):
    ext_proc: Listening = Field("127.0.0.1:50051", description="gRPC for Envoy: host:port or unix:/path")
    api: Listening = Field("127.0.0.1:50052", description="gRPC of the memory API, with health and reflection")
    http: Listening = Field("0.0.0.0:9190", description="/metrics, /healthz, /readyz; never a person's words")
    insecure: bool = Field(
        default=False,
        description="true: ext_proc may listen off loopback without TLS; whoever reaches it reads memories",
    )


class Tls(Section):
    cert: str = Field("", description="PEM file of the ext_proc server's certificate chain; reread when it changes")
    key: str = Field("", description="PEM file of its key")
    client_ca: str = Field("", description="PEM file of the authorities that sign clients' certificates")
    allowed_names: tuple[str, ...] = Field((), description="names (SAN or common name) a client must have one of")

    @property
    def given(self) -> bool:
        return bool(self.cert or self.key)


class Jwt(Section):
    jwks_file: str = Field("", description="file of the keys (JWKS); reread when it changes")
    jwks_url: OptionalUrl = Field("", description="or where to fetch them; https, or http on loopback")
    issuer: str = Field("", description="iss the token must carry")
    audience: str = Field("", description="aud the token must carry")
    algorithms: tuple[Algorithm, ...] = Field(
        ("RS256", "ES256"), min_length=1, description="signatures that count; never none, never shared keys"
    )
    header: Header = Field("authorization", description="where the token stands, after Bearer or alone")
    user_claim: str = Field("sub", min_length=1, description="claim that names the user; dots lead into objects")
    tenant_claim: str = Field("", description="claim that names the tenant; empty: all are of one unnamed tenant")
    projects_claim: str = Field(
        "", description="claim that lists the projects the caller is a member of; empty: of none"
    )
    leeway: Duration = Field(timedelta(seconds=30), description="by which clocks may differ")
    refresh: Positive = Field(timedelta(minutes=5), description="how often keys are read anew, in the background")

    @property
    def given(self) -> bool:
        return bool(self.jwks_file or self.jwks_url)


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


class SignalsSection(Section):
    fact_headers: tuple[Header, ...] = Field(
        ("x-memory-signal-fact", "x-vsr-matched-fact-check"), description="say: a question of general fact"
    )
    tool_headers: tuple[Header, ...] = Field(("x-memory-signal-tool",), description="say: a call of tools")
    greeting_headers: tuple[Header, ...] = Field(("x-memory-signal-greeting",), description="say: a greeting")
    metadata_namespace: str = Field(
        "", description="Envoy dynamic metadata with the keys fact, tool, greeting; empty: none"
    )


ORIGINS = ("app", "dialect", "model", "route")


def _origin(value: str) -> str:
    name, _, pattern = value.partition("=")
    if name not in ORIGINS or not pattern or len(value.split()) != 1:
        named = ", ".join(f"{each}=" for each in ORIGINS)
        raise ValueError(f"expected one of {named} and a glob without white space, such as route=support-*")
    return value


class RuleSignals(Section):
    fact: bool | None = Field(None, description="as if the router had said so")
    tool: bool | None = Field(None, description="as if the router had said so")
    greeting: bool | None = Field(None, description="as if the router had said so")


class RuleWhen(Section):
    path: str = Field("", description="glob over the path without its query")
    model: str = Field("", description="glob over the request's model, whatever the case")
    route: str = Field("", description="glob over the name of Envoy's route")
    tenant: str = Field("", description="glob over the tenant")
    upstream: str = Field("", description="glob over the name of Envoy's cluster that the request goes to")
    header: dict[Header, str] = Field(default_factory=dict, description="name: glob over one of its values")
    keyword: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (),
        examples=[["salary"]],
        description="any of these whole words or phrases in the caller's last words, whatever the case",
    )

    @model_validator(mode="after")
    def asks_something(self) -> Self:
        if self == RuleWhen.model_construct():
            raise ValueError("asks nothing, so it would match every request: write path: '*' if that is meant")
        return self


class RuleThen(Section):
    retrieve: Switch = Field(Switch.DEFAULT, description="skip: outcome `disabled`, no client can override it")
    store: Switch = Field(Switch.DEFAULT, examples=["skip"], description="skip: nothing is learned")
    compress: Switch = Field(
        Switch.DEFAULT,
        examples=["force"],
        description="skip: never; force: whatever its length; default: as compress",
    )
    threshold: Share | None = Field(None, description="relevance, 0 to 1")
    limit: int | None = Field(None, ge=0, le=100, description="memories in a block at most")
    types: frozenset[MemoryType] | None = Field(None, min_length=1, description="only memories of these types")
    origins: tuple[Annotated[str, AfterValidator(_origin)], ...] = Field(
        (),
        examples=[["route=support-*"]],
        description="only memories that came from one of these: app=, dialect=, model= or route= and a glob",
    )
    shared: bool = Field(default=True, description="false: the caller's own memories alone, nothing shared")
    signals: RuleSignals = Field(RuleSignals(), description="what to take as said by the router")
    inject: InjectAs | None = Field(None, description="as inject.as, for these requests")

    @model_validator(mode="after")
    def sets_something(self) -> Self:
        if self == RuleThen.model_construct():
            raise ValueError("sets nothing")
        return self


class RuleSection(Section):
    when: RuleWhen = Field(description="all that is given must hold")
    then: RuleThen = Field(description="what is set; the first rule that matches decides alone")

    def rule(self) -> Rule:
        """As wire/rules.py takes it."""
        when, then = self.when, self.then
        return Rule(
            When(
                path=when.path,
                model=when.model,
                route=when.route,
                tenant=when.tenant,
                upstream=when.upstream,
                header=when.header,
                keyword=when.keyword,
            ),
            Then(
                retrieve=then.retrieve,
                store=then.store,
                compress=then.compress,
                threshold=then.threshold,
                limit=then.limit,
                types=then.types,
                signals=Signals(then.signals.fact, then.signals.tool, then.signals.greeting),
                inject=then.inject,
                origins=then.origins,
                shared=then.shared,
            ),
        )


class Inject(Section):
    as_: InjectAs = Field(
        "auto",
        alias="as",
        description="auto: by the model's profile; a message of its own; or appended to the user's",
    )
    token_budget: int = Field(512, ge=32, le=100_000, description="estimated tokens of a block at most")
    window: Annotated[int, Field(ge=256)] | Auto = Field(
        "auto", description="tokens of the models' context window; auto: by the model's profile"
    )
    margin: int = Field(
        256, ge=0, le=100_000, description="tokens of the window left free, for what estimates miss"
    )
    unknown_window_budget: int = Field(
        256, ge=0, le=100_000, description="tokens of a block where the model's window is not known"
    )
    replay: bool = Field(
        default=True, description="put a conversation's earlier blocks back where they stood, for prompt caches"
    )
    replay_tokens: int = Field(
        8192, ge=0, le=1_000_000, description="estimated tokens of those at most; beyond it the oldest go"
    )
    replay_keep: Positive = Field(timedelta(days=1), description="how long after its last turn one is known again")
    profile: Literal["off", "always", "when_relevant"] = Field(
        "off",
        description="who the caller is, in a block of its own, once in a conversation; when_relevant: where "
        "memories are injected too",
    )
    profile_tokens: int = Field(256, ge=32, le=10_000, description="estimated tokens of it at most")
    profile_importance: Share = Field(0.7, description="importance, 0 to 1, that a fact needs to be in it")


class Compress(Section):
    enabled: bool = Field(
        default=False,
        description="send long chats with a condensed state in place of their older messages; false: only where a "
        "rule or x-memory-compress: force asks for it",
    )
    above_tokens: int = Field(
        16_000, ge=256, le=10_000_000, description="estimated tokens that a long chat exceeds"
    )
    keep_turns: int = Field(5, ge=1, le=1000, description="last turns that stay as they were said")
    keep: Positive = Field(timedelta(days=7), description="how long a state is kept, from its making on")


class Limits(Section):
    request_body: Size = Field(
        4 * MIB, ge=1 << 10, le=256 * MIB, description="larger ones pass untouched: too_large"
    )
    answer_capture: Size = Field(
        2 * MIB, ge=1 << 10, le=256 * MIB, description="larger ones pass, nothing is learned"
    )
    process_bytes: Size = Field(
        256 * MIB, ge=MIB, description="of bodies held for open exchanges together; beyond it learning yields first"
    )
    content_bytes: Size = Field(8 << 10, ge=256, le=65_535, description="of one memory's text in UTF-8, cut beyond")
    streams: int = Field(
        10_000, ge=1, le=1_000_000, description="exchanges open at the same time, for us and for Envoy's breaker"
    )


ConsentDefault = Literal["opt_out", "opt_in"]


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
        "ethnicity, union, crime, biometry, diet (food allergies); the others are not",
        examples=[["diet", "health"]],
    )
    quarantine: bool = Field(
        default=True, description="put what instructs an assistant aside; false: as any memory"
    )

    @property
    def key(self) -> bytes | None:
        """What `IdentitySection.options` takes; None unless user ids are hashed."""
        return self.hash_key.get_secret_value().encode() if self.hash_user_ids else None


class EnvoySection(Section):
    message_timeout: Positive | Auto = Field(
        "auto", description="Envoy's patience with one message of ours; auto: four deadlines, 1s at least"
    )
    two_filters: bool = Field(
        default=False,
        description="true: a second filter, which nobody waits for, watches answers; no piece of one waits for us",
    )
    health_interval: Positive = Field(timedelta(seconds=1), description="between Envoy's health checks of us")
    route_timeout: Duration = Field(
        timedelta(0), description="Envoy's bound on a whole exchange; 0s: none, answers may stream for long"
    )
    idle_timeout: Positive = Field(timedelta(minutes=10), description="Envoy's bound on silence within an exchange")


class Shutdown(Section):
    announce: Duration = Field(
        timedelta(seconds=2), description="not serving but still working, so that Envoy turns"
    )
    grace: Duration = Field(timedelta(seconds=30), description="for open exchanges to end")
    flush: Duration = Field(timedelta(seconds=10), description="for accepted turns to be learned")
