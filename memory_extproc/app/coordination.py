"""Shared state as configured: a local file, or Redis."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from memory_extproc.app.context import AppContext, make_context
from memory_extproc.coordination.consent import RedisConsent
from memory_extproc.coordination.mirror import SqliteMirror, set_aside_unusable
from memory_extproc.coordination.recovery import FILE as DIRECTORY_FILE
from memory_extproc.coordination.recovery import DirectoryFile
from memory_extproc.coordination.replicas import OldestWaiting, RedisReplicas, nothing_waits
from memory_extproc.coordination.sqlite import SoleReplica, SqliteCoordination, SqliteLedger
from memory_extproc.erasure.forgetter import ForgetLimits, Forgetter
from memory_extproc.erasure.receipts import ReceiptSigner, read_signer
from memory_extproc.erasure.steps import Erasable
from memory_extproc.erasure.tombstones import TombstoneFilteringStore, TombstoneIndex
from memory_extproc.errors import ConfigurationError, MemoryExtprocError, PermanentError, TransientError
from memory_extproc.journal.failover import Check, FailoverJournal, either_writable
from memory_extproc.journal.sqlite import SqliteJournal
from memory_extproc.model import Caller, ForgetScope, Memory, MemoryType, Owner, RecallRequest, Scope
from memory_extproc.observe.log import logger
from memory_extproc.ports import Coordination, Journal, KeyWrapper, Ledger, MemoryStore, Mirror, Replicas
from memory_extproc.recall.recaller import Recaller
from memory_extproc.settings import CurrentSettings, Settings
from memory_extproc.store.partition import Partitions

if TYPE_CHECKING:
    from memory_extproc.coordination.recovery import Recovery
    from memory_extproc.coordination.redis import RedisCoordination, RedisLedger
    from memory_extproc.coordination.redis_client import RedisLink
    from memory_extproc.journal.redis import RedisJournal, ShardedJournal


log = logger(__name__)

JOURNAL, COORDINATION, CONSENT = "journal.db", "coordination.db", "consent.db"  # in the data directory
_DEFERRED = timedelta(milliseconds=50)  # of records that a crash may lose


async def open_link(context: AppContext) -> RedisLink | None:
    """The shared Redis connection; None if not configured."""
    live, section = context.live, context.settings.coordination
    context.metrics.coordination_up.set(1)
    if not section.url:
        return None
    # Imported only if configured: Redis's client takes 0.2 s.
    from memory_extproc.coordination.redis_client import RedisLink  # noqa: PLC0415

    link = RedisLink(
        section.url,
        section.timeout,
        password=lambda: live.settings.coordination.password,
        sentinel_password=section.sentinel_password.get_secret_value() or None,
        replicas=context.settings.learn.journal.replicas,
        prefix=section.prefix,
        answers=context.metrics.coordination_up.set,
    )
    return await context.stack.enter_async_context(link)


async def open_coordination(context: AppContext, link: RedisLink | None) -> Coordination:
    section, data = context.settings.coordination, context.data
    coordination: SqliteCoordination | RedisCoordination
    if link is not None:
        from memory_extproc.coordination.redis import RedisCoordination  # noqa: PLC0415

        coordination = RedisCoordination(link, prefix=section.prefix)
    else:
        coordination = SqliteCoordination(data / COORDINATION, now=context.now, deferred=_DEFERRED)
        await context.stack.enter_async_context(coordination)
    try:
        await coordination.open()
    except MemoryExtprocError as error:
        # Not fatal: requests pass, turns are journalled, and the next call retries.
        log.warning("coordination.not_open", at=section.url or str(data), detail=str(error))
    return coordination


async def open_journal(
    context: AppContext, link: RedisLink | None, store_failing_for: Callable[[], timedelta] = timedelta
) -> tuple[Journal, Check, OldestWaiting]:
    """Open the journal, with its write check and the time of its oldest local turn.

    In Redis for several replicas, with a local file for outages."""
    file = await _file_journal(context)
    if link is None:
        return file, file.check, nothing_waits
    await refuse_volatile(context.settings, link)
    shared = await _shared_journal(context, link, store_failing_for)
    context.metrics.journal_parts.set_function(lambda: shared.parts_held)
    return FailoverJournal(shared, file), either_writable(shared.check, file.check), file.oldest


async def _shared_journal(
    context: AppContext, link: RedisLink, store_failing_for: Callable[[], timedelta] = timedelta
) -> RedisJournal | ShardedJournal:
    from memory_extproc.journal.redis import JournalSharing, RedisJournal, ShardedJournal  # noqa: PLC0415

    settings = context.settings
    coordination = settings.coordination
    kind = ShardedJournal if link.is_cluster else RedisJournal
    journal: RedisJournal | ShardedJournal = kind(
        link,
        settings.learn.journal,
        now=context.now,
        prefix=coordination.prefix,
        sharing=JournalSharing(lease=coordination.lease, grace=coordination.lease, learns=settings.role != "serve"),
        store_failing_for=store_failing_for,
    )
    return await context.stack.enter_async_context(journal)


async def _file_journal(context: AppContext) -> SqliteJournal:
    return await context.stack.enter_async_context(
        SqliteJournal(context.data / JOURNAL, context.settings.learn.journal, now=context.now)
    )


@dataclass(frozen=True, slots=True)
class Journals:
    """A sidecar's journals, for a command, whether or not the sidecar runs. *file* is None if absent."""

    path: Path
    file: SqliteJournal | None
    shared: RedisJournal | ShardedJournal | None

    @property
    def main(self) -> SqliteJournal | RedisJournal | ShardedJournal | None:
        """The journal from which turns are learned."""
        return self.shared or self.file


