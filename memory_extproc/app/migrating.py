"""The migration of a store's collections as configured: one runner at a time, and nothing forgotten taken along."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial

from memory_extproc.app.tending import Tended
from memory_extproc.errors import GiveUpError, MemoryExtprocError
from memory_extproc.model import Owner
from memory_extproc.ports import Coordination
from memory_extproc.settings import Settings
from memory_extproc.store.copying import Says
from memory_extproc.store.migrating import Migrated, Migrating

_LEASE = timedelta(seconds=15)  # a runner that was killed is waited for no longer


async def forgotten_among(tended: Tended, owner: Owner, ids: Sequence[str]) -> set[str]:
    """Those of *ids* that are in the store and are not to be seen any more."""
    marks = await tended.forgotten.of(owner)
    if not marks:
        return set()
    return {memory.id for memory in await tended.unsealed.get(owner, ids) if marks.covers(memory)}


def _migrating(tended: Tended, says: Says) -> Migrating:
    return tended.store.migrating(partial(forgotten_among, tended), says)


async def planned(tended: Tended, says: Says) -> Sequence[Migrated]:
    """What a migration would do; changes nothing."""
    return await _migrating(tended, says).plan()


async def migrated(settings: Settings, tended: Tended, says: Says) -> Sequence[Migrated]:
    """GiveUpError while another runner is at it; a Lite file is held by who called us."""
    if not settings.memory.milvus.address:
        return await _migrating(tended, says).run(_unhindered)
    lease = _Lease(tended.coordination, f"migrate:{settings.memory.milvus.collection}")

    async def checkpoint() -> None:
        tended.forgotten.renew_all()  # sidecars may have been told to forget more
        await lease.take()

    return await lease.during(lambda: _migrating(tended, says).run(checkpoint))


class _Lease:
    def __init__(self, coordination: Coordination, name: str) -> None:
        self._coordination = coordination
        self._name = name
        self._holder = uuid.uuid4().hex

    async def take(self) -> None:
        """Takes or renews it; GiveUpError where another has it."""
        if not await self._coordination.acquire(self._name, self._holder, _LEASE):
            seconds = int(_LEASE.total_seconds())
            raise GiveUpError(f"another migration is running, or was killed less than {seconds} s ago")

    async def during(self, work: Callable[[], Awaitable[Sequence[Migrated]]]) -> Sequence[Migrated]:
        """*work* with the lease held; it is broken off where that cannot be."""
        await self.take()
        working = asyncio.ensure_future(work())
        try:
            while not working.done():
                await asyncio.wait([working], timeout=_LEASE.total_seconds() / 3)
                if not working.done():
                    await self.take()
            return await working
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            with suppress(MemoryExtprocError):  # it ends by itself
                await self._coordination.release(self._name, self._holder)


async def _unhindered() -> None:
    """Nobody else can be at it, nor forget anything meanwhile."""
