"""The whole configuration as one frozen value."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import timedelta
from functools import cached_property
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, PrivateAttr, model_validator

from memory_extproc.settings.api import (
    Api,
    ApiJwt,
    Console,
    api_is_shut,
    api_names_are_sound,
    api_notices,
    api_ways_are_whole,
)
from memory_extproc.settings.identity import HASH_KEY_BYTES, IdentitySection, Jwt, Privacy, Scopes
from memory_extproc.settings.memory import ExternalModel, Forgetting, Memory, ModelRole, Provider, Retention, Topics
from memory_extproc.settings.paths import CoordinationSection, Learn, Recall
from memory_extproc.settings.traffic import (
    Compress,
    EnvoySection,
    Health,
    Inject,
    Limits,
    Listen,
    RuleSection,
    Shutdown,
    SignalsSection,
    Telemetry,
    Tls,
    Trace,
    telemetry_agrees,
    telemetry_notices,
)
from memory_extproc.settings.types import Section, is_loopback, on_loopback


class Settings(Section):
    """Made by `load`; every default stands in its field and nowhere else."""

    memory: Memory = Field(Memory(), description="the section that the vLLM semantic router documents")
    external_models: tuple[ExternalModel, ...] = Field((), description="language models, at most one per role")
    listen: Listen = Field(Listen(), description="addresses of the servers")
    tls: Tls = Field(Tls(), description="mutual TLS of the ext_proc server")
    data_dir: str = Field(
        "",
        description="directory of Milvus Lite's file, the journal and coordination; empty: ./data if a sidecar "
        "created it there, else $XDG_DATA_HOME/memory-extproc (by default "
        "~/.local/share/memory-extproc)",
    )
    role: Literal["all", "serve", "learn"] = Field(
        "all",
        description="all: serve requests and learn from them; serve: serve requests and leave facts to other "
        "replicas; learn: learn from the shared journal and serve no request",
    )
    mode: Literal["active", "shadow", "gradual"] = Field(
        "active",
        description="active: inject and learn; shadow: everything except injection; gradual: inject for a share "
        "of the callers only",
    )
    percent: float | None = Field(
        None,
        ge=0,
        le=100,
        description="for mode gradual: percentage of the callers; a caller always falls into the same group",
    )
    identity: IdentitySection = Field(IdentitySection(), description="the user and tenant of a request")
    scopes: Scopes = Field(Scopes(), description="memories that callers share; off by default")
    signals: SignalsSection = Field(SignalsSection(), description="classification of a request by a router")
    recall: Recall = Field(Recall(), description="the read path")
    inject: Inject = Field(Inject(), description="the injected block")
    learn: Learn = Field(Learn(), description="the write path")
    compress: Compress = Field(Compress(), description="compression of long chats")
    chat_commands: Literal["off", "remember", "remember_and_forget"] = Field(
        "remember_and_forget",
        description='which commands in a chat are obeyed ("remember that ...", "forget what I told you about '
        '..."); a forget in a chat is a soft deletion, which the memory API can undo until it is '
        "erased",
    )
    topics: Topics = Field(Topics(), description="topics and summaries of sessions")
    coordination: CoordinationSection = Field(CoordinationSection(), description="state shared among replicas")
    limits: Limits = Field(Limits(), description="limits on memory use and sizes")
    auxiliary_calls: Literal["skip", "handle"] = Field(
        "skip",
        description="calls that chat clients make for titles, tags and summaries; skip: pass them without "
        "memory; handle: treat them like any other request",
    )
    rules: tuple[RuleSection, ...] = Field(
        (), description="exceptions by route, model, tenant or content; the first match decides"
    )
    retention: Retention = Field(Retention(), description="aging, merging and deletion of memories")
    forget: Forgetting = Field(Forgetting(), description="erasure of memories and its proof")
    api: Api = Field(Api(), description="access to the memory API")
    console: Console = Field(Console(), description="the memory API over HTTP, and the page")
    privacy: Privacy = Field(Privacy(), description="personal data: consent, encryption, identifiers and secrets")
    trace: Trace = Field(Trace(), description="decisions kept for later inspection")
    telemetry: Telemetry = Field(Telemetry(), description="logs, metrics and traces")
    envoy: EnvoySection = Field(
        EnvoySection(), description="values that `memory-extproc envoy-config` writes and the sidecar relies on"
    )
    health: Health = Field(Health(), description="health checks of the process")
    shutdown: Shutdown = Field(Shutdown(), description="phases of a graceful shutdown")

    # Notices about the semantic router's keys that were translated.
    _router_notices: tuple[str, ...] = PrivateAttr(())

    @model_validator(mode="after")
    def agree(self) -> Self:
        faults = find_broken_rules({name: getattr(self, name) for name in type(self).model_fields})
        if faults:
            raise ValueError("; ".join(faults))
        return self

    @cached_property
    def deadline(self) -> timedelta:
        """The deadline of the whole read path."""
        return deadline_of(self.recall)

    @cached_property
    def api_jwt(self) -> ApiJwt:
        """The tokens of the memory API: its own, or those of chats."""
        if self.api.jwt.is_set:
            return self.api.jwt
        shared = self.identity.jwt.model_dump(include=set(ApiJwt.model_fields))
        return ApiJwt(**{**shared, "roles_claim": self.api.jwt.roles_claim})

    @cached_property
    def message_timeout(self) -> timedelta:
        """Envoy's `message_timeout` for the sidecar's replies, always above the deadline."""
        return message_timeout_of(self.envoy, self.recall)

    def model_for(self, role: ModelRole) -> ExternalModel | None:
        """The model of *role*, or else the extraction model."""
        wanted = (role, ModelRole.MEMORY_EXTRACTION)
        return next((model for each in wanted for model in self.external_models if model.model_role is each), None)

    @property
    def extracts_by_model(self) -> bool:
        """Whether a language model extracts facts, with the rules as its fallback."""
        return _extracts_by_model(self.learn, {model.model_role for model in self.external_models})

    def notices(self) -> tuple[str, ...]:
        """Warnings about a valid configuration."""
        return (*self._router_notices, *_notices(self))

    def with_router_notices(self, notices: tuple[str, ...]) -> Self:
        """The same configuration, with a notice for each key that was translated."""
        self._router_notices = notices
        return self


class CurrentSettings:
    """The settings in effect, which a reload replaces between two events.

    A part reads them once per request or round, so that it never sees a partial change."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings


