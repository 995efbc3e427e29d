"""How the two paths work: recall, learning, coordination."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr

from memory_extproc.settings.types import Auto, Duration, Positive, Section, Share, Size


def _pattern(value: str) -> str:
    try:
        re.compile(value, re.IGNORECASE)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    return value


HALF_LIFE = timedelta(days=60)


class Threads(Section):
    min_relevance: Share = Field(
        0.8, description="of a topic's summary, from which on turns of its conversation are fetched too"
    )
    max: int = Field(4, ge=0, le=50, description="messages so fetched, within inject.token_budget; 0: off")


class Recall(Section):
    deadline: Positive | Auto = Field(
        "auto", description="of the whole read path; auto: 150ms, or 1.5s with a language model in it"
    )
    settle: Duration = Field(
        timedelta(milliseconds=50), description="most to wait, within it, until the caller's last turn can be found"
    )
    max_concurrent: int = Field(64, ge=1, le=10_000, description="recalls at the same time; beyond: overloaded")
    candidates: int = Field(100, ge=1, le=1000, description="memories asked of the search, before ranking")
    threshold_on: Literal["relevance", "cosine"] = Field(
        "relevance", description="what the threshold is held against: calibrated relevance, or the raw cosine"
    )
    query_rewrite: Literal["off", "vague", "always"] = Field(
        "off", description="by a language model; vague: only what does not stand for itself"
    )
    hyde: bool = Field(default=False, description="also search for an answer that a language model supposes")
    about_caller: tuple[Annotated[str, AfterValidator(_pattern)], ...] = Field(
        (), description="regular expressions of words about the caller; empty: the built-in ones"
    )
    partition_bytes: Size = Field(
        256 << 20, ge=1 << 20, description="of recently active callers' memories in process"
    )
    split_questions: bool = Field(
        default=False, description="also search for each part of a question that asks for several things"
    )
    rerank: Literal["off", "cross_encoder", "llm"] = Field(
        "off",
        description="who has a word in the order of the best: a model in process, or a language model; left out "
        "where it would be late",
    )
    rerank_model: str = Field(
        "ms-marco-MiniLM-L6-v2",
        min_length=1,
        description="cross_encoder: a model of `memory-extproc models prepare --kind cross-encoder`, below "
        "embedding.models_dir and in embedding.precision",
    )
    rerank_weight: Share = Field(
        0.6, description="0 to 1: the reranker's opinion beside the order of the search; `models calibrate` fits it"
    )
    rerank_candidates: int = Field(20, ge=2, le=100, description="of the best that are reranked")
    mmr_lambda: Share | None = Field(
        None, description="1: relevance alone; towards 0: variety among what is injected; null: off"
    )
    half_life: Positive = Field(
        HALF_LIFE, description="after which a message has lost half of what its age can cost it; facts do not age"
    )
    threads: Threads = Field(Threads(), description="what was said of a topic that matches well")
    weights: str = Field(
        "", description="file that `memory-extproc eval tune` wrote; empty: what comes with the product"
    )

    @property
    def rewrites(self) -> bool:
        """Whether a language model has a say in what is searched for."""
        return self.query_rewrite != "off" or self.hyde

    @property
    def with_model(self) -> bool:
        """Whether a language model takes part in the read path."""
        return self.rewrites or self.rerank == "llm"


class JournalSection(Section):
    fsync: bool = Field(
        default=False, description="true: an accepted turn survives power loss too, not only a crash"
    )
    max_turns: int = Field(100_000, ge=1, description="not learned yet; beyond, turns are dropped and counted")
    intake_bytes: Size = Field(
        256 << 20,
        ge=1 << 20,
        description="of turns that cannot be decided or journalled for now; beyond, turns are dropped and counted",
    )
    retention: Duration = Field(timedelta(minutes=10), description="until a learned turn is erased")
    wait: Positive = Field(
        timedelta(milliseconds=50), description="most that an answer's last piece waits for the journal"
    )


Tokens = Annotated[int | None, Field(ge=1, le=10**12)]


class ModelTokens(Section):
    """Estimated tokens of prompts and answers, in whole hours and days of UTC."""

    caller_hour: Tokens = Field(100_000, description="for one caller in an hour; null: no bound, here and below")
    caller_day: Tokens = Field(500_000, description="for one caller in a day")
    tenant_hour: Tokens = Field(None, description="for all callers of a tenant in an hour")
    tenant_day: Tokens = Field(None, description="for all callers of a tenant in a day")
    all_hour: Tokens = Field(None, description="in all in an hour")
    all_day: Tokens = Field(None, description="in all in a day")


class QuotaSection(Section):
    turns_per_hour: float = Field(
        3600.0, ge=0, le=1e9, description="turns of one caller that are kept, in the long run; 0: without bound"
    )
    burst: int = Field(1000, ge=1, le=1_000_000, description="of them at once, after a rest")


def _marker(value: str) -> str:
    if not value:
        return value
    before, found, behind = value.partition("{text}")
    if not found or "{text}" in behind or not before.strip() or not behind.strip():
        raise ValueError('expected {text} once, with signs before and behind it, such as "[[remember: {text}]]"')
    return value


Marker = Annotated[str, AfterValidator(_marker)]


class MarkersSection(Section):
    """An answer goes on as it is, markers included."""

    create: Marker = Field(
        "",
        description="what an assistant writes to have something remembered, {text} for what; empty: nothing",
    )
    delete: Marker = Field("", description="the same to have something forgotten softly, as chat_commands allows")


class Learn(Section):
    journal: JournalSection = Field(
        JournalSection(), description="where accepted turns wait until they are learned"
    )
    session_idle: Positive = Field(
        timedelta(seconds=60), description="of silence, after which a model extracts facts from a session"
    )
    extractor: Literal["auto", "llm", "rules", "off"] = Field(
        "auto", description="auto: the model memory_extraction if there is one, with the rules while it is down"
    )
    model_tokens: ModelTokens = Field(
        ModelTokens(), description="what learning may ask of a model; beyond it the rules serve"
    )
    model_patience: Positive = Field(
        timedelta(hours=24),
        description="how long turns wait for a model that is away; the rules serve meanwhile",
    )
    concurrency: int = Field(4, ge=1, le=256, description="callers learned from at the same time")
    quota: QuotaSection = Field(QuotaSection(), description="how much of one caller is kept, in each replica")
    notepad: bool = Field(
        default=False,
        description="also take short notes on what helps a caller, by the model memory_extraction; part of "
        "inject.profile",
    )
    markers: MarkersSection = Field(MarkersSection(), description="of assistants told to note things themselves")
    max_attempts: int = Field(8, ge=1, le=1000, description="until a turn that fails goes to the dead letters")


def _coordination_url(value: str) -> str:
    if not value:
        return value
    parts = urlsplit(value)
    if parts.scheme not in {"redis", "rediss", "unix"}:
        raise ValueError("expected redis://host:port/0, rediss:// or unix://; empty: SQLite under data_dir")
    if parts.password:
        raise ValueError("a URL carries no password here, it would stand in plain sight: coordination.password")
    if not (parts.hostname if parts.scheme != "unix" else parts.path):
        raise ValueError("names no server; expected redis://host:port/0")
    return value


class CoordinationSection(Section):
    url: Annotated[str, AfterValidator(_coordination_url)] = Field(
        "",
        description="redis://host:port/0 for several replicas, the journal included; empty: SQLite under "
        "data_dir, one replica",
    )
    password: SecretStr = Field(SecretStr(""), description="of Redis; secret: environment or file")
    password_file: str = Field("", description="file that holds the password")
    prefix: str = Field("memory-extproc", pattern=r"^[A-Za-z0-9_.:-]{1,64}$", description="of all keys in Redis")
    timeout: Positive = Field(timedelta(milliseconds=500), description="most that one call of Redis may take")
    lease: Positive = Field(
        timedelta(seconds=10), description="after which a dead replica's share of the learning passes to the others"
    )
    accept_volatile: bool = Field(
        default=False, description="true: a Redis that loses accepted turns when it dies or is full will do"
    )
