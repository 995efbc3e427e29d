"""What the vLLM semantic router also documents, under its names: `memory` and `external_models`."""

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
    enabled: bool = Field(default=False, description="speak TLS to the server; also on with an https:// address")
    ca: str = Field("", description="PEM file of the authorities to trust; empty: the system's")
    cert: str = Field("", description="PEM file of our own certificate, for a server that asks for one")
    key: str = Field("", description="PEM file of its key")
    server_name: str = Field("", description="name the server's certificate must carry; empty: the address")


class Milvus(Section):
    address: Annotated[str, AfterValidator(_milvus_address)] = Field(
        "", description="host:port or http(s)://host:port of a server; empty: Milvus Lite, a file under data_dir"
    )
    collection: str = Field(
        "agentic_memory",
        pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,199}$",
        description="an alias; the collection behind it is NAME_vSCHEMA_DIMENSION",
    )
    dimension: int = Field(384, ge=2, le=MAX_DIMENSION, description="of the vectors; equals embedding.dimension")
    layout: Literal["auto", "single", "sharded"] = Field(
        "auto", description="collections: auto is single on a server, sharded by caller in a Lite file"
    )
    shards: int = Field(
        64, ge=1, le=1024, description="collections of a new Lite file; fixed when the file is made"
    )
    user: str = Field("", description="of a server with accounts")
    password: SecretStr = Field(SecretStr(""), description="of the user; secret: environment, or password_file")
    password_file: str = Field("", description="file that holds the password")
    token: SecretStr = Field(SecretStr(""), description="instead of user and password; secret")
    token_file: str = Field("", description="file that holds the token")
    database: str = Field("", description="on the server; empty: its default")
    tls: MilvusTls = Field(MilvusTls(), description="to the server")
    full_text: bool = Field(
        default=True,
        description="an index of words in new collections, where Milvus has it (Lite, servers from 2.5): callers "
        "with too many memories to hold in process are searched by words too",
    )
    timeout: Positive = Field(timedelta(seconds=2), description="most that one call of the store may take")


class Provider(StrEnum):
    ONNX = "onnx"
    OPENAI = "openai"
    SENTENCE_TRANSFORMERS = "sentence_transformers"


class Embedding(Section):
    provider: Provider = Field(
        Provider.ONNX,
        description="onnx: in process; openai: an OpenAI-compatible endpoint; sentence_transformers: the extra",
    )
    model: str = Field(
        "all-MiniLM-L6-v2", min_length=1, description="its name; a change needs a new collection or re-embedding"
    )
    dimension: int = Field(384, ge=2, le=MAX_DIMENSION, description="of the model's vectors")
    precision: Literal["int8", "fp32"] = Field("int8", description="onnx: which of the prepared models")
    models_dir: str = Field("./models", description="onnx: where `memory-extproc models prepare` puts models")
    threads: int = Field(2, ge=1, le=256, description="onnx: inferences at the same time, one core each")
    cache: int = Field(4096, ge=0, le=1_000_000, description="vectors of queries kept, least recently used out")
    word_bytes: Size = Field(
        48 << 20,
        description="onnx: of vectors of single words, of what was embedded lately, 3.5 KiB a message; 0: none are "
        "kept, and no memory is read word by word",
    )
    endpoint: OptionalUrl = Field("", description="openai: base URL, such as http://embedder:8080/v1")
    access_key: SecretStr = Field(SecretStr(""), description="openai: bearer key; secret: environment or file")
    access_key_file: str = Field("", description="file that holds the access key")
    timeout: Positive = Field(timedelta(seconds=2), description="openai: most that one call may take")
    device: Literal["auto", "cpu", "cuda", "mps"] = Field(
        "auto", description="sentence_transformers: where it runs"
    )


class Memory(Section):
    enabled: bool = Field(default=True, description="false: every request passes untouched, outcome `disabled`")
    auto_store: bool = Field(
        default=True, description="learn from exchanges unless a request or a rule says otherwise"
    )
    client_may_enable: bool = Field(
        default=False,
        description="true: `auto_store: true` in a request's body switches learning on although auto_store is "
        "false, as in the vLLM semantic router; false: a body can only switch it off",
    )
    milvus: Milvus = Field(Milvus(), description="where memories rest")
    embedding: Embedding = Field(Embedding(), description="what turns text into vectors")
    default_retrieval_limit: int = Field(5, ge=1, le=100, description="memories in a block at most")
    default_similarity_threshold: Share = Field(
        0.6, description="relevance, 0 to 1, that a memory needs; calibrated, unless recall.threshold_on: cosine"
    )
    extraction_batch_size: int = Field(
        10, ge=1, le=100, description="turns of a session that a model reads together; the rules read each at once"
    )


class ModelRole(StrEnum):
    """What an external language model is for. All others fall back to the extraction model."""

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
        description="host name or IP address, without scheme or port",
    )
    port: int = Field(examples=[8000], ge=1, le=65535, description="TCP port")
    protocol: Literal["http", "https"] = Field("http", description="how to speak to it")
    path: str = Field("/v1", pattern=r"^(/[^\s?#]*)?$", description="before /chat/completions")
    access_key: SecretStr = Field(SecretStr(""), description="bearer key; secret: environment or file")
    access_key_file: str = Field("", description="file that holds the access key")

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
    model_role: ModelRole = Field(examples=["memory_extraction"], description="what it is for; one model each")
    llm_endpoint: Endpoint = Field(description="an OpenAI-compatible server")
    llm_model_name: str = Field(examples=["qwen3"], min_length=1, description="as the server knows it")
    llm_timeout_seconds: float = Field(30, gt=0, le=3600, description="seconds that one call may take")
    max_tokens: int = Field(
        500,
        ge=1,
        le=100_000,
        description="of one answer, reasoning included; eight times as many after the first that is cut off",
    )
    temperature: float = Field(0.1, ge=0, le=2, description="of the sampling")
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = Field(
        None, description="how long a thinking model may think; null: the request says nothing of it"
    )
    extra_body: Annotated[dict[str, Any], BeforeValidator(_extra_body)] = Field(
        default_factory=dict,
        description="further fields of each request, such as {chat_template_kwargs: {enable_thinking: false}}",
    )


