"""Coordination kept in memory: one process, nothing survives it. For tests, and the pattern of the port."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from memory_extproc.coordination.record_kinds import check_registered
from memory_extproc.model import Owner
from memory_extproc.ports import Now

_RecordKey = tuple[str, Owner, str]


class TransientCoordination:
    """Passes the contract suite of Coordination. Two users of one object see each other's writes, so it
    also stands in for what two replicas share. Expired records and leases go when they are touched. What rests
    in *records* may be looked at, and damaged, from outside."""

    def __init__(self, now: Now) -> None:
        self._now = now
        self._versions: dict[Owner, int] = {}
        self._epochs: dict[Owner, int] = {}
        self.records: dict[_RecordKey, tuple[bytes, datetime]] = {}
        self._leases: dict[str, tuple[str, datetime]] = {}

    async def version(self, owner: Owner) -> int:
        return self._versions.get(owner, 0)

    async def bump(self, owner: Owner) -> int:
        self._versions[owner] = self._versions.get(owner, 0) + 1
        return self._versions[owner]

    async def epoch(self, owner: Owner) -> int:
        return self._epochs.get(owner, 0)

    async def advance_epoch(self, owner: Owner) -> int:
        self._epochs[owner] = self._epochs.get(owner, 0) + 1
        return self._epochs[owner]

    async def get_record(self, kind: str, owner: Owner, key: str) -> bytes | None:
        check_registered([kind])
        return self._live((kind, owner, key))

    async def put_record(self, kind: str, owner: Owner, key: str, value: bytes, ttl: timedelta) -> None:
        check_registered([kind])
        self.records[kind, owner, key] = (value, self._now() + ttl)

    async def replace_record(
        self, kind: str, owner: Owner, key: str, old: bytes | None, new: bytes, ttl: timedelta
    ) -> bool:
        check_registered([kind])
        # No await between look and write: within one event loop this is the swap.
        if self._live((kind, owner, key)) != old:
            return False
        self.records[kind, owner, key] = (new, self._now() + ttl)
        return True

    async def delete_records(self, owner: Owner, kinds: Sequence[str] | None = None) -> None:
        check_registered(kinds or ())
        for key in [key for key in self.records if key[1] == owner and (kinds is None or key[0] in kinds)]:
            del self.records[key]

    async def acquire(self, name: str, holder: str, ttl: timedelta) -> bool:
        held, now = self._leases.get(name), self._now()
        if held is not None and held[0] != holder and now < held[1]:
            self._leases[name] = (held[0], min(held[1], now + ttl))  # the clock may have been set back
            return False
        self._leases[name] = (holder, now + ttl)
        return True

    async def release(self, name: str, holder: str) -> None:
        held = self._leases.get(name)
        if held is not None and held[0] == holder:
            del self._leases[name]

    def _live(self, key: _RecordKey) -> bytes | None:
        record = self.records.get(key)
        if record is None:
            return None
        value, expires = record
        if self._now() < expires:
            return value
        del self.records[key]
        return None
