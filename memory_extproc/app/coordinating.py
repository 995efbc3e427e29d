"""What replicas share, as configured: a file of this one alone, or a Redis."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from memory_extproc.coordination.sqlite import SqliteCoordination
from memory_extproc.errors import MemoryExtprocError
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Coordination, Now
from memory_extproc.settings import Settings

if TYPE_CHECKING:
    from memory_extproc.coordination.redis import RedisCoordination
    from memory_extproc.redis_link import RedisLink

log = logger(__name__)


async def open_link(settings: Settings, metrics: Metrics, stack: AsyncExitStack) -> RedisLink | None:
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
        answers=metrics.coordination_up.set,
    )
    return await stack.enter_async_context(link)


async def open_coordination(
    settings: Settings, data: Path, link: RedisLink | None, now: Now, stack: AsyncExitStack
) -> Coordination:
    coordination: SqliteCoordination | RedisCoordination
    if link is not None:
        from memory_extproc.coordination.redis import RedisCoordination  # noqa: PLC0415

        coordination = RedisCoordination(link, prefix=settings.coordination.prefix)
    else:
        coordination = SqliteCoordination(data / "coordination.db", now=now)
    await stack.enter_async_context(coordination)
    try:
        await coordination.open()
    except MemoryExtprocError as error:
        # Not a reason to stay away: requests pass, turns are journalled, and it is asked again each time.
        log.warning("coordination.not_open", detail=str(error))
    return coordination
