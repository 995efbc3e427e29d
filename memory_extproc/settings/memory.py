"""What the vLLM semantic router also documents, under its names: `memory` and `external_models`."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr

from memory_extproc.settings.values import OptionalUrl, Positive, Section, Share, Size, split_address

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
    milvus: Milvus = Field(Milvus(), description="where memories rest")
    embedding: Embedding = Field(Embedding(), description="what turns text into vectors")
    default_retrieval_limit: int = Field(5, ge=1, le=100, description="memories in a block at most")
    default_similarity_threshold: Share = Field(
        0.6, description="relevance, 0 to 1, that a memory needs; calibrated, unless recall.threshold_on: cosine"
    )
    extraction_batch_size: int = Field(10, ge=1, le=100, description="turns of a session extracted together")


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


class ExternalModel(Section):
    model_role: ModelRole = Field(examples=["memory_extraction"], description="what it is for; one model each")
    llm_endpoint: Endpoint = Field(description="an OpenAI-compatible server")
    llm_model_name: str = Field(examples=["qwen3"], min_length=1, description="as the server knows it")
    llm_timeout_seconds: float = Field(30, gt=0, le=3600, description="seconds that one call may take")
    max_tokens: int = Field(500, ge=1, le=100_000, description="of one answer")
    temperature: float = Field(0.1, ge=0, le=2, description="of the sampling")
