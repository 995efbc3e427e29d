"""The Redis connection: pool, timeout per call, and a circuit breaker.

All users of Redis (coordination, the journal) share a link, so that a failure seen by any of them protects all."""

from __future__ import annotations

import asyncio
import inspect
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Self

from pydantic import SecretStr
from redis import asyncio as aioredis
from redis import exceptions as faults
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.commands.core import AsyncScript
from redis.credentials import CredentialProvider

from memory_extproc.concurrency import cancellation_kept, contain_faults
from memory_extproc.errors import (
    MemoryExtprocError,
    NotReadyError,
    PermanentError,
    TransientError,
    UnknownFaultError,
)
from memory_extproc.observe.log import logger
from memory_extproc.settings.paths import RedisAddress, Topology, parse_redis_url

log = logger(__name__)

# The latest schema of our Redis keys that this program knows. The schema in use, and the oldest one whose programs
# can read and write these keys without loss, are in one key, so that an older program refuses to start using them.
# 2: the journal of a cluster is sharded.
SCHEMA = 2

_NOT_READY = (faults.BusyLoadingError, faults.ClusterDownError, faults.TryAgainError)
_REFUSED = (
    faults.AuthenticationError,
    faults.AuthorizationError,
    faults.NoPermissionError,
    faults.AuthenticationWrongNumberOfArgsError,
)
# A cluster none of whose nodes answers, or whose nodes do not know one another, is RedisClusterException.
_AWAY = (faults.ConnectionError, faults.TimeoutError, faults.RedisClusterException, OSError, TimeoutError)
_PASSING = (
    *_AWAY,
    faults.OutOfMemoryError,
    faults.ReadOnlyError,
    faults.AskError,
    faults.NoScriptError,
    faults.WatchError,
    faults.InvalidResponse,
    faults.SlotNotCoveredError,
)
_OURS = (faults.CrossSlotTransactionError, faults.InvalidPipelineStack)  # commands that we should not have sent
# Server errors that an operator will fix and the client has no class for: disk full, too few replicas, a running
# script. Older servers report script errors in mid-sentence.
# https://redis.io/docs/latest/develop/reference/protocol-spec/#simple-errors
_FOR_NOW = re.compile(r"(?:^|-)(?:MISCONF|NOREPLICAS|BUSY|OOM|READONLY|LOADING|MASTERDOWN) ")
_ASKED = (faults.RedisError, faults.RedisClusterException, OSError, TimeoutError)
_CONNECTIONS = 64  # at most; callers wait for a free connection


def translate_error(error: Exception) -> MemoryExtprocError:
    """Translate a client error. The original text may repeat sent data, so it is not included."""
    kind = type(error).__name__
    if isinstance(error, _NOT_READY):
        return NotReadyError(f"Redis is not ready ({kind})")
    if isinstance(error, faults.MovedError):  # to a client of one server
        return TransientError("this Redis is a Redis Cluster: coordination.url must begin with redis+cluster://")
    if isinstance(error, _REFUSED):
        # Transient: an operator fixes it and the call then works, so no turn is discarded.
        return TransientError(f"Redis refuses our credentials ({kind})")
    passes = isinstance(error, _PASSING) and not isinstance(error, _OURS)
    if passes or _FOR_NOW.search(str(error)):
        return TransientError(f"Redis does not answer as it should ({kind})")
    if isinstance(error, faults.DataError):  # the value cannot be encoded
        return PermanentError(f"Redis refuses the command ({kind})")
    return UnknownFaultError(f"Redis refuses the command ({kind})")


class NewerKeysError(TransientError):
    """The Redis keys belong to a newer program version and must not be touched."""


class Persistence(StrEnum):
    """The data that survives a crash of the server."""

    APPENDED = "appended"  # all writes except the last second's, or all, by its appendfsync
    SNAPSHOTS = "snapshots"  # writes up to the last snapshot
    NONE = "none"
    UNKNOWN = "unknown"  # the server does not report it