# --- retention ---------------------------------------------------------------------------------------
# The life of memories after they were stored, as configured.


class TimeToLive(Section):
    semantic: Positive | None = Field(None, description="since it was stored; null: for good, here and below")
    procedural: Positive | None = Field(None, description="how the caller wants things done")
    episodic: Positive | None = Field(None, description="what was said, messages themselves too")
    reflective: Positive | None = Field(None, description="what was concluded")

    def given(self) -> dict[MemoryType, timedelta]:
        found = {kind: getattr(self, kind.value) for kind in MemoryType}
        return {kind: ttl for kind, ttl in found.items() if ttl is not None}


class Duplicates(Section):
    enabled: bool = Field(default=True, description="facts that say the same become one")
    distance: float = Field(0.08, ge=0, le=2, description="1 - cosine, at most, between neighbours in a cluster")
    same_words: bool = Field(
        default=True,
        description="they must say the same in words too; false: the distance alone decides, and facts about two "
        "flights, 0.04 apart, become one",
    )


class Consolidate(Section):
    above: int | None = Field(
        3, ge=2, le=1000, description="statements of one thing over time that become one memory; null: none do"
    )
    earlier: int = Field(12, ge=1, le=100, description="values from before that one memory names at most")
    subject: int | None = Field(
        8,
        ge=2,
        le=1000,
        description="facts of one subject other than the caller that the memory_extraction model, where there is "
        "one, tells in one memory; null: none",
    )


class Reflect(Section):
    enabled: bool = Field(
        default=False, description="a model draws conclusions from a caller's facts; needs memory_extraction"
    )
    above: int = Field(5, ge=2, le=10_000, description="facts of one theme from which on it is asked about them")
    grown: int = Field(3, ge=1, le=10_000, description="facts new in a theme until it is asked about it again")
    themes: int = Field(
        3, ge=1, le=100, description="themes of a caller and project that it is asked about in a round"
    )


class Retention(Section):
    every: Positive | None = Field(
        timedelta(hours=24), description="a round over all callers in the background; null: by command alone"
    )
    weight: Share = Field(0.5, description="of importance in a memory's score; the rest is age's")
    half_life: Positive = Field(timedelta(days=60), description="after which age's part has halved")
    refresh_on_access: bool = Field(default=True, description="a memory that was injected is as young as then")
    max_memories: int | None = Field(
        1000, ge=1, le=10_000_000, description="active ones of one caller; beyond, the lowest scores go; null: any"
    )
    prune_share: float = Field(
        0.01, ge=0, lt=1, description="of max_memories that is made room for beyond what is too many"
    )
    protect: Duration = Field(timedelta(hours=24), description="younger memories are left alone")
    ttl: TimeToLive = Field(TimeToLive(), description="how long each type is kept, whatever its score")
    grace: Duration = Field(timedelta(days=30), description="from softly deleted to erased")
    history: Duration | None = Field(
        timedelta(days=365), description="from superseded to erased; null: what held before is kept for good"
    )
    access_interval: Positive = Field(
        timedelta(minutes=15), description="between writes of access counts; a crash loses one interval's at most"
    )
    duplicates: Duplicates = Field(Duplicates(), description="the same said more than once")
    consolidate: Consolidate = Field(Consolidate(), description="one thing's values over time, in one memory")
    reflect: Reflect = Field(Reflect(), description="what several facts show together, as memories of their own")


# --- topics ------------------------------------------------------------------------------------------
# Topics and summaries of sessions as configured.


class Topics(Section):
    enabled: bool = Field(default=True, description="false: turns and facts alone are remembered")
    same: Share = Field(
        0.45, description="cosine to the open topic from which on a turn belongs to it, with no further look"
    )
    apart: Share = Field(
        0.5,
        description="probability from which on a turn begins another topic, by a measure fitted for "
        "all-MiniLM-L6-v2; `eval topics` says how well it does with another model",
    )
    characters: int = Field(25_000, ge=1_000, le=100_000, description="at which a topic closes by itself")
    idle: Positive = Field(
        timedelta(minutes=10), description="of silence, after which a session has ended and is summed up"
    )
    model: Literal["auto", "off"] = Field(
        "auto",
        description="auto: memory_topics decides in doubt and memory_summary sums up, if there is a model; off: "
        "measures, and sentences of the conversation",
    )


# --- forgetting --------------------------------------------------------------------------------------
# Forgetting as configured.


class Forgetting(Section):
    ledger: str = Field(
        "",
        description="file that holds, as keyed hashes, what was forgotten; keep it out of backups, on another "
        "volume at best, so that a restored one brings nothing back; empty: erasure.db under data_dir; unused with "
        "coordination.url, where the ledger is in Redis",
    )
    signing_key: str = Field(
        "",
        description="PEM file with an Ed25519 private key that signs receipts (made by `openssl genpkey -algorithm "
        "ed25519`); empty: receipts are not signed",
    )
    server_purge: Positive = Field(
        timedelta(days=4),
        description="how long a Milvus server may keep deleted rows in its files and its log; a receipt is "
        "complete after it",
    )
