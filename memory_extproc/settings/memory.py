"""Sections that the vLLM semantic router also documents, under its names: `memory` and `external_models`."""

from __future__ import annotations

import json
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

from memory_extproc.model import MemoryType
from memory_extproc.settings.types import Duration, OptionalUrl, Positive, Section, Share, Size, split_address

MAX_DIMENSION = 32768  # Milvus's own limit for a float vector


def _milvus_address(value: str) -> str:
    if not value:
        return value
    if value.endswith(".db"):
        raise ValueError("leave it empty for Milvus Lite: its file stands under data_dir")
    scheme, separator, rest = value.partition("://")
    if separator and scheme not in {"http", "https"}:
        raise ValueError("expected host:port, or http:// or https:// before it")
    address = rest if separator else value
    if "@" in address:
        raise ValueError("an address carries no user or password: they have keys of their own")
    split_address(address.rstrip("/"))
    return value


class MilvusTls(Section):
    enabled: bool = Field(default=False, description="use TLS to the Milvus server; an https:// address implies it")
    ca: str = Field("", description="PEM file of the trusted authorities; empty: the system's")
    cert: str = Field("", description="PEM file of the client certificate, for a server that requires one")
    key: str = Field("", description="PEM file of the client certificate's private key")
    server_name: str = Field(
        "", description="name that the server's certificate must contain; empty: the host of the address"
    )


class Milvus(Section):
    address: Annotated[str, AfterValidator(_milvus_address)] = Field(
        "",
        description="address of a Milvus server: host:port or http(s)://host:port; empty: Milvus Lite, a file "
        "under data_dir",
    )
    collection: str = Field(
        "agentic_memory",
        pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,199}$",
        description="alias of the collection; the collection behind it is named NAME_vSCHEMA_DIMENSION",
    )
    dimension: int = Field(
        384, ge=2, le=MAX_DIMENSION, description="dimension of the vectors; must equal embedding.dimension"
    )
    layout: Literal["auto", "single", "sharded"] = Field(
        "auto",
        description="number of collections: single, or sharded by caller; auto: single on a server, sharded in "
        "a Milvus Lite file",
    )
    shards: int = Field(
        64, ge=1, le=1024, description="number of collections in a new Milvus Lite file; cannot be changed later"
    )
    user: str = Field("", description="user name, for a server with authentication")
    password: SecretStr = Field(
        SecretStr(""), description="password of the user; set it through the environment or password_file"
    )
    password_file: str = Field("", description="file that holds the password")
    token: SecretStr = Field(
        SecretStr(""),
        description="token, instead of user and password; set it through the environment or token_file",
    )
    token_file: str = Field("", description="file that holds the token")
    database: str = Field("", description="database on the server; empty: the server's default")
    tls: MilvusTls = Field(MilvusTls(), description="TLS to the Milvus server")
    full_text: bool = Field(
        default=True,
        description="create a full-text index in new collections where Milvus supports it (Milvus Lite, servers "
        "from 2.5); it serves callers whose memories do not fit into recall.partition_bytes",
    )
    timeout: Positive = Field(timedelta(seconds=2), description="maximum duration of one call to Milvus")


class Provider(StrEnum):
    ONNX = "onnx"
    OPENAI = "openai"
    SENTENCE_TRANSFORMERS = "sentence_transformers"


class Embedding(Section):
    provider: Provider = Field(
        Provider.ONNX,
        description="onnx: the packaged runtime, in process; openai: an OpenAI-compatible endpoint; "
        "sentence_transformers: needs the extra of that name",
    )
    model: str = Field(
        "all-MiniLM-L6-v2",
        min_length=1,
        description="name of the embedding model; after a change, use a new collection or run `memory-extproc "
        "store reembed`",
    )
    dimension: int = Field(384, ge=2, le=MAX_DIMENSION, description="dimension of the model's vectors")
    precision: Literal["int8", "fp32"] = Field("int8", description="for onnx: precision of the prepared model")
    models_dir: str = Field(
        "./models", description="for onnx: directory to which `memory-extproc models prepare` writes models"
    )
    threads: int = Field(
        2, ge=1, le=256, description="for onnx: inferences that run at the same time, each on one core"
    )
    cache: int = Field(
        4096,
        ge=0,
        le=1_000_000,
        description="number of query vectors kept in memory; the least recently used are evicted",
    )
    word_bytes: Size = Field(
        48 << 20,
        description="for onnx: memory for the word vectors of recently embedded texts, about 3.5 KiB per "
        "message, which let recall compare question and memory word by word; 0 turns that "
        "comparison off",
    )
    endpoint: OptionalUrl = Field("", description="for openai: base URL, such as http://embedder:8080/v1")
    access_key: SecretStr = Field(
        SecretStr(""), description="for openai: bearer token; set it through the environment or access_key_file"
    )
    access_key_file: str = Field("", description="file that holds the bearer token")
    timeout: Positive = Field(timedelta(seconds=2), description="for openai: maximum duration of one call")
    device: Literal["auto", "cpu", "cuda", "mps"] = Field(
        "auto", description="for sentence_transformers: device that runs the model"
    )