@dataclass(frozen=True, slots=True)
class Keeping:
    """The durability of a server. *evicts*: it deletes keys when memory is short."""

    persistence: Persistence
    evicts: bool

    @property
    def faults(self) -> tuple[str, ...]:
        """Why data may be lost; empty if the server does not report it."""
        faults_found = []
        if self.persistence is Persistence.NONE:
            faults_found.append("this Redis keeps nothing when it dies; set appendonly yes")
        if self.persistence is Persistence.SNAPSHOTS:
            faults_found.append("this Redis loses what came after its last snapshot; set appendonly yes")
        if self.evicts:
            faults_found.append("this Redis drops keys when memory is short; set maxmemory-policy noeviction")
        return tuple(faults_found)

    @property
    def loses(self) -> bool:
        """Whether the server is unsafe for accepted turns."""
        return self.evicts or self.persistence is Persistence.NONE


class _Credentials(CredentialProvider):
    """Supplies credentials for each new connection."""

    def __init__(self, user: str, password: Callable[[], SecretStr]) -> None:
        self._user, self._password = user, password

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        password = self._password().get_secret_value()
        if not password:
            return ()  # type: ignore[return-value]  # the client then says nothing of itself
        return (self._user, password) if self._user else (password,)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        return self.get_credentials()


def _make_client(
    address: RedisAddress, timeout: float, credentials: CredentialProvider, sentinel_password: str | None
) -> Any:
    """The client that finds the server of a key, or the master, by itself, also after a failover."""
    common: dict[str, Any] = {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": Retry(NoBackoff(), 1),  # a single retry on a new connection, when a pooled connection was closed
        "protocol": 2,
        "credential_provider": credentials,  # apart from the URL, which gets printed
    }
    if address.topology is Topology.SERVER:
        # A blocking pool: a burst of calls is not a failure.
        pool = aioredis.BlockingConnectionPool.from_url(
            address.options, timeout=timeout, max_connections=_CONNECTIONS, **common
        )
        return aioredis.Redis.from_pool(pool)
    if address.topology is Topology.CLUSTER:
        return RedisCluster.from_url(
            address.options,
            startup_nodes=[ClusterNode(*node) for node in address.nodes],
            require_full_coverage=False,  # the owners of the other slots go on
            dynamic_startup_nodes=False,  # names that we were given stay; addresses of pods do not
            **common,
        )
    options = {**parse_url(address.options), **common}
    tls = {"ssl": True} if options.pop("connection_class", None) else {}
    for name in ("host", "port"):
        options.pop(name, None)
    asking = {"socket_timeout": timeout, "socket_connect_timeout": timeout, "protocol": 2, **tls}
    asking |= {name: value for name, value in options.items() if name.startswith("ssl_")}
    sentinel = Sentinel(  # type: ignore[no-untyped-call]
        list(address.nodes), sentinel_kwargs={**asking, "password": sentinel_password}
    )
    return sentinel.master_for(address.master, **{**options, **tls})


