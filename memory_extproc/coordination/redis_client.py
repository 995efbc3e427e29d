"""The Redis connection: pool, timeout per call, and a circuit breaker.

All users of Redis (coordination, the journal) share a link, so that a failure seen by any of them protects all.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Self
from urllib.parse import unquote, urlsplit, urlunsplit

from redis import asyncio as aioredis
from redis import exceptions as faults
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
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

log = logger(__name__)

# The schema version of all our Redis keys, and the oldest program version that can read and write them without
# loss. Both are in the same key, so that an older program refuses to start using them.
SCHEMA, READABLE_FROM = 1, 1

_NOT_READY = (faults.BusyLoadingError, faults.ClusterDownError, faults.TryAgainError)
_REFUSED = (
    faults.AuthenticationError,
    faults.AuthorizationError,
    faults.NoPermissionError,
    faults.AuthenticationWrongNumberOfArgsError,
)
_AWAY = (faults.ConnectionError, faults.TimeoutError, OSError, TimeoutError)
_PASSING = (
    *_AWAY,
    faults.OutOfMemoryError,
    faults.ReadOnlyError,
    faults.AskError,
    faults.NoScriptError,
    faults.WatchError,
    faults.InvalidResponse,
)
# Server errors that an operator will fix and the client has no class for: disk full, too few replicas, a running
# script. Older servers report script errors in mid-sentence.
# https://redis.io/docs/latest/develop/reference/protocol-spec/#simple-errors
_FOR_NOW = re.compile(r"(?:^|-)(?:MISCONF|NOREPLICAS|BUSY|OOM|READONLY|LOADING|MASTERDOWN) ")
_ASKED = (faults.RedisError, faults.RedisClusterException, OSError, TimeoutError)


def translate_error(error: Exception) -> MemoryExtprocError:
    """Translate a client error. The original text may repeat sent data, so it is not included."""
    kind = type(error).__name__
    if isinstance(error, _NOT_READY):
        return NotReadyError(f"Redis is not ready ({kind})")
    if isinstance(error, _REFUSED):
        # Transient: an operator fixes it and the call then works, so no turn is discarded.
        return TransientError(f"Redis refuses our credentials ({kind})")
    if isinstance(error, _PASSING) or _FOR_NOW.search(str(error)):
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


@dataclass(frozen=True, slots=True)
class LinkLimits:
    timeout: timedelta = timedelta(milliseconds=500)  # per call, connecting included
    connections: int = 64  # at most; callers wait for a free connection
    failures: int = 3  # consecutive failures before the circuit opens
    slow: timedelta = timedelta(milliseconds=25)  # a call cancelled by its caller counts as failed after this time
    pause: timedelta = timedelta(milliseconds=250)  # between two looks at a server that failed


class _Credentials(CredentialProvider):
    """Supplies credentials for each new connection."""

    def __init__(self, user: str, password: str | None) -> None:
        self.user, self.password = user, password

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        if not self.password:
            return ()  # type: ignore[return-value]  # the client then says nothing of itself
        return (self.user, self.password) if self.user else (self.password,)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        return self.get_credentials()


def _without_user(url: str) -> tuple[str, str]:
    """Split the user from a URL: the client accepts a user from its URL or from a credential provider, not both."""
    parts = urlsplit(url)
    if not parts.username:
        return url, ""
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])), unquote(parts.username)


class RedisLink:
    """A connection to Redis with a circuit breaker. Use within `async with`; owned by a single event loop.

    Connects on first use, so the server may start later than this process. After consecutive failures calls fail
    immediately, and a background task probes the server until it answers. With a key *prefix*, no call is made if
    the keys belong to a newer program version (NewerKeysError).
    """

    def __init__(
        self,
        url: str,
        limits: LinkLimits = LinkLimits(),
        *,
        password: str | None = None,
        prefix: str = "",
        answers: Callable[[bool], None] = lambda _answers: None,  # called when availability changes
    ) -> None:
        self._limits = limits
        self._timeout = limits.timeout.total_seconds()
        url, user = _without_user(url)
        self._credentials = _Credentials(user, password)
        # A blocking pool: a burst of calls is not a failure.
        pool = aioredis.BlockingConnectionPool.from_url(
            url,
            timeout=self._timeout,
            max_connections=limits.connections,
            socket_timeout=self._timeout,
            socket_connect_timeout=self._timeout,
            retry=Retry(NoBackoff(), 1),  # a single retry on a new connection, when a pooled connection was closed
            protocol=2,
            credential_provider=self._credentials,  # apart from the URL, which gets printed
        )
        self.client = aioredis.Redis.from_pool(pool)
        self._answers = answers
        self._schema_key = f"{prefix}:schema" if prefix else ""
        self._ours = not prefix  # whether the schema check passed
        self._failed = 0
        self._looking: asyncio.Task[None] | None = None  # while calls are refused

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await self.client.aclose()

    def use_password(self, password: str | None) -> None:
        """Use *password* for new connections; open connections are authenticated already."""
        self._credentials.password = password

    @property
    def answering(self) -> bool:
        """Whether the circuit is closed; else calls fail immediately."""
        return self._looking is None

    async def open(self) -> None:
        """Ping the server; raises connection and authentication errors."""
        await self.bounded(self.client.ping())

    async def bounded(self, call: Awaitable[Any], *, within: timedelta | None = None) -> Any:
        """Await *call* within our timeout or the shorter *within*.

        TransientError immediately while the circuit is open.
        """
        if not self.answering:
            _never_made(call)
            raise TransientError("Redis did not answer a moment ago")
        if not self._ours:
            try:
                await self._claim()
            except BaseException:  # cancelled, too
                _never_made(call)
                raise
        return await self._await_call(
            call, self._timeout if within is None else min(self._timeout, within.total_seconds())
        )

    async def _claim(self) -> None:
        """Check the schema each time the server comes up: it may have another's keys by then."""
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
        if schema < SCHEMA:
            await self._await_call(self.client.set(self._schema_key, f"{SCHEMA} {READABLE_FROM}"), self._timeout)
        self._ours = True

    async def _await_call(self, call: Awaitable[Any], limit: float) -> Any:
        began = time.monotonic()
        try:
            with cancellation_kept():
                async with asyncio.timeout(limit):
                    result = await call
        except asyncio.CancelledError:
            # The caller's deadline passed. Without counting this, a hanging server would never be detected.
            if time.monotonic() - began >= self._limits.slow.total_seconds():
                self._count_failure()
            raise
        except _ASKED as error:
            if isinstance(error, _AWAY) and not isinstance(error, (*_NOT_READY, *_REFUSED)):
                self._count_failure()
            else:
                self._failed = 0
            raise translate_error(error) from error
        self._failed = 0
        return result

    async def keeping(self) -> Keeping:
        """The server's durability settings, as far as it reports them."""
        memory = await self.bounded(self.client.info("memory"))
        evicts = memory.get("maxmemory_policy", "noeviction") != "noeviction"
        persistence = await self.bounded(self.client.info("persistence"))
        if persistence.get("aof_enabled"):
            return Keeping(Persistence.APPENDED, evicts)
        try:
            saves = (await self.bounded(self.client.config_get("save"))).get("save")
        except (PermanentError, TransientError):  # hosted servers refuse CONFIG
            return Keeping(Persistence.UNKNOWN, evicts)
        return Keeping(Persistence.SNAPSHOTS if saves else Persistence.NONE, evicts)

    def _count_failure(self) -> None:
        self._failed += 1
        if self._failed >= self._limits.failures and self._looking is None:
            log.warning("redis.not_answering")
            self._answers(False)  # noqa: FBT003 - as it is called
            self._looking = asyncio.create_task(self._look_after(), name="redis look")

    async def _look_after(self) -> None:
        """Probe the server until it answers, so that no request waits for it."""
        while self._looking is not None:
            await asyncio.sleep(self._limits.pause.total_seconds())
            await contain_faults(self._look)

    async def _look(self) -> None:
        try:
            with cancellation_kept():
                async with asyncio.timeout(self._timeout):
                    await self.client.ping()
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