def _extracts_by_model(learn: Learn, roles: Collection[ModelRole]) -> bool:
    return learn.extractor in {"auto", "llm"} and ModelRole.MEMORY_EXTRACTION in roles


def _notices(settings: Settings) -> Iterator[str]:
    if not settings.memory.enabled:
        yield "memory.enabled: false: every request passes untouched"
    if settings.recall.deadline == "auto" and settings.recall.with_model:
        yield (
            "recall.deadline: 1.5s instead of 150ms, because a language model takes part in the read path; "
            f"Envoy's message_timeout follows with {settings.message_timeout.total_seconds():g}s"
        )
    if settings.listen.insecure and not settings.tls.is_set and not on_loopback(settings.listen.ext_proc):
        yield (
            f"listen.insecure: whoever reaches {settings.listen.ext_proc} can name any caller and read their "
            "memories; keep it inside a network that only Envoy shares"
        )
    yield from api_notices(
        settings.listen, settings.tls, settings.api, settings.identity, settings.coordination.url
    )
    if settings.identity.trust_body:
        yield "identity.trust_body: whoever writes a request body can name its caller"
    if not settings.coordination.url:
        yield "coordination.url is empty: one replica only, its state stands under data_dir"
    if settings.coordination.accept_volatile:
        yield "coordination.accept_volatile: what was accepted or forgotten is lost when Redis dies or is full"
    if settings.privacy.hash_user_ids:
        yield "privacy.hash_user_ids: another or a lost hash key leaves all memories without their owner"
    if settings.privacy.encrypt_content:
        yield "privacy.encrypt_content: a lost master key, or lost wrapped keys, leave all texts unreadable"
    yield from telemetry_notices(settings.telemetry)


# Rules between sections, each with its error message.

Faults = Iterator[str]


def _dimensions_agree(memory: Memory) -> Faults:
    if memory.milvus.dimension != memory.embedding.dimension:
        yield (
            f"memory.milvus.dimension: {memory.milvus.dimension} is not memory.embedding.dimension, "
            f"{memory.embedding.dimension}"
        )


