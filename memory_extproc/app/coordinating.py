"""What replicas share, as configured: a file of this one alone, or a Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from memory_extproc import __version__
from memory_extproc.app.live import Live
from memory_extproc.coordination.replicas import OldestWaiting, nothing_waits
from memory_extproc.coordination.sqlite import SqliteCoordination
from memory_extproc.errors import ConfigurationError, MemoryExtprocError
from memory_extproc.learn.journal import SqliteJournal
from memory_extproc.learn.journal_spare import Check, SparedJournal, either
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Coordination, Journal, Now
from memory_extproc.settings import Settings

if TYPE_CHECKING:
    from memory_extproc.coordination.redis import RedisCoordination
    from memory_extproc.learn.journal_redis import RedisJournal
    from memory_extproc.redis_link import RedisLink

log = logger(__name__)

JOURNAL, COORDINATION = "journal.db", "coordination.db"  # in the data directory


async def open_link(
    settings: Settings, metrics: Metrics, stack: AsyncExitStack, live: Live | None = None
) -> RedisLink | None:
    """The way to Redis that all who keep something there use; None where none is configured."""
    section = settings.coordination
    metrics.coordination_up.set(1)
    if not section.url:
        return None
    # Imported where it is configured: Redis's client takes 0.2 s.
    from memory_extproc.redis_link import LinkLimits, RedisLink  # noqa: PLC0415

    link = RedisLink(
        section.url,
        LinkLimits(timeout=section.timeout),
        password=section.password.get_secret_value() or None,
        prefix=section.prefix,
        answers=metrics.coordination_up.set,
    )
    if live is not None:
        live.follow(lambda new: link.use_password(new.coordination.password.get_secret_value() or None))
    return await stack.enter_async_context(link)


async def open_coordination(
    settings: Settings,
    data: Path,
    link: RedisLink | None,
    now: Now,
    stack: AsyncExitStack,
) -> Coordination:
    coordination: SqliteCoordination | RedisCoordination
    if link is not None:
        from memory_extproc.coordination.redis import RedisCoordination  # noqa: PLC0415

        coordination = RedisCoordination(link, prefix=settings.coordination.prefix)
    else:
        coordination = SqliteCoordination(data / COORDINATION, now=now)
    await stack.enter_async_context(coordination)
    try:
        await coordination.open()
    except MemoryExtprocError as error:
        # Not a reason to stay away: requests pass, turns are journalled, and it is asked again each time.
        log.warning("coordination.not_open", at=settings.coordination.url or str(data), detail=str(error))
    return coordination


async def open_journal(
    settings: Settings,
    data: Path,
    link: RedisLink | None,
    now: Now,
    stack: AsyncExitStack,
    *,
    store_failing_for: Callable[[], timedelta] = timedelta,
    reports_held: Callable[[int], object] = lambda _held: None,
) -> tuple[Journal, Check, OldestWaiting]:
    """With what tells whether a turn could be written now, and when the oldest was asked that waits here alone. In
    Redis where replicas share one, with a file beside it for the time Redis is away."""
    file = await stack.enter_async_context(file_journal(settings, data / JOURNAL, now))
    if link is None:
        return file, file.check, nothing_waits
    await refuse_volatile(settings, link)
    shared = await _shared_journal(settings, link, now, stack, store_failing_for, reports_held)
    return SparedJournal(shared, file), either(shared.check, file.check), file.oldest


async def _shared_journal(
    settings: Settings,
    link: RedisLink,
    now: Now,
    stack: AsyncExitStack,
    store_failing_for: Callable[[], timedelta] = timedelta,
    reports_held: Callable[[int], object] = lambda _held: None,
) -> RedisJournal:
    from memory_extproc.learn.journal_redis import RedisJournal, Sharing  # noqa: PLC0415

    coordination = settings.coordination
    return await stack.enter_async_context(
        RedisJournal(
            link,
            now=now,
            prefix=coordination.prefix,
            max_turns=settings.learn.journal.max_turns,
            sharing=Sharing(lease=coordination.lease, grace=coordination.lease),
            store_failing_for=store_failing_for,
            reports_held=reports_held,
        )
    )


def file_journal(settings: Settings, path: Path, now: Now) -> SqliteJournal:
    section = settings.learn.journal
    return SqliteJournal(path, now=now, max_turns=section.max_turns, fsync=section.fsync)


@dataclass(frozen=True, slots=True)
class Journals:
    """What a command finds of a sidecar's journals, running or not. *file* is None where there is none."""

    path: Path
    file: SqliteJournal | None
    shared: RedisJournal | None

    @property
    def main(self) -> SqliteJournal | RedisJournal | None:
        """Where turns are learned from."""
        return self.shared or self.file


async def find_journals(settings: Settings, now: Now, stack: AsyncExitStack, *, making: bool = False) -> Journals:
    """Beside a running sidecar, too: nothing is held. Where there is no file none is made, unless *making* it."""
    path = journal_path(settings)
    there = (making and not settings.coordination.url) or await asyncio.to_thread(path.exists)
    file = await stack.enter_async_context(file_journal(settings, path, now)) if there else None
    link = await open_link(settings, Metrics(CollectorRegistry(), __version__), stack)
    if link is None:
        return Journals(path, file, None)
    await link.open()
    return Journals(path, file, await _shared_journal(settings, link, now, stack))


def journal_path(settings: Settings) -> Path:
    return Path(settings.data_dir).absolute() / JOURNAL


async def refuse_volatile(settings: Settings, link: RedisLink) -> None:
    """ConfigurationError for a Redis that would lose accepted turns, or that holds what we must not touch; one that
    cannot be asked now is asked when it answers, and then the log says so."""
    from memory_extproc.redis_link import NewerKeysError  # noqa: PLC0415 - Redis takes 0.2 s to import

    try:
        keeping = await link.keeping()
    except NewerKeysError as error:
        raise ConfigurationError([f"coordination.url: {error}"]) from error
    except MemoryExtprocError:
        return
    if keeping.loses and not settings.coordination.accept_volatile:
        mend = "or say coordination.accept_volatile: true"
        raise ConfigurationError([f"coordination.url: {fault}, {mend}" for fault in keeping.faults])
