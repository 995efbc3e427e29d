"""Coordination whose records (blocks given, words kept with response ids) rest only as they were sealed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from memory_extproc.errors import GiveUpError
from memory_extproc.model import Owner
from memory_extproc.observe.log import logger
from memory_extproc.ports import Coordination, Keys
from memory_extproc.sealing.box import context_of, is_sealed, seal, unseal

log = logger(__name__)


class SealedCoordination:
    """A Coordination over another, with keys by owner. A record that cannot be read was never there: every one of
    them is made up for. Counters and leases hold no words and pass as they are."""

    def __init__(self, coordination: Coordination, keys: Keys) -> None:
        self._coordination, self._keys = coordination, keys

    async def version(self, owner: Owner) -> int:
        return await self._coordination.version(owner)

    async def bump(self, owner: Owner) -> int:
        return await self._coordination.bump(owner)

    async def epoch(self, owner: Owner) -> int:
        return await self._coordination.epoch(owner)

    async def advance_epoch(self, owner: Owner) -> int:
        return await self._coordination.advance_epoch(owner)

    async def get_record(self, kind: str, owner: Owner, key: str) -> bytes | None:
        return await self._opened(kind, owner, key, await self._coordination.get_record(kind, owner, key))

    async def put_record(self, kind: str, owner: Owner, key: str, value: bytes, ttl: timedelta) -> None:
        await self._coordination.put_record(kind, owner, key, await self._sealed(kind, owner, key, value), ttl)

    async def replace_record(
        self, kind: str, owner: Owner, key: str, old: bytes | None, new: bytes, ttl: timedelta
    ) -> bool:
        there = await self._coordination.get_record(kind, owner, key)
        if await self._opened(kind, owner, key, there) != old:
            return False
        sealed = await self._sealed(kind, owner, key, new)
        return await self._coordination.replace_record(kind, owner, key, there, sealed, ttl)

    async def delete_records(self, owner: Owner, kinds: Sequence[str] | None = None) -> None:
        await self._coordination.delete_records(owner, kinds)

    async def acquire(self, name: str, holder: str, ttl: timedelta) -> bool:
        return await self._coordination.acquire(name, holder, ttl)

    async def release(self, name: str, holder: str) -> None:
        await self._coordination.release(name, holder)

    async def _sealed(self, kind: str, owner: Owner, key: str, value: bytes) -> bytes:
        return seal(await self._keys.of(owner), _context(kind, owner, key), value)

    async def _opened(self, kind: str, owner: Owner, key: str, value: bytes | None) -> bytes | None:
        if value is None or not is_sealed(value):  # from before records were sealed
            return value
        try:
            return unseal(await self._keys.find(owner), _context(kind, owner, key), value)
        except GiveUpError as error:
            log.info("coordination.record_sealed", kind=type(error).__name__)
            return None


def _context(kind: str, owner: Owner, key: str) -> bytes:
    return context_of("record", kind, owner.key, key)