def _milvus_is_whole(memory: Memory) -> Faults:
    milvus = memory.milvus
    if not milvus.address:
        for key in ("user", "database", "token", "password"):
            value = getattr(milvus, key)
            if value if isinstance(value, str) else value.get_secret_value():
                yield f"memory.milvus.{key}: Milvus Lite has none; memory.milvus.address is empty"
        if milvus.tls.enabled:
            yield "memory.milvus.tls.enabled: Milvus Lite has no connection; memory.milvus.address is empty"
        if milvus.layout == "single":
            yield "memory.milvus.layout: single needs a server: Lite searches whole collections row by row"
    if milvus.token.get_secret_value() and (milvus.user or milvus.password.get_secret_value()):
        yield "memory.milvus.token: stands instead of user and password, not beside them"
    if milvus.address and milvus.password.get_secret_value() and not milvus.user:
        yield "memory.milvus.user: a password is given, but not whose"
    if bool(milvus.tls.cert) != bool(milvus.tls.key):
        yield "memory.milvus.tls: cert and key belong together"


def _embedding_is_whole(memory: Memory) -> Faults:
    embedding = memory.embedding
    remote = embedding.provider is Provider.OPENAI
    if remote and not embedding.endpoint:
        yield "memory.embedding.endpoint: provider openai needs one"
    if not remote and embedding.endpoint:
        yield f"memory.embedding.endpoint: provider {embedding.provider} uses none"
    if not remote and embedding.access_key.get_secret_value():
        yield f"memory.embedding.access_key: provider {embedding.provider} uses none"


def _one_model_each(external_models: tuple[ExternalModel, ...]) -> Faults:
    roles = [model.model_role for model in external_models]
    for index, role in enumerate(roles):
        if role in roles[:index]:
            yield f"external_models[{index}].model_role: {role} was given before"


def _models_are_there(external_models: tuple[ExternalModel, ...], recall: Recall, learn: Learn) -> Faults:
    roles = {model.model_role for model in external_models}
    if recall.with_model and not roles:
        wanted = {"query_rewrite": recall.query_rewrite != "off", "hyde": recall.hyde, "rerank": True}
        key = next(key for key, asked in wanted.items() if asked)
        role = ModelRole.MEMORY_RERANK if key == "rerank" else ModelRole.MEMORY_REWRITE
        yield f"recall.{key}: needs a model of role {role} or memory_extraction in external_models"
    if learn.extractor == "llm" and ModelRole.MEMORY_EXTRACTION not in roles:
        yield "learn.extractor: llm needs a model of role memory_extraction in external_models"
    if learn.notepad and not _extracts_by_model(learn, roles):
        yield "learn.notepad: needs a model of role memory_extraction in external_models that extracts"


def _the_door_is_shut(listen: Listen, tls: Tls) -> Faults:
    if tls.is_set:
        for key in ("cert", "key", "client_ca", "allowed_names"):
            if not getattr(tls, key):
                yield f"tls.{key}: is missing; TLS here is mutual, with names that may call us"
    elif tls.client_ca or tls.allowed_names:
        yield "tls.cert: is missing; without cert and key the other keys of tls do nothing"
    elif not listen.insecure and not on_loopback(listen.ext_proc):
        yield (
            f"listen.ext_proc: {listen.ext_proc} is off loopback, and it is a door to memories: give tls with "
            "client_ca and allowed_names, or write listen.insecure: true"
        )


def _addresses_differ(listen: Listen) -> Faults:
    taken: dict[str, str] = {}
    for key in ("ext_proc", "ext_proc_unix", "api", "console", "http"):
        address: str = getattr(listen, key)
        if not address:
            continue
        if address in taken and not address.endswith(":0"):
            yield f"listen.{key}: {address} is listen.{taken[address]} too; each needs a port of its own"
        taken.setdefault(address, key)


def _one_source_of_identity(identity: IdentitySection) -> Faults:
    jwt = identity.jwt
    if identity.metadata and jwt.is_set:
        yield "identity.metadata: identity.jwt is given too; there is one source of identity"
    if not (identity.metadata or jwt.is_set or identity.user_header):
        yield "identity.user_header: is empty, and neither metadata nor jwt says who asks"
    if identity.metadata_tenant and not identity.metadata:
        yield "identity.metadata_tenant: it comes from where the user comes from, and identity.metadata is empty"
    if identity.trust_body and (identity.metadata or jwt.is_set):
        yield "identity.trust_body: a body cannot stand in for a verified identity"


