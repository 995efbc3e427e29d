"""The whole configuration as one frozen value."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Literal, Self

from pydantic import Field, model_validator

from memory_extproc.settings.agreement import broken
from memory_extproc.settings.api import (
    Api,
    api_notices,
)
from memory_extproc.settings.deadlines import deadline_of, message_timeout_of
from memory_extproc.settings.edge import EnvoySection, Limits, Listen, Shutdown, Tls
from memory_extproc.settings.forgetting import Forgetting
from memory_extproc.settings.identity import IdentitySection, Scopes
from memory_extproc.settings.memory import ExternalModel, Memory, ModelRole
from memory_extproc.settings.privacy import Privacy
from memory_extproc.settings.prompt import Compress, Inject
from memory_extproc.settings.retention import Retention
from memory_extproc.settings.rules import RuleSection, SignalsSection
from memory_extproc.settings.telemetry import Telemetry, telemetry_notices
from memory_extproc.settings.topics import Topics
from memory_extproc.settings.values import Section, on_loopback
from memory_extproc.settings.work import CoordinationSection, Learn, Recall


class Settings(Section):
    """Made by `load`; every default stands in its field and nowhere else."""

    memory: Memory = Field(Memory(), description="the block that the vLLM semantic router documents")
    external_models: tuple[ExternalModel, ...] = Field((), description="language models, one for each role")
    listen: Listen = Field(Listen(), description="addresses")
    tls: Tls = Field(Tls(), description="of the ext_proc server: mutual, or not at all")
    data_dir: str = Field("./data", min_length=1, description="Milvus Lite's file, the journal, coordination")
    mode: Literal["active", "shadow", "gradual"] = Field(
        "active", description="shadow: all but the injection; gradual: for a share of the callers"
    )
    percent: float | None = Field(
        None, ge=0, le=100, description="of the callers, always the same ones; with mode: gradual only"
    )
    identity: IdentitySection = Field(IdentitySection(), description="whose memory a request reaches")
    scopes: Scopes = Field(Scopes(), description="memories that callers share; none unless switched on")
    signals: SignalsSection = Field(SignalsSection(), description="what a router in front found out")
    recall: Recall = Field(Recall(), description="the read path")
    inject: Inject = Field(Inject(), description="the block")
    learn: Learn = Field(Learn(), description="the write path")
    compress: Compress = Field(Compress(), description="long chats")
    chat_commands: Literal["off", "remember", "remember_and_forget"] = Field(
        "remember_and_forget",
        description='"remember that ...", "forget what I told you about ..." said in a chat: off; remember; '
        "remember_and_forget (a forget is soft: undone over the memory API until it is erased)",
    )
    topics: Topics = Field(Topics(), description="what sessions were about: topics and summaries")
    coordination: CoordinationSection = Field(CoordinationSection(), description="what replicas agree on")
    limits: Limits = Field(Limits(), description="bounds on what is held")
    auxiliary_calls: Literal["skip", "handle"] = Field(
        "skip", description="titles, tags and summaries that chat clients ask for themselves; handle: as any other"
    )
    rules: tuple[RuleSection, ...] = Field((), description="exceptions; the first that matches decides")
    retention: Retention = Field(Retention(), description="what becomes of memories with time")
    forget: Forgetting = Field(Forgetting(), description="what stays forgotten, and the proof of it")
    api: Api = Field(Api(), description="the memory API: who may call it")
    privacy: Privacy = Field(Privacy(), description="what is known of whom")
    telemetry: Telemetry = Field(Telemetry(), description="logs, metrics, traces")
    envoy: EnvoySection = Field(EnvoySection(), description="what `envoy-config` writes and we rely on")
    shutdown: Shutdown = Field(Shutdown(), description="the order of leaving")

    @model_validator(mode="after")
    def agree(self) -> Self:
        faults = broken({name: getattr(self, name) for name in type(self).model_fields})
        if faults:
            raise ValueError("; ".join(faults))
        return self

    @property
    def deadline(self) -> timedelta:
        """Of the whole read path."""
        return deadline_of(self.recall)

    @property
    def message_timeout(self) -> timedelta:
        """What Envoy is told to grant each of our messages; always above the deadline."""
        return message_timeout_of(self.envoy, self.recall)

    def model_for(self, role: ModelRole) -> ExternalModel | None:
        """The model of *role*; without one of its own, the extraction model."""
        wanted = (role, ModelRole.MEMORY_EXTRACTION)
        return next((model for each in wanted for model in self.external_models if model.model_role is each), None)

    def notices(self) -> tuple[str, ...]:
        """What an operator should know of this configuration though nothing in it is wrong."""
        return tuple(_notices(self))


def _notices(settings: Settings) -> Iterator[str]:
    if not settings.memory.enabled:
        yield "memory.enabled: false: every request passes untouched"
    if settings.recall.deadline == "auto" and settings.recall.with_model:
        yield (
            "recall.deadline: 1.5s instead of 150ms, because a language model takes part in the read path; "
            f"Envoy's message_timeout follows with {settings.message_timeout.total_seconds():g}s"
        )
    if settings.listen.insecure and not settings.tls.given and not on_loopback(settings.listen.ext_proc):
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