class Memory(Section):
    enabled: bool = Field(
        default=True, description="false: all requests pass unchanged, with the outcome `disabled`"
    )
    auto_store: bool = Field(
        default=True, description="learn from every exchange unless a request or a rule forbids it"
    )
    client_may_enable: bool = Field(
        default=False,
        description="true: `auto_store: true` in a request's body enables learning even if auto_store is false "
        "here, as in the vLLM semantic router; false: the body can only disable it",
    )
    milvus: Milvus = Field(Milvus(), description="the store of memories")
    embedding: Embedding = Field(Embedding(), description="the embedding model")
    default_retrieval_limit: int = Field(
        5, ge=1, le=100, description="maximum number of memories injected into a request"
    )
    default_similarity_threshold: Share = Field(
        0.6,
        description="minimum relevance of an injected memory, 0 to 1; a calibrated probability, or the cosine "
        "if recall.threshold_on is cosine",
    )
    extraction_batch_size: int = Field(
        10,
        ge=1,
        le=100,
        description="turns of a session that a language model reads in one call; the rules read every turn at once",
    )


class ModelRole(StrEnum):
    """The purpose of an external language model. All other roles fall back to the extraction model."""

    MEMORY_EXTRACTION = "memory_extraction"
    MEMORY_REWRITE = "memory_rewrite"
    MEMORY_RERANK = "memory_rerank"
    MEMORY_TOPICS = "memory_topics"
    MEMORY_SUMMARY = "memory_summary"