def _membership_is_verified(identity: IdentitySection, scopes: Scopes) -> Faults:
    jwt = identity.jwt
    sources = bool(identity.metadata_projects) + bool(jwt.projects_claim)
    if sources > 1:
        yield "identity.metadata_projects: jwt.projects_claim is given too; there is one source of membership"
    for key in ("recall", "learn"):
        if getattr(scopes.project, key) and not sources:
            yield (
                f"scopes.project.{key}: nothing says who is a member; give identity.jwt.projects_claim or "
                "identity.metadata_projects (a header alone never does)"
            )
    if scopes.project.learn and not scopes.project.recall:
        yield "scopes.project.learn: needs scopes.project.recall; what is learned there would reach nobody"


def _tokens_can_be_verified(identity: IdentitySection) -> Faults:
    yield from _sound_tokens("identity.jwt", identity.jwt)


def _api_tokens_can_be_verified(api: Api) -> Faults:
    # Without its own keys it uses identity's keys, and may still name the roles claim.
    if api.jwt.is_set or api.jwt != ApiJwt(roles_claim=api.jwt.roles_claim):
        yield from _sound_tokens("api.jwt", api.jwt)


def _sound_tokens(path: str, jwt: Jwt | ApiJwt) -> Faults:
    if jwt.jwks_file and jwt.jwks_url:
        yield f"{path}.jwks_file: jwks_url is given too: keep one"
    if not jwt.is_set and jwt != type(jwt)():
        yield f"{path}: names no keys: give jwks_file or jwks_url"
    if jwt.is_set:
        for key in ("issuer", "audience"):
            if not getattr(jwt, key):
                yield f"{path}.{key}: is missing; a token made for someone else would be taken"
    parts = urlsplit(jwt.jwks_url)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        yield f"{path}.jwks_url: keys fetched without TLS can be anyone's: use https"


def _share_of_callers(mode: str, percent: float | None) -> Faults:
    if mode == "gradual" and percent is None:
        yield "percent: mode gradual needs one"
    if mode != "gradual" and percent is not None:
        yield f"percent: mode {mode} takes none"


def _envoy_is_patient_enough(recall: Recall, learn: Learn, envoy: EnvoySection) -> Faults:
    deadline, patience = deadline_of(recall), message_timeout_of(envoy, recall)
    if deadline >= patience:
        yield (
            f"recall.deadline: {deadline.total_seconds():g}s is not below envoy.message_timeout, "
            f"{patience.total_seconds():g}s; Envoy would give up on us first"
        )
    # The last reply waits twice as long at most, as a guard behind the journal's own bound.
    if 2 * learn.journal.wait >= patience:
        yield "learn.journal.wait: is not below half of envoy.message_timeout"
    if recall.settle >= deadline:
        yield "recall.settle: is not below recall.deadline"


def _hashes_have_a_key(privacy: Privacy) -> Faults:
    key = privacy.hash_key.get_secret_value()
    if privacy.hash_user_ids and len(key.encode()) < HASH_KEY_BYTES:
        yield f"privacy.hash_key: hash_user_ids needs a key of {HASH_KEY_BYTES} bytes or more"
    if key and not privacy.hash_user_ids:
        yield "privacy.hash_key: is given, but hash_user_ids is off"


def _sealing_is_whole(privacy: Privacy, coordination: CoordinationSection) -> Faults:
    if privacy.encrypt_content and not privacy.master_key_file:
        yield "privacy.master_key_file: encrypt_content needs one; `memory-extproc keys new` prints a key for it"
    for key in ("master_key_file", "keys_file"):
        if getattr(privacy, key) and not privacy.encrypt_content:
            yield f"privacy.{key}: is given, but encrypt_content is off"
    if privacy.encrypt_content and coordination.url and coordination.accept_volatile:
        yield "coordination.accept_volatile: that Redis holds the keys of all texts, which would be lost with it"
    if privacy.keys_file and coordination.url:
        yield "privacy.keys_file: replicas share their keys in Redis, and coordination.url names one"


def _bodies_fit(limits: Limits) -> Faults:
    if limits.request_body + limits.answer_capture > limits.process_bytes:
        yield "limits.process_bytes: is below request_body and answer_capture together: one exchange would fill it"


def _envoy_notices_leaving(shutdown: Shutdown, envoy: EnvoySection) -> Faults:
    if shutdown.announce < 2 * envoy.health_interval:
        yield "shutdown.announce: is below two of envoy.health_interval; Envoy would still send us requests"


