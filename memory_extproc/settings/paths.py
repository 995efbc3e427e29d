"""How the two paths work: recall, learning, coordination."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Literal
from urllib.parse import unquote, urlsplit

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
        0.8, description="minimum relevance of a topic's summary for messages of its conversation to be fetched too"
    )
    max: int = Field(
        4,
        ge=0,
        le=50,
        description="maximum number of messages fetched this way, within inject.token_budget; 0: none",
    )


class Recall(Section):
    deadline: Positive | Auto = Field(
        "auto", description="time limit of the whole recall; auto: 150ms, or 1.5s if a language model takes part"
    )
    settle: Duration = Field(
        timedelta(milliseconds=50),
        description="maximum wait, within the deadline, for the caller's previous turn to become searchable",
    )
    max_concurrent: int = Field(
        64,
        ge=1,
        le=10_000,
        description="upper bound of the recalls at the same time, whose number adapts to the load; further "
        "requests pass without memory, with the outcome `overloaded`",
    )
    candidates: int = Field(
        100, ge=1, le=1000, description="number of memories that the search returns for ranking"
    )
    threshold_on: Literal["relevance", "cosine"] = Field(
        "relevance", description="score that the threshold applies to: calibrated relevance or raw cosine"
    )
    query_rewrite: Literal["off", "vague", "always"] = Field(
        "off",
        description="let a language model rewrite the query; vague: only questions that cannot be understood alone",
    )
    hyde: bool = Field(
        default=False, description="also search with a hypothetical answer written by a language model (HyDE)"
    )
    about_caller: tuple[Annotated[str, AfterValidator(_pattern)], ...] = Field(
        (), description="regular expressions that recognise statements about the caller; empty: the built-in ones"
    )
    partition_bytes: Size = Field(
        256 << 20, ge=1 << 20, description="memory for the memories of recently active callers"
    )
    split_questions: bool = Field(
        default=False, description="also search for each part of a question that asks for several things"
    )
    rerank: Literal["off", "cross_encoder", "llm"] = Field(
        "off",
        description="rerank the best candidates with a cross-encoder in process or with a language model; "
        "skipped if it would exceed the deadline",
    )
    rerank_model: str = Field(
        "ms-marco-MiniLM-L6-v2",
        min_length=1,
        description="for cross_encoder: model prepared by `memory-extproc models prepare --kind cross-encoder`, "
        "under embedding.models_dir and with embedding.precision",
    )
    rerank_weight: Share = Field(
        0.6,
        description="weight of the reranker against the order of the search, 0 to 1; `memory-extproc models "
        "calibrate` fits it",
    )
    rerank_candidates: int = Field(20, ge=2, le=100, description="number of best candidates that are reranked")
    mmr_lambda: Share | None = Field(
        None,
        description="diversity of the injected memories (maximal marginal relevance); 1: relevance only; lower: "
        "more variety; null: off",
    )
    half_life: Positive = Field(
        HALF_LIFE,
        description="age at which a message has lost half of the score that age can cost it; facts do not age",
    )
    threads: Threads = Field(
        Threads(), description="messages of the conversation behind a summary that matches well"
    )
    weights: str = Field(
        "", description="weights file written by `memory-extproc eval tune`; empty: the packaged weights"
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
        default=False, description="true: call fsync for each accepted turn, so that it also survives a power loss"
    )
    max_turns: int = Field(
        100_000,
        ge=1,
        description="maximum number of turns waiting to be learned; beyond it, turns are dropped and counted",
    )
    intake_bytes: Size = Field(
        256 << 20,
        ge=1 << 20,
        description="maximum size of turns that cannot be journalled yet, for example while consent is unknown; "
        "beyond it, turns are dropped and counted",
    )
    retention: Duration = Field(
        timedelta(minutes=10), description="time until a learned turn is erased from the journal"
    )
    wait: Positive = Field(
        timedelta(milliseconds=50),
        description="maximum time that the last piece of an answer waits for the journal",
    )
    replicas: int = Field(
        0,
        ge=0,
        le=5,
        description="how many replicas of Redis must have a turn, a change of consent or a forget before it "
        "counts as accepted; with 1, for Sentinel or a cluster, a failover loses none",
    )


Tokens = Annotated[int | None, Field(ge=1, le=10**12)]


class ModelTokens(Section):
    """Estimated tokens of prompts and answers, in whole hours and days of UTC."""

    caller_hour: Tokens = Field(100_000, description="tokens for one caller per hour; null: unlimited")
    caller_day: Tokens = Field(500_000, description="tokens for one caller per day; null: unlimited")
    tenant_hour: Tokens = Field(None, description="tokens for all callers of a tenant per hour; null: unlimited")
    tenant_day: Tokens = Field(None, description="tokens for all callers of a tenant per day; null: unlimited")
    all_hour: Tokens = Field(None, description="tokens for all callers per hour; null: unlimited")
    all_day: Tokens = Field(None, description="tokens for all callers per day; null: unlimited")


class QuotaSection(Section):
    turns_per_hour: float = Field(
        3600.0,
        ge=0,
        le=1e9,
        description="average number of turns of one caller that are learned per hour; 0: unlimited",
    )
    burst: int = Field(
        1000, ge=1, le=1_000_000, description="number of turns that are learned at once after a quiet time"
    )


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
        description="text with which an assistant asks to store something, {text} stands for the content; "
        "empty: none",
    )
    delete: Marker = Field(
        "",
        description="text with which an assistant asks to forget something (softly, and only if chat_commands "
        "allows it); empty: none",
    )


class Learn(Section):
    journal: JournalSection = Field(
        JournalSection(), description="queue of accepted turns that are not learned yet"
    )
    session_idle: Positive = Field(
        timedelta(seconds=60), description="idle time after which a language model extracts facts from a session"
    )
    extractor: Literal["auto", "llm", "rules", "off"] = Field(
        "auto",
        description="extractor of facts; auto: the model memory_extraction if it is configured, with the rules "
        "as fallback",
    )
    model_tokens: ModelTokens = Field(
        ModelTokens(), description="token budget of learning; when it is used up, the rules take over"
    )
    model_patience: Positive = Field(
        timedelta(hours=24), description="time that turns wait for an unavailable model before the rules read them"
    )
    concurrency: int = Field(4, ge=1, le=256, description="callers whose turns are learned at the same time")
    quota: QuotaSection = Field(
        QuotaSection(), description="limit on the turns learned per caller, in each replica"
    )
    notepad: bool = Field(
        default=False,
        description="also let the model memory_extraction take short notes on how to help a caller; shown as "
        "part of inject.profile",
    )
    markers: MarkersSection = Field(
        MarkersSection(), description="texts by which an assistant itself asks to store or forget something"
    )
    max_attempts: int = Field(8, ge=1, le=1000, description="attempts before a failing turn becomes a dead letter")


# The address of Redis or Valkey: one server, a cluster, or the master that Sentinel names.

_FORMS = (
    "redis://host:6379/0, redis+cluster://host:6379,host:6379, redis+sentinel://host:26379,host:26379/master/0,"
    " the same with rediss for TLS, or unix:///path"
)


class Topology(StrEnum):
    SERVER = "server"
    CLUSTER = "cluster"
    SENTINEL = "sentinel"


@dataclass(frozen=True, slots=True)
class RedisAddress:
    topology: Topology
    options: str  # a URL of the first node as redis-py reads it: TLS, database and query; without user and master
    nodes: tuple[tuple[str, int], ...] = ()  # of a cluster, or the Sentinels
    user: str = ""
    master: str = ""  # the name under which Sentinel knows the master


def parse_redis_url(url: str) -> RedisAddress:
    """ValueError, with the accepted forms, for any other URL. The message repeats no part of the URL."""
    parts = urlsplit(url)
    scheme, _, kind = parts.scheme.partition("+")
    if (
        scheme not in {"redis", "rediss", "unix"}
        or kind not in {"", "cluster", "sentinel"}
        or (kind and scheme == "unix")
    ):
        raise ValueError(f"expected {_FORMS}; empty: SQLite under data_dir")
    given, _, hosts = parts.netloc.rpartition("@")
    user, _, password = given.partition(":")
    if password:
        raise ValueError("a URL carries no password here, it would stand in plain sight: coordination.password")
    if not (parts.path if scheme == "unix" else hosts):
        raise ValueError(f"names no server; expected {_FORMS}")
    topology = Topology(kind or "server")
    if topology is Topology.SERVER:
        if "," in hosts:
            raise ValueError("several servers need redis+cluster:// or redis+sentinel://")
        return RedisAddress(topology, parts._replace(netloc=hosts).geturl(), user=unquote(user))
    nodes = tuple(_parse_node(node, 26379 if topology is Topology.SENTINEL else 6379) for node in hosts.split(","))
    master, _, database = parts.path.strip("/").partition("/")
    if topology is Topology.CLUSTER:
        master, database = "", "/".join(filter(None, (master, database)))
        if database not in {"", "0"}:
            raise ValueError("a Redis Cluster has only database 0")
    elif not master:
        raise ValueError("names no master; expected redis+sentinel://host:26379,host:26379/master")
    elif database and not database.isdecimal():
        raise ValueError("the database after the master's name must be a number")
    first = parts._replace(scheme=scheme, netloc=hosts.split(",")[0], path=f"/{database}")
    return RedisAddress(topology, first.geturl(), nodes, unquote(user), unquote(master))


def _parse_node(node: str, port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{node}")
    if not parts.hostname:
        raise ValueError("a server without a name stands among the hosts; expected host:port,host:port")
    try:
        return parts.hostname, parts.port or port
    except ValueError:
        raise ValueError("a port is no number up to 65535; expected host:port,host:port") from None


def _coordination_url(value: str) -> str:
    if value:
        parse_redis_url(value)
    return value


class CoordinationSection(Section):
    url: Annotated[str, AfterValidator(_coordination_url)] = Field(
        "",
        description="Redis for several replicas, journal included: redis://host:port/0, redis+cluster://host,host "
        "for a Redis Cluster, redis+sentinel://host,host/master for the master that Sentinel names, rediss for "
        "TLS; empty: SQLite under data_dir, for one replica",
    )
    password: SecretStr = Field(
        SecretStr(""), description="password of Redis; set it through the environment or password_file"
    )
    password_file: str = Field("", description="file that holds the password")
    sentinel_password: SecretStr = Field(
        SecretStr(""), description="password of the Sentinels, if they have one; set it through the environment"
    )
    prefix: str = Field(
        "memory-extproc", pattern=r"^[A-Za-z0-9_.:-]{1,64}$", description="prefix of all keys in Redis"
    )
    timeout: Positive = Field(timedelta(milliseconds=500), description="maximum duration of one call to Redis")
    lease: Positive = Field(
        timedelta(seconds=10), description="time after which other replicas take over the learning of a dead one"
    )
    accept_volatile: bool = Field(
        default=False,
        description="true: accept a Redis without persistence or with an eviction policy, which can lose "
        "accepted turns",
    )