async def find_journals(context: AppContext, *, making: bool = False) -> Journals:
    """Open the journals without claiming turns, also beside a running sidecar. *making*: create a missing file."""
    path = context.data / JOURNAL
    there = (making and not context.settings.coordination.url) or await asyncio.to_thread(path.exists)
    file = await _file_journal(context) if there else None
    link = await open_link(context)
    if link is None:
        return Journals(path, file, None)
    await link.open()
    return Journals(path, file, await _shared_journal(context, link))


async def refuse_volatile(settings: Settings, link: RedisLink) -> None:
    """ConfigurationError for a Redis that may lose accepted turns, or whose keys belong to a newer version.

    An unreachable Redis is checked when it answers, and the result is logged."""
    from memory_extproc.coordination.redis_client import NewerKeysError  # noqa: PLC0415 - Redis takes 0.2 s to import

    try:
        keeping = await link.keeping()
    except NewerKeysError as error:
        raise ConfigurationError([f"coordination.url: {error}"]) from error
    except MemoryExtprocError:
        return
    if keeping.loses and not settings.coordination.accept_volatile:
        mend = "or say coordination.accept_volatile: true"
        raise ConfigurationError([f"coordination.url: {fault}, {mend}" for fault in keeping.faults])


# Erasure as configured: the ledger, the tombstone index and the forgetter.

LEDGER = "erasure.db"
MIRROR = "mirror.db"  # in the data directory: copies of shared Redis data


@dataclass(frozen=True, slots=True)
class Fleet:
    """The parts that exist only with several replicas."""

    ledger: RedisLedger
    consent: RedisConsent
    recovery: Recovery


def ledger_file(settings: Settings, data: Path) -> Path:
    return Path(settings.forget.ledger) if settings.forget.ledger else data / LEDGER


@dataclass(frozen=True, slots=True)
class ErasureParts:
    """The ledger and its readers, opened before any part that stores memories."""

    ledger: Ledger
    replicas: Replicas
    forgotten: TombstoneIndex
    fleet: Fleet | None = None  # None: a single replica
    holder: str = "alone"  # of leases: the same at every start from a data directory, and no other's

    def hiding(self, store: MemoryStore) -> TombstoneFilteringStore:
        return TombstoneFilteringStore(store, self.forgotten)


@dataclass(frozen=True, slots=True)
class FleetAdmin:
    """Administrative operations on the replicas that share a Redis."""

    replicas: RedisReplicas
    accept_loss: Callable[[], Awaitable[None]]


async def open_fleet(settings: Settings, stack: AsyncExitStack) -> FleetAdmin:
    """Connect for a command, without a lease: it does not serve. Raises if Redis does not answer."""
    from memory_extproc.coordination.recovery import accept_loss  # noqa: PLC0415 - Redis takes 0.2 s to import

    link = await open_link(make_context(settings, stack))
    if link is None:
        raise ConfigurationError(["coordination.url: is empty: one replica shares nothing"])
    await link.open()
    prefix, lease = settings.coordination.prefix, settings.coordination.lease
    return FleetAdmin(
        RedisReplicas(link, "command", prefix=prefix, lease=lease), partial(accept_loss, link, prefix)
    )


