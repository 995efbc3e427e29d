"""The way to one Redis: its connections, a bound of time for each call, and nobody waiting while it hangs.

Whoever keeps something in Redis (coordination, the journal) goes through one link, so that what one of them
finds out about the server holds for all.
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

from memory_extproc.concurrency import cancellation_kept
from memory_extproc.errors import (
    MemoryExtprocError,
    NotReadyError,
    PermanentError,
    TransientError,
    UnknownFaultError,
)
from memory_extproc.observe.log import logger

log = logger(__name__)

# Of everything that we keep in Redis, together: the number that this program writes, and the lowest of a program
# that still reads and writes it without loss. Both stand in one key, so that an older program stays away.
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
# Refusals of a server that an operator is about to mend, which the client has no class for: its disk takes no more,
# it has fewer replicas than it must, a script runs on. Of a script older servers say so in mid sentence.
# https://redis.io/docs/latest/develop/reference/protocol-spec/#simple-errors
_FOR_NOW = re.compile(r"(?:^|-)(?:MISCONF|NOREPLICAS|BUSY|OOM|READONLY|LOADING|MASTERDOWN) ")
_ASKED = (faults.RedisError, faults.RedisClusterException, OSError, TimeoutError)


def translate_error(error: Exception) -> MemoryExtprocError:
    """Our kind of error for the client library's. Its text may repeat what was sent, so ours does not."""
    kind = type(error).__name__
    if isinstance(error, _NOT_READY):
        return NotReadyError(f"Redis is not ready ({kind})")
    if isinstance(error, _REFUSED):
        # An operator mends that, and then the same call works: no turn is given up for it.
        return TransientError(f"Redis refuses our credentials ({kind})")
    if isinstance(error, _PASSING) or _FOR_NOW.search(str(error)):
        return TransientError(f"Redis does not answer as it should ({kind})")
    if isinstance(error, faults.DataError):  # what was to be sent cannot be
        return PermanentError(f"Redis refuses the command ({kind})")
    return UnknownFaultError(f"Redis refuses the command ({kind})")


class NewerKeysError(TransientError):
    """What stands in Redis is a newer program's, and this one must leave it alone."""


class Persistence(StrEnum):
    """What is left when the server dies."""

    APPENDED = "appended"  # every write but the last second's or none, as its appendfsync says
    SNAPSHOTS = "snapshots"  # what was written before the last snapshot
    NONE = "none"
    UNKNOWN = "unknown"  # the server does not tell us


@dataclass(frozen=True, slots=True)
class Keeping:
    """How a server keeps what it is given. *evicts*: it drops keys of its choice when memory is short."""

    persistence: Persistence
    evicts: bool

    @property
    def faults(self) -> tuple[str, ...]:
        """Why what is given to it may be lost; no word of it where it does not tell."""
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
        """Whether it cannot be trusted with what was accepted."""
        return self.evicts or self.persistence is Persistence.NONE


@dataclass(frozen=True, slots=True)
class LinkLimits:
    timeout: timedelta = timedelta(milliseconds=500)  # of every call, connecting included
    connections: int = 64  # at most; who comes when all are in use waits for one
    failures: int = 3  # in a row, before nobody waits for the server any more
    slow: timedelta = timedelta(milliseconds=25)  # a call given up by who asked counts as failed from here on
    pause: timedelta = timedelta(milliseconds=250)  # between two looks at a server that failed


class _Credentials(CredentialProvider):
    """Asked each time a connection is made."""

    def __init__(self, user: str, password: str | None) -> None:
        self.user, self.password = user, password

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        if not self.password:
            return ()  # type: ignore[return-value]  # the client then says nothing of itself
        return (self.user, self.password) if self.user else (self.password,)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        return self.get_credentials()


def _without_user(url: str) -> tuple[str, str]:
    """The client takes a user from its URL or from who gives credentials, not from both."""
    parts = urlsplit(url)
    if not parts.username:
        return url, ""
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])), unquote(parts.username)


class RedisLink:
    """Nothing is asked of the server until the first call, so it may come up later than we do. After some
    failures in a row calls are refused at once, and the server is looked after behind until it answers. With a
    *prefix* of keys nothing is asked where those are a newer program's (NewerKeysError). Use within `async with`;
    one event loop owns it."""

    def __init__(
        self,
        url: str,
        limits: LinkLimits = LinkLimits(),
        *,
        password: str | None = None,
        prefix: str = "",
        answers: Callable[[bool], None] = lambda _answers: None,  # told when that changes
    ) -> None:
        self._limits = limits
        self._timeout = limits.timeout.total_seconds()
        url, user = _without_user(url)
        self._credentials = _Credentials(user, password)
        # A pool that waits for a free connection: a burst of calls is not a fault.
        pool = aioredis.BlockingConnectionPool.from_url(
            url,
            timeout=self._timeout,
            max_connections=limits.connections,
            socket_timeout=self._timeout,
            socket_connect_timeout=self._timeout,
            retry=Retry(NoBackoff(), 1),  # one more try, on a new connection, when a kept one was cut
            protocol=2,
            credential_provider=self._credentials,  # apart from the URL, which gets printed
        )
        self.client = aioredis.Redis.from_pool(pool)
        self._answers = answers
        self._schema_key = f"{prefix}:schema" if prefix else ""
        self._ours = not prefix  # whether we may use what is there
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
        """For connections made from now on; those that are open were let in already."""
        self._credentials.password = password

    @property
    def answering(self) -> bool:
        """Whether calls reach the server; else they are refused at once."""
        return self._looking is None

    async def open(self) -> None:
        """Asks the server whether it is there and takes us; raises what is wrong."""
        await self.bounded(self.client.ping())

    async def bounded(self, call: Awaitable[Any], *, within: timedelta | None = None) -> Any:
        """What *call* to the server gives, within our timeout or the shorter *within*. TransientError at once
        while the server is not answering."""
        if not self.answering:
            _never_made(call)
            raise TransientError("Redis did not answer a moment ago")
        if not self._ours:
            try:
                await self._claim()
            except BaseException:  # cancelled, too
                _never_made(call)
                raise
        return await self._asked(
            call, self._timeout if within is None else min(self._timeout, within.total_seconds())
        )

    async def _claim(self) -> None:
        """Once for each time that the server comes up: it may have been given another's keys meanwhile."""
        there = await self._asked(self.client.get(self._schema_key), self._timeout)
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
            await self._asked(self.client.set(self._schema_key, f"{SCHEMA} {READABLE_FROM}"), self._timeout)
        self._ours = True

    async def _asked(self, call: Awaitable[Any], limit: float) -> Any:
        began = time.monotonic()
        try:
            with cancellation_kept():
                async with asyncio.timeout(limit):
                    result = await call
        except asyncio.CancelledError:
            # Who asked had no more time. A server that hangs would never be found out otherwise.
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
        """How the server keeps what we give it, as far as it tells."""
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
        """Until the server answers: no request pays for finding out."""
        while True:
            await asyncio.sleep(self._limits.pause.total_seconds())
            try:
                with cancellation_kept():
                    async with asyncio.timeout(self._timeout):
                        await self.client.ping()
            except _AWAY:
                continue
            except _ASKED:  # it answers, though with a refusal: the calls say with which
                pass
            break
        self._failed, self._looking = 0, None
        self._ours = not self._schema_key
        log.info("redis.answers")
        self._answers(True)  # noqa: FBT003 - as it is called


def _never_made(call: Awaitable[Any]) -> None:
    """Closes what nobody will await: Python would warn of it."""
    if inspect.iscoroutine(call):
        call.close()