class RedisLink:
    """A connection to Redis with a circuit breaker. Use within `async with`; owned by a single event loop.

    Connects on first use, so the server may start later than this process. After consecutive failures calls fail
    immediately, and a background task probes the server until it answers. With a key *prefix*, no call is made if
    the keys belong to a newer program version (NewerKeysError)."""

    FAILURES = 3  # in a row, before the circuit opens
    SLOW = timedelta(milliseconds=25)  # a call cancelled by its caller counts as failed after this time
    PAUSE = timedelta(milliseconds=250)  # between two looks at a server that failed

    def __init__(
        self,
        url: str,
        timeout: timedelta,
        *,
        password: Callable[[], SecretStr] = lambda: SecretStr(""),
        sentinel_password: str | None = None,
        replicas: int = 0,
        prefix: str = "",
        answers: Callable[[bool], None] = lambda _answers: None,  # called when availability changes
    ) -> None:
        """*timeout*: of a call, connecting included. *password*: read for each new connection."""
        self._timeout = timeout.total_seconds()
        address = parse_redis_url(url)
        self.client = _make_client(address, self._timeout, _Credentials(address.user, password), sentinel_password)
        self._replicas = replicas  # that must have a write of `run_replicated`
        self._cluster = address.topology is Topology.CLUSTER
        self._discovering = asyncio.Lock()
        self._discovered = not self._cluster
        # The pools of a cluster and of Sentinel do not wait for a free connection.
        self._calls = asyncio.Semaphore(_CONNECTIONS)
        self._answers = answers
        self._schema_key = f"{prefix}:schema" if prefix else ""
        self._ours = not prefix  # whether the schema check passed
        self._schema = 1  # in use
        self._failed = 0
        self._looking: asyncio.Task[None] | None = None  # while calls are refused

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await self.client.aclose()
        if self._cluster:
            # After an error the client has closed itself and does so no more; a call on another node that was under
            # way has connected since.
            await self.client.nodes_manager.aclose()
        if (asked := getattr(getattr(self.client, "connection_pool", None), "sentinel_manager", None)) is not None:
            for sentinel in asked.sentinels:
                await sentinel.aclose()

    @property
    def is_cluster(self) -> bool:
        return self._cluster

    @property
    def answering(self) -> bool:
        """Whether the circuit is closed; else calls fail immediately."""
        return self._looking is None

    async def open(self) -> None:
        """Ping the server; raises connection and authentication errors."""
        await self.limit_time(self._ping())

    async def _ping(self) -> None:
        """Ping the server, or each master of a cluster: while one is away, some owner's calls would wait for it."""
        await self.client.ping(**self._masters)

    @property
    def _masters(self) -> dict[str, str]:
        return {"target_nodes": RedisCluster.PRIMARIES} if self._cluster else {}

    async def limit_time(self, call: Awaitable[Any], *, within: timedelta | None = None) -> Any:
        """Await *call* within our timeout or the shorter *within*.

        TransientError immediately while the circuit is open."""
        if not self.answering:
            _never_made(call)
            raise TransientError("Redis did not answer a moment ago")
        if not (self._ours and self._discovered):
            try:
                await self._discover()
                await self._claim()
            except BaseException:  # cancelled, too
                _never_made(call)
                raise
        return await self._await_call(
            call, self._timeout if within is None else min(self._timeout, within.total_seconds())
        )

    async def _discover(self) -> None:
        """Learn the nodes of a cluster before the first call: calls that learn them at once cut each other off."""
        async with self._discovering:
            if not self._discovered:
                await self._await_call(self.client.initialize(), self._timeout)
                self._discovered = True

    async def _claim(self) -> None:
        """Check the schema each time the server comes up: it may have another's keys by then."""
        if self._ours:
            return
        there = await self._await_call(self.client.get(self._schema_key), self._timeout)
        try:
            schema, readable_from = (int(number) for number in (there or b"0 0").split())
        except ValueError:
            raise NewerKeysError(f"{self._schema_key} in this Redis is not ours: set coordination.prefix") from None
        if readable_from > SCHEMA:
            raise NewerKeysError(
                f"this Redis holds keys of schema {schema} of a newer memory-extproc, this one knows schemas up to"
                f" {SCHEMA}, and {readable_from} would be needed: run the newer program, or set coordination.prefix"
            )
        if readable_from < self._schema:
            used = f"{max(schema, self._schema)} {self._schema}"
            await self._await_call(self.client.set(self._schema_key, used), self._timeout)
        self._ours = True

    async def require_schema(self, schema: int) -> None:
        """Have programs that do not know *schema* refuse these keys, also in a Redis that loses its data."""
        self._schema, self._ours = schema, not self._schema_key
        if not self._ours:
            await self._claim()

    async def _await_call(self, call: Awaitable[Any], limit: float) -> Any:
        began = time.monotonic()
        try:
            with cancellation_kept():
                async with asyncio.timeout(limit), self._calls:
                    result = await call
        except asyncio.CancelledError:
            # The caller's deadline passed. Without counting this, a hanging server would never be detected.
            if time.monotonic() - began >= self.SLOW.total_seconds():
                self._count_failure()
            raise
        except _ASKED as error:
            if isinstance(error, _AWAY) and not isinstance(error, (*_NOT_READY, *_REFUSED)):
                self._count_failure()
            else:
                self._failed = 0
            raise translate_error(error) from error
        except RuntimeError as error:
            if "closed" not in str(error):
                raise
            # uvloop's error for a write to a connection that was closed a moment ago.
            self._count_failure()
            raise TransientError("Redis closed the connection") from error
        self._failed = 0
        return result

    async def run_replicated(self, script: AsyncScript, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """Run a script and wait until as many replicas of its server as configured have what it wrote.

        TransientError if they do not: the write stands, and the caller writes again or elsewhere. All keys lie in
        one slot."""
        if not self._replicas:
            return await self.limit_time(script(keys=keys, args=args))
        result, having = await self.limit_time(self._run_and_wait(script, keys, args))
        if int(having) < self._replicas:
            raise TransientError("too few replicas of Redis have a write: learn.journal.replicas")
        return result

    async def _run_and_wait(self, script: AsyncScript, keys: Sequence[str], args: Sequence[Any]) -> Sequence[Any]:
        # On one connection: WAIT is about the writes of its own.
        for attempt in range(2):
            pipeline = self.client.pipeline(transaction=False)
            target = {}
            if self._cluster:
                await self.client.initialize()
                target = {"target_nodes": self.client.get_node_from_key(keys[0])}
            pipeline.execute_command("EVALSHA", script.sha, len(keys), *keys, *args)
            pipeline.execute_command("WAIT", self._replicas, int(self._timeout * 200), **target)  # milliseconds
            try:
                return tuple(await pipeline.execute())
            except faults.NoScriptError:
                if attempt:
                    raise
                await self.client.script_load(script.script)
        raise AssertionError  # the second attempt returned or raised

    async def scan(self, pattern: str, count: int) -> AsyncIterator[list[str]]:
        """Pages of the keys that match, of all masters."""
        if self._cluster:
            await self.limit_time(self.client.initialize())
        for target in [{"target_nodes": one} for one in self.client.get_primaries()] if self._cluster else [{}]:
            cursor = -1
            while cursor:
                call = self.client.scan(cursor=max(cursor, 0), match=pattern, count=count, **target)
                found, names = await self.limit_time(call)
                cursor = next(iter(found.values())) if self._cluster else found
                yield [name.decode() for name in names]

    async def keeping(self) -> Keeping:
        """The durability settings of the server, or of a cluster's weakest master, as far as reported."""
        memory = await self._ask_masters(lambda target: self.client.info("memory", **target))
        evicts = any(one.get("maxmemory_policy", "noeviction") != "noeviction" for one in memory)
        persistence = await self._ask_masters(lambda target: self.client.info("persistence", **target))
        if all(one.get("aof_enabled") for one in persistence):
            return Keeping(Persistence.APPENDED, evicts)
        try:
            saves = await self._ask_masters(lambda target: self.client.config_get("save", **target))
        except (PermanentError, TransientError):  # hosted servers refuse CONFIG
            return Keeping(Persistence.UNKNOWN, evicts)
        kept = all(
            one.get("aof_enabled") or saved.get("save") for one, saved in zip(persistence, saves, strict=True)
        )
        return Keeping(Persistence.SNAPSHOTS if kept else Persistence.NONE, evicts)

    async def _ask_masters(self, ask: Callable[[Mapping[str, Any]], Awaitable[Any]]) -> Sequence[Mapping[str, Any]]:
        if not self._cluster:
            return [await self.limit_time(ask({}))]
        await self.limit_time(self.client.initialize())
        masters = sorted(self.client.get_primaries(), key=lambda one: str(one.name))
        return [await self.limit_time(ask({"target_nodes": one})) for one in masters]

    def _count_failure(self) -> None:
        self._failed += 1
        if self._failed >= self.FAILURES and self._looking is None:
            log.warning("redis.not_answering")
            self._answers(False)  # noqa: FBT003 - as it is called
            self._looking = asyncio.create_task(self._look_after(), name="redis look")

    async def _look_after(self) -> None:
        """Probe the server until it answers, so that no request waits for it."""
        while self._looking is not None:
            await asyncio.sleep(self.PAUSE.total_seconds())
            await contain_faults(self._look)

    async def _look(self) -> None:
        try:
            with cancellation_kept():
                async with asyncio.timeout(self._timeout):
                    await self._ping()
        except _AWAY:
            return
        except _ASKED:  # it answers, though with a refusal: the calls say with which
            pass
        self._failed, self._looking = 0, None
        self._ours = not self._schema_key
        log.info("redis.answers")
        self._answers(True)  # noqa: FBT003 - as it is called


def _never_made(call: Awaitable[Any]) -> None:
    """Close a coroutine that is never awaited, which Python would warn about."""
    if inspect.iscoroutine(call):
        call.close()