async def open_erasing(
    context: AppContext, link: RedisLink | None, *, shared: Mirror | None, wraps: KeyWrapper | None
) -> ErasureParts:
    """Open the ledger. *shared*: the mirror of shared Redis data. *wraps*: wraps the ledger's key there."""
    settings, data, metrics, stack = context.settings, context.data, context.metrics, context.stack
    key = settings.privacy.key or b""
    if link is None:
        file = await stack.enter_async_context(SqliteLedger(ledger_file(settings, data)))
        alone = SoleReplica(data.name)
        return ErasureParts(file, alone, TombstoneIndex(file, alone, key=key))
    from memory_extproc.coordination.recovery import Recovery  # noqa: PLC0415
    from memory_extproc.coordination.redis import RedisLedger  # noqa: PLC0415 - Redis takes 0.2 s to import

    prefix, lease = settings.coordination.prefix, settings.coordination.lease
    directory = DirectoryFile(data)
    if directory.unsure:
        metrics.files_set_aside.labels(DIRECTORY_FILE).inc()
    if await asyncio.to_thread(set_aside_unusable, data / MIRROR):
        metrics.files_set_aside.labels(MIRROR).inc()
        directory.unsure = True
        directory.update(copied=False)
    own = await stack.enter_async_context(SqliteMirror(data / MIRROR))
    recovery = Recovery(link, prefix=prefix, directory=directory, own=own, shared=shared, others=2 * lease)
    ledger = RedisLedger(link, prefix=prefix, recovery=recovery, wraps=wraps)
    consent = RedisConsent(link, prefix=prefix, recovery=recovery)
    replicas = RedisReplicas(link, uuid.uuid4().hex, prefix=prefix, lease=lease, directory=directory.now.name)
    metrics.dead_directories.set_function(lambda: replicas.dead_directories)
    metrics.coordination_restoring.set_function(lambda: recovery.loss is not None)
    recovery.parts += [ledger, consent]
    recovery.hooks.register = lambda: replicas.register
    recovery.hooks.put_back = replicas.put_back
    recovery.hooks.lost = lambda kind: metrics.coordination_losses.labels(kind).inc()
    replicas.whole, replicas.watch = recovery.is_whole, recovery.watch
    forgotten = TombstoneIndex(ledger, replicas, key=key)
    return ErasureParts(ledger, replicas, forgotten, Fleet(ledger, consent, recovery), directory.now.name)


def _not_known_yet() -> datetime | None:
    raise TransientError("what an earlier process left in the data directory is not read yet")


async def take_part(erasing: ErasureParts, partitions: Partitions, stack: AsyncExitStack) -> None:
    """Join the replicas: from here on their forgets are applied and cached data may be served.

    Must be left before the journals close, because the register records their remaining turns."""
    replicas, forgotten, fleet = erasing.replicas, erasing.forgotten, erasing.fleet
    if not isinstance(replicas, RedisReplicas) or fleet is None:
        return
    replicas.oldest_waiting = _not_known_yet
    drop_for = make_news_handler(forgotten, partitions)

    async def apply_news(subject: str) -> None:
        await drop_for(subject)
        if subject:
            try:
                await fleet.recovery.copy(await fleet.ledger.copies_of(subject))
            except MemoryExtprocError as error:
                log.warning("forget.not_copied", error=type(error).__name__)

    async def begin_anew() -> None:
        replicas.begin_anew()

    replicas.heard = apply_news
    fleet.recovery.hooks.restored.append(begin_anew)
    await stack.enter_async_context(fleet.recovery)
    await stack.enter_async_context(replicas)


def make_news_handler(forgotten: TombstoneIndex, partitions: Partitions) -> Callable[[str], Awaitable[None]]:
    """Make the handler for forgets of a subject, or of any subject, by another replica."""

    async def apply_news(subject: str) -> None:
        if subject:
            forgotten.renew(subject)
        else:
            forgotten.renew_all()
        blind = await forgotten.blind() if subject else None
        for owner in partitions.owners():
            if blind is None or blind.subject(owner) == subject:
                partitions.drop(owner)
                # Pending writes have ended: the forget finds their rows, and the others are reported.
                async with partitions.alone(owner) as alone:
                    alone.withdraw(await forgotten.recognise(owner, alone.list_unstored()))

    return apply_news


async def open_forgetter(
    context: AppContext, erasing: ErasureParts, holders: Erasable, recaller: Recaller
) -> Forgetter:
    settings = context.settings
    lease = settings.coordination.lease if settings.coordination.url else timedelta()
    limits = ForgetLimits(patience=timedelta(seconds=20), settle=lease, server_purge=settings.forget.server_purge)
    return await context.stack.enter_async_context(
        Forgetter(
            erasing.ledger,
            erasing.forgotten,
            holders,
            limits,
            context.metrics,
            now=context.now,
            holder=erasing.holder,
            signer=_signer(settings),
            seeks=AsRecalled(recaller, context.live),
        )
    )


def _signer(settings: Settings) -> ReceiptSigner | None:
    path = settings.forget.signing_key
    if not path:
        return None
    try:
        return read_signer(Path(path))
    except PermanentError as error:
        raise ConfigurationError([f"forget.signing_key: {error}"]) from error


_MOST_RECALLED = 100  # memories


class AsRecalled:
    """Finds memories about a query like the read path, regardless of injection."""

    def __init__(self, recaller: Recaller, current: CurrentSettings) -> None:
        self._recaller, self._current = recaller, current

    async def about(self, owner: Owner, query: str, scope: ForgetScope) -> Sequence[Memory]:
        threshold = self._current.settings.memory.default_similarity_threshold
        types = scope.types or frozenset(MemoryType)
        request = RecallRequest(
            caller=Caller(owner),
            asked=query,
            force=True,
            limit=_MOST_RECALLED,
            threshold=threshold,
            scope=Scope(project=scope.project, types=types),
        )
        explained = await self._recaller.explain(request)
        return [one.memory for one in explained.considered if one.relevance >= threshold]
