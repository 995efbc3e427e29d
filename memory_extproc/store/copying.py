"""One collection made to hold what another holds: rows that differ are written, rows that are not there go."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeVar

from memory_extproc.model import Owner
from memory_extproc.store import rows
from memory_extproc.store.calls import Calls
from memory_extproc.store.client import AsyncMilvusClient
from memory_extproc.store.listing import shares
from memory_extproc.store.options import MilvusOptions
from memory_extproc.store.placement import Place

T = TypeVar("T")
Row = Mapping[str, Any]
LeavesOut = Callable[[Owner, Sequence[str]], Awaitable[set[str]]]  # of an owner's ids those that are to go
Says = Callable[[str, int, int], None]  # what, how many rows, of how many
_BATCH = 200  # rows in one message: far below 64 MiB with every field full
_ALL = (*rows.SCALARS, rows.VECTOR)
_NAMES = ("id", "tenant_id", "user_id")
_EVERY = 'id != ""'


@dataclass(frozen=True, slots=True)
class Look:
    changed: int  # rows written or deleted
    left_out: int


class Copying:
    """From *old* to *new*. Reads are strong, so whatever was acknowledged before a look is in it. Rows are copied
    as they are, also those that this version cannot read. *at_once*: how many batches; one where the other side
    takes one writer."""

    def __init__(
        self,
        client: AsyncMilvusClient,
        options: MilvusOptions,
        calls: Calls,
        names: tuple[str, str],
        leaves_out: LeavesOut,
        *,
        at_once: int,
    ) -> None:
        self._client = client
        self._options = options
        self._calls = calls
        self._old, self._new = names
        self._leaves_out = leaves_out
        self._at_once = at_once

    async def look(self, says: Callable[[int], Awaitable[None]]) -> Look:
        """At every row of both; afterwards the new one holds what the old one held, but for what is left out and
        what was written meanwhile. *says* is told how many rows were looked at, after some at a time."""
        done = changed = left_out = 0
        async for filter_, found in shares(Place(self._old, None), self._ask, _NAMES):
            here = sorted(found, key=itemgetter("id"))
            there = {row["id"] for row in await self._query(self._new, filter_, ["id"])}
            changed += await self._deleted(there - {row["id"] for row in here})
            for some in _parts(here, _BATCH * self._at_once):
                looks = [self._looked_at(batch, there) for batch in _parts(some, _BATCH)]
                for look in await _all(looks):
                    changed, left_out = changed + look.changed, left_out + look.left_out
                done += len(some)
                await says(done)
        return Look(changed, left_out)

    async def count(self, name: str) -> int:
        counted = await self._query(name, _EVERY, ["count(*)"])
        return int(counted[0]["count(*)"])

    async def _looked_at(self, batch: Sequence[Row], there: set[str]) -> Look:
        out: set[str] = set()
        for owner, owned in groupby(sorted(batch, key=_whose), key=_whose):
            out |= await self._leaves_out(Owner(*owner), [row["id"] for row in owned])
        deleted = await self._deleted(there & out)
        ids = [row["id"] for row in batch if row["id"] not in out]
        differ = await self._differ([one for one in ids if one in there])
        written = await self._written([one for one in ids if one not in there or one in differ])
        return Look(deleted + written, len(out))

    async def _differ(self, ids: Sequence[str]) -> set[str]:
        """Those of *ids*, which stand in both, whose rows are not the same. A vector is the same while the content
        and the model are."""
        if not ids:
            return set()
        filter_ = rows.with_ids(ids)
        old, new = [
            {row["id"]: _said(row) for row in await self._query(name, filter_, rows.SCALARS)}
            for name in (self._old, self._new)
        ]
        return {one for one in ids if old.get(one) != new.get(one)}

    async def _written(self, ids: Sequence[str]) -> int:
        if not ids:
            return 0
        found = await self._query(self._old, rows.with_ids(ids), _ALL)
        batch = [{name: row[name] for name in _ALL} for row in found]
        if batch:  # else deleted meanwhile
            await self._step(lambda limit: self._client.upsert(self._new, batch, timeout=limit))
        return len(batch)

    async def _deleted(self, ids: set[str]) -> int:
        for some in _parts(sorted(ids), _BATCH):
            filter_ = rows.with_ids(some)
            await self._step(partial(self._delete, filter_))
        return len(ids)

    async def _delete(self, filter_: str, limit: float) -> None:
        await self._client.delete(self._new, filter=filter_, timeout=limit)

    async def _ask(self, place: Place, filter_: str, fields: Sequence[str], limit: int) -> Sequence[Row]:
        return await self._query(place.collection, filter_, fields, limit)

    async def _query(
        self, name: str, filter_: str, fields: Sequence[str], most: int | None = None
    ) -> Sequence[Row]:
        found: Sequence[Row] = await self._step(
            lambda limit: self._client.query(
                name,
                filter=filter_,
                output_fields=list(fields),
                consistency_level="Strong",
                strict_float32=True,
                timeout=limit,
                **({} if most is None else {"limit": most}),
            )
        )
        return found

    async def _step(self, call: Callable[[float], Awaitable[T]]) -> T:
        return await self._calls.run("migrate", self._options.open_timeout, call)


def _whose(row: Row) -> tuple[str, str]:
    return row["tenant_id"], row["user_id"]


def _said(row: Row) -> dict[str, Any]:
    return {name: row[name] for name in rows.SCALARS}


def _parts(whole: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    return (whole[start : start + most] for start in range(0, len(whole), most))


async def _all(calls: Sequence[Awaitable[T]]) -> list[T]:
    """What all of them give. Where one fails the others have ended, too, when it is raised."""
    ended = await asyncio.gather(*calls, return_exceptions=True)
    for one in ended:
        if isinstance(one, BaseException):
            raise one
    return [one for one in ended if not isinstance(one, BaseException)]