class Endpoint(Section):
    address: str = Field(
        examples=["qwen"],
        min_length=1,
        pattern=r"^[^\s/@]+$",
        description="host name or IP address, without scheme and port",
    )
    port: int = Field(examples=[8000], ge=1, le=65535, description="TCP port")
    protocol: Literal["http", "https"] = Field("http", description="protocol of the server")
    path: str = Field("/v1", pattern=r"^(/[^\s?#]*)?$", description="path before /chat/completions")
    access_key: SecretStr = Field(
        SecretStr(""), description="bearer token; set it through the environment or access_key_file"
    )
    access_key_file: str = Field("", description="file that holds the bearer token")

    @property
    def url(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{self.protocol}://{host}:{self.port}{self.path.rstrip('/')}"


# Fields that other keys decide, or the sidecar's reading of the answer.
_RESERVED = frozenset({
    "model", "messages", "stream", "stream_options", "n", "response_format", "tools", "tool_choice", "temperature",
    "max_tokens", "max_completion_tokens", "reasoning_effort",
})  # fmt: skip


def _extra_body(value: Any) -> Any:
    if not isinstance(value, dict):
        raise ValueError("expected a mapping of fields, such as {chat_template_kwargs: {enable_thinking: false}}")  # noqa: TRY004 - pydantic's kind of fault
    if reserved := sorted(map(str, _RESERVED & value.keys())):
        raise ValueError(f"{', '.join(reserved)} cannot be set here: other keys or the sidecar decide it")
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError("expected values that JSON has; write dates in quotes") from error
    return value


class ExternalModel(Section):
    model_role: ModelRole = Field(
        examples=["memory_extraction"], description="task of the model; at most one model per role"
    )
    llm_endpoint: Endpoint = Field(description="an OpenAI-compatible server")
    llm_model_name: str = Field(examples=["qwen3"], min_length=1, description="name of the model at the server")
    llm_timeout_seconds: float = Field(30, gt=0, le=3600, description="maximum duration of one call, in seconds")
    max_tokens: int = Field(
        500,
        ge=1,
        le=100_000,
        description="token limit of one answer, reasoning included; after the first answer that is cut off, the "
        "limit is raised eightfold",
    )
    temperature: float = Field(0.1, ge=0, le=2, description="sampling temperature")
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = Field(
        None, description="reasoning_effort sent to the model; null: the field is not sent"
    )
    extra_body: Annotated[dict[str, Any], BeforeValidator(_extra_body)] = Field(
        default_factory=dict,
        description="additional fields for every request body, such as {chat_template_kwargs: {enable_thinking: "
        "false}}",
    )


# The life of memories after they were stored, as configured.


class TimeToLive(Section):
    semantic: Positive | None = Field(
        None, description="lifetime of facts, from the time they were stored; null: unlimited"
    )
    procedural: Positive | None = Field(
        None, description="lifetime of instructions and procedures; null: unlimited"
    )
    episodic: Positive | None = Field(None, description="lifetime of messages and their summaries; null: unlimited")
    reflective: Positive | None = Field(None, description="lifetime of conclusions; null: unlimited")

    def of(self, kind: MemoryType) -> timedelta | None:
        lifetime: timedelta | None = getattr(self, kind.value)
        return lifetime

    def set_lifetimes(self) -> dict[MemoryType, timedelta]:
        found = {kind: self.of(kind) for kind in MemoryType}
        return {kind: ttl for kind, ttl in found.items() if ttl is not None}


class Duplicates(Section):
    enabled: bool = Field(default=True, description="merge facts that say the same")
    distance: float = Field(
        0.08, ge=0, le=2, description="maximum distance (1 - cosine) between neighbours in a cluster of duplicates"
    )
    same_words: bool = Field(
        default=True,
        description="require that duplicates also agree in their words; false: the distance alone decides, "
        "which can merge facts about two different flights (distance 0.04)",
    )


class Consolidate(Section):
    above: int | None = Field(
        3,
        ge=2,
        le=1000,
        description="number of statements about one attribute over time that are merged into one memory; null: "
        "never",
    )
    earlier: int = Field(
        12, ge=1, le=100, description="maximum number of earlier values that the merged memory lists"
    )
    subject: int | None = Field(
        8,
        ge=2,
        le=1000,
        description="number of facts about one subject other than the caller that the memory_extraction model "
        "merges into one memory; null: never",
    )


class Reflect(Section):
    enabled: bool = Field(
        default=False,
        description="let a language model draw conclusions from a caller's facts; needs a model with the role "
        "memory_extraction",
    )
    above: int = Field(
        5, ge=2, le=10_000, description="number of facts on a theme from which the model is asked about it"
    )
    grown: int = Field(
        3, ge=1, le=10_000, description="number of new facts on a theme before the model is asked about it again"
    )
    themes: int = Field(3, ge=1, le=100, description="maximum number of themes per caller and project in one round")


class Retention(Section):
    every: Positive | None = Field(
        timedelta(hours=24), description="interval of the background rounds over all callers; null: only by command"
    )
    weight: Share = Field(
        0.5, description="weight of importance in a memory's score; the remainder is the weight of its age"
    )
    half_life: Positive = Field(timedelta(days=60), description="half-life of the age part of the score")
    refresh_on_access: bool = Field(
        default=True, description="true: the age of a memory counts from its last injection"
    )
    max_memories: int | None = Field(
        1000,
        ge=1,
        le=10_000_000,
        description="maximum number of active memories per caller; beyond it, the lowest scores are removed; "
        "null: unlimited",
    )
    prune_share: float = Field(
        0.01,
        ge=0,
        lt=1,
        description="additional share of max_memories that is removed when the maximum is exceeded",
    )
    protect: Duration = Field(
        timedelta(hours=24), description="memories younger than this are never removed for their score"
    )
    ttl: TimeToLive = Field(TimeToLive(), description="lifetime by type of memory, whatever the score")
    grace: Duration = Field(timedelta(days=30), description="time between soft deletion and erasure")
    history: Duration | None = Field(
        timedelta(days=365),
        description="time between the replacement of a value and its erasure; null: earlier values are kept",
    )
    access_interval: Positive = Field(
        timedelta(minutes=15),
        description="interval at which access counts are written; a crash loses at most one interval",
    )
    duplicates: Duplicates = Field(Duplicates(), description="merging of duplicate facts")
    consolidate: Consolidate = Field(
        Consolidate(), description="merging of the values that one attribute had over time"
    )
    reflect: Reflect = Field(
        Reflect(), description="conclusions drawn from several facts, stored as separate memories"
    )


# Topics and summaries of sessions as configured.


class Topics(Section):
    enabled: bool = Field(
        default=True, description="false: remember messages and facts only, without topics and summaries"
    )
    same: Share = Field(
        0.45, description="cosine to the open topic above which a turn belongs to it without further checks"
    )
    apart: Share = Field(
        0.5,
        description="probability above which a turn starts a new topic, fitted for all-MiniLM-L6-v2; "
        "`memory-extproc eval topics` measures it for another model",
    )
    characters: int = Field(25_000, ge=1_000, le=100_000, description="length at which a topic is closed")
    idle: Positive = Field(
        timedelta(minutes=10), description="idle time after which a session is considered ended and is summarised"
    )
    model: Literal["auto", "off"] = Field(
        "auto",
        description="auto: use the models memory_topics (for uncertain boundaries) and memory_summary if they "
        "are configured; off: use statistics, and sentences taken from the conversation",
    )


# Forgetting as configured.


class Forgetting(Section):
    ledger: str = Field(
        "",
        description="file that records, as keyed hashes, what was forgotten, so that a restored backup brings "
        "nothing back; keep it on another volume and out of backups. Empty: erasure.db under "
        "data_dir; not used with coordination.url, where Redis holds the ledger",
    )
    signing_key: str = Field(
        "",
        description="PEM file of an Ed25519 private key that signs receipts (`openssl genpkey -algorithm "
        "ed25519`); empty: receipts are not signed",
    )
    server_purge: Positive = Field(
        timedelta(days=4),
        description="time for which a Milvus server may keep deleted rows in its files and log; a receipt is "
        "complete only after it",
    )