def _redis_password_has_a_server(coordination: CoordinationSection) -> Faults:
    if coordination.password.get_secret_value() and not coordination.url:
        yield "coordination.password: is given, but url is empty"
    if coordination.sentinel_password.get_secret_value() and "+sentinel:" not in coordination.url:
        yield "coordination.sentinel_password: is given, but url names no Sentinel (redis+sentinel://)"


def _roles_share_what_they_work_on(
    role: Literal["all", "serve", "learn"], memory: Memory, coordination: CoordinationSection
) -> Faults:
    if role != "all" and not (coordination.url and memory.milvus.address):
        yield (
            f"role: {role} needs coordination.url and memory.milvus.address: a journal or memories in files belong"
            " to one process, which both serves and learns (role: all)"
        )


def _a_lease_outlives_calls(coordination: CoordinationSection) -> Faults:
    least = 3 * coordination.timeout
    if coordination.lease < least:
        yield (
            f"coordination.lease: {coordination.lease.total_seconds():g}s is shorter than three calls of "
            f"coordination.timeout, {least.total_seconds():g}s: a slow call would pass the work to another replica"
        )


def _retention_agrees(retention: Retention) -> Faults:
    for kind, ttl in retention.ttl.set_lifetimes().items():
        if ttl < retention.protect:
            yield f"retention.ttl.{kind}: is shorter than retention.protect, which would keep them longer"


def _reflecting_has_a_model(retention: Retention, external_models: tuple[ExternalModel, ...]) -> Faults:
    roles = {model.model_role for model in external_models}
    if retention.reflect.enabled and ModelRole.MEMORY_EXTRACTION not in roles:
        yield "retention.reflect.enabled: needs a model of role memory_extraction in external_models"


# The sections that a rule needs, and the rule. A rule runs once its sections are valid, so that a run reports every
# fault.
RULES: tuple[tuple[tuple[str, ...], Callable[..., Faults]], ...] = (
    (("memory",), _dimensions_agree),
    (("memory",), _milvus_is_whole),
    (("memory",), _embedding_is_whole),
    (("external_models",), _one_model_each),
    (("external_models", "recall", "learn"), _models_are_there),
    (("listen", "tls"), _the_door_is_shut),
    (("listen",), _addresses_differ),
    (("identity",), _one_source_of_identity),
    (("identity",), _tokens_can_be_verified),
    (("identity", "scopes"), _membership_is_verified),
    (("api",), _api_tokens_can_be_verified),
    (("api", "identity"), api_ways_are_whole),
    (("api",), api_names_are_sound),
    (("listen", "tls", "api", "identity"), api_is_shut),
    (("mode", "percent"), _share_of_callers),
    (("recall", "learn", "envoy"), _envoy_is_patient_enough),
    (("privacy",), _hashes_have_a_key),
    (("privacy", "coordination"), _sealing_is_whole),
    (("limits",), _bodies_fit),
    (("retention",), _retention_agrees),
    (("retention", "external_models"), _reflecting_has_a_model),
    (("shutdown", "envoy"), _envoy_notices_leaving),
    (("role", "memory", "coordination"), _roles_share_what_they_work_on),
    (("coordination",), _redis_password_has_a_server),
    (("telemetry",), telemetry_agrees),
    (("coordination",), _a_lease_outlives_calls),
)


def find_broken_rules(sections: Mapping[str, Any]) -> list[str]:
    """The faults of every rule whose sections are in *sections*, each with its path."""
    return [
        fault
        for needs, rule in RULES
        if all(name in sections for name in needs)
        for fault in rule(*(sections[name] for name in needs))
    ]


# How long a request may wait, as several sections say it together.

DEADLINE = timedelta(milliseconds=150)
DEADLINE_WITH_MODEL = timedelta(seconds=1.5)
LEAST_MESSAGE_TIMEOUT = timedelta(seconds=1)


def deadline_of(recall: Recall) -> timedelta:
    if recall.deadline != "auto":
        return recall.deadline
    return DEADLINE_WITH_MODEL if recall.with_model else DEADLINE


def message_timeout_of(envoy: EnvoySection, recall: Recall) -> timedelta:
    if envoy.message_timeout != "auto":
        return envoy.message_timeout
    return max(LEAST_MESSAGE_TIMEOUT, 4 * deadline_of(recall))
