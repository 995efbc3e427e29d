"""Forgetting as configured: the ledger, what knows of it, and who carries it out."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from memory_extproc import __version__
from memory_extproc.app.coordinating import open_link
from memory_extproc.coordination.consent import RedisConsent
from memory_extproc.coordination.directory_file import DirectoryFile
from memory_extproc.coordination.ledger_sqlite import SqliteLedger
from memory_extproc.coordination.mirror import SqliteMirror, set_aside_unusable
from memory_extproc.coordination.replicas import RedisReplicas, SoleReplica
from memory_extproc.erasure.eraser import Erasable
from memory_extproc.erasure.forgetter import ForgetLimits, Forgetter, Seeks
from memory_extproc.erasure.forgotten import Forgotten, HidingStore
from memory_extproc.erasure.receipts import Signer, read_signer
from memory_extproc.errors import ConfigurationError, GiveUpError, MemoryExtprocError, TryLaterError
from memory_extproc.model import Caller, ForgetScope, Memory, MemoryType, Owner, Scope, Wish
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Ledger, MemoryStore, Mirror, Now, Replicas, WrapsKeys
from memory_extproc.recall.recaller import Recaller
from memory_extproc.settings import Settings
from memory_extproc.store.partition import Partitions

if TYPE_CHECKING:
    from memory_extproc.coordination.ledger_redis import RedisLedger
    from memory_extproc.coordination.recovery import Recovery
    from memory_extproc.redis_link import RedisLink

log = logger(__name__)

LEDGER = "erasure.db"
MIRROR = "mirror.db"  # in the data directory: copies of what replicas share in Redis


@dataclass(frozen=True, slots=True)
class Fleet:
    """What there is only where replicas share a Redis."""

    ledger: RedisLedger
    consent: RedisConsent
    recovery: Recovery


def ledger_file(settings: Settings, data: Path) -> Path:
    return Path(settings.forget.ledger) if settings.forget.ledger else data / LEDGER


@dataclass(frozen=True, slots=True)
class Erasing:
    """What knows of forgets, before anything that keeps memories is opened."""

    ledger: Ledger
    replicas: Replicas
    forgotten: Forgotten
    fleet: Fleet | None = None  # None: one replica
    holder: str = "alone"  # of leases: the same at every start from a data directory, and no other's

    def hiding(self, store: MemoryStore) -> HidingStore:
        return HidingStore(store, self.forgotten)


@dataclass(frozen=True, slots=True)
class FleetAdmin:
    """What a command decides about the replicas that share a Redis."""

    replicas: RedisReplicas
    accept_loss: Callable[[], Awaitable[None]]


async def open_fleet(settings: Settings, stack: AsyncExitStack) -> FleetAdmin:
    """Raises where Redis does not answer. A command is no replica that serves: it holds no lease."""
    from memory_extproc.coordination.recovery import accept_loss  # noqa: PLC0415 - Redis takes 0.2 s to import

    link = await open_link(settings, Metrics(CollectorRegistry(), __version__), stack)
    if link is None:
        raise ConfigurationError(["coordination.url: is empty: one replica shares nothing"])
    await link.open()
    prefix, lease = settings.coordination.prefix, settings.coordination.lease
    return FleetAdmin(
        RedisReplicas(link, "command", prefix=prefix, lease=lease), partial(accept_loss, link, prefix)
    )


async def open_erasing(
    settings: Settings,
    data: Path,
    link: RedisLink | None,
    stack: AsyncExitStack,
    metrics: Metrics,
    *,
    shared: Mirror | None,
    wraps: WrapsKeys | None,
) -> Erasing:
    """*shared*: where replicas keep copies of what they share in Redis. *wraps* the key of the ledger there."""
    key = settings.privacy.key or b""
    if link is None:
        file = await stack.enter_async_context(SqliteLedger(ledger_file(settings, data)))
        alone = SoleReplica(data.name)
        return Erasing(file, alone, Forgotten(file, alone, key=key))
    from memory_extproc.coordination.ledger_redis import RedisLedger  # noqa: PLC0415 - Redis takes 0.2 s to import
    from memory_extproc.coordination.recovery import Recovery, RecoveryLimits  # noqa: PLC0415

    prefix, lease = settings.coordination.prefix, settings.coordination.lease
    directory = DirectoryFile(data)
    if await asyncio.to_thread(set_aside_unusable, data / MIRROR):
        directory.unsure = True
        directory.update(copied=False)
    own = await stack.enter_async_context(SqliteMirror(data / MIRROR))
    limits = RecoveryLimits(others=2 * lease)
    recovery = Recovery(link, prefix=prefix, directory=directory, own=own, shared=shared, limits=limits)
    ledger = RedisLedger(link, prefix=prefix, recovery=recovery, wraps=wraps)
    consent = RedisConsent(link, prefix=prefix, recovery=recovery)
    replicas = RedisReplicas(
        link,
        uuid.uuid4().hex,
        prefix=prefix,
        lease=lease,
        directory=directory.now.name,
    )
    metrics.dead_directories.set_function(lambda: replicas.dead_directories)
    metrics.coordination_restoring.set_function(lambda: recovery.loss is not None)
    recovery.parts += [ledger, consent]
    recovery.hooks.register = lambda: replicas.register
    recovery.hooks.put_back = replicas.put_back
    recovery.hooks.lost = lambda kind: metrics.coordination_losses.labels(kind).inc()
    replicas.whole, replicas.watch = recovery.is_whole, recovery.watch
    forgotten = Forgotten(ledger, replicas, key=key)
    return Erasing(ledger, replicas, forgotten, Fleet(ledger, consent, recovery), directory.now.name)


def _not_known_yet() -> datetime | None:
    raise TryLaterError("what an earlier process left in the data directory is not read yet")


async def take_part(erasing: Erasing, partitions: Partitions, stack: AsyncExitStack) -> None:
    """From here on other replicas' forgets are heard of, and what we hold may be served. To be left before the
    journals are: the register is told what they hold at the end."""
    replicas, forgotten, fleet = erasing.replicas, erasing.forgotten, erasing.fleet
    if not isinstance(replicas, RedisReplicas) or fleet is None:
        return
    replicas.oldest_waiting = _not_known_yet
    drop_for = make_news_handler(forgotten, partitions)

    async def heard(subject: str) -> None:
        await drop_for(subject)
        if subject:
            try:
                await fleet.recovery.copy(await fleet.ledger.copies_of(subject))
            except MemoryExtprocError as error:
                log.warning("forget.not_copied", error=type(error).__name__)

    async def drop_everything() -> None:
        forgotten.renew_all()
        for owner in partitions.owners():
            partitions.drop(owner)

    replicas.heard = heard
    fleet.recovery.hooks.restored.append(drop_everything)
    await stack.enter_async_context(fleet.recovery)
    await stack.enter_async_context(replicas)


def make_news_handler(forgotten: Forgotten, partitions: Partitions) -> Callable[[str], Awaitable[None]]:
    """What a replica does when it hears that something of a subject, or of anybody, was forgotten."""

    async def heard(subject: str) -> None:
        if subject:
            forgotten.renew(subject)
        else:
            forgotten.renew_all()
        blind = await forgotten.blind() if subject else None
        for owner in partitions.owners():
            if blind is None or blind.subject(owner) == subject:
                partitions.drop(owner)
                # Writes that were under way have ended: whoever forgets will find them, and is told of the rest.
                async with partitions.alone(owner) as alone:
                    alone.withdraw(await forgotten.recognise(owner, alone.unstored()))

    return heard


async def open_forgetter(
    settings: Settings,
    erasing: Erasing,
    holders: Erasable,
    metrics: Metrics,
    stack: AsyncExitStack,
    *,
    now: Now,
    seeks: Seeks | None,
) -> Forgetter:
    lease = settings.coordination.lease if settings.coordination.url else timedelta()
    limits = ForgetLimits(patience=timedelta(seconds=20), settle=lease, server_purge=settings.forget.server_purge)
    return await stack.enter_async_context(
        Forgetter(
            erasing.ledger,
            erasing.forgotten,
            erasing.replicas,
            holders,
            limits,
            metrics,
            now=now,
            chance=random.random,
            holder=erasing.holder,
            signer=_signer(settings),
            seeks=seeks,
        )
    )


def _signer(settings: Settings) -> Signer | None:
    path = settings.forget.signing_key
    if not path:
        return None
    try:
        return read_signer(Path(path))
    except GiveUpError as error:
        raise ConfigurationError([f"forget.signing_key: {error}"]) from error


class AsRecalled:
    """Finds what is known about something as the read path would, whether or not it would be injected."""

    def __init__(self, recaller: Recaller, threshold: float, most: int = 100) -> None:
        self._recaller, self._threshold, self._most = recaller, threshold, most

    def use(self, threshold: float) -> None:
        self._threshold = threshold

    async def about(self, owner: Owner, query: str, scope: ForgetScope) -> Sequence[Memory]:
        types = scope.types or frozenset(MemoryType)
        wish = Wish(
            caller=Caller(owner),
            asked=query,
            force=True,
            limit=self._most,
            threshold=self._threshold,
            scope=Scope(project=scope.project, types=types),
        )
        explained = await self._recaller.explain(wish)
        return [one.memory for one in explained.considered if one.relevance >= self._threshold]
